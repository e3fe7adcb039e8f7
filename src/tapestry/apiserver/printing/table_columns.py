"""Prints: what a column of a table is, and the common ways to fill one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tapestry.kube.objects import Object, name_of, value_at
from tapestry.kube.times import parse_time

NONE, UNKNOWN, UNSET = "<none>", "<unknown>", "<unset>"
MAX_LISTED = 3
"""How many addresses or hosts are shown of many."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column: its head, and what it shows of an object at a moment."""

    name: str
    show: Callable[[Object, datetime], Any]
    type: str = "string"
    priority: int = 0
    """Columns of any but 0 are shown to who asks for wide tables."""
    format: str = ""
    description: str = ""


ColumnsByResource = Mapping[str, tuple[TableColumn, ...]]
"""The columns of kinds, by the name under which they are stored."""


def value_cell(*steps: str | int, default: Any = "") -> Callable[[Object, datetime], Any]:
    """What is there; empty is as good as missing."""
    return lambda obj, _: found if (found := value_at(obj, *steps, default=default)) != "" else default


def computed_cell(compute: Callable[[Object], Any]) -> Callable[[Object, datetime], Any]:
    return lambda obj, _: compute(obj)


def age_cell(*steps: str | int) -> Callable[[Object, datetime], Any]:
    return lambda obj, now: age_since(value_at(obj, *steps), now)


def count_cell(*steps: str | int) -> Callable[[Object, datetime], Any]:
    return lambda obj, _: len(value_at(obj, *steps, default=[]))


def age_since(moment: str | None, now: datetime) -> str:
    """How long ago that was."""
    if not moment:
        return UNKNOWN
    try:
        return human_duration((now - parse_time(moment)).total_seconds())
    except ValueError:
        return UNKNOWN


def human_duration(seconds: float) -> str:
    """A span of time in at most two units, as short as it can be said without misleading."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    whole = max(whole, 0)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        return f"{minutes}m{whole % 60}s" if whole % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 730:
        return f"{days}d"
    if days < 2920:
        return f"{days // 365}y{days % 365}d" if days % 365 else f"{days // 365}y"
    return f"{days // 365}y"


def abbreviated_list(values: list[str]) -> str:
    """The first few, and how many more there are."""
    more = f" + {len(values) - MAX_LISTED} more..." if len(values) > MAX_LISTED else ""
    return ",".join(values[:MAX_LISTED]) + more


def labels_text(labels: Mapping[str, str] | None) -> str:
    """Labels, or a selector that is nothing but labels."""
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or NONE


def selector_text(spec: Object | None) -> str:
    """A selector with `matchLabels` and `matchExpressions`."""
    labels = (spec or {}).get("matchLabels") or {}
    expressions = (spec or {}).get("matchExpressions") or ()
    terms = [*((key, f"{key}={value}") for key, value in labels.items()), *map(requirement_text, expressions)]
    return ",".join(text for _, text in sorted(terms)) or NONE


def requirement_text(expression: Object) -> tuple[str, str]:
    key, values = expression.get("key", ""), ",".join(sorted(expression.get("values") or ()))
    match expression.get("operator"):
        case "Exists":
            return key, key
        case "DoesNotExist":
            return key, f"!{key}"
        case "In":
            return key, f"{key} in ({values})"
    return key, f"{key} notin ({values})"


def container_columns(*steps: str, priority: int = 1) -> tuple[TableColumn, TableColumn]:
    """The names and the images of the containers of a template."""

    def shown(field: str) -> Callable[[Object, datetime], Any]:
        return computed_cell(lambda obj: ",".join(each.get(field, "") for each in value_at(obj, *steps, default=[])))

    return TableColumn("Containers", shown("name"), priority=priority), TableColumn(
        "Images", shown("image"), priority=priority
    )


INTEGER, BOOLEAN, DATE = "integer", "boolean", "date"
NAME = TableColumn("Name", computed_cell(name_of), format="name")
AGE = TableColumn("Age", age_cell("metadata", "creationTimestamp"))
CREATED = TableColumn("Created At", value_cell("metadata", "creationTimestamp"), DATE)
