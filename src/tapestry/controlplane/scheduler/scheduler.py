"""Scheduler controller: binds pending pods to nodes, the highest priority first.

A decision uses caches that are updated with each change, and takes effect in them at once: the next pod sees the
capacity as used, although the binding is still in flight. Capacity is released only if the binding certainly failed.
An unschedulable pod waits until a change that might help.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tapestry.client.client import Client
from tapestry.client.options import PatchType
from tapestry.controller import Informer, Manager
from tapestry.controller.events import Recorder
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
    selected_node_patch,
    volume_plan_of,
)
from tapestry.controlplane.volume_matching import SELECTED_NODE, claim_ref_patch, storage_class_of
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
    CSI_NODES,
    DISRUPTION_BUDGETS,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
)
from tapestry.kube.selectors import label_selector
from tapestry.kube.times import timestamp
from tapestry.process.logs import logger

log = logger(__name__)

WORKERS = 16
RETRY_INTERVAL, MAX_RETRY_INTERVAL = 1.0, 10.0
"""Seconds between a change and the retry of unschedulable pods: longer if there are many."""
RETRIES_PER_SECOND = 200
"""Number of unschedulable pods that can be retried every second."""
UNSCHEDULABLE_TIMEOUT = 300.0
"""Seconds after which unschedulable pods are retried without a change."""
RETRY_KEY = "unschedulable pods"
"""Key that stands for the retry of unschedulable pods."""
UNSCHEDULABLE, SCHEDULER_ERROR, SCHEDULING_GATED = "Unschedulable", "SchedulerError", "SchedulingGated"
GATED_MESSAGE = "Scheduling is blocked due to non-empty scheduling gates"
CLASS_INDEX, NODE_INDEX = "class", "node"


@dataclass
class Scheduler:
    """Schedule all pods of its queue by priority, regardless of the key it is called with."""

    client: Client
    events: Recorder
    now: Callable[[], datetime]
    pods: Informer
    budgets: Informer
    storage: StorageLister
    is_enabled: Callable[[], bool] = lambda: True
    """False while a syncer chooses the nodes of pods."""
    enqueue_key_after: Callable[[str, float], None] = lambda _key, _seconds: None
    """Trigger a call of `reconcile` after some seconds. Of several calls, the earliest time counts."""
    cache: SchedulerCache = field(default_factory=SchedulerCache)
    node_fits: NodeFitCache = field(default_factory=NodeFitCache)
    queue: SchedulingQueue = field(default_factory=SchedulingQueue)
    unschedulable: set[str] = field(default_factory=set)
    """Keys of pods for which no node was feasible."""
    assumed: dict[str, str] = field(default_factory=dict)
    """Nodes of pods whose binding is in flight. The cache counts them as bound."""
    nominated: dict[str, tuple[PodInfo, str]] = field(default_factory=dict)
    """Pods that preempted others, with their nominated node."""
    next_start_index: int = 0

    # -- event handlers

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
        """Remove a deleted or terminated pod, which frees capacity for others."""
        self.unschedulable.discard(key)
        self.assumed.pop(key, None)
        was_nominated = self.nominated.pop(key, None) is not None
        if self.cache.remove_pod(key) or was_nominated:
            self.retry_soon()

    def add_bound_pod(self, pod: Object, node: str) -> None:
        key = key_of(pod)
        self.unschedulable.discard(key)
        self.assumed.pop(key, None)
        self.nominated.pop(key, None)
        try:
            self.cache.add_pod(pod_info_of(pod), node)
        except InvalidPod as error:
            log.warning("bound pod ignored: invalid requests", pod=key, node=node, error=str(error))
        self.retry_soon()

    def restore_nomination(self, pod: Object) -> None:
        """Restore a nomination that was made before this process started."""
        node = value_at(pod, "status", "nominatedNodeName")
        if node and key_of(pod) not in self.nominated:
            try:
                self.nominated[key_of(pod)] = pod_info_of(pod), node
            except InvalidPod:
                return  # reported when it is scheduled

    def node_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None:
            assert old is not None
            self.cache.remove_node(name_of(old))
        elif old is None or has_node_change(old, new):
            try:
                self.cache.set_node(new)
            except QuantityError as error:
                log.warning("node ignored: invalid allocatable", node=name_of(new), error=str(error))
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
        for key in self.assumed:  # they may wait for their volumes
            if (pod := self.pods.store.get(key)) is not None:
                self.enqueue_pod(pod)
        self.retry_soon()

    def retry_soon(self) -> None:
        """Schedule a retry of unschedulable pods after a change that might help."""
        self.schedule_retry(min(MAX_RETRY_INTERVAL, max(RETRY_INTERVAL, len(self.unschedulable) / RETRIES_PER_SECOND)))

    def schedule_retry(self, seconds: float) -> None:
        """Retry unschedulable pods in `seconds`, or earlier if that is already scheduled."""
        if self.unschedulable:
            self.enqueue_key_after(RETRY_KEY, seconds)

    def retry_unschedulable(self) -> None:
        waiting, self.unschedulable = self.unschedulable, set()
        for key in waiting:
            if (pod := self.pods.store.get(key)) is not None:
                self.enqueue_pod(pod)

    def enqueue_pod(self, pod: Object) -> None:
        self.queue.add(pod)
        self.enqueue_key_after(key_of(pod), 0)

    # -- scheduling

    async def reconcile(self, key: str) -> None:
        """Schedule all queued pods. Another call may find the queue empty."""
        if key == RETRY_KEY:
            self.retry_unschedulable()
        while (pod_key := self.queue.pop()) is not None:
            pod = self.pending_pod(pod_key)
            try:
                if pod is not None:
                    await self.schedule_pod(pod)
            except NotFound:
                self.forget(pod_key)
            except BaseException:
                if pod is not None:
                    self.queue.add(pod)  # the next call retries it
                raise
            finally:
                self.queue.done(pod_key)

    def pending_pod(self, key: str) -> Object | None:
        pod = self.pods.store.get(key)
        if pod is None or pod["spec"].get("nodeName") or is_deleting(pod) or not self.is_enabled():
            return None
        return pod if key in self.assumed or self.cache.node_name_of(key) is None else None

    async def schedule_pod(self, pod: Object) -> None:
        key = key_of(pod)
        self.unschedulable.discard(key)
        if not awaits_scheduling(pod):
            await self.update_scheduled_condition(pod, GATED_MESSAGE, reason=SCHEDULING_GATED)
            return
        try:
            pod_info = pod_info_of(pod)
        except InvalidPod as error:
            await self.update_scheduled_condition(pod, str(error), reason=SCHEDULER_ERROR)
            return
        node = self.assumed.get(key)
        try:
            context = SchedulingContext(pod_info, volume_plan_of(pod, self.storage), self.nominated_pods_for(pod_info))
            result = ScheduleResult(node) if node is not None else self.select_node(context)
        except UnresolvableClaim as error:
            if node is not None and await self.bound_node(pod) is None:
                self.unassume_pod(pod)
            if node is not None:
                return
            context, result = SchedulingContext(pod_info), ScheduleResult(blocked_reason=str(error))
        if result.node is None:
            await self.preempt(context, result)
            return
        self.assumed[key] = result.node
        self.cache.add_pod(pod_info, result.node)
        if await self.bind_volumes(pod, context.volume_plan, result.node):
            await self.bind(pod, result.node)

    def nominated_pods_for(self, pod_info: PodInfo) -> dict[str, list[PodInfo]]:
        """Return nominated pods of the same or a higher priority, by node name."""
        by_node: dict[str, list[PodInfo]] = {}
        for each, node in self.nominated.values():
            if (
                each.priority >= pod_info.priority
                and each.key != pod_info.key
                and each.key not in self.cache.assignments
            ):
                by_node.setdefault(node, []).append(each)
        return by_node

    def select_node(self, context: SchedulingContext) -> ScheduleResult:
        nominated = self.nominated.get(context.pod_info.key)
        result = select_node(
            context, self.cache, self.node_fits, self.next_start_index, nominated[1] if nominated is not None else None
        )
        self.next_start_index = (self.next_start_index + result.evaluated_nodes) % max(len(self.cache), 1)
        return result

    async def bind_volumes(self, pod: Object, volume_plan: VolumePlan, node: str) -> bool:
        """Bind the pod's claims for the node. Return whether they are bound. If not, their change triggers a retry."""
        if not volume_plan.unbound_claims:
            return True
        info = self.cache.nodes.get(node)
        plan = volume_plan.pod_volumes(info) if info is not None else None
        if plan is None:  # another pod has taken the volume
            self.unassume_pod(pod)
            return False
        try:
            for volume, claim in plan.static_bindings:
                if not value_at(volume, "spec", "claimRef", "uid"):
                    await self.client.patch(PERSISTENT_VOLUMES, volume, claim_ref_patch(claim))
            for claim in plan.dynamic_provisions:
                if SELECTED_NODE not in annotations_of(claim):
                    await self.client.patch(PERSISTENT_VOLUME_CLAIMS, claim, selected_node_patch(node))
        except NotFound:
            self.unassume_pod(pod)
        return False

    def unassume_pod(self, pod: Object) -> None:
        """Release the capacity of a pod that will not be bound to its assumed node, and schedule it again."""
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
            bound = await self.bound_node(pod)
            if bound is None:
                raise
            node = bound
        self.assumed.pop(key_of(pod), None)
        self.nominated.pop(key_of(pod), None)
        self.events.normal(pod, "Scheduled", f"Successfully assigned {key_of(pod)} to {node}")

    async def bound_node(self, pod: Object) -> str | None:
        """Return the node to which the pod is already bound, for example by a request whose response was lost."""
        live = await self.client.get(PODS, name_of(pod), namespace_of(pod))
        if uid_of(live) != uid_of(pod) or is_deleting(live):
            raise NotFound(404, "NotFound", f"pod {key_of(pod)} was deleted")
        node: str | None = value_at(live, "spec", "nodeName")
        if node:
            self.add_bound_pod(live, node)
        return node

    # -- preemption

    async def preempt(self, context: SchedulingContext, result: ScheduleResult) -> None:
        """Preempt pods of lower priority if that helps, and report why the pod is pending."""
        pod_info = context.pod_info
        message = result.message(len(self.cache))
        nominated = self.nominated.get(pod_info.key)
        node = nominated[1] if nominated is not None else None
        if not self.cache or result.blocked_reason:
            await self.mark_unschedulable(pod_info.pod, message, node)
            return
        try:
            if node is not None and self.has_terminating_victims(pod_info, node, result):
                raise PreemptionFailed(VICTIMS_TERMINATING)
            selected = victims(context, result, self.cache, self.disruption_budgets())
        except PreemptionFailed as error:
            if error.args[0] != VICTIMS_TERMINATING and self.nominated.pop(pod_info.key, None) is not None:
                node = None
                self.retry_soon()
            await self.mark_unschedulable(pod_info.pod, f"{message} {error}", node)
            return
        self.nominated[pod_info.key] = pod_info, selected.node
        await self.mark_unschedulable(pod_info.pod, message, selected.node)
        self.clear_lower_nominations(pod_info, selected.node)
        await self.delete_victims(pod_info, selected)

    def has_terminating_victims(self, pod_info: PodInfo, node: str, result: ScheduleResult) -> bool:
        """Return whether preempted pods on the node are still terminating."""
        info, rejection = self.cache.nodes.get(node), result.rejections.get(node)
        if info is None or (rejection is not None and rejection.is_unresolvable):
            return False
        return any(each.priority < pod_info.priority and is_preempted(each) for each in info.pods.values())

    def clear_lower_nominations(self, pod_info: PodInfo, node: str) -> None:
        """Remove the nominations of lower-priority pods for the node, and schedule them again."""
        for each, nominated_node in list(self.nominated.values()):
            if nominated_node == node and each.priority < pod_info.priority:
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
        """Report why the pod is pending, and retry it after a change or a timeout."""
        self.unschedulable.add(key_of(pod))
        self.schedule_retry(UNSCHEDULABLE_TIMEOUT)
        await self.update_scheduled_condition(pod, message, nominated)

    async def update_scheduled_condition(
        self, pod: Object, message: str, nominated: str | None = None, reason: str = UNSCHEDULABLE
    ) -> None:
        previous = find_condition(value_at(pod, "status", "conditions"), "PodScheduled") or {}
        is_reported = previous.get("message") == message and previous.get("reason") == reason
        if is_reported and value_at(pod, "status", "nominatedNodeName") == nominated:
            return
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        if generation := pod["metadata"].get("generation"):
            condition["observedGeneration"] = generation
        if previous.get("status") != "False":
            condition["lastTransitionTime"] = timestamp(self.now())
        status: Object = {"conditions": [condition], "nominatedNodeName": nominated}
        await self.client.patch(PODS, pod, {"status": status}, type=PatchType.STRATEGIC, subresource="status")
        if reason != SCHEDULING_GATED and not is_reported:
            self.events.warning(pod, "FailedScheduling", message)


