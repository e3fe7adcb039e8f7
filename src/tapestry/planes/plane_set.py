"""The planes of a process: opens, closes, lists and looks them up.

Each plane runs in its own task, so that a plane that fails to open or stops with an error affects only itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from tapestry.apiserver.assembly import ServerThreads
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.epochs import EpochLost
from tapestry.client.transport import Transport
from tapestry.planes.heap import Heap
from tapestry.planes.open_plane import OpenPlane, SyncerRule, open_plane
from tapestry.planes.plane_data import PlaneHold
from tapestry.planes.process_shares import PlaneShare, ProcessShares
from tapestry.process.logs import logger
from tapestry.process.tasks import first_error

log = logger(__name__)


class PlaneState(StrEnum):
    OPENING = "Opening"
    OPEN = "Open"
    ASLEEP = "Asleep"
    """Closed because it was idle. An authenticated request opens it."""
    SUSPENDED = "Suspended"
    """Closed on request. Only a change of its record opens it."""
    FAILED = "Failed"


@dataclass(eq=False)
class PlaneEntry:
    """A plane of this process in one of its states."""

    id: str
    config: ApiServerConfig
    hold: PlaneHold | None = None
    """Right of this process to the plane. A plane in etcd needs one to open."""
    state: PlaneState = PlaneState.ASLEEP
    message: str = ""
    """Reason of the state. That of FAILED is for operators; it may name files."""
    idle_timeout: timedelta | None = None
    """Time without clients after which the plane falls asleep; None if it never does."""
    wake_at: datetime | None = None
    """Time of the next scheduled work in state ASLEEP."""
    later_epoch: int | None = None
    """Epoch of another process that has taken the plane, in state FAILED; 0 if it is not known, None if none has."""
    plane: OpenPlane | None = None
    """The open plane in state OPEN; None in all others."""
    task: asyncio.Task[None] | None = None
    """Task that runs the plane from the start of opening to the end of closing."""
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Request to the task to close the plane."""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    """State of the start: set when the plane is open or failed."""


PlaneTask = Callable[[PlaneEntry, OpenPlane], Coroutine[Any, Any, None]]
"""Work beside an open plane. It is cancelled, and ends, before the plane closes. An error of it closes the plane."""


async def no_obstacle(_: str) -> str:
    """Return that every plane may be deleted."""
    return ""


