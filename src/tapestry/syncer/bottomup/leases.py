"""Node leases: the heartbeat of every virtual node, from one queue and a few workers.

A virtual node is alive as long as its physical cluster answers: a node that is not ready says so in its conditions.
While the cluster is out of reach no lease is renewed.  Each renewal also notes when the cluster last answered, which
may be a few seconds earlier.
"""

import random
from dataclasses import dataclass, field

from tapestry.apis import keys
from tapestry.controller import Result
from tapestry.kube.errors import AlreadyExists, Conflict, NotFound
from tapestry.kube.objects import Object, annotations_of, is_deleting, name_of, owner_reference
from tapestry.kube.resources import LEASES, NODE_LEASES
from tapestry.kube.times import micro_timestamp, timestamp
from tapestry.syncer.site import Site

RENEW_SECONDS = 10.0
DURATION_SECONDS = 40
JITTER = 0.1
"""The part of `RENEW_SECONDS` by which a renewal may come early.  Leases that were all written at the start would be
renewed all at once for ever, and keep pods waiting each time."""


@dataclass(frozen=True)
class NodeLeases:
    """Renews the Lease of each virtual node; keyed by the virtual node's name."""

    site: Site
    held: dict[str, Object] = field(default_factory=dict)
    """Each Lease as we last wrote it: a renewal needs no read."""

    async def reconcile(self, name: str) -> Result | None:
        node = self.site.virtual_nodes.store.get(name)
        if node is None or is_deleting(node):
            await self.remove(name)
            return None
        if self.site.partition.since is not None:
            return None
        try:
            self.held[name] = await self.renewed(node)
        except (Conflict, NotFound) as error:
            self.held.pop(name, None)
            if isinstance(error, AlreadyExists):
                self.held[name] = await self.site.virtual.get(LEASES, name, NODE_LEASES)
            return Result(requeue_after=0.05)
        return Result(requeue_after=RENEW_SECONDS * random.uniform(1 - JITTER, 1))

    async def renewed(self, node: Object) -> Object:
        name, now = name_of(node), micro_timestamp(self.site.now())
        held, annotations = self.held.get(name), self.annotations()
        if held is not None:
            metadata = {**held["metadata"], "annotations": {**annotations_of(held), **annotations}}
            renewed = {**held, "metadata": metadata, "spec": {**held["spec"], "renewTime": now}}
            return await self.site.virtual.replace(LEASES, renewed)
        owner = owner_reference({"apiVersion": "v1", "kind": "Node", **node}, controller=False, block_deletion=False)
        lease = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {
                "name": name,
                "namespace": NODE_LEASES,
                "ownerReferences": [owner],
                "annotations": annotations,
            },
            "spec": {"holderIdentity": name, "leaseDurationSeconds": DURATION_SECONDS, "renewTime": now},
        }
        return await self.site.virtual.create(LEASES, lease)

    def annotations(self) -> dict[str, str]:
        seen = self.site.last_seen()
        return {keys.LAST_SEEN: timestamp(seen)} if seen is not None else {}

    async def remove(self, name: str) -> None:
        """The Lease goes with its node, where no garbage collector sees to that."""
        held = self.held.pop(name, None)
        if held is not None:
            await self.delete(held)

    async def delete(self, lease: Object) -> None:
        try:
            await self.site.virtual.delete(LEASES, lease)
        except (NotFound, Conflict):
            return
