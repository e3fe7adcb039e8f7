"""Tests of the Job controller."""

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

from ..cluster import in_cluster, live_pods, pass_time, wait_until

WORK = object_named("work", "default")


def new_job(annotations: dict[str, str] | None = None, policy: str = "Never", **spec: Any) -> Object:
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
    await pass_time(1)  # events are written asynchronously
    return {event["reason"] for event in await client.list(EVENTS) if event["involvedObject"]["kind"] == "Job"}


@in_cluster("jobs")
async def test_job_completes_after_required_completions(client: Client) -> None:
    await client.create(JOBS, new_job(completions=6, parallelism=3))
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


@in_cluster("jobs")
async def test_parallelism_is_never_exceeded(client: Client) -> None:
    await client.create(JOBS, new_job(completions=7, parallelism=2))
    await wait_for_job(client, "Complete")
    spans = []
    for pod in await client.list(PODS, "default"):
        state = pod["status"]["containerStatuses"][0]["state"]["terminated"]
        spans.append((parse_time(pod["metadata"]["creationTimestamp"]), parse_time(state["finishedAt"])))
    for begin, _ in spans:
        assert sum(start <= begin < end for start, end in spans) <= 2


@in_cluster("jobs")
async def test_indexed_job_has_one_pod_per_index(client: Client) -> None:
    await client.create(JOBS, new_job(completions=4, parallelism=2, completionMode="Indexed"))
    job = await wait_for_job(client, "Complete")
    assert (job["status"]["succeeded"], job["status"]["completedIndexes"]) == (4, "0-3")
    pods = await client.list(PODS, "default")
    assert sorted(pod["spec"]["hostname"] for pod in pods) == ["work-0", "work-1", "work-2", "work-3"]
    assert all(name_of(pod).startswith(pod["spec"]["hostname"] + "-") for pod in pods)


@in_cluster("jobs")
async def test_job_without_completions_completes_after_one_success(client: Client) -> None:
    await client.create(JOBS, new_job(parallelism=3))
    job = await wait_for_job(client, "Complete")
    assert job["status"]["succeeded"] == 3
    assert len(await client.list(PODS, "default")) == 3


@in_cluster("jobs")
async def test_job_fails_at_backoff_limit(client: Client) -> None:
    await client.create(JOBS, new_job(failing(), backoffLimit=0))
    job = await wait_for_job(client, "Failed")
    assert job["status"]["failed"] == 1
    failed = find_condition(job["status"]["conditions"], "Failed")
    assert failed is not None
    assert (failed["reason"], failed["message"]) == (
        "BackoffLimitExceeded",
        "Job has reached the specified backoff limit",
    )
    assert "BackoffLimitExceeded" in await reasons(client)


