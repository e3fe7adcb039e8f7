"""The scheduler at work: pods that wait go to nodes, the most important first.

A decision is made in one go, on caches that are kept up to date change by change, and counts at once: the next pod sees
the room that this one takes, although the binding is still on its way.  Room is given back only if it is certain that
the binding did not come to be.  What could not be placed waits until something changes that might help.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tapestry.client.client import Client
from tapestry.client.options import PatchType
from tapestry.controller import Informer, Manager
from tapestry.controller.events import Recorder
from tapestry.controlplane.scheduler import volumes
from tapestry.controlplane.scheduler.cache import SchedulerCache
from tapestry.controlplane.scheduler.node_fit import NodeFitCache
from tapestry.controlplane.scheduler.placement import ScheduleResult, SchedulingContext, select_node
from tapestry.controlplane.scheduler.pod_info import (
    DEFAULT_SCHEDULER,
    InvalidPod,
    PodInfo,
    awaits_scheduling,
    pod_info_of,
    reported_resources,
)
from tapestry.controlplane.scheduler.preemption import (
    PREEMPTION_REASON,
    VICTIMS_TERMINATING,
    DisruptionBudget,
    PreemptionFailed,
    Victims,
    is_preempted,
    victims,
)
from tapestry.controlplane.scheduler.scheduling_queue import SchedulingQueue
from tapestry.controlplane.scheduler.volumes import (
    StorageLister,
    UnresolvableClaim,
    VolumePlan,
    claim_names,
    storage_class_of,
    volume_plan_of,
)
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import Conflict, NotFound
from tapestry.kube.objects import (
    Object,
    annotations_of,
    is_deleting,
    key_of,
    labels_of,
    name_of,
    namespace_of,
    uid_of,
    value_at,
)
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.quantity import QuantityError
from tapestry.kube.resources import (
    DISRUPTION_BUDGETS,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
)
from tapestry.kube.selectors import label_selector
from tapestry.kube.times import timestamp
from tapestry.process.logs import logger

log = logger(__name__)

WORKERS = 16
RETRY_INTERVAL, MAX_RETRY_INTERVAL = 1.0, 10.0
"""Seconds between a change that might help and another look at the pods that wait: more where there are many."""
RETRIES_PER_SECOND = 200
"""Pods that wait of which all can be looked at once a second."""
UNSCHEDULABLE_TIMEOUT = 300.0
"""Seconds after which they are looked at even if nothing seems to have changed."""
UNSCHEDULABLE, SCHEDULER_ERROR, SCHEDULING_GATED = "Unschedulable", "SchedulerError", "SchedulingGated"
GATED_MESSAGE = "Scheduling is blocked due to non-empty scheduling gates"
CLASS_INDEX, CLAIM_INDEX = "class", "claim"


@dataclass
class Scheduler:
    """Places whatever is ready, the most important first, whatever key it is called with."""

    client: Client
    events: Recorder
    now: Callable[[], datetime]
    pods: Informer
    budgets: Informer
    storage: StorageLister
    enqueue_key: Callable[[str], None] = lambda _: None
    """Has `reconcile` called."""
    cache: SchedulerCache = field(default_factory=SchedulerCache)
    node_fits: NodeFitCache = field(default_factory=NodeFitCache)
    queue: SchedulingQueue = field(default_factory=SchedulingQueue)
    unschedulable: set[str] = field(default_factory=set)
    """Pods that there was no room for."""
    assumed: dict[str, str] = field(default_factory=dict)
    """Pods whose binding is on its way, and where to: they count as being there."""
    nominated: dict[str, tuple[PodInfo, str]] = field(default_factory=dict)
    """Pods for whom others were pushed aside, and where."""
    next_start_index: int = 0
    retry_timer: asyncio.TimerHandle | None = None

    # -- what happens

    def pod_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None or is_pod_terminal(new):
            pod = new or old
            assert pod is not None
            self.forget(key_of(pod))
        elif node := new["spec"].get("nodeName"):
            if old is None or has_scheduling_change(old, new):
                self.add_bound_pod(new, node)
        elif new["spec"].get("schedulerName", DEFAULT_SCHEDULER) != DEFAULT_SCHEDULER:
            return
        elif is_deleting(new):
            self.forget(key_of(new))
        elif old is None or has_scheduling_change(old, new):
            self.restore_nomination(new)
            self.enqueue_pod(new)

    def forget(self, key: str) -> None:
        """The pod is over: there is room for others."""
        self.unschedulable.discard(key)
        self.assumed.pop(key, None)
        was_nominated = self.nominated.pop(key, None) is not None
        if self.cache.remove_pod(key) or was_nominated:
            self.retry_soon()

    def add_bound_pod(self, pod: Object, node: str) -> None:
        """The pod is on that node."""
        key = key_of(pod)
        self.unschedulable.discard(key)
        self.assumed.pop(key, None)
        self.nominated.pop(key, None)
        try:
            self.cache.add_pod(pod_info_of(pod), node)
        except InvalidPod as error:
            log.warning("pod is not counted", pod=key, node=node, error=str(error))
        self.retry_soon()

    def restore_nomination(self, pod: Object) -> None:
        """Whoever pushed others aside before this process began still has a right to the room."""
        node = value_at(pod, "status", "nominatedNodeName")
        if node and key_of(pod) not in self.nominated:
            try:
                self.nominated[key_of(pod)] = pod_info_of(pod), node
            except InvalidPod:
                return  # it is told when its turn comes

    def node_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None:
            assert old is not None
            self.cache.remove_node(name_of(old))
        elif old is None or has_node_change(old, new):
            try:
                self.cache.set_node(new)
            except QuantityError as error:
                log.warning("node is not used", node=name_of(new), error=str(error))
                self.cache.remove_node(name_of(new))
        else:
            return
        self.retry_soon()

    def namespace_changed(self, old: Object | None, new: Object | None) -> None:
        if new is not None:
            self.cache.namespace_labels[name_of(new)] = labels_of(new)
        elif old is not None:
            self.cache.namespace_labels.pop(name_of(old), None)
        self.retry_soon()

    def storage_changed(self, _old: Object | None, _new: Object | None) -> None:
        for key in self.assumed:  # it may have waited for its volumes
            if (pod := self.pods.store.get(key)) is not None:
                self.enqueue_pod(pod)
        self.retry_soon()

    def retry_soon(self) -> None:
        """Something may help pods that wait."""
        self.schedule_retry(min(MAX_RETRY_INTERVAL, max(RETRY_INTERVAL, len(self.unschedulable) / RETRIES_PER_SECOND)))

    def schedule_retry(self, seconds: float) -> None:
        """Look at pods that wait in so many seconds, or sooner if that was asked for."""
        if not self.unschedulable:
            return
        loop = asyncio.get_running_loop()
        if self.retry_timer is not None:
            if self.retry_timer.when() <= loop.time() + seconds:
                return
            self.retry_timer.cancel()
        self.retry_timer = loop.call_later(seconds, self.retry_unschedulable)

    def retry_unschedulable(self) -> None:
        self.retry_timer = None
        waiting, self.unschedulable = self.unschedulable, set()
        for key in waiting:
            if (pod := self.pods.store.get(key)) is not None:
                self.enqueue_pod(pod)

    def enqueue_pod(self, pod: Object) -> None:
        self.queue.add(pod)
        self.enqueue_key(key_of(pod))

    # -- one pod after the other

    async def reconcile(self, _key: str) -> None:
        """Places all that is ready: what one call finds, another need not."""
        while (key := self.queue.pop()) is not None:
            pod = self.pending_pod(key)
            try:
                if pod is not None:
                    await self.schedule_pod(pod)
            except NotFound:
                self.forget(key)
            except BaseException:
                if pod is not None:
                    self.queue.add(pod)  # and whoever calls next tries again
                raise
            finally:
                self.queue.done(key)

    def pending_pod(self, key: str) -> Object | None:
        pod = self.pods.store.get(key)
        if pod is None or pod["spec"].get("nodeName") or is_deleting(pod):
            return None
        return pod if key in self.assumed or self.cache.node_name_of(key) is None else None

    async def schedule_pod(self, pod: Object) -> None:
        key = key_of(pod)
        self.unschedulable.discard(key)
        if not awaits_scheduling(pod):
            await self.update_scheduled_condition(pod, GATED_MESSAGE, reason=SCHEDULING_GATED)
            return
        try:
            asked = pod_info_of(pod)
        except InvalidPod as error:
            await self.update_scheduled_condition(pod, str(error), reason=SCHEDULER_ERROR)
            return
        node = self.assumed.get(key)
        try:
            wishes = SchedulingContext(asked, volume_plan_of(pod, self.storage), self.nominated_pods_for(asked))
            choice = ScheduleResult(node) if node is not None else self.select_node(wishes)
        except UnresolvableClaim as error:
            if node is not None and await self.bound_node(pod) is None:
                self.unassume_pod(pod)
            if node is not None:
                return
            wishes, choice = SchedulingContext(asked), ScheduleResult(blocked_reason=str(error))
        if choice.node is None:
            await self.preempt(wishes, choice)
            return
        self.assumed[key] = choice.node
        self.cache.add_pod(asked, choice.node)
        if await self.bind_volumes(pod, wishes.volume_plan, choice.node):
            await self.bind(pod, choice.node)

    def nominated_pods_for(self, pod_info: PodInfo) -> dict[str, list[PodInfo]]:
        """Those at least as important who have a right to a room, by node."""
        found: dict[str, list[PodInfo]] = {}
        for each, node in self.nominated.values():
            if (
                each.priority >= pod_info.priority
                and each.key != pod_info.key
                and each.key not in self.cache.assignments
            ):
                found.setdefault(node, []).append(each)
        return found

    def select_node(self, context: SchedulingContext) -> ScheduleResult:
        kept = self.nominated.get(context.pod_info.key)
        choice = select_node(
            context, self.cache, self.node_fits, self.next_start_index, kept[1] if kept is not None else None
        )
        self.next_start_index = (self.next_start_index + choice.evaluated_nodes) % max(len(self.cache), 1)
        return choice

    async def bind_volumes(self, pod: Object, volume_plan: VolumePlan, node: str) -> bool:
        """Have the pod's claims bound for the node; whether they are.  Their change brings us back."""
        if not volume_plan.unbound_claims:
            return True
        room = self.cache.nodes.get(node)
        plan = volume_plan.pod_volumes(room) if room is not None else None
        if plan is None:  # somebody else has taken what was there
            self.unassume_pod(pod)
            return False
        try:
            for volume, claim in plan.static_bindings:
                if not value_at(volume, "spec", "claimRef", "uid"):
                    await self.client.patch(PERSISTENT_VOLUMES, volume, volumes.claim_ref_patch(claim))
            for claim in plan.dynamic_provisions:
                if volumes.SELECTED_NODE not in annotations_of(claim):
                    await self.client.patch(PERSISTENT_VOLUME_CLAIMS, claim, volumes.selected_node_patch(node))
        except NotFound:
            self.unassume_pod(pod)
        return False

    def unassume_pod(self, pod: Object) -> None:
        """The pod is not going where it was to go: it needs another place, and others may have this one."""
        self.assumed.pop(key_of(pod), None)
        self.cache.remove_pod(key_of(pod))
        self.retry_soon()
        self.enqueue_pod(pod)

    async def bind(self, pod: Object, node: str) -> None:
        metadata = {"name": name_of(pod), "namespace": namespace_of(pod), "uid": uid_of(pod)}
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        try:
            await self.client.create(PODS, binding, subresource="binding")
        except Conflict:
            found = await self.bound_node(pod)
            if found is None:
                raise
            node = found
        self.assumed.pop(key_of(pod), None)
        self.nominated.pop(key_of(pod), None)
        self.events.normal(pod, "Scheduled", f"Successfully assigned {key_of(pod)} to {node}")

    async def bound_node(self, pod: Object) -> str | None:
        """The node that the pod went to after all, as an answer that was lost would have said."""
        live = await self.client.get(PODS, name_of(pod), namespace_of(pod))
        if uid_of(live) != uid_of(pod) or is_deleting(live):
            raise NotFound(404, "NotFound", f"pod {key_of(pod)} is gone")
        node: str | None = value_at(live, "spec", "nodeName")
        if node:
            self.add_bound_pod(live, node)
        return node

    # -- no room

    async def preempt(self, context: SchedulingContext, result: ScheduleResult) -> None:
        """Make room where others are less important; say why the pod waits."""
        asked = context.pod_info
        message = result.message(len(self.cache))
        kept = self.nominated.get(asked.key)
        node = kept[1] if kept is not None else None
        if not self.cache or result.blocked_reason:
            await self.mark_unschedulable(asked.pod, message, node)
            return
        try:
            if node is not None and self.has_terminating_victims(asked, node, result):
                raise PreemptionFailed(VICTIMS_TERMINATING)
            found = victims(context, result, self.cache, self.disruption_budgets())
        except PreemptionFailed as error:
            if error.args[0] != VICTIMS_TERMINATING and self.nominated.pop(asked.key, None) is not None:
                node = None
                self.retry_soon()
            await self.mark_unschedulable(asked.pod, f"{message} {error}", node)
            return
        self.nominated[asked.key] = asked, found.node
        await self.mark_unschedulable(asked.pod, message, found.node)
        self.clear_lower_nominations(asked, found.node)
        await self.delete_victims(asked, found)

    def has_terminating_victims(self, pod_info: PodInfo, node: str, result: ScheduleResult) -> bool:
        """Whether pods are on their way out for this one."""
        room, refusal = self.cache.nodes.get(node), result.rejections.get(node)
        if room is None or (refusal is not None and refusal.is_unresolvable):
            return False
        return any(each.priority < pod_info.priority and is_preempted(each) for each in room.pods.values())

    def clear_lower_nominations(self, pod_info: PodInfo, node: str) -> None:
        """Those who are less important lose the right to a room there, and look elsewhere."""
        for each, where in list(self.nominated.values()):
            if where == node and each.priority < pod_info.priority:
                del self.nominated[each.key]
                if (pod := self.pods.store.get(each.key)) is not None:
                    self.enqueue_pod(pod)

    def disruption_budgets(self) -> Sequence[DisruptionBudget]:
        return [disruption_budget_of(each) for each in self.budgets.store.list()]

    async def delete_victims(self, pod_info: PodInfo, found: Victims) -> None:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": PREEMPTION_REASON,
            "message": f"{DEFAULT_SCHEDULER}: preempting to accommodate a higher priority pod",
            "lastTransitionTime": timestamp(self.now()),
        }
        for each in found.pods:
            pod = self.pods.store.get(each.key)
            if pod is None or is_deleting(pod):
                continue
            try:
                patch = {"status": {"conditions": [condition]}}
                marked = await self.client.patch(PODS, pod, patch, type=PatchType.STRATEGIC, subresource="status")
                await self.client.delete(PODS, marked)
            except NotFound:
                continue
            self.events.normal(pod, "Preempted", f"Preempted by pod {uid_of(pod_info.pod)} on node {found.node}")

    async def mark_unschedulable(self, pod: Object, message: str, nominated: str | None = None) -> None:
        """Say why the pod waits, once, and look again when something changes."""
        self.unschedulable.add(key_of(pod))
        self.schedule_retry(UNSCHEDULABLE_TIMEOUT)
        await self.update_scheduled_condition(pod, message, nominated)

    async def update_scheduled_condition(
        self, pod: Object, message: str, nominated: str | None = None, reason: str = UNSCHEDULABLE
    ) -> None:
        told = find_condition(value_at(pod, "status", "conditions"), "PodScheduled") or {}
        is_told = told.get("message") == message and told.get("reason") == reason
        if is_told and value_at(pod, "status", "nominatedNodeName") == nominated:
            return
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        if generation := pod["metadata"].get("generation"):
            condition["observedGeneration"] = generation
        if told.get("status") != "False":
            condition["lastTransitionTime"] = timestamp(self.now())
        status: Object = {"conditions": [condition], "nominatedNodeName": nominated}
        await self.client.patch(PODS, pod, {"status": status}, type=PatchType.STRATEGIC, subresource="status")
        if reason != SCHEDULING_GATED and not is_told:
            self.events.warning(pod, "FailedScheduling", message)


