"""List, then watch, for ever, as one async iterator.

    Listing                a list begins: whatever is not shown before the next Synced is gone
    Page(items)            a part of that list
    Synced                 the list is whole
    Changes([...])         what happened since, in order

The stream survives what happens to watches: it resumes at the last version it saw (bookmarks move it on when nothing
else does), lists again when the server no longer remembers that version, and gives up a stream that has gone silent.
Where the server can stream a list (`sendInitialEvents`) it does so, else the list comes in pages; memory is bounded by
a page or a chunk either way.  The iterator ends only when its reader stops.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

from tapestry.client.client import PAGE, Client, gc_paused, selection
from tapestry.client.metrics import WATCH_RESTARTS
from tapestry.client.transport import Stream
from tapestry.kube.errors import BadRequest, Gone, Invalid, KubeError, error_from_body, error_from_status
from tapestry.kube.objects import Object, annotations_of, version_of
from tapestry.kube.resources import Resource

SILENCE = 90.0
"""Seconds without a byte after which a stream counts as dead: servers send a bookmark every minute."""
LIFETIME = (290, 590)
"""Seconds after which we ask the server to end a stream, spread so that watches do not all return at once."""
LONGEST_PAUSE = 30.0
LONGEST_EVENT = 64 << 20
INITIAL_END = "k8s.io/initial-events-end"


class Change(NamedTuple):
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Object


class Listing(NamedTuple): ...


class Page(NamedTuple):
    items: list[Object]


class Synced(NamedTuple): ...


class Changes(NamedTuple):
    changes: list[Change]


WatchEvent = Listing | Page | Synced | Changes


class Silence(KubeError):
    """A stream carried nothing for longer than a living one does."""


class Envelope(msgspec.Struct):
    type: str
    object: dict[str, Any]


ENVELOPES = msgspec.json.Decoder(Envelope)


@dataclass(slots=True)
class Watch:
    """One endless watch; iterate over `events()` once."""

    client: Client
    resource: Resource
    namespace: str | None = None
    labels: str = ""
    fields: str = ""
    page: int = PAGE
    silence: float = SILENCE
    on_restart: Callable[[KubeError, float], None] = lambda _error, _pause: None
    """Told of each error that broke the watch, and of the seconds until it begins again."""
    _version: str = field(default="", init=False)
    _streams_lists: bool = field(default=True, init=False)
    _failures: int = field(default=0, init=False)

    async def events(self) -> AsyncGenerator[WatchEvent, None]:
        while True:
            try:
                if not self._version and not self._streams_lists:
                    async for event in self._list():
                        yield event
                async for event in self._follow():
                    yield event
            except (Invalid, BadRequest) as error:
                # The one refusal we expect: a server that cannot stream lists.
                if self._version or not self._streams_lists:
                    await self._pause(error)
                self._streams_lists = False
            except Gone as error:
                self._version = ""
                await self._pause(error)
            except KubeError as error:
                await self._pause(error)

    async def _list(self) -> AsyncIterator[WatchEvent]:
        yield Listing()
        version = ""
        async for part in self.client.pages(
            self.resource, self.namespace, labels=self.labels, fields=self.fields, page=self.page
        ):
            version = part.metadata.resource_version
            yield Page(part.items or [])
        self._failures = 0
        yield Synced()
        self._version = version

    async def _follow(self) -> AsyncIterator[WatchEvent]:
        """Events of one stream, until the server ends it or it breaks."""
        listing = not self._version
        query = selection(self.labels, self.fields) | {
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(*LIFETIME)),
        }
        if listing:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        else:
            query["resourceVersion"] = self._version
        async with self.client.stream(self.resource, self.namespace, query) as stream:
            if stream.status >= 400:
                body = b"".join([chunk async for chunk in stream.chunks()])
                raise error_from_body(stream.status, body, doing=f"watch {self.resource.name}")
            if listing:
                yield Listing()
            async for lines in lines_of(stream, self.silence):
                with gc_paused():
                    news = news_of([ENVELOPES.decode(line) for line in lines])
                self._failures = 0
                if listing:
                    yield Page([change.object for change in news.changes[: news.initial]])
                    if news.initial is not None:
                        listing = False
                        yield Synced()
                if not listing:
                    if changes := news.changes[news.initial :]:
                        yield Changes(changes)
                    self._version = news.version or self._version
                if news.error is not None:
                    raise error_from_status(news.error, doing=f"watch {self.resource.name}")

    async def _pause(self, error: KubeError) -> None:
        seconds = min(LONGEST_PAUSE, 0.2 * 2**self._failures) * random.uniform(0.75, 1.25)
        self._failures = min(self._failures + 1, 10)
        WATCH_RESTARTS.labels(self.resource.name, type(error).__name__).inc()
        self.on_restart(error, seconds)
        await asyncio.sleep(seconds)


class News(NamedTuple):
    """What one chunk of a stream said."""

    changes: list[Change]
    version: str
    """The version it ends at."""
    initial: int | None
    """How many of the changes were still of the initial list, where its end is in here."""
    error: Object | None


def news_of(envelopes: list[Envelope]) -> News:
    changes: list[Change] = []
    version, initial = "", None
    for envelope in envelopes:
        match envelope.type:
            case "ADDED" | "MODIFIED" | "DELETED" as type:
                changes.append(Change(type, envelope.object))
            case "BOOKMARK":
                if annotations_of(envelope.object).get(INITIAL_END) == "true":
                    initial = len(changes)
            case "ERROR":
                return News(changes, version, initial, envelope.object)
        version = version_of(envelope.object)
    return News(changes, version, initial, None)


async def lines_of(stream: Stream, silence: float) -> AsyncIterator[list[bytes]]:
    """The whole lines of a stream, as many at a time as have arrived."""
    chunks = aiter(stream.chunks())
    begun: list[bytes] = []
    size = 0
    while chunk := await next_chunk(chunks, silence):
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            begun.append(head)
            yield [line for line in b"".join(begun).split(b"\n") if line]
            begun, size = [tail], len(tail)
        else:
            begun.append(tail)
            size += len(tail)
            if size > LONGEST_EVENT:
                raise Silence(f"an event is over {LONGEST_EVENT} bytes and has no end")


async def next_chunk(chunks: AsyncIterator[bytes], silence: float) -> bytes:
    """The next bytes, or none at the end of the stream."""
    try:
        async with asyncio.timeout(silence):
            return await anext(chunks, b"")
    except TimeoutError as error:
        raise Silence(f"the stream carried nothing for {silence:g} s") from error
