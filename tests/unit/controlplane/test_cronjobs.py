"""CronJobs at work in a cluster: a Job whenever one is due.  The world begins on a Monday at midnight."""

from typing import Any

from tapestry.client.client import Client
from tapestry.controller.testing import running_clock
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object, annotations_of, name_of, object_named
from tapestry.kube.resources import CRON_JOBS, EVENTS, JOBS, PODS
from tapestry.kube.times import parse_time, timestamp

from .worlds import in_a_world, settled

TICK = object_named("tick", "default")
MINUTE, HOUR = 60, 3600


def a_cron_job(schedule: str = "*/10 * * * *", lasts: str = "30s", code: str = "0", **spec: Any) -> Object:
    said = {"simulated.tapestry.io/ends-after": lasts, "simulated.tapestry.io/exit-code": code}
    pod = {
        "metadata": {"annotations": said},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox"}]},
    }
    template = {"metadata": {"labels": {"of": "tick"}}, "spec": {"template": pod, "backoffLimit": 0}}
    return {
        "metadata": {"name": "tick", "namespace": "default"},
        "spec": {"schedule": schedule, "jobTemplate": template, **spec},
    }


async def minutes(client: Client) -> list[int]:
    """When the Jobs that are there were due, in minutes since the world began."""
    began = parse_time("2024-01-01T00:00:00Z")
    moments = [
        parse_time(annotations_of(job)["batch.kubernetes.io/cronjob-scheduled-timestamp"])
        for job in await client.list(JOBS)
    ]
    return sorted(int((moment - began).total_seconds()) // MINUTE for moment in moments)


async def status(client: Client) -> Object:
    found: Object = (await client.get(CRON_JOBS, "tick", "default")).get("status") or {}
    return found


async def reasons(client: Client) -> set[str]:
    return {event["reason"] for event in await client.list(EVENTS) if event["involvedObject"]["kind"] == "CronJob"}


@in_a_world("cronjobs", "jobs", nodes=1)
async def test_a_job_is_made_whenever_one_is_due(client: Client) -> None:
    await client.create(CRON_JOBS, a_cron_job())
    await settled(25 * MINUTE)
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


@in_a_world("cronjobs", "jobs", nodes=1)
async def test_what_is_at_work_is_said(client: Client) -> None:
    await client.create(CRON_JOBS, a_cron_job(lasts="5m"))
    await settled(12 * MINUTE)
    (job,) = await client.list(JOBS)
    (active,) = (await status(client))["active"]
    assert active == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": name_of(job),
        "namespace": "default",
        "uid": job["metadata"]["uid"],
    }


@in_a_world("cronjobs", "jobs", nodes=1)
async def test_jobs_that_have_ended_are_kept_only_so_long(client: Client) -> None:
    await client.create(CRON_JOBS, a_cron_job(successfulJobsHistoryLimit=2))
    await settled(65 * MINUTE)
    assert await minutes(client) == [50, 60]
    assert len(await client.list(PODS)) == 2


@in_a_world("cronjobs", "jobs", nodes=1)
async def test_of_jobs_that_failed_one_is_kept(client: Client) -> None:
    await client.create(CRON_JOBS, a_cron_job(code="1"))
    await settled(35 * MINUTE)
    assert await minutes(client) == [30]
    assert "lastSuccessfulTime" not in await status(client)


@in_a_world("cronjobs", "jobs", nodes=1)
async def test_a_job_may_run_beside_the_last_one(client: Client) -> None:
    await client.create(CRON_JOBS, a_cron_job(lasts="25m"))
    await settled(32 * MINUTE)
    assert await minutes(client) == [10, 20, 30]
    assert len((await status(client))["active"]) == 3


@in_a_world("cronjobs", "jobs", nodes=1)
async def test_a_job_may_have_to_wait_for_the_last_one(client: Client) -> None:
    await client.create(CRON_JOBS, a_cron_job(lasts="25m", concurrencyPolicy="Forbid"))
    await settled(32 * MINUTE)
    assert await minutes(client) == [10]
    await settled(5 * MINUTE)
    assert await minutes(client) == [10, 30]  # the last that was due meanwhile
    assert "JobAlreadyActive" in await reasons(client)


@in_a_world("cronjobs", "jobs", nodes=1)
async def test_a_job_may_take_the_place_of_the_last_one(client: Client) -> None:
    await client.create(CRON_JOBS, a_cron_job(lasts="25m", concurrencyPolicy="Replace"))
    await settled(32 * MINUTE)
    assert await minutes(client) == [30]
    assert len((await status(client))["active"]) == 1
    assert len([pod for pod in await client.list(PODS) if "deletionTimestamp" not in pod["metadata"]]) == 1


