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

LONGEST_BACKLOG = 20_000
"""Events that a watcher may be behind before it is dropped."""
MOST_EVENTS = 100_000
"""Events that are remembered of one resource, at most."""
EVENTS, EVENT_SECONDS = "events", 3600.0
"""The resource whose objects are not kept for ever, and how long after their last change they go."""


class Stale(Exception):
    """The object is no longer what the writer took it for."""


class Compacted(Exception):
    """What happened after that revision is no longer remembered."""

    def __init__(self, oldest: int) -> None:
        super().__init__(f"the oldest revision that is remembered is {oldest}")
        self.oldest = oldest


class Version(msgspec.Struct, frozen=True):
    """One version of an object: nobody changes it."""

    key: Key
    revision: int
    raw: bytes
    """The object in JSON, as it is served."""
    labels: Object
    texts: dict[str, str] = msgspec.field(default_factory=dict)
    """Fields that somebody selected by, for the next one."""


class Event(msgspec.Struct, eq=False):
    """One change: from `old` to `new`, either of which may be None.  `raw` is the object as the event shows it."""

    revision: int
    old: Version | None
    new: Version | None
    raw: bytes
    lines: dict[str, bytes] = msgspec.field(default_factory=dict)
    """What was made of it for some watcher, for the next one."""

    @property
    def shown(self) -> Version:
        version = self.new or self.old
        assert version is not None
        return version


class Subscription:
    """One watcher: events after its revision.  It is dropped, not waited for, when it falls too far behind."""

    __slots__ = ("_after", "_events", "_is_awake", "_waiter", "dropped", "name", "namespace")

    def __init__(self, namespace: str, name: str, after: int, events: Sequence[Event]) -> None:
        self.namespace, self.name = namespace, name
        self.dropped = False
        self._after = after
        self._events = list(events)
        self._is_awake = bool(events)
        self._waiter: asyncio.Future[None] | None = None
        """While somebody waits in `take`."""

    def push(self, event: Event) -> None:
        if len(self._events) >= LONGEST_BACKLOG:
            self.drop()
        elif not self.dropped and event.revision > self._after:  # another server may have told him of this one
            self._events.append(event)
            self.wake()

    def drop(self) -> None:
        self.dropped = True
        self._events = []
        self.wake()

    @property
    def is_behind(self) -> bool:
        """Whether something has happened that was not taken yet."""
        return bool(self._events)

    def wake(self) -> None:
        """Have `take` return, whether or not anything happened."""
        self._is_awake = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[Event]:
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
        taken, self._events = self._events, []
        return taken


@dataclass(slots=True)
class Shelf:
    """The objects of one resource and their recent past."""

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

    def events_after(self, revision: int, namespace: str, name: str) -> list["Event"]:
        """Raises Compacted also where a watcher would be dropped at once, for there are too many."""
        found: list[Event] = []
        for event in reversed(self.events):
            if event.revision <= revision:
                break
            if concerns(event, namespace, name):
                if len(found) >= LONGEST_BACKLOG:
                    raise Compacted(event.revision)
                found.append(event)
        found.reverse()
        return found

    def restock(self, objects: dict[tuple[str, str], Version], revision: int) -> None:
        """Have just these from now on.  How it came to that is not known, hence watchers are dropped."""
        before, self.objects = self.objects, objects
        self.order, self.events = None, deque()
        self.compacted = self.changed = revision
        for subscription in self.subscriptions:
            subscription.drop()
        if self.listeners:
            for event in differences(before, objects, revision):
                for listener in self.listeners:
                    listener(event)


Make = Callable[[int], tuple[bytes, Object]]
"""The object in JSON with the revision in it, and its labels."""

Claim = Callable[[], bool]
"""Whether an object may have what it takes of that of which there is one of each, by all that readers see."""


