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
from tapestry.kube.conditions import is_true
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, value_at
from tapestry.kube.pods import is_over
from tapestry.kube.requests import bound_at
from tapestry.kube.resources import NODES, PODS
from tapestry.kube.taints import tolerates
from tapestry.kube.times import parse_time, timestamp

QUARANTINE = timedelta(seconds=40)
"""How long a node may be missing before its pods are ended."""
SWEEP = 20.0
MOST_OVER = 12_500
"""Pods that are over and still kept."""
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
OVER = "over"
BY_TAINT = ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
BY_GC = ("DeletionByPodGC", "PodGC: node no longer exists")


# -- pure


def expulsion(pod: Object, taints: Iterable[Object]) -> datetime | None:
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


def is_abandoned(pod: Object, node: Object | None) -> bool:
    """Whether a deleted pod has nobody who would end it."""
    if not is_deleting(pod):
        return False
    if not value_at(pod, "spec", "nodeName"):
        return True
    taints = value_at(node, "spec", "taints", default=())
    return node is not None and not is_true(node, "Ready") and any(each["key"] == OUT_OF_SERVICE for each in taints)


def surplus(pods: Sequence[Object], most: int) -> list[Object]:
    """The pods that are over and too many: those that were evicted first, then the oldest."""
    spare = len(pods) - most
    if spare <= 0:
        return []
    return sorted(pods, key=lambda pod: (value_at(pod, "status", "reason") != "Evicted", *age(pod)))[:spare]


def age(pod: Object) -> tuple[str, str]:
    return pod["metadata"].get("creationTimestamp", ""), key_of(pod)


# -- at work


@dataclass
class Departures:
    """Ends pods whose node is lost to them; keyed by pod."""

    client: Client
    events: Recorder
    now: Callable[[], datetime]
    nodes: Informer
    pods: Informer
    most: int = MOST_OVER
    missing: dict[str, datetime] = field(default_factory=dict)
    """Nodes that pods name and nobody knows, and since when."""

    async def reconcile(self, key: str) -> Result | None:
        pod = self.pods.store.get(key)
        if pod is None:
            return None
        name = value_at(pod, "spec", "nodeName")
        node = self.nodes.store.get(name) if name else None
        try:
            if is_abandoned(pod, node):
                await self.end(pod)
            elif name and node is None:
                return await self.outlive(pod, name)
            elif node is not None and not is_deleting(pod):
                return await self.expel(pod, node)
        except NotFound:
            return None  # it is gone already
        return None

    async def expel(self, pod: Object, node: Object) -> Result | None:
        due = expulsion(pod, value_at(node, "spec", "taints", default=()))
        if due is None:
            return None
        if due > self.now():
            return Result(requeue_at=due)
        self.events.normal(pod, "TaintManagerEviction", f"Marking for deletion Pod {key_of(pod)}")
        await self.client.delete(PODS, await self.marked(pod, *BY_TAINT))
        return None

    async def outlive(self, pod: Object, node: str) -> Result | None:
        """End a pod whose node is gone, and was not just about to come."""
        due = self.missing.setdefault(node, self.now()) + QUARANTINE
        if due > self.now():
            return Result(requeue_at=due)
        if await self.client.find(NODES, node) is None:
            await self.end(pod, BY_GC)
            return None
        return Result(requeue_after=SWEEP)  # it is there: our cache lags

    async def end(self, pod: Object, why: tuple[str, str] | None = None) -> None:
        """End a pod without its kubelet."""
        if not is_over(pod):
            patch: Object = {"status": {"phase": "Failed"}}
            if why is not None:
                patch["status"]["conditions"] = [self.condition(*why)]
            pod = await self.client.patch(PODS, pod, patch, type=PatchType.STRATEGIC, subresource="status")
        await self.client.delete(PODS, pod, grace_seconds=0)

    async def marked(self, pod: Object, reason: str, message: str) -> Object:
        patch = {"status": {"conditions": [self.condition(reason, message)]}}
        return await self.client.patch(PODS, pod, patch, type=PatchType.STRATEGIC, subresource="status")

    def condition(self, reason: str, message: str) -> Object:
        said = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        return {**said, "lastTransitionTime": timestamp(self.now())}

    async def sweep(self, _key: str) -> Result | None:
        """Keep as many pods that are over as there may be."""
        for pod in surplus(self.pods.store.by(OVER, OVER), self.most):
            await self.client.remove(PODS, pod, grace_seconds=0)
        return Result(requeue_after=SWEEP)

    def node_came(self, _old: Object | None, new: Object | None) -> None:
        if new is not None:
            self.missing.pop(name_of(new), None)


def over(pod: Object) -> Iterable[str]:
    return (OVER,) if is_over(pod) else ()


def is_other_node(old: Object | None, new: Object | None) -> bool:
    """Whether a node came, went, or got other taints."""
    return value_at(old, "spec", "taints") != value_at(new, "spec", "taints") or old is None or new is None


def is_other_pod(old: Object | None, new: Object | None) -> bool:
    """Whether a pod came to a node, is deleted, or tolerates something else."""
    if old is None or new is None:
        return new is not None
    return is_deleting(old) != is_deleting(new) or old["spec"] != new["spec"]


def install(manager: Manager, nodes: Informer, pods: Informer, placed: str) -> None:
    """Have pods leave that should; `placed` is the index of `pods` by node."""
    leaving = Departures(manager.client, manager.events, manager.now, nodes, pods)
    nodes.on_change(leaving.node_came)
    pods.store.add_index(OVER, over)

    def on_node(node: Object) -> Iterable[str]:
        return [key_of(pod) for pod in pods.store.by(placed, name_of(node))]

    controller = manager.controller("departures", leaving.reconcile)
    controller.watch(pods, when=is_other_pod)
    controller.watch(nodes, on_node, when=is_other_node)
    sweeping = manager.controller("finished-pods", leaving.sweep, workers=1)
    manager.after_sync(lambda: sweeping.queue.add_after(OVER, SWEEP))
