"""The store of one server that has its objects to itself: in a log on its disk, or in its memory alone.

A write is checked and given its revision at once, and waits with others for the log.  Writes build on each other while
they wait: the log keeps them in order, so whoever is answered has everything that came before his write on the disk,
too.

The log has a thread of its own, which comes for the next writes as soon as it is done with some: the server meanwhile
goes on with what others ask for.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec

from tapestry.apiserver.storage.log import Entry, Key, Log, LogError
from tapestry.apiserver.storage.store import EVENT_SECONDS, EVENTS, Claim, Event, Make, Stale, Store, Version
from tapestry.apiserver.storage.values import versioned
from tapestry.kube.objects import Object

FULLEST_BATCH = 64
"""Writes that go to the log at a time: each number is a statement of its own, which is kept ready."""
SWEEPS = 60
"""How often events are looked through for those that are over, in the time that each may last."""


class Write(msgspec.Struct, eq=False):
    entry: Entry
    event: Event
    waiting: list[asyncio.Future[None]] = msgspec.field(default_factory=list)
    """Who wants to know of its end, each with a future of their own: they may leave, and it goes on."""

    def end(self) -> asyncio.Future[None]:
        found = asyncio.get_running_loop().create_future()
        self.waiting.append(found)
        return found


class LocalStore(Store):
    """Objects in a log that nobody else writes to."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log
        self._heads: dict[Key, Write] = {}
        """What will be the last that happened to an object, where readers do not see it yet."""
        self._writes: deque[Write] = deque()
        """What the log has yet to take; its thread does."""
        self._batch: list[Write] = []
        """What it took last."""
        self._durable: asyncio.Queue[list[Write]] = asyncio.Queue()
        """What nobody has been told of yet."""
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
        coming = self._heads.get(Key(resource, namespace, name))
        return coming.event.new if coming is not None else self.get(resource, namespace, name)

    async def put(self, key: Key, expected: Version | None, make: Make, claim: Claim | None = None) -> Version:
        self._expect(key, expected)
        if claim is not None and not claim():
            raise Stale
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
        if self.head(*key) is not expected:
            raise Stale

    def _next(self) -> int:
        self._given += 1
        return self._given

    async def _write(self, key: Key, version: Version | None, event: Event) -> None:
        entry = Entry(event.revision, key, version.raw if version is not None else None)
        write = self._heads[key] = Write(entry, event)
        self._writes.append(write)
        self._wake.set()
        await write.end()

    async def settled(self, key: Key) -> None:
        if (waiting := self._heads.get(key)) is not None:
            await waiting.end()

    async def wait_for_latest(self) -> None:
        """Nobody else writes, and what was acknowledged is seen."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._append(), name="log")
            group.create_task(self._tell(), name="news")
            group.create_task(self.expire(EVENTS, EVENT_SECONDS), name="expiry")

    async def _append(self) -> None:
        """Have the log take writes, whenever there are any."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await loop.run_in_executor(self._thread, self._take, loop)
            except LogError as error:
                self._fail([*self._batch, *self._writes], error)

    def _take(self, loop: asyncio.AbstractEventLoop) -> None:
        """In the log's thread: take writes, as many at a time as wait there, until none do or one fails."""
        writes = self._writes
        while writes:
            self._batch = [writes.popleft() for _ in range(min(len(writes), FULLEST_BATCH))]
            self._log.append([write.entry for write in self._batch])
            loop.call_soon_threadsafe(self._durable.put_nowait, self._batch)

    async def _tell(self) -> None:
        while True:
            self._publish(await self._durable.get())

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
            key = write.entry.key
            self._show(key, write.event)
            if self._heads.get(key) is write:
                del self._heads[key]
            for waiter in write.waiting:
                if not waiter.done():
                    waiter.set_result(None)
        self.failure = ""
        self._reach(batch[-1].event.revision)

    def _fail(self, writes: Sequence[Write], error: LogError) -> None:
        """None of these happened, nor what was built on them; their revisions are not given out again."""
        self._writes.clear()
        self.failure = str(error)
        for write in writes:
            self._heads.pop(write.entry.key, None)
            for waiter in write.waiting:
                if not waiter.done():
                    waiter.set_exception(error)


def last_words(version: Version) -> Make:
    return lambda revision: versioned(version.raw, revision)
