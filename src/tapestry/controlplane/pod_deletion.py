"""Controllers for taint-based eviction and for garbage collection of pods.

A NoExecute taint evicts the pods that do not tolerate it, at once or when their toleration expires. A pod whose node is
gone has no kubelet to terminate it: it is deleted here once a live read confirms that the node does not exist. The same
applies to a pod that is deleted before it has a node. Terminated pods are kept up to a limit.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tapestry.client.client import Client
from tapestry.client.options import PatchType
from tapestry.controller import Informer, Manager, Result
from tapestry.controller.events import Recorder
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, value_at
from tapestry.kube.pod_requests import bound_at
from tapestry.kube.pods import is_pod_terminal, tolerates
from tapestry.kube.resources import NODES, PODS
from tapestry.kube.times import parse_time, timestamp

QUARANTINE = timedelta(seconds=40)
"""Time for which a node may be missing before its pods are deleted."""
GC_INTERVAL = 20.0
TERMINATED_POD_THRESHOLD = 12_500
"""Number of terminated pods to keep."""
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
TERMINATED_INDEX = "over"
DELETED_BY_TAINT = ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
DELETED_BY_POD_GC = ("DeletionByPodGC", "PodGC: node no longer exists")


# -- pure


def eviction_time(pod: Object, taints: Iterable[Object]) -> datetime | None:
    """Return the time at which taints of its node evict the pod, or None if none does."""
    times = []
    for taint in taints:
        if taint["effect"] != "NoExecute":
            continue
        start = max(bound_at(pod), parse_time(taint["timeAdded"]) if taint.get("timeAdded") else bound_at(pod))
        tolerations = [each for each in pod["spec"].get("tolerations") or () if tolerates(each, taint)]
        if not tolerations:
            times.append(start)
            continue
        periods = [each["tolerationSeconds"] for each in tolerations if each.get("tolerationSeconds") is not None]
        if periods:
            times.append(start + timedelta(seconds=max(0, min(periods))))
    return min(times, default=None)


def needs_forced_deletion(pod: Object, node: Object | None) -> bool:
    """Return whether no kubelet will terminate a deleted pod."""
    if not is_deleting(pod):
        return False
    if not value_at(pod, "spec", "nodeName"):
        return True
    taints = value_at(node, "spec", "taints", default=())
    return (
        node is not None
        and not is_condition_true(node, "Ready")
        and any(each["key"] == OUT_OF_SERVICE for each in taints)
    )


def surplus_pods(pods: Sequence[Object], limit: int) -> list[Object]:
    """Return the terminated pods over the limit: evicted ones first, then the oldest."""
    surplus = len(pods) - limit
    if surplus <= 0:
        return []
    return sorted(pods, key=lambda pod: (value_at(pod, "status", "reason") != "Evicted", *age_key(pod)))[:surplus]


def age_key(pod: Object) -> tuple[str, str]:
    return pod["metadata"].get("creationTimestamp", ""), key_of(pod)


# -- reconciler


@dataclass
class PodDeletionReconciler:
    """Delete pods that taints evict or whose node is missing. Keys are those of pods."""

    client: Client
    events: Recorder
    now: Callable[[], datetime]
    nodes: Informer
    pods: Informer
    max_terminated: int = TERMINATED_POD_THRESHOLD
    missing_nodes: dict[str, datetime] = field(default_factory=dict)
    """Time since which a node that pods refer to has been missing, by node name."""

    async def reconcile(self, key: str) -> Result | None:
        pod = self.pods.store.get(key)
        if pod is None:
            return None
        name = value_at(pod, "spec", "nodeName")
        node = self.nodes.store.get(name) if name else None
        try:
            if needs_forced_deletion(pod, node):
                await self.force_delete(pod)
            elif name and node is None:
                return await self.delete_if_node_missing(pod, name)
            elif node is not None and not is_deleting(pod):
                return await self.evict_by_taint(pod, node)
        except NotFound:
            return None  # already deleted
        return None

    async def evict_by_taint(self, pod: Object, node: Object) -> Result | None:
        due = eviction_time(pod, value_at(node, "spec", "taints", default=()))
        if due is None:
            return None
        if due > self.now():
            return Result(requeue_at=due)
        self.events.normal(pod, "TaintManagerEviction", f"Marking for deletion Pod {key_of(pod)}")
        await self.client.delete(PODS, await self.mark_disruption_target(pod, *DELETED_BY_TAINT))
        return None

    async def delete_if_node_missing(self, pod: Object, node: str) -> Result | None:
        """Delete a pod whose node has been missing for longer than the quarantine."""
        due = self.missing_nodes.setdefault(node, self.now()) + QUARANTINE
        if due > self.now():
            return Result(requeue_at=due)
        if await self.client.find(NODES, node) is None:
            await self.force_delete(pod, DELETED_BY_POD_GC)
            return None
        return Result(requeue_after=GC_INTERVAL)  # it exists: the cache lags

    async def force_delete(self, pod: Object, cause: tuple[str, str] | None = None) -> None:
        """Mark a pod as failed and delete it without waiting for its kubelet."""
        if not is_pod_terminal(pod):
            patch: Object = {"status": {"phase": "Failed"}}
            if cause is not None:
                patch["status"]["conditions"] = [self.disruption_condition(*cause)]
            pod = await self.client.patch(PODS, pod, patch, type=PatchType.STRATEGIC, subresource="status")
        await self.client.delete(PODS, pod, grace_seconds=0)

    async def mark_disruption_target(self, pod: Object, reason: str, message: str) -> Object:
        patch = {"status": {"conditions": [self.disruption_condition(reason, message)]}}
        return await self.client.patch(PODS, pod, patch, type=PatchType.STRATEGIC, subresource="status")

    def disruption_condition(self, reason: str, message: str) -> Object:
        condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        return {**condition, "lastTransitionTime": timestamp(self.now())}

    async def collect_terminated(self, _key: str) -> Result | None:
        """Delete terminated pods over the limit."""
        for pod in surplus_pods(self.pods.store.by(TERMINATED_INDEX, TERMINATED_INDEX), self.max_terminated):
            await self.client.delete_if_exists(PODS, pod, grace_seconds=0)
        return Result(requeue_after=GC_INTERVAL)

    def node_added(self, _old: Object | None, new: Object | None) -> None:
        if new is not None:
            self.missing_nodes.pop(name_of(new), None)


def terminated_index(pod: Object) -> Iterable[str]:
    return (TERMINATED_INDEX,) if is_pod_terminal(pod) else ()


def taints_changed(old: Object | None, new: Object | None) -> bool:
    return value_at(old, "spec", "taints") != value_at(new, "spec", "taints") or old is None or new is None


def spec_or_deletion_changed(old: Object | None, new: Object | None) -> bool:
    """Return whether a pod was added or deleted, or its spec changed."""
    if old is None or new is None:
        return new is not None
    return is_deleting(old) != is_deleting(new) or old["spec"] != new["spec"]


def install(manager: Manager, nodes: Informer, pods: Informer, node_index: str) -> None:
    """Add the pod deletion controllers to `manager`. `node_index` is the index of `pods` by node."""
    reconciler = PodDeletionReconciler(manager.client, manager.events, manager.now, nodes, pods)
    nodes.on_change(reconciler.node_added)
    pods.store.add_index(TERMINATED_INDEX, terminated_index)

    def pods_of_node(node: Object) -> Iterable[str]:
        return [key_of(pod) for pod in pods.store.by(node_index, name_of(node))]

    controller = manager.controller("taint-eviction", reconciler.reconcile)
    controller.watch(pods, when=spec_or_deletion_changed)
    controller.watch(nodes, pods_of_node, when=taints_changed)
    pod_gc = manager.controller("pod-gc", reconciler.collect_terminated, workers=1)
    manager.after_sync(lambda: pod_gc.queue.add_after(TERMINATED_INDEX, GC_INTERVAL))
