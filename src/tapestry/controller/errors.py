"""Errors that reconcilers raise."""


class Terminal(Exception):
    """An error that a retry cannot fix: the key waits for a change.  `reason` is used in events and metrics."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class NotLeading(Exception):
    """A write was rejected because this process is no longer the leader."""
