"""Reconciler of virtual nodes, one for each leased physical node, and executor of reclaims.

    only physical    not leased: nothing. Leased: create the virtual node.
    both             update the virtual node to the current lease; reclaim pods on its terms.
    only virtual     the physical node is deleted: delete its pods and the virtual node.

A virtual node is withdrawn in three passes: set a taint, reclaim its pods on the terms of their lease, and delete the
node after its last pod.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import fallback_virtual_node_name, virtual_node_name
from tapestry.apis.ownership import capped_grace_seconds, is_ending_in_time
from tapestry.client.client import Client
from tapestry.client.options import PatchType
from tapestry.controller import Result
from tapestry.kube.errors import AlreadyExists, Conflict, KubeError, NotFound, TooManyRequests, TransportError
from tapestry.kube.objects import Object, is_deleting, key_of, labels_of, name_of, uid_of, value_at
from tapestry.kube.pod_requests import occupies_node
from tapestry.kube.pods import is_pod_terminal, taint_named
from tapestry.kube.resources import NODES, PODS
from tapestry.kube.times import parse_time, timestamp
from tapestry.process.logs import logger
from tapestry.syncer import metrics
from tapestry.syncer.cache_transforms import is_placeholder, physical_node_of
from tapestry.syncer.context import SyncContext
from tapestry.syncer.lease_cache import LeaseCache, is_replaced_node
from tapestry.syncer.leasing import Lease, LeaseState, ReclaimTerms, earliest, soonest
from tapestry.syncer.policies import last_reclaim_terms
from tapestry.syncer.reclaim import Reclaim, reclaim_all, reclaim_for
from tapestry.syncer.total_limits import limited_lease
from tapestry.syncer.translate.pod_status import mapped_uid
from tapestry.syncer.views import Twin
from tapestry.syncer.virtual_nodes import virtual_node, withdrawal_patch

log = logger(__name__)


@dataclass(frozen=True)
class NodeReconciler:
    """Keeps one virtual Node for each leased physical Node; keyed by the physical node's name."""

    context: SyncContext
    lease_cache: LeaseCache
    warned: dict[str, datetime] = field(default_factory=dict)
    """End of the lease that each virtual node was last warned about."""
    stable_nodes: set[str] = field(default_factory=set)
    """Physical nodes whose lease did not depend on its pods at the last pass."""

    def depends_on_pods(self, name: str) -> bool:
        """Return whether a pod that is bound to the node or leaves it requires a pass."""
        return name not in self.stable_nodes or name in self.context.shortages

    async def reconcile(self, name: str) -> Result | None:
        context, now = self.context, self.context.now()
        self.stable_nodes.discard(name)
        existing = context.virtual_node_of(name)
        if context.is_unbinding:
            return await self.withdraw(existing, self.unbinding_terms(now), "Unbound", now) if existing else None
        binding = context.binding()
        if binding is None or not context.is_physical_synced:
            return None
        node = context.physical_nodes.store.get(name)
        if node is None or is_deleting(node) or is_replaced_node(node, existing):
            return await self.only_virtual(name, existing, now) if existing else None
        lease = self.lease(node, existing, binding, now)
        if lease.state is LeaseState.WITHDRAWN:
            if existing is None:
                return None
            terms = earliest([lease.terms, last_reclaim_terms(existing, now)])  # includes the owner's kill switch
            return await self.withdraw(existing, terms, lease.reason, now)
        return await self.sync_node(node, lease, binding, existing, now)

    def lease(self, node: Object, existing: Object | None, binding: Binding, now: datetime) -> Lease:
        pods = self.context.pods_on(name_of(existing)) if existing else []
        used = [pod.requests for pod in pods if occupies_node(pod.object)]
        lease = self.lease_cache.compute_lease(node, existing, binding, now, used)
        share = self.lease_cache.share(name_of(node), now)
        return limited_lease(lease, share) if share is not None else lease

    def running_pods(self, existing: Object | None) -> list[Object]:
        """Return the pods of a virtual node that have a twin. Pods that wait for the lease hold nothing of it."""
        if existing is None:
            return []
        pods, ledger = self.context.pods_on(name_of(existing)), self.context.ledger
        active = [pod for pod in pods if occupies_node(pod.object)]
        return [pod.object for pod in active if mapped_uid(pod.object) or ledger.has_twin(pod.uid)]

    async def sync_node(
        self, node: Object, lease: Lease, binding: Binding, existing: Object | None, now: datetime
    ) -> Result | None:
        context = self.context
        if existing is not None and is_deleting(existing):
            return None
        name, kubelet = self.name_for(node, binding, existing), context.kubelet.endpoint
        desired = virtual_node(node, lease, binding, name, existing, now, kubelet)
        reclaim = reclaim_for(lease, self.running_pods(existing), now)
        async with self.delete_twins_if_unreachable(name, reclaim, lease.reason):
            applied = await self.apply_virtual_node(desired, node, binding, existing, context.partition.since)
            await self.reclaim_pods(reclaim, lease.reason)
        await delete_twins(self.lingering_twins(name, reclaim), context.physical_client)
        warning = self.warn(applied, lease, now)
        if lease.is_stable(now):
            self.stable_nodes.add(name_of(node))
        shortage = context.shortage(name_of(node))
        expiry = shortage.until if shortage is not None else None
        return Result(requeue_at=soonest(lease.next_change, reclaim.requeue_at, warning, expiry))

    def name_for(self, node: Object, binding: Binding, existing: Object | None) -> str:
        return name_of(existing) if existing else virtual_node_name(binding.spec.cluster_id, name_of(node))

    async def apply_virtual_node(
        self, desired: Object, node: Object, binding: Binding, existing: Object | None, unreachable: datetime | None
    ) -> Object:
        """Converge the virtual node, under a fallback name if a foreign node has the preferred one."""
        if unreachable is not None:
            conditions = unknown_conditions(existing or desired, unreachable)
            desired = {**desired, "status": {**desired["status"], "conditions": conditions}}
        try:
            return await self.context.virtual_client.converge(NODES, existing, desired)
        except AlreadyExists:
            other = await self.context.virtual_client.get(NODES, name_of(desired))
            if labels_of(other).get(keys.CLUSTER_BINDING_UID) == binding.uid:
                raise  # ours; the cache lags behind
            fallback = fallback_virtual_node_name(binding.spec.cluster_id, name_of(node), binding.uid)
            return await self.context.virtual_client.converge(NODES, None, with_node_name(desired, fallback))

    async def only_virtual(self, name: str, existing: Object, now: datetime) -> Result | None:
        """Withdraw the virtual node after a live read confirms that its physical node is deleted."""
        live = await self.context.physical_client.find(NODES, name)
        if live is not None and not is_deleting(live) and not is_replaced_node(live, existing):
            return Result(requeue_after=1)  # the cache will see it
        return await self.withdraw(
            existing, ReclaimTerms(now, by="the physical node is deleted"), "PhysicalNodeGone", now
        )

    def unbinding_terms(self, now: datetime) -> ReclaimTerms:
        obj = self.context.binding_object()
        if obj is None:
            return ReclaimTerms(now, by="the binding is deleted")
        grace = obj["spec"].get("unbindGraceSeconds", 30)
        return ReclaimTerms(parse_time(obj["metadata"]["deletionTimestamp"]) + timedelta(seconds=grace), by="unbinding")

    async def withdraw(self, existing: Object, terms: ReclaimTerms, reason: str, now: datetime) -> Result | None:
        """Taint the virtual node, reclaim its pods on these terms, and delete it after the last one."""
        context = self.context
        if is_deleting(existing):
            return None
        name = name_of(existing)
        bound, running = [pod.object for pod in context.pods_on(name)], self.running_pods(existing)
        pods = [pod for pod in bound if occupies_node(pod)]
        # An unbinding removes leftovers in the physical cluster once it responds; the node does not wait for that.
        is_empty = not running and (
            context.is_unbinding or not any(entry.requested for _, entry in context.ledger.entries_on(name))
        )
        # Pods that wait for the ended lease are deleted with the node once nothing runs there.
        reclaim = (
            reclaim_all(pods, ReclaimTerms(now, by="withdrawal"), now) if is_empty else reclaim_all(running, terms, now)
        )
        async with self.delete_twins_if_unreachable(name, reclaim, reason):
            if taint_named(existing, keys.WITHDRAWING_TAINT) is None:
                existing = await context.virtual_client.converge(NODES, existing, withdrawal_patch(existing, now))
                context.manager.events.warning(
                    existing, "Withdrawn", f"{reason}: no new pods; the node is deleted after its last pod"
                )
            if is_empty and not pods:
                await self.remove(existing)
                return None
            await self.reclaim_pods(reclaim, reason)
        if not context.is_unbinding:  # an unbinding deletes the rest itself; its node must not wait for that
            await delete_twins(self.lingering_twins(name, reclaim), context.physical_client)
        requeue_at = soonest(reclaim.requeue_at, terms.deadline if terms.deadline and terms.deadline > now else None)
        return Result(requeue_at=requeue_at) if requeue_at else None

    async def remove(self, existing: Object) -> None:
        """Delete the virtual node unless a live list shows active pods: the cache may lack a pod that was just bound.

        Terminated pods do not keep the node: they hold nothing, and an unbinding must finish.
        """
        pods = await self.context.virtual_client.list(PODS, fields=f"spec.nodeName={name_of(existing)}")
        if any(occupies_node(pod) and not is_placeholder(pod) for pod in pods):
            return
        await self.context.virtual_client.delete_if_exists(NODES, existing)

    async def reclaim_pods(self, reclaim: Reclaim, reason: str) -> None:
        """Evict and delete pods; one that is rejected does not stop the others, but its error is raised at the end."""
        rejected: list[KubeError] = []
        for pod in reclaim.evict:
            try:
                await self.context.virtual_client.evict(pod)
            except (TooManyRequests, NotFound):  # blocked by a disruption budget, or already deleted
                continue
        for pod in reclaim.delete:
            patch = disruption_patch(reason, reclaim.terms, self.context.now())
            try:
                marked = await self.context.virtual_client.patch(
                    PODS, pod, patch, type=PatchType.STRATEGIC, subresource="status"
                )
                await self.context.virtual_client.delete(PODS, marked, grace_seconds=capped_grace_seconds(pod))
            except NotFound:
                continue
            except TransportError:
                raise
            except KubeError as error:
                rejected.append(error)
            else:
                self.context.manager.events.warning(pod, "Reclaimed", f"{reason}: by {reclaim.terms.by}")
                metrics.POD_OUTCOMES.labels(self.context.binding_name, metrics.FAILED, "Reclaimed").inc()
        if rejected:
            raise rejected[0]

    @asynccontextmanager
    async def delete_twins_if_unreachable(self, node: str, reclaim: Reclaim, reason: str) -> AsyncIterator[None]:
        """Delete the twins directly if the virtual cluster is unreachable, so that the node is free in time."""
        try:
            yield
        except TransportError:
            await self.delete_reclaimed_twins(node, reclaim, reason, self.context.physical_client)
            raise

    async def delete_reclaimed_twins(self, node: str, reclaim: Reclaim, reason: str, client: Client) -> None:
        """Delete twins before their pods, which are marked later; `node` is the virtual node."""
        patch = disruption_patch(reason, reclaim.terms, self.context.now())
        ending = []
        for pod in reclaim.delete:
            twin = self.context.twin_of_pod(pod)
            if twin is not None and not is_ending_in_time(twin):
                self.context.pending_disruptions[uid_of(twin)] = patch
                ending.append((twin, capped_grace_seconds(pod)))
        await delete_twins([*ending, *self.lingering_twins(node, reclaim)], client)

    def lingering_twins(self, node: str, reclaim: Reclaim) -> list[tuple[Object, int]]:
        """Return twins, with their grace, that must leave the virtual node and that no pod deletion will end."""
        lingering = []
        for key, entry in self.context.ledger.entries_on(node) if reclaim.empties_node else ():
            twin, pod = self.context.physical_pods.store.get(key), self.context.virtual_pods.store.get(entry.pod)
            if not isinstance(twin, Twin) or entry.requested is None or is_ending_in_time(twin.object):
                continue
            if pod is None or pod.uid != entry.uid or not propagates_deletion(pod.object):
                lingering.append((twin.object, capped_grace_seconds(twin.object)))
        return lingering

    def due_reclaim(self, existing: Object, now: datetime) -> tuple[Reclaim, str]:
        """Return the reclaim that is due on a virtual node, and its reason, according to the caches."""
        context = self.context
        pods = self.running_pods(existing)
        if context.is_unbinding:
            return reclaim_all(pods, self.unbinding_terms(now), now), "Unbound"
        binding = context.binding()
        node = next(filter(None, map(context.physical_nodes.store.get, physical_node_of(existing))), None)
        if binding is None or node is None or not context.is_physical_synced or is_replaced_node(node, existing):
            return Reclaim(), ""
        lease = self.lease(node, existing, binding, now)
        if lease.state is LeaseState.WITHDRAWN:
            return reclaim_all(pods, earliest([lease.terms, last_reclaim_terms(existing, now)]), now), lease.reason
        return reclaim_for(lease, pods, now), lease.reason

    def warn(self, node: Object, lease: Lease, now: datetime) -> datetime | None:
        """Emit one event when a lease is about to end; return when to emit it if that is later."""
        if lease.ends is None:
            return None
        due = lease.ends - timedelta(seconds=self.context.config.warning_seconds)
        if due > now:
            return due
        if self.warned.get(name_of(node)) != lease.ends and self.context.pods_on(name_of(node)):
            self.warned[name_of(node)] = lease.ends
            self.context.manager.events.warning(node, "LeaseEnds", f"the lease ends at {timestamp(lease.ends)}")
        return None


