"""List, then watch, for ever, as one async iterator.

    Listing                a list begins: whatever is not shown before the next Synced is gone
    Page(items)            a part of that list; a later one may show an object again
    Synced                 the list is whole
    Changes([...])         what happened since, in order; before Synced only what was deleted while the list came

The stream survives what happens to watches: it resumes at the last version it saw (bookmarks move it on when nothing
else does), lists again when the server no longer remembers that version, and gives up a stream that has gone silent.
Where the server can stream a list (`sendInitialEvents`) it does so, else the list comes in pages; memory is bounded by
a page or a chunk either way.  The iterator ends only when its reader stops; close it (`aclosing`) to free its stream.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal, NamedTuple

import msgspec

from tapestry.client.client import PAGE_SIZE, Client
from tapestry.client.metrics import WATCH_RESTARTS
from tapestry.client.options import selector_query
from tapestry.client.responses import Fields, check_identity, decode_object, gc_paused
from tapestry.client.streams import IDLE_TIMEOUT, BrokenStream, read_lines, require_success
from tapestry.client.transport import Request
from tapestry.kube.errors import BadRequest, Gone, Invalid, KubeError, error_from_status
from tapestry.kube.objects import Object, annotations_of, version_of
from tapestry.kube.resources import Resource

WATCH_LIFETIME_SECONDS = (290, 590)
"""Seconds after which we ask the server to end a stream, spread so that watches do not all return at once."""
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


EVENT_DECODER = msgspec.json.Decoder(RawWatchEvent)


@dataclass(slots=True)
class Watch:
    """One endless watch; iterate over `events()` once."""

    client: Client
    resource: Resource
    namespace: str | None = None
    labels: str = ""
    fields: str = ""
    page_size: int = PAGE_SIZE
    idle_timeout: float = IDLE_TIMEOUT
    without_managed_fields: bool = False
    """Leave out metadata.managedFields, undecoded: a third of what comes."""
    only_metadata: bool = False
    """Leave out spec, status and data, undecoded."""
    on_restart: Callable[[KubeError, float], None] = lambda _error, _pause: None
    """Told of each error that broke the watch, and of the seconds until it begins again."""
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
                    self._can_stream_lists = False  # the one refusal we expect: a server that cannot stream lists
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
        """Events of one stream, until the server ends it or it breaks."""
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
        heard = False
        request = Request("GET", self.resource.path(self.namespace), query)
        async with self.client.transport.stream(request) as opened:
            stream = await require_success(opened, doing, self.idle_timeout)
            if listing:
                yield ListStart()
            async with aclosing(read_lines(stream, self.idle_timeout)) as arrivals:
                async for lines in arrivals:
                    heard = True
                    news = decode_chunk(
                        lines, without_managed_fields=self.without_managed_fields, only_metadata=self.only_metadata
                    )
                    for event in chunk_events(news, listing=listing):
                        yield event
                    listing = listing and news.initial is None
                    if news.version and not listing:
                        self._version, self._failures = news.version, 0
                    if news.error is not None:
                        raise error_from_status(news.error, action=doing)
        if listing or not heard:
            raise BrokenStream(f"{doing}: the stream ended before {'its list was whole' if listing else 'it began'}")

    async def _back_off(self, error: KubeError) -> None:
        seconds = min(MAX_BACKOFF, 0.2 * 2**self._failures) * random.uniform(0.75, 1.25)
        self._failures = min(self._failures + 1, 10)
        WATCH_RESTARTS.inc(self.resource.name, type(error).__name__)
        self.on_restart(error, seconds)
        await asyncio.sleep(seconds)


class WatchChunk(NamedTuple):
    """What one chunk of a stream said."""

    changes: list[Change]
    version: str
    """The version it ends at."""
    initial: int | None
    """How many of the changes were still of the initial list, where its end is in here."""
    error: Object | None


def decode_chunk(lines: list[bytes], *, without_managed_fields: bool, only_metadata: bool = False) -> WatchChunk:
    try:
        with gc_paused():
            envelopes = [EVENT_DECODER.decode(line) for line in lines]
            events = [
                (
                    each.type,
                    decode_object(
                        each.object,
                        without_managed_fields=without_managed_fields,
                        only_metadata=only_metadata and each.type != "ERROR",
                    ),
                )
                for each in envelopes
            ]
            for type, obj in events:
                if type in ("ADDED", "MODIFIED", "DELETED"):
                    check_identity(obj)
    except (ValueError, RecursionError) as error:
        raise BrokenStream(f"the stream carried what is no event: {error}") from error
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


def chunk_events(chunk: WatchChunk, *, listing: bool) -> Iterator[WatchEvent]:
    """The events that a chunk makes; `listing` while the list was not whole before it.

    A server may stream the list as it was a moment ago, and then, before its end, what has happened since.
    """
    since = chunk.changes
    if listing:
        for gone, some in groupby(chunk.changes[: chunk.initial], key=lambda change: change.type == "DELETED"):
            found = list(some)
            yield Changes(found) if gone else ListPage([change.object for change in found])
        if chunk.initial is None:
            return
        yield Synced()
        since = chunk.changes[chunk.initial :]
    if since:
        yield Changes(since)
