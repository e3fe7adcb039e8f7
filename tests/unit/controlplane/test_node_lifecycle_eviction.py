"""Tests of zone states and eviction intervals."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.controlplane.node_lifecycle import EvictionLimiter, ZoneState, eviction_interval, zone_state_of
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object

NOW = datetime(2024, 1, 1, tzinfo=UTC)


def new_node(name: str, ready: str, *, zone: str = "") -> Object:
    return {
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


@pytest.mark.parametrize(
    ("ready", "unready", "state"),
    [
        (3, 0, ZoneState.NORMAL),
        (0, 1, ZoneState.FULL_DISRUPTION),
        (1, 2, ZoneState.NORMAL),
        (2, 3, ZoneState.PARTIAL_DISRUPTION),
        (3, 3, ZoneState.NORMAL),
        (0, 0, ZoneState.NORMAL),
    ],
)
def test_zone_state_depends_on_unready_nodes(ready: int, unready: int, state: ZoneState) -> None:
    assert zone_state_of(ready, unready) is state


def test_eviction_interval_depends_on_zone_state() -> None:
    assert eviction_interval(ZoneState.NORMAL, 5) == timedelta(seconds=10)
    assert eviction_interval(ZoneState.FULL_DISRUPTION, 5) == timedelta(seconds=10)
    assert eviction_interval(ZoneState.PARTIAL_DISRUPTION, 50) is None
    assert eviction_interval(ZoneState.PARTIAL_DISRUPTION, 51) == timedelta(seconds=100)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["True", "Unknown", ""]), st.sampled_from("ab"))))
def test_zone_counts_follow_node_changes(changes: list[tuple[int, str, str]]) -> None:
    limiter, nodes = EvictionLimiter(), dict[str, Object]()
    for number, ready, zone in changes:
        name = f"n{number}"
        if ready:
            nodes[name] = new_node(name, ready, zone=zone)
            limiter.set_node(nodes[name])
        else:
            nodes.pop(name, None)
            limiter.remove_node(name)
    for zone in "ab":
        readiness = [
            is_condition_true(node, "Ready")
            for node in nodes.values()
            if node["metadata"]["labels"]["topology.kubernetes.io/zone"] == zone
        ]
        assert limiter.state(f"/{zone}") is zone_state_of(sum(readiness), len(readiness) - sum(readiness))
    assert limiter.is_fully_disrupted is not any(is_condition_true(node, "Ready") for node in nodes.values())


def test_evictions_are_reserved_one_at_a_time() -> None:
    limiter = EvictionLimiter()
    for number in range(4):
        limiter.set_node(new_node(f"n{number}", "True" if number else "Unknown"))
    assert limiter.reserve_eviction("/", NOW) == NOW
    assert limiter.reserve_eviction("/", NOW) == NOW + timedelta(seconds=10)
    assert limiter.reserve_eviction("/", NOW + timedelta(seconds=11)) <= NOW + timedelta(seconds=11)
