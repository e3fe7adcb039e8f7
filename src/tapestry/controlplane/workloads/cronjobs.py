"""CronJob controller: creates a Job at each scheduled time.

`kube.cron_schedule` computes the times. The name of a Job contains its scheduled minute, so that it is created only
once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tapestry.client.client import Client
from tapestry.client.options import Propagation
from tapestry.controller import Informer, Manager, Result
from tapestry.controller.controller import controller_key
from tapestry.controller.events import Recorder
from tapestry.controlplane.workloads import owned_pods
from tapestry.controlplane.workloads.jobs import is_finished
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.cron_schedule import Schedule, ScheduleError, parse_schedule
from tapestry.kube.errors import AlreadyExists, ApiError, NotFound
from tapestry.kube.objects import (
    Object,
    is_deleting,
    name_of,
    namespace_of,
    object_reference,
    owned_object,
    uid_of,
    value_at,
    version_of,
    with_type_meta,
)
from tapestry.kube.patches import merge_patch
from tapestry.kube.resources import CRON_JOBS, JOBS
from tapestry.kube.times import parse_time, timestamp

SCHEDULED_TIMESTAMP = "batch.kubernetes.io/cronjob-scheduled-timestamp"
MAX_MISSED_STARTS = 100
"""Number of missed start times above which a warning event is recorded."""
NEVER_DUE_MESSAGE = "time difference between two schedules is less than 1 second"
"""Kubernetes' message for a schedule without any start time."""
CACHE_RETRY_INTERVAL = 0.1
"""Seconds until the next check whether the cache contains the last write."""
HISTORY_LIMITS = {"Complete": ("successfulJobsHistoryLimit", 3), "Failed": ("failedJobsHistoryLimit", 1)}


@dataclass(frozen=True)
class CronJobReconciler:
    client: Client
    events: Recorder
    now: Callable[[], datetime]
    cron_jobs: Informer
    jobs: Informer

    async def reconcile(self, key: str) -> Result | None:
        cron = self.cron_jobs.store.get(key)
        if cron is None:
            return None
        jobs = self.jobs.store.by("owner", uid_of(cron))
        await self.delete_old_jobs(cron, jobs)
        active = await self.active_jobs(cron, jobs)
        status = {
            **(cron.get("status") or {}),
            "active": [*map(job_reference, active)],
            **last_success_status(cron, jobs),
        }
        schedule = self.schedule(cron) if not is_deleting(cron) and not cron["spec"].get("suspend") else None
        if schedule is None:
            await self.update_status(cron, status)
            return None
        if (
            schedule.next_after(self.now()) is None
            and schedule.last_between(earliest_start(cron, self.now()), self.now()) is None
        ):
            self.events.warning(
                cron, "InvalidSchedule", f"invalid schedule: {cron['spec']['schedule']} : {NEVER_DUE_MESSAGE}"
            )
            await self.update_status(cron, status)
            return None
        due = self.due_time(cron, schedule)
        if due is not None and self.may_start(cron, active):
            if not await self.is_current(cron):
                return Result(requeue_after=CACHE_RETRY_INTERVAL)
            if cron["spec"].get("concurrencyPolicy") == "Replace":
                for job in active:
                    await self.delete_job(cron, job)
                active = []
            if (created := await self.create_job(cron, due)) is not None:
                references = [*map(job_reference, active), job_reference(created)]
                status = {**status, "active": references, "lastScheduleTime": timestamp(due)}
        await self.update_status(cron, status)
        next_start = schedule.next_after(self.now())
        return Result(requeue_at=next_start) if next_start is not None else None

    # -- schedule

    def schedule(self, cron: Object) -> Schedule | None:
        text, zone = cron["spec"]["schedule"], cron["spec"].get("timeZone")
        try:
            return parse_schedule(text, zone)
        except ScheduleError as error:
            self.events.warning(cron, "UnparseableSchedule", f'unparseable schedule: "{text}" : {error}')
        except (ZoneInfoNotFoundError, ValueError):
            self.events.warning(cron, "UnknownTimeZone", f'invalid timeZone: "{zone}": unknown time zone {zone}')
        return None

    def due_time(self, cron: Object, schedule: Schedule) -> datetime | None:
        """Return the latest start time that has no Job yet and whose deadline has not passed."""
        now = self.now()
        since = earliest_start(cron, now)
        due = schedule.last_between(since, now)
        if due is None:
            return None
        if has_missed_many(schedule, since, now):
            message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
            self.events.warning(cron, "TooManyMissedTimes", message)
        return due

    def may_start(self, cron: Object, active: Sequence[Object]) -> bool:
        if active and cron["spec"].get("concurrencyPolicy") == "Forbid":
            message = "Not starting job because prior execution is running and concurrency policy is Forbid"
            self.events.normal(cron, "JobAlreadyActive", message)
            return False
        return True

    async def is_current(self, cron: Object) -> bool:
        """Return whether the cached CronJob is up to date, so that a deleted Job is not created again."""
        live = await self.client.get(CRON_JOBS, name_of(cron), namespace_of(cron))
        return version_of(live) == version_of(cron)

    # -- Jobs

    async def active_jobs(self, cron: Object, jobs: Sequence[Object]) -> list[Object]:
        """Return unfinished Jobs. Jobs of the status that are not cached are read from the API server."""
        known = {uid_of(job) for job in jobs}
        active = [job for job in jobs if not is_finished(job)]
        for each in value_at(cron, "status", "active", default=()):
            if each["uid"] in known:
                continue
            try:
                job = await self.client.get(JOBS, each["name"], each["namespace"])
            except NotFound:
                self.events.normal(cron, "MissingJob", f"Active job went missing: {each['name']}")
            else:
                active += [job] if uid_of(job) == each["uid"] and not is_finished(job) else []
        previously_active = {each["uid"] for each in value_at(cron, "status", "active", default=())}
        for job in jobs:
            if is_finished(job) and uid_of(job) in previously_active:
                result = "Complete" if is_condition_true(job, "Complete") else "Failed"
                self.events.normal(cron, "SawCompletedJob", f"Saw completed job: {name_of(job)}, condition: {result}")
        return sorted(active, key=name_of)

    async def create_job(self, cron: Object, due: datetime) -> Object | None:
        """Create the Job for that time. Return None if another object has its name."""
        desired = job_of(cron, due)
        try:
            created = await self.client.create(JOBS, desired)
        except AlreadyExists:
            existing = await self.client.get(JOBS, name_of(desired), namespace_of(desired))
            return existing if owned_pods.is_controlled_by(existing, cron) else None
        except ApiError as error:
            self.events.warning(cron, "FailedCreate", f"Error creating job: {error.message}")
            raise
        self.events.normal(cron, "SuccessfulCreate", f"Created job {name_of(created)}")
        return created

    async def delete_old_jobs(self, cron: Object, jobs: Sequence[Object]) -> None:
        """Delete finished Jobs over the history limits."""
        for condition, (field, limit) in HISTORY_LIMITS.items():
            finished = sorted(
                (job for job in jobs if is_condition_true(job, condition) and not is_deleting(job)),
                key=lambda job: (value_at(job, "status", "startTime", default=""), name_of(job)),
            )
            for job in finished[: max(len(finished) - cron["spec"].get(field, limit), 0)]:
                await self.delete_job(cron, job)

    async def delete_job(self, cron: Object, job: Object) -> None:
        try:
            await self.client.delete(JOBS, job, propagation=Propagation.BACKGROUND)
        except NotFound:
            return
        self.events.normal(cron, "SuccessfulDelete", f"Deleted job {name_of(job)}")

    async def update_status(self, cron: Object, status: Object) -> None:
        desired = {key: value for key, value in status.items() if value}
        if patch := merge_patch(cron.get("status") or {}, desired):
            await self.client.patch(CRON_JOBS, cron, {"status": patch}, subresource="status")