class PlaneSet:
    """The planes of this process by id."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        threads: ServerThreads,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._group, self._threads, self._now = group, threads, now
        self._heap = Heap()
        self.shares = ProcessShares(threads)
        """Shares of the planes, and the limits on the connections of all listeners."""
        self._entries: dict[str, PlaneEntry] = {}
        self._syncer_rules: dict[str, SyncerRule] = {}
        """Rules of the planes whose nodes belong to a syncer, by the ids of the planes."""
        self._is_stopped = False
        self._task: PlaneTask | None = None
        self._listeners: list[Callable[[PlaneEntry], None]] = []
        self.obstacle_to_deletion: Callable[[str], Awaitable[str]] = no_obstacle
        """Return why the data of a plane must not be deleted yet, by its id; empty if it may be."""

    @property
    def is_stopped(self) -> bool:
        """True from the call of `close_all` on: the states of planes are not those that their records ask for."""
        return self._is_stopped

    def on_change(self, listener: Callable[[PlaneEntry], None]) -> None:
        """Call `listener` when a plane is added or changes its state."""
        self._listeners.append(listener)

    def run_with_planes(self, task: PlaneTask) -> None:
        """Run `task` beside each plane that is opened from now on, as work of the plane."""
        self._task = task

    def __iter__(self) -> Iterator[PlaneEntry]:
        return iter(list(self._entries.values()))

    def get(self, plane_id: str) -> PlaneEntry | None:
        return self._entries.get(plane_id)

    def config_of(self, plane_id: str) -> ApiServerConfig | None:
        entry = self._entries.get(plane_id)
        return entry.config if entry is not None else None

    def syncer_transport(self, plane_id: str) -> Transport | None:
        """Return a transport of the syncer to a plane, which the caller closes; None unless the plane is open."""
        entry = self._entries.get(plane_id)
        return entry.plane.syncer_transport() if entry is not None and entry.plane is not None else None

    def has(self, plane_id: str) -> bool:
        return plane_id in self._entries

    def restrict_to_syncer(self, plane_id: str, rule: SyncerRule | None) -> None:
        """Let only the syncer of a plane write its nodes, now and whenever the plane opens; None ends that.

        The plane need not be added yet.
        """
        if rule is not None:
            self._syncer_rules[plane_id] = rule
        else:
            self._syncer_rules.pop(plane_id, None)
        entry = self._entries.get(plane_id)
        if entry is not None and entry.plane is not None:
            entry.plane.restrict_to_syncer(rule)

    def add(
        self,
        plane_id: str,
        config: ApiServerConfig,
        hold: PlaneHold | None = None,
        *,
        idle_timeout: timedelta | None = None,
        wake_at: datetime | None = None,
    ) -> PlaneEntry:
        """Add a plane without opening it. `wake_at` is the time of its next scheduled work, if it is known."""
        entry = PlaneEntry(plane_id, config, hold, idle_timeout=idle_timeout, wake_at=wake_at)
        self._entries[plane_id] = entry
        self._notify(entry)
        return entry

    def add_open(self, plane: OpenPlane) -> None:
        """Add a plane that the caller has opened. The caller removes it before closing it."""
        entry = PlaneEntry(plane.id, plane.opened.config, state=PlaneState.OPEN, plane=plane)
        self._entries[plane.id] = entry

    async def open(self, entry: PlaneEntry) -> OpenPlane | None:
        """Open a plane and wait until it handles requests.

        Return None if it cannot open; `message` tells why. Return None after `close_all`, too.
        """
        await self._wait_until_closed(entry)
        return await self._open(entry)

    async def wake(self, entry: PlaneEntry) -> OpenPlane | None:
        """Open a plane like `open`, but only if it is asleep. Return None if it is suspended or failed."""
        await self._wait_until_closed(entry)
        return None if entry.state in (PlaneState.SUSPENDED, PlaneState.FAILED) else await self._open(entry)

    async def _open(self, entry: PlaneEntry) -> OpenPlane | None:
        if self._is_stopped:
            return None
        if entry.task is None:
            entry.closing.clear()
            entry.ready.clear()
            entry.later_epoch = None
            self._set_state(entry, PlaneState.OPENING)
            share = self.shares.open_share(entry.id)
            entry.task = self._group.create_task(
                self._run(entry, share), name=f"plane-{entry.id}", context=share.work.context()
            )
        await entry.ready.wait()
        return entry.plane

    async def close(
        self, entry: PlaneEntry, state: PlaneState, message: str = "", wake_at: datetime | None = None
    ) -> None:
        """Close a plane and leave it in the given state. Requests get the response of that state from now on.

        The watches of clients end with a bookmark, so that they continue without a list when the plane is open again.
        """
        entry.plane = None
        entry.closing.set()
        self._set_state(entry, state, message, wake_at)
        await self._wait_until_closed(entry)

    async def _wait_until_closed(self, entry: PlaneEntry) -> None:
        while entry.task is not None and entry.closing.is_set():
            await asyncio.wait([entry.task])

    async def remove(self, entry: PlaneEntry) -> None:
        """Close and forget a plane. Its data stays."""
        await self.close(entry, PlaneState.SUSPENDED)
        self._entries.pop(entry.id, None)

    async def _run(self, entry: PlaneEntry, share: PlaneShare) -> None:
        try:
            async with open_plane(
                *(entry.id, entry.config, self._threads, self._now, entry.hold, share.isolation),
                syncer_rule=self._syncer_rules.get(entry.id),
                keeps_memory=lambda: entry.state is PlaneState.SUSPENDED,
            ) as plane:
                if not entry.closing.is_set():
                    plane.restrict_to_syncer(self._syncer_rules.get(entry.id))  # which may have changed meanwhile
                    entry.plane = plane
                    self._set_state(entry, PlaneState.OPEN)
                    entry.ready.set()
                    self._heap.freeze_soon()
                    await self._run_until_closing(entry, plane)
        except Exception as error:
            log.exception("plane failed", plane=entry.id)
            if not entry.closing.is_set():
                cause = first_error(error)
                entry.later_epoch = cause.current if isinstance(cause, EpochLost) else None
                self._set_state(entry, PlaneState.FAILED, str(cause))
        finally:
            share.close()
            entry.plane = entry.task = None
            entry.ready.set()

    async def _run_until_closing(self, entry: PlaneEntry, plane: OpenPlane) -> None:
        """Wait for the request to close a plane. The work beside it ends first, so that it may still use the plane."""
        if self._task is None:
            await entry.closing.wait()
            return
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._task(entry, plane), name=f"beside-{entry.id}")
            await entry.closing.wait()
            task.cancel()

    def _set_state(
        self, entry: PlaneEntry, state: PlaneState, message: str = "", wake_at: datetime | None = None
    ) -> None:
        entry.state, entry.message, entry.wake_at = state, message, wake_at
        self._notify(entry)

    def _notify(self, entry: PlaneEntry) -> None:
        for listener in self._listeners:
            listener(entry)

    async def close_all(self) -> None:
        """Close all planes at the same time, and open none from now on. Changes are not reported any more."""
        self._is_stopped = True
        self._listeners.clear()
        self._heap.close()
        async with asyncio.TaskGroup() as group:
            for entry in self:
                if entry.task is not None or entry.plane is not None:
                    group.create_task(self.close(entry, PlaneState.ASLEEP))
