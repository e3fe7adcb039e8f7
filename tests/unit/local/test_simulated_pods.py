"""Status of simulated pods over time."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.conditions import find_condition, is_condition_true
from tapestry.kube.objects import Object, value_at
from tapestry.kube.times import timestamp
from tapestry.local.simulated_pods import deletion_time, final_status, lifecycle_of, status_update
from tapestry.local.statuses import PodAddresses

from .pods import new_pod, simulated

BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)
PLACE = PodAddresses("127.64.0.1", "10.128.0.1")
PHASES = ("Pending", "Running", "Succeeded", "Failed")


def seconds(number: float) -> datetime:
    return BEGIN + timedelta(seconds=number)


def at(pod: Object, *moments: float) -> Object:
    """Return the pod after updates at each of these seconds."""
    for moment in moments:
        status, _ = status_update(pod, seconds(moment), PLACE)
        if status is not None:
            pod = {**pod, "status": {**(pod.get("status") or {}), **status}}
    return pod


def updates(pod: Object, until: float) -> list[Object]:
    """Return the pod after each update, at the times that the updates request."""
    found, moment = [], BEGIN
    while True:
        status, again = status_update(pod, moment, PLACE)
        if status is not None:
            pod = {**pod, "status": {**(pod.get("status") or {}), **status}}
            found.append(pod)
        if again is None or again > seconds(until):
            return found
        assert again > moment
        moment = again


def phases(pods: Sequence[Object]) -> list[str]:
    return [pod["status"]["phase"] for pod in pods]


def first_container(pod: Object) -> Object:
    found: Object = pod["status"]["containerStatuses"][0]
    return found


@pytest.mark.parametrize("split", [{"command": ["sleep", "60"]}, {"command": ["sleep"], "args": ["60"]}])
def test_sleeping_pod_ends_after_its_sleep(split: Object) -> None:
    spec_fields = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox", **split}]}
    assert phases([at(new_pod(**spec_fields), 0, 59), at(new_pod(**spec_fields), 0, 60)]) == ["Running", "Succeeded"]
    assert phases([at(new_pod(annotations=simulated(ends_after="10s"), **spec_fields), 0, 10)]) == ["Succeeded"]


def test_pod_without_annotations_runs_forever() -> None:
    [pod] = updates(new_pod(), until=1e9)
    assert pod["status"]["phase"] == "Running"
    assert is_condition_true(pod, "Ready")
    assert pod["status"]["podIP"] == PLACE.pod_ip
    assert first_container(pod)["state"] == {"running": {"startedAt": timestamp(BEGIN)}}


def test_unchanged_status_is_not_reported_again() -> None:
    pod = at(new_pod(), 0)
    assert status_update(pod, seconds(100), PLACE) == (None, None)


def test_null_times_are_no_change() -> None:
    """kube-apiserver returns missing times as null."""
    pod = at(new_pod(), 0)
    with_nulls = [{**each, "lastProbeTime": None} for each in pod["status"]["conditions"]]
    pod = {**pod, "status": {**pod["status"], "conditions": with_nulls}}
    assert status_update(pod, seconds(100), PLACE) == (None, None)


def test_pod_starts_and_becomes_ready_as_annotated() -> None:
    found = updates(new_pod(annotations=simulated(starts_after="2s", ready_after="5s")), until=60)
    assert phases(found) == ["Pending", "Running", "Running"]
    assert [is_condition_true(pod, "Ready") for pod in found] == [False, False, True]
    assert [find_condition(pod["status"]["conditions"], "Ready")["lastTransitionTime"] for pod in found] == [
        timestamp(seconds(moment)) for moment in (0, 0, 7)
    ]
    assert "podIP" not in found[0]["status"]
    assert find_condition(found[1]["status"]["conditions"], "Ready")["message"] == "containers with unready status: [c]"


@pytest.mark.parametrize(
    ("policy", "code", "phase"),
    [("Never", "0", "Succeeded"), ("Never", "3", "Failed"), ("OnFailure", "0", "Succeeded")],
)
def test_pod_ends_as_annotated(policy: str, code: str, phase: str) -> None:
    annotations = simulated(ends_after="30s", exit_code=code)
    found = updates(new_pod(annotations=annotations, restartPolicy=policy), until=1e6)
    assert phases(found) == ["Running", phase]
    ended = first_container(found[-1])["state"]["terminated"]
    assert (ended["exitCode"], ended["finishedAt"]) == (int(code), timestamp(seconds(30)))
    assert not is_condition_true(found[-1], "Ready")


def test_pod_without_restart_ends_by_default() -> None:
    assert phases(updates(new_pod(restartPolicy="Never"), until=10)) == ["Running", "Succeeded"]
    never = new_pod(annotations=simulated(ends_after="never"), restartPolicy="Never")
    assert phases(updates(never, until=1e6)) == ["Running"]


@pytest.mark.parametrize(("policy", "code"), [("Always", "0"), ("Always", "1"), ("OnFailure", "1")])
def test_restarted_pod_backs_off(policy: str, code: str) -> None:
    annotations = simulated(ends_after="5s", exit_code=code)
    found = updates(new_pod(annotations=annotations, restartPolicy=policy), until=60)
    assert set(phases(found)) == {"Running"}
    states = [next(iter(first_container(pod)["state"])) for pod in found]
    assert states == ["running", "waiting", "running", "waiting", "running", "waiting"]
    assert [first_container(pod)["restartCount"] for pod in found] == [0, 0, 1, 1, 2, 2]
    # ran until 5, 20 and 45 seconds; the backoff was 10 and 20 seconds
    last = [value_at(first_container(pod), "lastState", "terminated", "finishedAt") for pod in found]
    ends = [timestamp(seconds(moment)) for moment in (5, 20, 45)]
    assert last == [None, ends[0], ends[0], ends[1], ends[1], ends[2]]
    assert not is_condition_true(found[1], "Ready")
    assert is_condition_true(found[2], "Ready")


def test_readiness_gate_delays_ready() -> None:
    pod = at(new_pod(readinessGates=[{"conditionType": "example.com/in"}]), 0)
    assert is_condition_true(pod, "ContainersReady")
    assert find_condition(pod["status"]["conditions"], "Ready")["reason"] == "ReadinessGatesNotReady"
    opened = {"type": "example.com/in", "status": "True"}
    pod = {**pod, "status": {**pod["status"], "conditions": [*pod["status"]["conditions"], opened]}}
    pod = at(pod, 5)
    assert is_condition_true(pod, "Ready")
    assert opened in pod["status"]["conditions"]


def test_init_containers_succeed_first_and_sidecars_continue() -> None:
    init = [{"name": "first", "image": "i"}, {"name": "beside", "image": "i", "restartPolicy": "Always"}]
    annotations = simulated(starts_after="2s", ends_after="10s")
    found = updates(new_pod(annotations=annotations, initContainers=init, restartPolicy="Never"), until=60)
    assert phases(found) == ["Pending", "Running", "Succeeded"]
    states = [[next(iter(each["state"])) for each in pod["status"]["initContainerStatuses"]] for pod in found]
    assert states == [["waiting", "waiting"], ["terminated", "running"], ["terminated", "terminated"]]
    assert [is_condition_true(pod, "Initialized") for pod in found] == [False, True, True]
    assert first_container(found[0])["state"]["waiting"]["reason"] == "PodInitializing"


def test_ephemeral_container_runs_from_first_sight() -> None:
    pod = at(new_pod(), 0)
    pod = {**pod, "spec": {**pod["spec"], "ephemeralContainers": [{"name": "debug", "image": "sh"}]}}
    pod = at(pod, 7, 9)
    [values] = pod["status"]["ephemeralContainerStatuses"]
    assert values["state"] == {"running": {"startedAt": timestamp(seconds(7))}}
    assert is_condition_true(pod, "Ready")


def test_pod_fails_after_active_deadline() -> None:
    found = updates(new_pod(activeDeadlineSeconds=20), until=60)
    assert phases(found) == ["Running", "Failed"]
    assert found[-1]["status"]["reason"] == "DeadlineExceeded"
    assert first_container(found[-1])["state"]["terminated"]["exitCode"] == 143


def test_allocated_resources_follow_requests() -> None:
    resources = {"requests": {"cpu": "1"}}
    pod = at(new_pod(containers=[{"name": "c", "image": "i", "resources": resources}]), 0)
    assert first_container(pod)["allocatedResources"] == {"cpu": "1"}
    more = {"requests": {"cpu": "2"}}
    pod = at({**pod, "spec": {**pod["spec"], "containers": [{"name": "c", "image": "i", "resources": more}]}}, 1)
    assert first_container(pod)["resources"] == more


def test_invalid_annotations_are_ignored() -> None:
    nonsense = simulated(starts_after="soon", ready_after="-3s", ends_after="later", exit_code="-1")
    assert lifecycle_of(new_pod(annotations=nonsense))[:3] == lifecycle_of(new_pod())[:3]
    assert lifecycle_of(new_pod(annotations=nonsense)).code == 1
    assert lifecycle_of(new_pod(annotations=simulated(exit_code="4000"))).code == 255


# -- deletion


def deleted(pod: Object, grace: int, at: float = 0) -> Object:
    times = {"deletionTimestamp": timestamp(seconds(at + grace)), "deletionGracePeriodSeconds": grace}
    return {**pod, "metadata": {**pod["metadata"], **times}}


@pytest.mark.parametrize(("stops", "grace", "due"), [("0s", 30, 5), ("3s", 30, 8), ("60s", 30, 35), ("3s", 0, 5)])
def test_deleted_pod_ends_within_grace(stops: str, grace: int, due: float) -> None:
    assert deletion_time(deleted(new_pod(annotations=simulated(stops_after=stops)), grace, at=5)) == seconds(due)


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_containers_terminate_before_removal(policy: str) -> None:
    pod = deleted(at(new_pod(restartPolicy=policy), 0), 30)
    status = final_status(pod, seconds(3), PLACE)
    assert status is not None
    assert status["phase"] == "Failed"
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
    assert final_status({**pod, "status": status}, seconds(4), PLACE) is None


def test_pod_deleted_before_start_never_ran() -> None:
    status = final_status(deleted(new_pod(), 30), seconds(0), PLACE)
    assert status is not None
    assert status["phase"] == "Failed"


def test_ended_pod_has_no_update() -> None:
    found = updates(new_pod(restartPolicy="Never"), until=10)
    assert final_status(deleted(found[-1], 30), seconds(20), PLACE) is None
    assert status_update(found[-1], seconds(20), PLACE) == (None, None)


# -- any lifecycle

spans = st.sampled_from(["0s", "300ms", "1s", "7s", "90s"])
courses = st.fixed_dictionaries(
    {},
    optional={
        "starts_after": spans,
        "ready_after": spans,
        "ends_after": st.one_of(spans, st.just("never")),
        "exit_code": st.sampled_from(["0", "1", "137"]),
    },
)
inits = st.lists(st.sampled_from(["once", "sidecar"]), max_size=2)


@given(
    courses,
    st.sampled_from(["Always", "OnFailure", "Never"]),
    inits,
    st.sampled_from([None, 1, 40]),
    st.lists(st.floats(0, 2000), max_size=12).map(sorted),
)
def test_phases_never_go_back_and_restarts_only_grow(
    values: dict[str, str], policy: str, init: list[str], deadline: int | None, moments: list[float]
) -> None:
    containers = [
        {"name": f"i{number}", "image": "i", **({"restartPolicy": "Always"} if sort == "sidecar" else {})}
        for number, sort in enumerate(init)
    ]
    spec = {"restartPolicy": policy, "initContainers": containers, "activeDeadlineSeconds": deadline}
    pod, phase, restarts = new_pod(annotations=simulated(**values), **spec), 0, 0
    for moment in moments:
        pod = at(pod, moment)
        status = pod["status"]
        assert PHASES.index(status["phase"]) >= phase
        assert phase < 2 or status["phase"] == PHASES[phase]
        phase, before = PHASES.index(status["phase"]), restarts
        restarts = first_container(pod)["restartCount"]
        assert restarts >= before
        assert is_condition_true(pod, "Ready") <= ("running" in first_container(pod)["state"])
        assert status_update(pod, seconds(moment), PLACE).status is None
