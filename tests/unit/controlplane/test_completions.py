"""Counting pods that have ended: each once, whoever is interrupted wherever."""

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


def a_job(**spec: Any) -> Object:
    return {"metadata": {"name": "j", "uid": "j"}, "spec": {"template": {"spec": {}}, **spec}, "status": {}}


def a_pod(number: int, phase: str = "Running", index: int | None = None, **metadata: Any) -> Object:
    said = {COMPLETION_INDEX: str(index)} if index is not None else {}
    known = {"name": f"p{number}", "uid": f"u{number}", "namespace": "n", "creationTimestamp": timestamp(NOW)}
    return {
        "metadata": {**known, "finalizers": [TRACKING_FINALIZER], "annotations": said, **metadata},
        "status": {"phase": phase},
    }


def freed(pod: Object) -> Object:
    return {**pod, "metadata": {**pod["metadata"], "finalizers": []}}


@st.composite
def ends(draw: st.DrawFn) -> list[str]:
    return draw(st.lists(st.sampled_from(["Succeeded", "Failed", "Running"]), max_size=8))


cuts = st.lists(st.integers(0, 9), min_size=1, max_size=12)


@given(ends(), cuts, st.booleans())
def test_every_pod_counts_once_wherever_a_pass_is_cut_short(phases: list[str], where: list[int], indexed: bool) -> None:
    """A pass tells the status, then frees one pod after the other; it may end before any of these."""
    spec = {"completions": 9, "completionMode": "Indexed"} if indexed else {"completions": 9}
    job = a_job(**spec)
    pods = {number: a_pod(number, phase, number if indexed else None) for number, phase in enumerate(phases)}
    true = {how: phases.count(how) for how in ("Succeeded", "Failed")}
    for cut in (*where, 99, 99):
        tally = job_counts(job, list(pods.values()))
        assert (tally.successes, tally.failures) == (true["Succeeded"], true["Failed"])
        if cut == 0:
            continue  # it died before it told anybody
        status = jobs.job_status(job, list(pods.values()), tally, None, NOW)
        job = {**job, "status": status}
        done = jobs.uncounted_uids(status) | tally.untracked_uids
        for _, number in zip(range(cut - 1), [each for each in pods if uid_of(pods[each]) in done], strict=False):
            pods[number] = freed(pods[number])
    assert job["status"].get("succeeded", 0) == true["Succeeded"]
    assert job["status"].get("failed", 0) == true["Failed"]
    assert not job["status"]["uncountedTerminatedPods"]


@given(ends(), st.integers(0, 8))
def test_pods_that_are_gone_still_count_once_they_were_written_down(phases: list[str], gone: int) -> None:
    job = a_job(completions=9)
    pods = [a_pod(number, phase) for number, phase in enumerate(phases)]
    tally = job_counts(job, pods)
    job = {**job, "status": jobs.job_status(job, pods, tally, None, NOW)}
    left = [*pods[gone:], *(pod for pod in pods[:gone] if pod["status"]["phase"] == "Running")]
    after = job_counts(job, left)
    assert (after.successes, after.failures) == (tally.successes, tally.failures)


def test_an_index_counts_once_however_many_pods_it_has() -> None:
    job = a_job(completions=2, completionMode="Indexed")
    pods = [a_pod(0, "Succeeded", 0), a_pod(1, "Succeeded", 0), a_pod(2, "Succeeded", 7)]
    tally = job_counts(job, pods)
    assert (tally.successes, tally.completed_indexes) == (1, {0})
    assert tally.untracked_uids == {"u0", "u1", "u2"}


def test_a_pod_that_is_going_fails_unless_the_job_wants_to_see_its_end() -> None:
    going = a_pod(0, deletionTimestamp=timestamp(NOW))
    assert job_counts(a_job(completions=1), [going]).failures == 1
    assert job_counts(a_job(completions=1, podReplacementPolicy="Failed"), [going]).failures == 0
    assert job_counts(a_job(completions=1, podFailurePolicy={"rules": []}), [going]).failures == 0


def ended(code: int, minutes: float, number: int = 0) -> Object:
    moment = timestamp(NOW + timedelta(minutes=minutes))
    state = {"terminated": {"exitCode": code, "finishedAt": moment}}
    pod = a_pod(number, "Failed" if code else "Succeeded")
    return {**pod, "status": {**pod["status"], "containerStatuses": [{"name": "c", "state": state}]}}


@pytest.mark.parametrize(
    ("pods", "seconds"),
    [
        ([], None),
        ([ended(0, 0)], None),
        ([ended(1, 0)], 10),
        ([ended(1, 0), ended(1, 0)], 20),
        ([ended(1, 0)] * 4, 80),
        ([ended(1, 0)] * 40, 600),
        ([ended(1, -2), ended(0, -1), ended(1, 0)], 10),  # a success forgives what was before
        ([ended(1, -1), ended(0, 0)], None),
    ],
)
def test_the_pause_after_failures_doubles_up_to_a_limit(pods: list[Object], seconds: int | None) -> None:
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
def test_the_first_rule_that_matches_counts(code: int, conditions: list[Object], action: str) -> None:
    pod = ended(code, 0)
    pod["status"]["conditions"] = conditions
    assert job_failures.failure_action(a_job(podFailurePolicy={"rules": RULES}), pod) == action


def test_a_rule_says_which_condition_ended_the_job() -> None:
    rules = [{"action": "FailJob", "onPodConditions": [{"type": "ConfigIssue", "status": "True"}]}]
    pod = ended(1, 0)
    pod["status"]["conditions"] = [{"type": "ConfigIssue", "status": "True"}]
    end = job_tracking.failure_policy_outcome(a_job(podFailurePolicy={"rules": rules}), [pod])
    assert end is not None
    assert end.message == "Pod n/p0 has condition ConfigIssue matching FailJob rule at index 0"


@given(st.sets(st.integers(0, 60)))
def test_indexes_are_written_as_they_are_read(indexes: set[int]) -> None:
    assert set(job_tracking.parse_indexes(job_tracking.format_indexes(indexes))) == indexes
