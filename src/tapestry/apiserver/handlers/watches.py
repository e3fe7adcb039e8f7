"""Watch responses, with events and bookmarks: each watcher gets each visible change once, in order.

A watch at a compacted revision ends with the error Expired. A watch that falls too far behind ends without an error;
its client resumes at the last revision it received. When the store finishes, watches end with a bookmark.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.apiserver.core.responses import CHUNK_BYTES
from tapestry.apiserver.core.store import EventType, ObjectVersion, Store, Subscription, WatchEvent, event_type
from tapestry.apiserver.core.workers import LARGE_BYTES, RequestBudget
from tapestry.kube.errors import ApiError
from tapestry.kube.objects import Object

BOOKMARK_SECONDS = 60.0
FINAL_BOOKMARK_SECONDS = 2.0
"""Seconds before its end at which a watch sends a final bookmark, so that the next watch resumes there."""
BATCH_SIZE = 256
"""Maximum number of objects or events per chunk."""
INLINE_EVENTS = 16
"""Number of events that are always encoded on the event loop."""
CLOCK_TOLERANCE = 0.01
"""Seconds by which a timer may fire early."""
INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}

T = TypeVar("T")
Stored = TypeVar("Stored", ObjectVersion, WatchEvent)
Matches = Callable[[ObjectVersion], bool] | None
Encode = Callable[[bytes], bytes]
"""Encode an object in the requested form."""
Convert = Callable[[Sequence[bytes]], Awaitable[Sequence[bytes]]]


@dataclass(frozen=True, slots=True)
class WatchEncoder:
    """The form in which a watch encodes objects: full, table row, or metadata only."""

    cache_key: str = ""
    encode: Encode | None = None
    encode_bookmark: Encode | None = None
    """Encode the objects of bookmarks, which only have a resourceVersion."""
    decodes_objects: bool = False
    """True if encoding decodes objects, which is slow."""


IDENTITY_ENCODER = WatchEncoder()


@dataclass(slots=True)
class WatchResponse:
    """An accepted watch, as chunks of text until its timeout or until its client disconnects."""

    store: Store
    info: ResourceInfo
    subscription: Subscription
    matches: Matches
    encoder: WatchEncoder
    initial_objects: list[ObjectVersion] | None
    """Existing objects, if the client requested them."""
    revision: int
    allow_bookmarks: bool
    timeout: float
    send_initial_end: bool = False
    """Send a bookmark after the initial objects."""
    on_end: Callable[[], None] | None = None
    """Called once, when the watch ends."""
    convert: Convert | None = None
    """Convert objects with a webhook, if they are stored in another version."""
    budget: RequestBudget | None = None
    """Budget of the request that started the watch."""

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
                if alarm.when() <= now + CLOCK_TOLERANCE:  # the timer fired or is about to
                    alarm.cancel()
                    alarm = loop.call_at(max(min(deadline, bookmark_at), now + CLOCK_TOLERANCE), wake)
                events = await self.subscription.next_events()
                if events:
                    self.revision = events[-1].revision
                    if self.convert is not None:
                        await self._cache_converted(self.convert, events)
                    for batch in batches(events):
                        if text := await self._slow_lines(batch) if self._is_slow(batch) else self._lines(batch):
                            yield text
                elif self.subscription.dropped:
                    return
                if self.subscription.is_finished and not self.subscription.has_pending_events:
                    yield self._final_bookmark()
                    return
                if (
                    self.allow_bookmarks
                    and bookmark_at <= loop.time() < deadline
                    and not self.subscription.has_pending_events
                ):
                    bookmark_at = max(bookmark_at + BOOKMARK_SECONDS, loop.time())
                    self.revision = max(self.revision, self.store.revision)
                    yield self._bookmark({})
        except ApiError as error:  # from a conversion
            yield error_line(error)
        finally:
            alarm.cancel()
            self.end()

    def end(self) -> None:
        """End the watch, even if it was not read. Calling it again has no effect."""
        self.store.unwatch(self.info.storage, self.subscription)
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end()

    async def _initial(self) -> AsyncGenerator[bytes, None]:
        """Yield the existing objects as ADDED events."""
        objects, self.initial_objects = self.initial_objects, None
        if objects is None:
            return
        for batch in batches(objects):
            yield await self._encode_added(batch)
            await asyncio.sleep(0)  # a client that reads fast would let the watch continue at once
        if self.allow_bookmarks and self.send_initial_end:
            yield self._bookmark({"annotations": INITIAL_EVENTS_END})

    async def _encode_added(self, versions: Iterable[ObjectVersion]) -> bytes:
        raws: Sequence[bytes] = [version.raw for version in versions]
        if self.convert is not None:
            raws = await self.convert(raws)
        size = sum(map(len, raws)) if self.encoder.decodes_objects else 0
        return await self._run(size, lambda: b"".join([watch_line("ADDED", self._encode_object(raw)) for raw in raws]))

    async def _run(self, size: int, function: Callable[[], T]) -> T:
        """Run a function, in the worker thread if it processes a large amount."""
        if size < LARGE_BYTES or self.budget is None or self.budget.worker is None:
            return function()
        return await self.budget.worker.run(self.budget.user, function)

    def _lines(self, events: Sequence[WatchEvent]) -> bytes:
        """Return the encoded events that are visible to the watcher."""
        if self.matches is None:
            return b"".join([self._line(event, change_type(event)) for event in events])
        return b"".join([self._line(event, what) for event, what in self._visible_changes(events)])

    def _is_slow(self, events: Sequence[WatchEvent]) -> bool:
        """Return whether many objects, or large ones, are decoded to encode or to select events."""
        if self.encoder.decodes_objects and len(events) >= INLINE_EVENTS:
            return True
        may_decode = self.encoder.decodes_objects or self.matches is not None
        return may_decode and any(len(event.raw) >= LARGE_BYTES for event in events)

    async def _slow_lines(self, events: Sequence[WatchEvent]) -> bytes:
        """Like `_lines`, in the worker thread."""
        is_shared = self.store.watcher_count(self.info.storage) > 1
        encoded = await self._run(
            LARGE_BYTES,
            lambda: [(event, what, self._encode_event(event, what)) for event, what in self._visible_changes(events)],
        )
        if is_shared:
            for event, what, text in encoded:
                event.encodings[what + self.encoder.cache_key] = text
        return b"".join([text for _, _, text in encoded])

    def _visible_changes(self, events: Iterable[WatchEvent]) -> Iterable[tuple[WatchEvent, EventType]]:
        for event in events:
            what = event_type(event, self.matches) if self.matches else change_type(event)
            if what is not None:
                yield event, what

    async def _cache_converted(self, convert: Convert, events: Iterable[WatchEvent]) -> None:
        """Convert objects with one webhook call and cache their encoded events."""
        new = [
            (event, what)
            for event, what in self._visible_changes(events)
            if what + self.encoder.cache_key not in event.encodings
        ]
        raws = await convert([event_object(event, what) for event, what in new]) if new else ()
        for (event, what), raw in zip(new, raws, strict=True):
            event.encodings[what + self.encoder.cache_key] = watch_line(what, self._encode_object(raw))

    def _line(self, event: WatchEvent, what: EventType) -> bytes:
        encoded = event.encodings.get(what + self.encoder.cache_key)
        if encoded is None:
            encoded = self._encode_event(event, what)
            if self.store.watcher_count(self.info.storage) > 1:  # otherwise no watcher would use the cached text
                event.encodings[what + self.encoder.cache_key] = encoded
        return encoded

    def _encode_event(self, event: WatchEvent, what: EventType) -> bytes:
        return event.encodings.get(what + self.encoder.cache_key) or watch_line(
            what, self._encode_object(event_object(event, what))
        )

    def _encode_object(self, raw: bytes) -> bytes:
        return self.encoder.encode(raw) if self.encoder.encode else raw

    def _final_bookmark(self) -> bytes:
        """Return a bookmark at the last revision of the store; nothing if the client requested no bookmarks."""
        self.revision = max(self.revision, self.store.revision)
        return self._bookmark({}) if self.allow_bookmarks else b""

    def _bookmark(self, metadata: Object) -> bytes:
        resource = self.info.resource
        fields = {"resourceVersion": str(self.revision), **metadata}
        if self.encoder.encode_bookmark is None:
            fields["creationTimestamp"] = None
        raw = msgspec.json.encode({"kind": resource.kind, "apiVersion": resource.api_version, "metadata": fields})
        return watch_line(
            "BOOKMARK", self.encoder.encode_bookmark(raw) if self.encoder.encode_bookmark is not None else raw
        )


def batches(items: Sequence[Stored]) -> Iterator[Sequence[Stored]]:
    """Yield the objects or events in parts with a maximum number and, except for single ones, a maximum size."""
    start = size = 0
    for index, item in enumerate(items):
        if index - start >= BATCH_SIZE or (size + len(item.raw) > CHUNK_BYTES and index > start):
            yield items[start:index]
            start, size = index, 0
        size += len(item.raw)
    if start < len(items):
        yield items[start:] if start else items


def change_type(event: WatchEvent) -> EventType:
    if event.new is None:
        return "DELETED"
    return "ADDED" if event.old is None else "MODIFIED"


def event_object(event: WatchEvent, what: EventType) -> bytes:
    """Return the stored object of an event."""
    return event.raw if what != "DELETED" or event.new is None else last_matching_object(event)


def last_matching_object(event: WatchEvent) -> bytes:
    """Return the last version of an object that a selector no longer matches, at the revision of the event."""
    assert event.old is not None
    obj: Object = msgspec.json.decode(event.old.raw)
    obj["metadata"]["resourceVersion"] = str(event.revision)
    return msgspec.json.encode(obj)


def error_line(error: ApiError) -> bytes:
    """Return the ERROR event that ends a watch."""
    return watch_line("ERROR", msgspec.json.encode(error.status()))


def watch_line(what: str, raw: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (what.encode(), raw)
