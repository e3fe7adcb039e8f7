"""Watches: each watcher gets every change it can see, in order, once; and a line of text for each, made once for all.

A watch of a revision that is no longer remembered ends with the error Expired, one that falls too far behind just ends:
its client comes back at the revision it has reached.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from tapestry.apiserver.resource_registry import ResourceInfo
from tapestry.apiserver.storage.store import EventType, ObjectVersion, Store, Subscription, WatchEvent, event_type
from tapestry.apiserver.workers import LARGE_BYTES, RequestBudget
from tapestry.kube.errors import ApiError
from tapestry.kube.objects import Object

BOOKMARK_SECONDS = 60.0
FINAL_BOOKMARK_SECONDS = 2.0
"""Seconds before its end that a watch says how far it got, so that the next one need not begin earlier."""
BATCH_SIZE = 256
"""Objects or events that are sent at a time."""
INLINE_EVENTS = 16
"""Events that are shown at once, whatever that takes."""
CLOCK_TOLERANCE = 0.01
"""Seconds by which a clock may be early."""
INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}

T = TypeVar("T")
Matches = Callable[[ObjectVersion], bool] | None
Encode = Callable[[bytes], bytes]
"""An object as the watcher wants to see it."""
Convert = Callable[[Sequence[bytes]], Awaitable[Sequence[bytes]]]


@dataclass(frozen=True, slots=True)
class WatchEncoder:
    """In which form objects are shown: as they are, as a row of a table, as metadata."""

    cache_key: str = ""
    encode: Encode | None = None
    encode_bookmark: Encode | None = None
    """The same for the objects of bookmarks, which have nothing but their version."""
    decodes_objects: bool = False
    """Whether objects are read for that."""


IDENTITY_ENCODER = WatchEncoder()


@dataclass(slots=True)
class WatchResponse:
    """A watch that was granted: its text, chunk by chunk, until its time is over or its reader leaves."""

    store: Store
    info: ResourceInfo
    subscription: Subscription
    matches: Matches
    encoder: WatchEncoder
    initial_objects: list[ObjectVersion] | None
    """What is there already, where the watcher asked for it."""
    revision: int
    allow_bookmarks: bool
    timeout: float
    send_initial_end: bool = False
    """Whether the end of what is there already is marked."""
    on_end: Callable[[], None] | None = None
    """Called once, when it ends."""
    convert: Convert | None = None
    """Where objects are not stored in the version that is watched, and it takes somebody else to convert them."""
    budget: RequestBudget | None = None
    """Of the request, which has been answered since."""

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timeout
        bookmark_at = (
            min(loop.time() + BOOKMARK_SECONDS, deadline - FINAL_BOOKMARK_SECONDS) if self.allow_bookmarks else deadline
        )
        wake = self.subscription.wake
        alarm = loop.call_at(min(deadline, bookmark_at), wake)
        try:
            async for chunk in self._initial():
                yield chunk
            while (now := loop.time()) < deadline:
                if alarm.when() <= now + CLOCK_TOLERANCE:  # it has rung, or is about to
                    alarm.cancel()
                    alarm = loop.call_at(max(min(deadline, bookmark_at), now + CLOCK_TOLERANCE), wake)
                events = await self.subscription.next_events()
                if events:
                    self.revision = events[-1].revision
                    if self.convert is not None:
                        await self._cache_converted(self.convert, events)
                    for at in range(0, len(events), BATCH_SIZE):
                        batch = events[at : at + BATCH_SIZE] if len(events) > BATCH_SIZE else events
                        is_fast = len(batch) < INLINE_EVENTS or not self.encoder.decodes_objects
                        if text := self._lines(batch) if is_fast else await self._slow_lines(batch):
                            yield text
                elif self.subscription.dropped:
                    return
                if (
                    self.allow_bookmarks
                    and bookmark_at <= loop.time() < deadline
                    and not self.subscription.has_pending_events
                ):
                    bookmark_at = max(bookmark_at + BOOKMARK_SECONDS, loop.time())
                    self.revision = max(self.revision, self.store.revision)
                    yield self._bookmark({})
        except ApiError as error:  # of a conversion
            yield watch_line("ERROR", msgspec.json.encode(error.status()))
        finally:
            alarm.cancel()
            self.end()

    def end(self) -> None:
        """Ends it, also if nobody has read of it; ending it twice does nothing more."""
        self.store.unwatch(self.info.storage, self.subscription)
        over, self.on_end = self.on_end, None
        if over is not None:
            over()

    async def _initial(self) -> AsyncGenerator[bytes, None]:
        """What is there already."""
        first, self.initial_objects = self.initial_objects, None
        if first is None:
            return
        for at in range(0, len(first), BATCH_SIZE):
            yield await self._encode_added(first[at : at + BATCH_SIZE])
        if self.allow_bookmarks and self.send_initial_end:
            yield self._bookmark({"annotations": INITIAL_EVENTS_END})

    async def _encode_added(self, versions: Iterable[ObjectVersion]) -> bytes:
        raws: Sequence[bytes] = [version.raw for version in versions]
        if self.convert is not None:
            raws = await self.convert(raws)
        size = sum(map(len, raws)) if self.encoder.decodes_objects else 0
        return await self._run(size, lambda: b"".join([watch_line("ADDED", self._encode_object(raw)) for raw in raws]))

    async def _run(self, size: int, function: Callable[[], T]) -> T:
        """The result of a function, in the thread where it looks at much."""
        if size < LARGE_BYTES or self.budget is None or self.budget.worker is None:
            return function()
        return await self.budget.worker.run(self.budget.user, function)

    def _lines(self, events: Sequence[WatchEvent]) -> bytes:
        """What the watcher sees of some events."""
        if self.matches is None:
            return b"".join([self._line(event, change_type(event)) for event in events])
        return b"".join([self._line(event, what) for event, what in self._visible_changes(events)])

    async def _slow_lines(self, events: Sequence[WatchEvent]) -> bytes:
        """The same where every object is read for that, and there are many."""
        is_shared = self.store.watcher_count(self.info.storage) > 1
        made = await self._run(
            LARGE_BYTES,
            lambda: [(event, what, self._encode_event(event, what)) for event, what in self._visible_changes(events)],
        )
        if is_shared:
            for event, what, text in made:
                event.encodings[what + self.encoder.cache_key] = text
        return b"".join([text for _, _, text in made])

    def _visible_changes(self, events: Iterable[WatchEvent]) -> Iterable[tuple[WatchEvent, EventType]]:
        for event in events:
            what = event_type(event, self.matches) if self.matches else change_type(event)
            if what is not None:
                yield event, what

    async def _cache_converted(self, convert: Convert, events: Iterable[WatchEvent]) -> None:
        """Make the lines for which objects have to be converted, in one call for all of them."""
        new = [
            (event, what)
            for event, what in self._visible_changes(events)
            if what + self.encoder.cache_key not in event.encodings
        ]
        raws = await convert([event_object(event, what) for event, what in new]) if new else ()
        for (event, what), raw in zip(new, raws, strict=True):
            event.encodings[what + self.encoder.cache_key] = watch_line(what, self._encode_object(raw))

    def _line(self, event: WatchEvent, what: EventType) -> bytes:
        known = event.encodings.get(what + self.encoder.cache_key)
        if known is None:
            known = self._encode_event(event, what)
            if self.store.watcher_count(self.info.storage) > 1:  # else it would be kept for nobody
                event.encodings[what + self.encoder.cache_key] = known
        return known

    def _encode_event(self, event: WatchEvent, what: EventType) -> bytes:
        return event.encodings.get(what + self.encoder.cache_key) or watch_line(
            what, self._encode_object(event_object(event, what))
        )

    def _encode_object(self, raw: bytes) -> bytes:
        return self.encoder.encode(raw) if self.encoder.encode else raw

    def _bookmark(self, metadata: Object) -> bytes:
        resource = self.info.resource
        about = {"resourceVersion": str(self.revision), **metadata}
        if self.encoder.encode_bookmark is None:
            about["creationTimestamp"] = None
        raw = msgspec.json.encode({"kind": resource.kind, "apiVersion": resource.api_version, "metadata": about})
        return watch_line(
            "BOOKMARK", self.encoder.encode_bookmark(raw) if self.encoder.encode_bookmark is not None else raw
        )


def change_type(event: WatchEvent) -> EventType:
    if event.new is None:
        return "DELETED"
    return "ADDED" if event.old is None else "MODIFIED"


def event_object(event: WatchEvent, what: EventType) -> bytes:
    """The object of a change, as it is stored."""
    return event.raw if what != "DELETED" or event.new is None else last_matching_object(event)


def last_matching_object(event: WatchEvent) -> bytes:
    """An object that a selector matches no more, as it last did, at the revision at which it ceased to."""
    assert event.old is not None
    obj: Object = msgspec.json.decode(event.old.raw)
    obj["metadata"]["resourceVersion"] = str(event.revision)
    return msgspec.json.encode(obj)


def watch_line(what: str, raw: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (what.encode(), raw)
