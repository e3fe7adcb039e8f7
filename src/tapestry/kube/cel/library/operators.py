"""Operators: numbers that know their bounds, equality, order, membership, and what may be absent."""

from collections.abc import Callable
from operator import ge, gt, le, lt
from typing import Any

from tapestry.kube.cel.errors import EvaluationError, Meter
from tapestry.kube.cel.functions import declared
from tapestry.kube.cel.values import (
    INT_RANGE,
    NOTHING,
    UINT_RANGE,
    MapList,
    Maybe,
    SetList,
    TypeValue,
    UInt,
    equal,
    is_zero,
    kind_of,
)


def whole(value: int) -> int:
    if value in INT_RANGE:
        return value
    raise EvaluationError("integer overflow")


def natural(value: int) -> UInt:
    if value in UINT_RANGE:
        return UInt(value)
    raise EvaluationError("unsigned integer overflow")


# -- arithmetic


@declared("_+_(int, int) -> int")
def add(one: int, other: int) -> int:
    return whole(one + other)


@declared("_-_(int, int) -> int")
def subtract(one: int, other: int) -> int:
    return whole(one - other)


@declared("_*_(int, int) -> int")
def multiply(one: int, other: int) -> int:
    return whole(one * other)


@declared("_/_(int, int) -> int")
def divide(one: int, other: int) -> int:
    return whole(quotient(one, other, "division by zero"))


@declared("_%_(int, int) -> int")
def remainder(one: int, other: int) -> int:
    return one - other * quotient(one, other, "modulus by zero")


def quotient(one: int, other: int, complaint: str) -> int:
    """Rounded towards zero."""
    if not other:
        raise EvaluationError(complaint)
    found = abs(one) // abs(other)
    return found if (one < 0) == (other < 0) else -found


@declared("_+_(uint, uint) -> uint")
def add_natural(one: int, other: int) -> UInt:
    return natural(int(one) + int(other))


@declared("_-_(uint, uint) -> uint")
def subtract_natural(one: int, other: int) -> UInt:
    return natural(int(one) - int(other))


@declared("_*_(uint, uint) -> uint")
def multiply_natural(one: int, other: int) -> UInt:
    return natural(int(one) * int(other))


@declared("_/_(uint, uint) -> uint")
def divide_natural(one: int, other: int) -> UInt:
    return UInt(quotient(int(one), int(other), "division by zero"))


@declared("_%_(uint, uint) -> uint")
def remainder_natural(one: int, other: int) -> UInt:
    return UInt(int(one) - int(other) * quotient(int(one), int(other), "modulus by zero"))


@declared("_+_(double, double) -> double")
def add_real(one: float, other: float) -> float:
    return one + other


@declared("_-_(double, double) -> double")
def subtract_real(one: float, other: float) -> float:
    return one - other


@declared("_*_(double, double) -> double")
def multiply_real(one: float, other: float) -> float:
    return one * other


@declared("_/_(double, double) -> double")
def divide_real(one: float, other: float) -> float:
    if other:
        return one / other
    if not one or one != one:
        return float("nan")
    return float("inf") if (one > 0) == (str(other)[0] != "-") else float("-inf")


@declared("-_(int) -> int")
def negative(value: int) -> int:
    return whole(-value)


@declared("-_(double) -> double")
def negative_real(value: float) -> float:
    return -value


@declared("!_(bool) -> bool")
def negation(value: bool) -> bool:
    return not value


# -- texts and lists, put together


@declared("_+_(string, string) -> string", "_+_(bytes, bytes) -> bytes", metered=True)
def concatenate(meter: Meter, one: Any, other: Any) -> Any:
    meter.charge((len(one) + len(other)) / 10)
    return one + other


@declared("_+_(list(A), list(A)) -> list(A)", metered=True)
def concatenate_lists(meter: Meter, one: list[Any], other: list[Any]) -> list[Any]:
    meter.charge((len(one) + len(other)) / 10)
    if isinstance(one, SetList | MapList):
        meter.charge(len(one) * len(other))
        return one.merged(other)
    return [*one, *other]


# -- equality and order


@declared("_==_(A, A) -> bool", metered=True)
def equals(meter: Meter, one: Any, other: Any) -> bool:
    return equal(one, other, meter)


