"""How a part of an object gets its defaults while the rest is shared."""

from collections.abc import Callable
from typing import Any

from tapestry.kube.objects import Object

Defaulter = Callable[[Object], Object]


def with_field(obj: Object, field: str, change: Callable[[Any], Any], empty: Any = None) -> Object:
    """`obj` with what is in a field changed; `empty` is taken for one that is not there."""
    value = obj.get(field, empty)
    return obj if value is None else {**obj, field: change(value)}


def map_items(change: Defaulter) -> Callable[[list[Object]], list[Object]]:
    return lambda items: [change(item) for item in items]
