"""Reconciler of node leases: the heartbeat of every virtual node, from one queue and a few workers.

A virtual node is alive while its physical cluster responds; a node that is not ready says so in its conditions. While
the cluster is unreachable no lease is renewed. Each renewal records the cluster's last response, which may be a few
seconds older.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from tapestry.apis import keys
from tapestry.client.client import Client
from tapestry.controller import ObjectCache, Result
from tapestry.kube.errors import AlreadyExists, Conflict, NotFound
from tapestry.kube.objects import Object, annotations_of, is_deleting, name_of, owner_reference
from tapestry.kube.resources import LEASES, NODE_LEASE_NAMESPACE
from tapestry.kube.times import micro_timestamp, timestamp
from tapestry.syncer.partition import Partition

RENEW_INTERVAL = 10.0
LEASE_DURATION_SECONDS = 40
JITTER = 0.1
"""Fraction of `RENEW_INTERVAL` by which a renewal may be early, so that leases are not renewed all at once."""


@dataclass(frozen=True)
class NodeLeaseReconciler:
    """Renew the Lease of each virtual node; keyed by the virtual node's name."""

    virtual_nodes: ObjectCache
    partition: Partition
    client: Client
    now: Callable[[], datetime]
    written_leases: dict[str, Object] = field(default_factory=dict)
    """Each Lease as we last wrote it, so that a renewal needs no read."""

    async def reconcile(self, name: str) -> Result | None:
        node = self.virtual_nodes.store.get(name)
        if node is None or is_deleting(node):
            await self.remove(name)
            return None
        if self.partition.since is not None:
            return None
        try:
            self.written_leases[name] = await self.renew(node)
        except (Conflict, NotFound) as error:
            self.written_leases.pop(name, None)
            if isinstance(error, AlreadyExists):
                self.written_leases[name] = await self.client.get(LEASES, name, NODE_LEASE_NAMESPACE)
            return Result(requeue_after=0.05)
        return Result(requeue_after=RENEW_INTERVAL * random.uniform(1 - JITTER, 1))

    async def renew(self, node: Object) -> Object:
        name, now = name_of(node), micro_timestamp(self.now())
        last, annotations = self.written_leases.get(name), self.annotations()
        if last is not None:
            metadata = {**last["metadata"], "annotations": {**annotations_of(last), **annotations}}
            renewed = {**last, "metadata": metadata, "spec": {**last["spec"], "renewTime": now}}
            return await self.client.replace(LEASES, renewed)
        owner = owner_reference({"apiVersion": "v1", "kind": "Node", **node}, controller=False, block_deletion=False)
        lease = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {
                "name": name,
                "namespace": NODE_LEASE_NAMESPACE,
                "ownerReferences": [owner],
                "annotations": annotations,
            },
            "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_DURATION_SECONDS, "renewTime": now},
        }
        return await self.client.create(LEASES, lease)

    def annotations(self) -> dict[str, str]:
        seen = self.partition.last_seen()
        return {keys.LAST_SEEN: timestamp(seen)} if seen is not None else {}

    async def remove(self, name: str) -> None:
        """Delete the Lease of a deleted node, in case no garbage collector runs."""
        lease = self.written_leases.pop(name, None)
        if lease is not None:
            await self.delete(lease)

    async def delete(self, lease: Object) -> None:
        try:
            await self.client.delete(LEASES, lease)
        except (NotFound, Conflict):
            return