@in_cluster("jobs")
async def test_each_failure_doubles_the_backoff(client: Client) -> None:
    await client.create(JOBS, new_job(failing(), backoffLimit=3))
    await wait_for_job(client, "Failed")
    pods = sorted(await client.list(PODS, "default"), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    creation_times = [parse_time(pod["metadata"]["creationTimestamp"]) for pod in pods]
    gaps = [(second - first).total_seconds() for first, second in pairwise(creation_times)]
    assert [round(gap) for gap in gaps] == [15, 25, 45]  # five seconds of work and backoffs of 10, 20, 40


@in_cluster("jobs")
async def test_deleted_pod_counts_as_failure_and_is_replaced(client: Client) -> None:
    await client.create(JOBS, new_job({"simulated.tapestry.io/ends-after": "60s"}))
    await wait_until(client, JOBS, "work", lambda job: value_at(job, "status", "ready") == 1)
    (pod,) = await live_pods(client)
    await client.delete(PODS, pod)
    job = await wait_for_job(client, "Complete")
    assert (job["status"]["succeeded"], job["status"]["failed"]) == (1, 1)


@in_cluster("jobs")
async def test_container_restarts_count_towards_backoff_limit(client: Client) -> None:
    await client.create(JOBS, new_job(failing(), policy="OnFailure", backoffLimit=2))
    job = await wait_for_job(client, "Failed")
    assert job["status"]["failed"] == 1
    assert len(await live_pods(client)) == 0


@in_cluster("jobs")
async def test_job_fails_at_active_deadline(client: Client) -> None:
    await client.create(JOBS, new_job({"simulated.tapestry.io/ends-after": "never"}, activeDeadlineSeconds=30))
    job = await wait_for_job(client, "Failed")
    failed = find_condition(job["status"]["conditions"], "Failed")
    assert failed is not None
    assert (failed["reason"], failed["message"]) == (
        "DeadlineExceeded",
        "Job was active longer than specified deadline",
    )
    assert await live_pods(client) == []


@in_cluster("jobs")
async def test_suspended_job_has_no_pods_until_resumed(client: Client) -> None:
    await client.create(JOBS, new_job(suspend=True, completions=2, activeDeadlineSeconds=40))
    job = await wait_for_job(client, "Suspended")
    assert "startTime" not in job["status"]
    await pass_time()
    assert await live_pods(client) == []
    await client.patch(JOBS, WORK, {"spec": {"suspend": False}})
    await wait_until(client, JOBS, "work", lambda job: value_at(job, "status", "ready") == 1)
    await client.patch(JOBS, WORK, {"spec": {"suspend": True}})
    await wait_until(
        client, JOBS, "work", lambda job: is_condition_true(job, "Suspended") and not job["status"].get("active")
    )
    await pass_time(100)
    await client.patch(JOBS, WORK, {"spec": {"suspend": False}})
    job = await wait_for_job(client, "Complete")
    assert (job["status"]["succeeded"], job["status"].get("failed", 0)) == (2, 0)
    assert {"Suspended", "Resumed"} <= await reasons(client)


@in_cluster("jobs")
async def test_lower_parallelism_deletes_pods(client: Client) -> None:
    await client.create(JOBS, new_job({"simulated.tapestry.io/ends-after": "60s"}, completions=4, parallelism=4))
    await wait_until(client, JOBS, "work", lambda job: value_at(job, "status", "ready") == 4)
    await client.patch(JOBS, WORK, {"spec": {"parallelism": 1}})
    await wait_until(client, JOBS, "work", lambda job: value_at(job, "status", "active") == 1)
    job = await wait_for_job(client, "Complete")
    assert (job["status"]["succeeded"], job["status"].get("failed", 0)) == (4, 0)


async def pods_after_correction(client: Client, job: Object) -> list[Object]:
    """Return the pods of a Job that is reduced to two while it is still creating far more."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owned_pods, "BURST_REPLICAS", 4)
        await client.create(JOBS, job)
        await wait_until(client, JOBS, "work", lambda job: value_at(job, "status", "active", default=0) >= 8)
        await client.patch(JOBS, WORK, {"spec": {"parallelism": 2}})
        await wait_until(client, JOBS, "work", lambda job: value_at(job, "status", "active") == 2)
        return await live_pods(client)


@in_cluster("jobs")
async def test_excessive_pods_can_be_corrected(client: Client) -> None:
    assert len(await pods_after_correction(client, new_job(completions=2**31 - 1, parallelism=2**31 - 1))) == 2


@in_cluster("jobs")
async def test_excessive_indexes_can_be_corrected(client: Client) -> None:
    assert (
        len(
            await pods_after_correction(
                client, new_job(completions=2**31 - 1, parallelism=100_000, completionMode="Indexed")
            )
        )
        == 2
    )


@in_cluster("jobs")
async def test_excessive_indexes_with_backoff_can_be_corrected(client: Client) -> None:
    spec = {"completions": 100_000, "parallelism": 10_000, "completionMode": "Indexed"}
    assert len(await pods_after_correction(client, new_job(**spec, backoffLimitPerIndex=1))) == 2


@in_cluster("jobs")
async def test_finished_job_is_deleted_after_ttl(client: Client) -> None:
    await client.create(JOBS, new_job(ttlSecondsAfterFinished=60))
    await wait_for_job(client, "Complete")
    await pass_time(30)
    assert await client.list(JOBS)
    await pass_time(60)
    assert await client.list(JOBS) == []
    assert await client.list(PODS) == []


@in_cluster("jobs")
async def test_job_of_another_controller_is_ignored(client: Client) -> None:
    await client.create(JOBS, new_job(managedBy="example.com/queue"))
    await pass_time()
    assert await live_pods(client) == []
    assert not (await client.get(JOBS, "work", "default")).get("status")


# -- failure policies


def new_policy(action: str, *codes: int) -> dict[str, Any]:
    return {"rules": [{"action": action, "onExitCodes": {"operator": "In", "values": list(codes)}}]}


@in_cluster("jobs")
async def test_fail_job_rule_fails_job_at_once(client: Client) -> None:
    await client.create(JOBS, new_job(failing(42), backoffLimit=6, podFailurePolicy=new_policy("FailJob", 42)))
    job = await wait_for_job(client, "Failed")
    (pod,) = await client.list(PODS, "default")
    failed = find_condition(job["status"]["conditions"], "Failed")
    assert failed is not None
    assert failed["reason"] == "PodFailurePolicy"
    assert failed["message"] == (
        f"Container c for pod default/{name_of(pod)} failed with exit code 42 matching FailJob rule at index 0"
    )


@in_cluster("jobs")
async def test_ignore_rule_does_not_count_failure(client: Client) -> None:
    job = new_job(failing(42), backoffLimit=0, podFailurePolicy=new_policy("Ignore", 42), activeDeadlineSeconds=60)
    await client.create(JOBS, job)
    job = await wait_for_job(client, "Failed")
    assert find_condition(job["status"]["conditions"], "Failed")["reason"] == "DeadlineExceeded"  # type: ignore[index]
    pods = await client.list(PODS, "default")
    assert len(pods) > 1
    assert not any(pod["metadata"].get("finalizers") for pod in pods)


@in_cluster("jobs")
async def test_terminating_pod_is_replaced_after_termination(client: Client) -> None:
    job = new_job(
        {"simulated.tapestry.io/ends-after": "100s", "simulated.tapestry.io/stops-after": "20s"},
        podReplacementPolicy="Failed",
    )
    await client.create(JOBS, job)
    await wait_until(client, JOBS, "work", lambda job: value_at(job, "status", "ready") == 1)
    (pod,) = await live_pods(client)
    await client.delete(PODS, pod)
    await pass_time(10)
    assert await live_pods(client) == []
    job = await client.get(JOBS, "work", "default")
    assert (job["status"].get("terminating"), job["status"].get("active", 0)) == (1, 0)


# -- failed indexes


@in_cluster("jobs")
async def test_backoff_limit_applies_per_index(client: Client) -> None:
    await client.create(
        JOBS, new_job(failing(), completions=2, parallelism=2, completionMode="Indexed", backoffLimitPerIndex=1)
    )
    job = await wait_for_job(client, "Failed")
    assert (job["status"]["failedIndexes"], job["status"]["failed"]) == ("0,1", 4)
    assert find_condition(job["status"]["conditions"], "Failed")["reason"] == "FailedIndexes"  # type: ignore[index]
    counts = [annotations_of(pod)["batch.kubernetes.io/job-index-failure-count"] for pod in await client.list(PODS)]
    assert sorted(counts) == ["0", "0", "1", "1"]


@in_cluster("jobs")
async def test_too_many_failed_indexes_fail_job(client: Client) -> None:
    await client.create(
        JOBS,
        new_job(failing(), completions=5, completionMode="Indexed", backoffLimitPerIndex=0, maxFailedIndexes=1),
    )
    job = await wait_for_job(client, "Failed")
    assert find_condition(job["status"]["conditions"], "Failed")["reason"] == "MaxFailedIndexesExceeded"  # type: ignore[index]
    assert job["status"]["failedIndexes"] == "0,1"


@in_cluster("jobs")
async def test_success_policy_completes_job_early(client: Client) -> None:
    policy = {"rules": [{"succeededIndexes": "1-3", "succeededCount": 2}]}
    await client.create(JOBS, new_job(completions=5, parallelism=1, completionMode="Indexed", successPolicy=policy))
    job = await wait_for_job(client, "Complete")
    assert job["status"]["completedIndexes"] == "0-2"
    complete = find_condition(job["status"]["conditions"], "Complete")
    assert complete is not None
    assert (complete["reason"], complete["message"]) == ("SuccessPolicy", "Matched rules at index 0")


# -- ownership


@in_cluster("jobs")
async def test_jobs_do_not_count_pods_of_others(client: Client) -> None:
    await client.create(JOBS, new_job(completions=2))
    other = new_job(completions=3)
    other["metadata"]["name"] = "other"
    await client.create(JOBS, other)
    await wait_until(client, JOBS, "other", lambda job: is_condition_true(job, "Complete"))
    await wait_for_job(client, "Complete")
    owners = [pod["metadata"]["ownerReferences"][0]["name"] for pod in await client.list(PODS)]
    assert (owners.count("work"), owners.count("other")) == (2, 3)


@in_cluster("jobs")
async def test_pods_of_deleted_job_lose_finalizer(client: Client) -> None:
    await client.create(JOBS, new_job({"simulated.tapestry.io/ends-after": "never"}, parallelism=2))
    await wait_until(client, JOBS, "work", lambda job: value_at(job, "status", "ready") == 2)
    await client.delete(JOBS, WORK, propagation=Propagation.BACKGROUND)
    await pass_time()
    assert await client.list(PODS, "default") == []


@in_cluster("jobs")
async def test_unselected_pod_is_released(client: Client) -> None:
    await client.create(JOBS, new_job({"simulated.tapestry.io/ends-after": "never"}))
    await wait_until(client, JOBS, "work", lambda job: value_at(job, "status", "ready") == 1)
    (orphan,) = await live_pods(client)
    await client.patch(PODS, orphan, {"metadata": {"labels": None}})
    await pass_time()
    released = await client.get(PODS, name_of(orphan), "default")
    assert not released["metadata"].get("ownerReferences")
    assert not released["metadata"].get("finalizers")
    assert len(await live_pods(client)) == 2


@in_cluster("jobs")
async def test_orphaned_pod_is_adopted_and_counted(client: Client) -> None:
    await client.create(JOBS, new_job())
    await wait_until(client, JOBS, "work", lambda job: value_at(job, "status", "ready") == 1)
    (pod,) = await live_pods(client)
    await client.patch(PODS, object_named(name_of(pod), "default"), {"metadata": {"ownerReferences": None}})
    await wait_for_job(client, "Complete")
    assert [name_of(each) for each in await live_pods(client)] == [name_of(pod)]
