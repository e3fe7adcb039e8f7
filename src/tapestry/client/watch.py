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

from tapestry.client.answers import Fields, check_identity, complete, gc_paused
from tapestry.client.client import PAGE, Client
from tapestry.client.metrics import WATCH_RESTARTS
from tapestry.client.options import selection
from tapestry.client.streams import SILENCE, BrokenStream, granted, lines_of
from tapestry.client.transport import Request
from tapestry.kube.errors import BadRequest, Gone, Invalid, KubeError, error_from_status
from tapestry.kube.objects import Object, annotations_of, version_of
from tapestry.kube.resources import Resource

LIFETIME = (290, 590)
"""Seconds after which we ask the server to end a stream, spread so that watches do not all return at once."""
LONGEST_PAUSE = 30.0
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


class Envelope(msgspec.Struct):
    type: str
    object: Fields


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
    lean: bool = False
    """Leave out metadata.managedFields, undecoded: a third of what comes."""
    only_metadata: bool = False
    """Leave out spec, status and data, undecoded."""
    on_restart: Callable[[KubeError, float], None] = lambda _error, _pause: None
    """Told of each error that broke the watch, and of the seconds until it begins again."""
    _version: str = field(default="", init=False)
    _streams_lists: bool = field(default=True, init=False)
    _failures: int = field(default=0, init=False)

    async def events(self) -> AsyncGenerator[WatchEvent, None]:
        while True:
            try:
                if not self._version and not self._streams_lists:
                    async with aclosing(self._list()) as parts:
                        async for event in parts:
                            yield event
                async with aclosing(self._follow()) as events:
                    async for event in events:
                        yield event
            except (Invalid, BadRequest) as error:
                if self._streams_lists and not self._version:
                    self._streams_lists = False  # the one refusal we expect: a server that cannot stream lists
                else:
                    await self._pause(error)
            except Gone as error:
                self._version = ""
                await self._pause(error)
            except KubeError as error:
                await self._pause(error)

    async def _list(self) -> AsyncGenerator[WatchEvent, None]:
        yield Listing()
        version = ""
        async for part in self.client.pages(
            self.resource,
            self.namespace,
            labels=self.labels,
            fields=self.fields,
            page=self.page,
            lean=self.lean,
            only_metadata=self.only_metadata,
        ):
            version = part.metadata.resource_version
            yield Page(part.items)
        yield Synced()
        self._version = version

    async def _follow(self) -> AsyncGenerator[WatchEvent, None]:
        """Events of one stream, until the server ends it or it breaks."""
        listing = not self._version
        query = selection(self.labels, self.fields) | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(*LIFETIME)),
        }
        if listing:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        else:
            query["resourceVersion"] = self._version
        doing = f"watch {self.resource.name}"
        heard = False
        request = Request("GET", self.resource.path(self.namespace), query)
        async with self.client.transport.stream(request) as opened:
            stream = await granted(opened, doing, self.silence)
            if listing:
                yield Listing()
            async with aclosing(lines_of(stream, self.silence)) as arrivals:
                async for lines in arrivals:
                    heard = True
                    news = news_in(lines, lean=self.lean, only_metadata=self.only_metadata)
                    for event in told(news, listing=listing):
                        yield event
                    listing = listing and news.initial is None
                    if news.version and not listing:
                        self._version, self._failures = news.version, 0
                    if news.error is not None:
                        raise error_from_status(news.error, doing=doing)
        if listing or not heard:
            raise BrokenStream(f"{doing}: the stream ended before {'its list was whole' if listing else 'it began'}")

    async def _pause(self, error: KubeError) -> None:
        seconds = min(LONGEST_PAUSE, 0.2 * 2**self._failures) * random.uniform(0.75, 1.25)
        self._failures = min(self._failures + 1, 10)
        WATCH_RESTARTS.inc(self.resource.name, type(error).__name__)
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


def news_in(lines: list[bytes], *, lean: bool, only_metadata: bool = False) -> News:
    try:
        with gc_paused():
            envelopes = [ENVELOPES.decode(line) for line in lines]
            events = [
                (each.type, complete(each.object, lean=lean, only_metadata=only_metadata and each.type != "ERROR"))
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
                return News(changes, version, initial, obj)
        version = version_of(obj)
    return News(changes, version, initial, None)


def told(news: News, *, listing: bool) -> Iterator[WatchEvent]:
    """The events that a chunk makes; `listing` while the list was not whole before it.

    A server may stream the list as it was a moment ago, and then, before its end, what has happened since.
    """
    since = news.changes
    if listing:
        for gone, some in groupby(news.changes[: news.initial], key=lambda change: change.type == "DELETED"):
            found = list(some)
            yield Changes(found) if gone else Page([change.object for change in found])
        if news.initial is None:
            return
        yield Synced()
        since = news.changes[news.initial :]
    if since:
        yield Changes(since)
