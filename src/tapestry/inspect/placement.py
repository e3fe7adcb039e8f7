"""Obstacles that keep a pod off virtual nodes: taints, selectors and missing resources."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from tapestry.apis import keys
from tapestry.inspect.status import Printable, total_requests
from tapestry.kube.objects import Object, annotations_of, name_of, value_at
from tapestry.kube.pod_requests import effective_requests, occupies_node
from tapestry.kube.pods import CORDON_TAINT, NOT_READY, UNREACHABLE, is_tolerated
from tapestry.kube.quantity import ResourceList
from tapestry.kube.selectors import SelectorError, label_selector, node_selector
from tapestry.kube.times import timestamp

SCHEDULING_EFFECTS = (keys.NO_SCHEDULE, "NoExecute")
VNODE_TOLERATION = f"{{key: {keys.VNODE_TAINT}, operator: Exists}}"
ADVICE = {
    keys.VNODE_TAINT: f"add to the pod's spec.tolerations: {VNODE_TOLERATION}",
    keys.OUT_OF_TIME_WINDOWS_TAINT: "wait until a window opens; `tapestry policies` shows them",
    keys.WITHDRAWING_TAINT: "the node is deleted after its last pod; `tapestry explain node` shows why",
    keys.PHYSICAL_NODE_UNSCHEDULABLE_TAINT: "the owner cordoned the physical node; wait, or ask the owner",
    UNREACHABLE: "the state of the node is unknown; `tapestry status` shows when its cluster was last seen",
    NOT_READY: "the physical node is not ready; check it in its own cluster",
}
RECLAIMED_ADVICE = (
    f"the owner reclaimed the node with {keys.RECLAIM}={keys.RECLAIM_NOW};"
    " wait until the annotation is removed, or use other nodes"
)


class Obstacle(Printable, frozen=True):
    what: str
    nodes: int
    """Number of nodes that it excludes."""
    todo: str


def obstacles(
    pod: Object, nodes: Iterable[Object], pods: Mapping[str, Iterable[Object]], next_opening: datetime | None
) -> tuple[tuple[Obstacle, ...], int]:
    """Return the obstacles on the virtual `nodes`, most frequent first, and the number of free nodes.

    `pods` are those on each node; `next_opening` is when a closed window opens next.
    """
    counts: Counter[tuple[str, str]] = Counter()
    free = 0
    for node in nodes:
        used = total_requests(each for each in pods.get(name_of(node), ()) if occupies_node(each))
        found = set(obstacles_on(pod, node, used, next_opening))
        counts.update(found)
        free += not found
    return tuple(Obstacle(what=what, nodes=count, todo=todo) for (what, todo), count in counts.most_common()), free


def obstacles_on(
    pod: Object, node: Object, used: ResourceList, next_opening: datetime | None
) -> Iterator[tuple[str, str]]:
    """Yield the obstacles on one node, each with advice."""
    tolerations: list[Object] = value_at(pod, "spec", "tolerations", default=[])
    for taint in taints_of(node):
        if not is_tolerated(taint, tolerations):
            yield f"taint {taint_text(taint)}", taint_advice(taint, node, next_opening)
    if not is_selected(pod, node):
        yield "nodeSelector or nodeAffinity of the pod", "virtual nodes have the labels of physical ones; use those"
    total = ResourceList.parse(value_at(node, "status", "allocatable"))
    missing = [each for each, need in effective_requests(pod).items() if need and total[each] - used[each] < need]
    if missing:
        yield f"too little {', '.join(sorted(missing))}", "`tapestry nodes` shows leased and used amounts; request less"


def taints_of(node: Object) -> Iterator[Object]:
    taints: list[Object] = value_at(node, "spec", "taints", default=[])
    keys_of_taints = {each["key"] for each in taints}
    if value_at(node, "spec", "unschedulable") and CORDON_TAINT["key"] not in keys_of_taints:
        yield CORDON_TAINT
    yield from (each for each in taints if each.get("effect") in SCHEDULING_EFFECTS)


def taint_text(taint: Object) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def taint_advice(taint: Object, node: Object, next_opening: datetime | None) -> str:
    if taint["key"] == keys.OUT_OF_TIME_WINDOWS_TAINT and annotations_of(node).get(keys.CLOSED_REASON) == "Reclaimed":
        return RECLAIMED_ADVICE
    if taint["key"] == keys.OUT_OF_TIME_WINDOWS_TAINT and next_opening is not None:
        return (
            f"wait until {timestamp(next_opening)}, when a window opens or closes next; `tapestry policies` shows them"
        )
    return ADVICE.get(taint["key"], f"tolerate {taint['key']}, or remove it from the node")


def is_selected(pod: Object, node: Object) -> bool:
    """Return whether the pod's selectors match the node; an invalid selector matches none."""
    spec = pod["spec"]
    required = value_at(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    try:
        by_labels = label_selector({"matchLabels": spec.get("nodeSelector") or {}})
        return by_labels.matches(node["metadata"].get("labels") or {}) and node_selector(required).matches(node)
    except SelectorError:
        return False
