"""Tests of job tracking and of job failures."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.controlplane.workloads import job_failures, job_tracking, jobs
from tapestry.controlplane.workloads.job_tracking import COMPLETION_INDEX, TRACKING_FINALIZER, job_counts
from tapestry.kube.objects import Object, uid_of
from tapestry.kube.times import timestamp

NOW = datetime(2024, 1, 1, tzinfo=UTC)


def new_job(**spec: Any) -> Object:
    return {"metadata": {"name": "j", "uid": "j"}, "spec": {"template": {"spec": {}}, **spec}, "status": {}}


def new_pod(number: int, phase: str = "Running", index: int | None = None, **metadata: Any) -> Object:
    annotations = {COMPLETION_INDEX: str(index)} if index is not None else {}
    known = {"name": f"p{number}", "uid": f"u{number}", "namespace": "n", "creationTimestamp": timestamp(NOW)}
    return {
        "metadata": {**known, "finalizers": [TRACKING_FINALIZER], "annotations": annotations, **metadata},
        "status": {"phase": phase},
    }


def without_finalizers(pod: Object) -> Object:
    return {**pod, "metadata": {**pod["metadata"], "finalizers": []}}


@st.composite
def pod_phases(draw: st.DrawFn) -> list[str]:
    return draw(st.lists(st.sampled_from(["Succeeded", "Failed", "Running"]), max_size=8))


cuts = st.lists(st.integers(0, 9), min_size=1, max_size=12)


@given(pod_phases(), cuts, st.booleans())
def test_interrupted_reconcile_counts_each_pod_once(phases: list[str], interruptions: list[int], indexed: bool) -> None:
    """A reconcile writes the status, then removes finalizers one by one. It may stop before any of these."""
    spec = {"completions": 9, "completionMode": "Indexed"} if indexed else {"completions": 9}
    job = new_job(**spec)
    pods = {number: new_pod(number, phase, number if indexed else None) for number, phase in enumerate(phases)}
    expected = {how: phases.count(how) for how in ("Succeeded", "Failed")}
    for cut in (*interruptions, 99, 99):
        counts = job_counts(job, list(pods.values()))
        assert (counts.successes, counts.failures) == (expected["Succeeded"], expected["Failed"])
        if cut == 0:
            continue  # interrupted before the status update
        status = jobs.job_status(job, list(pods.values()), counts, None, NOW)
        job = {**job, "status": status}
        done = jobs.uncounted_uids(status) | counts.untracked_uids
        for _, number in zip(range(cut - 1), [each for each in pods if uid_of(pods[each]) in done], strict=False):
            pods[number] = without_finalizers(pods[number])
    assert job["status"].get("succeeded", 0) == expected["Succeeded"]
    assert job["status"].get("failed", 0) == expected["Failed"]
    assert not job["status"]["uncountedTerminatedPods"]


@given(pod_phases(), st.integers(0, 8))
def test_recorded_pods_count_after_deletion(phases: list[str], deleted: int) -> None:
    job = new_job(completions=9)
    pods = [new_pod(number, phase) for number, phase in enumerate(phases)]
    counts = job_counts(job, pods)
    job = {**job, "status": jobs.job_status(job, pods, counts, None, NOW)}
    remaining = [*pods[deleted:], *(pod for pod in pods[:deleted] if pod["status"]["phase"] == "Running")]
    after = job_counts(job, remaining)
    assert (after.successes, after.failures) == (counts.successes, counts.failures)


def test_index_counts_once_for_several_pods() -> None:
    job = new_job(completions=2, completionMode="Indexed")
    pods = [new_pod(0, "Succeeded", 0), new_pod(1, "Succeeded", 0), new_pod(2, "Succeeded", 7)]
    counts = job_counts(job, pods)
    assert (counts.successes, counts.completed_indexes) == (1, {0})
    assert counts.untracked_uids == {"u0", "u1", "u2"}


def test_terminating_pod_fails_unless_policy_waits() -> None:
    deleting = new_pod(0, deletionTimestamp=timestamp(NOW))
    assert job_counts(new_job(completions=1), [deleting]).failures == 1
    assert job_counts(new_job(completions=1, podReplacementPolicy="Failed"), [deleting]).failures == 0
    assert job_counts(new_job(completions=1, podFailurePolicy={"rules": []}), [deleting]).failures == 0


def new_terminated_pod(code: int, minutes: float, number: int = 0) -> Object:
    moment = timestamp(NOW + timedelta(minutes=minutes))
    state = {"terminated": {"exitCode": code, "finishedAt": moment}}
    pod = new_pod(number, "Failed" if code else "Succeeded")
    return {**pod, "status": {**pod["status"], "containerStatuses": [{"name": "c", "state": state}]}}


@pytest.mark.parametrize(
    ("pods", "seconds"),
    [
        ([], None),
        ([new_terminated_pod(0, 0)], None),
        ([new_terminated_pod(1, 0)], 10),
        ([new_terminated_pod(1, 0), new_terminated_pod(1, 0)], 20),
        ([new_terminated_pod(1, 0)] * 4, 80),
        ([new_terminated_pod(1, 0)] * 40, 600),
        (
            [new_terminated_pod(1, -2), new_terminated_pod(0, -1), new_terminated_pod(1, 0)],
            10,
        ),  # a success resets the backoff
        ([new_terminated_pod(1, -1), new_terminated_pod(0, 0)], None),
    ],
)
def test_backoff_doubles_up_to_maximum(pods: list[Object], seconds: int | None) -> None:
    expected = NOW + timedelta(seconds=seconds) if seconds is not None else None
    assert job_failures.backoff_until(pods) == expected


RULES = [
    {"action": "FailJob", "onExitCodes": {"containerName": "other", "operator": "In", "values": [1]}},
    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [1, 2]}},
]


@pytest.mark.parametrize(
    ("code", "conditions", "action"),
    [
        (1, [], "Count"),
        (3, [], "FailJob"),
        (3, [{"type": "DisruptionTarget", "status": "True"}], "Ignore"),
        (2, [{"type": "DisruptionTarget", "status": "False"}], "Count"),
    ],
)
def test_first_matching_rule_applies(code: int, conditions: list[Object], action: str) -> None:
    pod = new_terminated_pod(code, 0)
    pod["status"]["conditions"] = conditions
    assert job_failures.failure_action(new_job(podFailurePolicy={"rules": RULES}), pod) == action


def test_outcome_names_matching_condition() -> None:
    rules = [{"action": "FailJob", "onPodConditions": [{"type": "ConfigIssue", "status": "True"}]}]
    pod = new_terminated_pod(1, 0)
    pod["status"]["conditions"] = [{"type": "ConfigIssue", "status": "True"}]
    outcome = job_tracking.failure_policy_outcome(new_job(podFailurePolicy={"rules": rules}), [pod])
    assert outcome is not None
    assert outcome.message == "Pod n/p0 has condition ConfigIssue matching FailJob rule at index 0"


@given(st.sets(st.integers(0, 60)))
def test_indexes_round_trip_through_text(indexes: set[int]) -> None:
    assert set(job_tracking.parse_indexes(job_tracking.format_indexes(indexes))) == indexes
