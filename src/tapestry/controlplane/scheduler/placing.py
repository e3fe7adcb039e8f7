"""Placing: which nodes a pod can go to and why not to the others, and which of them is best.  Pure.

The rules, their order and the words for what breaks them are those of kube-scheduler.  In a large cluster not every
node is asked: once enough have said yes, the best of these is good enough, and the next pod begins where this one
stopped.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tapestry.controlplane.scheduler import volumes
from tapestry.controlplane.scheduler.asked import Asked
from tapestry.controlplane.scheduler.neighbours import NOBODY, Neighbours, neighbours_of
from tapestry.controlplane.scheduler.rooms import Room, Rooms
from tapestry.controlplane.scheduler.verdicts import HIGHEST, Refusal, Verdict, Verdicts, unfit, verdict_of
from tapestry.controlplane.scheduler.volumes import Stowage

FEWEST = 100
"""Nodes of which all are asked, however large the cluster."""

NOT_NAMED = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
CONFLICTING = "pod affinity terms conflict"
NO_NODES = "no nodes available to schedule pods"


@dataclass(slots=True)
class Choice:
    """The node for a pod, or why there is none."""

    node: str | None = None
    refusals: dict[str, Refusal] = field(default_factory=dict)
    others: str = ""
    """Why no other node was asked."""
    barred: str = ""
    """Why no node was asked at all."""
    asked: int = 0

    def message(self, total: int) -> str:
        """As kube-scheduler says it; `total` is how many nodes there are."""
        if not total:
            return NO_NODES
        if self.barred:
            return f"0/{total} nodes are available: {self.barred}. not found"  # so it ends there
        reasons = Counter(reason for refusal in self.refusals.values() for reason in refusal.reasons)
        if self.others:
            reasons[self.others] += total - len(self.refusals)
        return told(total, reasons)


@dataclass(frozen=True, slots=True)
class Wishes:
    """A pod with all that is known of it before nodes are asked."""

    asked: Asked
    stowage: Stowage = volumes.NOTHING
    kept: Mapping[str, Sequence[Asked]] = field(default_factory=dict)
    """Pods that are at least as important, by the node that is kept for them."""


def told(total: int, reasons: Mapping[str, int]) -> str:
    counts = sorted(f"{count} {reason}" for reason, count in reasons.items() if count)
    return f"0/{total} nodes are available: {', '.join(counts)}."


# -- whether


def why_not(wishes: Wishes, room: Room, rooms: Rooms) -> Refusal | None:
    """What keeps the pod from the node as things are, or as they will be when those come for whom room is kept."""
    kept = wishes.kept.get(room.name)
    if kept:
        with rooms.with_guests(kept, room.name):
            refusal = why_not_now(wishes, room, neighbours_of(wishes.asked, rooms))
        if refusal is not None:
            return refusal
    return why_not_now(wishes, room, neighbours_of(wishes.asked, rooms))


def why_not_now(wishes: Wishes, room: Room, around: Neighbours) -> Refusal | None:
    return unfit(wishes.asked.needs, room) or why_not_here(wishes, room, around)


def why_not_here(wishes: Wishes, room: Room, around: Neighbours) -> Refusal | None:
    """What storage and pods elsewhere have against it."""
    if wishes.stowage is not volumes.NOTHING and (found := wishes.stowage.why_not(room)):
        return Refusal(found, found != (volumes.TAKEN,))
    return around.objection(room)


# -- which


def best(found: Sequence[tuple[Room, Verdict]], around: Neighbours) -> str:
    """The node that is worth most, by the rules and weights of kube-scheduler; the first of equals."""
    if len(found) == 1:
        return found[0][0].name
    worth = [verdict.emptiness for _, verdict in found]
    if most := max(verdict.dislike for _, verdict in found):
        worth = add_up(worth, 3, [HIGHEST - HIGHEST * verdict.dislike // most for _, verdict in found])
    if most := max(verdict.liking for _, verdict in found):
        worth = add_up(worth, 2, [HIGHEST * verdict.liking // most for _, verdict in found])
    if around is not NOBODY:
        for scores in around.scores([room for room, _ in found]):
            worth = add_up(worth, 2, scores)
    return found[worth.index(max(worth))][0].name


def add_up(worth: Iterable[int], weight: int, scores: Iterable[int]) -> list[int]:
    return [one + weight * other for one, other in zip(worth, scores, strict=True)]


def enough(nodes: int) -> int:
    """How many nodes that say yes are enough."""
    if nodes < FEWEST:
        return nodes
    return max(FEWEST, nodes * max(5, 50 - nodes // 125) // 100)


def choose(wishes: Wishes, rooms: Rooms, verdicts: Verdicts, start: int = 0, first: str | None = None) -> Choice:
    """The best node for the pod; `start` is where to begin asking, `first` a node that is taken if it will do."""
    needs = wishes.asked.needs
    if first in rooms.rooms and why_not(wishes, rooms.rooms[first], rooms) is None:
        return Choice(first)
    if needs.names is not None and not needs.names:
        return Choice(barred=CONFLICTING)
    every: list[Room] = list(rooms)
    if needs.names is not None:
        every = [room for room in every if room.name in needs.names]
    around = neighbours_of(wishes.asked, rooms)
    choice = Choice(others=NOT_NAMED if needs.names is not None else "")
    found: list[tuple[Room, Verdict]] = []
    wanted, known = enough(len(every)), verdicts.of(needs)
    is_plain = wishes.stowage is volumes.NOTHING and not around.can_object
    for room in in_turn(every, start):
        choice.asked += 1
        verdict = known.get(room.name)
        if verdict is None or verdict.version != room.version:
            verdict = known[room.name] = verdict_of(needs, room)
        refusal = verdict.refusal
        if refusal is None and not is_plain:
            refusal = why_not_here(wishes, room, around)
        if refusal is None and room.name in wishes.kept:
            refusal = why_not(wishes, room, rooms)
        if refusal is not None:
            choice.refusals[room.name] = refusal
            continue
        found.append((room, verdict))
        if len(found) >= wanted:
            break
    if found:
        choice.node = best(found, around)
    return choice


def in_turn(rooms: list[Room], start: int) -> Iterable[Room]:
    start %= max(len(rooms), 1)
    return (*rooms[start:], *rooms[:start])
