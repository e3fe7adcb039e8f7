"""Checks of a pod's requirements against a single node: rejection and score. Pure.

A result is valid for all pods with the same requirements until the node changes.
"""

from collections import OrderedDict
from typing import NamedTuple

from tapestry.controlplane.scheduler.cache import NodeInfo
from tapestry.controlplane.scheduler.pod_info import PodRequirements
from tapestry.kube.pods import CORDON_TAINT, is_tolerated

MAX_NODE_SCORE = 100
CACHE_SIZE = 64
"""Number of requirements whose results are cached."""


class Rejection(NamedTuple):
    """Reasons why a node cannot run a pod, and whether preemption could not help."""

    reasons: tuple[str, ...]
    is_unresolvable: bool


NODE_UNSCHEDULABLE = Rejection(("node(s) were unschedulable",), True)
UNTOLERATED_TAINT = Rejection(("node(s) had untolerated taint(s)",), True)
NODE_AFFINITY_MISMATCH = Rejection(("node(s) didn't match Pod's node affinity/selector",), True)
PORT_CONFLICT = Rejection(("node(s) didn't have free ports for the requested pod ports",), False)


class NodeFit(NamedTuple):
    """Result of checking a pod's requirements against a single node."""

    generation: int
    rejection: Rejection | None
    resource_score: int = 0
    taint_score: int = 0
    """Number of PreferNoSchedule taints that are not tolerated."""
    affinity_score: int = 0
    """Total weight of the node affinity preferences that the node satisfies."""


class NodeFitCache:
    """Results for recently used requirements."""

    def __init__(self) -> None:
        self._by_requirements: OrderedDict[PodRequirements, dict[str, NodeFit]] = OrderedDict()

    def by_node(self, requirements: PodRequirements) -> dict[str, NodeFit]:
        """Return results by node name. They may refer to an older generation of a node."""
        fits = self._by_requirements.get(requirements)
        if fits is None:
            fits = self._by_requirements[requirements] = {}
            if len(self._by_requirements) > CACHE_SIZE:
                self._by_requirements.popitem(last=False)
        self._by_requirements.move_to_end(requirements)
        return fits


def node_fit_of(requirements: PodRequirements, node_info: NodeInfo) -> NodeFit:
    rejection = node_rejection(requirements, node_info)
    if rejection is not None:
        return NodeFit(node_info.generation, rejection)
    taint_score = 0
    for taint in node_info.taints:
        if taint["effect"] == "PreferNoSchedule" and not is_tolerated(taint, requirements.tolerations):
            taint_score += 1
    affinity = sum(weight for weight, each in requirements.preferred_node_affinity if each.matches(node_info.node))
    return NodeFit(node_info.generation, None, resource_score(requirements, node_info), taint_score, affinity)


def node_rejection(requirements: PodRequirements, node_info: NodeInfo) -> Rejection | None:
    if node_info.is_cordoned and not is_tolerated(CORDON_TAINT, requirements.tolerations):
        return NODE_UNSCHEDULABLE
    if node_info.taints and not tolerates_node_taints(requirements, node_info):
        return UNTOLERATED_TAINT
    if not matches_node_affinity(requirements, node_info):
        return NODE_AFFINITY_MISMATCH
    if requirements.host_ports and node_info.has_port_conflict(requirements.host_ports):
        return PORT_CONFLICT
    if lacking := node_info.insufficient_resources(requirements.requests):
        is_unresolvable = any(
            name != "pods" and requirements.requests[name] > node_info.allocatable.get(name, 0) for name in lacking
        )
        return Rejection(
            tuple("Too many pods" if name == "pods" else f"Insufficient {name}" for name in lacking), is_unresolvable
        )
    return None


def tolerates_node_taints(requirements: PodRequirements, node_info: NodeInfo) -> bool:
    return all(
        taint["effect"] not in ("NoSchedule", "NoExecute") or is_tolerated(taint, requirements.tolerations)
        for taint in node_info.taints
    )


def matches_node_affinity(requirements: PodRequirements, node_info: NodeInfo) -> bool:
    labels = node_info.labels
    for key, value in requirements.node_selector.items():
        if labels.get(key) != value:
            return False
    return requirements.node_affinity is None or requirements.node_affinity.matches(node_info.node)


def resource_score(requirements: PodRequirements, node_info: NodeInfo) -> int:
    """Return a score that favours nodes with much free capacity and balanced cpu and memory use."""
    allocatable, used, requests = node_info.allocatable, node_info.requested, requirements.requests
    has_cpu, has_memory = allocatable.get("cpu", 0), allocatable.get("memory", 0)
    free = divisor = 0
    for amount, total in (
        (node_info.nonzero_cpu + requirements.nonzero_requests[0], has_cpu),
        (node_info.nonzero_memory + requirements.nonzero_requests[1], has_memory),
    ):
        if total:
            free += (total - amount) * MAX_NODE_SCORE // total if amount <= total else 0
            divisor += 1
    score = free // divisor if divisor else 0
    cpu, memory = requests.get("cpu", 0), requests.get("memory", 0)
    if cpu or memory:
        score += MAX_NODE_SCORE
        if has_cpu and has_memory:
            cpu_share = min((used.get("cpu", 0) + cpu) / has_cpu, 1.0)
            memory_share = min((used.get("memory", 0) + memory) / has_memory, 1.0)
            score -= MAX_NODE_SCORE - int((1 - abs(cpu_share - memory_share) / 2) * MAX_NODE_SCORE)
    return score
