"""Errors that keep a ClusterBinding from being ready: reason, message and retry policy."""

from enum import Enum


class RetryPolicy(Enum):
    """Time of the next attempt."""

    ON_CHANGE = "when something that we watch changes"
    ON_RECHECK = "periodically: the fix happens where we do not watch"
    BACKOFF = "with backoff"


class BindingError(Exception):
    """An error of one aspect of a binding.

    `reason` is used in conditions, events and metrics.  `condition` names the aspect; it is empty for an error in the
    binding's own spec.
    """

    def __init__(
        self, reason: str, message: str, *, condition: str = "", retry: RetryPolicy = RetryPolicy.ON_CHANGE
    ) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.condition = condition
        self.retry = retry
