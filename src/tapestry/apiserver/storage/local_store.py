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

from tapestry.apiserver.storage.log import Entry, Key, Log, StorageError
from tapestry.apiserver.storage.raw_objects import with_revision
from tapestry.apiserver.storage.store import (
    EVENT_TTL_SECONDS,
    EVENTS,
    ObjectVersion,
    Precondition,
    RevisionEncoder,
    Store,
    VersionConflict,
    WatchEvent,
)
from tapestry.kube.objects import Object

MAX_BATCH_WRITES = 64
"""Writes that go to the log at a time: each number is a statement of its own, which is kept ready."""
EXPIRY_SWEEPS = 60
"""How often events are looked through for those that are over, in the time that each may last."""


class PendingWrite(msgspec.Struct, eq=False):
    entry: Entry
    event: WatchEvent
    waiters: list[asyncio.Future[None]] = msgspec.field(default_factory=list)
    """Who wants to know of its end, each with a future of their own: they may leave, and it goes on."""

    def completion(self) -> asyncio.Future[None]:
        found = asyncio.get_running_loop().create_future()
        self.waiters.append(found)
        return found


class LocalStore(Store):
    """Objects in a log that nobody else writes to."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log
        self._pending: dict[Key, PendingWrite] = {}
        """What will be the last that happened to an object, where readers do not see it yet."""
        self._writes: deque[PendingWrite] = deque()
        """What the log has yet to take; its thread does."""
        self._batch: list[PendingWrite] = []
        """What it took last."""
        self._durable_batches: asyncio.Queue[list[PendingWrite]] = asyncio.Queue()
        """What nobody has been told of yet."""
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="log")
        self._last_revision = 0

    def load(self, read_labels: Callable[[bytes], Object]) -> None:
        """Fill the store from its log; `read` gives an object's labels."""
        latest, entries = self._log.load()
        self._replace_all(
            (ObjectVersion(key, revision, raw, read_labels(raw)) for revision, key, raw in entries if raw is not None),
            latest,
        )
        self._last_revision = latest

    def head(self, resource: str, namespace: str, name: str) -> ObjectVersion | None:
        """The object as the next write finds it: writes that are still on their way to the log included."""
        coming = self._pending.get(Key(resource, namespace, name))
        return coming.event.new if coming is not None else self.get(resource, namespace, name)

    async def put(
        self,
        key: Key,
        expected: ObjectVersion | None,
        encode: RevisionEncoder,
        precondition: Precondition | None = None,
    ) -> ObjectVersion:
        self._check_expected(key, expected)
        if precondition is not None and not precondition():
            raise VersionConflict
        revision = self._next_revision()
        raw, labels = encode(revision)
        version = ObjectVersion(key, revision, raw, labels)
        await self._write(key, version, WatchEvent(revision, expected, version, raw))
        return version

    async def delete(self, key: Key, expected: ObjectVersion, encode: RevisionEncoder) -> ObjectVersion:
        self._check_expected(key, expected)
        revision = self._next_revision()
        raw, labels = encode(revision)
        await self._write(key, None, WatchEvent(revision, expected, None, raw))
        return ObjectVersion(key, revision, raw, labels)

    def _check_expected(self, key: Key, expected: ObjectVersion | None) -> None:
        if self.head(*key) is not expected:
            raise VersionConflict

    def _next_revision(self) -> int:
        self._last_revision += 1
        return self._last_revision

    async def _write(self, key: Key, version: ObjectVersion | None, event: WatchEvent) -> None:
        entry = Entry(event.revision, key, version.raw if version is not None else None)
        write = self._pending[key] = PendingWrite(entry, event)
        self._writes.append(write)
        self._wake.set()
        await write.completion()

    async def wait_for_pending_write(self, key: Key) -> None:
        if (waiting := self._pending.get(key)) is not None:
            await waiting.completion()

    async def wait_for_latest(self) -> None:
        """Nobody else writes, and what was acknowledged is seen."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_log(), name="log")
            group.create_task(self._publish_batches(), name="news")
            group.create_task(self.expire(EVENTS, EVENT_TTL_SECONDS), name="expiry")

    async def _run_log(self) -> None:
        """Have the log take writes, whenever there are any."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await loop.run_in_executor(self._thread, self._drain_writes, loop)
            except StorageError as error:
                self._fail([*self._batch, *self._writes], error)

    def _drain_writes(self, loop: asyncio.AbstractEventLoop) -> None:
        """In the log's thread: take writes, as many at a time as wait there, until none do or one fails."""
        writes = self._writes
        while writes:
            self._batch = [writes.popleft() for _ in range(min(len(writes), MAX_BATCH_WRITES))]
            self._log.append([write.entry for write in self._batch])
            loop.call_soon_threadsafe(self._durable_batches.put_nowait, self._batch)

    async def _publish_batches(self) -> None:
        while True:
            self._publish(await self._durable_batches.get())

    async def expire(self, resource: str, seconds: float) -> None:
        """Delete what has not changed for that long while this was running."""
        marks: deque[tuple[float, int]] = deque()
        while True:
            await asyncio.sleep(seconds / EXPIRY_SWEEPS)
            moment, over = time.monotonic(), 0
            marks.append((moment, self.revision))
            while marks and marks[0][0] <= moment - seconds:
                over = marks.popleft()[1]
            for version in self.list_objects(resource) if over else ():
                if version.revision <= over:
                    with suppress(
                        VersionConflict, StorageError
                    ):  # it has just been changed, or the next sweep finds it again
                        await self.delete(version.key, version, deletion_encoder(version))

    def close(self) -> None:
        self._thread.shutdown()
        self._log.close()

    def _publish(self, batch: Sequence[PendingWrite]) -> None:
        """The batch is durable: let readers and watchers see it, in its order."""
        for write in batch:
            key = write.entry.key
            self._apply_event(key, write.event)
            if self._pending.get(key) is write:
                del self._pending[key]
            for waiter in write.waiters:
                if not waiter.done():
                    waiter.set_result(None)
        self.write_error = ""
        self._advance_revision(batch[-1].event.revision)

    def _fail(self, writes: Sequence[PendingWrite], error: StorageError) -> None:
        """None of these happened, nor what was built on them; their revisions are not given out again."""
        self._writes.clear()
        self.write_error = str(error)
        for write in writes:
            self._pending.pop(write.entry.key, None)
            for waiter in write.waiters:
                if not waiter.done():
                    waiter.set_exception(error)


def deletion_encoder(version: ObjectVersion) -> RevisionEncoder:
    return lambda revision: with_revision(version.raw, revision)
