"""In-memory storage of the in-process API, in which writes are durable at once.

Reads can lag behind writes, as with a slow cache of a real server, and watches behind reads.
"""

from collections import Counter, deque

from tapestry.apiserver.core.store import (
    Key,
    ObjectVersion,
    Precondition,
    RevisionEncoder,
    Store,
    Subscription,
    VersionConflict,
    WatchEvent,
)


class InstantStore(Store):
    """Objects in memory.  No write awaits, so each is atomic, and no background task is needed."""

    def __init__(self) -> None:
        super().__init__()
        self.revision = self._last_revision = 1  # a list at revision 0 means any revision
        self.latest: dict[Key, ObjectVersion] = {}
        """Latest version of every object, as the next write finds it."""
        self.create_counts: Counter[Key] = Counter()
        """Number of creates per key."""
        self.frozen = False
        self._lag = 0
        self._unseen: deque[tuple[Key, WatchEvent]] = deque()
        self._watchers: set[FreezableSubscription] = set()

    async def load(self) -> None:
        """There is nothing to load."""

    # -- writing

    def head(self, resource: str, namespace: str, name: str) -> ObjectVersion | None:
        return self.latest.get(Key(resource, namespace, name))

    def heads(self, resource: str, namespace: str = "") -> list[ObjectVersion]:
        versions = (each for key, each in self.latest.items() if key.resource == resource)
        return [each for each in versions if namespace in ("", each.key.namespace)]

    async def put(
        self,
        key: Key,
        expected: ObjectVersion | None,
        encode: RevisionEncoder,
        precondition: Precondition | None = None,
    ) -> ObjectVersion:
        if precondition is not None and not precondition():
            raise VersionConflict
        version = self._new_version(key, expected, encode)
        if expected is None:
            self.create_counts[key] += 1
        self.latest[key] = version
        self._publish(key, WatchEvent(version.revision, expected, version, version.raw))
        return version

    async def delete(self, key: Key, expected: ObjectVersion, encode: RevisionEncoder) -> ObjectVersion:
        version = self._new_version(key, expected, encode)
        del self.latest[key]
        self._publish(key, WatchEvent(version.revision, expected, None, version.raw))
        return version

    def _new_version(self, key: Key, expected: ObjectVersion | None, encode: RevisionEncoder) -> ObjectVersion:
        self._check_writable()
        if self.latest.get(key) is not expected:
            raise VersionConflict
        self._last_revision += 1
        return ObjectVersion(key, self._last_revision, *encode(self._last_revision))

    def _publish(self, key: Key, event: WatchEvent) -> None:
        self._unseen.append((key, event))
        self.lag(self._lag)

    async def wait_for_pending_write(self, key: Key) -> None:
        """No write is ever pending."""

    async def _wait_for_writes(self) -> None:
        """No write is ever in progress."""

    async def wait_for_latest(self) -> None:
        """Do nothing: lagging reads must not catch up."""

    async def run(self) -> None:
        """No background work is needed."""

    # -- delayed reads

    def lag(self, revisions: int) -> None:
        """Hide the last `revisions` revisions from readers and watchers.  What was visible stays visible."""
        self._lag = revisions
        while self._unseen and self._unseen[0][1].revision <= self._last_revision - revisions:
            key, event = self._unseen.popleft()
            self._apply_event(key, event)
            self._advance_revision(event.revision)

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False
        for watcher in self._watchers:
            watcher.wake()

    def compact(self) -> None:
        """Drop the history.  Watchers with undelivered events are dropped."""
        self.compact_events(self.revision)
        for watcher in self._watchers:
            if watcher.has_pending_events:
                watcher.drop()

    def watch(self, resource: str, namespace: str = "", name: str = "", *, after: int | None = None) -> Subscription:
        plain = super().watch(resource, namespace, name, after=after)
        self.unwatch(resource, plain)
        watcher = FreezableSubscription(self, plain, after or 0)
        self._cache(resource).subscriptions.add(watcher)
        self._watchers.add(watcher)
        return watcher

    def unwatch(self, resource: str, subscription: Subscription) -> None:
        super().unwatch(resource, subscription)
        self._watchers.discard(subscription)


class FreezableSubscription(Subscription):
    """A subscription that delivers nothing while its store is frozen."""

    __slots__ = ("_store",)

    def __init__(self, store: InstantStore, subscription: Subscription, after: int) -> None:
        super().__init__(subscription.namespace, subscription.name, after, subscription._events)
        self._store = store

    async def next_events(self) -> list[WatchEvent]:
        events = await super().next_events()
        if not self._store.frozen:
            return events
        self._events[:0] = events
        return []
