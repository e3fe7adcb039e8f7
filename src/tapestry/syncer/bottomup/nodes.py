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
from tapestry.apis.belongings import grace_of, leaves_in_time
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import second_virtual_node_name, virtual_node_name
from tapestry.client.client import Client
from tapestry.client.options import PatchType
from tapestry.controller import Result
from tapestry.kube.errors import AlreadyExists, Conflict, KubeError, NotFound, TooManyRequests, TransportError
from tapestry.kube.objects import Object, is_deleting, key_of, labels_of, name_of, uid_of, value_at
from tapestry.kube.pods import is_over
from tapestry.kube.requests import holds_its_node
from tapestry.kube.resources import NODES, PODS
from tapestry.kube.times import parse_time, timestamp
from tapestry.process.logs import logger
from tapestry.syncer import metrics
from tapestry.syncer.leases import Leases, is_another
from tapestry.syncer.leasing import Lease, State, Terms, earliest, soonest
from tapestry.syncer.projections import is_placeholder, physical_node_of
from tapestry.syncer.reclaim import Reclaim, leaving, reclaim_of
from tapestry.syncer.site import Site
from tapestry.syncer.totals import limited
from tapestry.syncer.translate.pod_status import mapped_uid
from tapestry.syncer.virtual_nodes import last_terms, taint_named, virtual_node, withdrawn

log = logger(__name__)


