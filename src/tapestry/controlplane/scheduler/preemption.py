"""Preemption: selection of lower-priority pods to delete so that a pending pod fits. Pure.

Only pods of lower priority are deleted, as few and as unimportant as possible. A disruption budget is violated only if
there is no other way.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tapestry.controlplane.scheduler.cache import NodeInfo, SchedulerCache
from tapestry.controlplane.scheduler.placement import (
    ScheduleResult,
    SchedulingContext,
    fit_error_message,
    rejection_with_nominated,
)
from tapestry.controlplane.scheduler.pod_info import PodInfo
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import is_deleting, name_of, value_at
from tapestry.kube.selectors import LabelSelector

MIN_CANDIDATE_NODES = 100
"""Number of candidates to find at least, regardless of the cluster size."""
PRIORITY_OFFSET = 2**31
PREEMPTION_REASON = "PreemptionByScheduler"

POLICY_NEVER = "not eligible due to preemptionPolicy=Never."
VICTIMS_TERMINATING = "not eligible due to a terminating pod on the nominated node."
NO_VICTIMS = "No preemption victims found for incoming pod"
NOT_HELPFUL = "Preemption is not helpful for scheduling"


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """Number of allowed disruptions of matching pods."""

    namespace: str
    selector: LabelSelector
    disruptions_allowed: int
    disrupted_pods: frozenset[str] = frozenset()
    """Names of pods that already count as disrupted."""

    def covers(self, pod_info: PodInfo) -> bool:
        group = pod_info.group
        return (
            self.namespace == group.namespace
            and bool(self.selector.requirements)
            and name_of(pod_info.pod) not in self.disrupted_pods
            and self.selector.matches(group.labels)
        )


@dataclass(frozen=True, slots=True)
class Victims:
    """Pods to delete from a node, the highest priority first."""

    node: str
    pods: tuple[PodInfo, ...]
    pdb_violations: int
    """Number of deletions that violate a disruption budget."""

    @property
    def cost(self) -> tuple[int, int, int, int]:
        """Cost of the deletions. The lowest is best. Ties are resolved by the latest start time."""
        priorities = [pod.priority for pod in self.pods]
        return self.pdb_violations, priorities[0], sum(each + PRIORITY_OFFSET for each in priorities), len(priorities)

    @property
    def earliest_start(self) -> str:
        """Start time of the oldest of its highest-priority pods."""
        return min(start_time_of(pod) for pod in self.pods if pod.priority == self.pods[0].priority)


class PreemptionFailed(Exception):
    """Preemption does not help. The message contains the reason."""

    def __str__(self) -> str:
        # The prefix is about dynamic resources, which kube-scheduler tries to free before it preempts pods.
        return f"no new claims to deallocate, preemption: {super().__str__()}"


def victims(
    context: SchedulingContext, result: ScheduleResult, cache: SchedulerCache, budgets: Sequence[DisruptionBudget]
) -> Victims:
    """Return the pods to delete for the pod. Raises PreemptionFailed."""
    if context.pod_info.pod["spec"].get("preemptionPolicy") == "Never":
        raise PreemptionFailed(POLICY_NEVER)
    reasons: Counter[str] = Counter()
    selections: list[Victims] = []
    candidates = [name for name, rejection in result.rejections.items() if not rejection.is_unresolvable]
    limit = max(MIN_CANDIDATE_NODES, len(candidates) // 10)
    for name in candidates:
        try:
            selections.append(victims_on_node(context, cache.nodes[name], cache, budgets))
        except NoVictimsFound as error:
            reasons.update(error.reasons)
        if len(selections) >= limit and any(not each.pdb_violations for each in selections):
            break
    if not selections:
        reasons[NOT_HELPFUL] += len(cache) - len(candidates)
        raise PreemptionFailed(fit_error_message(len(cache), reasons))
    lowest = min(each.cost for each in selections)
    return max((each for each in selections if each.cost == lowest), key=lambda each: each.earliest_start)


class NoVictimsFound(Exception):
    """Reasons why a node rejects the pod even without all pods of lower priority."""

    def __init__(self, reasons: Iterable[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__(*self.reasons)


def victims_on_node(
    context: SchedulingContext, node_info: NodeInfo, cache: SchedulerCache, budgets: Sequence[DisruptionBudget]
) -> Victims:
    """Return the pods to delete from one node. Raises NoVictimsFound."""
    lower = [each for each in node_info.pods.values() if each.priority < context.pod_info.priority]
    if not lower:
        raise NoVictimsFound([NO_VICTIMS])
    lower.sort(key=lambda each: (-each.priority, start_time_of(each)))
    protected = pdb_violating_pods(lower, budgets)
    with cache.restoring_pods(lower, node_info.name):
        for each in lower:
            cache.remove_pod(each.key)
        if (rejection := rejection_with_nominated(context, node_info, cache)) is not None:
            raise NoVictimsFound(rejection.reasons)
        # Put pods back while the pending pod still fits, beginning with the most important.
        removed = []
        for each in sorted(lower, key=lambda each: each.key not in protected):
            cache.add_pod(each, node_info.name)
            if rejection_with_nominated(context, node_info, cache) is not None:
                cache.remove_pod(each.key)
                removed.append(each)
    removed.sort(key=lambda each: (-each.priority, start_time_of(each)))
    return Victims(node_info.name, tuple(removed), sum(each.key in protected for each in removed))


def pdb_violating_pods(pods: Iterable[PodInfo], budgets: Sequence[DisruptionBudget]) -> frozenset[str]:
    """Return the keys of pods whose deletion, in this order, violates a disruption budget."""
    allowed = [each.disruptions_allowed for each in budgets]
    violating = set()
    for pod in pods:
        for number, budget in enumerate(budgets):
            if budget.covers(pod):
                allowed[number] -= 1
                if allowed[number] < 0:
                    violating.add(pod.key)
    return frozenset(violating)


def start_time_of(pod_info: PodInfo) -> str:
    """Return the start or creation time. Younger pods are preempted before older ones."""
    metadata: Mapping[str, str] = pod_info.pod["metadata"]
    return value_at(pod_info.pod, "status", "startTime") or metadata.get("creationTimestamp", "")


def is_preempted(pod_info: PodInfo) -> bool:
    """Return whether the pod is being deleted because of preemption."""
    condition = find_condition(value_at(pod_info.pod, "status", "conditions"), "DisruptionTarget") or {}
    return (
        is_deleting(pod_info.pod) and condition.get("status") == "True" and condition.get("reason") == PREEMPTION_REASON
    )
