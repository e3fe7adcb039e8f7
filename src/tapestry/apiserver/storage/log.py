"""The log protocol: durable writes from which a local store is rebuilt after a restart."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol


class Key(NamedTuple):
    """Identity of an object. `resource` is `pods` or `deployments.apps`, for example. `namespace` may be empty."""

    resource: str
    namespace: str
    name: str


class Entry(NamedTuple):
    """One write. `raw` is the object at `revision`, or None if the object was deleted."""

    revision: int
    key: Key
    raw: bytes | None


class StorageError(Exception):
    """Raised if the backend rejects a write or holds corrupt data. The message says where and what to do."""


class StorageUnavailable(StorageError):
    """Raised if the backend cannot be reached. Nothing was written."""


class OutcomeUnknown(StorageError):
    """Raised if a write was sent but its result is unknown."""


class Log(Protocol):
    """Durable storage of writes. Only one thread at a time calls it."""

    def load(self) -> tuple[int, Iterator[Entry]]:
        """Return the last assigned revision and the newest entry of each existing object."""

    def append(self, entries: Sequence[Entry]) -> None:
        """Store all of `entries` or none. They survive a crash once this returns. Raises StorageError."""

    def close(self) -> None: ...
