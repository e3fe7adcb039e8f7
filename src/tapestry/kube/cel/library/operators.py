"""Operators: numbers that know their bounds, equality, order, membership, and what may be absent."""

from collections.abc import Callable
from operator import ge, gt, le, lt
from typing import Any

from tapestry.kube.cel.errors import EvaluationError, Meter
from tapestry.kube.cel.functions import cel_function
from tapestry.kube.cel.values import (
    INT_RANGE,
    OPTIONAL_NONE,
    UINT_RANGE,
    MapList,
    OptionalValue,
    SetList,
    TypeValue,
    UInt,
    is_equal,
    is_zero_value,
    type_name_of,
)


def checked_int(value: int) -> int:
    if value in INT_RANGE:
        return value
    raise EvaluationError("integer overflow")


def checked_uint(value: int) -> UInt:
    if value in UINT_RANGE:
        return UInt(value)
    raise EvaluationError("unsigned integer overflow")


# -- arithmetic


@cel_function("_+_(int, int) -> int")
def add(one: int, other: int) -> int:
    return checked_int(one + other)


@cel_function("_-_(int, int) -> int")
def subtract(one: int, other: int) -> int:
    return checked_int(one - other)


@cel_function("_*_(int, int) -> int")
def multiply(one: int, other: int) -> int:
    return checked_int(one * other)


@cel_function("_/_(int, int) -> int")
def divide(one: int, other: int) -> int:
    return checked_int(quotient(one, other, "division by zero"))


@cel_function("_%_(int, int) -> int")
def remainder(one: int, other: int) -> int:
    return one - other * quotient(one, other, "modulus by zero")


def quotient(one: int, other: int, message: str) -> int:
    """Rounded towards zero."""
    if not other:
        raise EvaluationError(message)
    found = abs(one) // abs(other)
    return found if (one < 0) == (other < 0) else -found


@cel_function("_+_(uint, uint) -> uint")
def add_uint(one: int, other: int) -> UInt:
    return checked_uint(int(one) + int(other))


@cel_function("_-_(uint, uint) -> uint")
def subtract_uint(one: int, other: int) -> UInt:
    return checked_uint(int(one) - int(other))


@cel_function("_*_(uint, uint) -> uint")
def multiply_uint(one: int, other: int) -> UInt:
    return checked_uint(int(one) * int(other))


@cel_function("_/_(uint, uint) -> uint")
def divide_uint(one: int, other: int) -> UInt:
    return UInt(quotient(int(one), int(other), "division by zero"))


@cel_function("_%_(uint, uint) -> uint")
def remainder_uint(one: int, other: int) -> UInt:
    return UInt(int(one) - int(other) * quotient(int(one), int(other), "modulus by zero"))


@cel_function("_+_(double, double) -> double")
def add_double(one: float, other: float) -> float:
    return one + other


@cel_function("_-_(double, double) -> double")
def subtract_double(one: float, other: float) -> float:
    return one - other


@cel_function("_*_(double, double) -> double")
def multiply_double(one: float, other: float) -> float:
    return one * other


@cel_function("_/_(double, double) -> double")
def divide_double(one: float, other: float) -> float:
    if other:
        return one / other
    if not one or one != one:
        return float("nan")
    return float("inf") if (one > 0) == (str(other)[0] != "-") else float("-inf")


@cel_function("-_(int) -> int")
def negate(value: int) -> int:
    return checked_int(-value)


@cel_function("-_(double) -> double")
def negate_double(value: float) -> float:
    return -value


@cel_function("!_(bool) -> bool")
def logical_not(value: bool) -> bool:
    return not value


# -- texts and lists, put together


@cel_function("_+_(string, string) -> string", "_+_(bytes, bytes) -> bytes", metered=True)
def concatenate(meter: Meter, one: Any, other: Any) -> Any:
    meter.charge((len(one) + len(other)) / 10)
    return one + other


@cel_function("_+_(list(A), list(A)) -> list(A)", metered=True)
def concatenate_lists(meter: Meter, one: list[Any], other: list[Any]) -> list[Any]:
    meter.charge((len(one) + len(other)) / 10)
    if isinstance(one, SetList | MapList):
        meter.charge(len(one) * len(other))
        return one.merge(other)
    return [*one, *other]


# -- equality and order


@cel_function("_==_(A, A) -> bool", metered=True)
def equals(meter: Meter, one: Any, other: Any) -> bool:
    return is_equal(one, other, meter)


@cel_function("_!=_(A, A) -> bool", metered=True)
def not_equals(meter: Meter, one: Any, other: Any) -> bool:
    return not is_equal(one, other, meter)


