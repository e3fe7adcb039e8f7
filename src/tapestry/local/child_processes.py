"""Processes that do not outlive us, nor leave anything behind.

A child shares a process group with a guard: a shell that kills the group, and itself with it, when its input ends,
which is when we end it, or when we are gone, whatever ended us.  So no descendant of a child survives it, or us, unless
it leaves the group on purpose.  A child whose guard is gone is killed: who would see to it when we are gone, too?

    guarded     a process
    child       a process, and what it writes
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

CHUNK = 64 << 10
DRAIN_TIMEOUT = 1.0
"""For what is still in the pipe when the process is gone: a descendant that left the group may hold it open."""
GUARD_COMMAND = ("sh", "-c", "read -r _; kill -s KILL 0")


@dataclass(frozen=True)
class ChildProcess:
    """A process that was started."""

    process: subprocess.Popen[bytes]
    ended: asyncio.Future[None]
    group_id: int
    """Of its group."""

    @property
    def pid(self) -> int:
        return self.process.pid

    async def wait(self) -> int:
        """What it ended with, as a shell has it: 128 and the number of the signal that killed it."""
        await asyncio.shield(self.ended)
        code = self.process.wait()
        return code if code >= 0 else 128 - code

    async def stop(self, grace: float) -> None:
        """SIGTERM, and time to end; whatever remains then is killed with the context."""
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
            await asyncio.wait([self.ended], timeout=grace)

    def kill(self) -> None:
        """End it, and whatever else is of its group."""
        os.killpg(self.group_id, signal.SIGKILL)
        self.process.wait()


@asynccontextmanager
async def child(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, write: Callable[[bytes], None]
) -> AsyncIterator[ChildProcess]:
    """Run a command as long as the context lasts; all of it is gone afterwards.  Raises OSError.

    What it writes goes to `write`.
    """
    async with guarded_process(command, environment, folder, subprocess.PIPE) as running:
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
    command: Sequence[str], environment: Mapping[str, str], folder: Path, output: int | IO[bytes]
) -> AsyncIterator[ChildProcess]:
    """Run a command as long as the context lasts; all of it is gone afterwards.  Raises OSError."""
    with process_group_guard() as leader, exit_future(leader) as unguarded:
        process = start_process(command, environment, folder, output, leader)
        unguarded.add_done_callback(lambda _: process.kill())
        with exit_future(process.pid) as ended:
            running = ChildProcess(process, ended, leader)
            try:
                yield running
            finally:
                running.kill()


def start_process(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, output: int | IO[bytes], leader: int
) -> subprocess.Popen[bytes]:
    # Not by asyncio: uvloop cannot put a process into a group.
    return subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        cwd=folder,
        process_group=leader,
    )


@contextmanager
def process_group_guard() -> Iterator[int]:
    """The process group of a guard, who is gone with the context."""
    with subprocess.Popen(GUARD_COMMAND, stdin=subprocess.PIPE, process_group=0) as leader:
        try:
            yield leader.pid
        finally:
            leader.kill()


@contextmanager
def pump_output(source: int, write: Callable[[bytes], None]) -> Iterator[asyncio.Future[None]]:
    """Hand on all that comes from a pipe; done when its other end is closed."""
    loop = asyncio.get_running_loop()
    emptied: asyncio.Future[None] = loop.create_future()

    def readable() -> None:
        if data := os.read(source, CHUNK):
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
    """Done when a child of ours has ended; it has still to be waited for."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    descriptor = os.pidfd_open(pid)

    def exited() -> None:
        loop.remove_reader(descriptor)
        ended.set_result(None)

    loop.add_reader(descriptor, exited)
    try:
        yield ended
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
