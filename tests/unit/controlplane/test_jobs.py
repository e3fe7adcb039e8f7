"""Jobs at work in a cluster: pods that are to end."""

from itertools import pairwise
from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.client.options import Propagation
from tapestry.controlplane.workloads import owned_pods
from tapestry.kube.conditions import find_condition, is_condition_true
from tapestry.kube.objects import Object, annotations_of, name_of, object_named, value_at
from tapestry.kube.resources import EVENTS, JOBS, PODS
from tapestry.kube.times import parse_time

from .worlds import in_a_world, live_pods, settled, wait_until

WORK = object_named("work", "default")


def a_job(annotations: dict[str, str] | None = None, policy: str = "Never", **spec: Any) -> Object:
    template = {
        "metadata": {"annotations": {"simulated.tapestry.io/ends-after": "5s", **(annotations or {})}},
        "spec": {"restartPolicy": policy, "containers": [{"name": "c", "image": "busybox"}]},
    }
    return {"metadata": {"name": "work", "namespace": "default"}, "spec": {"template": template, **spec}}


def failing(code: int = 3) -> dict[str, str]:
    return {"simulated.tapestry.io/exit-code": str(code)}


async def wait_for_job(client: Client, type: str) -> Object:
    return await wait_until(client, JOBS, "work", lambda job: is_condition_true(job, type))


async def reasons(client: Client) -> set[str]:
    await settled(1)  # events come a little later
    return {event["reason"] for event in await client.list(EVENTS) if event["involvedObject"]["kind"] == "Job"}


@in_a_world("jobs")
async def test_a_job_is_complete_after_as_many_pods_as_it_wants(client: Client) -> None:
    await client.create(JOBS, a_job(completions=6, parallelism=3))
    job = await wait_for_job(client, "Complete")
    assert {key: job["status"].get(key, 0) for key in ("succeeded", "failed", "active", "ready")} == {
        "succeeded": 6,
        "failed": 0,
        "active": 0,
        "ready": 0,
    }
    assert not job["status"]["uncountedTerminatedPods"]
    assert (parse_time(job["status"]["completionTime"]) - parse_time(job["status"]["startTime"])).total_seconds() >= 10
    pods = await client.list(PODS, "default")
    assert len(pods) == 6
    assert not any(pod["metadata"].get("finalizers") for pod in pods)
    assert {"SuccessfulCreate", "Completed"} <= await reasons(client)


@in_a_world("jobs")
async def test_never_more_pods_work_than_a_job_allows(client: Client) -> None:
    await client.create(JOBS, a_job(completions=7, parallelism=2))
    await wait_for_job(client, "Complete")
    spans = []
    for pod in await client.list(PODS, "default"):
        state = pod["status"]["containerStatuses"][0]["state"]["terminated"]
        spans.append((parse_time(pod["metadata"]["creationTimestamp"]), parse_time(state["finishedAt"])))
    for begin, _ in spans:
        assert sum(start <= begin < end for start, end in spans) <= 2


@in_a_world("jobs")
async def test_an_indexed_job_has_one_pod_for_each_index(client: Client) -> None:
    await client.create(JOBS, a_job(completions=4, parallelism=2, completionMode="Indexed"))
    job = await wait_for_job(client, "Complete")
    assert (job["status"]["succeeded"], job["status"]["completedIndexes"]) == (4, "0-3")
    pods = await client.list(PODS, "default")
    assert sorted(pod["spec"]["hostname"] for pod in pods) == ["work-0", "work-1", "work-2", "work-3"]
    assert all(name_of(pod).startswith(pod["spec"]["hostname"] + "-") for pod in pods)


@in_a_world("jobs")
async def test_a_job_without_a_number_is_complete_when_one_succeeds_and_the_others_end(client: Client) -> None:
    await client.create(JOBS, a_job(parallelism=3))
    job = await wait_for_job(client, "Complete")
    assert job["status"]["succeeded"] == 3
    assert len(await client.list(PODS, "default")) == 3


