"""Watches: each watcher gets every change it can see, in order, once; and a line of text for each, made once for all.

A watch of a revision that is no longer remembered ends with the error Expired, one that falls too far behind just ends:
its client comes back at the revision it has reached.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from tapestry.apiserver.rows import Row
from tapestry.apiserver.storage.store import Change, Event, Store, Subscription, Version, change
from tapestry.apiserver.workers import LARGE, Work
from tapestry.kube.errors import ApiError
from tapestry.kube.objects import Object

BOOKMARK_SECONDS = 60.0
LAST_BOOKMARK = 2.0
"""Seconds before its end that a watch says how far it got, so that the next one need not begin earlier."""
BATCH = 256
"""Objects or events that are sent at a time."""
FEW = 16
"""Events that are shown at once, whatever that takes."""
TICK = 0.01
"""Seconds by which a clock may be early."""
INITIAL_END = {"k8s.io/initial-events-end": "true"}

T = TypeVar("T")
Matches = Callable[[Version], bool] | None
Show = Callable[[bytes], bytes]
"""An object as the watcher wants to see it."""
Convert = Callable[[Sequence[bytes]], Awaitable[Sequence[bytes]]]


@dataclass(frozen=True, slots=True)
class Flavour:
    """In which form objects are shown: as they are, as a row of a table, as metadata."""

    name: str = ""
    show: Show | None = None
    mark: Show | None = None
    """The same for the objects of bookmarks, which have nothing but their version."""
    is_slow: bool = False
    """Whether objects are read for that."""


AS_IS = Flavour()


@dataclass(slots=True)
class Watching:
    """A watch that was granted: its text, chunk by chunk, until its time is over or its reader leaves."""

    store: Store
    row: Row
    subscription: Subscription
    matches: Matches
    flavour: Flavour
    first: list[Version] | None
    """What is there already, where the watcher asked for it."""
    revision: int
    bookmarks: bool
    seconds: float
    marks_end: bool = False
    """Whether the end of what is there already is marked."""
    over: Callable[[], None] | None = None
    """Called once, when it ends."""
    convert: Convert | None = None
    """Where objects are not stored in the version that is watched, and it takes somebody else to convert them."""
    work: Work | None = None
    """Of the request, which has been answered since."""

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.seconds
        bookmark_at = min(loop.time() + BOOKMARK_SECONDS, deadline - LAST_BOOKMARK) if self.bookmarks else deadline
        wake = self.subscription.wake
        alarm = loop.call_at(min(deadline, bookmark_at), wake)
        try:
            async for chunk in self._initial():
                yield chunk
            while (now := loop.time()) < deadline:
                if alarm.when() <= now + TICK:  # it has rung, or is about to
                    alarm.cancel()
                    alarm = loop.call_at(max(min(deadline, bookmark_at), now + TICK), wake)
                events = await self.subscription.take()
                if events:
                    self.revision = events[-1].revision
                    if self.convert is not None:
                        await self._prepare(self.convert, events)
                    for at in range(0, len(events), BATCH):
                        batch = events[at : at + BATCH] if len(events) > BATCH else events
                        is_fast = len(batch) < FEW or not self.flavour.is_slow
                        if text := self._lines(batch) if is_fast else await self._slow_lines(batch):
                            yield text
                elif self.subscription.dropped:
                    return
                if self.bookmarks and bookmark_at <= loop.time() < deadline and not self.subscription.is_behind:
                    bookmark_at = max(bookmark_at + BOOKMARK_SECONDS, loop.time())
                    self.revision = max(self.revision, self.store.revision)
                    yield self._bookmark({})
        except ApiError as error:  # of a conversion
            yield line("ERROR", msgspec.json.encode(error.status()))
        finally:
            alarm.cancel()
            self.end()

    def end(self) -> None:
        """Ends it, also if nobody has read of it; ending it twice does nothing more."""
        self.store.unwatch(self.row.storage, self.subscription)
        over, self.over = self.over, None
        if over is not None:
            over()

    async def _initial(self) -> AsyncGenerator[bytes, None]:
        """What is there already."""
        first, self.first = self.first, None
        if first is None:
            return
        for at in range(0, len(first), BATCH):
            yield await self._added(first[at : at + BATCH])
        if self.bookmarks and self.marks_end:
            yield self._bookmark({"annotations": INITIAL_END})

    async def _added(self, versions: Iterable[Version]) -> bytes:
        raws: Sequence[bytes] = [version.raw for version in versions]
        if self.convert is not None:
            raws = await self.convert(raws)
        size = sum(map(len, raws)) if self.flavour.is_slow else 0
        return await self._run(size, lambda: b"".join([line("ADDED", self._shown(raw)) for raw in raws]))

    async def _run(self, size: int, function: Callable[[], T]) -> T:
        """The result of a function, in the thread where it looks at much."""
        if size < LARGE or self.work is None or self.work.worker is None:
            return function()
        return await self.work.worker.run(self.work.user, function)

    def _lines(self, events: Sequence[Event]) -> bytes:
        """What the watcher sees of some events."""
        if self.matches is None:
            return b"".join([self._line(event, plain_change(event)) for event in events])
        return b"".join([self._line(event, what) for event, what in self._seen(events)])

    async def _slow_lines(self, events: Sequence[Event]) -> bytes:
        """The same where every object is read for that, and there are many."""
        is_shared = self.store.watchers(self.row.storage) > 1
        made = await self._run(
            LARGE, lambda: [(event, what, self._made(event, what)) for event, what in self._seen(events)]
        )
        if is_shared:
            for event, what, text in made:
                event.lines[what + self.flavour.name] = text
        return b"".join([text for _, _, text in made])

    def _seen(self, events: Iterable[Event]) -> Iterable[tuple[Event, Change]]:
        for event in events:
            what = change(event, self.matches) if self.matches else plain_change(event)
            if what is not None:
                yield event, what

    async def _prepare(self, convert: Convert, events: Iterable[Event]) -> None:
        """Make the lines for which objects have to be converted, in one call for all of them."""
        new = [(event, what) for event, what in self._seen(events) if what + self.flavour.name not in event.lines]
        raws = await convert([raw_of(event, what) for event, what in new]) if new else ()
        for (event, what), raw in zip(new, raws, strict=True):
            event.lines[what + self.flavour.name] = line(what, self._shown(raw))

    def _line(self, event: Event, what: Change) -> bytes:
        known = event.lines.get(what + self.flavour.name)
        if known is None:
            known = self._made(event, what)
            if self.store.watchers(self.row.storage) > 1:  # else it would be kept for nobody
                event.lines[what + self.flavour.name] = known
        return known

    def _made(self, event: Event, what: Change) -> bytes:
        return event.lines.get(what + self.flavour.name) or line(what, self._shown(raw_of(event, what)))

    def _shown(self, raw: bytes) -> bytes:
        return self.flavour.show(raw) if self.flavour.show else raw

    def _bookmark(self, metadata: Object) -> bytes:
        resource = self.row.resource
        about = {"resourceVersion": str(self.revision), **metadata}
        if self.flavour.mark is None:
            about["creationTimestamp"] = None
        raw = msgspec.json.encode({"kind": resource.kind, "apiVersion": resource.api_version, "metadata": about})
        return line("BOOKMARK", self.flavour.mark(raw) if self.flavour.mark is not None else raw)


def plain_change(event: Event) -> Change:
    if event.new is None:
        return "DELETED"
    return "ADDED" if event.old is None else "MODIFIED"


def raw_of(event: Event, what: Change) -> bytes:
    """The object of a change, as it is stored."""
    return event.raw if what != "DELETED" or event.new is None else left(event)


def left(event: Event) -> bytes:
    """An object that a selector matches no more, as it last did, at the revision at which it ceased to."""
    assert event.old is not None
    obj: Object = msgspec.json.decode(event.old.raw)
    obj["metadata"]["resourceVersion"] = str(event.revision)
    return msgspec.json.encode(obj)


def line(what: str, raw: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (what.encode(), raw)