def has_scheduling_change(old: Object, new: Object) -> bool:
    """Whether a pod changed in a way that matters to its place, or to others'."""
    return bool(
        old["spec"] != new["spec"]
        or labels_of(old) != labels_of(new)
        or is_deleting(old) != is_deleting(new)
        or reported_resources(old) != reported_resources(new)
    )


def has_node_change(old: Object, new: Object) -> bool:
    """Whether a node changed in a way that matters to pods that wait."""
    return bool(
        old.get("spec") != new.get("spec")
        or labels_of(old) != labels_of(new)
        or value_at(old, "status", "allocatable") != value_at(new, "status", "allocatable")
    )


def disruption_budget_of(budget: Object) -> DisruptionBudget:
    status = budget.get("status") or {}
    selector = label_selector(value_at(budget, "spec", "selector"))
    taken = frozenset(status.get("disruptedPods") or ())
    return DisruptionBudget(namespace_of(budget) or "", selector, status.get("disruptionsAllowed") or 0, taken)


def storage_class_index(volume: Object) -> Iterable[str]:
    return (storage_class_of(volume),)


def claims_in_use(pod: Object) -> Iterable[str]:
    """The claims that a pod uses, once it is on a node and until it is over."""
    if not value_at(pod, "spec", "nodeName") or is_pod_terminal(pod):
        return ()
    return [f"{namespace_of(pod)}/{name}" for name, _ in claim_names(pod)]


