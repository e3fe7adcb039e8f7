"""What keeps a binding from being ready: one word, a sentence, and what there is to wait for."""

from enum import Enum


class RetryPolicy(Enum):
    """When it is worth looking again."""

    ON_CHANGE = "when something that we watch changes"
    ON_RECHECK = "now and then: what would help happens where we do not watch"
    BACKOFF = "soon, then less and less often"


class BindingError(Exception):
    """`reason` is the word for conditions, events and metrics; `condition` the aspect of the binding that it is about.

    A fault that is about no aspect (`condition` is empty) is one of the binding's own spec.
    """

    def __init__(
        self, reason: str, message: str, *, condition: str = "", retry: RetryPolicy = RetryPolicy.ON_CHANGE
    ) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.condition = condition
        self.retry = retry
