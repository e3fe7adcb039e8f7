"""The log: what the store is made of again after a crash."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol


class Key(NamedTuple):
    """Which object: `resource` is `pods` or `deployments.apps`; `namespace` is empty for what has none."""

    resource: str
    namespace: str
    name: str


class Entry(NamedTuple):
    """One write: the object as it is from `revision` on, or None once it is deleted."""

    revision: int
    key: Key
    raw: bytes | None


class StorageError(Exception):
    """The log could not take a write, or does not hold what was written.  It says where and what to do."""


class StorageUnavailable(StorageError):
    """Where objects are kept is not to be reached now.  Nothing was written."""


class OutcomeUnknown(StorageError):
    """A write was begun, and nobody can say whether it was made."""


class Log(Protocol):
    """Keeps writes.  Called from one thread at a time."""

    def load(self) -> tuple[int, Iterator[Entry]]:
        """The last revision ever given out, and each object that is there, by the entry that made it so."""

    def append(self, entries: Sequence[Entry]) -> None:
        """Keep `entries`, all or none; they outlive a crash from when this returns.  Raises LogError."""

    def close(self) -> None: ...
