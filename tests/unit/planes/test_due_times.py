"""Times of scheduled work: CronJobs, and deadlines and lifetimes of Jobs."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tapestry.kube.objects import Object
from tapestry.kube.times import timestamp
from tapestry.planes.due_times import cron_job_due_time, job_due_time

NOW = datetime(2026, 1, 1, 10, 30, tzinfo=UTC)
DELETING = {"deletionTimestamp": timestamp(NOW)}


def cron_job(schedule: str, *, deleting: bool = False, **spec: Any) -> Object:
    return {"metadata": DELETING if deleting else {}, "spec": {"schedule": schedule, **spec}}


def job(finished: str = "", *, deleting: bool = False, **spec: Any) -> Object:
    """Return a Job that started an hour ago and finished half an hour ago, if at all."""
    finish = {"type": finished, "status": "True", "lastTransitionTime": timestamp(NOW - timedelta(minutes=30))}
    status = {"startTime": timestamp(NOW - timedelta(hours=1)), "conditions": [finish] if finished else []}
    return {"metadata": DELETING if deleting else {}, "spec": spec, "status": status}


@pytest.mark.parametrize(
    ("cron_jobs", "jobs", "minutes"),
    [
        ([], [], None),
        ([cron_job("0 * * * *")], [], 30),
        ([cron_job("0 * * * *"), cron_job("45 * * * *")], [], 15),
        ([cron_job("0 12 * * *", timeZone="Europe/Berlin")], [], 30),
        ([cron_job("0 * * * *", suspend=True)], [], None),
        ([cron_job("0 * * * *", deleting=True)], [], None),
        ([cron_job("not a schedule")], [], None),
        ([cron_job("0 * * * *", timeZone="Nowhere/Town")], [], None),
        ([cron_job("0 0 30 2 *")], [], None),
        ([], [job("Complete", ttlSecondsAfterFinished=3600)], 30),
        ([], [job("Failed", ttlSecondsAfterFinished=3600)], 30),
        ([], [job("Complete", ttlSecondsAfterFinished=60)], 0),
        ([], [job("Complete")], None),
        ([], [job("Complete", ttlSecondsAfterFinished=3600, deleting=True)], None),
        ([], [job("Complete", ttlSecondsAfterFinished=3600, managedBy="example.org/other")], None),
        ([], [job(ttlSecondsAfterFinished=3600)], None),
        ([], [job(activeDeadlineSeconds=7200)], 60),
        ([], [job("Complete", activeDeadlineSeconds=7200)], None),
        ([], [job(activeDeadlineSeconds=7200, suspend=True)], None),
        ([cron_job("0 * * * *")], [job("Complete", ttlSecondsAfterFinished=2400)], 10),
    ],
)
def test_first_scheduled_work_is_due(cron_jobs: list[Object], jobs: list[Object], minutes: int | None) -> None:
    expected = NOW + timedelta(minutes=minutes) if minutes is not None else None
    times = [*(cron_job_due_time(each, NOW) for each in cron_jobs), *(job_due_time(each, NOW) for each in jobs)]
    assert min((each for each in times if each is not None), default=None) == expected
