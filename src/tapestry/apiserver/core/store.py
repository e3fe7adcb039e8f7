"""The store: all objects in memory, a history of recent changes, and the watchers.

The store belongs to one event loop. Subclasses implement writes. `LocalStore` assigns revisions itself and makes writes
durable in a log. In `EtcdStore`, etcd does both, and a watch reports the writes of other servers. Readers and watchers
never see a write before it is durable.

    head, heads        the objects as the next writer sees them
    load               fill the empty store; listeners get every object
    get, list_objects  the durable state, as readers see it
    watch              every change after a revision, in order, exactly once
    wait_for_latest    wait until readers see every acknowledged write, including those of other servers
    finish             end all writes and watches, before the store is closed
"""

import asyncio
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, NamedTuple, NoReturn

import msgspec

from tapestry.apiserver.core.slices import sliced

MAX_WATCH_BACKLOG = 20_000
"""Maximum number of undelivered events of a watcher; a watcher with more is dropped."""
MAX_WATCH_BACKLOG_BYTES = 64 << 20
"""Maximum size of the objects in the undelivered events of a watcher; a watcher with more is dropped."""
MAX_EVENTS_PER_RESOURCE = 100_000
"""Maximum number of events in the history of one resource."""
MAX_EVENT_BYTES_PER_RESOURCE = 32 << 20
"""Maximum size of the objects in the history of one resource."""
FREED_AT_ONCE = 256
"""Number of objects that are freed before other tasks may run."""
EVENTS, EVENT_TTL_SECONDS = "events", 3600.0
"""The resource whose objects expire, and their lifetime in seconds after the last change."""


class Key(NamedTuple):
    """Identity of an object. `resource` is `pods` or `deployments.apps`, for example. `namespace` may be empty."""

    resource: str
    namespace: str
    name: str


class StorageError(Exception):
    """Error if the backend rejects a write or holds corrupt data. The message says where and what to do."""


class StorageUnavailable(StorageError):
    """Error if the backend cannot be reached. Nothing was written."""


class OutcomeUnknown(StorageError):
    """Error if a write was sent but its result is unknown."""


class ObjectTooLarge(StorageError):
    """Error if the backend accepts no object of this size. Nothing was written."""


class VersionConflict(Exception):
    """Error if the object changed since the writer read it."""


class Compacted(Exception):
    """Error if the history no longer includes the requested revision."""

    def __init__(self, oldest: int) -> None:
        super().__init__(f"the oldest revision in the history is {oldest}")
        self.oldest = oldest


class ObjectVersion(msgspec.Struct, frozen=True, gc=False):
    """One version of an object. It is immutable."""

    key: Key
    revision: int
    raw: bytes
    """The object in JSON, as the server returns it."""
    labels: Mapping[str, str]
    field_values: dict[str, str] = msgspec.field(default_factory=dict)
    """Cache of the fields that selectors have read."""


class WatchEvent(msgspec.Struct, eq=False, gc=False):
    """One change from `old` to `new`, either of which may be None. `raw` is the object in the event."""

    revision: int
    old: ObjectVersion | None
    new: ObjectVersion | None
    raw: bytes
    encodings: dict[str, bytes] = msgspec.field(default_factory=dict)
    """Cache of the encodings that watchers have requested."""

    @property
    def object_version(self) -> ObjectVersion:
        version = self.new or self.old
        assert version is not None
        return version


