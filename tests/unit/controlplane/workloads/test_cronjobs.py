"""Tests of the CronJob controller. Virtual time begins on a Monday at midnight."""

from typing import Any

from tapestry.client.client import Client
from tapestry.controller.testing import running_clock
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object, annotations_of, name_of, object_named
from tapestry.kube.resources import CRON_JOBS, EVENTS, JOBS, PODS
from tapestry.kube.times import parse_time, timestamp

from ..cluster import in_cluster, pass_time

TICK = object_named("tick", "default")
MINUTE, HOUR = 60, 3600


def new_cron_job(schedule: str = "*/10 * * * *", lasts: str = "30s", code: str = "0", **spec: Any) -> Object:
    annotations = {"simulated.tapestry.io/ends-after": lasts, "simulated.tapestry.io/exit-code": code}
    pod = {
        "metadata": {"annotations": annotations},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox"}]},
    }
    template = {"metadata": {"labels": {"of": "tick"}}, "spec": {"template": pod, "backoffLimit": 0}}
    return {
        "metadata": {"name": "tick", "namespace": "default"},
        "spec": {"schedule": schedule, "jobTemplate": template, **spec},
    }


async def minutes(client: Client) -> list[int]:
    """Return the scheduled minutes of existing Jobs, from the start of virtual time."""
    start = parse_time("2024-01-01T00:00:00Z")
    moments = [
        parse_time(annotations_of(job)["batch.kubernetes.io/cronjob-scheduled-timestamp"])
        for job in await client.list(JOBS)
    ]
    return sorted(int((moment - start).total_seconds()) // MINUTE for moment in moments)


async def status(client: Client) -> Object:
    found: Object = (await client.get(CRON_JOBS, "tick", "default")).get("status") or {}
    return found


async def reasons(client: Client) -> set[str]:
    return {event["reason"] for event in await client.list(EVENTS) if event["involvedObject"]["kind"] == "CronJob"}


@in_cluster("cronjobs", "jobs", nodes=1)
async def test_job_is_created_at_each_scheduled_time(client: Client) -> None:
    await client.create(CRON_JOBS, new_cron_job())
    await pass_time(25 * MINUTE)
    assert await minutes(client) == [10, 20]
    jobs = await client.list(JOBS)
    due = parse_time("2024-01-01T00:20:00Z")
    assert f"tick-{int(due.timestamp()) // MINUTE}" in map(name_of, jobs)
    assert all(job["metadata"]["labels"]["of"] == "tick" for job in jobs)
    found = await status(client)
    assert found["lastScheduleTime"] == "2024-01-01T00:20:00Z"
    assert found["lastSuccessfulTime"] == "2024-01-01T00:20:30Z"
    assert "active" not in found
    assert {"SuccessfulCreate", "SawCompletedJob"} <= await reasons(client)


@in_cluster("cronjobs", "jobs", nodes=1)
async def test_status_lists_active_jobs(client: Client) -> None:
    await client.create(CRON_JOBS, new_cron_job(lasts="5m"))
    await pass_time(12 * MINUTE)
    (job,) = await client.list(JOBS)
    (active,) = (await status(client))["active"]
    assert active == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": name_of(job),
        "namespace": "default",
        "uid": job["metadata"]["uid"],
    }


@in_cluster("cronjobs", "jobs", nodes=1)
async def test_successful_jobs_over_limit_are_deleted(client: Client) -> None:
    await client.create(CRON_JOBS, new_cron_job(successfulJobsHistoryLimit=2))
    await pass_time(65 * MINUTE)
    assert await minutes(client) == [50, 60]
    assert len(await client.list(PODS)) == 2


@in_cluster("cronjobs", "jobs", nodes=1)
async def test_one_failed_job_remains(client: Client) -> None:
    await client.create(CRON_JOBS, new_cron_job(code="1"))
    await pass_time(35 * MINUTE)
    assert await minutes(client) == [30]
    assert "lastSuccessfulTime" not in await status(client)


@in_cluster("cronjobs", "jobs", nodes=1)
async def test_concurrent_jobs_are_allowed(client: Client) -> None:
    await client.create(CRON_JOBS, new_cron_job(lasts="25m"))
    await pass_time(32 * MINUTE)
    assert await minutes(client) == [10, 20, 30]
    assert len((await status(client))["active"]) == 3


@in_cluster("cronjobs", "jobs", nodes=1)
async def test_forbid_policy_waits_for_active_job(client: Client) -> None:
    await client.create(CRON_JOBS, new_cron_job(lasts="25m", concurrencyPolicy="Forbid"))
    await pass_time(32 * MINUTE)
    assert await minutes(client) == [10]
    await pass_time(5 * MINUTE)
    assert await minutes(client) == [10, 30]  # the last missed start
    assert "JobAlreadyActive" in await reasons(client)


@in_cluster("cronjobs", "jobs", nodes=1)
async def test_replace_policy_deletes_active_job(client: Client) -> None:
    await client.create(CRON_JOBS, new_cron_job(lasts="25m", concurrencyPolicy="Replace"))
    await pass_time(32 * MINUTE)
    assert await minutes(client) == [30]
    assert len((await status(client))["active"]) == 1
    assert len([pod for pod in await client.list(PODS) if "deletionTimestamp" not in pod["metadata"]]) == 1


