"""What keeps a pod from virtual nodes, as a scheduler sees it: taints, selectors, and room."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from tapestry.apis import keys
from tapestry.inspect.status import Printable, total_requests
from tapestry.kube.objects import Object, annotations_of, name_of, value_at
from tapestry.kube.pod_requests import effective_requests, occupies_node
from tapestry.kube.quantity import ResourceList
from tapestry.kube.selectors import SelectorError, label_selector, node_selector
from tapestry.kube.taints import CORDON_TAINT, NOT_READY, UNREACHABLE, is_tolerated
from tapestry.kube.times import timestamp

SCHEDULING_EFFECTS = (keys.NO_SCHEDULE, "NoExecute")
VNODE_TOLERATION = f"{{key: {keys.VNODE_TAINT}, operator: Exists}}"
ADVICE = {
    keys.VNODE_TAINT: f"add to the pod's spec.tolerations: {VNODE_TOLERATION}",
    keys.OUT_OF_TIME_WINDOWS_TAINT: "wait until a window opens; `tapestry policies` shows them",
    keys.WITHDRAWING_TAINT: "the node goes after its last pod; `tapestry explain node` says why",
    keys.PHYSICAL_NODE_UNSCHEDULABLE_TAINT: "its owner has cordoned the physical node; wait, or ask them",
    UNREACHABLE: "nobody knows how the node is; `tapestry status` says when its cluster was seen",
    NOT_READY: "the physical node is not ready; see it in its own cluster",
}
"""What to do about a taint, by its key."""
RECLAIMED_ADVICE = (
    f"its owner took the node back with {keys.RECLAIM}={keys.RECLAIM_NOW};"
    " wait until they remove that mark, or use other nodes"
)


class Obstacle(Printable, frozen=True):
    what: str
    nodes: int
    """How many nodes it bars."""
    todo: str


def obstacles(
    pod: Object, nodes: Iterable[Object], pods: Mapping[str, Iterable[Object]], next_opening: datetime | None
) -> tuple[tuple[Obstacle, ...], int]:
    """What keeps a pod from each of the virtual `nodes`, the most frequent first, and from how many nothing does.

    `pods` are those on each node; `opens` is when a closed window opens next.
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
    """What keeps a pod from one node, each with what can be done about it."""
    tolerations: list[Object] = value_at(pod, "spec", "tolerations", default=[])
    for taint in taints_of(node):
        if not is_tolerated(taint, tolerations):
            yield f"taint {taint_text(taint)}", taint_advice(taint, node, next_opening)
    if not is_selected(pod, node):
        yield "nodeSelector or nodeAffinity of the pod", "virtual nodes have the labels of physical ones; choose others"
    room = ResourceList.parse(value_at(node, "status", "allocatable"))
    lacking = [each for each, asked in effective_requests(pod).items() if asked and room[each] - used[each] < asked]
    if lacking:
        yield f"too little {', '.join(sorted(lacking))}", "`tapestry nodes` shows what is lent and used; ask for less"


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
    return ADVICE.get(taint["key"], f"tolerate {taint['key']} where that is meant, or have it removed from the node")


def is_selected(pod: Object, node: Object) -> bool:
    """Whether the pod may go to the node as far as its own selectors say; one that cannot be read selects none."""
    spec = pod["spec"]
    required = value_at(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    try:
        by_labels = label_selector({"matchLabels": spec.get("nodeSelector") or {}})
        return by_labels.matches(node["metadata"].get("labels") or {}) and node_selector(required).matches(node)
    except SelectorError:
        return False
