"""Departures: pods that leave because their node is lost to them.

A taint of effect NoExecute sends away the pods that do not tolerate it, at once, or when what they tolerate is over.  A
pod whose node is gone has nobody who would end it: it is ended here, once a live read has confirmed that the node is
not there.  So is one that is deleted before it ever had a node.  Pods that are over are kept, up to a number.
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
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.resources import NODES, PODS
from tapestry.kube.taints import tolerates
from tapestry.kube.times import parse_time, timestamp

QUARANTINE = timedelta(seconds=40)
"""How long a node may be missing before its pods are ended."""
GC_INTERVAL = 20.0
TERMINATED_POD_THRESHOLD = 12_500
"""Pods that are over and still kept."""
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
TERMINATED_INDEX = "over"
DELETED_BY_TAINT = ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
DELETED_BY_POD_GC = ("DeletionByPodGC", "PodGC: node no longer exists")


# -- pure


def eviction_time(pod: Object, taints: Iterable[Object]) -> datetime | None:
    """When the taints of its node send the pod away; None for never."""
    moments = []
    for taint in taints:
        if taint["effect"] != "NoExecute":
            continue
        start = max(bound_at(pod), parse_time(taint["timeAdded"]) if taint.get("timeAdded") else bound_at(pod))
        tolerations = [each for each in pod["spec"].get("tolerations") or () if tolerates(each, taint)]
        if not tolerations:
            moments.append(start)
            continue
        spans = [each["tolerationSeconds"] for each in tolerations if each.get("tolerationSeconds") is not None]
        if spans:
            moments.append(start + timedelta(seconds=max(0, min(spans))))
    return min(moments, default=None)


def needs_forced_deletion(pod: Object, node: Object | None) -> bool:
    """Whether a deleted pod has nobody who would end it."""
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
    """The pods that are over and too many: those that were evicted first, then the oldest."""
    spare = len(pods) - limit
    if spare <= 0:
        return []
    return sorted(pods, key=lambda pod: (value_at(pod, "status", "reason") != "Evicted", *age_key(pod)))[:spare]


def age_key(pod: Object) -> tuple[str, str]:
    return pod["metadata"].get("creationTimestamp", ""), key_of(pod)


# -- at work


@dataclass
class PodDeletionReconciler:
    """Ends pods whose node is lost to them; keyed by pod."""

    client: Client
    events: Recorder
    now: Callable[[], datetime]
    nodes: Informer
    pods: Informer
    max_terminated: int = TERMINATED_POD_THRESHOLD
    missing_nodes: dict[str, datetime] = field(default_factory=dict)
    """Nodes that pods name and nobody knows, and since when."""

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
            return None  # it is gone already
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
        """End a pod whose node is gone, and was not just about to come."""
        due = self.missing_nodes.setdefault(node, self.now()) + QUARANTINE
        if due > self.now():
            return Result(requeue_at=due)
        if await self.client.find(NODES, node) is None:
            await self.force_delete(pod, DELETED_BY_POD_GC)
            return None
        return Result(requeue_after=GC_INTERVAL)  # it is there: our cache lags

    async def force_delete(self, pod: Object, cause: tuple[str, str] | None = None) -> None:
        """End a pod without its kubelet."""
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
        said = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        return {**said, "lastTransitionTime": timestamp(self.now())}

    async def collect_terminated(self, _key: str) -> Result | None:
        """Keep as many pods that are over as there may be."""
        for pod in surplus_pods(self.pods.store.by(TERMINATED_INDEX, TERMINATED_INDEX), self.max_terminated):
            await self.client.delete_if_exists(PODS, pod, grace_seconds=0)
        return Result(requeue_after=GC_INTERVAL)

    def node_added(self, _old: Object | None, new: Object | None) -> None:
        if new is not None:
            self.missing_nodes.pop(name_of(new), None)


def terminated_index(pod: Object) -> Iterable[str]:
    return (TERMINATED_INDEX,) if is_pod_terminal(pod) else ()


def taints_changed(old: Object | None, new: Object | None) -> bool:
    """Whether a node came, went, or got other taints."""
    return value_at(old, "spec", "taints") != value_at(new, "spec", "taints") or old is None or new is None


def spec_or_deletion_changed(old: Object | None, new: Object | None) -> bool:
    """Whether a pod came to a node, is deleted, or tolerates something else."""
    if old is None or new is None:
        return new is not None
    return is_deleting(old) != is_deleting(new) or old["spec"] != new["spec"]


def install(manager: Manager, nodes: Informer, pods: Informer, node_index: str) -> None:
    """Have pods leave that should; `placed` is the index of `pods` by node."""
    leaving = PodDeletionReconciler(manager.client, manager.events, manager.now, nodes, pods)
    nodes.on_change(leaving.node_added)
    pods.store.add_index(TERMINATED_INDEX, terminated_index)

    def on_node(node: Object) -> Iterable[str]:
        return [key_of(pod) for pod in pods.store.by(node_index, name_of(node))]

    controller = manager.controller("departures", leaving.reconcile)
    controller.watch(pods, when=spec_or_deletion_changed)
    controller.watch(nodes, on_node, when=taints_changed)
    sweeping = manager.controller("finished-pods", leaving.collect_terminated, workers=1)
    manager.after_sync(lambda: sweeping.queue.add_after(TERMINATED_INDEX, GC_INTERVAL))
