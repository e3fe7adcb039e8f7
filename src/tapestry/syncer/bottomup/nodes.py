"""Physical nodes become virtual ones, as far as they are lent, and what they no longer lend is taken back.

    only physical    not lent: nothing.  Lent: the virtual node is made.
    both             the virtual node shows the lease as it is now; pods leave as its terms say.
    only virtual     the physical node is gone: so is everything that ran there.

A virtual node is withdrawn in three steps, each a pass of its own: a taint, its pods on the terms they were lent on,
and after its last pod the node itself.
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
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.resources import NODES, PODS
from tapestry.kube.times import parse_time, timestamp
from tapestry.process.logs import logger
from tapestry.syncer import metrics
from tapestry.syncer.cache_transforms import is_placeholder, physical_node_of
from tapestry.syncer.context import SyncContext
from tapestry.syncer.lease_cache import LeaseCache, is_replaced_node
from tapestry.syncer.leasing import Lease, LeaseState, ReclaimTerms, earliest, soonest
from tapestry.syncer.reclaim import Reclaim, reclaim_all, reclaim_for
from tapestry.syncer.total_limits import limited_lease
from tapestry.syncer.translate.pod_status import mapped_uid
from tapestry.syncer.virtual_nodes import last_reclaim_terms, taint_named, virtual_node, withdrawal_patch

log = logger(__name__)


@dataclass(frozen=True)
class NodeReconciler:
    """Keeps one virtual Node for each leased physical Node; keyed by the physical node's name."""

    context: SyncContext
    lease_cache: LeaseCache
    warned: dict[str, datetime] = field(default_factory=dict)
    """Which end of a lease each virtual node has been told of."""
    stable_nodes: set[str] = field(default_factory=set)
    """Physical nodes whose lease, at the last pass, did not depend on the pods that use it."""

    def depends_on_pods(self, name: str) -> bool:
        """Whether a pod that comes to a node or leaves it calls for a pass."""
        return name not in self.stable_nodes or name in self.context.shortages

    async def reconcile(self, name: str) -> Result | None:
        site, now = self.context, self.context.now()
        self.stable_nodes.discard(name)
        existing = site.virtual_node_of(name)
        if site.is_unbinding:
            return await self.withdraw(existing, self.unbinding_terms(now), "Unbound", now) if existing else None
        binding = site.binding()
        if binding is None or not site.is_physical_synced:
            return None
        node = site.physical_nodes.store.get(name)
        if node is None or is_deleting(node) or is_replaced_node(node, existing):
            return await self.only_virtual(name, existing, now) if existing else None
        lease = self.lease(node, existing, binding, now)
        if lease.state is LeaseState.WITHDRAWN:
            if existing is None:
                return None
            terms = earliest([lease.terms, last_reclaim_terms(existing, now)])  # the owner's kill switch holds here too
            return await self.withdraw(existing, terms, lease.reason, now)
        return await self.sync_node(node, lease, binding, existing, now)

    def lease(self, node: Object, existing: Object | None, binding: Binding, now: datetime) -> Lease:
        pods = self.context.pods_on(name_of(existing)) if existing else []
        used = [pod["held"] for pod in pods if occupies_node(pod)]
        lease = self.lease_cache.compute_lease(node, existing, binding, now, used)
        share = self.lease_cache.share(name_of(node), now)
        return limited_lease(lease, share) if share is not None else lease

    def running_pods(self, existing: Object | None) -> list[Object]:
        """The pods of a virtual node that have something below: those that wait for its lease hold nothing of it."""
        if existing is None:
            return []
        pods = self.context.pods_on(name_of(existing))
        return [
            pod for pod in pods if occupies_node(pod) and (mapped_uid(pod) or self.context.ledger.has_twin(uid_of(pod)))
        ]

    async def sync_node(
        self, node: Object, lease: Lease, binding: Binding, existing: Object | None, now: datetime
    ) -> Result | None:
        site = self.context
        if existing is not None and is_deleting(existing):
            return None
        name, kubelet = self.name_for(node, binding, existing), site.kubelet.endpoint
        wanted = virtual_node(node, lease, binding, name, existing, now, kubelet)
        reclaim = reclaim_for(lease, self.running_pods(existing), now)
        async with self.delete_twins_if_unreachable(name, reclaim, lease.reason):
            shown = await self.apply_virtual_node(wanted, node, binding, existing, site.partition.since)
            await self.reclaim_pods(reclaim, lease.reason)
        await delete_twins(self.lingering_twins(name, reclaim), site.physical_client)
        warning = self.warn(shown, lease, now)
        if lease.is_stable(now):
            self.stable_nodes.add(name_of(node))
        shortage = site.shortage(name_of(node))
        over = shortage.until if shortage is not None else None
        return Result(requeue_at=soonest(lease.next_change, reclaim.requeue_at, warning, over))

    def name_for(self, node: Object, binding: Binding, existing: Object | None) -> str:
        return name_of(existing) if existing else virtual_node_name(binding.spec.cluster_id, name_of(node))

    async def apply_virtual_node(
        self, wanted: Object, node: Object, binding: Binding, existing: Object | None, unreachable: datetime | None
    ) -> Object:
        """Have the virtual node as wanted; under another name where somebody else's node has the first choice."""
        if unreachable is not None:
            conditions = unknown_conditions(existing or wanted, unreachable)
            wanted = {**wanted, "status": {**wanted["status"], "conditions": conditions}}
        try:
            return await self.context.virtual_client.converge(NODES, existing, wanted)
        except AlreadyExists:
            held = await self.context.virtual_client.get(NODES, name_of(wanted))
            if labels_of(held).get(keys.CLUSTER_BINDING_UID) == binding.uid:
                raise  # ours: the cache has yet to see it
            second = fallback_virtual_node_name(binding.spec.cluster_id, name_of(node), binding.uid)
            return await self.context.virtual_client.converge(NODES, None, with_node_name(wanted, second))

    async def only_virtual(self, name: str, existing: Object, now: datetime) -> Result | None:
        """The physical node is gone, as a live read confirms; its pods with it."""
        live = await self.context.physical_client.find(NODES, name)
        if live is not None and not is_deleting(live) and not is_replaced_node(live, existing):
            return Result(requeue_after=1)  # the cache will see it
        return await self.withdraw(existing, ReclaimTerms(now, by="the physical node is gone"), "PhysicalNodeGone", now)

    def unbinding_terms(self, now: datetime) -> ReclaimTerms:
        obj = self.context.binding_object()
        if obj is None:
            return ReclaimTerms(now, by="the binding is gone")
        grace = obj["spec"].get("unbindGraceSeconds", 30)
        return ReclaimTerms(parse_time(obj["metadata"]["deletionTimestamp"]) + timedelta(seconds=grace), by="unbinding")

    async def withdraw(self, existing: Object, terms: ReclaimTerms, reason: str, now: datetime) -> Result | None:
        """Taint the virtual node, let its pods go on these terms, and remove it after the last."""
        site = self.context
        if is_deleting(existing):
            return None
        name = name_of(existing)
        pods, running = [pod for pod in site.pods_on(name) if occupies_node(pod)], self.running_pods(existing)
        # What an unbinding leaves below is removed there once the cluster answers: its node does not wait for that.
        is_empty = not running and (
            site.is_unbinding or not any(entry.requested for _, entry in site.ledger.entries_on(name))
        )
        # Pods that wait for a lease which is no more go with the node, once nothing runs there.
        reclaim = (
            reclaim_all(pods, ReclaimTerms(now, by="withdrawal"), now) if is_empty else reclaim_all(running, terms, now)
        )
        async with self.delete_twins_if_unreachable(name, reclaim, reason):
            if taint_named(existing, keys.WITHDRAWING_TAINT) is None:
                existing = await site.virtual_client.converge(NODES, existing, withdrawal_patch(existing, now))
                site.manager.events.warning(
                    existing, "Withdrawn", f"{reason}: no new pods; the node goes after its last one"
                )
            if is_empty and not pods:
                await self.remove(existing)
                return None
            await self.reclaim_pods(reclaim, reason)
        if not site.is_unbinding:  # an unbinding ends what is left below by itself, and its node must not wait for that
            await delete_twins(self.lingering_twins(name, reclaim), site.physical_client)
        again = soonest(reclaim.requeue_at, terms.deadline if terms.deadline and terms.deadline > now else None)
        return Result(requeue_at=again) if again else None

    async def remove(self, existing: Object) -> None:
        """Delete the virtual node, after a live look for pods: the cache may lack one that was bound just now.

        Pods that have ended do not keep it: they hold nothing, and an unbinding must end.
        """
        pods = await self.context.virtual_client.list(PODS, fields=f"spec.nodeName={name_of(existing)}")
        if any(occupies_node(pod) and not is_placeholder(pod) for pod in pods):
            return
        await self.context.virtual_client.delete_if_exists(NODES, existing)

    async def reclaim_pods(self, reclaim: Reclaim, reason: str) -> None:
        """Let pods go; one whose going is refused does not keep the others."""
        refused: list[KubeError] = []
        for pod in reclaim.evict:
            try:
                await self.context.virtual_client.evict(pod)
            except (TooManyRequests, NotFound):  # a budget holds it back, or it went by itself
                continue
        for pod in reclaim.delete:
            mark = disruption_patch(reason, reclaim.terms, self.context.now())
            try:
                marked = await self.context.virtual_client.patch(
                    PODS, pod, mark, type=PatchType.STRATEGIC, subresource="status"
                )
                await self.context.virtual_client.delete(PODS, marked, grace_seconds=capped_grace_seconds(pod))
            except NotFound:
                continue
            except TransportError:
                raise
            except KubeError as error:
                refused.append(error)
            else:
                self.context.manager.events.warning(pod, "Reclaimed", f"{reason}: by {reclaim.terms.by}")
                metrics.POD_OUTCOMES.labels(self.context.binding_name, metrics.FAILED, "Reclaimed").inc()
        if refused:
            raise refused[0]

    @asynccontextmanager
    async def delete_twins_if_unreachable(self, node: str, reclaim: Reclaim, reason: str) -> AsyncIterator[None]:
        """Where the virtual cluster cannot be told that pods go, the owner's node is free in time all the same."""
        try:
            yield
        except TransportError:
            await self.delete_reclaimed_twins(node, reclaim, reason, self.context.physical_client)
            raise

    async def delete_reclaimed_twins(self, node: str, reclaim: Reclaim, reason: str, client: Client) -> None:
        """End twins before their pods, which get their marks later; `node` is the virtual one."""
        mark = disruption_patch(reason, reclaim.terms, self.context.now())
        ending = []
        for pod in reclaim.delete:
            twin = self.context.twin_of_pod(pod)
            if twin is not None and not is_ending_in_time(twin):
                self.context.pending_disruptions[uid_of(twin)] = mark
                ending.append((twin, capped_grace_seconds(pod)))
        await delete_twins([*ending, *self.lingering_twins(node, reclaim)], client)

    def lingering_twins(self, node: str, reclaim: Reclaim) -> list[tuple[Object, int]]:
        """The twins on a virtual node where nothing may stay whose pods do not tell them to go, and their grace."""
        found = []
        for key, entry in self.context.ledger.entries_on(node) if reclaim.empties_node else ():
            twin, pod = self.context.physical_pods.store.get(key), self.context.virtual_pods.store.get(entry.pod)
            if twin is None or entry.requested is None or is_ending_in_time(twin):
                continue
            if pod is None or uid_of(pod) != entry.uid or not propagates_deletion(pod):
                found.append((twin, capped_grace_seconds(twin)))
        return found

    def due_reclaim(self, existing: Object, now: datetime) -> tuple[Reclaim, str]:
        """Who has to leave a virtual node by now and why, as far as caches know."""
        site = self.context
        pods = self.running_pods(existing)
        if site.is_unbinding:
            return reclaim_all(pods, self.unbinding_terms(now), now), "Unbound"
        binding = site.binding()
        node = next(filter(None, map(site.physical_nodes.store.get, physical_node_of(existing))), None)
        if binding is None or node is None or not site.is_physical_synced or is_replaced_node(node, existing):
            return Reclaim(), ""
        lease = self.lease(node, existing, binding, now)
        if lease.state is LeaseState.WITHDRAWN:
            return reclaim_all(pods, earliest([lease.terms, last_reclaim_terms(existing, now)]), now), lease.reason
        return reclaim_for(lease, pods, now), lease.reason

    def warn(self, node: Object, lease: Lease, now: datetime) -> datetime | None:
        """Say once that a lease is about to end; when to do so, if that is still to come."""
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
    """Delete twins, each with its grace; one whose deletion is refused does not keep the others.

    Raises Conflict where a twin is not as the cache has it: no change of a twin brings the node back.
    """
    refused: list[KubeError] = []
    for twin, grace in twins:
        try:
            await client.delete(PODS, twin, grace_seconds=grace)
        except NotFound:
            continue
        except Conflict as error:
            refused.append(error)
        except KubeError as error:
            log.warning("cannot take back", twin=key_of(twin), error=str(error))
            refused.append(error)
    if refused:
        raise refused[0]


def propagates_deletion(pod: Object) -> bool:
    """Whether the deletion of a pod, with its grace, reaches its twin: a pod that has ended says nothing any more, and
    one that was deleted by force leaves its twin the time that it asks for."""
    return not is_pod_terminal(pod) and not (is_deleting(pod) and not pod["metadata"].get("deletionGracePeriodSeconds"))


def with_node_name(wanted: Object, name: str) -> Object:
    labels = {**wanted["metadata"]["labels"], "kubernetes.io/hostname": name}
    return {**wanted, "metadata": {**wanted["metadata"], "name": name, "labels": labels}}


def unknown_conditions(node: Object, since: datetime) -> list[Object]:
    """The node's conditions while nobody can tell: Ready is Unknown.

    The others are left to the virtual cluster, which soon makes them Unknown by itself.
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
    """The pod condition that tells a controller that this was not the pod's fault."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "Reclaimed",
        "message": f"{reason}: reclaimed by {terms.by}",
        "lastTransitionTime": timestamp(now),
    }
    return {"status": {"conditions": [condition]}}
