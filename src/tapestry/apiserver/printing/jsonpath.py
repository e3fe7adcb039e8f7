"""The subset of JSONPath in columns and fields: `.spec.items[0].name`, `.metadata.labels['a.b/c']`."""

import re
from typing import Any

from tapestry.apiserver.core.spec_cache import bounded_cache

STEP_PATTERN = re.compile(
    r"""
    \.?(?P<name>[A-Za-z0-9_$-]+(?:\\.[A-Za-z0-9_$-]+)*)     # .name, with dots escaped
    | \[ (?P<index>-?\d+) \]                                # [0]
    | \[ (?P<every>\*) \] | \.(?P<star>\*)                  # [*]
    | \[ ' (?P<quoted>[^']*) ' \]                           # ['name']
    | \[ \?\( @\.(?P<field>[\w.]+) \s*==\s* ['"](?P<value>[^'"]*)['"] \) \]   # [?(@.type=='Ready')]
    """,
    re.VERBOSE,
)


class JsonPathError(ValueError):
    """The path uses unsupported syntax."""


@bounded_cache(1024)
def parse_path(path: str) -> tuple[tuple[str, str], ...]:
    """Return the steps of a path as (type, argument) pairs."""
    rest = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    steps, position = [], 0
    while position < len(rest):
        match = STEP_PATTERN.match(rest, position)
        if match is None:
            raise JsonPathError(f"{path}: unsupported syntax at {rest[position:]!r}")
        position = match.end()
        if match["field"] is not None:
            steps.append(("filter", f"{match['field']}={match['value']}"))
        elif match["index"] is not None:
            steps.append(("index", match["index"]))
        elif match["every"] or match["star"]:
            steps.append(("every", ""))
        else:
            steps.append(
                ("name", match["quoted"] if match["quoted"] is not None else match["name"].replace("\\.", "."))
            )
    return tuple(steps)


def find_all(obj: Any, path: str) -> list[Any]:
    """Return all values that a path selects."""
    values = [obj]
    for step, argument in parse_path(path):
        values = [each for value in values for each in step_values(value, step, argument)]
    return values


def find_first(obj: Any, path: str) -> Any:
    """Return the first value that a path selects, or None."""
    values = find_all(obj, path)
    return values[0] if values else None


def step_values(value: Any, what: str, argument: str) -> list[Any]:
    if what == "name":
        return [value[argument]] if isinstance(value, dict) and argument in value else []
    if what == "every":
        return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if not isinstance(value, list):
        return []
    if what == "index":
        index = int(argument)
        return [value[index]] if -len(value) <= index < len(value) else []
    name, _, expected = argument.partition("=")
    return [each for each in value if isinstance(each, dict) and str(each.get(name)) == expected]
