"""An endless list and watch as one async iterator.

    ListStart              a list starts: objects not in it before the next Synced do not exist any more
    ListPage(items)        a part of that list; a later page may repeat an object
    Synced                 the list is complete
    Changes([...])         later changes, in order; before Synced only deletions during the list

The iterator handles the failures of watches.  It resumes at the last seen version (bookmarks advance it when nothing
changes), lists again if the server no longer has that version, and replaces a stream that is idle for too long.  If the
server can stream a list (`sendInitialEvents`), it does so, otherwise the list arrives in pages.  Memory use is bounded
by a page or a chunk.  The iterator never ends by itself.  Close it (`aclosing`) to free its stream.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal, NamedTuple, cast

import msgspec

from tapestry.client.client import PAGE_SIZE, Client
from tapestry.client.metrics import RESOURCE_LABEL, WATCH_RESTARTS
from tapestry.client.options import selector_query
from tapestry.client.responses import Fields, PartialObject, check_identity, decode_object, gc_paused
from tapestry.client.streams import IDLE_TIMEOUT, BrokenStream, read_lines, require_success
from tapestry.client.transport import Request
from tapestry.kube.errors import BadRequest, Gone, Invalid, KubeError, error_from_status
from tapestry.kube.objects import Object, annotations_of, version_of
from tapestry.kube.resources import Resource

WATCH_LIFETIME_SECONDS = (290, 590)
"""Range of the requested stream lifetime in seconds, random so that watches do not all reconnect at once."""
MAX_BACKOFF = 30.0
INITIAL_END = "k8s.io/initial-events-end"


class Change(NamedTuple):
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Object


class ListStart(NamedTuple): ...


class ListPage(NamedTuple):
    items: list[Object]


class Synced(NamedTuple): ...


class Changes(NamedTuple):
    changes: list[Change]


WatchEvent = ListStart | ListPage | Synced | Changes


class RawWatchEvent(msgspec.Struct):
    type: str
    object: Fields


class MetadataWatchEvent(msgspec.Struct):
    type: str
    object: PartialObject


EVENT_DECODER = msgspec.json.Decoder(RawWatchEvent)
METADATA_EVENT_DECODER = msgspec.json.Decoder(MetadataWatchEvent)


@dataclass(slots=True)
class Watch:
    """One endless watch.  Iterate over `events()` only once."""

    client: Client
    resource: Resource
    namespace: str | None = None
    labels: str = ""
    fields: str = ""
    page_size: int = PAGE_SIZE
    idle_timeout: float = IDLE_TIMEOUT
    without_managed_fields: bool = False
    """Skip metadata.managedFields without decoding, about a third of the data."""
    only_metadata: bool = False
    """Skip spec, status, data and managed fields without decoding."""
    on_restart: Callable[[KubeError, float], None] = lambda _error, _pause: None
    """Called with each error that ends a stream and the seconds until the restart."""
    _version: str = field(default="", init=False)
    _can_stream_lists: bool = field(default=True, init=False)
    _failures: int = field(default=0, init=False)

    async def events(self) -> AsyncGenerator[WatchEvent, None]:
        while True:
            try:
                if not self._version and not self._can_stream_lists:
                    async with aclosing(self._list()) as parts:
                        async for event in parts:
                            yield event
                async with aclosing(self._stream()) as events:
                    async for event in events:
                        yield event
            except (Invalid, BadRequest) as error:
                if self._can_stream_lists and not self._version:
                    self._can_stream_lists = False  # expected from a server that cannot stream lists
                else:
                    await self._back_off(error)
            except Gone as error:
                self._version = ""
                await self._back_off(error)
            except KubeError as error:
                await self._back_off(error)

    async def _list(self) -> AsyncGenerator[WatchEvent, None]:
        yield ListStart()
        version = ""
        async for part in self.client.pages(
            self.resource,
            self.namespace,
            labels=self.labels,
            fields=self.fields,
            page_size=self.page_size,
            without_managed_fields=self.without_managed_fields,
            only_metadata=self.only_metadata,
        ):
            version = part.metadata.resource_version
            yield ListPage(part.items)
        yield Synced()
        self._version = version

    async def _stream(self) -> AsyncGenerator[WatchEvent, None]:
        """Yield the events of one stream, until the server ends it or it fails."""
        listing = not self._version
        query = selector_query(self.labels, self.fields) | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(*WATCH_LIFETIME_SECONDS)),
        }
        if listing:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        else:
            query["resourceVersion"] = self._version
        doing = f"watch {self.resource.name}"
        received = False
        request = Request("GET", self.resource.path(self.namespace), query)
        async with self.client.transport.stream(request) as opened:
            stream = await require_success(opened, doing, self.idle_timeout)
            if listing:
                yield ListStart()
            async with aclosing(read_lines(stream, self.idle_timeout)) as batches:
                async for lines in batches:
                    received = True
                    chunk = decode_chunk(
                        lines, without_managed_fields=self.without_managed_fields, only_metadata=self.only_metadata
                    )
                    for event in chunk_events(chunk, listing=listing):
                        yield event
                    listing = listing and chunk.initial is None
                    if chunk.version and not listing:
                        self._version, self._failures = chunk.version, 0
                    if chunk.error is not None:
                        raise error_from_status(chunk.error, action=doing)
        if listing or not received:
            raise BrokenStream(f"{doing}: stream ended before {'its list was complete' if listing else 'any event'}")

    async def _back_off(self, error: KubeError) -> None:
        seconds = min(MAX_BACKOFF, 0.2 * 2**self._failures) * random.uniform(0.75, 1.25)
        self._failures = min(self._failures + 1, 10)
        WATCH_RESTARTS.inc(RESOURCE_LABEL.get()(self.resource.name), type(error).__name__)
        self.on_restart(error, seconds)
        await asyncio.sleep(seconds)


class WatchChunk(NamedTuple):
    """The decoded content of one chunk of a stream."""

    changes: list[Change]
    version: str
    """resourceVersion after the chunk."""
    initial: int | None
    """Number of changes that belong to the initial list, if its end is in this chunk."""
    error: Object | None


def decode_chunk(lines: list[bytes], *, without_managed_fields: bool, only_metadata: bool = False) -> WatchChunk:
    try:
        with gc_paused():
            if only_metadata:
                events = [decode_metadata_event(line) for line in lines]
            else:
                events = [
                    (event.type, decode_object(event.object, without_managed_fields=without_managed_fields))
                    for event in [EVENT_DECODER.decode(line) for line in lines]
                ]
            for type, obj in events:
                if type in ("ADDED", "MODIFIED", "DELETED"):
                    check_identity(obj)
    except (ValueError, RecursionError) as error:
        raise BrokenStream(f"the stream sent an invalid event: {error}") from error
    changes: list[Change] = []
    version, initial = "", None
    for type, obj in events:
        match type:
            case "ADDED" | "MODIFIED" | "DELETED":
                changes.append(Change(type, obj))
            case "BOOKMARK":
                if annotations_of(obj).get(INITIAL_END) == "true":
                    initial = len(changes)
            case "ERROR":
                return WatchChunk(changes, version, initial, obj)
        version = version_of(obj)
    return WatchChunk(changes, version, initial, None)


def decode_metadata_event(line: bytes) -> tuple[str, Object]:
    """Decode an event without the fields of its object except apiVersion, kind and metadata."""
    event = METADATA_EVENT_DECODER.decode(line)
    if event.type == "ERROR":
        return event.type, decode_object(EVENT_DECODER.decode(line).object, without_managed_fields=False)
    return event.type, cast(Object, event.object)


def chunk_events(chunk: WatchChunk, *, listing: bool) -> Iterator[WatchEvent]:
    """Yield the events of a chunk.  `listing` is true if the list was incomplete before it.

    A server may stream a slightly old list and then, before its end, the changes since.
    """
    later = chunk.changes
    if listing:
        for deleted, group in groupby(chunk.changes[: chunk.initial], key=lambda change: change.type == "DELETED"):
            members = list(group)
            yield Changes(members) if deleted else ListPage([change.object for change in members])
        if chunk.initial is None:
            return
        yield Synced()
        later = chunk.changes[chunk.initial :]
    if later:
        yield Changes(later)


async def wait_for(
    client: Client,
    resource: Resource,
    name: str,
    namespace: str | None = None,
    *,
    until: Callable[[Object | None], bool],
    timeout: float = 30.0,
) -> Object | None:
    """Return the object as soon as `until` holds for it (None means that it does not exist).

    The TimeoutError shows the last status only, because the object may be a Secret.
    """
    last_error = ""

    def record_error(error: KubeError, _pause: float) -> None:
        nonlocal last_error
        last_error = f"; the last watch error was {error}"

    watch = Watch(client, resource, namespace, fields=f"metadata.name={name}", on_restart=record_error)
    last: Object | None = None
    try:
        async with asyncio.timeout(timeout), aclosing(watch.events()) as events:
            async for event in events:
                match event:
                    case ListStart():
                        last = None
                        continue
                    case ListPage(items):
                        last = items[-1] if items else last
                        continue
                    case Changes(changes):
                        for type, obj in changes:
                            last = None if type == "DELETED" else obj
                            if until(last):
                                return last
                    case Synced() if until(last):
                        return last
    except TimeoutError:
        place = f"{namespace}/{name}" if namespace else name
        state = f"was last at version {version_of(last)} with status {last.get('status')}" if last else "did not exist"
        raise TimeoutError(f"{resource.kind} {place}: timed out after {timeout:g} s; it {state}{last_error}") from None
    raise AssertionError("a watch never ends")
