"""Times at which the controllers of a plane have work to do without any request. Pure."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfoNotFoundError

from tapestry.controlplane.workloads.jobs import finished_at, is_finished, is_managed_elsewhere
from tapestry.kube.cron_schedule import parse_schedule
from tapestry.kube.objects import Object, is_deleting, value_at
from tapestry.kube.times import parse_time


def cron_job_due_time(cron_job: Object, now: datetime) -> datetime | None:
    """Return the first time after now at which a CronJob starts."""
    spec = cron_job["spec"]
    if spec.get("suspend") or is_deleting(cron_job):
        return None
    try:
        return parse_schedule(spec["schedule"], spec.get("timeZone")).next_after(now)
    except (ValueError, ZoneInfoNotFoundError):  # the controller reports it
        return None


def job_due_time(job: Object, now: datetime) -> datetime | None:
    """Return the time at which a Job reaches its deadline or its time to live. What is overdue is due now."""
    due = job_end_time(job)
    return max(due, now) if due is not None else None


def job_end_time(job: Object) -> datetime | None:
    spec = job["spec"]
    if is_deleting(job) or is_managed_elsewhere(job):
        return None
    if is_finished(job):
        seconds = spec.get("ttlSecondsAfterFinished")
        return finished_at(job) + timedelta(seconds=seconds) if seconds is not None else None
    seconds, started = spec.get("activeDeadlineSeconds"), value_at(job, "status", "startTime")
    if seconds is None or not started or spec.get("suspend"):
        return None
    return parse_time(started) + timedelta(seconds=seconds)
