"""Idle planes: they fall asleep, and wake for their next scheduled work."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from tapestry.apiserver.core.store import Store
from tapestry.controller.manager import is_enabled
from tapestry.kube.objects import Object
from tapestry.kube.resources import CRON_JOBS, JOBS, PODS
from tapestry.planes.due_times import next_due_time
from tapestry.planes.open_plane import OpenPlane
from tapestry.planes.plane_set import PlaneEntry, PlaneSet, PlaneState
from tapestry.process.logs import logger

log = logger(__name__)

MAX_WAIT_SECONDS = 60.0
"""Seconds between two checks at most, because the clock of the machine may be set."""
FINAL_PHASES = ("Succeeded", "Failed")


@dataclass(frozen=True)
class PlaneActivity:
    """Activity of a plane that keeps it awake."""

    connections: int
    """Number of client connections, including watches."""
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


class PodStatus(msgspec.Struct):
    phase: str = ""


class Pod(msgspec.Struct):
    """The fields of a pod that show whether it runs."""

    spec: PodSpec
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def is_running(self) -> bool:
        """True if a kubelet is responsible for the pod, and it has not ended."""
        return bool(self.spec.node_name) and self.status.phase not in FINAL_PHASES


POD_DECODER = msgspec.json.Decoder(Pod)


def has_running_pods(store: Store) -> bool:
    return any(POD_DECODER.decode(each.raw).is_running for each in store.list_objects(PODS.name))


def scheduled_work(plane: OpenPlane, now: datetime) -> datetime | None:
    """Return the time of the next scheduled work of the controllers that run in the plane."""
    enabled = plane.manager.config.controllers
    cron_jobs, jobs = (
        objects_of(plane.opened.store, name) if is_enabled(controller, enabled) else []
        for controller, name in (("cronjobs", CRON_JOBS.name), ("jobs", JOBS.name))
    )
    return next_due_time(cron_jobs, jobs, now)


def objects_of(store: Store, resource: str) -> list[Object]:
    return [msgspec.json.decode(each.raw) for each in store.list_objects(resource)]


class IdlePlanes:
    """Closes planes that are idle, and opens sleeping planes that have work to do."""

    def __init__(
        self,
        planes: PlaneSet,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._planes, self._now, self._monotonic = planes, now, monotonic
        self._changed = asyncio.Event()
        planes.on_change(lambda _: self._changed.set())

    async def run(self) -> None:
        """Check planes when they may be idle or have work to do, until cancelled."""
        while True:
            self._changed.clear()
            wait = min([await self._check_safely(each) for each in self._planes], default=MAX_WAIT_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()

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
        await self._planes.wake(entry)
        return MAX_WAIT_SECONDS

    async def _check_open(self, entry: PlaneEntry, plane: OpenPlane) -> float:
        if (idle_timeout := entry.idle_timeout) is None:
            return MAX_WAIT_SECONDS
        http_handler, now = plane.opened.http_handler, self._now()
        connections = http_handler.connection_limiter.authenticated + len(http_handler.active_requests)
        idle_time = timedelta(seconds=self._monotonic() - http_handler.active_requests.last_end)
        if connections or idle_time < idle_timeout:  # reading the store is slower
            wait = idle_timeout if connections else idle_timeout - idle_time
            return min(wait.total_seconds(), MAX_WAIT_SECONDS)
        if plane.manager.has_work(idle_timeout.total_seconds()):
            return min(idle_timeout.total_seconds(), MAX_WAIT_SECONDS)
        next_due = scheduled_work(plane, now)
        activity = PlaneActivity(connections, idle_time, has_running_pods(plane.opened.store), next_due)
        if not may_sleep(activity, now, idle_timeout):
            return min(idle_timeout.total_seconds(), MAX_WAIT_SECONDS)
        await self._planes.close(entry, PlaneState.ASLEEP, wake_at=next_due)
        return MAX_WAIT_SECONDS
