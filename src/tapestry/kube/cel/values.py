"""Values: those of JSON as Python has them, and the few kinds that Python lacks.

`kind_of` is the name of a value's type.  Equality is that of CEL: numbers are equal by their amount, whatever their
types, a boolean is no number, and lists that Kubernetes calls sets or maps are equal in any order.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from tapestry.kube.cel.errors import Meter

FREE = Meter(2**62)
"""For those who compare what they have measured."""
INT_RANGE = range(-(2**63), 2**63)
UINT_RANGE = range(2**64)


class UInt(int):
    """A number that is not negative by its type."""


@dataclass(frozen=True, slots=True)
class Maybe:
    """An optional value."""

    kind: ClassVar[str] = "optional_type"
    value: Any = None
    is_there: bool = True


NOTHING = Maybe(None, is_there=False)


@dataclass(frozen=True, slots=True)
class TypeValue:
    """What `type(x)` gives, and what `int` and its like stand for in an expression."""

    kind: ClassVar[str] = "type"
    name: str


class SetList(list[Any]):
    """A list with `x-kubernetes-list-type: set`."""

    def merged(self, other: list[Any]) -> "SetList":
        return SetList([*self, *(each for each in other if not any(equal(each, mine) for mine in self))])


class MapList(list[Any]):
    """A list with `x-kubernetes-list-type: map`."""

    __slots__ = ("keys",)

    def __init__(self, items: Iterable[Any], keys: tuple[str, ...]) -> None:
        super().__init__(items)
        self.keys = keys

    def identity(self, item: Any) -> tuple[Any, ...]:
        return tuple(item.get(key) for key in self.keys)

    def merged(self, other: list[Any]) -> "MapList":
        new = {self.identity(each): each for each in other}
        kept = [new.pop(self.identity(each), each) for each in self]
        return MapList([*kept, *new.values()], self.keys)


KINDS: dict[type, str] = {
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
NUMBERS = frozenset({"int", "uint", "double"})


def kind_of(value: Any) -> str:
    found = KINDS.get(type(value))
    if found is not None:
        return found
    if isinstance(value, dict):
        return "map"
    named: str = value.kind
    return named


def equal(one: Any, other: Any, meter: Meter = FREE) -> bool:
    """Charges for every element: a list can have one and the same list in it a thousand times."""
    kind = kind_of(one)
    if kind != kind_of(other):
        return kind in NUMBERS and kind_of(other) in NUMBERS and bool(one == other)
    if kind == "list":
        return equal_lists(one, other, meter)
    if kind == "map":
        meter.charge(len(one))
        return len(one) == len(other) and all(
            key in other and equal(each, other[key], meter) for key, each in one.items()
        )
    if kind == "optional_type":
        return one.is_there == other.is_there and equal(one.value, other.value, meter)
    return bool(one == other)


def equal_lists(one: list[Any], other: list[Any], meter: Meter) -> bool:
    if len(one) != len(other):
        return False
    meter.charge(len(one))
    unordered = one if isinstance(one, SetList | MapList) else other
    if isinstance(unordered, SetList):
        meter.charge(len(one) * len(other) / 10)
        return all(any(equal(each, mine, meter) for mine in other) for each in one)
    if isinstance(unordered, MapList):
        theirs = {unordered.identity(each): each for each in other}
        return all((key := unordered.identity(each)) in theirs and equal(each, theirs[key], meter) for each in one)
    return all(equal(each, mine, meter) for each, mine in zip(one, other, strict=True))


def is_zero(value: Any) -> bool:
    """Whether it is what its type begins with: 0, "", [], null."""
    return value is None or (kind_of(value) in EMPTY and not value)


EMPTY = frozenset({"bool", "int", "uint", "double", "string", "bytes", "list", "map", "duration"})