def install(manager: Manager) -> None:
    """Have pods scheduled by this manager."""
    pods, nodes = manager.informer(PODS, indexers={CLAIM_INDEX: claims_in_use}), manager.informer(NODES)
    claims, storage_classes = manager.informer(PERSISTENT_VOLUME_CLAIMS), manager.informer(STORAGE_CLASSES)
    persistent = manager.informer(PERSISTENT_VOLUMES, indexers={CLASS_INDEX: storage_class_index})
    storage = StorageLister(
        claims.store.get,
        persistent.store.get,
        lambda name: persistent.store.by(CLASS_INDEX, name),
        storage_classes.store.get,
        lambda key: [key_of(each) for each in pods.store.by(CLAIM_INDEX, key)],
    )
    events = Recorder(manager.client, DEFAULT_SCHEDULER, manager.identity, manager.now)
    manager.run_while_leading("scheduler events", events.run)
    scheduler = Scheduler(manager.client, events, manager.now, pods, manager.informer(DISRUPTION_BUDGETS), storage)
    controller = manager.controller("scheduler", scheduler.reconcile, workers=WORKERS)
    scheduler.enqueue_key = controller.queue.add
    pods.on_change(scheduler.pod_changed)
    nodes.on_change(scheduler.node_changed)
    manager.informer(NAMESPACES).on_change(scheduler.namespace_changed)
    for informer in (claims, persistent, storage_classes):
        informer.on_change(scheduler.storage_changed)