@in_a_world("jobs")
async def test_a_job_whose_pods_fail_gives_up(client: Client) -> None:
    await client.create(JOBS, a_job(failing(), backoffLimit=0))
    job = await wait_for_job(client, "Failed")
    assert job["status"]["failed"] == 1
    failed = find_condition(job["status"]["conditions"], "Failed")
    assert failed is not None
    assert (failed["reason"], failed["message"]) == (
        "BackoffLimitExceeded",
        "Job has reached the specified backoff limit",
    )
    assert "BackoffLimitExceeded" in await reasons(client)


@in_a_world("jobs")
async def test_each_failure_doubles_the_pause_before_the_next_pod(client: Client) -> None:
    await client.create(JOBS, a_job(failing(), backoffLimit=3))
    await wait_for_job(client, "Failed")
    pods = sorted(await client.list(PODS, "default"), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    made = [parse_time(pod["metadata"]["creationTimestamp"]) for pod in pods]
    gaps = [(second - first).total_seconds() for first, second in pairwise(made)]
    assert [round(gap) for gap in gaps] == [15, 25, 45]  # five seconds of work and 10, 20, 40 of rest


@in_a_world("jobs")
async def test_a_pod_that_somebody_deletes_is_a_failure_and_is_replaced(client: Client) -> None:
    await client.create(JOBS, a_job({"simulated.tapestry.io/ends-after": "60s"}))
    await wait_until(client, JOBS, "work", lambda job: value_at(job, "status", "ready") == 1)
    (pod,) = await live_pods(client)
    await client.delete(PODS, pod)
    job = await wait_for_job(client, "Complete")
    assert (job["status"]["succeeded"], job["status"]["failed"]) == (1, 1)


@in_a_world("jobs")
async def test_restarts_of_containers_count_against_the_limit(client: Client) -> None:
    await client.create(JOBS, a_job(failing(), policy="OnFailure", backoffLimit=2))
    job = await wait_for_job(client, "Failed")
    assert job["status"]["failed"] == 1
    assert len(await live_pods(client)) == 0


@in_a_world("jobs")
async def test_a_job_has_a_deadline(client: Client) -> None:
    await client.create(JOBS, a_job({"simulated.tapestry.io/ends-after": "never"}, activeDeadlineSeconds=30))
    job = await wait_for_job(client, "Failed")
    failed = find_condition(job["status"]["conditions"], "Failed")
    assert failed is not None
    assert (failed["reason"], failed["message"]) == (
        "DeadlineExceeded",
        "Job was active longer than specified deadline",
    )
    assert await live_pods(client) == []


@in_a_world("jobs")
async def test_a_job_that_is_suspended_has_no_pods_and_goes_on_when_resumed(client: Client) -> None:
    await client.create(JOBS, a_job(suspend=True, completions=2, activeDeadlineSeconds=40))
    job = await wait_for_job(client, "Suspended")
    assert "startTime" not in job["status"]
    await settled()
    assert await live_pods(client) == []
    await client.patch(JOBS, WORK, {"spec": {"suspend": False}})
    await wait_until(client, JOBS, "work", lambda job: value_at(job, "status", "ready") == 1)
    await client.patch(JOBS, WORK, {"spec": {"suspend": True}})
    await wait_until(
        client, JOBS, "work", lambda job: is_condition_true(job, "Suspended") and not job["status"].get("active")
    )
    await settled(100)
    await client.patch(JOBS, WORK, {"spec": {"suspend": False}})
    job = await wait_for_job(client, "Complete")
    assert (job["status"]["succeeded"], job["status"].get("failed", 0)) == (2, 0)
    assert {"Suspended", "Resumed"} <= await reasons(client)


@in_a_world("jobs")
async def test_a_job_that_wants_fewer_at_once_lets_some_go(client: Client) -> None:
    await client.create(JOBS, a_job({"simulated.tapestry.io/ends-after": "60s"}, completions=4, parallelism=4))
    await wait_until(client, JOBS, "work", lambda job: value_at(job, "status", "ready") == 4)
    await client.patch(JOBS, WORK, {"spec": {"parallelism": 1}})
    await wait_until(client, JOBS, "work", lambda job: value_at(job, "status", "active") == 1)
    job = await wait_for_job(client, "Complete")
    assert (job["status"]["succeeded"], job["status"].get("failed", 0)) == (4, 0)


async def corrected(client: Client, job: Object) -> list[Object]:
    """The pods of a Job that is taken back to two while it is far from as many as it asks for."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owned_pods, "BURST_REPLICAS", 4)
        await client.create(JOBS, job)
        await wait_until(client, JOBS, "work", lambda job: value_at(job, "status", "active", default=0) >= 8)
        await client.patch(JOBS, WORK, {"spec": {"parallelism": 2}})
        await wait_until(client, JOBS, "work", lambda job: value_at(job, "status", "active") == 2)
        return await live_pods(client)


@in_a_world("jobs")
async def test_a_job_of_far_too_many_pods_can_be_corrected(client: Client) -> None:
    assert len(await corrected(client, a_job(completions=2**31 - 1, parallelism=2**31 - 1))) == 2


@in_a_world("jobs")
async def test_a_job_of_far_too_many_indexes_can_be_corrected(client: Client) -> None:
    assert (
        len(await corrected(client, a_job(completions=2**31 - 1, parallelism=100_000, completionMode="Indexed"))) == 2
    )


@in_a_world("jobs")
async def test_a_job_of_far_too_many_indexes_that_fail_by_themselves_can_be_corrected(client: Client) -> None:
    spec = {"completions": 100_000, "parallelism": 10_000, "completionMode": "Indexed"}
    assert len(await corrected(client, a_job(**spec, backoffLimitPerIndex=1))) == 2


@in_a_world("jobs")
async def test_a_job_goes_by_itself_some_time_after_its_end(client: Client) -> None:
    await client.create(JOBS, a_job(ttlSecondsAfterFinished=60))
    await wait_for_job(client, "Complete")
    await settled(30)
    assert await client.list(JOBS)
    await settled(60)
    assert await client.list(JOBS) == []
    assert await client.list(PODS) == []


@in_a_world("jobs")
async def test_a_job_of_somebody_elses_is_left_alone(client: Client) -> None:
    await client.create(JOBS, a_job(managedBy="example.com/queue"))
    await settled()
    assert await live_pods(client) == []
    assert not (await client.get(JOBS, "work", "default")).get("status")


# -- rules for failures


def a_policy(action: str, *codes: int) -> dict[str, Any]:
    return {"rules": [{"action": action, "onExitCodes": {"operator": "In", "values": list(codes)}}]}


@in_a_world("jobs")
async def test_a_rule_can_end_a_job_at_once(client: Client) -> None:
    await client.create(JOBS, a_job(failing(42), backoffLimit=6, podFailurePolicy=a_policy("FailJob", 42)))
    job = await wait_for_job(client, "Failed")
    (pod,) = await client.list(PODS, "default")
    failed = find_condition(job["status"]["conditions"], "Failed")
    assert failed is not None
    assert failed["reason"] == "PodFailurePolicy"
    assert failed["message"] == (
        f"Container c for pod default/{name_of(pod)} failed with exit code 42 matching FailJob rule at index 0"
    )


@in_a_world("jobs")
async def test_a_rule_can_make_a_failure_count_for_nothing(client: Client) -> None:
    job = a_job(failing(42), backoffLimit=0, podFailurePolicy=a_policy("Ignore", 42), activeDeadlineSeconds=60)
    await client.create(JOBS, job)
    job = await wait_for_job(client, "Failed")
    assert find_condition(job["status"]["conditions"], "Failed")["reason"] == "DeadlineExceeded"  # type: ignore[index]
    pods = await client.list(PODS, "default")
    assert len(pods) > 1
    assert not any(pod["metadata"].get("finalizers") for pod in pods)


@in_a_world("jobs")
async def test_a_pod_that_is_going_is_replaced_only_when_it_has_gone(client: Client) -> None:
    job = a_job(
        {"simulated.tapestry.io/ends-after": "100s", "simulated.tapestry.io/stops-after": "20s"},
        podReplacementPolicy="Failed",
    )
    await client.create(JOBS, job)
    await wait_until(client, JOBS, "work", lambda job: value_at(job, "status", "ready") == 1)
    (pod,) = await live_pods(client)
    await client.delete(PODS, pod)
    await settled(10)
    assert await live_pods(client) == []
    job = await client.get(JOBS, "work", "default")
    assert (job["status"].get("terminating"), job["status"].get("active", 0)) == (1, 0)


# -- indexes that fail


@in_a_world("jobs")
async def test_each_index_may_fail_so_often_by_itself(client: Client) -> None:
    await client.create(
        JOBS, a_job(failing(), completions=2, parallelism=2, completionMode="Indexed", backoffLimitPerIndex=1)
    )
    job = await wait_for_job(client, "Failed")
    assert (job["status"]["failedIndexes"], job["status"]["failed"]) == ("0,1", 4)
    assert find_condition(job["status"]["conditions"], "Failed")["reason"] == "FailedIndexes"  # type: ignore[index]
    counts = [annotations_of(pod)["batch.kubernetes.io/job-index-failure-count"] for pod in await client.list(PODS)]
    assert sorted(counts) == ["0", "0", "1", "1"]


@in_a_world("jobs")
async def test_too_many_indexes_that_fail_end_a_job(client: Client) -> None:
    await client.create(
        JOBS,
        a_job(failing(), completions=5, completionMode="Indexed", backoffLimitPerIndex=0, maxFailedIndexes=1),
    )
    job = await wait_for_job(client, "Failed")
    assert find_condition(job["status"]["conditions"], "Failed")["reason"] == "MaxFailedIndexesExceeded"  # type: ignore[index]
    assert job["status"]["failedIndexes"] == "0,1"


@in_a_world("jobs")
async def test_some_indexes_can_be_enough(client: Client) -> None:
    policy = {"rules": [{"succeededIndexes": "1-3", "succeededCount": 2}]}
    await client.create(JOBS, a_job(completions=5, parallelism=1, completionMode="Indexed", successPolicy=policy))
    job = await wait_for_job(client, "Complete")
    assert job["status"]["completedIndexes"] == "0-2"
    complete = find_condition(job["status"]["conditions"], "Complete")
    assert complete is not None
    assert (complete["reason"], complete["message"]) == ("SuccessPolicy", "Matched rules at index 0")


# -- whose pods


@in_a_world("jobs")
async def test_two_jobs_do_not_count_each_others_pods(client: Client) -> None:
    await client.create(JOBS, a_job(completions=2))
    other = a_job(completions=3)
    other["metadata"]["name"] = "other"
    await client.create(JOBS, other)
    await wait_until(client, JOBS, "other", lambda job: is_condition_true(job, "Complete"))
    await wait_for_job(client, "Complete")
    owners = [pod["metadata"]["ownerReferences"][0]["name"] for pod in await client.list(PODS)]
    assert (owners.count("work"), owners.count("other")) == (2, 3)


@in_a_world("jobs")
async def test_a_job_that_is_gone_holds_no_pod_back(client: Client) -> None:
    await client.create(JOBS, a_job({"simulated.tapestry.io/ends-after": "never"}, parallelism=2))
    await wait_until(client, JOBS, "work", lambda job: value_at(job, "status", "ready") == 2)
    await client.delete(JOBS, WORK, propagation=Propagation.BACKGROUND)
    await settled()
    assert await client.list(PODS, "default") == []


@in_a_world("jobs")
async def test_a_pod_that_a_job_no_longer_selects_can_go(client: Client) -> None:
    await client.create(JOBS, a_job({"simulated.tapestry.io/ends-after": "never"}))
    await wait_until(client, JOBS, "work", lambda job: value_at(job, "status", "ready") == 1)
    (stray,) = await live_pods(client)
    await client.patch(PODS, stray, {"metadata": {"labels": None}})
    await settled()
    left = await client.get(PODS, name_of(stray), "default")
    assert not left["metadata"].get("ownerReferences")
    assert not left["metadata"].get("finalizers")
    assert len(await live_pods(client)) == 2


@in_a_world("jobs")
async def test_a_pod_that_loses_its_owner_is_taken_again_and_counted(client: Client) -> None:
    await client.create(JOBS, a_job())
    await wait_until(client, JOBS, "work", lambda job: value_at(job, "status", "ready") == 1)
    (pod,) = await live_pods(client)
    await client.patch(PODS, object_named(name_of(pod), "default"), {"metadata": {"ownerReferences": None}})
    await wait_for_job(client, "Complete")
    assert [name_of(each) for each in await live_pods(client)] == [name_of(pod)]
