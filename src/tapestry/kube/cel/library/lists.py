"""CEL functions on lists and sets."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from tapestry.kube.cel.errors import EvaluationError, Meter
from tapestry.kube.cel.functions import cel_function, register_functions
from tapestry.kube.cel.library.operators import checked_int, checked_uint
from tapestry.kube.cel.values import OPTIONAL_NONE, OptionalValue, UInt, is_equal

COMPARABLE = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")


def charge_for_lists(meter: Meter, *lists: list[Any]) -> None:
    meter.charge(sum(map(len, lists)) / 10)


@cel_function(*(f"list({each}).isSorted() -> bool" for each in COMPARABLE), metered=True)
def is_sorted(meter: Meter, items: list[Any]) -> bool:
    charge_for_lists(meter, items)
    return all(left <= right for left, right in pairwise(items))


@cel_function(*(f"list({each}).sum() -> {each}" for each in ("int", "uint", "double", "duration")), metered=True)
def list_sum(meter: Meter, items: list[Any]) -> Any:
    charge_for_lists(meter, items)
    if not items:
        return 0
    total = sum(items[1:], items[0])
    if isinstance(items[0], UInt):
        return checked_uint(int(total))
    return checked_int(total) if isinstance(total, int) else total


def declare_extreme(name: str, select: Callable[[list[Any]], Any]) -> None:
    @cel_function(*(f"list({each}).{name}() -> {each}" for each in COMPARABLE), metered=True)
    def run(meter: Meter, items: list[Any]) -> Any:
        charge_for_lists(meter, items)
        if not items:
            raise EvaluationError(f"{name} called on empty list")
        return select(items)


declare_extreme("max", max)
declare_extreme("min", min)


@cel_function("list(A).indexOf(A) -> int", metered=True)
def index_of(meter: Meter, items: list[Any], value: Any) -> int:
    charge_for_lists(meter, items)
    return next((at for at, each in enumerate(items) if is_equal(each, value, meter)), -1)


@cel_function("list(A).lastIndexOf(A) -> int", metered=True)
def last_index_of(meter: Meter, items: list[Any], value: Any) -> int:
    charge_for_lists(meter, items)
    return next((at for at in range(len(items) - 1, -1, -1) if is_equal(items[at], value, meter)), -1)


# -- sets


def contains_all(meter: Meter, items: list[Any], required: list[Any]) -> bool:
    meter.charge(len(items) * len(required) / 10)
    return all(any(is_equal(each, item, meter) for item in items) for each in required)


@cel_function("sets.contains(list(A), list(A)) -> bool", metered=True)
def set_contains(meter: Meter, items: list[Any], required: list[Any]) -> bool:
    return contains_all(meter, items, required)


@cel_function("sets.equivalent(list(A), list(A)) -> bool", metered=True)
def set_equivalent(meter: Meter, items: list[Any], required: list[Any]) -> bool:
    return contains_all(meter, items, required) and contains_all(meter, required, items)


@cel_function("sets.intersects(list(A), list(A)) -> bool", metered=True)
def set_intersects(meter: Meter, items: list[Any], others: list[Any]) -> bool:
    meter.charge(len(items) * len(others) / 10)
    return any(any(is_equal(each, item, meter) for item in items) for each in others)


register_functions(
    {
        "list(A).first() -> optional_type(A)": lambda items: OptionalValue(items[0]) if items else OPTIONAL_NONE,
        "list(A).last() -> optional_type(A)": lambda items: OptionalValue(items[-1]) if items else OPTIONAL_NONE,
    }
)