ORDERED_TYPES = (
    *("bool", "string", "bytes", "timestamp", "duration"),
    *("int", "uint", "double"),
)
COMPARABLE_PAIRS = [
    *((each, each) for each in ORDERED_TYPES),
    *((one, other) for one in ("int", "uint", "double") for other in ("int", "uint", "double") if one != other),
]


def declare_comparison(sign: str, compare: Callable[[Any, Any], Any]) -> None:
    cel_function(*(f"_{sign}_({one}, {other}) -> bool" for one, other in COMPARABLE_PAIRS))(compare)


for _sign, _compare in (("<", lt), ("<=", le), (">", gt), (">=", ge)):
    declare_comparison(_sign, _compare)


# -- membership


@cel_function("@in(A, list(A)) -> bool", metered=True)
def is_in_list(meter: Meter, value: Any, within: list[Any]) -> bool:
    meter.charge(len(within) / 10)
    return any(is_equal(value, each, meter) for each in within)


@cel_function("@in(A, map(A, B)) -> bool")
def is_in_map(value: Any, within: dict[Any, Any]) -> bool:
    return not isinstance(value, list | dict) and value in within


@cel_function("_[_](list(A), int) -> A")
def list_item(within: list[Any], at: int) -> Any:
    if 0 <= at < len(within):
        return within[at]
    raise EvaluationError(f"index out of bounds: {at}")


@cel_function("_[_](map(A, B), A) -> B")
def map_entry(within: dict[Any, Any], key: Any) -> Any:
    try:
        return within[key]
    except KeyError:
        raise EvaluationError(f"no such key: {key}") from None


@cel_function("_[?_](list(A), int) -> optional_type(A)")
def optional_list_item(within: list[Any], at: int) -> OptionalValue:
    return OptionalValue(within[at]) if 0 <= at < len(within) else OPTIONAL_NONE


@cel_function("_[?_](map(A, B), A) -> optional_type(B)")
def optional_map_entry(within: dict[Any, Any], key: Any) -> OptionalValue:
    return OptionalValue(within[key]) if key in within else OPTIONAL_NONE


@cel_function(
    "_[?_](optional_type(list(A)), int) -> optional_type(A)",
    "_[_](optional_type(list(A)), int) -> optional_type(A)",
    "_[?_](optional_type(map(A, B)), A) -> optional_type(B)",
    "_[_](optional_type(map(A, B)), A) -> optional_type(B)",
)
def optional_index(within: OptionalValue, key: Any) -> OptionalValue:
    if not within.is_there:
        return OPTIONAL_NONE
    return (
        optional_list_item(within.value, key)
        if isinstance(within.value, list)
        else optional_map_entry(within.value, key)
    )


# -- what may be absent


@cel_function("optional.of(A) -> optional_type(A)")
def optional_of_value(value: Any) -> OptionalValue:
    return OptionalValue(value)


@cel_function("optional.ofNonZeroValue(A) -> optional_type(A)")
def optional_of_non_zero(value: Any) -> OptionalValue:
    return OPTIONAL_NONE if is_zero_value(value) else OptionalValue(value)


@cel_function("optional.none() -> optional_type(A)")
def optional_none() -> OptionalValue:
    return OPTIONAL_NONE


@cel_function("optional_type(A).hasValue() -> bool")
def optional_has_value(value: OptionalValue) -> bool:
    return value.is_there


@cel_function("optional_type(A).value() -> A")
def optional_value(value: OptionalValue) -> Any:
    if value.is_there:
        return value.value
    raise EvaluationError("optional.none() dereference")


@cel_function("optional_type(A).or(optional_type(A)) -> optional_type(A)")
def optional_or(value: OptionalValue, other: OptionalValue) -> OptionalValue:
    return value if value.is_there else other


@cel_function("optional_type(A).orValue(A) -> A")
def optional_or_value(value: OptionalValue, other: Any) -> Any:
    return value.value if value.is_there else other


# -- size, and types


@cel_function(
    *(f"size({each}) -> int" for each in ("string", "bytes", "list(A)", "map(A, B)")),
    *(f"{each}.size() -> int" for each in ("string", "bytes", "list(A)", "map(A, B)")),
)
def size(value: Any) -> int:
    return len(value)


@cel_function("type(A) -> type(A)")
def type_value(value: Any) -> TypeValue:
    return TypeValue(type_name_of(value))


@cel_function("dyn(A) -> dyn")
def to_dyn(value: Any) -> Any:
    return value
