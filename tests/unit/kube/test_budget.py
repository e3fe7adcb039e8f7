"""What one request may cost, and until when."""

import pytest

from tapestry.kube.budget import (
    CURRENT_BUDGET,
    SLICE_UNITS,
    Budget,
    BudgetExceeded,
    DeadlineExceeded,
    SliceExceeded,
    charge,
    checkpoint,
)


def test_without_a_budget_work_is_free() -> None:
    charge(10**12)
    checkpoint()


def test_work_beyond_the_budget_is_refused() -> None:
    budget = Budget(lambda: False, left=100)
    budget.charge(100)
    with pytest.raises(BudgetExceeded):
        budget.charge(1)


def test_work_stops_when_its_time_is_over() -> None:
    is_over = False
    budget = Budget(lambda: is_over)
    token = CURRENT_BUDGET.set(budget)
    try:
        checkpoint()
        is_over = True
        with pytest.raises(DeadlineExceeded):
            checkpoint()
        with pytest.raises(DeadlineExceeded):
            charge(10_000)
    finally:
        CURRENT_BUDGET.reset(token)


def test_a_slice_ends_before_the_budget() -> None:
    budget = Budget(lambda: False)
    with budget, pytest.raises(SliceExceeded):
        budget.charge(SLICE_UNITS + 1)
    budget.charge(SLICE_UNITS + 1)
