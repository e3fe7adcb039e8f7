"""Zones: how the parts of a cluster are, and whose turn it is to be given up in each.

Nodes that are silent are given up one at a time.  Where most of a zone is silent, slower, or, in a small one, not at
all: likely it is not the nodes that are at fault.
"""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from tapestry.kube.conditions import is_true
from tapestry.kube.objects import Object, labels_of, name_of

EXEMPT = "node.kubernetes.io/exclude-disruption"
ZONES = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")
MOST_SILENT, FEW = 0.55, 2
"""A zone is silent for the most part from that share of its nodes on, unless these are but a few."""
LARGE = 50
"""A zone with more nodes than that gives up some of them all the same."""
TURN, SLOW_TURN = timedelta(seconds=10), timedelta(seconds=100)
"""Time between two nodes of a zone that are given up."""


class State(Enum):
    NORMAL = "normal"
    PARTIAL = "most of it is silent"
    FULL = "all of it is silent"


@dataclass
class Zones:
    """How the parts of the cluster are, and whose turn it is in each."""

    known: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """By node: its zone, and whether it is ready."""
    counts: Counter[tuple[str, bool]] = field(default_factory=Counter)
    turns: dict[str, datetime] = field(default_factory=dict)
    """By zone, when the next node may be given up."""

    def put(self, node: Object) -> None:
        self.drop(name_of(node))
        if EXEMPT not in labels_of(node):
            entry = self.known[name_of(node)] = zone_of(node), is_true(node, "Ready")
            self.counts[entry] += 1

    def drop(self, name: str) -> None:
        if (entry := self.known.pop(name, None)) is not None:
            self.counts[entry] -= 1

    def state(self, zone: str) -> State:
        return state_of(self.counts[zone, True], self.counts[zone, False])

    @property
    def is_all_silent(self) -> bool:
        return not any(number for (_, is_ready), number in self.counts.items() if is_ready)

    def turn(self, zone: str, now: datetime) -> datetime | None:
        """When a node of the zone may be given up, which is taken if it is now; None where none may be."""
        pause = turn_in(self.state(zone), self.counts[zone, True] + self.counts[zone, False])
        if pause is None:
            return None
        due = self.turns.get(zone, now)
        if due <= now:
            self.turns[zone] = now + pause
        return due


def zone_of(node: Object) -> str:
    return "/".join(labels_of(node).get(label, "") for label in ZONES)


def state_of(ready: int, silent: int) -> State:
    if not ready and silent:
        return State.FULL
    if silent > FEW and silent / (silent + ready) >= MOST_SILENT:
        return State.PARTIAL
    return State.NORMAL


def turn_in(state: State, size: int) -> timedelta | None:
    """The time between two nodes that are given up in a zone of that size; None where none is."""
    if state is State.PARTIAL:
        return SLOW_TURN if size > LARGE else None
    return TURN
