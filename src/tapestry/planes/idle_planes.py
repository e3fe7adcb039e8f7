"""Idle planes: they fall asleep, and wake for their next scheduled work.

Each plane has its own task, so no plane delays another. Objects are read in slices, because there may be many.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import msgspec

from tapestry.apis import keys
from tapestry.apiserver.core.store import ObjectVersion, Store
from tapestry.controller.manager import is_enabled
from tapestry.kube.resources import CRON_JOBS, JOBS, PODS
from tapestry.planes.due_times import cron_job_due_time, job_due_time
from tapestry.planes.open_plane import OpenPlane
from tapestry.planes.plane_set import PlaneEntry, PlaneSet, PlaneState
from tapestry.process.logs import logger

log = logger(__name__)

MAX_WAIT_SECONDS = 60.0
"""Seconds between two checks at most, because the clock of the machine may be set."""
MIN_IDLE_TIMEOUT = timedelta(seconds=10)
"""Shortest time after which a plane falls asleep: to open it again takes much longer than to keep it open."""
MAX_WAKING = 4
"""Planes that are woken at the same time for their scheduled work."""
WAKE_SECONDS = 10.0
"""Seconds after which a plane that is still opening delays others no more."""
SLICE_SECONDS = 0.001
"""Time for which objects are read at once."""
FINAL_PHASES = ("Succeeded", "Failed")
SUSPENDED = "Suspended"
"""Reason of the condition Mapped of pods that wait until their drained workloads run again."""


@dataclass(frozen=True)
class PlaneActivity:
    """Activity of a plane that keeps it awake."""

    connections: int
    """Number of clients: connections, including watches, and clients in this process."""
    idle_time: timedelta
    """Time since the last request ended."""
    has_running_pods: bool
    next_due: datetime | None
    """Time of the next scheduled work of its controllers."""


def may_sleep(activity: PlaneActivity, now: datetime, idle_timeout: timedelta) -> bool:
    """Return whether a plane is idle. One that would soon be woken again is not."""
    return (
        not activity.connections
        and activity.idle_time >= idle_timeout
        and not activity.has_running_pods
        and (activity.next_due is None or activity.next_due - now > idle_timeout)
    )


class PodSpec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    scheduling_gates: list[dict[str, str]] | None = None


class PodCondition(msgspec.Struct):
    type: str = ""
    reason: str = ""


class PodStatus(msgspec.Struct):
    phase: str = ""
    conditions: list[PodCondition] | None = None


class Pod(msgspec.Struct):
    """The fields of a pod that show whether it runs."""

    spec: PodSpec
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def is_running(self) -> bool:
        """True if a kubelet is responsible for the pod, and it has not ended."""
        return bool(self.spec.node_name) and self.status.phase not in FINAL_PHASES

    @property
    def is_waiting(self) -> bool:
        """True if a scheduler may give the pod a node at any time."""
        is_suspended = any(
            each.type == keys.MAPPED_CONDITION and each.reason == SUSPENDED for each in self.status.conditions or ()
        )
        may_start = not (self.spec.node_name or self.spec.scheduling_gates or is_suspended)
        return may_start and self.status.phase not in FINAL_PHASES


POD_DECODER = msgspec.json.Decoder(Pod)


async def has_running_pods(store: Store, *, or_waiting: bool = False) -> bool:
    """Return whether a pod runs. With `or_waiting`, also whether one waits for a node."""
    async for each in in_slices(store.list_objects(PODS.name)):
        pod = POD_DECODER.decode(each.raw)
        if pod.is_running or (or_waiting and pod.is_waiting):
            return True
    return False


async def scheduled_work(plane: OpenPlane, now: datetime) -> datetime | None:
    """Return the time of the next scheduled work of the controllers that run in the plane."""
    enabled, times = plane.manager.config.controllers, list[datetime | None]()
    for controller, resource, due_time in (
        ("cronjobs", CRON_JOBS, cron_job_due_time),
        ("jobs", JOBS, job_due_time),
    ):
        if is_enabled(controller, enabled):
            versions = plane.opened.store.list_objects(resource.name)
            times += [due_time(msgspec.json.decode(each.raw), now) async for each in in_slices(versions)]
    return min((each for each in times if each is not None), default=None)


async def in_slices(versions: Sequence[ObjectVersion]) -> AsyncIterator[ObjectVersion]:
    """Yield all versions. Other tasks run from time to time."""
    end = time.perf_counter() + SLICE_SECONDS
    for each in versions:
        yield each
        if time.perf_counter() >= end:
            await asyncio.sleep(0)
            end = time.perf_counter() + SLICE_SECONDS


class IdlePlanes:
    """Close planes that are idle, and open sleeping planes that have work to do."""

    def __init__(
        self,
        planes: PlaneSet,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._planes, self._now, self._monotonic = planes, now, monotonic
        self._waking = asyncio.Semaphore(MAX_WAKING)
        self._changed: dict[PlaneEntry, asyncio.Event] = {}
        """Events that are set when a plane changes its state. Each has a task."""

    async def run(self) -> None:
        """Check planes when they may be idle or have work to do, until cancelled."""
        async with asyncio.TaskGroup() as group:

            def notice(entry: PlaneEntry) -> None:
                if (changed := self._changed.get(entry)) is not None:
                    changed.set()
                else:
                    self._changed[entry] = asyncio.Event()
                    group.create_task(self._follow(entry, self._changed[entry]), name=f"idle-{entry.id}")

            self._planes.on_change(notice)
            for entry in self._planes:
                notice(entry)
            await asyncio.get_running_loop().create_future()  # until cancelled

    async def _follow(self, entry: PlaneEntry, changed: asyncio.Event) -> None:
        """Check a plane as long as it exists."""
        try:
            while self._planes.get(entry.id) is entry:
                changed.clear()
                wait = await self._check_safely(entry)
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await changed.wait()
        finally:
            del self._changed[entry]

    async def _check_safely(self, entry: PlaneEntry) -> float:
        try:
            return await self.check(entry)
        except Exception:
            log.exception("idle check failed", plane=entry.id)  # caught here: one plane must not affect the others
            return MAX_WAIT_SECONDS

    async def check(self, entry: PlaneEntry) -> float:
        """Let a plane sleep, or wake it. Return the seconds until the next check."""
        if entry.plane is not None:
            return await self._check_open(entry, entry.plane)
        if entry.state is not PlaneState.ASLEEP or entry.wake_at is None:
            return MAX_WAIT_SECONDS
        if (wait := (entry.wake_at - self._now()).total_seconds()) > 0:
            return min(wait, MAX_WAIT_SECONDS)
        async with self._waking:
            with suppress(TimeoutError):
                async with asyncio.timeout(WAKE_SECONDS):
                    await self._planes.wake(entry)
        return MAX_WAIT_SECONDS

    async def _check_open(self, entry: PlaneEntry, plane: OpenPlane) -> float:
        if entry.idle_timeout is None:
            return MAX_WAIT_SECONDS
        idle_timeout = max(entry.idle_timeout, MIN_IDLE_TIMEOUT)
        activity = self._activity(plane)
        if not may_sleep(activity, self._now(), idle_timeout):  # reading the store is slower
            wait = idle_timeout if activity.connections else idle_timeout - activity.idle_time
            return min(wait.total_seconds(), MAX_WAIT_SECONDS)
        if plane.manager.has_work(idle_timeout.total_seconds()):
            return min(idle_timeout.total_seconds(), MAX_WAIT_SECONDS)
        now = self._now()
        is_placed_by_host = plane.opened.server.syncer_restriction.schedules_pods
        has_pods = await has_running_pods(plane.opened.store, or_waiting=is_placed_by_host)
        next_due = await scheduled_work(plane, now)
        activity = replace(self._activity(plane), has_running_pods=has_pods, next_due=next_due)
        if entry.plane is not plane:
            return 0.0
        if not may_sleep(activity, now, idle_timeout):
            return min(idle_timeout.total_seconds(), MAX_WAIT_SECONDS)
        await self._planes.close(entry, PlaneState.ASLEEP, wake_at=next_due)
        return MAX_WAIT_SECONDS

    def _activity(self, plane: OpenPlane) -> PlaneActivity:
        """Return the activity of the clients of a plane, without its objects."""
        handler = plane.opened.http_handler
        connections = handler.connection_limiter.authenticated + len(handler.active_requests)
        idle_time = timedelta(seconds=self._monotonic() - handler.active_requests.last_end)
        return PlaneActivity(connections + plane.clients.count, idle_time, has_running_pods=False, next_due=None)
