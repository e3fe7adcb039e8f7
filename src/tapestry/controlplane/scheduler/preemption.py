"""Preemption: whom a pod may push aside where there is no room for it.  Pure.

Only pods of lower priority go, and of those as few and as unimportant as will do.  A disruption budget is broken only
where there is no other way.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tapestry.controlplane.scheduler.asked import Asked
from tapestry.controlplane.scheduler.placing import Choice, Wishes, told, why_not
from tapestry.controlplane.scheduler.rooms import Room, Rooms
from tapestry.kube.conditions import find
from tapestry.kube.objects import is_deleting, name_of, value_at
from tapestry.kube.selectors import LabelSelector

FEWEST = 100
"""Nodes of which all are looked at, however large the cluster."""
LOWEST = 2**31
REASON = "PreemptionByScheduler"

NEVER = "not eligible due to preemptionPolicy=Never."
ONGOING = "not eligible due to a terminating pod on the nominated node."
NOBODY = "No preemption victims found for incoming pod"
USELESS = "Preemption is not helpful for scheduling"


@dataclass(frozen=True, slots=True)
class Budget:
    """How many more pods of a kind may go."""

    namespace: str
    selector: LabelSelector
    allowed: int
    taken: frozenset[str] = frozenset()
    """Names of pods that are counted as gone already."""

    def covers(self, pod: Asked) -> bool:
        kind = pod.kind
        return (
            self.namespace == kind.namespace
            and bool(self.selector.requirements)
            and name_of(pod.pod) not in self.taken
            and self.selector.matches(kind.labels)
        )


@dataclass(frozen=True, slots=True)
class Victims:
    """Who would have to leave a node, the most important first."""

    node: str
    pods: tuple[Asked, ...]
    broken: int
    """How many of them a budget would keep."""

    @property
    def cost(self) -> tuple[int, int, int, int]:
        """The least is best; of equals, the one whose pods came last."""
        priorities = [pod.priority for pod in self.pods]
        return self.broken, priorities[0], sum(each + LOWEST for each in priorities), len(priorities)

    @property
    def since(self) -> str:
        """When the first of its most important pods came."""
        return min(age(pod) for pod in self.pods if pod.priority == self.pods[0].priority)


class Useless(Exception):
    """Nobody's leaving would help; the message says why."""

    def __str__(self) -> str:
        # What it says first is of dynamic resources, which kube-scheduler tries to free before it pushes pods aside.
        return f"no new claims to deallocate, preemption: {super().__str__()}"


def victims(wishes: Wishes, choice: Choice, rooms: Rooms, budgets: Sequence[Budget]) -> Victims:
    """Who leaves for the pod; raises Useless."""
    if wishes.asked.pod["spec"].get("preemptionPolicy") == "Never":
        raise Useless(NEVER)
    reasons: Counter[str] = Counter()
    found: list[Victims] = []
    hopeful = [name for name, refusal in choice.refusals.items() if not refusal.is_final]
    wanted = max(FEWEST, len(hopeful) // 10)
    for name in hopeful:
        try:
            found.append(in_room(wishes, rooms.rooms[name], rooms, budgets))
        except Unhelpful as error:
            reasons.update(error.reasons)
        if len(found) >= wanted and any(not each.broken for each in found):
            break
    if not found:
        reasons[USELESS] += len(rooms) - len(hopeful)
        raise Useless(told(len(rooms), reasons))
    least = min(each.cost for each in found)
    return max((each for each in found if each.cost == least), key=lambda each: each.since)


class Unhelpful(Exception):
    """What keeps the pod from a node even if all go that may."""

    def __init__(self, reasons: Iterable[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__(*self.reasons)


def in_room(wishes: Wishes, room: Room, rooms: Rooms, budgets: Sequence[Budget]) -> Victims:
    """Who would have to leave that node; raises Unhelpful."""
    lower = [each for each in room.pods.values() if each.priority < wishes.asked.priority]
    if not lower:
        raise Unhelpful([NOBODY])
    lower.sort(key=lambda each: (-each.priority, age(each)))
    protected = exhausted(lower, budgets)
    with rooms.restored(lower, room.name):
        for each in lower:
            rooms.remove(each.key)
        if (refusal := why_not(wishes, room, rooms)) is not None:
            raise Unhelpful(refusal.reasons)
        # Those that are hardest to spare come back first, as long as there is room.
        gone = []
        for each in sorted(lower, key=lambda each: each.key not in protected):
            rooms.add(each, room.name)
            if why_not(wishes, room, rooms) is not None:
                rooms.remove(each.key)
                gone.append(each)
    gone.sort(key=lambda each: (-each.priority, age(each)))
    return Victims(room.name, tuple(gone), sum(each.key in protected for each in gone))


def exhausted(pods: Iterable[Asked], budgets: Sequence[Budget]) -> frozenset[str]:
    """Those of the pods whose going a budget does not allow, when they go in this order."""
    left = [each.allowed for each in budgets]
    found = set()
    for pod in pods:
        for number, budget in enumerate(budgets):
            if budget.covers(pod):
                left[number] -= 1
                if left[number] < 0:
                    found.add(pod.key)
    return frozenset(found)


def age(pod: Asked) -> str:
    """When it came: the older is spared before the younger."""
    metadata: Mapping[str, str] = pod.pod["metadata"]
    return value_at(pod.pod, "status", "startTime") or metadata.get("creationTimestamp", "")


def is_pushed_aside(pod: Asked) -> bool:
    """Whether it is going to make room for another."""
    condition = find(value_at(pod.pod, "status", "conditions"), "DisruptionTarget") or {}
    return is_deleting(pod.pod) and condition.get("status") == "True" and condition.get("reason") == REASON
