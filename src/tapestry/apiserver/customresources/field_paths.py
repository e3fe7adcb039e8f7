"""The `fieldPath` of a validation rule, for example `.spec.names['a-b']`, checked against the schema."""

import re

from tapestry.kube.objects import Object

PATH_STEP = re.compile(r"\.([^.\[\]]+)|\['((?:[^'\\]|\\.)*)'\]")
ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "'": "'", "\\": "\\"}


class PathError(ValueError):
    """Error if the schema has no such path."""


def normalized_path(text: str, schema: Object) -> str:
    """The path as faults show it, relative to the value of the rule. Raises PathError."""
    path, position = "", 0
    while position < len(text):
        step = PATH_STEP.match(text, position)
        if step is None:
            raise PathError(f"{text}: expected [ or . but got: {text[position:]}")
        name = step[1] if step[1] is not None else unescaped(step[2])
        if schema.get("properties"):
            if name not in schema["properties"]:
                raise PathError(f"{text}: does not refer to a valid field")
            schema, path = schema["properties"][name], f"{path}.{name}"
        elif isinstance(schema.get("additionalProperties"), dict):
            schema, path = schema["additionalProperties"], f"{path}[{name}]"
        else:
            raise PathError(f"{text}: does not refer to a valid field")
        position = step.end()
    return path


def unescaped(text: str) -> str:
    def replacement(match: re.Match[str]) -> str:
        if match[1] not in ESCAPES:
            raise PathError(f"invalid escape char \\{match[1]}")
        return ESCAPES[match[1]]

    return re.sub(r"\\(.)", replacement, text)