@in_a_world("cronjobs", "jobs", nodes=1)
async def test_one_that_is_suspended_makes_nothing_and_then_makes_up_for_the_last(client: Client) -> None:
    await client.create(CRON_JOBS, a_cron_job(suspend=True))
    await settled(35 * MINUTE)
    assert await minutes(client) == []
    await client.patch(CRON_JOBS, TICK, {"spec": {"suspend": False}})
    await settled(MINUTE)
    assert await minutes(client) == [30]


@in_a_world("cronjobs", "jobs", nodes=1)
async def test_what_is_too_late_is_not_made_up_for(client: Client) -> None:
    await client.create(CRON_JOBS, a_cron_job(suspend=True, startingDeadlineSeconds=120))
    await settled(35 * MINUTE)
    await client.patch(CRON_JOBS, TICK, {"spec": {"suspend": False}})
    await settled(MINUTE)
    assert await minutes(client) == []
    await settled(5 * MINUTE)
    assert await minutes(client) == [40]


@in_a_world("cronjobs", nodes=0)
async def test_somebody_is_told_that_too_many_were_missed(client: Client) -> None:
    await client.create(CRON_JOBS, a_cron_job("* * * * *", suspend=True))
    await settled(3 * HOUR)
    await client.patch(CRON_JOBS, TICK, {"spec": {"suspend": False}})
    await settled(5)
    assert await minutes(client) == [180]
    assert "TooManyMissedTimes" in await reasons(client)


@in_a_world("cronjobs", "jobs", nodes=1)
async def test_the_clocks_of_a_zone_count(client: Client) -> None:
    await client.create(CRON_JOBS, a_cron_job("30 6 * * *", timeZone="Asia/Kolkata"))  # half past five hours ahead
    await settled(2 * HOUR)
    assert await minutes(client) == [60]
    (job,) = await client.list(JOBS)
    said = annotations_of(job)["batch.kubernetes.io/cronjob-scheduled-timestamp"]
    assert said == "2024-01-01T06:30:00+05:30"


@in_a_world("cronjobs", "jobs", nodes=1)
async def test_a_schedule_that_is_never_due_is_said_to_be_invalid(client: Client) -> None:
    await client.create(CRON_JOBS, a_cron_job("59 23 31 2 *"))
    await settled(HOUR)
    [event] = [each for each in await client.list(EVENTS) if each["reason"] == "InvalidSchedule"]
    said = "invalid schedule: 59 23 31 2 * : time difference between two schedules is less than 1 second"
    assert (event["type"], event["message"]) == ("Warning", said)
    assert await minutes(client) == []


@in_a_world("cronjobs", "jobs", nodes=1)
async def test_another_schedule_counts_from_now_on(client: Client) -> None:
    await client.create(CRON_JOBS, a_cron_job("0 12 * * *"))
    await settled(5 * MINUTE)
    await client.patch(CRON_JOBS, TICK, {"spec": {"schedule": "*/20 * * * *"}})
    await settled(18 * MINUTE)
    assert await minutes(client) == [20]


@in_a_world("cronjobs", "jobs", nodes=1)
async def test_a_job_that_somebody_deleted_is_not_made_again(client: Client) -> None:
    await client.create(CRON_JOBS, a_cron_job(lasts="5m"))
    await settled(11 * MINUTE)
    (job,) = await client.list(JOBS)
    await client.delete(JOBS, job)
    await settled(5 * MINUTE)
    assert await client.list(JOBS) == []
    assert "active" not in await status(client)
    assert "MissingJob" in await reasons(client)


@in_a_world("cronjobs", nodes=0)
async def test_a_template_needs_no_metadata(client: Client) -> None:
    cron = a_cron_job()
    del cron["spec"]["jobTemplate"]["metadata"]
    await client.create(CRON_JOBS, cron)
    await settled(11 * MINUTE)
    assert await minutes(client) == [10]


@in_a_world("cronjobs", "jobs", nodes=1)
async def test_its_jobs_go_with_it(client: Client) -> None:
    await client.create(CRON_JOBS, a_cron_job(lasts="5m"))
    await settled(12 * MINUTE)
    await client.delete(CRON_JOBS, TICK)
    await settled(MINUTE)
    assert await client.list(JOBS) == []


@in_a_world("cronjobs", "jobs", nodes=1)
async def test_a_job_that_is_started_by_hand_is_one_of_its_own(client: Client) -> None:
    made = await client.create(CRON_JOBS, a_cron_job("0 12 * * *"))
    template = made["spec"]["jobTemplate"]["spec"]
    owner = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "name": "tick",
        "uid": made["metadata"]["uid"],
        "controller": True,
    }
    metadata = {"name": "by-hand", "namespace": "default", "ownerReferences": [owner]}
    await client.create(JOBS, {"metadata": metadata, "spec": template})
    await settled(10)
    assert [each["name"] for each in (await status(client))["active"]] == ["by-hand"]
    await settled(MINUTE)
    assert is_condition_true(await client.get(JOBS, "by-hand", "default"), "Complete")
    assert (await status(client))["lastSuccessfulTime"] <= timestamp(running_clock().now())
