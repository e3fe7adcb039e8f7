"""Tests of request budgets."""

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


def test_work_without_budget_is_unlimited() -> None:
    charge(10**12)
    checkpoint()


def test_charge_beyond_budget_raises() -> None:
    budget = Budget(lambda: False, remaining=100)
    budget.charge(100)
    with pytest.raises(BudgetExceeded):
        budget.charge(1)


def test_work_stops_after_deadline() -> None:
    is_expired = False
    budget = Budget(lambda: is_expired)
    token = CURRENT_BUDGET.set(budget)
    try:
        checkpoint()
        is_expired = True
        with pytest.raises(DeadlineExceeded):
            checkpoint()
        with pytest.raises(DeadlineExceeded):
            charge(10_000)
    finally:
        CURRENT_BUDGET.reset(token)


def test_slice_ends_before_budget() -> None:
    budget = Budget(lambda: False)
    with budget, pytest.raises(SliceExceeded):
        budget.charge(SLICE_UNITS + 1)
    budget.charge(SLICE_UNITS + 1)