def has_scheduling_change(old: Object, new: Object) -> bool:
    """Return whether a pod changed in a field that affects its scheduling or that of others."""
    return bool(
        old["spec"] != new["spec"]
        or labels_of(old) != labels_of(new)
        or is_deleting(old) != is_deleting(new)
        or reported_resources(old) != reported_resources(new)
    )


def has_node_change(old: Object, new: Object) -> bool:
    """Return whether a node changed in a field that affects scheduling."""
    return bool(
        old.get("spec") != new.get("spec")
        or labels_of(old) != labels_of(new)
        or value_at(old, "status", "allocatable") != value_at(new, "status", "allocatable")
    )


def disruption_budget_of(budget: Object) -> DisruptionBudget:
    status = budget.get("status") or {}
    selector = label_selector(value_at(budget, "spec", "selector"))
    disrupted = frozenset(status.get("disruptedPods") or ())
    return DisruptionBudget(namespace_of(budget) or "", selector, status.get("disruptionsAllowed") or 0, disrupted)


def storage_class_index(volume: Object) -> Iterable[str]:
    return (storage_class_of(volume),)


def attached_node(attachment: Object) -> Iterable[str]:
    return (attachment["spec"]["nodeName"],)


def install(manager: Manager, is_enabled: Callable[[], bool] = lambda: True) -> None:
    """Add the scheduler to `manager`."""
    cache, pods, nodes = SchedulerCache(), manager.informer(PODS), manager.informer(NODES)
    claims, storage_classes = manager.informer(PERSISTENT_VOLUME_CLAIMS), manager.informer(STORAGE_CLASSES)
    csi_nodes = manager.informer(CSI_NODES)
    attachments = manager.informer(VOLUME_ATTACHMENTS, indexers={NODE_INDEX: attached_node})
    persistent_volumes = manager.informer(PERSISTENT_VOLUMES, indexers={CLASS_INDEX: storage_class_index})
    storage = StorageLister(
        claims.store.get,
        persistent_volumes.store.get,
        lambda name: persistent_volumes.store.by(CLASS_INDEX, name),
        storage_classes.store.get,
        csi_nodes.store.get,
        lambda name: attachments.store.iter_by(NODE_INDEX, name),
        lambda key: cache.claim_users.get(key, ()),
    )
    events = Recorder(manager.client, DEFAULT_SCHEDULER, manager.identity, manager.now)
    manager.run_while_leading("scheduler events", events.run)
    budgets = manager.informer(DISRUPTION_BUDGETS)
    scheduler = Scheduler(
        manager.client, events, manager.now, pods, budgets, storage, is_enabled=is_enabled, cache=cache
    )
    controller = manager.controller("scheduler", scheduler.reconcile, workers=WORKERS)
    scheduler.enqueue_key_after = controller.queue.add_after
    pods.on_change(scheduler.pod_changed)
    nodes.on_change(scheduler.node_changed)
    manager.informer(NAMESPACES).on_change(scheduler.namespace_changed)
    for informer in (claims, persistent_volumes, storage_classes, csi_nodes, attachments):
        informer.on_change(scheduler.storage_changed)
