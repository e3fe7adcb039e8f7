"""The `fieldPath` of a rule: `.spec.names['a-b']`, as far as the schema knows of it."""

import re

from tapestry.kube.objects import Object

PATH_STEP = re.compile(r"\.([^.\[\]]+)|\['((?:[^'\\]|\\.)*)'\]")
ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "'": "'", "\\": "\\"}


class PathError(ValueError):
    """The path leads nowhere in the schema."""


def normalized_path(text: str, schema: Object) -> str:
    """The path as faults show it, to be put behind that of the value; raises PathError."""
    found, at = "", 0
    while at < len(text):
        step = PATH_STEP.match(text, at)
        if step is None:
            raise PathError(f"{text}: expected [ or . but got: {text[at:]}")
        name = step[1] if step[1] is not None else unescaped(step[2])
        if schema.get("properties"):
            if name not in schema["properties"]:
                raise PathError(f"{text}: does not refer to a valid field")
            schema, found = schema["properties"][name], f"{found}.{name}"
        elif isinstance(schema.get("additionalProperties"), dict):
            schema, found = schema["additionalProperties"], f"{found}[{name}]"
        else:
            raise PathError(f"{text}: does not refer to a valid field")
        at = step.end()
    return found


def unescaped(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        if found[1] not in ESCAPES:
            raise PathError(f"invalid escape char \\{found[1]}")
        return ESCAPES[found[1]]

    return re.sub(r"\\(.)", one, text)
