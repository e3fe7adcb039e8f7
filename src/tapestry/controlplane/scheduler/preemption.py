"""Preemption: whom a pod may push aside where there is no room for it.  Pure.

Only pods of lower priority go, and of those as few and as unimportant as will do.  A disruption budget is broken only
where there is no other way.
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
"""Nodes of which all are looked at, however large the cluster."""
PRIORITY_OFFSET = 2**31
PREEMPTION_REASON = "PreemptionByScheduler"

POLICY_NEVER = "not eligible due to preemptionPolicy=Never."
VICTIMS_TERMINATING = "not eligible due to a terminating pod on the nominated node."
NO_VICTIMS = "No preemption victims found for incoming pod"
NOT_HELPFUL = "Preemption is not helpful for scheduling"


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """How many more pods of a kind may go."""

    namespace: str
    selector: LabelSelector
    disruptions_allowed: int
    disrupted_pods: frozenset[str] = frozenset()
    """Names of pods that are counted as gone already."""

    def covers(self, pod_info: PodInfo) -> bool:
        kind = pod_info.group
        return (
            self.namespace == kind.namespace
            and bool(self.selector.requirements)
            and name_of(pod_info.pod) not in self.disrupted_pods
            and self.selector.matches(kind.labels)
        )


@dataclass(frozen=True, slots=True)
class Victims:
    """Who would have to leave a node, the most important first."""

    node: str
    pods: tuple[PodInfo, ...]
    pdb_violations: int
    """How many of them a budget would keep."""

    @property
    def cost(self) -> tuple[int, int, int, int]:
        """The least is best; of equals, the one whose pods came last."""
        priorities = [pod.priority for pod in self.pods]
        return self.pdb_violations, priorities[0], sum(each + PRIORITY_OFFSET for each in priorities), len(priorities)

    @property
    def earliest_start(self) -> str:
        """When the first of its most important pods came."""
        return min(start_time_of(pod) for pod in self.pods if pod.priority == self.pods[0].priority)


class PreemptionFailed(Exception):
    """Nobody's leaving would help; the message says why."""

    def __str__(self) -> str:
        # What it says first is of dynamic resources, which kube-scheduler tries to free before it pushes pods aside.
        return f"no new claims to deallocate, preemption: {super().__str__()}"


def victims(
    context: SchedulingContext, result: ScheduleResult, cache: SchedulerCache, budgets: Sequence[DisruptionBudget]
) -> Victims:
    """Who leaves for the pod; raises Useless."""
    if context.pod_info.pod["spec"].get("preemptionPolicy") == "Never":
        raise PreemptionFailed(POLICY_NEVER)
    reasons: Counter[str] = Counter()
    found: list[Victims] = []
    hopeful = [name for name, refusal in result.rejections.items() if not refusal.is_unresolvable]
    wanted = max(MIN_CANDIDATE_NODES, len(hopeful) // 10)
    for name in hopeful:
        try:
            found.append(victims_on_node(context, cache.nodes[name], cache, budgets))
        except NoVictimsFound as error:
            reasons.update(error.reasons)
        if len(found) >= wanted and any(not each.pdb_violations for each in found):
            break
    if not found:
        reasons[NOT_HELPFUL] += len(cache) - len(hopeful)
        raise PreemptionFailed(fit_error_message(len(cache), reasons))
    least = min(each.cost for each in found)
    return max((each for each in found if each.cost == least), key=lambda each: each.earliest_start)


class NoVictimsFound(Exception):
    """What keeps the pod from a node even if all go that may."""

    def __init__(self, reasons: Iterable[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__(*self.reasons)


def victims_on_node(
    context: SchedulingContext, node_info: NodeInfo, cache: SchedulerCache, budgets: Sequence[DisruptionBudget]
) -> Victims:
    """Who would have to leave that node; raises Unhelpful."""
    lower = [each for each in node_info.pods.values() if each.priority < context.pod_info.priority]
    if not lower:
        raise NoVictimsFound([NO_VICTIMS])
    lower.sort(key=lambda each: (-each.priority, start_time_of(each)))
    protected = pdb_violating_pods(lower, budgets)
    with cache.restoring_pods(lower, node_info.name):
        for each in lower:
            cache.remove_pod(each.key)
        if (refusal := rejection_with_nominated(context, node_info, cache)) is not None:
            raise NoVictimsFound(refusal.reasons)
        # Those that are hardest to spare come back first, as long as there is room.
        gone = []
        for each in sorted(lower, key=lambda each: each.key not in protected):
            cache.add_pod(each, node_info.name)
            if rejection_with_nominated(context, node_info, cache) is not None:
                cache.remove_pod(each.key)
                gone.append(each)
    gone.sort(key=lambda each: (-each.priority, start_time_of(each)))
    return Victims(node_info.name, tuple(gone), sum(each.key in protected for each in gone))


def pdb_violating_pods(pods: Iterable[PodInfo], budgets: Sequence[DisruptionBudget]) -> frozenset[str]:
    """Those of the pods whose going a budget does not allow, when they go in this order."""
    left = [each.disruptions_allowed for each in budgets]
    found = set()
    for pod in pods:
        for number, budget in enumerate(budgets):
            if budget.covers(pod):
                left[number] -= 1
                if left[number] < 0:
                    found.add(pod.key)
    return frozenset(found)


def start_time_of(pod_info: PodInfo) -> str:
    """When it came: the older is spared before the younger."""
    metadata: Mapping[str, str] = pod_info.pod["metadata"]
    return value_at(pod_info.pod, "status", "startTime") or metadata.get("creationTimestamp", "")


def is_preempted(pod_info: PodInfo) -> bool:
    """Whether it is going to make room for another."""
    condition = find_condition(value_at(pod_info.pod, "status", "conditions"), "DisruptionTarget") or {}
    return (
        is_deleting(pod_info.pod) and condition.get("status") == "True" and condition.get("reason") == PREEMPTION_REASON
    )
