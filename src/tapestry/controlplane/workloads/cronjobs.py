"""CronJobs: a Job whenever one is due.

When that is, `schedules` says.  A Job's name follows from its minute, so that nobody makes it twice.
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
from tapestry.controlplane.workloads.cron_schedule import Schedule, ScheduleError, parse_schedule
from tapestry.controlplane.workloads.jobs import is_finished
from tapestry.kube.conditions import is_condition_true
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
"""Moments that were missed, beyond which somebody is told that something is wrong."""
NEVER_DUE_MESSAGE = "time difference between two schedules is less than 1 second"
"""What Kubernetes says of a schedule by which nothing is ever due."""
CACHE_RETRY_INTERVAL = 0.1
"""Seconds until a cache is asked again whether it has seen the last write."""
HISTORY_LIMITS = {"Complete": ("successfulJobsHistoryLimit", 3), "Failed": ("failedJobsHistoryLimit", 1)}


@dataclass(frozen=True)
class CronJobReconciler:
    """Makes the Jobs of each CronJob."""

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
            if (made := await self.create_job(cron, due)) is not None:
                started = [*map(job_reference, active), job_reference(made)]
                status = {**status, "active": started, "lastScheduleTime": timestamp(due)}
        await self.update_status(cron, status)
        following = schedule.next_after(self.now())
        return Result(requeue_at=following) if following is not None else None

    # -- when

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
        """The last moment at which a Job was due that has none yet, unless it is too late for it."""
        now = self.now()
        since = earliest_start(cron, now)
        found = schedule.last_between(since, now)
        if found is None:
            return None
        if has_missed_many(schedule, since, now):
            message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
            self.events.warning(cron, "TooManyMissedTimes", message)
        return found

    def may_start(self, cron: Object, active: Sequence[Object]) -> bool:
        if active and cron["spec"].get("concurrencyPolicy") == "Forbid":
            message = "Not starting job because prior execution is running and concurrency policy is Forbid"
            self.events.normal(cron, "JobAlreadyActive", message)
            return False
        return True

    async def is_current(self, cron: Object) -> bool:
        """Whether the cache has what was last written: a Job that has come and gone must not come again."""
        live = await self.client.get(CRON_JOBS, name_of(cron), namespace_of(cron))
        return version_of(live) == version_of(cron)

    # -- Jobs

    async def active_jobs(self, cron: Object, jobs: Sequence[Object]) -> list[Object]:
        """Jobs that have not finished; one that was there and is not seen now is asked for."""
        known = {uid_of(job) for job in jobs}
        found = [job for job in jobs if not is_finished(job)]
        for each in value_at(cron, "status", "active", default=()):
            if each["uid"] in known:
                continue
            try:
                job = await self.client.get(JOBS, each["name"], each["namespace"])
            except NotFound:
                self.events.normal(cron, "MissingJob", f"Active job went missing: {each['name']}")
            else:
                found += [job] if uid_of(job) == each["uid"] and not is_finished(job) else []
        was = {each["uid"] for each in value_at(cron, "status", "active", default=())}
        for job in jobs:
            if is_finished(job) and uid_of(job) in was:
                end = "Complete" if is_condition_true(job, "Complete") else "Failed"
                self.events.normal(cron, "SawCompletedJob", f"Saw completed job: {name_of(job)}, condition: {end}")
        return sorted(found, key=name_of)

    async def create_job(self, cron: Object, due: datetime) -> Object | None:
        """The Job for that moment; None where its name is another's."""
        wanted = job_of(cron, due)
        try:
            made = await self.client.create(JOBS, wanted)
        except AlreadyExists:
            held = await self.client.get(JOBS, name_of(wanted), namespace_of(wanted))
            return held if owned_pods.is_controlled_by(held, cron) else None
        except ApiError as error:
            self.events.warning(cron, "FailedCreate", f"Error creating job: {error.message}")
            raise
        self.events.normal(cron, "SuccessfulCreate", f"Created job {name_of(made)}")
        return made

    async def delete_old_jobs(self, cron: Object, jobs: Sequence[Object]) -> None:
        """Remove finished Jobs beyond those that are kept to look at."""
        for end, (field, limit) in HISTORY_LIMITS.items():
            ended = sorted(
                (job for job in jobs if is_condition_true(job, end) and not is_deleting(job)),
                key=lambda job: (value_at(job, "status", "startTime", default=""), name_of(job)),
            )
            for job in ended[: max(len(ended) - cron["spec"].get(field, limit), 0)]:
                await self.delete_job(cron, job)

    async def delete_job(self, cron: Object, job: Object) -> None:
        try:
            await self.client.delete(JOBS, job, propagation=Propagation.BACKGROUND)
        except NotFound:
            return
        self.events.normal(cron, "SuccessfulDelete", f"Deleted job {name_of(job)}")

    async def update_status(self, cron: Object, status: Object) -> None:
        wanted = {key: value for key, value in status.items() if value}
        if patch := merge_patch(cron.get("status") or {}, wanted):
            await self.client.patch(CRON_JOBS, cron, {"status": patch}, subresource="status")


def earliest_start(cron: Object, now: datetime) -> datetime:
    """The moment after which what is due has no Job yet, and is not too late."""
    since = parse_time(value_at(cron, "status", "lastScheduleTime") or cron["metadata"]["creationTimestamp"])
    seconds = cron["spec"].get("startingDeadlineSeconds")
    return max(since, now - timedelta(seconds=seconds)) if seconds is not None else since


def has_missed_many(schedule: Schedule, since: datetime, now: datetime) -> bool:
    moment: datetime | None = since
    for _ in range(MAX_MISSED_STARTS + 1):
        moment = schedule.next_after(moment) if moment is not None else None
        if moment is None or moment > now:
            return False
    return True


def last_success_status(cron: Object, jobs: Sequence[Object]) -> Object:
    """When a Job was last complete."""
    said = value_at(cron, "status", "lastSuccessfulTime")
    moments = [value_at(job, "status", "completionTime") for job in jobs if is_condition_true(job, "Complete")]
    last = max(filter(None, (said, *moments)), default=None)
    return {"lastSuccessfulTime": last} if last is not None else {}


def job_reference(job: Object) -> Object:
    """As `status.active` has it; without a version, which says nothing to anybody."""
    found = object_reference(with_type_meta(JOBS, job))
    return {key: value for key, value in found.items() if key != "resourceVersion"}


def job_of(cron: Object, due: datetime) -> Object:
    template, zone = cron["spec"]["jobTemplate"], cron["spec"].get("timeZone")
    metadata = template.get("metadata") or {}
    moment = due.astimezone(ZoneInfo(zone)).isoformat() if zone else timestamp(due)
    made = owned_object(cron, JOBS, {"spec": template["spec"]}, name=f"{name_of(cron)}-{int(due.timestamp()) // 60}")
    said = {"annotations": {**(metadata.get("annotations") or {}), SCHEDULED_TIMESTAMP: moment}}
    if metadata.get("labels"):
        said["labels"] = metadata["labels"]
    return {**made, "metadata": {**made["metadata"], **said}}


def install(manager: Manager) -> None:
    crons = manager.informer(CRON_JOBS)
    jobs = manager.informer(JOBS, indexers={"owner": owned_pods.owner_uid})
    reconciler = CronJobReconciler(manager.client, manager.events, manager.now, crons, jobs)
    controller = manager.controller("cronjobs", reconciler.reconcile)
    controller.watch(crons)
    controller.watch(jobs, controller_key(CRON_JOBS))
