from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object
from tapestry.manager.connectivity import ProbeResult
from tapestry.manager.status import (
    binding_conditions,
    binding_status,
    connected_condition,
    status_events,
    syncer_ready_condition,
)
from tapestry.manager.validation import BindingError

NOW = datetime(2024, 1, 1, tzinfo=UTC)
WEEK = timedelta(days=7)
FINDING = ProbeResult("v1.34.3", "one", (), None)


def new_binding(*conditions: Object) -> Object:
    return {"metadata": {"name": "east", "generation": 4}, "status": {"conditions": list(conditions)}}


def new_condition(type: str, status: str, reason: str, message: str = "") -> Object:
    return {"type": type, "status": status, "reason": reason, "message": message}


def new_deployment(replicas: int, available: int, *, generation: int = 2, observed: int = 2) -> Object:
    status = {"availableReplicas": available, "observedGeneration": observed}
    return {"metadata": {"generation": generation}, "spec": {"replicas": replicas}, "status": status}


def conditions_of(
    fault: BindingError | None, finding: ProbeResult | None = FINDING, deployment: Object | None = None
) -> dict[str, str]:
    return {each["type"]: each["status"] for each in binding_conditions(fault, finding, deployment, NOW)}


def test_stages_before_the_error_passed() -> None:
    assert conditions_of(None, deployment=new_deployment(2, 1)) == {
        "Connected": "True",
        "Permitted": "True",
        "SyncerReady": "True",
        "Ready": "True",
    }
    expected = {
        "SyncerReady": {"Connected": "True", "Permitted": "True", "SyncerReady": "False", "Ready": "False"},
        "Permitted": {"Connected": "True", "Permitted": "False", "Ready": "False"},
        "Connected": {"Connected": "False", "Ready": "False"},
        "": {"Ready": "False"},
    }
    for condition, conditions in expected.items():
        assert conditions_of(BindingError("Word", "words", condition=condition)) == conditions


def test_syncer_reasons_are_not_overwritten() -> None:
    theirs = new_condition("Permitted", "False", keys.PRIORITY_CLASS_MISSING)
    for fault in (None, BindingError("PermissionsMissing", "words", condition="Permitted")):
        found = binding_status(new_binding(theirs), "Ready", binding_conditions(fault, FINDING, None, NOW), NOW)
        assert find_condition(found["conditions"], "Permitted") is theirs
        assert find_condition(found["conditions"], "Connected") is not None
    ours = new_condition("Permitted", "False", "PermissionsMissing")
    found = binding_status(new_binding(ours), "Ready", binding_conditions(None, FINDING, None, NOW), NOW)
    assert (find_condition(found["conditions"], "Permitted") or {})["status"] == "True"


def test_conditions_have_observed_generation() -> None:
    theirs = new_condition("Leasing", "True", "Leasing")
    found = binding_status(new_binding(theirs), "Ready", [new_condition("Ready", "True", "Ready")], NOW)
    assert found["conditions"][0] is theirs
    assert find_condition(found["conditions"], "Ready") == {
        **new_condition("Ready", "True", "Ready"),
        "observedGeneration": 4,
        "lastTransitionTime": "2024-01-01T00:00:00Z",
    }
    assert (found["phase"], found["observedGeneration"]) == ("Ready", 4)


@pytest.mark.parametrize(
    ("left", "reason"),
    [
        (timedelta(days=7, seconds=1), "Connected"),
        (timedelta(days=7), "CredentialsExpire"),
        (timedelta(days=-1), "CredentialsExpire"),
    ],
)
def test_credential_expiry_is_warned_for_a_week(left: timedelta, reason: str) -> None:
    found = connected_condition(ProbeResult("v1", "one", (), NOW + left), NOW)
    assert (found["status"], found["reason"]) == ("True", reason)


def test_last_day_is_reported_again() -> None:
    before, after = (
        connected_condition(ProbeResult("v1", "one", (), NOW + timedelta(days=1)), NOW - ago)
        for ago in (WEEK / 2, 0 * WEEK)
    )
    assert reasons([before], [after]) == [(True, "CredentialsExpire")]


@pytest.mark.parametrize(
    ("deployment", "status", "message"),
    [
        (new_deployment(2, 1), "True", "1 of 2 replicas are available"),
        (new_deployment(2, 0), "False", "0 of 2 replicas are available"),
        (new_deployment(2, 2, observed=1), "False", "the Deployment is not rolled out yet"),
        ({"metadata": {}, "spec": {}}, "False", "0 of 1 replicas are available"),
    ],
)
def test_syncer_ready_follows_the_deployment(deployment: Object, status: str, message: str) -> None:
    found = syncer_ready_condition(deployment)
    assert (found["status"], found["message"]) == (status, message)


def reasons(before: list[Object], after: list[Object]) -> list[tuple[bool, str]]:
    return [(is_warning, reason) for is_warning, reason, _ in status_events(new_binding(*before), new_binding(*after))]


READY = new_condition("Ready", "True", "Ready")
LOST = [
    new_condition("Connected", "False", "ConnectivityFailed"),
    new_condition("Ready", "False", "ConnectivityFailed"),
]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([], [READY], [(False, "Ready")]),
        ([READY], [READY], []),
        ([READY], LOST, [(True, "ConnectivityFailed")]),
        (LOST, [new_condition("Connected", "True", "Connected"), READY], [(False, "Ready")]),
        (LOST, [LOST[0], {**LOST[1], "message": "another"}], [(True, "ConnectivityFailed")]),
        ([], [new_condition("SyncerReady", "False", "SyncerUnavailable")], []),
        ([], [new_condition("Leasing", "False", "NoPolicy")], []),
        (
            [new_condition("SyncerReady", "True", "SyncerAvailable", "1 of 2")],
            [new_condition("SyncerReady", "True", "SyncerAvailable", "2 of 2")],
            [],
        ),
        (
            [new_condition("SyncerReady", "True", "SyncerAvailable")],
            [new_condition("SyncerReady", "False", "SyncerUnavailable")],
            [(True, "SyncerUnavailable")],
        ),
        ([READY], [new_condition("Ready", "False", "WaitingSyncerCleanup")], [(False, "WaitingSyncerCleanup")]),
        ([], [new_condition("Connected", "True", "CredentialsExpire")], [(True, "CredentialsExpire")]),
    ],
)
def test_each_change_is_one_event(before: list[Object], after: list[Object], expected: list[Any]) -> None:
    assert reasons(before, after) == expected
