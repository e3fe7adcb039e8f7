"""Values: those of JSON as Python has them, and the few kinds that Python lacks.

`kind_of` is the name of a value's type.  Equality is that of CEL: numbers are equal by their amount, whatever their
types, a boolean is no number, and lists that Kubernetes calls sets or maps are equal in any order.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from tapestry.kube.cel.errors import Meter

UNLIMITED_METER = Meter(2**62)
"""For those who compare what they have measured."""
INT_RANGE = range(-(2**63), 2**63)
UINT_RANGE = range(2**64)


class UInt(int):
    """A number that is not negative by its type."""


@dataclass(frozen=True, slots=True)
class OptionalValue:
    """An optional value."""

    kind: ClassVar[str] = "optional_type"
    value: Any = None
    is_there: bool = True


OPTIONAL_NONE = OptionalValue(None, is_there=False)


@dataclass(frozen=True, slots=True)
class TypeValue:
    """What `type(x)` gives, and what `int` and its like stand for in an expression."""

    kind: ClassVar[str] = "type"
    name: str


class SetList(list[Any]):
    """A list with `x-kubernetes-list-type: set`."""

    def merge(self, other: list[Any]) -> "SetList":
        return SetList([*self, *(each for each in other if not any(is_equal(each, mine) for mine in self))])


class MapList(list[Any]):
    """A list with `x-kubernetes-list-type: map`."""

    __slots__ = ("keys",)

    def __init__(self, items: Iterable[Any], keys: tuple[str, ...]) -> None:
        super().__init__(items)
        self.keys = keys

    def item_key(self, item: Any) -> tuple[Any, ...]:
        return tuple(item.get(key) for key in self.keys)

    def merge(self, other: list[Any]) -> "MapList":
        new = {self.item_key(each): each for each in other}
        kept = [new.pop(self.item_key(each), each) for each in self]
        return MapList([*kept, *new.values()], self.keys)


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
    found = TYPE_NAMES_BY_CLASS.get(type(value))
    if found is not None:
        return found
    if isinstance(value, dict):
        return "map"
    named: str = value.kind
    return named


def is_equal(one: Any, other: Any, meter: Meter = UNLIMITED_METER) -> bool:
    """Charges for every element: a list can have one and the same list in it a thousand times."""
    kind = type_name_of(one)
    if kind != type_name_of(other):
        return kind in NUMERIC_TYPES and type_name_of(other) in NUMERIC_TYPES and bool(one == other)
    if kind == "list":
        return is_equal_list(one, other, meter)
    if kind == "map":
        meter.charge(len(one))
        return len(one) == len(other) and all(
            key in other and is_equal(each, other[key], meter) for key, each in one.items()
        )
    if kind == "optional_type":
        return one.is_there == other.is_there and is_equal(one.value, other.value, meter)
    return bool(one == other)


def is_equal_list(one: list[Any], other: list[Any], meter: Meter) -> bool:
    if len(one) != len(other):
        return False
    meter.charge(len(one))
    unordered = one if isinstance(one, SetList | MapList) else other
    if isinstance(unordered, SetList):
        meter.charge(len(one) * len(other) / 10)
        return all(any(is_equal(each, mine, meter) for mine in other) for each in one)
    if isinstance(unordered, MapList):
        theirs = {unordered.item_key(each): each for each in other}
        return all((key := unordered.item_key(each)) in theirs and is_equal(each, theirs[key], meter) for each in one)
    return all(is_equal(each, mine, meter) for each, mine in zip(one, other, strict=True))


def is_zero_value(value: Any) -> bool:
    """Whether it is what its type begins with: 0, "", [], null."""
    return value is None or (type_name_of(value) in TYPES_WITH_ZERO_VALUE and not value)


TYPES_WITH_ZERO_VALUE = frozenset({"bool", "int", "uint", "double", "string", "bytes", "list", "map", "duration"})
