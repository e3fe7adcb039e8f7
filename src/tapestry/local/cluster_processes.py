"""Processes of the clusters of a world: started, restarted when they end, and stopped together.

A restart loses no data: the new process continues with the same folder.
"""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.kube.errors import KubeError
from tapestry.local.world_folder import WorldError
from tapestry.process.supervised_processes import StallDetector, SupervisedProcess

TAPESTRY_PROGRAM = Path(sys.executable).with_name("tapestry")
STALL_TIMEOUT, START_TIMEOUT = 60.0, 600.0
"""Seconds without progress, and in total, until a start fails."""
POLL_INTERVAL, RESPONSE_TIMEOUT = 0.05, 5.0

ReportLine = Callable[[str], None]


@dataclass
class ClusterProcesses:
    folder: Path
    report: ReportLine
    """Callback for restarts."""
    by_name: dict[str, SupervisedProcess] = field(default_factory=dict)
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
        command = [str(TAPESTRY_PROGRAM), "cluster", "--data", str(self.folder / name), *flags]
        self.by_name[name] = self.supervise(name, command)

    def supervise(self, name: str, command: Sequence[str]) -> SupervisedProcess:
        """Start a process with a folder of the world."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True, mode=0o700)
        process = SupervisedProcess(folder, command)
        self._tasks[name] = self._group.create_task(process.supervise(self.report), name=name)
        return process

    def remove(self, name: str) -> None:
        """Stop a cluster and delete its folder.  The second call does nothing."""
        if name in self.by_name or name not in self._tasks:
            self.by_name.pop(name, None)
            self._tasks[name] = self._group.create_task(self._remove(name, self._tasks.get(name)), name=name)

    async def _remove(self, name: str, running: asyncio.Task[None] | None) -> None:
        if running is not None:
            running.cancel()
            await asyncio.wait([running])
        await asyncio.to_thread(shutil.rmtree, self.folder / name)
        del self._tasks[name]

    async def wait_for_cluster(self, name: str) -> None:
        """Wait until a cluster answers.  Raise WorldError if one ends first, or if the start stalls."""
        process = self.by_name[name]
        progress = StallDetector(STALL_TIMEOUT, START_TIMEOUT)
        while not await is_responding(process.folder / "kubeconfig"):
            for each in self.by_name.values():
                if each.exit_message and not each.has_responded:
                    raise WorldError(f"{each.name} {each.exit_message}; its log is {each.log}")
            if progress.has_stalled(process.progress_value()):
                raise WorldError(f"{name} does not answer; the end of its log, {process.log}:\n{process.log_tail()}")
            await asyncio.sleep(POLL_INTERVAL)
        process.has_responded = True


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
