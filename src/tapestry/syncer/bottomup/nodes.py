"""Reconciler of virtual nodes, one for each leased physical node.

    only physical    not leased: nothing. Leased: create the virtual node.
    both             update the virtual node to the current lease; reclaim pods on its terms.
    only virtual     the physical node is deleted: delete its pods and the virtual node.

A virtual node is withdrawn in three passes: set a taint, reclaim its pods on the terms of their lease, and delete the
node after its last pod.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import fallback_virtual_node_name, virtual_node_name
from tapestry.controller import Result, Terminal
from tapestry.kube.errors import AlreadyExists
from tapestry.kube.objects import Object, is_deleting, labels_of, name_of, value_at
from tapestry.kube.pod_requests import occupies_node
from tapestry.kube.pods import taint_named
from tapestry.kube.resources import NODES, PODS
from tapestry.kube.times import timestamp
from tapestry.syncer.bottomup.reclaimer import Reclaimer, delete_twins
from tapestry.syncer.cache_transforms import is_placeholder
from tapestry.syncer.caches import Caches
from tapestry.syncer.clients import Clients
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.syncer.lease_cache import LeaseCache, is_replaced_node
from tapestry.syncer.leasing import Lease, LeaseState, ReclaimTerms, soonest
from tapestry.syncer.partition import Partition
from tapestry.syncer.reclaim import reclaim_all, reclaim_for, unbinding_terms, withdrawal_terms
from tapestry.syncer.virtual_nodes import Endpoint, virtual_node, withdrawal_patch

UNNEEDED_TIME = timedelta(minutes=1)
"""Time after its last pod at which a virtual node that is only for pods is deleted."""


@dataclass(slots=True)
class KubeletState:
    """Endpoint of the kubelet that serves our virtual nodes, if there is one."""

    endpoint: Endpoint | None = None
    on_change: Callable[[], None] = lambda: None

    def publish(self, endpoint: Endpoint) -> None:
        """Set the endpoint that virtual nodes show, and update them if it is another one."""
        if endpoint != self.endpoint:
            self.endpoint = endpoint
            self.on_change()


@dataclass(frozen=True)
class NodeReconciler:
    """Keep one virtual Node for each leased physical Node; keyed by the physical node's name."""

    current_binding: CurrentBinding
    caches: Caches
    clients: Clients
    partition: Partition
    kubelet: KubeletState
    now: Callable[[], datetime]
    warning: timedelta
    """Time before its end at which a lease warns."""
    lease_cache: LeaseCache
    reclaimer: Reclaimer
    is_needed: Callable[[str], bool] = lambda _: True
    """Return whether the virtual cluster gets a Node for an open node."""
    unneeded_since: dict[str, datetime] = field(default_factory=dict)
    """Time since which each virtual node is not needed any more."""
    warned: dict[str, datetime] = field(default_factory=dict)
    """End of the lease that each virtual node was last warned about."""
    stable_nodes: set[str] = field(default_factory=set)
    """Physical nodes whose lease did not depend on its pods at the last pass."""

    def depends_on_pods(self, name: str) -> bool:
        """Return whether a pod that is bound to the node or leaves it requires a pass."""
        return name not in self.stable_nodes or name in self.lease_cache.shortages.by_node

    async def reconcile(self, name: str) -> Result | None:
        now = self.now()
        self.stable_nodes.discard(name)
        existing = self.caches.virtual_node_of(name)
        if existing is not None and is_deleting(existing):
            return None
        if self.current_binding.is_unbinding:
            terms = unbinding_terms(self.current_binding.object(), now)
            return await self.withdraw(existing, terms, "Unbound", now) if existing else None
        binding = self.current_binding.get()
        if binding is None or not self.caches.is_physical_synced:
            return None
        if existing is None and not self.is_needed(name):
            return None
        node = self.caches.physical_nodes.store.get(name)
        if node is None or is_deleting(node) or is_replaced_node(node, existing):
            return await self.only_virtual(name, existing, now) if existing else None
        lease = self.lease_cache.reclaiming_lease(node, existing, binding, now)
        if existing is not None and lease.state is not LeaseState.WITHDRAWN and not self.is_needed(name):
            return await self.remove_unneeded(existing, now)
        self.unneeded_since.pop(name, None)
        if lease.state is not LeaseState.WITHDRAWN:
            return await self.sync_node(node, lease, binding, existing, now)
        if existing is None:
            return None
        return await self.withdraw(existing, withdrawal_terms(lease, existing, now), lease.reason, now)

    async def sync_node(
        self, node: Object, lease: Lease, binding: Binding, existing: Object | None, now: datetime
    ) -> Result | None:
        name, kubelet = self.name_for(node, binding, existing), self.kubelet.endpoint
        desired = virtual_node(node, lease, binding, name, existing, now, kubelet)
        reclaim = reclaim_for(lease, self.reclaimer.running_pods(name) if existing else [], now)
        async with self.reclaimer.delete_twins_in_time(name, reclaim, lease.reason):
            applied = await self.apply_virtual_node(desired, node, binding, existing, self.partition.since)
            await self.reclaimer.reclaim_pods(reclaim, lease.reason)
        await delete_twins(self.reclaimer.lingering_twins(name, reclaim), self.clients.physical)
        warning = self.warn(applied, lease, now)
        if lease.is_stable(now):
            self.stable_nodes.add(name_of(node))
        shortage = self.lease_cache.shortages.get(name_of(node))
        expiry = shortage.until if shortage is not None else None
        return Result(requeue_at=soonest(lease.next_change, reclaim.requeue_at, warning, expiry))

    def name_for(self, node: Object, binding: Binding, existing: Object | None) -> str:
        if binding.spec.schedules_on_host:
            return name_of(node)
        return name_of(existing) if existing else virtual_node_name(binding.spec.cluster_id, name_of(node))

    async def apply_virtual_node(
        self, desired: Object, node: Object, binding: Binding, existing: Object | None, unreachable: datetime | None
    ) -> Object:
        """Converge the virtual node, under a fallback name if a foreign node has the preferred one."""
        if unreachable is not None:
            conditions = unknown_conditions(existing or desired, unreachable)
            desired = {**desired, "status": {**desired["status"], "conditions": conditions}}
        try:
            return await self.clients.virtual.converge(NODES, existing, desired)
        except AlreadyExists:
            other = await self.clients.virtual.get(NODES, name_of(desired))
            if labels_of(other).get(keys.CLUSTER_BINDING_UID) == binding.uid:
                raise  # ours; the cache lags behind
            if binding.spec.schedules_on_host:
                message = f"Node {name_of(desired)} of the plane belongs to somebody else; delete it"
                raise Terminal("NameTaken", message) from None
            fallback = fallback_virtual_node_name(binding.spec.cluster_id, name_of(node), binding.uid)
            return await self.clients.virtual.converge(NODES, None, with_node_name(desired, fallback))

    async def only_virtual(self, name: str, existing: Object, now: datetime) -> Result | None:
        """Withdraw the virtual node after a live read confirms that its physical node is deleted."""
        live = await self.clients.physical_reads.find(NODES, name)
        if live is not None and not is_deleting(live) and not is_replaced_node(live, existing):
            return Result(requeue_after=1)  # the cache will see it
        return await self.withdraw(
            existing, ReclaimTerms(now, by="the physical node is deleted"), "PhysicalNodeGone", now
        )

    async def withdraw(self, existing: Object, terms: ReclaimTerms, reason: str, now: datetime) -> Result | None:
        """Taint the virtual node, reclaim its pods on these terms, and delete it after the last one."""
        name = name_of(existing)
        bound, running = [pod.object for pod in self.caches.pods_on(name)], self.reclaimer.running_pods(name)
        pods = [pod for pod in bound if occupies_node(pod)]
        # An unbinding removes leftovers in the physical cluster once it responds; the node does not wait for that.
        is_empty = not running and (self.current_binding.is_unbinding or not self.reclaimer.has_twins(name))
        # Pods that wait for the ended lease are deleted with the node once nothing runs there.
        reclaim = (
            reclaim_all(pods, ReclaimTerms(now, by="withdrawal"), now) if is_empty else reclaim_all(running, terms, now)
        )
        async with self.reclaimer.delete_twins_in_time(name, reclaim, reason):
            if taint_named(existing, keys.WITHDRAWING_TAINT) is None:
                existing = await self.clients.virtual.converge(NODES, existing, withdrawal_patch(existing, now))
                self.clients.events.warning(
                    existing, "Withdrawn", f"{reason}: no new pods; the node is deleted after its last pod"
                )
            if is_empty and not pods:
                await self.remove(existing)
                return None
            await self.reclaimer.reclaim_pods(reclaim, reason)
        if not self.current_binding.is_unbinding:  # else the binding deletes the rest, and the node does not wait
            await delete_twins(self.reclaimer.lingering_twins(name, reclaim), self.clients.physical)
        requeue_at = soonest(reclaim.requeue_at, terms.deadline if terms.deadline and terms.deadline > now else None)
        return Result(requeue_at=requeue_at) if requeue_at else None

    async def remove_unneeded(self, existing: Object, now: datetime) -> Result | None:
        """Delete a virtual node that has had no pod for some time."""
        due = self.unneeded_since.setdefault(name_of(existing), now) + UNNEEDED_TIME
        if now < due:
            return Result(requeue_at=due)
        await self.remove(existing)
        return None

    async def remove(self, existing: Object) -> None:
        """Delete the virtual node unless a live list shows active pods: the cache may lack a pod that was just bound.

        Terminated pods do not keep the node: they hold nothing, and an unbinding must finish.
        """
        pods = await self.clients.virtual.list(PODS, fields=f"spec.nodeName={name_of(existing)}")
        if any(occupies_node(pod) and not is_placeholder(pod) for pod in pods):
            return
        await self.clients.virtual.delete_if_exists(NODES, existing)

    def warn(self, node: Object, lease: Lease, now: datetime) -> datetime | None:
        """Emit one event when a lease is about to end; return when to emit it if that is later."""
        if lease.ends is None:
            return None
        due = lease.ends - self.warning
        if due > now:
            return due
        if self.warned.get(name_of(node)) != lease.ends and self.caches.pods_on(name_of(node)):
            self.warned[name_of(node)] = lease.ends
            self.clients.events.warning(node, "LeaseEnds", f"the lease ends at {timestamp(lease.ends)}")
        return None


def with_node_name(desired: Object, name: str) -> Object:
    labels = {**desired["metadata"]["labels"], "kubernetes.io/hostname": name}
    return {**desired, "metadata": {**desired["metadata"], "name": name, "labels": labels}}


def unknown_conditions(node: Object, since: datetime) -> list[Object]:
    """Return the node's conditions with Ready=Unknown.

    The virtual cluster soon sets the others to Unknown itself.
    """
    moment = timestamp(since)
    ready = {
        "type": "Ready",
        "status": "Unknown",
        "reason": "PhysicalClusterUnreachable",
        "message": f"the physical cluster has not answered since {moment}",
        "lastTransitionTime": moment,
        "lastHeartbeatTime": moment,
    }
    others = value_at(node, "status", "conditions", default=[])
    return [*(each for each in others if each["type"] != "Ready"), ready]
