"""Budgets that limit the work and the time of one request.

Code whose cost depends on the input calls `charge` before it does the work, or `checkpoint` from time to time. Both
raise if the request has used up its budget or its time. Both do nothing without a budget. A budget belongs to a context
(`contextvars`), so it also covers threads that work for the request.
"""

from collections.abc import Callable
from contextvars import ContextVar

MAX_UNITS = 10_000_000
"""Units of work that one request may use. A unit is about a microsecond."""
SLICE_UNITS = 10_000
"""Units that a request may use before other requests must be served."""
UNITS_PER_CLOCK_CHECK = 1_000
"""Units between two checks of the deadline."""


class BudgetExceeded(Exception):
    """The request needs more work than one request may use."""


class SliceExceeded(Exception):
    """The work blocks other requests for too long. The caller must repeat it in a worker."""


class DeadlineExceeded(Exception):
    """The deadline of the request has passed, or the client has disconnected."""


class Budget:
    """Remaining work of one request. Without `is_expired` there is no deadline."""

    __slots__ = ("_floor", "_unchecked", "is_expired", "remaining")

    def __init__(self, is_expired: Callable[[], bool] | None = None, remaining: int = MAX_UNITS) -> None:
        self.remaining = remaining
        self._floor = 0
        """Value of `remaining` at which the current slice ends."""
        self.is_expired = is_expired
        self._unchecked = 0

    def __enter__(self) -> None:
        """Start a slice: `charge` raises SliceExceeded after SLICE_UNITS units."""
        self._floor = max(self.remaining - SLICE_UNITS, 0)

    def __exit__(self, *_: object) -> None:
        self._floor = 0

    def charge(self, units: int) -> None:
        self.remaining -= units
        if self.remaining < self._floor:
            raise BudgetExceeded if self.remaining < 0 else SliceExceeded
        self._unchecked += units
        if self._unchecked >= UNITS_PER_CLOCK_CHECK:
            self.check()

    def check(self) -> None:
        self._unchecked = 0
        if self.is_expired is not None and self.is_expired():
            raise DeadlineExceeded


CURRENT_BUDGET: ContextVar[Budget | None] = ContextVar("BUDGET", default=None)


def charge(units: int) -> None:
    """Take units from the current budget. Raise BudgetExceeded, SliceExceeded or DeadlineExceeded."""
    budget = CURRENT_BUDGET.get()
    if budget is not None:
        budget.charge(units)


def checkpoint() -> None:
    """Raise DeadlineExceeded if the deadline of the request has passed."""
    budget = CURRENT_BUDGET.get()
    if budget is not None:
        budget.check()
