"""Store shared by several servers: etcd holds objects and revisions, each server caches them all.

One read of everything at a revision fills the cache, and one watch from there on updates it with the writes of all
servers. A write is a transaction that fails if the object changed since the writer read it. The server acknowledges a
write when its cache has it, so to its own clients the store behaves like a local one. For a consistent read, the store
asks etcd for its revision and waits until the cache has reached it. Concurrent readers share one such request.

With an epoch, this server is the only writer. Then its cache has every acknowledged write, and consistent reads do not
ask etcd. It loads an old revision and replays the changes since then, so that watches of clients that another server
has served continue here.

While etcd cannot be reached, writes and consistent reads fail, and watches wait.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from weakref import WeakValueDictionary

import msgspec

from tapestry.apiserver.core.config import Etcd
from tapestry.apiserver.core.epochs import EpochFence, EpochLost
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
from tapestry.apiserver.storage.etcd.client import (
    EtcdClient,
    EtcdWatch,
    HistoryCompacted,
    KeyValue,
    RangeGuard,
)
from tapestry.apiserver.storage.etcd.connection import EPOCH_KEY, etcd_client
from tapestry.apiserver.storage.etcd.layout import KeyLayout
from tapestry.apiserver.storage.raw_objects import with_revision, without_revision
from tapestry.process.logs import logger

log = logger(__name__)

COMPACT_KEY = b"compact_rev_key"
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
PROGRESS_REQUESTS_PER_RETENTION = 5
"""Number of progress requests within the history retention time. They keep the revision of an idle store in the history
of etcd, so that its watches can continue after an interruption."""
MAX_REPLAYED_REVISIONS = 100_000
"""Maximum number of revisions that are replayed when the only writer loads its store."""


class EtcdStore(Store):
    """Objects in an etcd that others may write to, unless the client has an epoch. Call `load` before `run`."""

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
        self._is_caught_up = False
        """True after the first consistent read: the cache has all writes before the load."""
        self._lease, self._lease_until = 0, 0.0

    async def load(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                await self._client.take_epoch()
                await self._check_epoch()
                return await self._fill(*await self._read_oldest())
            except StorageUnavailable:
                if time.monotonic() > deadline:
                    raise
                self._client.switch_endpoint()
            await asyncio.sleep(RECONNECT_BACKOFF[0] * 4)

    async def _check_epoch(self) -> None:
        """Raise StorageError if there is an epoch but this server has none: its writes would not be fenced."""
        if self._client.epoch is None:
            path = self._layout.prefix + EPOCH_KEY
            if (await self._client.get(path.encode()))[0].value is not None:
                raise StorageError(
                    f"etcd: {path} exists, so the data beside it is that of a plane; open it with `tapestry planes run`"
                )

    # -- writing

    def head(self, resource: str, namespace: str, name: str) -> ObjectVersion | None:
        return self.get(resource, namespace, name)

    def heads(self, resource: str, namespace: str = "") -> list[ObjectVersion]:
        """The objects in the cache. A write with a precondition is only accepted if etcd has no newer ones."""
        versions = self.unsorted_objects(resource)
        return [each for each in versions if each.key.namespace == namespace] if namespace else versions

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
            self._check_writable()
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

    async def _wait_for_writes(self) -> None:
        for lock in list(self._write_locks.values()):
            async with lock:  # later writers are rejected
                pass

    async def wait_for_pending_write(self, key: Key) -> None:
        """Return at once: the cache only has what etcd has."""

    # -- consistent reads

    async def wait_for_latest(self) -> None:
        if self._is_caught_up and self._client.is_only_writer:
            return
        timeout = READ_TIMEOUT if self._is_caught_up else START_TIMEOUT
        try:
            async with asyncio.timeout(timeout):
                await self._watch_started.wait()
                request = self._latest_requested + 1  # a running request may return a state from before this call
                async with self._latest_lock:
                    if self._latest_received < request:
                        await self._fetch_latest()
        except TimeoutError as error:
            raise StorageUnavailable(self._watch_error or f"etcd: no response in {timeout:g} s") from error

    async def _fetch_latest(self) -> None:
        self._latest_requested += 1
        latest = await self._client.current_revision(self._layout.prefix.encode())
        if self.revision < latest:
            await self._request_progress()
        await self._catch_up(latest)
        self._latest_received = self._latest_requested
        self._is_caught_up = True

    async def _catch_up(self, revision: int) -> None:
        """Wait until the cache has a revision. Request progress, because no watched key may have changed there."""
        while not await self.wait_for_revision(revision, PROGRESS_INTERVAL):
            await self._request_progress()

    async def _request_progress(self) -> None:
        if self._watch is not None:
            with suppress(StorageUnavailable):  # the watch loop sees the same error
                await self._watch.request_progress()

    async def _request_progress_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._history_seconds / PROGRESS_REQUESTS_PER_RETENTION)
            await self._request_progress()

    # -- watching etcd

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_watch(), name="etcd")
            group.create_task(compact_periodically(self._client, self._history_seconds), name="compaction")
            group.create_task(self._request_progress_periodically(), name="progress")
            if self._client.epoch is not None:
                await self._client.epoch_lost.wait()
                raise EpochLost(f"etcd: another process has taken {self._client.epoch.path.decode()}")

    async def _run_watch(self) -> None:
        shortest, longest = RECONNECT_BACKOFF
        wait = shortest
        while True:
            started = time.monotonic()
            try:
                await self._watch_until_end()
            except EpochLost:
                return
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
        self._client.check_changes(changes)
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
        self._replace_all(*await self._read_all())

    async def _read_oldest(self) -> tuple[list[ObjectVersion], int]:
        """Return all objects at an old revision, from which the watch then replays the changes."""
        if self._client.epoch is None:
            return await self._read_all()
        compacted, latest = await self._client.get(COMPACT_KEY)
        oldest = max(1, int(compacted.value or 0), latest - MAX_REPLAYED_REVISIONS)
        try:
            return await self._read_all(oldest)
        except HistoryCompacted:  # the key has only the compactions of API servers
            return await self._read_all()

    async def _read_all(self, revision: int = 0) -> tuple[list[ObjectVersion], int]:
        """Return all objects in etcd, and the revision at which they were read, by default the latest."""
        versions: list[ObjectVersion] = []
        async for page_revision, page in self._client.list_pages(
            self._layout.prefix.encode(), self._layout.range_end, revision
        ):
            revision = page_revision
            versions += (version for _, _, version in self._decode_changes(page) if version is not None)
        return versions, revision

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


@asynccontextmanager
async def open_etcd_store(
    config: Etcd, built_in: Iterable[str], history_seconds: float, fence: EpochFence | None = None
) -> AsyncIterator[Store]:
    """Open the store. The caller loads and runs it. Raises StorageError, ValueError and OSError."""
    async with etcd_client(config, fence) as client:
        yield EtcdStore(client, KeyLayout(config.prefix, built_in), history_seconds=history_seconds)


async def compact_periodically(client: EtcdClient, seconds: float) -> None:
    """Remove history older than `seconds`, and nothing newer.

    In each interval, only one of the servers on an etcd compacts, including kube-apiservers. It is the first one to
    increment a shared key, as in kube-apiserver. It compacts the history up to the revision of the previous interval.
    """
    count = revision = 0
    while True:
        await asyncio.sleep(seconds)
        try:
            count, revision = await compact_once(client, count, revision)
        except StorageError as error:  # the next interval tries again
            log.warning("etcd compaction failed", revision=revision, error=str(error))


async def compact_once(client: EtcdClient, count: int, revision: int) -> tuple[int, int]:
    """Compact up to `revision` unless another server did. Returns the next count and revision."""
    is_first, count, latest = await client.put_if_version(COMPACT_KEY, b"%d" % revision, count)
    if is_first and revision:
        await client.compact(revision)
        log.info("etcd compacted", revision=revision)
    return count, latest
