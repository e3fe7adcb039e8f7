"""The store of several servers: etcd has the objects and gives out the revisions, each server an image of them all.

The image is filled by one read of everything at a revision and kept by one watch from there on; that brings what other
servers wrote, and what this one did.  A write is a transaction that holds only while the object is what the writer took
it for.  It is answered when the image has it, so the store is to its own clients what a local one is; before anything
is read that must be the latest, etcd is asked for its revision, and the image is waited for: once for all who ask in
the meantime.

While etcd cannot be reached, nothing is written and nothing is read that must be the latest; watches wait.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from weakref import WeakValueDictionary

import msgspec

from tapestry.apiserver.storage.etcd.client import EtcdClient, EtcdWatch, HistoryCompacted, KeyValue, RangeGuard
from tapestry.apiserver.storage.etcd.compaction import compact_periodically
from tapestry.apiserver.storage.etcd.layout import KeyLayout
from tapestry.apiserver.storage.log import Key, OutcomeUnknown, StorageError, StorageUnavailable
from tapestry.apiserver.storage.raw_objects import with_revision, without_revision
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
from tapestry.process.logs import logger

log = logger(__name__)

START_TIMEOUT = 30.0
"""How long etcd is waited for at the start."""
READ_TIMEOUT = 3.0
"""How long a reader waits for the latest."""
CATCH_UP_TIMEOUT = 10.0
"""How long a writer waits until the image has what etcd has acknowledged."""
PROGRESS_INTERVAL = 0.05
"""How long the image may be behind before etcd is asked where the watch is."""
RECONNECT_BACKOFF = (0.05, 2.0)
"""The shortest and the longest time between attempts to reach etcd."""
LEASE_REUSE_SECONDS = 60.0
"""For how long what is written gets the same lease."""


class EtcdStore(Store):
    """Objects in an etcd that others may write to, too.  `load` comes before `run`."""

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
        """Fill the store; raises LogError if etcd is not there, or has objects that cannot be read."""
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
        """Write while nobody else writes an object of the resource; who comes after one looks again at what is free."""
        path, where = self._layout.path(key), self._layout.path(Key(key.resource, "", ""))
        async with self._write_locks.setdefault(
            Key(key.resource, "", ""), asyncio.Lock()
        ):  # we would only be in our way
            while True:
                async with self._write_lock(key, expected):
                    if not precondition():
                        raise VersionConflict
                    among = RangeGuard(where, where[:-1] + b"0", self.revision)
                    answer = await self._client.put(path, value, revision_of(expected), 0, among)
                    with suppress(VersionConflict):
                        return await self._wait_for_write(*answer)

    async def delete(self, key: Key, expected: ObjectVersion, encode: RevisionEncoder) -> ObjectVersion:
        async with self._write_lock(key, expected):
            revision = await self._wait_for_write(*await self._client.delete(self._layout.path(key), expected.revision))
        return ObjectVersion(key, revision, *encode(revision))

    @asynccontextmanager
    async def _write_lock(self, key: Key, expected: ObjectVersion | None) -> AsyncIterator[None]:
        """The right to write an object, which one of ours has at a time: of many, only one could win."""
        async with self._write_locks.setdefault(key, asyncio.Lock()):
            if revision_of(self.get(*key)) != revision_of(expected):
                raise VersionConflict
            if self._watch is None:
                raise StorageUnavailable(self._watch_error)
            yield

    async def _wait_for_write(self, succeeded: bool, revision: int) -> int:
        """A write is done when it is seen; one that came too late begins again when what came first is seen."""
        try:
            async with asyncio.timeout(CATCH_UP_TIMEOUT):
                await self._catch_up(revision)
        except TimeoutError as error:
            if succeeded:
                why = f"etcd: this was written, as revision {revision}, but is not seen yet: {self._watch_error}"
                raise OutcomeUnknown(why) from error
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
        """What the next writer finds is what etcd has."""

    # -- being current

    async def wait_for_latest(self) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                await self._watch_started.wait()
                mine = (
                    self._latest_requested + 1
                )  # a question that is under way may be answered with what was before this call
                async with self._latest_lock:
                    if self._latest_received < mine:
                        await self._fetch_latest()
        except TimeoutError as error:
            raise StorageUnavailable(self._watch_error or f"etcd: gave no answer in {READ_TIMEOUT:g} s") from error

    async def _fetch_latest(self) -> None:
        self._latest_requested += 1
        latest = await self._client.current_revision(self._layout.prefix.encode())
        if self.revision < latest:
            await self._request_progress()
        await self._catch_up(latest)
        self._latest_received = self._latest_requested

    async def _catch_up(self, revision: int) -> None:
        """Wait until the image has a revision.  At that one nothing may have happened that is watched."""
        while not await self.wait_for_revision(revision, PROGRESS_INTERVAL):
            await self._request_progress()

    async def _request_progress(self) -> None:
        if self._watch is not None:
            with suppress(StorageUnavailable):  # whoever follows the watch sees that, too
                await self._watch.request_progress()

    # -- following etcd

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_watch(), name="etcd")
            group.create_task(compact_periodically(self._client, self._history_seconds), name="compaction")

    async def _run_watch(self) -> None:
        shortest, longest = RECONNECT_BACKOFF
        wait = shortest
        while True:
            begun = time.monotonic()
            try:
                await self._watch_until_end()
            except StorageError as error:
                self._watch_error = str(error)
                log.warning("etcd is lost", revision=self.revision, error=str(error))
                self._client.switch_endpoint()
            wait = shortest if time.monotonic() - begun > longest else min(wait * 2, longest)
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    async def _watch_until_end(self) -> None:
        """Take over what happens in etcd, for as long as its watch goes."""
        start = self._layout.prefix.encode()
        if await self._client.current_revision(start) < self.revision:  # it was restored from a backup
            await self._reload()
        try:
            async with self._client.watch(start, self._layout.range_end, self.revision + 1) as watch:
                self._watch, self._watch_error = watch, ""
                self._watch_started.set()
                log.info("etcd is watched", revision=self.revision)
                while True:
                    self._apply_changes(*await watch.next())
        except HistoryCompacted:
            await self._reload()
        finally:
            self._watch, self._watch_error = None, "etcd: the watch has ended"
            self._watch_started.clear()

    def _apply_changes(self, changes: list[KeyValue], revision: int) -> None:
        known = list(
            self._decode_changes(changes)
        )  # all of it before any of it is shown: what cannot be read comes again
        for key, kept, new in known:
            old = self.get(*key)
            if new is not None:
                self._apply_event(key, WatchEvent(kept.revision, old, new, new.raw))
            elif old is not None:
                self._apply_event(key, WatchEvent(kept.revision, old, None, with_revision(old.raw, kept.revision)[0]))
        if revision > self.revision:
            self._advance_revision(revision)

    async def _reload(self) -> None:
        """Have the image as etcd is now, however it came to be so."""
        found: list[ObjectVersion] = []
        revision = 0
        async for at, page in self._client.list_pages(self._layout.prefix.encode(), self._layout.range_end):
            revision = at
            found += (version for _, _, version in self._decode_changes(page) if version is not None)
        self._replace_all(found, revision)

    def _decode_changes(self, entries: Iterable[KeyValue]) -> Iterator[tuple[Key, KeyValue, ObjectVersion | None]]:
        """What of it are objects; None is one that was deleted."""
        for kept in entries:
            key = self._layout.key(kept.path)
            if key is not None:
                yield key, kept, self._decode_version(key, kept) if kept.value is not None else None

    def _decode_version(self, key: Key, entry: KeyValue) -> ObjectVersion:
        try:
            return ObjectVersion(key, entry.revision, *with_revision(entry.value or b"", entry.revision))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            path = entry.path.decode(errors="replace")
            raise StorageError(
                f"etcd: {path} at revision {entry.revision} is not an object in JSON: {error}; if kube-apiserver wrote "
                "it, run that with --storage-media-type=application/json and have it write all objects once more"
            ) from error


def revision_of(version: ObjectVersion | None) -> int:
    return version.revision if version is not None else 0