@dataclass(frozen=True)
class PhysicalNodes:
    """Keeps one virtual Node for each leased physical Node; keyed by the physical node's name."""

    site: Site
    leases: Leases
    warned: dict[str, datetime] = field(default_factory=dict)
    """Which end of a lease each virtual node has been told of."""
    settled: set[str] = field(default_factory=set)
    """Physical nodes whose lease, at the last pass, did not depend on the pods that use it."""

    def depends_on_pods(self, name: str) -> bool:
        """Whether a pod that comes to a node or leaves it calls for a pass."""
        return name not in self.settled or name in self.site.shortages

    async def reconcile(self, name: str) -> Result | None:
        site, now = self.site, self.site.now()
        self.settled.discard(name)
        existing = site.virtual_node_of(name)
        if site.is_unbinding:
            return await self.withdraw(existing, self.unbinding_terms(now), "Unbound", now) if existing else None
        binding = site.binding()
        if binding is None or not site.is_known:
            return None
        node = site.physical_nodes.store.get(name)
        if node is None or is_deleting(node) or is_another(node, existing):
            return await self.only_virtual(name, existing, now) if existing else None
        lease = self.lease(node, existing, binding, now)
        if lease.state is State.WITHDRAWN:
            if existing is None:
                return None
            terms = earliest([lease.terms, last_terms(existing, now)])  # the owner's kill switch holds here too
            return await self.withdraw(existing, terms, lease.reason, now)
        return await self.both(node, lease, binding, existing, now)

    def lease(self, node: Object, existing: Object | None, binding: Binding, now: datetime) -> Lease:
        pods = self.site.pods_on(name_of(existing)) if existing else []
        used = [pod["held"] for pod in pods if holds_its_node(pod)]
        lease = self.leases.computed(node, existing, binding, now, used)
        share = self.leases.share(name_of(node), now)
        return limited(lease, share) if share is not None else lease

    def running_on(self, existing: Object | None) -> list[Object]:
        """The pods of a virtual node that have something below: those that wait for its lease hold nothing of it."""
        if existing is None:
            return []
        pods = self.site.pods_on(name_of(existing))
        return [pod for pod in pods if holds_its_node(pod) and (mapped_uid(pod) or self.site.ledger.has(uid_of(pod)))]

    async def both(
        self, node: Object, lease: Lease, binding: Binding, existing: Object | None, now: datetime
    ) -> Result | None:
        site = self.site
        if existing is not None and is_deleting(existing):
            return None
        name, kubelet = self.name_for(node, binding, existing), site.kubelet.endpoint
        wanted = virtual_node(node, lease, binding, name, existing, now, kubelet)
        reclaim = reclaim_of(lease, self.running_on(existing), now)
        async with self.even_untold(name, reclaim, lease.reason):
            shown = await self.show(wanted, node, binding, existing, site.partition.since)
            await self.take_back(reclaim, lease.reason)
        await end_all(self.lingering(name, reclaim), site.physical)
        warning = self.warn(shown, lease, now)
        if lease.is_settled(now):
            self.settled.add(name_of(node))
        shortage = site.shortage(name_of(node))
        over = shortage.until if shortage is not None else None
        return Result(requeue_at=soonest(lease.next_change, reclaim.look_again, warning, over))

    def name_for(self, node: Object, binding: Binding, existing: Object | None) -> str:
        return name_of(existing) if existing else virtual_node_name(binding.spec.cluster_id, name_of(node))

    async def show(
        self, wanted: Object, node: Object, binding: Binding, existing: Object | None, unreachable: datetime | None
    ) -> Object:
        """Have the virtual node as wanted; under another name where somebody else's node has the first choice."""
        if unreachable is not None:
            conditions = unknown_conditions(existing or wanted, unreachable)
            wanted = {**wanted, "status": {**wanted["status"], "conditions": conditions}}
        try:
            return await self.site.virtual.converge(NODES, existing, wanted)
        except AlreadyExists:
            held = await self.site.virtual.get(NODES, name_of(wanted))
            if labels_of(held).get(keys.CLUSTER_BINDING_UID) == binding.uid:
                raise  # ours: the cache has yet to see it
            second = second_virtual_node_name(binding.spec.cluster_id, name_of(node), binding.uid)
            return await self.site.virtual.converge(NODES, None, renamed(wanted, second))

    async def only_virtual(self, name: str, existing: Object, now: datetime) -> Result | None:
        """The physical node is gone, as a live read confirms; its pods with it."""
        live = await self.site.physical.find(NODES, name)
        if live is not None and not is_deleting(live) and not is_another(live, existing):
            return Result(requeue_after=1)  # the cache will see it
        return await self.withdraw(existing, Terms(now, by="the physical node is gone"), "PhysicalNodeGone", now)

    def unbinding_terms(self, now: datetime) -> Terms:
        obj = self.site.binding_object()
        if obj is None:
            return Terms(now, by="the binding is gone")
        grace = obj["spec"].get("unbindGraceSeconds", 30)
        return Terms(parse_time(obj["metadata"]["deletionTimestamp"]) + timedelta(seconds=grace), by="unbinding")

    async def withdraw(self, existing: Object, terms: Terms, reason: str, now: datetime) -> Result | None:
        """Taint the virtual node, let its pods go on these terms, and remove it after the last."""
        site = self.site
        if is_deleting(existing):
            return None
        name = name_of(existing)
        pods, running = [pod for pod in site.pods_on(name) if holds_its_node(pod)], self.running_on(existing)
        # What an unbinding leaves below is removed there once the cluster answers: its node does not wait for that.
        is_empty = not running and (site.is_unbinding or not any(entry.held for _, entry in site.ledger.on(name)))
        # Pods that wait for a lease which is no more go with the node, once nothing runs there.
        reclaim = leaving(pods, Terms(now, by="withdrawal"), now) if is_empty else leaving(running, terms, now)
        async with self.even_untold(name, reclaim, reason):
            if taint_named(existing, keys.WITHDRAWING) is None:
                existing = await site.virtual.converge(NODES, existing, withdrawn(existing, now))
                site.manager.events.warning(
                    existing, "Withdrawn", f"{reason}: no new pods; the node goes after its last one"
                )
            if is_empty and not pods:
                await self.remove(existing)
                return None
            await self.take_back(reclaim, reason)
        if not site.is_unbinding:  # an unbinding ends what is left below by itself, and its node must not wait for that
            await end_all(self.lingering(name, reclaim), site.physical)
        again = soonest(reclaim.look_again, terms.deadline if terms.deadline and terms.deadline > now else None)
        return Result(requeue_at=again) if again else None

    async def remove(self, existing: Object) -> None:
        """Delete the virtual node, after a live look for pods: the cache may lack one that was bound just now.

        Pods that have ended do not keep it: they hold nothing, and an unbinding must end.
        """
        pods = await self.site.virtual.list(PODS, fields=f"spec.nodeName={name_of(existing)}")
        if any(holds_its_node(pod) and not is_placeholder(pod) for pod in pods):
            return
        await self.site.virtual.remove(NODES, existing)

    async def take_back(self, reclaim: Reclaim, reason: str) -> None:
        """Let pods go; one whose going is refused does not keep the others."""
        refused: list[KubeError] = []
        for pod in reclaim.evict:
            try:
                await self.site.virtual.evict(pod)
            except (TooManyRequests, NotFound):  # a budget holds it back, or it went by itself
                continue
        for pod in reclaim.delete:
            mark = disruption(reason, reclaim.terms, self.site.now())
            try:
                marked = await self.site.virtual.patch(PODS, pod, mark, type=PatchType.STRATEGIC, subresource="status")
                await self.site.virtual.delete(PODS, marked, grace_seconds=grace_of(pod))
            except NotFound:
                continue
            except TransportError:
                raise
            except KubeError as error:
                refused.append(error)
            else:
                self.site.manager.events.warning(pod, "Reclaimed", f"{reason}: by {reclaim.terms.by}")
                metrics.OUTCOMES.labels(self.site.binding_name, metrics.FAILED, "Reclaimed").inc()
        if refused:
            raise refused[0]

    @asynccontextmanager
    async def even_untold(self, node: str, reclaim: Reclaim, reason: str) -> AsyncIterator[None]:
        """Where the virtual cluster cannot be told that pods go, the owner's node is free in time all the same."""
        try:
            yield
        except TransportError:
            await self.take_twins(node, reclaim, reason, self.site.physical)
            raise

    async def take_twins(self, node: str, reclaim: Reclaim, reason: str, below: Client) -> None:
        """End twins before their pods, which get their marks later; `node` is the virtual one."""
        mark = disruption(reason, reclaim.terms, self.site.now())
        ending = []
        for pod in reclaim.delete:
            twin = self.site.own_twin_of(pod)
            if twin is not None and not leaves_in_time(twin):
                self.site.reclaimed[uid_of(twin)] = mark
                ending.append((twin, grace_of(pod)))
        await end_all([*ending, *self.lingering(node, reclaim)], below)

    def lingering(self, node: str, reclaim: Reclaim) -> list[tuple[Object, int]]:
        """The twins on a virtual node where nothing may stay whose pods do not tell them to go, and their grace."""
        found = []
        for key, entry in self.site.ledger.on(node) if reclaim.is_total else ():
            twin, pod = self.site.physical_pods.store.get(key), self.site.virtual_pods.store.get(entry.pod)
            if twin is None or entry.held is None or leaves_in_time(twin):
                continue
            if pod is None or uid_of(pod) != entry.uid or not tells_its_twin(pod):
                found.append((twin, grace_of(twin)))
        return found

    def due(self, existing: Object, now: datetime) -> tuple[Reclaim, str]:
        """Who has to leave a virtual node by now and why, as far as caches know."""
        site = self.site
        pods = self.running_on(existing)
        if site.is_unbinding:
            return leaving(pods, self.unbinding_terms(now), now), "Unbound"
        binding = site.binding()
        node = next(filter(None, map(site.physical_nodes.store.get, physical_node_of(existing))), None)
        if binding is None or node is None or not site.is_known or is_another(node, existing):
            return Reclaim(), ""
        lease = self.lease(node, existing, binding, now)
        if lease.state is State.WITHDRAWN:
            return leaving(pods, earliest([lease.terms, last_terms(existing, now)]), now), lease.reason
        return reclaim_of(lease, pods, now), lease.reason

    def warn(self, node: Object, lease: Lease, now: datetime) -> datetime | None:
        """Say once that a lease is about to end; when to do so, if that is still to come."""
        if lease.ends is None:
            return None
        due = lease.ends - timedelta(seconds=self.site.config.warning_seconds)
        if due > now:
            return due
        if self.warned.get(name_of(node)) != lease.ends and self.site.pods_on(name_of(node)):
            self.warned[name_of(node)] = lease.ends
            self.site.manager.events.warning(node, "LeaseEnds", f"the lease ends at {timestamp(lease.ends)}")
        return None