def earliest_start(cron: Object, now: datetime) -> datetime:
    """Return the time after which start times have no Job yet and their deadline has not passed."""
    since = parse_time(value_at(cron, "status", "lastScheduleTime") or cron["metadata"]["creationTimestamp"])
    seconds = cron["spec"].get("startingDeadlineSeconds")
    return max(since, now - timedelta(seconds=seconds)) if seconds is not None else since


def has_missed_many(schedule: Schedule, since: datetime, now: datetime) -> bool:
    start: datetime | None = since
    for _ in range(MAX_MISSED_STARTS + 1):
        start = schedule.next_after(start) if start is not None else None
        if start is None or start > now:
            return False
    return True


def last_success_status(cron: Object, jobs: Sequence[Object]) -> Object:
    """Return the time at which a Job last completed, as a status field."""
    recorded = value_at(cron, "status", "lastSuccessfulTime")
    times = [value_at(job, "status", "completionTime") for job in jobs if is_condition_true(job, "Complete")]
    last = max(filter(None, (recorded, *times)), default=None)
    return {"lastSuccessfulTime": last} if last is not None else {}


def job_reference(job: Object) -> Object:
    """Return a reference to a Job for `status.active`, without a resource version."""
    reference = object_reference(with_type_meta(JOBS, job))
    return {key: value for key, value in reference.items() if key != "resourceVersion"}


def job_of(cron: Object, due: datetime) -> Object:
    template, zone = cron["spec"]["jobTemplate"], cron["spec"].get("timeZone")
    metadata = template.get("metadata") or {}
    scheduled = due.astimezone(ZoneInfo(zone)).isoformat() if zone else timestamp(due)
    job = owned_object(cron, JOBS, {"spec": template["spec"]}, name=f"{name_of(cron)}-{int(due.timestamp()) // 60}")
    job_metadata = {"annotations": {**(metadata.get("annotations") or {}), SCHEDULED_TIMESTAMP: scheduled}}
    if metadata.get("labels"):
        job_metadata["labels"] = metadata["labels"]
    return {**job, "metadata": {**job["metadata"], **job_metadata}}


def install(manager: Manager) -> None:
    crons = manager.informer(CRON_JOBS)
    jobs = manager.informer(JOBS, indexers={"owner": owned_pods.owner_uid})
    reconciler = CronJobReconciler(manager.client, manager.events, manager.now, crons, jobs)
    controller = manager.controller("cronjobs", reconciler.reconcile)
    controller.watch(crons)
    controller.watch(jobs, controller_key(CRON_JOBS))
