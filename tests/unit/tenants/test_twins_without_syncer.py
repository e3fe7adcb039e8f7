"""Decisions about twins of tenants without a running syncer."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tapestry.apis import keys
from tapestry.kube.objects import Object
from tapestry.kube.selectors import EVERY_NODE
from tapestry.syncer.cache_transforms import twin_view
from tapestry.syncer.leasing import LeaseRules, Policy, PolicySide
from tapestry.syncer.policies import parse_policy
from tapestry.syncer.views import Twin
from tapestry.tenants.twins_without_syncer import node_reclaim

MIDNIGHT = datetime(2024, 1, 1, tzinfo=UTC)
NODE = {"metadata": {"name": "n1", "uid": "n"}, "status": {"allocatable": {"cpu": "4", "pods": "10"}}}
KILLED = {**NODE, "metadata": {**NODE["metadata"], "annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
UNTIL_ONE = {"timeWindows": [{"start": "00:00", "end": "01:00"}]}
FORCED = {"forceReclaim": True, "gracefulReclaimPeriodSeconds": 60}


def at(minutes: float) -> datetime:
    return MIDNIGHT + timedelta(minutes=minutes)


def policy(name: str = "all", **spec: Any) -> Policy:
    metadata = {"name": name, "creationTimestamp": "2023-12-01T00:00:00Z"}
    return parse_policy({"metadata": metadata, "spec": {"cluster": "east", **spec}}, PolicySide.OPERATOR, "UTC")


def twin(name: str = "a", *, cpu: str = "1", started: str = "2024-01-01T00:10:00Z", **metadata: Any) -> Twin:
    created = {"name": name, "namespace": "t", "uid": name, "resourceVersion": "1", **metadata}
    created.setdefault("creationTimestamp", "2024-01-01T00:00:00Z")
    containers = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]
    status = {"phase": "Running", "startTime": started} if started else {"phase": "Pending"}
    return twin_view({"metadata": created, "spec": {"nodeName": "n1", "containers": containers}, "status": status})


def rules(*policies: Policy, **fields: Any) -> LeaseRules:
    return LeaseRules(operator=policies, owner=(), selector=EVERY_NODE, **fields)


def deleted(
    twins: list[Twin], given: LeaseRules, minutes: float, node: Object = NODE, withdrawn: float | None = None
) -> list[str]:
    since = at(withdrawn) if withdrawn is not None else None
    found = node_reclaim(node, twins, (), given, since, at(minutes))
    return [each["metadata"]["name"] for each in found.delete]


def test_open_node_keeps_its_twins() -> None:
    found = node_reclaim(NODE, [twin()], (), rules(policy(**UNTIL_ONE)), None, at(30))
    assert not found.delete
    assert found.requeue_at is not None, "the window ends"


@pytest.mark.parametrize(("minutes", "expected"), [(60.5, []), (61, ["a"])])
def test_forced_policy_ends_twins_at_deadline(minutes: float, expected: list[str]) -> None:
    assert deleted([twin()], rules(policy(**UNTIL_ONE, **FORCED)), minutes) == expected


def test_twins_may_finish_without_force() -> None:
    assert deleted([twin()], rules(policy(**UNTIL_ONE)), 300) == []


@pytest.mark.parametrize("started", ["", "2024-01-01T01:01:00Z"])
def test_twin_that_starts_after_the_window_ends(started: str) -> None:
    assert deleted([twin(started=started)], rules(policy(**UNTIL_ONE)), 62) == ["a"]


def test_clock_difference_reclaims_nothing() -> None:
    assert deleted([twin(started="2024-01-01T01:00:20Z")], rules(policy(**UNTIL_ONE)), 62) == []


@pytest.mark.parametrize("node", [NODE, KILLED])
def test_kill_switch_ends_all_twins(node: Object) -> None:
    given = rules(policy(), reclaim_now=node is NODE)
    assert deleted([twin("a"), twin("b", started="")], given, 5, node) == ["a", "b"]


def test_twin_that_ends_in_time_is_not_deleted_again() -> None:
    ending = twin(deletionTimestamp="2024-01-01T00:00:25Z", deletionGracePeriodSeconds=25)
    late = twin("late", deletionTimestamp="2024-01-01T01:00:00Z", deletionGracePeriodSeconds=3600)
    assert deleted([ending, late], rules(policy(), reclaim_now=True), 5) == ["late"]


def test_ended_twin_is_left_alone() -> None:
    ended = msgspec.structs.replace(twin(), requests=None)
    assert deleted([ended], rules(policy(), reclaim_now=True), 5) == []


def test_excess_over_remaining_policy_ends() -> None:
    half, whole = ({"resourceLimits": [{"resource": "cpu", "percent": each}]} for each in (50, 100))
    given = rules(policy(**UNTIL_ONE, **FORCED, **whole), policy("half", **half))
    old = twin("old", cpu="2")
    new = twin("new", cpu="2", creationTimestamp="2024-01-01T00:05:00Z")
    assert deleted([old, new], given, 60.5) == []
    assert deleted([old, new], given, 62) == ["new"]


# -- nodes that are not leased any more


def recorded(force: bool = True, grace: int = 60) -> dict[str, dict[str, str]]:
    terms = [{"policy": "operator/all", "force": force, "grace": grace}]
    return {"annotations": {keys.LAST_TERMS: msgspec.json.encode(terms).decode()}}


@pytest.mark.parametrize(("minutes", "expected"), [(10.5, []), (11, ["a"])])
def test_recorded_terms_count_from_the_withdrawal(minutes: float, expected: list[str]) -> None:
    assert deleted([twin(**recorded())], rules(), minutes, withdrawn=10) == expected


def test_withdrawal_starts_when_it_is_first_found() -> None:
    found = node_reclaim(NODE, [twin(**recorded())], (), rules(), None, at(10))
    assert not found.delete
    assert found.is_withdrawn
    assert found.requeue_at == at(11)


@pytest.mark.parametrize("annotations", [{}, recorded(force=False), {"annotations": {keys.LAST_TERMS: "?"}}])
def test_withdrawn_node_without_forced_terms_keeps_its_twins(annotations: Any) -> None:
    assert deleted([twin(**annotations)], rules(), 300, withdrawn=10) == []


def test_kill_switch_of_withdrawn_node_ends_all_twins() -> None:
    assert deleted([twin()], rules(), 5, KILLED) == ["a"]
