"""The store: every object as it is now, what happened lately, and who wants to know of it.

All of it lives in one event loop.  A write is checked and given its revision at once, waits with others for the log,
and is seen by readers and watchers when it is durable and not before.  Writes build on each other while they wait: the
log keeps them in order, so whoever is answered has everything that came before his write on the disk, too.

    head         as the next writer finds it: writes that are still on their way to the log included
    get, every   as readers find it: only what is durable
    watch        every change from a revision on, in order, each exactly once
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

from tapestry.apiserver.storage.log import Entry, Key, Log, LogError
from tapestry.kube.objects import Object

LONGEST_BACKLOG = 20_000
"""Events that a watcher may be behind before it is dropped."""
MOST_EVENTS = 100_000
"""Events that are remembered of one resource, at most."""
FULLEST_BATCH = 512


class Stale(Exception):
    """The object is no longer what the writer took it for."""


class Compacted(Exception):
    """What happened after that revision is no longer remembered."""

    def __init__(self, oldest: int) -> None:
        super().__init__(f"the oldest revision that is remembered is {oldest}")
        self.oldest = oldest


@dataclass(frozen=True, slots=True)
class Version:
    """One version of an object: nobody changes it."""

    key: Key
    revision: int
    raw: bytes
    """The object in JSON, as it is served."""
    labels: Object
    created: int
    """The revision at which the object came."""


@dataclass(slots=True)
class Event:
    """One change: from `old` to `new`, either of which may be None.  `raw` is the object as the event shows it."""

    revision: int
    old: Version | None
    new: Version | None
    raw: bytes
    lines: dict[str, bytes] = field(default_factory=dict)
    """What was made of it for some watcher, for the next one."""

    @property
    def shown(self) -> Version:
        version = self.new or self.old
        assert version is not None
        return version


class Subscription:
    """One watcher: events from its revision on.  It is dropped, not waited for, when it falls too far behind."""

    __slots__ = ("_events", "_wake", "dropped", "name", "namespace")

    def __init__(self, namespace: str, name: str, events: Sequence[Event]) -> None:
        self.namespace, self.name = namespace, name
        self.dropped = False
        self._events = deque(events)
        self._wake = asyncio.Event()
        if events:
            self._wake.set()

    def push(self, event: Event) -> None:
        if len(self._events) >= LONGEST_BACKLOG:
            self.dropped = True
            self._events.clear()
        elif not self.dropped:
            self._events.append(event)
        self._wake.set()

    async def take(self) -> list[Event]:
        """What has happened since the last time; waits until something has.  Empty once the subscription is dropped."""
        await self._wake.wait()
        self._wake.clear()
        taken = list(self._events)
        self._events.clear()
        return taken


@dataclass(slots=True)
class Shelf:
    """The objects of one resource and their recent past."""

    heads: dict[tuple[str, str], Version | None] = field(default_factory=dict)
    """Where the next writer finds something else than readers do; None is a deletion on its way."""
    objects: dict[tuple[str, str], Version] = field(default_factory=dict)
    order: list[tuple[str, str]] | None = None
    events: deque[Event] = field(default_factory=deque)
    compacted: int = 0
    """The revision up to which events are forgotten."""
    changed: int = 0
    """The revision of the last change."""
    subscriptions: set[Subscription] = field(default_factory=set)
    listeners: list[Callable[[Event], None]] = field(default_factory=list)

    def sorted_keys(self) -> list[tuple[str, str]]:
        if self.order is None:
            self.order = sorted(self.objects)
        return self.order


Make = Callable[[int], tuple[bytes, Object]]
"""The object in JSON with the revision in it, and its labels."""


@dataclass(slots=True)
class Write:
    key: Key
    entry: Entry
    event: Event
    done: asyncio.Future[None]


class Store:
    """Objects by resource, namespace and name.  `run` must be running for writes to become durable."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._shelves: dict[str, Shelf] = {}
        self._writes: deque[Write] = deque()
        self._under_way: dict[Key, Write] = {}
        self._moved: asyncio.Future[None] | None = None
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="log")
        self._given = 0
        self.revision = 0
        """The newest revision that readers see."""

    def load(self, read: Callable[[bytes], Object]) -> None:
        """Fill the store from its log; `read` gives an object's labels."""
        latest, entries = self._log.load()
        for revision, key, raw in entries:
            assert raw is not None
            shelf = self._shelf(key.resource)
            shelf.objects[key.namespace, key.name] = Version(key, revision, raw, read(raw), revision)
            shelf.changed = revision
        for shelf in self._shelves.values():
            shelf.compacted = latest
        self._given = self.revision = latest

    # -- reading

    def get(self, resource: str, namespace: str, name: str) -> Version | None:
        return self._shelf(resource).objects.get((namespace, name))

    def every(self, resource: str, namespace: str = "") -> list[Version]:
        """The objects of a namespace, or of all, by namespace and name."""
        shelf = self._shelf(resource)
        keys, objects = shelf.sorted_keys(), shelf.objects
        if namespace:
            keys = keys[bisect_right(keys, (namespace, "")) : bisect_right(keys, (namespace, "\uffff"))]
        return [objects[key] for key in keys]

    def every_at(self, resource: str, namespace: str, revision: int) -> list[Version]:
        """The same as of an earlier revision.  Raises Compacted."""
        shelf = self._shelf(resource)
        if revision < shelf.compacted:
            raise Compacted(shelf.compacted)
        found: dict[tuple[str, str], Version] = dict(shelf.objects)
        for event in reversed(shelf.events):
            if event.revision <= revision:
                break
            at = event.shown.key.namespace, event.shown.key.name
            if event.old is None:
                found.pop(at, None)
            else:
                found[at] = event.old
        return [found[key] for key in sorted(found) if not namespace or key[0] == namespace]

    def changed_at(self, resource: str) -> int:
        """The revision of the last change of any object of the resource."""
        return self._shelf(resource).changed

    def count(self, resource: str) -> int:
        return len(self._shelf(resource).objects)

    def resources(self) -> Iterator[str]:
        return (name for name, shelf in self._shelves.items() if shelf.objects)

    # -- watching

    def watch(self, resource: str, namespace: str = "", name: str = "", *, after: int | None = None) -> Subscription:
        """Every change after a revision, or from now on.  Raises Compacted."""
        shelf = self._shelf(resource)
        missed: Sequence[Event] = ()
        if after is not None and after < self.revision:
            if after < shelf.compacted:
                raise Compacted(shelf.compacted)
            missed = [each for each in shelf.events if each.revision > after and concerns(each, namespace, name)]
        subscription = Subscription(namespace, name, missed)
        shelf.subscriptions.add(subscription)
        return subscription

    def on_change(self, resource: str, listener: Callable[[Event], None]) -> None:
        """Call `listener` with every change as it becomes visible, before whoever made it is answered."""
        self._shelf(resource).listeners.append(listener)

    def unwatch(self, resource: str, subscription: Subscription) -> None:
        self._shelf(resource).subscriptions.discard(subscription)

    def forget_events(self, before: int) -> None:
        """Forget what happened up to a revision."""
        for shelf in self._shelves.values():
            while shelf.events and shelf.events[0].revision <= before:
                shelf.compacted = shelf.events.popleft().revision
            shelf.compacted = max(shelf.compacted, before)

    # -- writing

    def head(self, resource: str, namespace: str, name: str) -> Version | None:
        """The object as the next write finds it."""
        shelf = self._shelf(resource)
        key = (namespace, name)
        return shelf.heads[key] if key in shelf.heads else shelf.objects.get(key)

    async def put(self, key: Key, expected: Version | None, make: Make) -> Version:
        """Have the object as `make` makes it, in the place of `expected` and of nothing else.  Raises Stale.

        When this returns, the object is durable.  Raises LogError when nobody can say that it ever will be.
        """
        self._expect(key, expected)
        revision = self._next()
        raw, labels = make(revision)
        version = Version(key, revision, raw, labels, expected.created if expected else revision)
        await self._write(key, version, Event(revision, expected, version, raw))
        return version

    async def delete(self, key: Key, expected: Version, make: Make) -> Version:
        """Have `expected` no more; `make` gives it a last time, as the event shows it.  Raises Stale."""
        self._expect(key, expected)
        revision = self._next()
        raw, labels = make(revision)
        await self._write(key, None, Event(revision, expected, None, raw))
        return Version(key, revision, raw, labels, expected.created)

    def _expect(self, key: Key, expected: Version | None) -> None:
        if self.head(*key) is not expected:
            raise Stale

    def _next(self) -> int:
        self._given += 1
        return self._given

    async def _write(self, key: Key, version: Version | None, event: Event) -> None:
        entry = Entry(event.revision, key, version.raw if version is not None else None)
        write = Write(key, entry, event, asyncio.get_running_loop().create_future())
        self._shelf(key.resource).heads[key.namespace, key.name] = version
        self._writes.append(write)
        self._wake.set()
        await asyncio.shield(write.done)  # whoever asked may go away; what was begun is finished

    async def settled(self, key: Key) -> None:
        """Wait until what the next writer finds under `key` is durable."""
        waiting = next((write for write in reversed(self._writes) if write.key == key), None) or self._under_way.get(
            key
        )
        if waiting is not None:
            await asyncio.shield(waiting.done)

    async def wait_for(self, revision: int, seconds: float) -> bool:
        """Whether readers see the revision, now or within that time."""
        try:
            async with asyncio.timeout(seconds):
                while self.revision < revision:
                    self._moved = self._moved or asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._moved)
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Take writes to the log, as many at a time as wait there, until cancelled."""
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

    def close(self) -> None:
        self._thread.shutdown()
        self._log.close()

    def _publish(self, batch: Sequence[Write]) -> None:
        """The batch is durable: let readers and watchers see it, in its order."""
        for write in batch:
            shelf, event = self._shelf(write.key.resource), write.event
            at = write.key.namespace, write.key.name
            if event.new is None:
                del shelf.objects[at]
                shelf.order = None
            else:
                if at not in shelf.objects:
                    shelf.order = None
                shelf.objects[at] = event.new
            if shelf.heads.get(at) is event.new:
                shelf.heads.pop(at, None)
            self.revision = shelf.changed = event.revision
            self._remember(shelf, event)
            for listener in shelf.listeners:
                listener(event)
            for subscription in shelf.subscriptions:
                if concerns(event, subscription.namespace, subscription.name):
                    subscription.push(event)
            if not write.done.done():
                write.done.set_result(None)
        self._under_way = {}
        if self._moved is not None:
            self._moved.set_result(None)
            self._moved = None

    def _remember(self, shelf: Shelf, event: Event) -> None:
        shelf.events.append(event)
        if len(shelf.events) > MOST_EVENTS:
            shelf.compacted = shelf.events.popleft().revision

    def _fail(self, writes: Sequence[Write], error: LogError) -> None:
        """None of these happened, nor what was built on them; their revisions are not given out again."""
        self._writes.clear()
        self._under_way = {}
        for write in writes:
            self._shelf(write.key.resource).heads.pop((write.key.namespace, write.key.name), None)
            if not write.done.done():
                write.done.set_exception(error)

    def _shelf(self, resource: str) -> Shelf:
        shelf = self._shelves.get(resource)
        if shelf is None:
            shelf = self._shelves[resource] = Shelf(compacted=self.revision)
        return shelf


def concerns(event: Event, namespace: str, name: str) -> bool:
    key = event.shown.key
    return (not namespace or key.namespace == namespace) and (not name or key.name == name)


Change = Literal["ADDED", "MODIFIED", "DELETED"]


def change(event: Event, matches: Callable[[Version], bool]) -> Change | None:
    """What an event is to a watcher who sees only what matches; None is nothing."""
    before = event.old is not None and matches(event.old)
    after = event.new is not None and matches(event.new)
    if before:
        return "MODIFIED" if after else "DELETED"
    return "ADDED" if after else None