@in_cluster("cronjobs", "jobs", nodes=1)
async def test_resumed_cron_job_runs_last_missed_start(client: Client) -> None:
    await client.create(CRON_JOBS, new_cron_job(suspend=True))
    await pass_time(35 * MINUTE)
    assert await minutes(client) == []
    await client.patch(CRON_JOBS, TICK, {"spec": {"suspend": False}})
    await pass_time(MINUTE)
    assert await minutes(client) == [30]


@in_cluster("cronjobs", "jobs", nodes=1)
async def test_missed_deadline_is_skipped(client: Client) -> None:
    await client.create(CRON_JOBS, new_cron_job(suspend=True, startingDeadlineSeconds=120))
    await pass_time(35 * MINUTE)
    await client.patch(CRON_JOBS, TICK, {"spec": {"suspend": False}})
    await pass_time(MINUTE)
    assert await minutes(client) == []
    await pass_time(5 * MINUTE)
    assert await minutes(client) == [40]


@in_cluster("cronjobs", nodes=0)
async def test_too_many_missed_starts_record_event(client: Client) -> None:
    await client.create(CRON_JOBS, new_cron_job("* * * * *", suspend=True))
    await pass_time(3 * HOUR)
    await client.patch(CRON_JOBS, TICK, {"spec": {"suspend": False}})
    await pass_time(5)
    assert await minutes(client) == [180]
    assert "TooManyMissedTimes" in await reasons(client)


@in_cluster("cronjobs", "jobs", nodes=1)
async def test_schedule_uses_time_zone(client: Client) -> None:
    await client.create(CRON_JOBS, new_cron_job("30 6 * * *", timeZone="Asia/Kolkata"))  # UTC+5:30
    await pass_time(2 * HOUR)
    assert await minutes(client) == [60]
    (job,) = await client.list(JOBS)
    scheduled = annotations_of(job)["batch.kubernetes.io/cronjob-scheduled-timestamp"]
    assert scheduled == "2024-01-01T06:30:00+05:30"


@in_cluster("cronjobs", "jobs", nodes=1)
async def test_schedule_without_start_records_event(client: Client) -> None:
    await client.create(CRON_JOBS, new_cron_job("59 23 31 2 *"))
    await pass_time(HOUR)
    [event] = [each for each in await client.list(EVENTS) if each["reason"] == "InvalidSchedule"]
    message = "invalid schedule: 59 23 31 2 * : time difference between two schedules is less than 1 second"
    assert (event["type"], event["message"]) == ("Warning", message)
    assert await minutes(client) == []


@in_cluster("cronjobs", "jobs", nodes=1)
async def test_changed_schedule_applies_from_now_on(client: Client) -> None:
    await client.create(CRON_JOBS, new_cron_job("0 12 * * *"))
    await pass_time(5 * MINUTE)
    await client.patch(CRON_JOBS, TICK, {"spec": {"schedule": "*/20 * * * *"}})
    await pass_time(18 * MINUTE)
    assert await minutes(client) == [20]


@in_cluster("cronjobs", "jobs", nodes=1)
async def test_deleted_job_is_not_recreated(client: Client) -> None:
    await client.create(CRON_JOBS, new_cron_job(lasts="5m"))
    await pass_time(11 * MINUTE)
    (job,) = await client.list(JOBS)
    await client.delete(JOBS, job)
    await pass_time(5 * MINUTE)
    assert await client.list(JOBS) == []
    assert "active" not in await status(client)
    assert "MissingJob" in await reasons(client)


@in_cluster("cronjobs", nodes=0)
async def test_job_template_needs_no_metadata(client: Client) -> None:
    cron = new_cron_job()
    del cron["spec"]["jobTemplate"]["metadata"]
    await client.create(CRON_JOBS, cron)
    await pass_time(11 * MINUTE)
    assert await minutes(client) == [10]


@in_cluster("cronjobs", "jobs", nodes=1)
async def test_jobs_are_deleted_with_cron_job(client: Client) -> None:
    await client.create(CRON_JOBS, new_cron_job(lasts="5m"))
    await pass_time(12 * MINUTE)
    await client.delete(CRON_JOBS, TICK)
    await pass_time(MINUTE)
    assert await client.list(JOBS) == []


@in_cluster("cronjobs", "jobs", nodes=1)
async def test_manually_started_job_is_owned(client: Client) -> None:
    cron_job = await client.create(CRON_JOBS, new_cron_job("0 12 * * *"))
    template = cron_job["spec"]["jobTemplate"]["spec"]
    owner = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "name": "tick",
        "uid": cron_job["metadata"]["uid"],
        "controller": True,
    }
    metadata = {"name": "by-hand", "namespace": "default", "ownerReferences": [owner]}
    await client.create(JOBS, {"metadata": metadata, "spec": template})
    await pass_time(10)
    assert [each["name"] for each in (await status(client))["active"]] == ["by-hand"]
    await pass_time(MINUTE)
    assert is_condition_true(await client.get(JOBS, "by-hand", "default"), "Complete")
    assert (await status(client))["lastSuccessfulTime"] <= timestamp(running_clock().now())
