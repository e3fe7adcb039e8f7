"""Placing: which nodes a pod can go to and why not to the others, and which of them is best.  Pure.

The rules, their order and the words for what breaks them are those of kube-scheduler.  In a large cluster not every
node is asked: once enough have said yes, the best of these is good enough, and the next pod begins where this one
stopped.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tapestry.controlplane.scheduler import volumes
from tapestry.controlplane.scheduler.affinity_and_spread import NO_TOPOLOGY_RULES, TopologyState, topology_state_of
from tapestry.controlplane.scheduler.cache import NodeInfo, SchedulerCache
from tapestry.controlplane.scheduler.node_fit import (
    MAX_NODE_SCORE,
    NodeFit,
    NodeFitCache,
    Rejection,
    node_fit_of,
    node_rejection,
)
from tapestry.controlplane.scheduler.pod_info import PodInfo
from tapestry.controlplane.scheduler.volumes import VolumePlan

MIN_FEASIBLE_NODES = 100
"""Nodes of which all are asked, however large the cluster."""

NODE_NAME_MISMATCH = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
CONFLICTING_AFFINITY_TERMS = "pod affinity terms conflict"
NO_NODES = "no nodes available to schedule pods"


@dataclass(slots=True)
class ScheduleResult:
    """The node for a pod, or why there is none."""

    node: str | None = None
    rejections: dict[str, Rejection] = field(default_factory=dict)
    unevaluated_reason: str = ""
    """Why no other node was asked."""
    blocked_reason: str = ""
    """Why no node was asked at all."""
    evaluated_nodes: int = 0

    def message(self, total: int) -> str:
        """As kube-scheduler says it; `total` is how many nodes there are."""
        if not total:
            return NO_NODES
        if self.blocked_reason:
            return f"0/{total} nodes are available: {self.blocked_reason}. not found"  # so it ends there
        reasons = Counter(reason for refusal in self.rejections.values() for reason in refusal.reasons)
        if self.unevaluated_reason:
            reasons[self.unevaluated_reason] += total - len(self.rejections)
        return fit_error_message(total, reasons)


@dataclass(frozen=True, slots=True)
class SchedulingContext:
    """A pod with all that is known of it before nodes are asked."""

    pod_info: PodInfo
    volume_plan: VolumePlan = volumes.NO_VOLUMES
    nominated_pods: Mapping[str, Sequence[PodInfo]] = field(default_factory=dict)
    """Pods that are at least as important, by the node that is kept for them."""


def fit_error_message(total: int, reasons: Mapping[str, int]) -> str:
    counts = sorted(f"{count} {reason}" for reason, count in reasons.items() if count)
    return f"0/{total} nodes are available: {', '.join(counts)}."


# -- whether


def rejection_with_nominated(
    context: SchedulingContext, node_info: NodeInfo, cache: SchedulerCache
) -> Rejection | None:
    """What keeps the pod from the node as things are, or as they will be when those come for whom room is kept."""
    kept = context.nominated_pods.get(node_info.name)
    if kept:
        with cache.with_pods(kept, node_info.name):
            refusal = rejection_without_nominated(context, node_info, topology_state_of(context.pod_info, cache))
        if refusal is not None:
            return refusal
    return rejection_without_nominated(context, node_info, topology_state_of(context.pod_info, cache))


def rejection_without_nominated(
    context: SchedulingContext, node_info: NodeInfo, topology: TopologyState
) -> Rejection | None:
    return node_rejection(context.pod_info.requirements, node_info) or volume_or_topology_rejection(
        context, node_info, topology
    )


def volume_or_topology_rejection(
    context: SchedulingContext, node_info: NodeInfo, topology: TopologyState
) -> Rejection | None:
    """What storage and pods elsewhere have against it."""
    if context.volume_plan is not volumes.NO_VOLUMES and (found := context.volume_plan.rejection_reasons(node_info)):
        return Rejection(found, found != (volumes.EXCLUSIVE_CLAIM_IN_USE,))
    return topology.rejection(node_info)


# -- which


def best_node(candidates: Sequence[tuple[NodeInfo, NodeFit]], topology: TopologyState) -> str:
    """The node that is worth most, by the rules and weights of kube-scheduler; the first of equals."""
    if len(candidates) == 1:
        return candidates[0][0].name
    worth = [verdict.resource_score for _, verdict in candidates]
    if most := max(verdict.taint_score for _, verdict in candidates):
        worth = add_scores(
            worth, 3, [MAX_NODE_SCORE - MAX_NODE_SCORE * verdict.taint_score // most for _, verdict in candidates]
        )
    if most := max(verdict.affinity_score for _, verdict in candidates):
        worth = add_scores(worth, 2, [MAX_NODE_SCORE * verdict.affinity_score // most for _, verdict in candidates])
    if topology is not NO_TOPOLOGY_RULES:
        for scores in topology.scores([room for room, _ in candidates]):
            worth = add_scores(worth, 2, scores)
    return candidates[worth.index(max(worth))][0].name


def add_scores(totals: Iterable[int], weight: int, scores: Iterable[int]) -> list[int]:
    return [one + weight * other for one, other in zip(totals, scores, strict=True)]


def feasible_nodes_to_find(nodes: int) -> int:
    """How many nodes that say yes are enough."""
    if nodes < MIN_FEASIBLE_NODES:
        return nodes
    return max(MIN_FEASIBLE_NODES, nodes * max(5, 50 - nodes // 125) // 100)


def select_node(
    context: SchedulingContext,
    cache: SchedulerCache,
    node_fits: NodeFitCache,
    start: int = 0,
    nominated_node: str | None = None,
) -> ScheduleResult:
    """The best node for the pod; `start` is where to begin asking, `first` a node that is taken if it will do."""
    needs = context.pod_info.requirements
    if nominated_node in cache.nodes and rejection_with_nominated(context, cache.nodes[nominated_node], cache) is None:
        return ScheduleResult(nominated_node)
    if needs.node_names is not None and not needs.node_names:
        return ScheduleResult(blocked_reason=CONFLICTING_AFFINITY_TERMS)
    every: list[NodeInfo] = list(cache)
    if needs.node_names is not None:
        every = [room for room in every if room.name in needs.node_names]
    around = topology_state_of(context.pod_info, cache)
    choice = ScheduleResult(unevaluated_reason=NODE_NAME_MISMATCH if needs.node_names is not None else "")
    found: list[tuple[NodeInfo, NodeFit]] = []
    wanted, known = feasible_nodes_to_find(len(every)), node_fits.by_node(needs)
    is_plain = context.volume_plan is volumes.NO_VOLUMES and not around.can_reject
    for room in rotated_nodes(every, start):
        choice.evaluated_nodes += 1
        verdict = known.get(room.name)
        if verdict is None or verdict.generation != room.generation:
            verdict = known[room.name] = node_fit_of(needs, room)
        refusal = verdict.rejection
        if refusal is None and not is_plain:
            refusal = volume_or_topology_rejection(context, room, around)
        if refusal is None and room.name in context.nominated_pods:
            refusal = rejection_with_nominated(context, room, cache)
        if refusal is not None:
            choice.rejections[room.name] = refusal
            continue
        found.append((room, verdict))
        if len(found) >= wanted:
            break
    if found:
        choice.node = best_node(found, around)
    return choice


def rotated_nodes(node_infos: list[NodeInfo], start: int) -> Iterable[NodeInfo]:
    start %= max(len(node_infos), 1)
    return (*node_infos[start:], *node_infos[:start])
