"""Epochs of a store: only the process that took the latest one may write."""

from collections.abc import Callable
from dataclasses import dataclass

from tapestry.apiserver.core.store import StorageError


class EpochLost(StorageError):
    """Error if another process has taken the store, or its data was deleted. Nothing was written."""

    def __init__(self, message: str, current: int = 0) -> None:
        super().__init__(message)
        self.current = current
        """Epoch of the other process; 0 if it is not known."""


@dataclass(frozen=True)
class EpochFence:
    """The right of this process to be the only writer of a store, until another process takes a later epoch."""

    epoch: int
    is_valid: Callable[[], bool]
    """Return False if another process may have taken a later epoch already. Nothing is written then."""