async def delete_twins(twins: Iterable[tuple[Object, int]], client: Client) -> None:
    """Delete twins, each with its grace. A rejected deletion does not stop the others.

    Raises Conflict if a twin differs from the cache: no change of a twin makes the node available again.
    """
    rejected: list[KubeError] = []
    for twin, grace in twins:
        try:
            await client.delete(PODS, twin, grace_seconds=grace)
        except NotFound:
            continue
        except Conflict as error:
            rejected.append(error)
        except KubeError as error:
            log.warning("reclaim: twin could not be deleted", twin=key_of(twin), error=str(error))
            rejected.append(error)
    if rejected:
        raise rejected[0]


def propagates_deletion(pod: Object) -> bool:
    """Return whether the pod's deletion and grace reach its twin: not if it has ended or was deleted by force."""
    return not is_pod_terminal(pod) and not (is_deleting(pod) and not pod["metadata"].get("deletionGracePeriodSeconds"))


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


def disruption_patch(reason: str, terms: ReclaimTerms, now: datetime) -> Object:
    """Return the DisruptionTarget condition, which tells controllers that the pod did not fail by itself."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "Reclaimed",
        "message": f"{reason}: reclaimed by {terms.by}",
        "lastTransitionTime": timestamp(now),
    }
    return {"status": {"conditions": [condition]}}
