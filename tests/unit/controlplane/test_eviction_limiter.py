"""How zones are told apart, and how fast their nodes are given up."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.controlplane.eviction_limiter import EvictionLimiter, ZoneState, eviction_interval, zone_state_of
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object

NOW = datetime(2024, 1, 1, tzinfo=UTC)


def a_node(name: str, ready: str, *, zone: str = "") -> Object:
    return {
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


@pytest.mark.parametrize(
    ("ready", "silent", "state"),
    [
        (3, 0, ZoneState.NORMAL),
        (0, 1, ZoneState.FULL_DISRUPTION),
        (1, 2, ZoneState.NORMAL),
        (2, 3, ZoneState.PARTIAL_DISRUPTION),
        (3, 3, ZoneState.NORMAL),
        (0, 0, ZoneState.NORMAL),
    ],
)
def test_how_a_zone_is(ready: int, silent: int, state: ZoneState) -> None:
    assert zone_state_of(ready, silent) is state


def test_how_often_a_node_is_given_up() -> None:
    assert eviction_interval(ZoneState.NORMAL, 5) == timedelta(seconds=10)
    assert eviction_interval(ZoneState.FULL_DISRUPTION, 5) == timedelta(seconds=10)
    assert eviction_interval(ZoneState.PARTIAL_DISRUPTION, 50) is None
    assert eviction_interval(ZoneState.PARTIAL_DISRUPTION, 51) == timedelta(seconds=100)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["True", "Unknown", ""]), st.sampled_from("ab"))))
def test_zones_are_counted_as_nodes_come_change_and_go(changes: list[tuple[int, str, str]]) -> None:
    zones, there = EvictionLimiter(), dict[str, Object]()
    for number, ready, zone in changes:
        name = f"n{number}"
        if ready:
            there[name] = a_node(name, ready, zone=zone)
            zones.set_node(there[name])
        else:
            there.pop(name, None)
            zones.remove_node(name)
    for zone in "ab":
        here = [
            is_condition_true(node, "Ready")
            for node in there.values()
            if node["metadata"]["labels"]["topology.kubernetes.io/zone"] == zone
        ]
        assert zones.state(f"/{zone}") is zone_state_of(sum(here), len(here) - sum(here))
    assert zones.is_fully_disrupted is not any(is_condition_true(node, "Ready") for node in there.values())


def test_turns_are_taken_one_at_a_time() -> None:
    zones = EvictionLimiter()
    for number in range(4):
        zones.set_node(a_node(f"n{number}", "True" if number else "Unknown"))
    assert zones.reserve_eviction("/", NOW) == NOW
    assert zones.reserve_eviction("/", NOW) == NOW + timedelta(seconds=10)
    assert zones.reserve_eviction("/", NOW + timedelta(seconds=11)) <= NOW + timedelta(seconds=11)