class Subscription:
    """The queue of one watcher, with the events after its revision. A watcher that falls too far behind is dropped."""

    __slots__ = (
        *("_after", "_backlog_bytes", "_events", "_is_awake", "_waiter"),
        *("dropped", "is_finished", "name", "namespace"),
    )

    def __init__(self, namespace: str, name: str, after: int, events: Sequence[WatchEvent]) -> None:
        self.namespace, self.name = namespace, name
        self.dropped = False
        self.is_finished = False
        """True if no further events follow."""
        self._after = after
        self._events = list(events)
        self._backlog_bytes = 0
        self._is_awake = bool(events)
        self._waiter: asyncio.Future[None] | None = None
        """Set while a caller waits in `next_events`."""

    def push(self, event: WatchEvent) -> None:
        if len(self._events) >= MAX_WATCH_BACKLOG or self._backlog_bytes >= MAX_WATCH_BACKLOG_BYTES:
            self.drop()
        elif not self.dropped and event.revision > self._after:  # the watcher may have it from another server
            self._events.append(event)
            self._backlog_bytes += len(event.raw)
            self.wake()

    @property
    def oldest_pending_revision(self) -> int | None:
        return self._events[0].revision if self._events else None

    def drop(self) -> None:
        self.dropped = True
        self._events = []
        self.wake()

    def finish(self) -> None:
        self.is_finished = True
        self.wake()

    @property
    def has_pending_events(self) -> bool:
        return bool(self._events)

    def wake(self) -> None:
        """Make `next_events` return, even without events."""
        self._is_awake = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next_events(self) -> list[WatchEvent]:
        """Wait for events and return all that are pending. Only one caller may wait at a time.

        Returns an empty list if the subscription was dropped or finished, or `wake` was called.
        """
        if not self._is_awake:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._is_awake = False
        events, self._events, self._backlog_bytes = self._events, [], 0
        return events


@dataclass(slots=True)
class WatchCache:
    """The objects of one resource and their recent changes."""

    objects: dict[tuple[str, str], ObjectVersion] = field(default_factory=dict)
    order: list[tuple[str, str]] | None = None
    events: deque[WatchEvent] = field(default_factory=deque)
    event_bytes: int = 0
    """Bytes of the objects in `events`."""
    compacted_revision: int = 0
    """Newest revision whose events were removed from the history."""
    changed_revision: int = 0
    """Revision of the last change."""
    subscriptions: set[Subscription] = field(default_factory=set)
    listeners: list[Callable[[WatchEvent], None]] = field(default_factory=list)

    def sorted_keys(self) -> list[tuple[str, str]]:
        if self.order is None:
            self.order = sorted(self.objects)
        return self.order

    def events_after(self, revision: int, namespace: str, name: str) -> list["WatchEvent"]:
        """Events after a revision. Raise Compacted also if there are more than a watcher may have pending."""
        matching: list[WatchEvent] = []
        for event in reversed(self.events):
            if event.revision <= revision:
                break
            if event_matches(event, namespace, name):
                if len(matching) >= MAX_WATCH_BACKLOG:
                    raise Compacted(event.revision)
                matching.append(event)
        matching.reverse()
        return matching

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
        """Replace all objects. The individual changes are unknown, so all watchers are dropped."""
        self.objects = objects
        self.order, self.events, self.event_bytes = None, deque(), 0
        self.compacted_revision = self.changed_revision = revision
        for subscription in self.subscriptions:
            subscription.drop()


class ClosedCaches(dict[str, WatchCache]):
    """The caches of a store that was cleared."""

    def get(self, key: str, _: Any = None) -> NoReturn:
        raise StorageUnavailable(f"{key} cannot be read: the server is closing; try again")


RevisionEncoder = Callable[[int], tuple[bytes, Mapping[str, str]]]
"""Encode the object with a revision; return the JSON and the labels."""

Precondition = Callable[[], bool]
"""Return whether what the object claims is still free, in view of the `Store.heads` of its resource."""


