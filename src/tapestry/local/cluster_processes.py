"""Processes of the clusters of a world: started, restarted when they end, and stopped together.

A restart loses no data: the new process continues with the same folder.
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
from tapestry.local.child_processes import Streams, guarded_process, process_stat
from tapestry.local.world_folder import WorldError

TAPESTRY_PROGRAM = Path(sys.executable).with_name("tapestry")
STALL_TIMEOUT = 60.0
"""Seconds without progress until a start fails, and until a stopping cluster is killed."""
START_TIMEOUT = 600.0
MIN_RESTART_BACKOFF, MAX_RESTART_BACKOFF = 1.0, 30.0
"""Backoff in seconds before a cluster that ended soon is restarted."""
POLL_INTERVAL, RESPONSE_TIMEOUT = 0.05, 5.0
SIGNAL_EXIT_BASE = 128
LOG_TAIL_BYTES = 2000
"""Bytes of a log that are reported."""

ReportLine = Callable[[str], None]


@dataclass
class StallDetector:
    """Detects that an observed value has not changed for too long."""

    stall_timeout: float
    total_timeout: float
    now: Callable[[], float] = time.monotonic
    _last_value: Hashable = None
    _began: float = field(init=False)
    _changed: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self._changed = self.now()

    def has_stalled(self, value: Hashable) -> bool:
        """Return whether the value has not changed for `stall_timeout`, or `total_timeout` is over."""
        moment = self.now()
        if value != self._last_value:
            self._last_value, self._changed = value, moment
        return moment - self._changed > self.stall_timeout or moment - self._began > self.total_timeout


@dataclass
class ClusterProcess:
    folder: Path
    flags: tuple[str, ...]
    pid: int = 0
    """Process ID; 0 while no process runs."""
    exit_message: str = ""
    """Description of how the last process ended."""
    has_responded: bool = False

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def progress_value(self) -> tuple[float, ...]:
        """Return a value that changes while the process starts: its CPU time and log size."""
        try:
            return self.pid, process_stat(self.pid).cpu_seconds, self.log.stat().st_size
        except OSError:
            return (self.pid,)

    def log_tail(self) -> str:
        """Return the end of its log, or a message if the disk is full."""
        if shutil.disk_usage(self.folder).free < LOG_TAIL_BYTES:
            return f"no space is left on the disk of {self.folder}; free some"
        with self.log.open("rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES, 0))
            return log.read().decode(errors="replace")


@dataclass
class ClusterProcesses:
    folder: Path
    report: ReportLine
    """Callback for restarts."""
    by_name: dict[str, ClusterProcess] = field(default_factory=dict)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _group: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Run the spawned clusters while the context is open, then stop them within a minute."""
        failure = None
        async with self._group:
            try:
                yield
            except Exception as error:  # noqa: BLE001  the task group would wrap it
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
        """Stop a cluster and delete its folder.  The second call does nothing."""
        if name in self.by_name or name not in self._tasks:
            process = self.by_name.pop(name, None) or ClusterProcess(self.folder / name, ())
            self._tasks[name] = self._group.create_task(self._remove(process, self._tasks.get(name)), name=name)

    async def _remove(self, process: ClusterProcess, running: asyncio.Task[None] | None) -> None:
        if running is not None:
            running.cancel()
            await asyncio.wait([running])
        await asyncio.to_thread(shutil.rmtree, process.folder)
        del self._tasks[process.name]

    async def supervise(self, process: ClusterProcess) -> None:
        """Restart the process whenever it ends; at once, unless it fails repeatedly."""
        failures = 0
        while True:
            began = time.monotonic()
            await self.run_once(process)
            failures = failures + 1 if time.monotonic() - began < MAX_RESTART_BACKOFF else 1
            if failures > 1 or not process.has_responded:  # gives waiting callers time to fail first
                await asyncio.sleep(min(MIN_RESTART_BACKOFF * 2 ** (failures - 1), MAX_RESTART_BACKOFF))
            self.report(f"{process.name} {process.exit_message}; restarting")

    async def run_once(self, member: ClusterProcess) -> None:
        command = [str(TAPESTRY_PROGRAM), "cluster", "--data", str(member.folder), *member.flags]
        with member.log.open("ab") as log:
            async with guarded_process(command, os.environ, Path.cwd(), Streams(log)) as process:
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
        """Wait until a cluster answers.  Raise WorldError if one ends first, or if the start stalls."""
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
    """Describe the exit: the signal, or the code and the last line of the log."""
    if code > SIGNAL_EXIT_BASE:
        return f"was killed by {signal.Signals(code - SIGNAL_EXIT_BASE).name}"
    return f"exited with {code}: {log.rstrip().rpartition(chr(10))[2]}".rstrip(": ")


async def is_responding(kubeconfig: Path, seconds: float | None = None) -> bool:
    """Return whether the kubeconfig exists and its cluster answers within `seconds`."""
    try:
        async with asyncio.timeout(seconds or RESPONSE_TIMEOUT), open_client(kubeconfig) as client:
            await client.server_version()
    except (KubeError, OSError, ValueError):  # another process may use the port now
        return False
    return True


def open_client(kubeconfig: Path) -> Client:
    """Return a client; use it as a context manager to close it."""
    return Client(HttpTransport(load_access([kubeconfig], environ={})))
