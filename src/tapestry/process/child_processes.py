"""Child processes that end with this process and leave no descendants.

A child shares a process group with a guard.  The guard is a process that kills the group, including itself, when its
input ends: when we close it, or when we die for any reason.  So no descendant of a child survives it or us, unless it
leaves the group on purpose.  A child whose guard has died is killed.

`guarded_process` runs a process; `child` also reads its output. `process_stat` reads the statistics of a process.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

CHUNK = 64 << 10
DRAIN_TIMEOUT = 1.0
"""Seconds to read the rest of the pipe after the process ended; a descendant outside the group may keep it open."""


def input_guard(shell: str, python: str) -> tuple[str, ...]:
    """Return a command that runs a script, which waits for the end of its input.

    A shell uses a tenth of the memory of Python, but a container image may have none.
    """
    return ("sh", "-c", shell) if shutil.which("sh") else (sys.executable, "-I", "-S", "-c", python)


GUARD_COMMAND = input_guard("read -r _; kill -s KILL 0", "import os; os.read(0, 1); os.killpg(0, 9)")


class Streams(NamedTuple):
    """Standard streams of a process, and other descriptors that it inherits."""

    stdout: int | IO[bytes]
    stderr: int | None = subprocess.STDOUT
    stdin: int = subprocess.DEVNULL
    inherited: Sequence[int] = ()


@dataclass(frozen=True)
class ChildProcess:
    process: subprocess.Popen[bytes]
    ended: asyncio.Future[None]
    group_id: int

    @property
    def pid(self) -> int:
        return self.process.pid

    async def wait(self) -> int:
        """Return the exit code as a shell does: 128 plus the signal number after a signal."""
        await asyncio.shield(self.ended)
        code = self.process.wait()
        return code if code >= 0 else 128 - code

    async def stop(self, grace: float) -> None:
        """Send SIGTERM and wait for the end; the context kills what remains."""
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
            await asyncio.wait([self.ended], timeout=grace)

    def kill(self) -> None:
        """Kill the process and its group."""
        os.killpg(self.group_id, signal.SIGKILL)
        self.process.wait()
        if not self.ended.done():
            self.ended.set_result(None)


@asynccontextmanager
async def child(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, write: Callable[[bytes], None]
) -> AsyncIterator[ChildProcess]:
    """Run a command while the context is open and pass its output to `write`; then kill it.  Raise OSError."""
    async with guarded_process(command, environment, folder, Streams(subprocess.PIPE)) as running:
        output = running.process.stdout
        assert output is not None
        with output, pump_output(output.fileno(), write) as emptied:
            try:
                yield running
            finally:
                running.kill()
                await asyncio.wait([emptied], timeout=DRAIN_TIMEOUT)


@asynccontextmanager
async def guarded_process(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, streams: Streams
) -> AsyncIterator[ChildProcess]:
    """Run a command while the context is open, then kill it and its group.  Raise OSError."""
    with process_group_guard() as group, exit_future(group) as guard_exit:
        process = start_process(command, environment, folder, streams, group)
        guard_exit.add_done_callback(lambda _: process.kill())
        with exit_future(process.pid) as ended:
            running = ChildProcess(process, ended, group)
            try:
                yield running
            finally:
                running.kill()


def start_process(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, streams: Streams, leader: int
) -> subprocess.Popen[bytes]:
    # asyncio cannot be used: uvloop cannot set the process group.
    return subprocess.Popen(
        list(command),
        stdin=streams.stdin,
        stdout=streams.stdout,
        stderr=streams.stderr,
        pass_fds=streams.inherited,
        env=dict(environment),
        cwd=folder,
        process_group=leader,
    )


@contextmanager
def process_group_guard() -> Iterator[int]:
    """Start a guard and yield its process group; kill the guard at the end."""
    with subprocess.Popen(GUARD_COMMAND, stdin=subprocess.PIPE, process_group=0) as leader:
        try:
            yield leader.pid
        finally:
            leader.kill()


@contextmanager
def pump_output(source: int, write: Callable[[bytes], None]) -> Iterator[asyncio.Future[None]]:
    """Pass data from a pipe to `write`; the future is done when the other end is closed."""
    loop = asyncio.get_running_loop()
    emptied: asyncio.Future[None] = loop.create_future()

    def readable() -> None:
        try:
            data = os.read(source, CHUNK)
        except BlockingIOError:
            return
        except OSError:  # a terminal without processes
            data = b""
        if data:
            write(data)
        else:
            loop.remove_reader(source)
            emptied.set_result(None)

    loop.add_reader(source, readable)
    try:
        yield emptied
    finally:
        loop.remove_reader(source)


@contextmanager
def exit_future(pid: int) -> Iterator[asyncio.Future[None]]:
    """Yield a future that is done when a child has ended; the child must still be reaped."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    descriptor = os.pidfd_open(pid)

    def exited() -> None:
        loop.remove_reader(descriptor)
        if not ended.done():
            ended.set_result(None)

    loop.add_reader(descriptor, exited)
    try:
        yield ended
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


MAX_TREE = 256
"""Limit of the processes that are read for one tree."""


class ProcessStat(NamedTuple):
    cpu_seconds: float
    """CPU time of the process and of its children that have ended."""
    start_seconds: float
    """Start time in seconds after boot."""
    memory: int
    """Resident memory in bytes."""


def process_stat(pid: int) -> ProcessStat:
    """Read /proc/PID/stat; raise OSError if there is no such process."""
    text = Path(f"/proc/{pid}/stat").read_text()
    fields = text.rpartition(")")[2].split()  # skip the name in parentheses, which may contain anything
    seconds = sum(map(int, fields[11:15])) / TICKS_PER_SECOND
    return ProcessStat(seconds, int(fields[19]) / TICKS_PER_SECOND, int(fields[21]) * PAGE_BYTES)


def process_tree_stat(root: int, levels: int = 0) -> ProcessStat:
    """Return the sum of a process and its descendants, without the first `levels` generations.

    Raise OSError if the process does not exist.
    """
    total, pids = process_stat(root)._replace(cpu_seconds=0.0, memory=0), [root]
    for _ in range(levels):
        pids = [each for pid in pids for each in child_pids(pid)]
    for pid in pids:  # grows while it is read
        with contextlib.suppress(OSError):  # it has ended
            found = process_stat(pid)
            total = ProcessStat(total.cpu_seconds + found.cpu_seconds, total.start_seconds, total.memory + found.memory)
            pids.extend(child_pids(pid)[: max(MAX_TREE - len(pids), 0)])
    return total


def child_pids(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for each in threads for child in (each / "children").read_text().split()]


def uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])
