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

from tapestry.apiserver.storage.etcd.client import Among, Client, HistoryLost, Kept, Watch
from tapestry.apiserver.storage.etcd.compaction import keep_compact
from tapestry.apiserver.storage.etcd.layout import Layout
from tapestry.apiserver.storage.log import Key, LogError, OutcomeUnknown, Unreachable
from tapestry.apiserver.storage.store import EVENT_SECONDS, EVENTS, Claim, Event, Make, Stale, Store, Version
from tapestry.apiserver.storage.values import unversioned, versioned
from tapestry.process.logs import logger

log = logger(__name__)

START_SECONDS = 30.0
"""How long etcd is waited for at the start."""
PATIENCE = 3.0
"""How long a reader waits for the latest."""
SEEN_SECONDS = 10.0
"""How long a writer waits until the image has what etcd has acknowledged."""
PROGRESS_SECONDS = 0.05
"""How long the image may be behind before etcd is asked where the watch is."""
WAITS = (0.05, 2.0)
"""The shortest and the longest time between attempts to reach etcd."""
LEASE_SHARE = 60.0
"""For how long what is written gets the same lease."""


class EtcdStore(Store):
    """Objects in an etcd that others may write to, too.  `load` comes before `run`."""

    def __init__(self, client: Client, layout: Layout, *, history_seconds: float) -> None:
        super().__init__()
        self._client, self._layout = client, layout
        self._history_seconds = history_seconds
        self._watch: Watch | None = None
        self._followed = asyncio.Event()
        self._trouble = "etcd: not watched yet"
        self._turns: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._asking = asyncio.Lock()
        self._asked = self._answered = 0
        self._lease, self._lease_until = 0, 0.0

    async def load(self) -> None:
        """Fill the store; raises LogError if etcd is not there, or has objects that cannot be read."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return await self._refill()
            except Unreachable:
                if time.monotonic() > deadline:
                    raise
                self._client.turn()
            await asyncio.sleep(WAITS[0] * 4)

    # -- writing

    def head(self, resource: str, namespace: str, name: str) -> Version | None:
        return self.get(resource, namespace, name)

    async def put(self, key: Key, expected: Version | None, make: Make, claim: Claim | None = None) -> Version:
        value, path = unversioned(make(0)[0]), self._layout.path(key)
        if claim is not None:
            revision = await self._put_claiming(key, expected, value, claim)
        else:
            async with self._turn(key, expected):
                lease = await self._leased() if key.resource == EVENTS else 0
                revision = await self._written(*await self._client.put(path, value, revision_of(expected), lease))
        return Version(key, revision, *versioned(value, revision))

    async def _put_claiming(self, key: Key, expected: Version | None, value: bytes, claim: Claim) -> int:
        """Write while nobody else writes an object of the resource; who comes after one looks again at what is free."""
        path, where = self._layout.path(key), self._layout.path(Key(key.resource, "", ""))
        async with self._turns.setdefault(Key(key.resource, "", ""), asyncio.Lock()):  # we would only be in our way
            while True:
                async with self._turn(key, expected):
                    if not claim():
                        raise Stale
                    among = Among(where, where[:-1] + b"0", self.revision)
                    answer = await self._client.put(path, value, revision_of(expected), 0, among)
                    with suppress(Stale):
                        return await self._written(*answer)

    async def delete(self, key: Key, expected: Version, make: Make) -> Version:
        async with self._turn(key, expected):
            revision = await self._written(*await self._client.delete(self._layout.path(key), expected.revision))
        return Version(key, revision, *make(revision))

    @asynccontextmanager
    async def _turn(self, key: Key, expected: Version | None) -> AsyncIterator[None]:
        """The right to write an object, which one of ours has at a time: of many, only one could win."""
        async with self._turns.setdefault(key, asyncio.Lock()):
            if revision_of(self.get(*key)) != revision_of(expected):
                raise Stale
            if self._watch is None:
                raise Unreachable(self._trouble)
            yield

    async def _written(self, succeeded: bool, revision: int) -> int:
        """A write is done when it is seen; one that came too late begins again when what came first is seen."""
        try:
            async with asyncio.timeout(SEEN_SECONDS):
                await self._catch_up(revision)
        except TimeoutError as error:
            if succeeded:
                why = f"etcd: this was written, as revision {revision}, but is not seen yet: {self._trouble}"
                raise OutcomeUnknown(why) from error
        if not succeeded:
            raise Stale
        return revision

    async def _leased(self) -> int:
        now = time.monotonic()
        if now > self._lease_until:
            self._lease = await self._client.grant(int(EVENT_SECONDS + LEASE_SHARE))
            self._lease_until = now + LEASE_SHARE
        return self._lease

    async def settled(self, key: Key) -> None:
        """What the next writer finds is what etcd has."""

    # -- being current

    async def wait_for_latest(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._followed.wait()
                mine = self._asked + 1  # a question that is under way may be answered with what was before this call
                async with self._asking:
                    if self._answered < mine:
                        await self._ask_for_latest()
        except TimeoutError as error:
            raise Unreachable(self._trouble or f"etcd: gave no answer in {PATIENCE:g} s") from error

    async def _ask_for_latest(self) -> None:
        self._asked += 1
        latest = await self._client.revision(self._layout.prefix.encode())
        if self.revision < latest:
            await self._ask_for_progress()
        await self._catch_up(latest)
        self._answered = self._asked

    async def _catch_up(self, revision: int) -> None:
        """Wait until the image has a revision.  At that one nothing may have happened that is watched."""
        while not await self.wait_for(revision, PROGRESS_SECONDS):
            await self._ask_for_progress()

    async def _ask_for_progress(self) -> None:
        if self._watch is not None:
            with suppress(Unreachable):  # whoever follows the watch sees that, too
                await self._watch.ask_for_progress()

    # -- following etcd

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_following(), name="etcd")
            group.create_task(keep_compact(self._client, self._history_seconds), name="compaction")

    async def _keep_following(self) -> None:
        shortest, longest = WAITS
        wait = shortest
        while True:
            begun = time.monotonic()
            try:
                await self._follow()
            except LogError as error:
                self._trouble = str(error)
                log.warning("etcd is lost", revision=self.revision, error=str(error))
                self._client.turn()
            wait = shortest if time.monotonic() - begun > longest else min(wait * 2, longest)
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    async def _follow(self) -> None:
        """Take over what happens in etcd, for as long as its watch goes."""
        start = self._layout.prefix.encode()
        if await self._client.revision(start) < self.revision:  # it was restored from a backup
            await self._refill()
        try:
            async with self._client.watch(start, self._layout.end, self.revision + 1) as watch:
                self._watch, self._trouble = watch, ""
                self._followed.set()
                log.info("etcd is watched", revision=self.revision)
                while True:
                    self._take(*await watch.next())
        except HistoryLost:
            await self._refill()
        finally:
            self._watch, self._trouble = None, "etcd: the watch has ended"
            self._followed.clear()

    def _take(self, changes: list[Kept], revision: int) -> None:
        known = list(self._read(changes))  # all of it before any of it is shown: what cannot be read comes again
        for key, kept, new in known:
            old = self.get(*key)
            if new is not None:
                self._show(key, Event(kept.revision, old, new, new.raw))
            elif old is not None:
                self._show(key, Event(kept.revision, old, None, versioned(old.raw, kept.revision)[0]))
        if revision > self.revision:
            self._reach(revision)

    async def _refill(self) -> None:
        """Have the image as etcd is now, however it came to be so."""
        found: list[Version] = []
        revision = 0
        async for at, page in self._client.pages(self._layout.prefix.encode(), self._layout.end):
            revision = at
            found += (version for _, _, version in self._read(page) if version is not None)
        self._fill(found, revision)

    def _read(self, found: Iterable[Kept]) -> Iterator[tuple[Key, Kept, Version | None]]:
        """What of it are objects; None is one that was deleted."""
        for kept in found:
            key = self._layout.key(kept.path)
            if key is not None:
                yield key, kept, self._version(key, kept) if kept.value is not None else None

    def _version(self, key: Key, kept: Kept) -> Version:
        try:
            return Version(key, kept.revision, *versioned(kept.value or b"", kept.revision))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            path = kept.path.decode(errors="replace")
            raise LogError(
                f"etcd: {path} at revision {kept.revision} is not an object in JSON: {error}; if kube-apiserver wrote "
                "it, run that with --storage-media-type=application/json and have it write all objects once more"
            ) from error


def revision_of(version: Version | None) -> int:
    return version.revision if version is not None else 0
