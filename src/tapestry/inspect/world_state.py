"""State of a world at one moment, computed from the objects of its virtual cluster (pure)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tapestry.apis import keys
from tapestry.apis.clusterbindings import binding_of
from tapestry.inspect.pods import PlacedPod, PodStatus, pod_status
from tapestry.inspect.status import BindingStatus, NodeStatus, binding_status, node_status
from tapestry.kube.objects import Object, is_deleting, labels_of, name_of, uid_of, value_at
from tapestry.syncer.cache_transforms import is_placeholder

PENDING_PHASE = "Pending"
TERMINATING_PHASE = "Terminating"


@dataclass(frozen=True)
class WorldState:
    bindings: Sequence[BindingStatus]
    nodes: Sequence[NodeStatus]
    phases: Mapping[str, int]
    """Number of pods by phase, on virtual nodes or without a node."""
    waiting: Sequence[PodStatus]
    """Pods of these that are pending, the oldest first."""
    now: datetime
    """Current time, in the time zone to display."""


def world_state_of(
    bindings: Iterable[Object], nodes: Iterable[Object], pods: Iterable[Object], now: datetime
) -> WorldState:
    owners, nodes_by_name = {uid_of(each): each for each in bindings}, {name_of(each): each for each in nodes}
    placed: dict[str, list[Object]] = {name: [] for name in nodes_by_name}
    phases: Counter[str] = Counter()
    waiting = []
    for pod in pods:
        node = value_at(pod, "spec", "nodeName", default="")
        if is_placeholder(pod) or (node and node not in nodes_by_name):
            continue
        placed.setdefault(node, []).append(pod)
        phases[phase := phase_of(pod)] += 1
        if phase == PENDING_PHASE:
            waiting.append(waiting_pod_status(pod, nodes_by_name.get(node), owners))
    return WorldState(
        sorted(map(binding_status, owners.values()), key=lambda each: each.name),
        sorted((node_status(each, placed[name]) for name, each in nodes_by_name.items()), key=lambda each: each.name),
        phases,
        sorted(waiting, key=lambda each: (each.created, each.namespace, each.name)),
        now,
    )


def phase_of(pod: Object) -> str:
    return TERMINATING_PHASE if is_deleting(pod) else value_at(pod, "status", "phase", default=PENDING_PHASE)


def waiting_pod_status(pod: Object, node: Object | None, owners: Mapping[str, Object]) -> PodStatus:
    binding = owners.get(labels_of(node).get(keys.CLUSTER_BINDING_UID, "")) if node is not None else None
    return pod_status(PlacedPod(pod, node, binding_of(binding, "") if binding is not None else None))
