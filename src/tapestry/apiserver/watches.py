"""Watches: each watcher gets every change it can see, in order, once; and a line of text for each, made once for all.

A watch of a revision that is no longer remembered ends with the error Expired, one that falls too far behind just ends:
its client comes back at the revision it has reached.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass

import msgspec

from tapestry.apiserver.rows import Row
from tapestry.apiserver.storage.store import Change, Event, Store, Subscription, Version, change
from tapestry.kube.objects import Object

BOOKMARK_SECONDS = 60.0
INITIAL_END = {"k8s.io/initial-events-end": "true"}

Matches = Callable[[Version], bool] | None
Show = Callable[[bytes], bytes]
"""An object as the watcher wants to see it."""


@dataclass(frozen=True, slots=True)
class Flavour:
    """In which form objects are shown: as they are, as a row of a table, as metadata."""

    name: str = ""
    show: Show | None = None


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

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.seconds
        bookmark_at = loop.time() + BOOKMARK_SECONDS if self.bookmarks else deadline
        try:
            if self.first is not None:
                yield self._initial(self.first)
                self.first = None
            while (wait := min(deadline, bookmark_at) - loop.time()) > 0 or loop.time() < deadline:
                events = await self._next(wait)
                if events:
                    self.revision = events[-1].revision
                    if text := b"".join(self._lines(events)):
                        yield text
                elif self.subscription.dropped:
                    return
                elif loop.time() >= bookmark_at:
                    bookmark_at += BOOKMARK_SECONDS
                    self.revision = max(self.revision, self.store.revision)
                    yield self._bookmark({})
        finally:
            self.store.unwatch(self.row.storage, self.subscription)

    async def _next(self, wait: float) -> list[Event]:
        try:
            async with asyncio.timeout(max(wait, 0)):
                return await self.subscription.take()
        except TimeoutError:
            return []

    def _initial(self, versions: Iterable[Version]) -> bytes:
        lines = [line("ADDED", self._shown(version.raw)) for version in versions]
        if self.bookmarks:
            lines.append(self._bookmark({"annotations": INITIAL_END}))
        return b"".join(lines)

    def _lines(self, events: Iterable[Event]) -> Iterable[bytes]:
        for event in events:
            what = change(event, self.matches) if self.matches else plain_change(event)
            if what is not None:
                yield self._line(event, what)

    def _line(self, event: Event, what: Change) -> bytes:
        known = event.lines.get(what + self.flavour.name)
        if known is None:
            raw = event.raw if what != "DELETED" or event.new is None else left(event)
            known = event.lines[what + self.flavour.name] = line(what, self._shown(raw))
        return known

    def _shown(self, raw: bytes) -> bytes:
        return self.flavour.show(raw) if self.flavour.show else raw

    def _bookmark(self, metadata: Object) -> bytes:
        resource = self.row.resource
        about = {"resourceVersion": str(self.revision), "creationTimestamp": None, **metadata}
        obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": about}
        return line("BOOKMARK", msgspec.json.encode(obj))


def plain_change(event: Event) -> Change:
    if event.new is None:
        return "DELETED"
    return "ADDED" if event.old is None else "MODIFIED"


def left(event: Event) -> bytes:
    """An object that a selector matches no more, as it last did, at the revision at which it ceased to."""
    assert event.old is not None
    obj: Object = msgspec.json.decode(event.old.raw)
    obj["metadata"]["resourceVersion"] = str(event.revision)
    return msgspec.json.encode(obj)


def line(what: str, raw: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (what.encode(), raw)
