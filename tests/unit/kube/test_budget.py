"""What one request may cost, and until when."""

import pytest

from tapestry.kube.budget import BUDGET, SLICE, Budget, OutOfTime, OverBudget, OverSlice, charge, checkpoint


def test_without_a_budget_work_is_free() -> None:
    charge(10**12)
    checkpoint()


def test_work_beyond_the_budget_is_refused() -> None:
    budget = Budget(lambda: False, left=100)
    budget.charge(100)
    with pytest.raises(OverBudget):
        budget.charge(1)


def test_work_stops_when_its_time_is_over() -> None:
    is_over = False
    budget = Budget(lambda: is_over)
    token = BUDGET.set(budget)
    try:
        checkpoint()
        is_over = True
        with pytest.raises(OutOfTime):
            checkpoint()
        with pytest.raises(OutOfTime):
            charge(10_000)
    finally:
        BUDGET.reset(token)


def test_a_slice_ends_before_the_budget() -> None:
    budget = Budget(lambda: False)
    with budget, pytest.raises(OverSlice):
        budget.charge(SLICE + 1)
    budget.charge(SLICE + 1)