class Store(ABC):
    """Objects by resource, namespace and name.  `run` must be running for writes to be made and seen."""

    def __init__(self) -> None:
        self._shelves: dict[str, Shelf] = {}
        self._moved: asyncio.Future[None] | None = None
        self._forgotten = 0
        self.revision = 0
        """The newest revision that readers see."""
        self.failure = ""
        """Why the last write could not be kept; empty if it was."""

    # -- reading

    def get(self, resource: str, namespace: str, name: str) -> Version | None:
        shelf = self._shelves.get(resource)
        return shelf.objects.get((namespace, name)) if shelf is not None else None

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
        shelf = self._shelves.get(resource)
        return shelf.changed if shelf is not None else 0

    def count(self, resource: str) -> int:
        shelf = self._shelves.get(resource)
        return len(shelf.objects) if shelf is not None else 0

    def resources(self) -> Iterator[str]:
        return (name for name, shelf in self._shelves.items() if shelf.objects)

    async def wait_for(self, revision: int, seconds: float) -> bool:
        """Whether readers see the revision, now or within that time."""
        if self.revision >= revision:
            return True
        try:
            async with asyncio.timeout(seconds):
                while self.revision < revision:
                    self._moved = self._moved or asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._moved)
        except TimeoutError:
            return False
        return True

    # -- watching

    def watch(self, resource: str, namespace: str = "", name: str = "", *, after: int | None = None) -> Subscription:
        """Every change after a revision, or from now on.  Raises Compacted."""
        shelf = self._shelf(resource)
        missed: Sequence[Event] = ()
        if after is not None and after < self.revision:
            if after < shelf.compacted:
                raise Compacted(shelf.compacted)
            missed = shelf.events_after(after, namespace, name)
        subscription = Subscription(namespace, name, after or 0, missed)
        shelf.subscriptions.add(subscription)
        return subscription

    def watchers(self, resource: str) -> int:
        return len(self._shelf(resource).subscriptions)

    def on_change(self, resource: str, listener: Callable[[Event], None]) -> None:
        """Call `listener` with every change as it becomes visible, before whoever made it is answered."""
        self._shelf(resource).listeners.append(listener)

    def unwatch(self, resource: str, subscription: Subscription) -> None:
        self._shelf(resource).subscriptions.discard(subscription)

    def forget_events(self, before: int) -> None:
        """Forget what happened up to a revision."""
        self._forgotten = max(self._forgotten, before)
        for shelf in self._shelves.values():
            while shelf.events and shelf.events[0].revision <= before:
                shelf.compacted = shelf.events.popleft().revision
            shelf.compacted = max(shelf.compacted, before)

    # -- writing

    @abstractmethod
    def head(self, resource: str, namespace: str, name: str) -> Version | None:
        """The object as the next write finds it."""

    @abstractmethod
    async def put(self, key: Key, expected: Version | None, make: Make, claim: Claim | None = None) -> Version:
        """Have the object as `make` makes it, in the place of `expected` and of nothing else.  Raises Stale.

        That is also raised where `claim` does not hold; nobody writes another object of the resource between its last
        word and this.

        When this returns, the object is durable, and readers see it.  Raises LogError when nobody can say so.
        """

    @abstractmethod
    async def delete(self, key: Key, expected: Version, make: Make) -> Version:
        """Have `expected` no more; `make` gives it a last time.  Raises Stale and LogError, as `put` does."""

    @abstractmethod
    async def settled(self, key: Key) -> None:
        """Wait until what the next writer finds under `key` is durable."""

    @abstractmethod
    async def wait_for_latest(self) -> None:
        """Wait until readers see every write that was acknowledged before this was called.  Raises LogError."""

    @abstractmethod
    async def run(self) -> None:
        """Have writes made and seen, until cancelled."""

    # -- for those who write

    def _fill(self, versions: Iterable[Version], revision: int) -> None:
        """Have just these objects, as they are at a revision."""
        found: dict[str, dict[tuple[str, str], Version]] = {}
        for version in versions:
            resource, namespace, name = version.key
            found.setdefault(resource, {})[namespace, name] = version
        self._forgotten = revision
        for resource in {*self._shelves, *found}:
            self._shelf(resource).restock(found.get(resource, {}), revision)
        self._reach(revision)

    def _show(self, key: Key, event: Event) -> None:
        """Let readers and watchers see a change; `_reach` comes after all that happened at a revision."""
        resource, namespace, name = key
        shelf, at = self._shelf(resource), (namespace, name)
        if event.new is None:
            del shelf.objects[at]
            shelf.order = None
        else:
            if at not in shelf.objects:
                shelf.order = None
            shelf.objects[at] = event.new
        shelf.changed = event.revision
        shelf.events.append(event)
        if len(shelf.events) > MOST_EVENTS:
            shelf.compacted = shelf.events.popleft().revision
        for listener in shelf.listeners:
            listener(event)
        for subscription in shelf.subscriptions:
            if subscription.namespace in ("", namespace) and subscription.name in ("", name):
                subscription.push(event)

    def _reach(self, revision: int) -> None:
        """Readers see everything that happened up to a revision."""
        self.revision = revision
        if self._moved is not None:
            self._moved.set_result(None)
            self._moved = None

    def _shelf(self, resource: str) -> Shelf:
        shelf = self._shelves.get(resource)
        if shelf is None:
            shelf = self._shelves[resource] = Shelf(compacted=self._forgotten)
        return shelf


def differences(
    before: Mapping[tuple[str, str], Version], after: Mapping[tuple[str, str], Version], revision: int
) -> Iterator[Event]:
    for at in before.keys() - after.keys():
        yield Event(revision, before[at], None, before[at].raw)
    for at, new in after.items():
        old = before.get(at)
        if old is None or old.revision != new.revision:
            yield Event(revision, old, new, new.raw)


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
