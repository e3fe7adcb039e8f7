"""Selection of the best feasible node for a pod, with reasons for rejected nodes. Pure.

The rules, their order and their messages are those of kube-scheduler. In a large cluster, the search stops once enough
feasible nodes are found, and the next pod continues with the next node.
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
"""Number of feasible nodes to find at least, regardless of the cluster size."""

NODE_NAME_MISMATCH = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
CONFLICTING_AFFINITY_TERMS = "pod affinity terms conflict"
NO_NODES = "no nodes available to schedule pods"


@dataclass(slots=True)
class ScheduleResult:
    """The selected node, or the reasons why there is none."""

    node: str | None = None
    rejections: dict[str, Rejection] = field(default_factory=dict)
    unevaluated_reason: str = ""
    """Reason why the remaining nodes were not evaluated."""
    blocked_reason: str = ""
    """Reason why no node was evaluated at all."""
    evaluated_nodes: int = 0

    def message(self, total: int) -> str:
        """Return the message of kube-scheduler. `total` is the number of nodes."""
        if not total:
            return NO_NODES
        if self.blocked_reason:
            return f"0/{total} nodes are available: {self.blocked_reason}. not found"  # as kube-scheduler writes it
        reasons = Counter(reason for rejection in self.rejections.values() for reason in rejection.reasons)
        if self.unevaluated_reason:
            reasons[self.unevaluated_reason] += total - len(self.rejections)
        return fit_error_message(total, reasons)


@dataclass(frozen=True, slots=True)
class SchedulingContext:
    """A pod with all inputs of its scheduling apart from the nodes."""

    pod_info: PodInfo
    volume_plan: VolumePlan = volumes.NO_VOLUMES
    nominated_pods: Mapping[str, Sequence[PodInfo]] = field(default_factory=dict)
    """Nominated pods of the same or a higher priority, by node name."""


def fit_error_message(total: int, reasons: Mapping[str, int]) -> str:
    counts = sorted(f"{count} {reason}" for reason, count in reasons.items() if count)
    return f"0/{total} nodes are available: {', '.join(counts)}."


# -- filtering


def rejection_with_nominated(
    context: SchedulingContext, node_info: NodeInfo, cache: SchedulerCache
) -> Rejection | None:
    """Return the rejection by a node, both with and without the pods that are nominated for it."""
    nominated = context.nominated_pods.get(node_info.name)
    if nominated:
        with cache.with_pods(nominated, node_info.name):
            rejection = rejection_without_nominated(context, node_info, topology_state_of(context.pod_info, cache))
        if rejection is not None:
            return rejection
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
    """Return the rejection because of volumes or of pods on other nodes."""
    if context.volume_plan is not volumes.NO_VOLUMES and (reasons := context.volume_plan.rejection_reasons(node_info)):
        return Rejection(reasons, reasons not in volumes.RESOLVABLE_REASONS)
    return topology.rejection(node_info)


# -- scoring


def best_node(candidates: Sequence[tuple[NodeInfo, NodeFit]], topology: TopologyState) -> str:
    """Return the node with the highest score by the weights of kube-scheduler, the first of equals."""
    if len(candidates) == 1:
        return candidates[0][0].name
    totals = [fit.resource_score for _, fit in candidates]
    if highest := max(fit.taint_score for _, fit in candidates):
        totals = add_scores(
            totals, 3, [MAX_NODE_SCORE - MAX_NODE_SCORE * fit.taint_score // highest for _, fit in candidates]
        )
    if highest := max(fit.affinity_score for _, fit in candidates):
        totals = add_scores(totals, 2, [MAX_NODE_SCORE * fit.affinity_score // highest for _, fit in candidates])
    if topology is not NO_TOPOLOGY_RULES:
        for scores in topology.scores([info for info, _ in candidates]):
            totals = add_scores(totals, 2, scores)
    return candidates[totals.index(max(totals))][0].name


def add_scores(totals: Iterable[int], weight: int, scores: Iterable[int]) -> list[int]:
    return [one + weight * other for one, other in zip(totals, scores, strict=True)]


def feasible_nodes_to_find(nodes: int) -> int:
    """Return the number of feasible nodes after which the search stops."""
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
    """Select the best node for the pod, beginning at index `start`. `nominated_node` is taken if it is feasible."""
    requirements = context.pod_info.requirements
    if nominated_node in cache.nodes and rejection_with_nominated(context, cache.nodes[nominated_node], cache) is None:
        return ScheduleResult(nominated_node)
    if requirements.node_names is not None and not requirements.node_names:
        return ScheduleResult(blocked_reason=CONFLICTING_AFFINITY_TERMS)
    node_infos: list[NodeInfo] = list(cache)
    if requirements.node_names is not None:
        node_infos = [info for info in node_infos if info.name in requirements.node_names]
    topology = topology_state_of(context.pod_info, cache)
    result = ScheduleResult(unevaluated_reason=NODE_NAME_MISMATCH if requirements.node_names is not None else "")
    feasible: list[tuple[NodeInfo, NodeFit]] = []
    limit, fits = feasible_nodes_to_find(len(node_infos)), node_fits.by_node(requirements)
    needs_only_fit = context.volume_plan is volumes.NO_VOLUMES and not topology.can_reject
    for info in rotated_nodes(node_infos, start):
        result.evaluated_nodes += 1
        fit = fits.get(info.name)
        if fit is None or fit.generation != info.generation:
            fit = fits[info.name] = node_fit_of(requirements, info)
        rejection = fit.rejection
        if rejection is None and not needs_only_fit:
            rejection = volume_or_topology_rejection(context, info, topology)
        if rejection is None and info.name in context.nominated_pods:
            rejection = rejection_with_nominated(context, info, cache)
        if rejection is not None:
            result.rejections[info.name] = rejection
            continue
        feasible.append((info, fit))
        if len(feasible) >= limit:
            break
    if feasible:
        result.node = best_node(feasible, topology)
    return result


def rotated_nodes(node_infos: list[NodeInfo], start: int) -> Iterable[NodeInfo]:
    start %= max(len(node_infos), 1)
    return (*node_infos[start:], *node_infos[:start])
