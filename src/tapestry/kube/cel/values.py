"""CEL values: JSON values as Python has them, and classes for the missing types.

`type_name_of` is the name of a value's type. Equality follows CEL. Numbers of different types are equal if their values
are. A boolean is not a number. Lists with the Kubernetes type set or map are equal in any order.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from tapestry.kube.cel.errors import Meter

UNLIMITED_METER = Meter(2**62)
"""Meter for comparisons whose cost was charged before."""
INT_RANGE = range(-(2**63), 2**63)
UINT_RANGE = range(2**64)


class UInt(int):
    """Unsigned 64-bit integer."""


@dataclass(frozen=True, slots=True)
class OptionalValue:
    kind: ClassVar[str] = "optional_type"
    value: Any = None
    has_value: bool = True


OPTIONAL_NONE = OptionalValue(None, has_value=False)


@dataclass(frozen=True, slots=True)
class TypeValue:
    """Result of `type(x)`, and the value of a type name in an expression."""

    kind: ClassVar[str] = "type"
    name: str


class SetList(list[Any]):
    def merge(self, other: list[Any]) -> "SetList":
        return SetList([*self, *(each for each in other if not any(is_equal(each, item) for item in self))])


class MapList(list[Any]):
    __slots__ = ("keys",)

    def __init__(self, items: Iterable[Any], keys: tuple[str, ...]) -> None:
        super().__init__(items)
        self.keys = keys

    def item_key(self, item: Any) -> tuple[Any, ...]:
        return tuple(item.get(key) for key in self.keys)

    def merge(self, other: list[Any]) -> "MapList":
        new = {self.item_key(each): each for each in other}
        merged = [new.pop(self.item_key(each), each) for each in self]
        return MapList([*merged, *new.values()], self.keys)


TYPE_NAMES_BY_CLASS: dict[type, str] = {
    bool: "bool",
    int: "int",
    UInt: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null_type",
    list: "list",
    SetList: "list",
    MapList: "list",
    dict: "map",
    datetime: "timestamp",
    timedelta: "duration",
}
NUMERIC_TYPES = frozenset({"int", "uint", "double"})


def type_name_of(value: Any) -> str:
    name = TYPE_NAMES_BY_CLASS.get(type(value))
    if name is not None:
        return name
    if isinstance(value, dict):
        return "map"
    kind: str = value.kind
    return kind


def is_equal(left: Any, right: Any, meter: Meter = UNLIMITED_METER) -> bool:
    """Compare two values. Charge for every element, because one list can contain the same list many times."""
    kind = type_name_of(left)
    if kind != type_name_of(right):
        return kind in NUMERIC_TYPES and type_name_of(right) in NUMERIC_TYPES and bool(left == right)
    if kind == "list":
        return is_equal_list(left, right, meter)
    if kind == "map":
        meter.charge(len(left))
        return len(left) == len(right) and all(
            key in right and is_equal(each, right[key], meter) for key, each in left.items()
        )
    if kind == "optional_type":
        return left.has_value == right.has_value and is_equal(left.value, right.value, meter)
    return bool(left == right)


def is_equal_list(left: list[Any], right: list[Any], meter: Meter) -> bool:
    if len(left) != len(right):
        return False
    meter.charge(len(left))
    unordered = left if isinstance(left, SetList | MapList) else right
    if isinstance(unordered, SetList):
        meter.charge(len(left) * len(right) / 10)
        return all(any(is_equal(each, item, meter) for item in right) for each in left)
    if isinstance(unordered, MapList):
        by_key = {unordered.item_key(each): each for each in right}
        return all((key := unordered.item_key(each)) in by_key and is_equal(each, by_key[key], meter) for each in left)
    return all(is_equal(each, item, meter) for each, item in zip(left, right, strict=True))


def is_zero_value(value: Any) -> bool:
    """Return True for the zero value of a type: 0, "", [], null."""
    return value is None or (type_name_of(value) in TYPES_WITH_ZERO_VALUE and not value)


TYPES_WITH_ZERO_VALUE = frozenset({"bool", "int", "uint", "double", "string", "bytes", "list", "map", "duration"})
