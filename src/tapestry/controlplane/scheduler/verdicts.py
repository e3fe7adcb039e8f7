"""Verdicts: what a node alone says to a pod's needs, and what it is worth for them.  Pure.

A verdict holds until the node changes, and for every pod of the same needs.
"""

from collections import OrderedDict
from typing import NamedTuple

from tapestry.controlplane.scheduler.asked import Needs
from tapestry.controlplane.scheduler.rooms import Room
from tapestry.kube.taints import CORDON, is_tolerated

HIGHEST = 100
REMEMBERED = 64
"""Needs whose verdicts are remembered."""


class Refusal(NamedTuple):
    """Why a pod cannot go to a node, and whether it could not even if others left."""

    reasons: tuple[str, ...]
    is_final: bool


UNSCHEDULABLE = Refusal(("node(s) were unschedulable",), True)
TAINTED = Refusal(("node(s) had untolerated taint(s)",), True)
SELECTOR = Refusal(("node(s) didn't match Pod's node affinity/selector",), True)
PORTS = Refusal(("node(s) didn't have free ports for the requested pod ports",), False)


class Verdict(NamedTuple):
    """What a node alone says to a pod's needs, and what it is worth for them."""

    version: int
    refusal: Refusal | None
    emptiness: int = 0
    dislike: int = 0
    """Taints that would rather not have it."""
    liking: int = 0
    """The weight of the preferences that the node meets."""


class Verdicts:
    """What nodes alone said to the needs that were asked lately."""

    def __init__(self) -> None:
        self._known: OrderedDict[Needs, dict[str, Verdict]] = OrderedDict()

    def of(self, needs: Needs) -> dict[str, Verdict]:
        """By the name of the node; may be of an older version of it."""
        known = self._known.get(needs)
        if known is None:
            known = self._known[needs] = {}
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(needs)
        return known


def verdict_of(needs: Needs, room: Room) -> Verdict:
    refusal = unfit(needs, room)
    if refusal is not None:
        return Verdict(room.version, refusal)
    dislike = 0
    for taint in room.taints:
        if taint["effect"] == "PreferNoSchedule" and not is_tolerated(taint, needs.tolerations):
            dislike += 1
    liking = sum(weight for weight, each in needs.preferences if each.matches(room.node))
    return Verdict(room.version, None, emptiness(needs, room), dislike, liking)


def unfit(needs: Needs, room: Room) -> Refusal | None:
    if room.is_cordoned and not is_tolerated(CORDON, needs.tolerations):
        return UNSCHEDULABLE
    if room.taints and not is_tolerant(needs, room):
        return TAINTED
    if not is_selected(needs, room):
        return SELECTOR
    if needs.ports and room.is_taken(needs.ports):
        return PORTS
    if short := room.lacks(needs.requests):
        is_final = any(name != "pods" and needs.requests[name] > room.has.get(name, 0) for name in short)
        return Refusal(tuple("Too many pods" if name == "pods" else f"Insufficient {name}" for name in short), is_final)
    return None


def is_tolerant(needs: Needs, room: Room) -> bool:
    return all(
        taint["effect"] not in ("NoSchedule", "NoExecute") or is_tolerated(taint, needs.tolerations)
        for taint in room.taints
    )


def is_selected(needs: Needs, room: Room) -> bool:
    labels = room.labels
    for key, value in needs.selector.items():
        if labels.get(key) != value:
            return False
    return needs.affinity is None or needs.affinity.matches(room.node)


def emptiness(needs: Needs, room: Room) -> int:
    """More for a node with much left, and for one that lacks nothing more than anything else."""
    has, used, requests = room.has, room.used, needs.requests
    has_cpu, has_memory = has.get("cpu", 0), has.get("memory", 0)
    free = divisor = 0
    for amount, total in ((room.cpu + needs.weighs[0], has_cpu), (room.memory + needs.weighs[1], has_memory)):
        if total:
            free += (total - amount) * HIGHEST // total if amount <= total else 0
            divisor += 1
    score = free // divisor if divisor else 0
    cpu, memory = requests.get("cpu", 0), requests.get("memory", 0)
    if cpu or memory:
        score += HIGHEST
        if has_cpu and has_memory:
            cpu_share = min((used.get("cpu", 0) + cpu) / has_cpu, 1.0)
            memory_share = min((used.get("memory", 0) + memory) / has_memory, 1.0)
            score -= HIGHEST - int((1 - abs(cpu_share - memory_share) / 2) * HIGHEST)
    return score
