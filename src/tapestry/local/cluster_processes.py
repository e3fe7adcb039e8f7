"""The clusters of a world, each a process: started, started again whenever one ends, and ended together.

Whatever ends a cluster, its data do not suffer: another process over the same folder goes on where it was.
"""

import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.kube.errors import KubeError
from tapestry.local.child_processes import guarded_process
from tapestry.local.proc import process_stat
from tapestry.local.world_folder import WorldError

TAPESTRY_PROGRAM = Path(sys.executable).with_name("tapestry")
STALL_TIMEOUT = 60.0
"""Seconds in which a cluster that starts has to get somewhere, and for one to end."""
START_TIMEOUT = 600.0
MIN_RESTART_BACKOFF, MAX_RESTART_BACKOFF = 1.0, 30.0
"""Seconds until a cluster is started again that ended soon."""
POLL_INTERVAL, RESPONSE_TIMEOUT = 0.05, 5.0
SIGNAL_EXIT_BASE = 128
LOG_TAIL_BYTES = 2000
"""Bytes of a log that are told."""

ReportLine = Callable[[str], None]


@dataclass
class StallDetector:
    """Whether something gets anywhere: its patience begins anew whenever what is seen of it changes."""

    stall_timeout: float
    total_timeout: float
    now: Callable[[], float] = time.monotonic
    _last_value: Hashable = None
    _began: float = field(init=False)
    _changed: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self._changed = self.now()

    def has_stalled(self, value: Hashable) -> bool:
        """Whether nothing has changed for too long, or it goes on for ever."""
        moment = self.now()
        if value != self._last_value:
            self._last_value, self._changed = value, moment
        return moment - self._changed > self.stall_timeout or moment - self._began > self.total_timeout


@dataclass
class ClusterProcess:
    """One cluster, and the process that it is at the moment."""

    folder: Path
    flags: tuple[str, ...]
    pid: int = 0
    """0 while there is none."""
    exit_message: str = ""
    """How its last process ended."""
    has_responded: bool = False

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def progress_value(self) -> tuple[float, ...]:
        """What grows while it starts: the time that it had on a processor, and its log."""
        try:
            return self.pid, process_stat(self.pid).cpu_seconds, self.log.stat().st_size
        except OSError:
            return (self.pid,)

    def log_tail(self) -> str:
        """The end of its log; or why that cannot tell the end of the story."""
        if shutil.disk_usage(self.folder).free < LOG_TAIL_BYTES:
            return f"no space is left on the disk of {self.folder}; make room"
        with self.log.open("rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES, 0))
            return log.read().decode(errors="replace")


@dataclass
class ClusterProcesses:
    """The clusters in a folder."""

    folder: Path
    report: ReportLine
    """Of what happens to them."""
    by_name: dict[str, ClusterProcess] = field(default_factory=dict)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _group: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Have those that are spawned run for as long as the context lasts; then they have a minute to end."""
        failure = None
        async with self._group:
            try:
                yield
            except Exception as error:  # noqa: BLE001  the group would make a group of it
                failure = error
            finally:
                for each in self._tasks.values():
                    each.cancel()
        if failure is not None:
            raise failure

    def spawn(self, name: str, *flags: str) -> None:
        folder = self.folder / name
        folder.mkdir(exist_ok=True, mode=0o700)
        self.by_name[name] = ClusterProcess(folder, flags)
        self._tasks[name] = self._group.create_task(self.supervise(self.by_name[name]), name=name)

    def remove(self, name: str) -> None:
        """End a cluster, and delete its folder.  The second call does nothing."""
        if name in self.by_name or name not in self._tasks:
            member = self.by_name.pop(name, None) or ClusterProcess(self.folder / name, ())
            self._tasks[name] = self._group.create_task(self._remove(member, self._tasks.get(name)), name=name)

    async def _remove(self, process: ClusterProcess, running: asyncio.Task[None] | None) -> None:
        if running is not None:
            running.cancel()
            await asyncio.wait([running])
        await asyncio.to_thread(shutil.rmtree, process.folder)
        del self._tasks[process.name]

    async def supervise(self, process: ClusterProcess) -> None:
        """Have a process of it, and another when that ends; at once, unless it ends again and again."""
        failures = 0
        while True:
            began = time.monotonic()
            await self.run_once(process)
            failures = failures + 1 if time.monotonic() - began < MAX_RESTART_BACKOFF else 1
            if failures > 1 or not process.has_responded:  # and whoever waits for its answer has time to give up
                await asyncio.sleep(min(MIN_RESTART_BACKOFF * 2 ** (failures - 1), MAX_RESTART_BACKOFF))
            self.report(f"{process.name} {process.exit_message}; it is started again")

    async def run_once(self, member: ClusterProcess) -> None:
        command = [str(TAPESTRY_PROGRAM), "cluster", "--data", str(member.folder), *member.flags]
        with member.log.open("ab") as log:
            async with guarded_process(command, os.environ, Path.cwd(), log) as process:
                member.pid = process.pid
                try:
                    code = await process.wait()
                except asyncio.CancelledError:
                    await process.stop(STALL_TIMEOUT)
                    raise
                finally:
                    member.pid = 0
        member.exit_message = exit_text(code, member.log_tail())

    async def wait_for_cluster(self, name: str) -> None:
        """Return when a cluster answers.  Raises WorldFailed where any ends before it does, or this gets nowhere."""
        member = self.by_name[name]
        progress = StallDetector(STALL_TIMEOUT, START_TIMEOUT)
        while not await is_responding(member.folder / "kubeconfig"):
            for each in self.by_name.values():
                if each.exit_message and not each.has_responded:
                    raise WorldError(f"{each.name} {each.exit_message}; its log is {each.log}")
            if progress.has_stalled(member.progress_value()):
                raise WorldError(f"{name} does not answer; the end of its log, {member.log}:\n{member.log_tail()}")
            await asyncio.sleep(POLL_INTERVAL)
        member.has_responded = True


def exit_text(code: int, log: str) -> str:
    """How a process ended: by whom, or else by its own last words."""
    if code > SIGNAL_EXIT_BASE:
        return f"was ended by {signal.Signals(code - SIGNAL_EXIT_BASE).name}"
    return f"ended with {code}: {log.rstrip().rpartition(chr(10))[2]}".rstrip(": ")


async def is_responding(kubeconfig: Path, seconds: float | None = None) -> bool:
    """Whether there is a cluster behind a kubeconfig, and such a file at all; it has so many seconds to answer."""
    try:
        async with asyncio.timeout(seconds or RESPONSE_TIMEOUT), open_client(kubeconfig) as client:
            await client.server_version()
    except (KubeError, OSError, ValueError):  # and nobody knows who has the port now
        return False
    return True


def open_client(kubeconfig: Path) -> Client:
    """To be used as a context, with which it is closed."""
    return Client(HttpTransport(load_access([kubeconfig], environ={})))