class Store(ABC):
    """Objects by resource, namespace and name. Writes need `run` to be running."""

    def __init__(self) -> None:
        self._caches: dict[str, WatchCache] = {}
        self._followers: list[Callable[[WatchEvent], None]] = []
        self._revision_advanced: asyncio.Future[None] | None = None
        self._compacted_revision = 0
        self.history_bytes = 0
        """Size of the objects in the history of all resources."""
        self.max_history_bytes = 0
        """Maximum of `history_bytes`; 0 means no limit."""
        self.object_count = self.object_bytes = 0
        """Number and size of the objects that readers see."""
        self.revision = 0
        """The newest revision that readers see."""
        self.write_error = ""
        """Error of the last write; empty if it succeeded."""
        self.is_finished = False
        """True if the store accepts no further writes."""

    # -- reading

    def get(self, resource: str, namespace: str, name: str) -> ObjectVersion | None:
        cache = self._caches.get(resource)
        return cache.objects.get((namespace, name)) if cache is not None else None

    def list_objects(self, resource: str, namespace: str = "", name: str = "") -> list[ObjectVersion]:
        """The objects of one namespace, or of all namespaces if empty, sorted by namespace and name.

        With `name`, only the objects of that name.
        """
        cache = self._caches.get(resource)
        if cache is None:
            return []
        if name:
            found = (key for key in cache.objects if key[1] == name and namespace in ("", key[0]))
            return [cache.objects[key] for key in sorted(found)]
        keys, objects = cache.sorted_keys(), cache.objects
        if namespace:
            keys = keys[bisect_right(keys, (namespace, "")) : bisect_right(keys, (namespace, "\uffff"))]
        return [objects[key] for key in keys]

    def unsorted_objects(self, resource: str) -> list[ObjectVersion]:
        cache = self._caches.get(resource)
        return list(cache.objects.values()) if cache is not None else []

    def list_at_revision(self, resource: str, namespace: str, revision: int) -> list[ObjectVersion]:
        """The objects at an earlier revision. Raises Compacted."""
        cache = self._cache(resource)
        if revision < cache.compacted_revision:
            raise Compacted(cache.compacted_revision)
        objects: dict[tuple[str, str], ObjectVersion] = dict(cache.objects)
        for event in reversed(cache.events):
            if event.revision <= revision:
                break
            name = event.object_version.key.namespace, event.object_version.key.name
            if event.old is None:
                objects.pop(name, None)
            else:
                objects[name] = event.old
        return [objects[key] for key in sorted(objects) if not namespace or key[0] == namespace]

    def changed_revision(self, resource: str) -> int:
        """Revision of the last change to any object of the resource."""
        cache = self._caches.get(resource)
        return cache.changed_revision if cache is not None else 0

    def count(self, resource: str) -> int:
        cache = self._caches.get(resource)
        return len(cache.objects) if cache is not None else 0

    def snapshot(self) -> list[ObjectVersion]:
        """All objects at `revision`, without copying them."""
        return list(chain.from_iterable(cache.objects.values() for cache in self._caches.values()))

    def resources(self) -> Iterator[str]:
        return (name for name, cache in self._caches.items() if cache.objects)

    async def wait_for_revision(self, revision: int, seconds: float) -> bool:
        """Wait at most `seconds` until readers see the revision. Returns whether they do."""
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
        """Subscribe to the changes after a revision, or to new changes only. Raises Compacted."""
        cache = self._cache(resource)
        missed: Sequence[WatchEvent] = ()
        if after is not None and after < self.revision:
            if after < cache.compacted_revision:
                raise Compacted(cache.compacted_revision)
            missed = cache.events_after(after, namespace, name)
        subscription = Subscription(namespace, name, after or 0, missed)
        if self.is_finished:
            subscription.finish()
        cache.subscriptions.add(subscription)
        return subscription

    def watcher_count(self, resource: str) -> int:
        return len(self._cache(resource).subscriptions)

    def on_change(self, resource: str, listener: Callable[[WatchEvent], None]) -> None:
        """Call `listener` with every change when it becomes visible, before the writer gets its response."""
        self._cache(resource).listeners.append(listener)

    @contextmanager
    def following(self, follower: Callable[[WatchEvent], None]) -> Iterator[None]:
        """Call `follower` with every change of any resource during the context, after the listeners of the resource."""
        self._followers.append(follower)
        try:
            yield
        finally:
            self._followers.remove(follower)

    def unwatch(self, resource: str, subscription: Subscription) -> None:
        """End a subscription. It has no effect on a store that was cleared."""
        if not isinstance(self._caches, ClosedCaches):
            self._cache(resource).subscriptions.discard(subscription)

    def compact_events(self, before: int) -> None:
        """Remove events up to a revision from the history."""
        self._compacted_revision = max(self._compacted_revision, before)
        for cache in self._caches.values():
            self.history_bytes -= cache.event_bytes
            while cache.events and cache.events[0].revision <= before:
                cache.drop_oldest_event()
            self.history_bytes += cache.event_bytes
            cache.compacted_revision = max(cache.compacted_revision, before)

    # -- writing

    @abstractmethod
    async def load(self) -> None:
        """Fill the empty store with the objects of the backend. Raises StorageError.

        Other tasks run meanwhile. They must not use the store until this returns.
        """

    @abstractmethod
    def head(self, resource: str, namespace: str, name: str) -> ObjectVersion | None:
        """The object as the next write sees it, including pending writes."""

    @abstractmethod
    def heads(self, resource: str, namespace: str = "") -> list[ObjectVersion]:
        """The objects as the next write sees them, in no order.

        A precondition that counts these counts every write that comes before its own. If a pending write fails, so do
        all that build on it.
        """

    @abstractmethod
    async def put(
        self,
        key: Key,
        expected: ObjectVersion | None,
        encode: RevisionEncoder,
        precondition: Precondition | None = None,
    ) -> ObjectVersion:
        """Replace `expected` with the object that `encode` returns.

        Raises VersionConflict if the stored object is not `expected` or `precondition` returns False. No other write to
        the resource happens between the check of `precondition` and this write. When this returns, the object is
        durable and readers see it. Raises StorageError if that is not certain.
        """

    @abstractmethod
    async def delete(self, key: Key, expected: ObjectVersion, encode: RevisionEncoder) -> ObjectVersion:
        """Delete `expected`; `encode` returns its final state. Raises VersionConflict and StorageError like `put`."""

    @abstractmethod
    async def wait_for_pending_write(self, key: Key) -> None:
        """Wait until the state that the next writer of `key` sees is durable."""

    @abstractmethod
    async def wait_for_latest(self) -> None:
        """Wait until readers see every write acknowledged before this call. Raises StorageError."""

    @abstractmethod
    async def run(self) -> None:
        """Process writes until cancelled."""

    async def finish(self) -> None:
        """Reject further writes, wait for those in progress, and end all watches at the last revision.

        A client that continues its watch at that revision in the next store with the same data misses nothing.
        """
        self.is_finished = True
        await self._wait_for_writes()
        for cache in self._caches.values():
            for subscription in cache.subscriptions:
                subscription.finish()

    async def clear(self) -> None:
        """Forget all objects and listeners, so that they are freed without the garbage collector.

        From then on, reads raise StorageUnavailable: a request that is still in flight must not find an empty store.
        """
        caches, self._caches = self._caches, ClosedCaches()
        for cache in caches.values():
            cache.listeners.clear()
            cache.events.clear()
            keys = list(cache.objects)
            async for start in sliced(range(0, len(keys), FREED_AT_ONCE)):
                for key in keys[start : start + FREED_AT_ONCE]:
                    del cache.objects[key]
        self._followers.clear()

    # -- for subclasses

    async def _fill(self, versions: Iterable[ObjectVersion], revision: int) -> None:
        """Add all objects at a revision to the empty store, and report them to the listeners."""
        async for version in sliced(versions):
            cache = self._cache(version.key.resource)
            cache.objects[version.key.namespace, version.key.name] = version
            cache.order = None  # listeners may have listed the objects before
            self.object_count += 1
            self.object_bytes += len(version.raw)
            self._notify(cache, WatchEvent(version.revision, None, version, version.raw))
        self._compacted_revision = revision
        for cache in self._caches.values():
            cache.compacted_revision = cache.changed_revision = revision
        self._advance_revision(revision)

    @abstractmethod
    async def _wait_for_writes(self) -> None:
        """Wait until readers see the result of every write that was started before `finish`."""

    def _check_writable(self) -> None:
        if self.is_finished:
            raise StorageUnavailable("the server is closing; try again")

    def _replace_all(self, versions: Iterable[ObjectVersion], revision: int) -> None:
        """Replace all objects with their versions at a revision."""
        objects: dict[str, dict[tuple[str, str], ObjectVersion]] = {}
        for version in versions:
            resource, namespace, name = version.key
            objects.setdefault(resource, {})[namespace, name] = version
        self._compacted_revision = revision
        for resource in {*self._caches, *objects}:
            cache = self._cache(resource)
            before, after = cache.objects, objects.get(resource, {})
            cache.replace(after, revision)
            if cache.listeners or self._followers:
                for event in diff_events(before, after, revision):
                    self._notify(cache, event)
        loaded = [version for cache in self._caches.values() for version in cache.objects.values()]
        self.object_count, self.object_bytes = len(loaded), sum(len(version.raw) for version in loaded)
        self.history_bytes = 0
        self._advance_revision(revision)

    def _apply_event(self, key: Key, event: WatchEvent) -> None:
        """Make a change visible to readers and watchers. `_advance_revision` follows the last change of a revision."""
        resource, namespace, name = key
        cache, object_name = self._cache(resource), (namespace, name)
        old = cache.objects.get(object_name)
        self.object_count += (event.new is not None) - (old is not None)
        self.object_bytes += (len(event.new.raw) if event.new is not None else 0) - (len(old.raw) if old else 0)
        if event.new is None:
            del cache.objects[object_name]
            cache.order = None
        else:
            if object_name not in cache.objects:
                cache.order = None
            cache.objects[object_name] = event.new
        cache.changed_revision = event.revision
        self.history_bytes -= cache.event_bytes
        cache.add_event(event)
        self.history_bytes += cache.event_bytes
        if 0 < self.max_history_bytes < self.history_bytes:
            self._shorten_history()
        self._notify(cache, event)
        for subscription in cache.subscriptions:
            if subscription.namespace in ("", namespace) and subscription.name in ("", name):
                subscription.push(event)

    def _notify(self, cache: WatchCache, event: WatchEvent) -> None:
        for listener in (*cache.listeners, *self._followers):
            listener(event)

    def _shorten_history(self) -> None:
        """Drop the oldest events of the largest history, and the watchers that still hold them."""
        cache = max(self._caches.values(), key=lambda each: each.event_bytes)
        while self.history_bytes > self.max_history_bytes and cache.events:
            self.history_bytes -= len(cache.events[0].raw)
            cache.drop_oldest_event()
        for subscription in cache.subscriptions:
            oldest = subscription.oldest_pending_revision
            if oldest is not None and oldest <= cache.compacted_revision:
                subscription.drop()

    def _advance_revision(self, revision: int) -> None:
        """Make everything up to a revision visible to readers."""
        self.revision = revision
        if self._revision_advanced is not None:
            self._revision_advanced.set_result(None)
            self._revision_advanced = None

    def _cache(self, resource: str) -> WatchCache:
        cache = self._caches.get(resource)
        if cache is None:
            cache = self._caches[resource] = WatchCache(compacted_revision=self._compacted_revision)
        return cache


def diff_events(
    before: Mapping[tuple[str, str], ObjectVersion], after: Mapping[tuple[str, str], ObjectVersion], revision: int
) -> Iterator[WatchEvent]:
    for name in before.keys() - after.keys():
        yield WatchEvent(revision, before[name], None, before[name].raw)
    for name, new in after.items():
        old = before.get(name)
        if old is None or old.revision != new.revision:
            yield WatchEvent(revision, old, new, new.raw)


def event_matches(event: WatchEvent, namespace: str, name: str) -> bool:
    key = event.object_version.key
    return (not namespace or key.namespace == namespace) and (not name or key.name == name)


EventType = Literal["ADDED", "MODIFIED", "DELETED"]


def event_type(event: WatchEvent, matches: Callable[[ObjectVersion], bool]) -> EventType | None:
    """The type of an event for a watcher that selects by `matches`; None if the watcher does not get the event."""
    before = event.old is not None and matches(event.old)
    after = event.new is not None and matches(event.new)
    if before:
        return "MODIFIED" if after else "DELETED"
    return "ADDED" if after else None
