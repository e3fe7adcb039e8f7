"""Helpers that change one field of an object and share the rest."""

from collections.abc import Callable
from typing import Any

from tapestry.kube.objects import Object

Defaulter = Callable[[Object], Object]


def with_field(obj: Object, field: str, change: Callable[[Any], Any], empty: Any = None) -> Object:
    """Return `obj` with a field changed. `empty` replaces a missing value; None leaves the object unchanged."""
    value = obj.get(field, empty)
    return obj if value is None else {**obj, field: change(value)}


def map_items(change: Defaulter) -> Callable[[list[Object]], list[Object]]:
    return lambda items: [change(item) for item in items]
