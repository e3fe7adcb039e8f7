"""Store of a single server, with a log on disk or objects in memory only.

A write is checked and gets its revision immediately, then waits for the log. Later writes build on pending ones. The
log preserves the order, so an acknowledged write implies that all earlier writes are durable, too.

The log runs in another thread and takes the next batch when the previous one is durable. Meanwhile, the server handles
other requests.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import chain

import msgspec

from tapestry.apiserver.core.store import (
    EVENT_TTL_SECONDS,
    EVENTS,
    Key,
    ObjectVersion,
    Precondition,
    RevisionEncoder,
    StorageError,
    Store,
    VersionConflict,
    WatchEvent,
)
from tapestry.apiserver.storage.log import Entry, Log
from tapestry.apiserver.storage.raw_objects import raw_labels, with_revision

MAX_BATCH_WRITES = 64
"""Maximum number of writes per batch. Each batch size has its own prepared statement."""
MAX_TURN_BATCHES = 16
"""Maximum number of batches that a store writes before another store can use the thread."""
EXPIRY_SWEEPS = 60
"""Number of sweeps for expired events per lifetime of an event."""


class PendingWrite(msgspec.Struct, eq=False):
    entry: Entry
    event: WatchEvent
    waiters: list[asyncio.Future[None]] = msgspec.field(default_factory=list)
    """One future per waiting caller, so that a caller can be cancelled without affecting the write."""

    def completion(self) -> asyncio.Future[None]:
        waiter = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        return waiter


class LocalStore(Store):
    """Objects in a log that has no other writer."""

    def __init__(self, log: Log, log_writers: ThreadPoolExecutor) -> None:
        """Open the store. `log_writers` may be shared: a store uses one of its threads at a time."""
        super().__init__()
        self._log, self._log_writers = log, log_writers
        self._pending: dict[Key, PendingWrite] = {}
        """The newest write of each object that readers do not see yet."""
        self._writes: deque[PendingWrite] = deque()
        """Writes that no writer thread has taken yet."""
        self._batch: list[PendingWrite] = []
        """The last batch that a writer thread took."""
        self._durable_batches: asyncio.Queue[list[PendingWrite]] = asyncio.Queue()
        """Batches that are durable but not visible yet."""
        self._wake = asyncio.Event()
        self._drain: Future[None] | None = None
        """The last run of `_drain_writes`."""
        self._last_revision = 0

    async def load(self) -> None:
        latest, entries = self._log.load()
        versions = (
            ObjectVersion(key, revision, raw, raw_labels(raw)) for revision, key, raw in entries if raw is not None
        )
        await self._fill(versions, latest)
        self._last_revision = latest

    def head(self, resource: str, namespace: str, name: str) -> ObjectVersion | None:
        """The object as the next write sees it, including writes that wait for the log."""
        pending = self._pending.get(Key(resource, namespace, name))
        return pending.event.new if pending is not None else self.get(resource, namespace, name)

    def heads(self, resource: str, namespace: str = "") -> list[ObjectVersion]:
        pending = {key: each.event.new for key, each in self._pending.items() if key.resource == resource}
        versions = chain(
            (each for each in self.unsorted_objects(resource) if each.key not in pending),
            (each for each in pending.values() if each is not None),
        )
        return [each for each in versions if namespace in ("", each.key.namespace)]

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
        self._check_writable()
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
        if (pending := self._pending.get(key)) is not None:
            await pending.completion()

    async def _wait_for_writes(self) -> None:
        waiters = [each.completion() for each in self._pending.values()]
        if waiters:
            await asyncio.wait(waiters)
        for waiter in waiters:
            waiter.exception()  # the writer gets it, too

    async def wait_for_latest(self) -> None:
        """Return at once: there are no other writers, and acknowledged writes are visible."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_log(), name="write-log")
            group.create_task(self._publish_batches(), name="publish")
            group.create_task(self.expire(EVENTS, EVENT_TTL_SECONDS), name="expiry")

    async def _run_log(self) -> None:
        """Run a writer thread whenever writes are waiting."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                self._drain = self._log_writers.submit(self._drain_writes, loop)
                await asyncio.wrap_future(self._drain)
            except StorageError as error:
                self._fail([*self._batch, *self._writes], error)
            if self._writes:
                self._wake.set()

    def _drain_writes(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write batches to the log until no writes wait, one fails, or the turn ends. Runs in a writer thread."""
        writes = self._writes
        for _ in range(MAX_TURN_BATCHES):
            if not writes:
                return
            self._batch = [writes.popleft() for _ in range(min(len(writes), MAX_BATCH_WRITES))]
            self._log.append([write.entry for write in self._batch])
            loop.call_soon_threadsafe(self._durable_batches.put_nowait, self._batch)

    async def _publish_batches(self) -> None:
        while True:
            self._publish(await self._durable_batches.get())

    async def expire(self, resource: str, seconds: float) -> None:
        """Delete objects that did not change for `seconds` while this was running."""
        marks: deque[tuple[float, int]] = deque()
        while True:
            await asyncio.sleep(seconds / EXPIRY_SWEEPS)
            now, expired_revision = time.monotonic(), 0
            marks.append((now, self.revision))
            while marks and marks[0][0] <= now - seconds:
                expired_revision = marks.popleft()[1]
            for version in self.list_objects(resource) if expired_revision else ():
                if version.revision <= expired_revision:
                    with suppress(VersionConflict, StorageError):  # it was just changed, or the next sweep deletes it
                        await self.delete(version.key, version, deletion_encoder(version))

    def close(self) -> None:
        if self._drain is not None and not self._drain.cancel():
            wait([self._drain])
        self._log.close()

    def _publish(self, batch: Sequence[PendingWrite]) -> None:
        """Make a durable batch visible to readers and watchers, in order."""
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
        """Fail these writes and all that build on them. Their revisions are not reused."""
        self._writes.clear()
        self.write_error = str(error)
        for write in writes:
            self._pending.pop(write.entry.key, None)
            for waiter in write.waiters:
                if not waiter.done():
                    waiter.set_exception(error)


def deletion_encoder(version: ObjectVersion) -> RevisionEncoder:
    return lambda revision: with_revision(version.raw, revision)
