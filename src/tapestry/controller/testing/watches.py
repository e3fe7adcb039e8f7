"""Watches of the in-process API: each reads the log of changes at its own pace, from a revision of its own.

A watch keeps nothing but the revision it has reached, so it can neither miss a change nor tell one twice; one that has
fallen behind what the log remembers ends with the error Expired, as on a real server.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import msgspec

from tapestry.apiserver.refusals import expired
from tapestry.controller.testing.selection import Selection
from tapestry.controller.testing.storage import Change, Storage, at_revision
from tapestry.kube.errors import TransportError
from tapestry.kube.objects import Object

BOOKMARK_SECONDS = 60.0
INITIAL_END = {"k8s.io/initial-events-end": "true"}


@dataclass(eq=False)
class Watch:
    """A watch stream, open from the moment it is made; it tells of the changes after `cursor`.

    With `initial` it first tells of every object as of `cursor`.
    """

    storage: Storage
    selection: Selection
    cursor: int
    initial: bool
    bookmarks: bool
    seconds: float
    status: int = field(default=200, init=False)
    _first: list[bytes] = field(default_factory=list, init=False)
    _stirred: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _ended: bool = field(default=False, init=False)
    _cut: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.initial:
            objects = self.selection.of(self.storage.at(self.cursor))
            self._first = [event("ADDED", obj) for obj in objects]
            if self.bookmarks:
                self._first.append(self._bookmark({"annotations": INITIAL_END}))

    def stir(self) -> None:
        """Look again: something changed, or may be told now."""
        self._stirred.set()

    def end(self) -> None:
        """End the stream, as a server does."""
        self._ended = True
        self.stir()

    def cut(self) -> None:
        """Break the stream off, as a lost connection does."""
        self._cut = True
        self.stir()

    async def chunks(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.seconds
        bookmark_at = loop.time() + BOOKMARK_SECONDS if self.bookmarks else deadline
        if self._first:
            yield b"".join(self._first)
        while not self._over(loop.time() >= deadline):
            if self.cursor < self.storage.compacted:
                yield event("ERROR", expired(self.cursor, self.storage.compacted).status())
                return
            if chunk := b"".join(self._due()):
                yield chunk
            elif loop.time() >= bookmark_at:
                bookmark_at += BOOKMARK_SECONDS
                yield self._bookmark({})
            else:
                await self._wait(min(deadline, bookmark_at))

    def _over(self, late: bool) -> bool:
        if self._cut:
            raise TransportError(f"watch of {self.selection.resource.name}: the connection was cut", maybe_sent=True)
        return self._ended or late

    def _due(self) -> Iterator[bytes]:
        after, until = self.cursor, self.storage.delivered
        if until > after:
            self.cursor = until
            for change in self.storage.changes(after, until):
                yield from told(self.selection, change)

    async def _wait(self, until: float) -> None:
        self._stirred.clear()
        try:
            async with asyncio.timeout_at(until):
                await self._stirred.wait()
        except TimeoutError:
            return

    def _bookmark(self, metadata: Object) -> bytes:
        resource = self.selection.resource
        about = {"resourceVersion": str(self.cursor), "creationTimestamp": None, **metadata}
        return event("BOOKMARK", {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": about})


def told(selection: Selection, change: Change) -> Iterator[bytes]:
    """What a watch says of a change: objects that enter or leave the selection appear or go, whatever they did."""
    if not selection.covers(change.key):
        return
    before = change.before if change.before is not None and selection.matches(change.before) else None
    after = change.after if change.after is not None and selection.matches(change.after) else None
    if after is not None:
        yield event("ADDED" if before is None else "MODIFIED", after)
    elif before is not None:
        yield event("DELETED", at_revision(before, change.revision))


def event(type: str, obj: Object) -> bytes:
    return msgspec.json.encode({"type": type, "object": obj}) + b"\n"
