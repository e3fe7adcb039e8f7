"""Table column type and the common functions that compute cells."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tapestry.kube.objects import Object, name_of, value_at
from tapestry.kube.times import parse_time

NONE, UNKNOWN, UNSET = "<none>", "<unknown>", "<unset>"
MAX_LISTED = 3
"""Number of addresses or hosts listed before the rest is abbreviated."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column: its header and the function that computes its cell from an object and the current time."""

    name: str
    cell: Callable[[Object, datetime], Any]
    type: str = "string"
    priority: int = 0
    """Columns with a priority above 0 are shown only with `-o wide`."""
    format: str = ""
    description: str = ""


ColumnsByResource = Mapping[str, tuple[TableColumn, ...]]
"""Columns by the storage name of the resource."""


def value_cell(*steps: str | int, default: Any = "") -> Callable[[Object, datetime], Any]:
    """Return a cell function for the value at a path. An empty string counts as missing."""
    return lambda obj, _: value if (value := value_at(obj, *steps, default=default)) != "" else default


def computed_cell(compute: Callable[[Object], Any]) -> Callable[[Object, datetime], Any]:
    return lambda obj, _: compute(obj)


def age_cell(*steps: str | int) -> Callable[[Object, datetime], Any]:
    return lambda obj, now: age_since(value_at(obj, *steps), now)


def count_cell(*steps: str | int) -> Callable[[Object, datetime], Any]:
    return lambda obj, _: len(value_at(obj, *steps, default=[]))


def age_since(time: str | None, now: datetime) -> str:
    if not time:
        return UNKNOWN
    try:
        return human_duration((now - parse_time(time)).total_seconds())
    except ValueError:
        return UNKNOWN


def human_duration(seconds: float) -> str:
    """Return a duration in at most two units, in the format of kubectl."""
    total = int(seconds)
    if total < -1:
        return "<invalid>"
    total = max(total, 0)
    minutes, hours, days = total // 60, total // 3600, total // 86400
    if total < 120:
        return f"{total}s"
    if minutes < 10:
        return f"{minutes}m{total % 60}s" if total % 60 else f"{minutes}m"
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
    """Join the first values and append the number of values left out."""
    more = f" + {len(values) - MAX_LISTED} more..." if len(values) > MAX_LISTED else ""
    return ",".join(values[:MAX_LISTED]) + more


def labels_text(labels: Mapping[str, str] | None) -> str:
    """Return labels, or a selector that consists of labels only, as text."""
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or NONE


def selector_text(spec: Object | None) -> str:
    """Return a selector with `matchLabels` and `matchExpressions` as text."""
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
    """Return columns with the names and the images of the containers in a pod template."""

    def cell(field: str) -> Callable[[Object, datetime], Any]:
        return computed_cell(lambda obj: ",".join(each.get(field, "") for each in value_at(obj, *steps, default=[])))

    return TableColumn("Containers", cell("name"), priority=priority), TableColumn(
        "Images", cell("image"), priority=priority
    )


INTEGER, BOOLEAN, DATE = "integer", "boolean", "date"
NAME = TableColumn("Name", computed_cell(name_of), format="name")
AGE = TableColumn("Age", age_cell("metadata", "creationTimestamp"))
CREATED = TableColumn("Created At", value_cell("metadata", "creationTimestamp"), DATE)
