"""A log that forgets: for tests, and for servers that need not outlive their process."""

from collections.abc import Iterator, Sequence

from tapestry.apiserver.storage.log import Entry


class MemoryLog:
    def load(self) -> tuple[int, Iterator[Entry]]:
        return 0, iter(())

    def append(self, entries: Sequence[Entry]) -> None:
        del entries

    def close(self) -> None:
        return