async def end_all(twins: Iterable[tuple[Object, int]], below: Client) -> None:
    """Delete twins, each with its grace; one whose deletion is refused does not keep the others.

    Raises Conflict where a twin is not as the cache has it: no change of a twin brings the node back.
    """
    refused: list[KubeError] = []
    for twin, grace in twins:
        try:
            await below.delete(PODS, twin, grace_seconds=grace)
        except NotFound:
            continue
        except Conflict as error:
            refused.append(error)
        except KubeError as error:
            log.warning("cannot take back", twin=key_of(twin), error=str(error))
            refused.append(error)
    if refused:
        raise refused[0]


def tells_its_twin(pod: Object) -> bool:
    """Whether the deletion of a pod, with its grace, reaches its twin: a pod that has ended says nothing any more, and
    one that was deleted by force leaves its twin the time that it asks for."""
    return not is_over(pod) and not (is_deleting(pod) and not pod["metadata"].get("deletionGracePeriodSeconds"))


def renamed(wanted: Object, name: str) -> Object:
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


def disruption(reason: str, terms: Terms, now: datetime) -> Object:
    """The pod condition that tells a controller that this was not the pod's fault."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "Reclaimed",
        "message": f"{reason}: reclaimed by {terms.by}",
        "lastTransitionTime": timestamp(now),
    }
    return {"status": {"conditions": [condition]}}
