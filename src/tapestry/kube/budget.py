"""Budgets: how much work one request may cause, and until when.

Code whose cost a caller chooses calls `charge` with what it is about to do, or `checkpoint` now and then.  Both raise
when the request has used up its budget or its time, and do nothing where there is no budget.  A budget belongs to a
context (`contextvars`), so it also holds for the work that a thread does for the request.
"""

from collections.abc import Callable
from contextvars import ContextVar

MAX_UNITS = 10_000_000
"""Units of work that one request may cause.  A unit is about a microsecond."""
SLICE_UNITS = 10_000
"""Units that a request may cause while nobody else is served."""
UNITS_PER_CLOCK_CHECK = 1_000
"""Units after which a budget looks at the clock again."""


class BudgetExceeded(Exception):
    """The request asks for more work than one request may cause."""


class SliceExceeded(Exception):
    """The work takes longer than others should wait: it has to be done again where they need not wait for it."""


class DeadlineExceeded(Exception):
    """The time of the request is over, or nobody waits for its answer any more."""


class Budget:
    """The work that one request may still cause.  Without `is_over`, it has all the time there is."""

    __slots__ = ("_floor", "_unchecked", "is_over", "left")

    def __init__(self, is_over: Callable[[], bool] | None = None, left: int = MAX_UNITS) -> None:
        self.left = left
        self._floor = 0
        """What is left when a slice is over."""
        self.is_over = is_over
        self._unchecked = 0

    def __enter__(self) -> None:
        """Begin a slice: `charge` raises OverSlice after so many units."""
        self._floor = max(self.left - SLICE_UNITS, 0)

    def __exit__(self, *_: object) -> None:
        self._floor = 0

    def charge(self, units: int) -> None:
        self.left -= units
        if self.left < self._floor:
            raise BudgetExceeded if self.left < 0 else SliceExceeded
        self._unchecked += units
        if self._unchecked >= UNITS_PER_CLOCK_CHECK:
            self.check()

    def check(self) -> None:
        self._unchecked = 0
        if self.is_over is not None and self.is_over():
            raise DeadlineExceeded


CURRENT_BUDGET: ContextVar[Budget | None] = ContextVar("BUDGET", default=None)
"""The budget of the request that is being served."""


def charge(units: int) -> None:
    """Take units from the budget; raises OverBudget or OutOfTime."""
    budget = CURRENT_BUDGET.get()
    if budget is not None:
        budget.charge(units)


def checkpoint() -> None:
    """Raise OutOfTime where the time of the request is over."""
    budget = CURRENT_BUDGET.get()
    if budget is not None:
        budget.check()
