"""CEL operators: arithmetic with overflow checks, equality, order, membership and optionals."""

from collections.abc import Callable
from operator import ge, gt, le, lt
from typing import Any

from tapestry.kube.cel.errors import EvaluationError, Meter
from tapestry.kube.cel.functions import cel_function, register_functions
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


def quotient(left: int, right: int, message: str) -> int:
    """Return the quotient rounded towards zero."""
    if not right:
        raise EvaluationError(message)
    magnitude = abs(left) // abs(right)
    return magnitude if (left < 0) == (right < 0) else -magnitude


@cel_function("_%_(uint, uint) -> uint")
def remainder_uint(left: int, right: int) -> UInt:
    return UInt(int(left) - int(right) * quotient(int(left), int(right), "modulus by zero"))


@cel_function("_/_(double, double) -> double")
def divide_double(left: float, right: float) -> float:
    if right:
        return left / right
    if not left or left != left:
        return float("nan")
    return float("inf") if (left > 0) == (str(right)[0] != "-") else float("-inf")


# -- concatenation


@cel_function("_+_(string, string) -> string", "_+_(bytes, bytes) -> bytes", metered=True)
def concatenate(meter: Meter, left: Any, right: Any) -> Any:
    meter.charge((len(left) + len(right)) / 10)
    return left + right


@cel_function("_+_(list(A), list(A)) -> list(A)", metered=True)
def concatenate_lists(meter: Meter, left: list[Any], right: list[Any]) -> list[Any]:
    meter.charge((len(left) + len(right)) / 10)
    if isinstance(left, SetList | MapList):
        meter.charge(len(left) * len(right))
        return left.merge(right)
    return [*left, *right]


# -- equality and order


@cel_function("_==_(A, A) -> bool", metered=True)
def equals(meter: Meter, left: Any, right: Any) -> bool:
    return is_equal(left, right, meter)


@cel_function("_!=_(A, A) -> bool", metered=True)
def not_equals(meter: Meter, left: Any, right: Any) -> bool:
    return not is_equal(left, right, meter)


ORDERED_TYPES = (
    *("bool", "string", "bytes", "timestamp", "duration"),
    *("int", "uint", "double"),
)
COMPARABLE_PAIRS = [
    *((each, each) for each in ORDERED_TYPES),
    *((left, right) for left in ("int", "uint", "double") for right in ("int", "uint", "double") if left != right),
]


def declare_comparison(sign: str, compare: Callable[[Any, Any], Any]) -> None:
    cel_function(*(f"_{sign}_({left}, {right}) -> bool" for left, right in COMPARABLE_PAIRS))(compare)


for _sign, _compare in (("<", lt), ("<=", le), (">", gt), (">=", ge)):
    declare_comparison(_sign, _compare)


# -- membership


@cel_function("@in(A, list(A)) -> bool", metered=True)
def is_in_list(meter: Meter, value: Any, container: list[Any]) -> bool:
    meter.charge(len(container) / 10)
    return any(is_equal(value, each, meter) for each in container)


@cel_function("_[_](list(A), int) -> A")
def list_item(container: list[Any], index: int) -> Any:
    if 0 <= index < len(container):
        return container[index]
    raise EvaluationError(f"index out of bounds: {index}")


@cel_function("_[_](map(A, B), A) -> B")
def map_entry(container: dict[Any, Any], key: Any) -> Any:
    try:
        return container[key]
    except KeyError:
        raise EvaluationError(f"no such key: {key}") from None


@cel_function("_[?_](list(A), int) -> optional_type(A)")
def optional_list_item(container: list[Any], index: int) -> OptionalValue:
    return OptionalValue(container[index]) if 0 <= index < len(container) else OPTIONAL_NONE


@cel_function("_[?_](map(A, B), A) -> optional_type(B)")
def optional_map_entry(container: dict[Any, Any], key: Any) -> OptionalValue:
    return OptionalValue(container[key]) if key in container else OPTIONAL_NONE


@cel_function(
    "_[?_](optional_type(list(A)), int) -> optional_type(A)",
    "_[_](optional_type(list(A)), int) -> optional_type(A)",
    "_[?_](optional_type(map(A, B)), A) -> optional_type(B)",
    "_[_](optional_type(map(A, B)), A) -> optional_type(B)",
)
def optional_index(container: OptionalValue, key: Any) -> OptionalValue:
    if not container.has_value:
        return OPTIONAL_NONE
    return (
        optional_list_item(container.value, key)
        if isinstance(container.value, list)
        else optional_map_entry(container.value, key)
    )


# -- optionals


@cel_function("optional.ofNonZeroValue(A) -> optional_type(A)")
def optional_of_non_zero(value: Any) -> OptionalValue:
    return OPTIONAL_NONE if is_zero_value(value) else OptionalValue(value)


@cel_function("optional_type(A).value() -> A")
def optional_value(value: OptionalValue) -> Any:
    if value.has_value:
        return value.value
    raise EvaluationError("optional.none() dereference")


@cel_function("optional_type(A).or(optional_type(A)) -> optional_type(A)")
def optional_or(value: OptionalValue, right: OptionalValue) -> OptionalValue:
    return value if value.has_value else right


# -- size and type


@cel_function(
    *(f"size({each}) -> int" for each in ("string", "bytes", "list(A)", "map(A, B)")),
    *(f"{each}.size() -> int" for each in ("string", "bytes", "list(A)", "map(A, B)")),
)
def size(value: Any) -> int:
    return len(value)


register_functions(
    {
        "_+_(int, int) -> int": lambda left, right: checked_int(left + right),
        "_-_(int, int) -> int": lambda left, right: checked_int(left - right),
        "_*_(int, int) -> int": lambda left, right: checked_int(left * right),
        "_/_(int, int) -> int": lambda left, right: checked_int(quotient(left, right, "division by zero")),
        "_%_(int, int) -> int": lambda left, right: left - right * quotient(left, right, "modulus by zero"),
        "_+_(uint, uint) -> uint": lambda left, right: checked_uint(int(left) + int(right)),
        "_-_(uint, uint) -> uint": lambda left, right: checked_uint(int(left) - int(right)),
        "_*_(uint, uint) -> uint": lambda left, right: checked_uint(int(left) * int(right)),
        "_/_(uint, uint) -> uint": lambda left, right: UInt(quotient(int(left), int(right), "division by zero")),
        "_+_(double, double) -> double": lambda left, right: left + right,
        "_-_(double, double) -> double": lambda left, right: left - right,
        "_*_(double, double) -> double": lambda left, right: left * right,
        "-_(int) -> int": lambda value: checked_int(-value),
        "-_(double) -> double": lambda value: -value,
        "!_(bool) -> bool": lambda value: not value,
        "@in(A, map(A, B)) -> bool": lambda value, container: not isinstance(value, list | dict) and value in container,
        "optional.of(A) -> optional_type(A)": lambda value: OptionalValue(value),
        "optional.none() -> optional_type(A)": lambda: OPTIONAL_NONE,
        "optional_type(A).hasValue() -> bool": lambda value: value.has_value,
        "optional_type(A).orValue(A) -> A": lambda value, right: value.value if value.has_value else right,
        "type(A) -> type(A)": lambda value: TypeValue(type_name_of(value)),
        "dyn(A) -> dyn": lambda value: value,
    }
)
