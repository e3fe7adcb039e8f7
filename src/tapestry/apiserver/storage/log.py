"""The log protocol: durable writes from which a local store is rebuilt after a restart."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from tapestry.apiserver.core.store import Key


class Entry(NamedTuple):
    """One write. `raw` is the object at `revision`, or None if the object was deleted."""

    revision: int
    key: Key
    raw: bytes | None


class Log(Protocol):
    """Durable storage of writes. Only one thread at a time calls it."""

    def load(self) -> tuple[int, Iterator[Entry]]:
        """Return the last assigned revision and the newest entry of each existing object."""

    def append(self, entries: Sequence[Entry]) -> None:
        """Store all of `entries` or none. They survive a crash once this returns. Raises StorageError."""

    def close(self) -> None: ...


class MemoryLog:
    """A log that stores nothing, for servers with in-memory storage."""

    def __init__(self, revision: int = 0, entries: Sequence[Entry] = ()) -> None:
        """Start with these objects, which were restored."""
        self._revision, self._entries = revision, entries

    def load(self) -> tuple[int, Iterator[Entry]]:
        entries, self._entries = self._entries, ()
        return self._revision, iter(entries)

    def append(self, entries: Sequence[Entry]) -> None:
        del entries

    def close(self) -> None:
        return