@declared("_!=_(A, A) -> bool", metered=True)
def differs(meter: Meter, one: Any, other: Any) -> bool:
    return not equal(one, other, meter)


ORDERED = (
    *("bool", "string", "bytes", "timestamp", "duration"),
    *("int", "uint", "double"),
)
PAIRS = [
    *((each, each) for each in ORDERED),
    *((one, other) for one in ("int", "uint", "double") for other in ("int", "uint", "double") if one != other),
]


def order(sign: str, compare: Callable[[Any, Any], Any]) -> None:
    declared(*(f"_{sign}_({one}, {other}) -> bool" for one, other in PAIRS))(compare)


for _sign, _compare in (("<", lt), ("<=", le), (">", gt), (">=", ge)):
    order(_sign, _compare)


# -- membership


@declared("@in(A, list(A)) -> bool", metered=True)
def is_in_list(meter: Meter, value: Any, within: list[Any]) -> bool:
    meter.charge(len(within) / 10)
    return any(equal(value, each, meter) for each in within)


@declared("@in(A, map(A, B)) -> bool")
def is_in_map(value: Any, within: dict[Any, Any]) -> bool:
    return not isinstance(value, list | dict) and value in within


@declared("_[_](list(A), int) -> A")
def item(within: list[Any], at: int) -> Any:
    if 0 <= at < len(within):
        return within[at]
    raise EvaluationError(f"index out of bounds: {at}")


@declared("_[_](map(A, B), A) -> B")
def entry(within: dict[Any, Any], key: Any) -> Any:
    try:
        return within[key]
    except KeyError:
        raise EvaluationError(f"no such key: {key}") from None


@declared("_[?_](list(A), int) -> optional_type(A)")
def item_if_there(within: list[Any], at: int) -> Maybe:
    return Maybe(within[at]) if 0 <= at < len(within) else NOTHING


@declared("_[?_](map(A, B), A) -> optional_type(B)")
def entry_if_there(within: dict[Any, Any], key: Any) -> Maybe:
    return Maybe(within[key]) if key in within else NOTHING


@declared(
    "_[?_](optional_type(list(A)), int) -> optional_type(A)",
    "_[_](optional_type(list(A)), int) -> optional_type(A)",
    "_[?_](optional_type(map(A, B)), A) -> optional_type(B)",
    "_[_](optional_type(map(A, B)), A) -> optional_type(B)",
)
def part_if_there(within: Maybe, key: Any) -> Maybe:
    if not within.is_there:
        return NOTHING
    return item_if_there(within.value, key) if isinstance(within.value, list) else entry_if_there(within.value, key)


# -- what may be absent


@declared("optional.of(A) -> optional_type(A)")
def present(value: Any) -> Maybe:
    return Maybe(value)


@declared("optional.ofNonZeroValue(A) -> optional_type(A)")
def present_if_set(value: Any) -> Maybe:
    return NOTHING if is_zero(value) else Maybe(value)


@declared("optional.none() -> optional_type(A)")
def absent() -> Maybe:
    return NOTHING


@declared("optional_type(A).hasValue() -> bool")
def is_present(value: Maybe) -> bool:
    return value.is_there


@declared("optional_type(A).value() -> A")
def value_of(value: Maybe) -> Any:
    if value.is_there:
        return value.value
    raise EvaluationError("optional.none() dereference")


@declared("optional_type(A).or(optional_type(A)) -> optional_type(A)")
def either(value: Maybe, other: Maybe) -> Maybe:
    return value if value.is_there else other


@declared("optional_type(A).orValue(A) -> A")
def value_or(value: Maybe, other: Any) -> Any:
    return value.value if value.is_there else other


# -- size, and types


@declared(
    *(f"size({each}) -> int" for each in ("string", "bytes", "list(A)", "map(A, B)")),
    *(f"{each}.size() -> int" for each in ("string", "bytes", "list(A)", "map(A, B)")),
)
def size(value: Any) -> int:
    return len(value)


@declared("type(A) -> type(A)")
def type_value(value: Any) -> TypeValue:
    return TypeValue(kind_of(value))


@declared("dyn(A) -> dyn")
def anything(value: Any) -> Any:
    return value
