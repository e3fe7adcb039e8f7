"""The store: every object as it is now, what happened lately, and who wants to know of it.

All of it lives in one event loop, and all of it is the same wherever objects are kept.  Who writes is another matter:
`LocalStore` (`local`) gives out revisions itself and has a log to make writes durable, `EtcdStore` (`etcd`) has etcd
do both and learns from it what others wrote.  Either way a write is seen by readers and watchers when it is durable and
not before.

    head             as the next writer finds it
    get, every       as readers find it: only what is durable
    watch            every change from a revision on, in order, each exactly once
    wait_for_latest  until readers see all that was ever acknowledged, also by another server
"""

import asyncio
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from tapestry.apiserver.storage.log import Key
from tapestry.kube.objects import Object

MAX_WATCH_BACKLOG = 20_000
"""Events that a watcher may be behind before it is dropped."""
MAX_WATCH_BACKLOG_BYTES = 64 << 20
"""Bytes of objects in the events that a watcher may be behind before it is dropped."""
MAX_EVENTS_PER_RESOURCE = 100_000
"""Events that are remembered of one resource, at most."""
MAX_EVENT_BYTES_PER_RESOURCE = 32 << 20
"""Bytes of objects in the remembered events of one resource, at most."""
EVENTS, EVENT_TTL_SECONDS = "events", 3600.0
"""The resource whose objects are not kept for ever, and how long after their last change they go."""


class VersionConflict(Exception):
    """The object is no longer what the writer took it for."""


class Compacted(Exception):
    """What happened after that revision is no longer remembered."""

    def __init__(self, oldest: int) -> None:
        super().__init__(f"the oldest revision that is remembered is {oldest}")
        self.oldest = oldest


class ObjectVersion(msgspec.Struct, frozen=True):
    """One version of an object: nobody changes it."""

    key: Key
    revision: int
    raw: bytes
    """The object in JSON, as it is served."""
    labels: Object
    field_values: dict[str, str] = msgspec.field(default_factory=dict)
    """Fields that somebody selected by, for the next one."""


class WatchEvent(msgspec.Struct, eq=False):
    """One change: from `old` to `new`, either of which may be None.  `raw` is the object as the event shows it."""

    revision: int
    old: ObjectVersion | None
    new: ObjectVersion | None
    raw: bytes
    encodings: dict[str, bytes] = msgspec.field(default_factory=dict)
    """What was made of it for some watcher, for the next one."""

    @property
    def object_version(self) -> ObjectVersion:
        version = self.new or self.old
        assert version is not None
        return version


class Subscription:
    """One watcher: events after its revision.  It is dropped, not waited for, when it falls too far behind."""

    __slots__ = ("_after", "_backlog_bytes", "_events", "_is_awake", "_waiter", "dropped", "name", "namespace")

    def __init__(self, namespace: str, name: str, after: int, events: Sequence[WatchEvent]) -> None:
        self.namespace, self.name = namespace, name
        self.dropped = False
        self._after = after
        self._events = list(events)
        self._backlog_bytes = 0
        self._is_awake = bool(events)
        self._waiter: asyncio.Future[None] | None = None
        """While somebody waits in `take`."""

    def push(self, event: WatchEvent) -> None:
        if len(self._events) >= MAX_WATCH_BACKLOG or self._backlog_bytes >= MAX_WATCH_BACKLOG_BYTES:
            self.drop()
        elif not self.dropped and event.revision > self._after:  # another server may have told him of this one
            self._events.append(event)
            self._backlog_bytes += len(event.raw)
            self.wake()

    def drop(self) -> None:
        self.dropped = True
        self._events = []
        self.wake()

    @property
    def has_pending_events(self) -> bool:
        """Whether something has happened that was not taken yet."""
        return bool(self._events)

    def wake(self) -> None:
        """Have `take` return, whether or not anything happened."""
        self._is_awake = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next_events(self) -> list[WatchEvent]:
        """What has happened since the last time; waits until something has.  One may wait at a time.

        Nothing, once the subscription is dropped, or where somebody called `wake`.
        """
        if not self._is_awake:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._is_awake = False
        taken, self._events, self._backlog_bytes = self._events, [], 0
        return taken


