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
from tapestry.client.connection import HttpTransport
from tapestry.client.kubeconfig import load
from tapestry.kube.errors import KubeError
from tapestry.local.children import guarded
from tapestry.local.proc import stat_of
from tapestry.local.world_folder import WorldFailed

TAPESTRY = Path(sys.executable).with_name("tapestry")
PATIENCE = 60.0
"""Seconds in which a cluster that starts has to get somewhere, and for one to end."""
LONGEST_START = 600.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds until a cluster is started again that ended soon."""
LOOK, LONGEST_ANSWER = 0.05, 5.0
SIGNALLED = 128
LAST_LINES = 2000
"""Bytes of a log that are told."""

Say = Callable[[str], None]


@dataclass
class Progress:
    """Whether something gets anywhere: its patience begins anew whenever what is seen of it changes."""

    patience: float
    longest: float
    now: Callable[[], float] = time.monotonic
    _seen: Hashable = None
    _began: float = field(init=False)
    _changed: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self._changed = self.now()

    def stalls(self, seen: Hashable) -> bool:
        """Whether nothing has changed for too long, or it goes on for ever."""
        moment = self.now()
        if seen != self._seen:
            self._seen, self._changed = seen, moment
        return moment - self._changed > self.patience or moment - self._began > self.longest


@dataclass
class Member:
    """One cluster, and the process that it is at the moment."""

    folder: Path
    flags: tuple[str, ...]
    pid: int = 0
    """0 while there is none."""
    ended: str = ""
    """How its last process ended."""
    has_answered: bool = False

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def effort(self) -> tuple[float, ...]:
        """What grows while it starts: the time that it had on a processor, and its log."""
        try:
            return self.pid, stat_of(self.pid).worked, self.log.stat().st_size
        except OSError:
            return (self.pid,)

    def last_lines(self) -> str:
        """The end of its log; or why that cannot tell the end of the story."""
        if shutil.disk_usage(self.folder).free < LAST_LINES:
            return f"no space is left on the disk of {self.folder}; make room"
        with self.log.open("rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - LAST_LINES, 0))
            return log.read().decode(errors="replace")


@dataclass
class Members:
    """The clusters in a folder."""

    folder: Path
    tell: Say
    """Of what happens to them."""
    found: dict[str, Member] = field(default_factory=dict)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _group: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
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
        self.found[name] = Member(folder, flags)
        self._tasks[name] = self._group.create_task(self.keep(self.found[name]), name=name)

    def remove(self, name: str) -> None:
        """End a cluster, and delete its folder.  The second call does nothing."""
        if name in self.found or name not in self._tasks:
            member = self.found.pop(name, None) or Member(self.folder / name, ())
            self._tasks[name] = self._group.create_task(self._remove(member, self._tasks.get(name)), name=name)

    async def _remove(self, member: Member, running: asyncio.Task[None] | None) -> None:
        if running is not None:
            running.cancel()
            await asyncio.wait([running])
        await asyncio.to_thread(shutil.rmtree, member.folder)
        del self._tasks[member.name]

    async def keep(self, member: Member) -> None:
        """Have a process of it, and another when that ends; at once, unless it ends again and again."""
        failures = 0
        while True:
            began = time.monotonic()
            await self.once(member)
            failures = failures + 1 if time.monotonic() - began < LONGEST_PAUSE else 1
            if failures > 1 or not member.has_answered:  # and whoever waits for its answer has time to give up
                await asyncio.sleep(min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE))
            self.tell(f"{member.name} {member.ended}; it is started again")

    async def once(self, member: Member) -> None:
        command = [str(TAPESTRY), "cluster", "--data", str(member.folder), *member.flags]
        with member.log.open("ab") as log:
            async with guarded(command, os.environ, Path.cwd(), log) as process:
                member.pid = process.pid
                try:
                    code = await process.wait()
                except asyncio.CancelledError:
                    await process.stop(PATIENCE)
                    raise
                finally:
                    member.pid = 0
        member.ended = ending(code, member.last_lines())

    async def wait_for_answer(self, name: str) -> None:
        """Return when a cluster answers.  Raises WorldFailed where any ends before it does, or this gets nowhere."""
        member = self.found[name]
        progress = Progress(PATIENCE, LONGEST_START)
        while not await answers(member.folder / "kubeconfig"):
            for each in self.found.values():
                if each.ended and not each.has_answered:
                    raise WorldFailed(f"{each.name} {each.ended}; its log is {each.log}")
            if progress.stalls(member.effort()):
                raise WorldFailed(f"{name} does not answer; the end of its log, {member.log}:\n{member.last_lines()}")
            await asyncio.sleep(LOOK)
        member.has_answered = True


def ending(code: int, log: str) -> str:
    """How a process ended: by whom, or else by its own last words."""
    if code > SIGNALLED:
        return f"was ended by {signal.Signals(code - SIGNALLED).name}"
    return f"ended with {code}: {log.rstrip().rpartition(chr(10))[2]}".rstrip(": ")


async def answers(kubeconfig: Path, seconds: float | None = None) -> bool:
    """Whether there is a cluster behind a kubeconfig, and such a file at all; it has so many seconds to answer."""
    try:
        async with asyncio.timeout(seconds or LONGEST_ANSWER), opened(kubeconfig) as client:
            await client.version()
    except (KubeError, OSError, ValueError):  # and nobody knows who has the port now
        return False
    return True


def opened(kubeconfig: Path) -> Client:
    """To be used as a context, with which it is closed."""
    return Client(HttpTransport(load([kubeconfig], environ={})))
