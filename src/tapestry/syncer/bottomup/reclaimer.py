"""Execution of reclaims on virtual nodes.

Pods leave through the virtual cluster. A twin is deleted directly if no deletion of its pod will end it, or so that its
node is free in time: if the virtual cluster is unreachable, and before the pods at the owner's kill switch.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

from tapestry.apis.ownership import capped_grace_seconds, is_ending_in_time
from tapestry.client.client import Client
from tapestry.client.options import PatchType
from tapestry.controller.errors import NotLeading
from tapestry.kube.errors import Conflict, KubeError, NotFound, TooManyRequests, TransportError
from tapestry.kube.objects import Object, key_of, name_of, uid_of
from tapestry.kube.pod_requests import occupies_node
from tapestry.kube.resources import PODS
from tapestry.process.logs import logger
from tapestry.syncer import metrics
from tapestry.syncer.cache_transforms import physical_node_of
from tapestry.syncer.caches import Caches
from tapestry.syncer.clients import Clients
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.syncer.identity import Identity
from tapestry.syncer.lease_cache import LeaseCache, is_replaced_node
from tapestry.syncer.leasing import LeaseState
from tapestry.syncer.reclaim import (
    Reclaim,
    disruption_patch,
    propagates_deletion,
    reclaim_all,
    reclaim_for,
    unbinding_terms,
    withdrawal_terms,
)
from tapestry.syncer.translate.pod_status import mapped_uid
from tapestry.syncer.views import Twin

log = logger(__name__)

PARALLEL_DELETIONS = 8


@dataclass(frozen=True)
class Reclaimer:
    """Evict and delete the pods of virtual nodes, or their twins."""

    identity: Identity
    current_binding: CurrentBinding
    caches: Caches
    clients: Clients
    now: Callable[[], datetime]
    pending_disruptions: dict[str, Object]
    """Patches that mark reclaimed pods, by the UID of their twin, until the virtual cluster is reachable."""
    lease_cache: LeaseCache

    def running_pods(self, node: str) -> list[Object]:
        """Return the pods of a virtual node that have a twin. Pods that wait for the lease hold nothing of it."""
        active = [pod for pod in self.caches.pods_on(node) if occupies_node(pod.object)]
        return [pod.object for pod in active if mapped_uid(pod.object) or self.lease_cache.ledger.has_twin(pod.uid)]

    def has_twins(self, node: str) -> bool:
        """Return whether twins hold any of a virtual node's lease."""
        return any(entry.requested for _, entry in self.lease_cache.ledger.entries_on(node))

    async def reclaim_pods(self, reclaim: Reclaim, reason: str) -> None:
        """Evict and delete pods; one that is rejected does not stop the others, but its error is raised at the end."""
        rejected: list[KubeError] = []
        for pod in reclaim.evict:
            try:
                await self.clients.virtual.evict(pod)
            except (TooManyRequests, NotFound):  # blocked by a disruption budget, or already deleted
                continue
        for pod in reclaim.delete:
            patch = disruption_patch(reason, reclaim.terms, self.now())
            try:
                marked = await self.clients.virtual.patch(
                    PODS, pod, patch, type=PatchType.STRATEGIC, subresource="status"
                )
                await self.clients.virtual.delete(PODS, marked, grace_seconds=capped_grace_seconds(pod))
            except NotFound:
                continue
            except TransportError:
                raise
            except KubeError as error:
                rejected.append(error)
            else:
                if (twin := self.caches.twin_of_pod(pod)) is not None:
                    self.pending_disruptions.pop(uid_of(twin), None)
                self.clients.events.warning(pod, "Reclaimed", f"{reason}: by {reclaim.terms.by}")
                metrics.POD_OUTCOMES.labels(self.identity.binding_name, metrics.FAILED, "Reclaimed").inc()
        if rejected:
            raise rejected[0]

    @asynccontextmanager
    async def delete_twins_in_time(self, node: str, reclaim: Reclaim, reason: str) -> AsyncIterator[None]:
        """Delete the twins directly before what the caller does to their pods, or if that fails to reach them.

        They are deleted first if the terms say so. Then Conflict is raised at once, because the cache will soon know
        the twin; any other error only after the caller has marked the pods.
        """
        rejected = None
        if reclaim.terms.twins_first:
            try:
                await self.delete_reclaimed_twins(node, reclaim, reason, self.clients.physical)
            except Conflict:
                raise
            except KubeError as error:
                rejected = error
        try:
            yield
        except TransportError:
            if not reclaim.terms.twins_first:
                await self.delete_reclaimed_twins(node, reclaim, reason, self.clients.physical)
            raise
        if rejected is not None:
            raise rejected

    async def delete_reclaimed_twins(self, node: str, reclaim: Reclaim, reason: str, client: Client) -> None:
        """Delete twins before their pods, which are marked later; `node` is the virtual node."""
        patch = disruption_patch(reason, reclaim.terms, self.now())
        ending = []
        for pod in reclaim.delete:
            twin = self.caches.twin_of_pod(pod)
            if twin is not None and not is_ending_in_time(twin):
                self.pending_disruptions[uid_of(twin)] = patch
                ending.append((twin, capped_grace_seconds(pod)))
        await delete_twins([*ending, *self.lingering_twins(node, reclaim)], client)

    def lingering_twins(self, node: str, reclaim: Reclaim) -> list[tuple[Object, int]]:
        """Return twins, with their grace, that must leave the virtual node and that no pod deletion will end."""
        lingering = []
        for key, entry in self.lease_cache.ledger.entries_on(node) if reclaim.empties_node else ():
            twin, pod = self.caches.physical_pods.store.get(key), self.caches.virtual_pods.store.get(entry.pod)
            if not isinstance(twin, Twin) or entry.requested is None or is_ending_in_time(twin.object):
                continue
            if pod is None or pod.uid != entry.uid or not propagates_deletion(pod.object):
                lingering.append((twin.object, capped_grace_seconds(twin.object)))
        return lingering

    def due_reclaim(self, existing: Object, now: datetime) -> tuple[Reclaim, str]:
        """Return the reclaim that is due on a virtual node, and its reason, according to the caches."""
        pods = self.running_pods(name_of(existing))
        if self.current_binding.is_unbinding:
            return reclaim_all(pods, unbinding_terms(self.current_binding.object(), now), now), "Unbound"
        binding = self.current_binding.get()
        node = next(filter(None, map(self.caches.physical_nodes.store.get, physical_node_of(existing))), None)
        if binding is None or node is None or not self.caches.is_physical_synced or is_replaced_node(node, existing):
            return Reclaim(), ""
        lease = self.lease_cache.reclaiming_lease(node, existing, binding, now)
        if lease.state is LeaseState.WITHDRAWN:
            return reclaim_all(pods, withdrawal_terms(lease, existing, now), now), lease.reason
        return reclaim_for(lease, pods, now), lease.reason


async def delete_twins(twins: Iterable[tuple[Object, int]], client: Client) -> None:
    """Delete twins, each with its grace, some at a time. A rejected deletion does not stop the others.

    Raises Conflict if a twin differs from the cache: no change of a twin makes the node available again.
    """
    waiting, rejected = list(twins), list[KubeError | NotLeading]()
    remaining = iter(waiting)

    async def delete_some() -> None:
        for twin, grace in remaining:
            try:
                await client.delete(PODS, twin, grace_seconds=grace)
            except NotFound:
                continue
            except (Conflict, NotLeading) as error:
                rejected.append(error)
            except KubeError as error:
                log.warning("reclaim: twin could not be deleted", twin=key_of(twin), error=str(error))
                rejected.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(PARALLEL_DELETIONS, len(waiting))):
            group.create_task(delete_some())
    if rejected:
        raise rejected[0]
