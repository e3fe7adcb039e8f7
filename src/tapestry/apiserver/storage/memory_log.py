"""A log that stores nothing, for tests and for servers with in-memory storage."""

from collections.abc import Iterator, Sequence

from tapestry.apiserver.storage.log import Entry


class MemoryLog:
    def load(self) -> tuple[int, Iterator[Entry]]:
        return 0, iter(())

    def append(self, entries: Sequence[Entry]) -> None:
        del entries

    def close(self) -> None:
        return