@dataclass(slots=True)
class WatchCache:
    """The objects of one resource and their recent past."""

    objects: dict[tuple[str, str], ObjectVersion] = field(default_factory=dict)
    order: list[tuple[str, str]] | None = None
    events: deque[WatchEvent] = field(default_factory=deque)
    event_bytes: int = 0
    """Bytes of the objects in `events`."""
    compacted_revision: int = 0
    """The revision up to which events are forgotten."""
    changed_revision: int = 0
    """The revision of the last change."""
    subscriptions: set[Subscription] = field(default_factory=set)
    listeners: list[Callable[[WatchEvent], None]] = field(default_factory=list)

    def sorted_keys(self) -> list[tuple[str, str]]:
        if self.order is None:
            self.order = sorted(self.objects)
        return self.order

    def events_after(self, revision: int, namespace: str, name: str) -> list["WatchEvent"]:
        """Raises Compacted also where a watcher would be dropped at once, for there are too many."""
        found: list[WatchEvent] = []
        for event in reversed(self.events):
            if event.revision <= revision:
                break
            if event_matches(event, namespace, name):
                if len(found) >= MAX_WATCH_BACKLOG:
                    raise Compacted(event.revision)
                found.append(event)
        found.reverse()
        return found

    def add_event(self, event: WatchEvent) -> None:
        self.events.append(event)
        self.event_bytes += len(event.raw)
        while len(self.events) > MAX_EVENTS_PER_RESOURCE or self.event_bytes > MAX_EVENT_BYTES_PER_RESOURCE:
            self.drop_oldest_event()

    def drop_oldest_event(self) -> None:
        event = self.events.popleft()
        self.compacted_revision = event.revision
        self.event_bytes -= len(event.raw)

    def replace(self, objects: dict[tuple[str, str], ObjectVersion], revision: int) -> None:
        """Have just these from now on.  How it came to that is not known, hence watchers are dropped."""
        before, self.objects = self.objects, objects
        self.order, self.events, self.event_bytes = None, deque(), 0
        self.compacted_revision = self.changed_revision = revision
        for subscription in self.subscriptions:
            subscription.drop()
        if self.listeners:
            for event in diff_events(before, objects, revision):
                for listener in self.listeners:
                    listener(event)


RevisionEncoder = Callable[[int], tuple[bytes, Object]]
"""The object in JSON with the revision in it, and its labels."""

Precondition = Callable[[], bool]
"""Whether an object may have what it takes of that of which there is one of each, by all that readers see."""


