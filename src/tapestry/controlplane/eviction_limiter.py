"""Zones: how the parts of a cluster are, and whose turn it is to be given up in each.

Nodes that are silent are given up one at a time.  Where most of a zone is silent, slower, or, in a small one, not at
all: likely it is not the nodes that are at fault.
"""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object, labels_of, name_of

EXCLUDE_DISRUPTION_LABEL = "node.kubernetes.io/exclude-disruption"
ZONE_LABELS = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")
UNHEALTHY_ZONE_THRESHOLD, TOLERATED_UNREADY_NODES = 0.55, 2
"""A zone is silent for the most part from that share of its nodes on, unless these are but a few."""
LARGE_ZONE_SIZE = 50
"""A zone with more nodes than that gives up some of them all the same."""
EVICTION_INTERVAL, SECONDARY_EVICTION_INTERVAL = timedelta(seconds=10), timedelta(seconds=100)
"""Time between two nodes of a zone that are given up."""


class ZoneState(Enum):
    NORMAL = "normal"
    PARTIAL_DISRUPTION = "most of it is silent"
    FULL_DISRUPTION = "all of it is silent"


@dataclass
class EvictionLimiter:
    """How the parts of the cluster are, and whose turn it is in each."""

    nodes: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """By node: its zone, and whether it is ready."""
    counts: Counter[tuple[str, bool]] = field(default_factory=Counter)
    next_evictions: dict[str, datetime] = field(default_factory=dict)
    """By zone, when the next node may be given up."""

    def set_node(self, node: Object) -> None:
        self.remove_node(name_of(node))
        if EXCLUDE_DISRUPTION_LABEL not in labels_of(node):
            entry = self.nodes[name_of(node)] = zone_of(node), is_condition_true(node, "Ready")
            self.counts[entry] += 1

    def remove_node(self, name: str) -> None:
        if (entry := self.nodes.pop(name, None)) is not None:
            self.counts[entry] -= 1

    def state(self, zone: str) -> ZoneState:
        return zone_state_of(self.counts[zone, True], self.counts[zone, False])

    @property
    def is_fully_disrupted(self) -> bool:
        return not any(number for (_, is_ready), number in self.counts.items() if is_ready)

    def reserve_eviction(self, zone: str, now: datetime) -> datetime | None:
        """When a node of the zone may be given up, which is taken if it is now; None where none may be."""
        pause = eviction_interval(self.state(zone), self.counts[zone, True] + self.counts[zone, False])
        if pause is None:
            return None
        due = self.next_evictions.get(zone, now)
        if due <= now:
            self.next_evictions[zone] = now + pause
        return due


def zone_of(node: Object) -> str:
    return "/".join(labels_of(node).get(label, "") for label in ZONE_LABELS)


def zone_state_of(ready: int, unready: int) -> ZoneState:
    if not ready and unready:
        return ZoneState.FULL_DISRUPTION
    if unready > TOLERATED_UNREADY_NODES and unready / (unready + ready) >= UNHEALTHY_ZONE_THRESHOLD:
        return ZoneState.PARTIAL_DISRUPTION
    return ZoneState.NORMAL


def eviction_interval(state: ZoneState, size: int) -> timedelta | None:
    """The time between two nodes that are given up in a zone of that size; None where none is."""
    if state is ZoneState.PARTIAL_DISRUPTION:
        return SECONDARY_EVICTION_INTERVAL if size > LARGE_ZONE_SIZE else None
    return EVICTION_INTERVAL
