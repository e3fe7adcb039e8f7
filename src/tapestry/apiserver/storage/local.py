"""The store of one server that has its objects to itself: in a log on its disk, or in its memory alone.

A write is checked and given its revision at once, and waits with others for the log.  Writes build on each other while
they wait: the log keeps them in order, so whoever is answered has everything that came before his write on the disk,
too.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from tapestry.apiserver.storage.log import Entry, Key, Log, LogError
from tapestry.apiserver.storage.store import EVENT_SECONDS, EVENTS, Event, Make, Stale, Store, Version
from tapestry.apiserver.storage.values import versioned
from tapestry.kube.objects import Object

FULLEST_BATCH = 512
SWEEPS = 60
"""How often events are looked through for those that are over, in the time that each may last."""


@dataclass(slots=True)
class Write:
    key: Key
    entry: Entry
    event: Event
    done: asyncio.Future[None]


class LocalStore(Store):
    """Objects in a log that nobody else writes to."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log
        self._heads: dict[Key, Event] = {}
        """What will be the last that happened to an object, where readers do not see it yet."""
        self._writes: deque[Write] = deque()
        self._under_way: dict[Key, Write] = {}
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="log")
        self._given = 0

    def load(self, read: Callable[[bytes], Object]) -> None:
        """Fill the store from its log; `read` gives an object's labels."""
        latest, entries = self._log.load()
        self._fill(
            (Version(key, revision, raw, read(raw)) for revision, key, raw in entries if raw is not None), latest
        )
        self._given = latest

    def head(self, resource: str, namespace: str, name: str) -> Version | None:
        """The object as the next write finds it: writes that are still on their way to the log included."""
        return self._head(Key(resource, namespace, name))

    def _head(self, key: Key) -> Version | None:
        coming = self._heads.get(key)
        return coming.new if coming is not None else self.get(*key)

    async def put(self, key: Key, expected: Version | None, make: Make) -> Version:
        self._expect(key, expected)
        revision = self._next()
        raw, labels = make(revision)
        version = Version(key, revision, raw, labels)
        await self._write(key, version, Event(revision, expected, version, raw))
        return version

    async def delete(self, key: Key, expected: Version, make: Make) -> Version:
        self._expect(key, expected)
        revision = self._next()
        raw, labels = make(revision)
        await self._write(key, None, Event(revision, expected, None, raw))
        return Version(key, revision, raw, labels)

    def _expect(self, key: Key, expected: Version | None) -> None:
        if self._head(key) is not expected:
            raise Stale

    def _next(self) -> int:
        self._given += 1
        return self._given

    async def _write(self, key: Key, version: Version | None, event: Event) -> None:
        entry = Entry(event.revision, key, version.raw if version is not None else None)
        write = Write(key, entry, event, asyncio.get_running_loop().create_future())
        self._heads[key] = event
        self._writes.append(write)
        self._wake.set()
        await asyncio.shield(write.done)  # whoever asked may go away; what was begun is finished

    async def settled(self, key: Key) -> None:
        waiting = next((write for write in reversed(self._writes) if write.key == key), None) or self._under_way.get(
            key
        )
        if waiting is not None:
            await asyncio.shield(waiting.done)

    async def wait_for_latest(self) -> None:
        """Nobody else writes, and what was acknowledged is seen."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._append(), name="log")
            group.create_task(self.expire(EVENTS, EVENT_SECONDS), name="expiry")

    async def _append(self) -> None:
        """Take writes to the log, as many at a time as wait there."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._writes:
                batch = [self._writes.popleft() for _ in range(min(len(self._writes), FULLEST_BATCH))]
                self._under_way = {write.key: write for write in batch}
                try:
                    await loop.run_in_executor(self._thread, self._log.append, [write.entry for write in batch])
                except LogError as error:
                    self._fail([*batch, *self._writes], error)
                else:
                    self._publish(batch)

    async def expire(self, resource: str, seconds: float) -> None:
        """Delete what has not changed for that long while this was running."""
        marks: deque[tuple[float, int]] = deque()
        while True:
            await asyncio.sleep(seconds / SWEEPS)
            moment, over = time.monotonic(), 0
            marks.append((moment, self.revision))
            while marks and marks[0][0] <= moment - seconds:
                over = marks.popleft()[1]
            for version in self.every(resource) if over else ():
                if version.revision <= over:
                    with suppress(Stale, LogError):  # it has just been changed, or the next sweep finds it again
                        await self.delete(version.key, version, last_words(version))

    def close(self) -> None:
        self._thread.shutdown()
        self._log.close()

    def _publish(self, batch: Sequence[Write]) -> None:
        """The batch is durable: let readers and watchers see it, in its order."""
        for write in batch:
            self._show(write.key, write.event)
            if self._heads.get(write.key) is write.event:
                del self._heads[write.key]
            if not write.done.done():
                write.done.set_result(None)
        self._under_way = {}
        self.failure = ""
        self._reach(batch[-1].event.revision)

    def _fail(self, writes: Sequence[Write], error: LogError) -> None:
        """None of these happened, nor what was built on them; their revisions are not given out again."""
        self._writes.clear()
        self._under_way = {}
        self.failure = str(error)
        for write in writes:
            self._heads.pop(write.key, None)
            if not write.done.done():
                write.done.set_exception(error)


def last_words(version: Version) -> Make:
    return lambda revision: versioned(version.raw, revision)
