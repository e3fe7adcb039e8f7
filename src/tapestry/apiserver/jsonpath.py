"""JSONPath, as far as column and field definitions use it: `.spec.items[0].name`, `.metadata.labels['a.b/c']`."""

import re
from typing import Any

from tapestry.apiserver.spec_cache import bounded_cache

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
    """The path is not one that we follow."""


@bounded_cache(1024)
def parse_path(path: str) -> tuple[tuple[str, str], ...]:
    """The steps of a path, as (what, argument)."""
    rest = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    steps, at = [], 0
    while at < len(rest):
        match = STEP_PATTERN.match(rest, at)
        if match is None:
            raise JsonPathError(f"{path}: cannot be read from {rest[at:]!r} on")
        at = match.end()
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
    """Everything that a path leads to."""
    values = [obj]
    for what, argument in parse_path(path):
        values = [each for value in values for each in step_values(value, what, argument)]
    return values


def find_first(obj: Any, path: str) -> Any:
    """The first thing that a path leads to; None where it leads nowhere."""
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
        at = int(argument)
        return [value[at]] if -len(value) <= at < len(value) else []
    name, _, wanted = argument.partition("=")
    return [each for each in value if isinstance(each, dict) and str(each.get(name)) == wanted]
