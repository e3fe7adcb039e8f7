"""Store shared by several servers: etcd holds objects and revisions, each server caches them all.

One read of everything at a revision fills the cache, and one watch from there on updates it with the writes of all
servers. A write is a transaction that fails if the object changed since the writer read it. The server acknowledges a
write when its cache has it, so to its own clients the store behaves like a local one. For a consistent read, the store
asks etcd for its revision and waits until the cache has reached it. Concurrent readers share one such request.

While etcd cannot be reached, writes and consistent reads fail, and watches wait.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from weakref import WeakValueDictionary

import msgspec

from tapestry.apiserver.core.store import (
    EVENT_TTL_SECONDS,
    EVENTS,
    Key,
    ObjectVersion,
    OutcomeUnknown,
    Precondition,
    RevisionEncoder,
    StorageError,
    StorageUnavailable,
    Store,
    VersionConflict,
    WatchEvent,
)
from tapestry.apiserver.storage.etcd.client import EtcdClient, EtcdWatch, HistoryCompacted, KeyValue, RangeGuard
from tapestry.apiserver.storage.etcd.compaction import compact_periodically
from tapestry.apiserver.storage.etcd.layout import KeyLayout
from tapestry.apiserver.storage.raw_objects import with_revision, without_revision
from tapestry.process.logs import logger

log = logger(__name__)

START_TIMEOUT = 30.0
"""Seconds to wait for etcd at startup."""
READ_TIMEOUT = 3.0
"""Seconds that a consistent read waits."""
CATCH_UP_TIMEOUT = 10.0
"""Seconds that a writer waits until the cache has an acknowledged write."""
PROGRESS_INTERVAL = 0.05
"""Seconds that the cache may lag before the store requests the progress of the watch."""
RECONNECT_BACKOFF = (0.05, 2.0)
"""Minimum and maximum seconds between attempts to reach etcd."""
LEASE_REUSE_SECONDS = 60.0
"""Seconds during which new events get the same lease."""


class EtcdStore(Store):
    """Objects in an etcd that others may write to. Call `load` before `run`."""

    def __init__(self, client: EtcdClient, layout: KeyLayout, *, history_seconds: float) -> None:
        super().__init__()
        self._client, self._layout = client, layout
        self._history_seconds = history_seconds
        self._watch: EtcdWatch | None = None
        self._watch_started = asyncio.Event()
        self._watch_error = "etcd: not watched yet"
        self._write_locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._latest_lock = asyncio.Lock()
        self._latest_requested = self._latest_received = 0
        self._lease, self._lease_until = 0, 0.0

    async def load(self) -> None:
        """Fill the store. Raises StorageError if etcd is unavailable or has objects that cannot be decoded."""
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                return await self._reload()
            except StorageUnavailable:
                if time.monotonic() > deadline:
                    raise
                self._client.switch_endpoint()
            await asyncio.sleep(RECONNECT_BACKOFF[0] * 4)

    # -- writing

    def head(self, resource: str, namespace: str, name: str) -> ObjectVersion | None:
        return self.get(resource, namespace, name)

    async def put(
        self,
        key: Key,
        expected: ObjectVersion | None,
        encode: RevisionEncoder,
        precondition: Precondition | None = None,
    ) -> ObjectVersion:
        value, path = without_revision(encode(0)[0]), self._layout.path(key)
        if precondition is not None:
            revision = await self._put_with_precondition(key, expected, value, precondition)
        else:
            async with self._write_lock(key, expected):
                lease = await self._event_lease() if key.resource == EVENTS else 0
                revision = await self._wait_for_write(
                    *await self._client.put(path, value, revision_of(expected), lease)
                )
        return ObjectVersion(key, revision, *with_revision(value, revision))

    async def _put_with_precondition(
        self, key: Key, expected: ObjectVersion | None, value: bytes, precondition: Precondition
    ) -> int:
        """Write while no other object of the resource changes; after a conflict, check the precondition again."""
        path, prefix = self._layout.path(key), self._layout.path(Key(key.resource, "", ""))
        async with self._write_locks.setdefault(
            Key(key.resource, "", ""), asyncio.Lock()
        ):  # avoids conflicts within this server
            while True:
                async with self._write_lock(key, expected):
                    if not precondition():
                        raise VersionConflict
                    guard = RangeGuard(prefix, prefix[:-1] + b"0", self.revision)
                    result = await self._client.put(path, value, revision_of(expected), 0, guard)
                    with suppress(VersionConflict):
                        return await self._wait_for_write(*result)

    async def delete(self, key: Key, expected: ObjectVersion, encode: RevisionEncoder) -> ObjectVersion:
        async with self._write_lock(key, expected):
            revision = await self._wait_for_write(*await self._client.delete(self._layout.path(key), expected.revision))
        return ObjectVersion(key, revision, *encode(revision))

    @asynccontextmanager
    async def _write_lock(self, key: Key, expected: ObjectVersion | None) -> AsyncIterator[None]:
        """Serialize writes to an object within this server, because only one of them could succeed."""
        async with self._write_locks.setdefault(key, asyncio.Lock()):
            if revision_of(self.get(*key)) != revision_of(expected):
                raise VersionConflict
            if self._watch is None:
                raise StorageUnavailable(self._watch_error)
            yield

    async def _wait_for_write(self, succeeded: bool, revision: int) -> int:
        """Wait until the cache has a write. After a conflict, wait for the other write, then raise VersionConflict."""
        try:
            async with asyncio.timeout(CATCH_UP_TIMEOUT):
                await self._catch_up(revision)
        except TimeoutError as error:
            if succeeded:
                message = f"etcd: the write succeeded as revision {revision} but is not seen yet: {self._watch_error}"
                raise OutcomeUnknown(message) from error
        if not succeeded:
            raise VersionConflict
        return revision

    async def _event_lease(self) -> int:
        now = time.monotonic()
        if now > self._lease_until:
            self._lease = await self._client.grant_lease(int(EVENT_TTL_SECONDS + LEASE_REUSE_SECONDS))
            self._lease_until = now + LEASE_REUSE_SECONDS
        return self._lease

    async def wait_for_pending_write(self, key: Key) -> None:
        """Return at once: the cache only has what etcd has."""

    # -- consistent reads

    async def wait_for_latest(self) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                await self._watch_started.wait()
                request = self._latest_requested + 1  # a running request may return a state from before this call
                async with self._latest_lock:
                    if self._latest_received < request:
                        await self._fetch_latest()
        except TimeoutError as error:
            raise StorageUnavailable(self._watch_error or f"etcd: no response in {READ_TIMEOUT:g} s") from error

    async def _fetch_latest(self) -> None:
        self._latest_requested += 1
        latest = await self._client.current_revision(self._layout.prefix.encode())
        if self.revision < latest:
            await self._request_progress()
        await self._catch_up(latest)
        self._latest_received = self._latest_requested

    async def _catch_up(self, revision: int) -> None:
        """Wait until the cache has a revision. Request progress, because no watched key may have changed there."""
        while not await self.wait_for_revision(revision, PROGRESS_INTERVAL):
            await self._request_progress()

    async def _request_progress(self) -> None:
        if self._watch is not None:
            with suppress(StorageUnavailable):  # the watch loop sees the same error
                await self._watch.request_progress()

    # -- watching etcd

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_watch(), name="etcd")
            group.create_task(compact_periodically(self._client, self._history_seconds), name="compaction")

    async def _run_watch(self) -> None:
        shortest, longest = RECONNECT_BACKOFF
        wait = shortest
        while True:
            started = time.monotonic()
            try:
                await self._watch_until_end()
            except StorageError as error:
                self._watch_error = str(error)
                log.warning("etcd watch failed, reconnecting", revision=self.revision, error=str(error))
                self._client.switch_endpoint()
            wait = shortest if time.monotonic() - started > longest else min(wait * 2, longest)
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    async def _watch_until_end(self) -> None:
        """Apply changes from etcd until its watch ends."""
        start = self._layout.prefix.encode()
        if await self._client.current_revision(start) < self.revision:  # etcd was restored from a backup
            await self._reload()
        try:
            async with self._client.watch(start, self._layout.range_end, self.revision + 1) as watch:
                self._watch, self._watch_error = watch, ""
                self._watch_started.set()
                log.info("etcd watch started", revision=self.revision)
                while True:
                    self._apply_changes(*await watch.next())
        except HistoryCompacted:
            await self._reload()
        finally:
            self._watch, self._watch_error = None, "etcd: the watch has ended"
            self._watch_started.clear()

    def _apply_changes(self, changes: list[KeyValue], revision: int) -> None:
        decoded = list(
            self._decode_changes(changes)
        )  # decode all before applying any: an undecodable change is sent again
        for key, entry, new in decoded:
            old = self.get(*key)
            if new is not None:
                self._apply_event(key, WatchEvent(entry.revision, old, new, new.raw))
            elif old is not None:
                self._apply_event(key, WatchEvent(entry.revision, old, None, with_revision(old.raw, entry.revision)[0]))
        if revision > self.revision:
            self._advance_revision(revision)

    async def _reload(self) -> None:
        """Replace the cache with the current content of etcd."""
        versions: list[ObjectVersion] = []
        revision = 0
        async for page_revision, page in self._client.list_pages(self._layout.prefix.encode(), self._layout.range_end):
            revision = page_revision
            versions += (version for _, _, version in self._decode_changes(page) if version is not None)
        self._replace_all(versions, revision)

    def _decode_changes(self, entries: Iterable[KeyValue]) -> Iterator[tuple[Key, KeyValue, ObjectVersion | None]]:
        """Decode the entries that are objects; the version is None if the object was deleted."""
        for entry in entries:
            key = self._layout.key(entry.path)
            if key is not None:
                yield key, entry, self._decode_version(key, entry) if entry.value is not None else None

    def _decode_version(self, key: Key, entry: KeyValue) -> ObjectVersion:
        try:
            return ObjectVersion(key, entry.revision, *with_revision(entry.value or b"", entry.revision))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            path = entry.path.decode(errors="replace")
            raise StorageError(
                f"etcd: {path} at revision {entry.revision} is not an object in JSON: {error}; if kube-apiserver wrote "
                "it, run kube-apiserver with --storage-media-type=application/json and rewrite all objects"
            ) from error


def revision_of(version: ObjectVersion | None) -> int:
    return version.revision if version is not None else 0