class Store(ABC):
    """Objects by resource, namespace and name.  `run` must be running for writes to be made and seen."""

    def __init__(self) -> None:
        self._caches: dict[str, WatchCache] = {}
        self._revision_advanced: asyncio.Future[None] | None = None
        self._compacted_revision = 0
        self.revision = 0
        """The newest revision that readers see."""
        self.write_error = ""
        """Why the last write could not be kept; empty if it was."""

    # -- reading

    def get(self, resource: str, namespace: str, name: str) -> ObjectVersion | None:
        shelf = self._caches.get(resource)
        return shelf.objects.get((namespace, name)) if shelf is not None else None

    def list_objects(self, resource: str, namespace: str = "") -> list[ObjectVersion]:
        """The objects of a namespace, or of all, by namespace and name."""
        shelf = self._cache(resource)
        keys, objects = shelf.sorted_keys(), shelf.objects
        if namespace:
            keys = keys[bisect_right(keys, (namespace, "")) : bisect_right(keys, (namespace, "\uffff"))]
        return [objects[key] for key in keys]

    def list_at_revision(self, resource: str, namespace: str, revision: int) -> list[ObjectVersion]:
        """The same as of an earlier revision.  Raises Compacted."""
        shelf = self._cache(resource)
        if revision < shelf.compacted_revision:
            raise Compacted(shelf.compacted_revision)
        found: dict[tuple[str, str], ObjectVersion] = dict(shelf.objects)
        for event in reversed(shelf.events):
            if event.revision <= revision:
                break
            at = event.object_version.key.namespace, event.object_version.key.name
            if event.old is None:
                found.pop(at, None)
            else:
                found[at] = event.old
        return [found[key] for key in sorted(found) if not namespace or key[0] == namespace]

    def changed_revision(self, resource: str) -> int:
        """The revision of the last change of any object of the resource."""
        shelf = self._caches.get(resource)
        return shelf.changed_revision if shelf is not None else 0

    def count(self, resource: str) -> int:
        shelf = self._caches.get(resource)
        return len(shelf.objects) if shelf is not None else 0

    def resources(self) -> Iterator[str]:
        return (name for name, shelf in self._caches.items() if shelf.objects)

    async def wait_for_revision(self, revision: int, seconds: float) -> bool:
        """Whether readers see the revision, now or within that time."""
        if self.revision >= revision:
            return True
        try:
            async with asyncio.timeout(seconds):
                while self.revision < revision:
                    self._revision_advanced = self._revision_advanced or asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._revision_advanced)
        except TimeoutError:
            return False
        return True

    # -- watching

    def watch(self, resource: str, namespace: str = "", name: str = "", *, after: int | None = None) -> Subscription:
        """Every change after a revision, or from now on.  Raises Compacted."""
        shelf = self._cache(resource)
        missed: Sequence[WatchEvent] = ()
        if after is not None and after < self.revision:
            if after < shelf.compacted_revision:
                raise Compacted(shelf.compacted_revision)
            missed = shelf.events_after(after, namespace, name)
        subscription = Subscription(namespace, name, after or 0, missed)
        shelf.subscriptions.add(subscription)
        return subscription

    def watcher_count(self, resource: str) -> int:
        return len(self._cache(resource).subscriptions)

    def on_change(self, resource: str, listener: Callable[[WatchEvent], None]) -> None:
        """Call `listener` with every change as it becomes visible, before whoever made it is answered."""
        self._cache(resource).listeners.append(listener)

    def unwatch(self, resource: str, subscription: Subscription) -> None:
        self._cache(resource).subscriptions.discard(subscription)

    def compact_events(self, before: int) -> None:
        """Forget what happened up to a revision."""
        self._compacted_revision = max(self._compacted_revision, before)
        for shelf in self._caches.values():
            while shelf.events and shelf.events[0].revision <= before:
                shelf.drop_oldest_event()
            shelf.compacted_revision = max(shelf.compacted_revision, before)

    # -- writing

    @abstractmethod
    def head(self, resource: str, namespace: str, name: str) -> ObjectVersion | None:
        """The object as the next write finds it."""

    @abstractmethod
    async def put(
        self,
        key: Key,
        expected: ObjectVersion | None,
        encode: RevisionEncoder,
        precondition: Precondition | None = None,
    ) -> ObjectVersion:
        """Have the object as `make` makes it, in the place of `expected` and of nothing else.  Raises Stale.

        That is also raised where `claim` does not hold; nobody writes another object of the resource between its last
        word and this.

        When this returns, the object is durable, and readers see it.  Raises LogError when nobody can say so.
        """

    @abstractmethod
    async def delete(self, key: Key, expected: ObjectVersion, encode: RevisionEncoder) -> ObjectVersion:
        """Have `expected` no more; `make` gives it a last time.  Raises Stale and LogError, as `put` does."""

    @abstractmethod
    async def wait_for_pending_write(self, key: Key) -> None:
        """Wait until what the next writer finds under `key` is durable."""

    @abstractmethod
    async def wait_for_latest(self) -> None:
        """Wait until readers see every write that was acknowledged before this was called.  Raises LogError."""

    @abstractmethod
    async def run(self) -> None:
        """Have writes made and seen, until cancelled."""

    # -- for those who write

    def _replace_all(self, versions: Iterable[ObjectVersion], revision: int) -> None:
        """Have just these objects, as they are at a revision."""
        found: dict[str, dict[tuple[str, str], ObjectVersion]] = {}
        for version in versions:
            resource, namespace, name = version.key
            found.setdefault(resource, {})[namespace, name] = version
        self._compacted_revision = revision
        for resource in {*self._caches, *found}:
            self._cache(resource).replace(found.get(resource, {}), revision)
        self._advance_revision(revision)

    def _apply_event(self, key: Key, event: WatchEvent) -> None:
        """Let readers and watchers see a change; `_reach` comes after all that happened at a revision."""
        resource, namespace, name = key
        shelf, at = self._cache(resource), (namespace, name)
        if event.new is None:
            del shelf.objects[at]
            shelf.order = None
        else:
            if at not in shelf.objects:
                shelf.order = None
            shelf.objects[at] = event.new
        shelf.changed_revision = event.revision
        shelf.add_event(event)
        for listener in shelf.listeners:
            listener(event)
        for subscription in shelf.subscriptions:
            if subscription.namespace in ("", namespace) and subscription.name in ("", name):
                subscription.push(event)

    def _advance_revision(self, revision: int) -> None:
        """Readers see everything that happened up to a revision."""
        self.revision = revision
        if self._revision_advanced is not None:
            self._revision_advanced.set_result(None)
            self._revision_advanced = None

    def _cache(self, resource: str) -> WatchCache:
        shelf = self._caches.get(resource)
        if shelf is None:
            shelf = self._caches[resource] = WatchCache(compacted_revision=self._compacted_revision)
        return shelf


def diff_events(
    before: Mapping[tuple[str, str], ObjectVersion], after: Mapping[tuple[str, str], ObjectVersion], revision: int
) -> Iterator[WatchEvent]:
    for at in before.keys() - after.keys():
        yield WatchEvent(revision, before[at], None, before[at].raw)
    for at, new in after.items():
        old = before.get(at)
        if old is None or old.revision != new.revision:
            yield WatchEvent(revision, old, new, new.raw)


def event_matches(event: WatchEvent, namespace: str, name: str) -> bool:
    key = event.object_version.key
    return (not namespace or key.namespace == namespace) and (not name or key.name == name)


EventType = Literal["ADDED", "MODIFIED", "DELETED"]


def event_type(event: WatchEvent, matches: Callable[[ObjectVersion], bool]) -> EventType | None:
    """What an event is to a watcher who sees only what matches; None is nothing."""
    before = event.old is not None and matches(event.old)
    after = event.new is not None and matches(event.new)
    if before:
        return "MODIFIED" if after else "DELETED"
    return "ADDED" if after else None
