"""Functions of lists and of sets."""

from itertools import pairwise
from typing import Any

from tapestry.kube.cel.errors import EvaluationError, Meter
from tapestry.kube.cel.functions import declared
from tapestry.kube.cel.library.operators import natural, whole
from tapestry.kube.cel.values import NOTHING, Maybe, UInt, equal

COMPARABLE = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")


def charged(meter: Meter, *lists: list[Any]) -> None:
    meter.charge(sum(map(len, lists)) / 10)


@declared(*(f"list({each}).isSorted() -> bool" for each in COMPARABLE), metered=True)
def is_sorted(meter: Meter, items: list[Any]) -> bool:
    charged(meter, items)
    return all(one <= other for one, other in pairwise(items))


@declared(*(f"list({each}).sum() -> {each}" for each in ("int", "uint", "double", "duration")), metered=True)
def total(meter: Meter, items: list[Any]) -> Any:
    charged(meter, items)
    if not items:
        return 0
    found = sum(items[1:], items[0])
    if isinstance(items[0], UInt):
        return natural(int(found))
    return whole(found) if isinstance(found, int) else found


@declared(*(f"list({each}).max() -> {each}" for each in COMPARABLE), metered=True)
def greatest(meter: Meter, items: list[Any]) -> Any:
    charged(meter, items)
    if not items:
        raise EvaluationError("max called on empty list")
    return max(items)


@declared(*(f"list({each}).min() -> {each}" for each in COMPARABLE), metered=True)
def least(meter: Meter, items: list[Any]) -> Any:
    charged(meter, items)
    if not items:
        raise EvaluationError("min called on empty list")
    return min(items)


@declared("list(A).indexOf(A) -> int", metered=True)
def index_of(meter: Meter, items: list[Any], value: Any) -> int:
    charged(meter, items)
    return next((at for at, each in enumerate(items) if equal(each, value, meter)), -1)


@declared("list(A).lastIndexOf(A) -> int", metered=True)
def last_index_of(meter: Meter, items: list[Any], value: Any) -> int:
    charged(meter, items)
    return next((at for at in range(len(items) - 1, -1, -1) if equal(items[at], value, meter)), -1)


@declared("list(A).first() -> optional_type(A)")
def first(items: list[Any]) -> Maybe:
    return Maybe(items[0]) if items else NOTHING


@declared("list(A).last() -> optional_type(A)")
def last(items: list[Any]) -> Maybe:
    return Maybe(items[-1]) if items else NOTHING


# -- sets


def contains(meter: Meter, items: list[Any], wanted: list[Any]) -> bool:
    meter.charge(len(items) * len(wanted) / 10)
    return all(any(equal(each, item, meter) for item in items) for each in wanted)


@declared("sets.contains(list(A), list(A)) -> bool", metered=True)
def set_contains(meter: Meter, items: list[Any], wanted: list[Any]) -> bool:
    return contains(meter, items, wanted)


@declared("sets.equivalent(list(A), list(A)) -> bool", metered=True)
def set_equivalent(meter: Meter, items: list[Any], wanted: list[Any]) -> bool:
    return contains(meter, items, wanted) and contains(meter, wanted, items)


@declared("sets.intersects(list(A), list(A)) -> bool", metered=True)
def set_intersects(meter: Meter, items: list[Any], others: list[Any]) -> bool:
    meter.charge(len(items) * len(others) / 10)
    return any(any(equal(each, item, meter) for item in items) for each in others)
