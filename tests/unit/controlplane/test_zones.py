"""How zones are told apart, and how fast their nodes are given up."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.controlplane.zones import State, Zones, state_of, turn_in
from tapestry.kube.conditions import is_true
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
        (3, 0, State.NORMAL),
        (0, 1, State.FULL),
        (1, 2, State.NORMAL),
        (2, 3, State.PARTIAL),
        (3, 3, State.NORMAL),
        (0, 0, State.NORMAL),
    ],
)
def test_how_a_zone_is(ready: int, silent: int, state: State) -> None:
    assert state_of(ready, silent) is state


def test_how_often_a_node_is_given_up() -> None:
    assert turn_in(State.NORMAL, 5) == timedelta(seconds=10)
    assert turn_in(State.FULL, 5) == timedelta(seconds=10)
    assert turn_in(State.PARTIAL, 50) is None
    assert turn_in(State.PARTIAL, 51) == timedelta(seconds=100)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["True", "Unknown", ""]), st.sampled_from("ab"))))
def test_zones_are_counted_as_nodes_come_change_and_go(changes: list[tuple[int, str, str]]) -> None:
    zones, there = Zones(), dict[str, Object]()
    for number, ready, zone in changes:
        name = f"n{number}"
        if ready:
            there[name] = a_node(name, ready, zone=zone)
            zones.put(there[name])
        else:
            there.pop(name, None)
            zones.drop(name)
    for zone in "ab":
        here = [
            is_true(node, "Ready")
            for node in there.values()
            if node["metadata"]["labels"]["topology.kubernetes.io/zone"] == zone
        ]
        assert zones.state(f"/{zone}") is state_of(sum(here), len(here) - sum(here))
    assert zones.is_all_silent is not any(is_true(node, "Ready") for node in there.values())


def test_turns_are_taken_one_at_a_time() -> None:
    zones = Zones()
    for number in range(4):
        zones.put(a_node(f"n{number}", "True" if number else "Unknown"))
    assert zones.turn("/", NOW) == NOW
    assert zones.turn("/", NOW) == NOW + timedelta(seconds=10)
    assert zones.turn("/", NOW + timedelta(seconds=11)) <= NOW + timedelta(seconds=11)
