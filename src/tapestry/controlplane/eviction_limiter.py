"""Rate limits for evicting pods from unready nodes, per zone.

Nodes of a zone are evicted one at a time. If most nodes of a zone are unready, a large zone evicts more slowly and a
small one not at all: the cause is then probably not the nodes.
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
"""A zone is partially disrupted from this share of unready nodes on, if more than this number are unready."""
LARGE_ZONE_SIZE = 50
"""A partially disrupted zone with more nodes than this still evicts."""
EVICTION_INTERVAL, SECONDARY_EVICTION_INTERVAL = timedelta(seconds=10), timedelta(seconds=100)
"""Time between evictions from two nodes of one zone."""


class ZoneState(Enum):
    NORMAL = "normal"
    PARTIAL_DISRUPTION = "most nodes are unready"
    FULL_DISRUPTION = "all nodes are unready"


@dataclass
class EvictionLimiter:
    """Readiness of the nodes by zone, and the time of the next eviction in each."""

    nodes: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """Zone and readiness by node name."""
    counts: Counter[tuple[str, bool]] = field(default_factory=Counter)
    next_evictions: dict[str, datetime] = field(default_factory=dict)
    """Earliest time of the next eviction, by zone."""

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
        """Return when a node of the zone may be evicted, or None. If that time has come, reserve the eviction."""
        interval = eviction_interval(self.state(zone), self.counts[zone, True] + self.counts[zone, False])
        if interval is None:
            return None
        due = self.next_evictions.get(zone, now)
        if due <= now:
            self.next_evictions[zone] = now + interval
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
    """Return the time between two evictions in a zone of that size, or None if it must not evict."""
    if state is ZoneState.PARTIAL_DISRUPTION:
        return SECONDARY_EVICTION_INTERVAL if size > LARGE_ZONE_SIZE else None
    return EVICTION_INTERVAL
