"""Where the in-process API keeps its objects: a store of the API server in which a write is durable at once.

Readers can be held back behind the writers, as by a slow cache of a real server, and watchers behind the readers.
"""

from collections import Counter, deque

from tapestry.apiserver.storage.log import Key
from tapestry.apiserver.storage.store import Claim, Event, Make, Stale, Store, Subscription, Version


class InstantStore(Store):
    """Objects in memory; no write waits, so each is atomic, and nothing has to run beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.revision = self._given = 1  # a list at revision 0 would be one of any moment
        self.truth: dict[Key, Version] = {}
        """Every object as the next writer finds it."""
        self.births: Counter[Key] = Counter()
        """How often a name was given."""
        self.frozen = False
        self._lag = 0
        self._unseen: deque[tuple[Key, Event]] = deque()
        self._watchers: set[Held] = set()

    # -- writing

    def head(self, resource: str, namespace: str, name: str) -> Version | None:
        return self.truth.get(Key(resource, namespace, name))

    async def put(self, key: Key, expected: Version | None, make: Make, claim: Claim | None = None) -> Version:
        if claim is not None and not claim():
            raise Stale
        version = self._made(key, expected, make)
        if expected is None:
            self.births[key] += 1
        self.truth[key] = version
        self._happened(key, Event(version.revision, expected, version, version.raw))
        return version

    async def delete(self, key: Key, expected: Version, make: Make) -> Version:
        version = self._made(key, expected, make)
        del self.truth[key]
        self._happened(key, Event(version.revision, expected, None, version.raw))
        return version

    def _made(self, key: Key, expected: Version | None, make: Make) -> Version:
        if self.truth.get(key) is not expected:
            raise Stale
        self._given += 1
        return Version(key, self._given, *make(self._given))

    def _happened(self, key: Key, event: Event) -> None:
        self._unseen.append((key, event))
        self.lag(self._lag)

    async def settled(self, key: Key) -> None:
        """Everything is."""

    async def wait_for_latest(self) -> None:
        """Readers that lag do not know of it."""

    async def run(self) -> None:
        """There is nothing to do."""

    # -- holding back

    def lag(self, revisions: int) -> None:
        """Let readers and watchers see all but the last so many revisions; what they have seen they do not forget."""
        self._lag = revisions
        while self._unseen and self._unseen[0][1].revision <= self._given - revisions:
            key, event = self._unseen.popleft()
            self._show(key, event)
            self._reach(event.revision)

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False
        for watcher in self._watchers:
            watcher.wake()

    def compact(self) -> None:
        """Forget what happened so far; watchers that were not told of it yet are dropped."""
        self.forget_events(self.revision)
        for watcher in self._watchers:
            if watcher.is_behind:
                watcher.drop()

    def watch(self, resource: str, namespace: str = "", name: str = "", *, after: int | None = None) -> Subscription:
        plain = super().watch(resource, namespace, name, after=after)
        self.unwatch(resource, plain)
        watcher = Held(self, plain, after or 0)
        self._shelf(resource).subscriptions.add(watcher)
        self._watchers.add(watcher)
        return watcher

    def unwatch(self, resource: str, subscription: Subscription) -> None:
        super().unwatch(resource, subscription)
        self._watchers.discard(subscription)


class Held(Subscription):
    """A watcher that takes nothing while its store is frozen."""

    __slots__ = ("_store",)

    def __init__(self, store: InstantStore, plain: Subscription, after: int) -> None:
        super().__init__(plain.namespace, plain.name, after, plain._events)
        self._store = store

    async def take(self) -> list[Event]:
        taken = await super().take()
        if not self._store.frozen:
            return taken
        self._events[:0] = taken
        return []
