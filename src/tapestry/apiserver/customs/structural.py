"""Structural schemas: what a custom resource may look like, compiled once from its definition.

Reading does in one walk what Kubernetes does before it validates: fields that the schema does not know are pruned, and
reported, and defaults are filled in.  Checking says what is wrong with the result, in Kubernetes' words, with its path.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tapestry.apiserver.customs.formats import FORMATS
from tapestry.kube.cel.regexes import RegexError, regex
from tapestry.kube.objects import Object

METADATA = ("apiVersion", "kind", "metadata")
PRESERVE = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
EMBEDDED = "x-kubernetes-embedded-resource"
MAX_WORK = 5_000_000
"""What a pattern may take: the instructions it has, for each letter.  It is about a second."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is wrong with an object."""

    path: str
    reason: str
    """As in `FieldValueInvalid`."""
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass(frozen=True)
class Node:
    """One level of a schema."""

    schema: Object
    properties: Mapping[str, "Node"] = field(default_factory=dict)
    items: "Node | None" = None
    values: "Node | None" = None
    """Of a map."""
    is_open: bool = False
    """Whether it keeps fields that it does not know."""

    # -- reading

    def read(self, value: Any, path: str, unknown: list[str]) -> Any:
        """`value` without what the schema does not know and nulls that it has no place for, and with its defaults."""
        if isinstance(value, dict):
            return self._read_object(value, path, unknown)
        if isinstance(value, list) and self.items is not None:
            items = self.items
            return [items.read(each, f"{path}[{number}]", unknown) for number, each in enumerate(value)]
        return value

    def _read_object(self, value: Object, path: str, unknown: list[str]) -> Object:
        found: Object = {}
        for key, each in value.items():
            node = self.properties.get(key) or self.values
            below = f"{path}.{key}" if path else key
            if node is not None:
                if each is None and not node.schema.get("nullable"):
                    continue  # as if it were not there: it may have a default
                found[key] = node.read(each, below, unknown)
            elif self.is_open or (self.schema.get(EMBEDDED) and key in METADATA):
                found[key] = each
            else:
                unknown.append(below)
        for key, node in self.properties.items():
            if key not in found and "default" in node.schema:
                found[key] = node.read(node.schema["default"], f"{path}.{key}", [])
        return found

    @property
    def has_defaults(self) -> bool:
        below = [*self.properties.values(), *filter(None, (self.items, self.values))]
        return any("default" in node.schema or node.has_defaults for node in below)

    # -- checking

    def faults(self, value: Any, path: str) -> Iterator[Fault]:
        if value is None:
            if not self.schema.get("nullable"):
                yield invalid(path, "null", f'{path} in body must be of type {self.schema.get("type")}: "null"')
            return
        mismatch = self._mismatch(value, path)
        if mismatch is not None:
            yield mismatch
            return
        yield from value_faults(self.schema, value, path)
        if isinstance(value, dict):
            for key in self.schema.get("required") or ():
                if key not in value:
                    yield Fault(f"{path}.{key}" if path else key, "FieldValueRequired", "Required value")
            for key, each in value.items():
                node = self.properties.get(key) or self.values
                if node is not None:
                    yield from node.faults(each, f"{path}.{key}" if path else key)
        elif isinstance(value, list) and self.items is not None:
            for number, each in enumerate(value):
                yield from self.items.faults(each, f"{path}[{number}]")

    def _mismatch(self, value: Any, path: str) -> Fault | None:
        if self.schema.get(INT_OR_STRING):
            wanted, fits = "integer,string", isinstance(value, int | str) and not isinstance(value, bool)
        else:
            wanted = self.schema.get("type", "")
            fits = not wanted or OF_TYPE[wanted](value)
        if fits:
            return None
        shown = type_name(value)
        return Fault(
            path,
            "FieldValueTypeInvalid",
            f'Invalid value: "{shown}": {path} in body must be of type {wanted}: "{shown}"',
        )


def compiled(schema: Object, *, is_open: bool = False) -> Node:
    open_here = is_open or bool(schema.get(PRESERVE))
    values = schema.get("additionalProperties")
    return Node(
        schema,
        {name: compiled(each) for name, each in (schema.get("properties") or {}).items()},
        compiled(schema["items"]) if isinstance(schema.get("items"), dict) else None,
        compiled(values)
        if isinstance(values, dict)
        else compiled({PRESERVE: True, "nullable": True})
        if values is True
        else None,
        open_here or (not schema.get("type") and not schema.get("properties")),
    )


OF_TYPE: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
}


def type_name(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
    return names.get(type(value), "null")


def invalid(path: str, shown: Any, why: str) -> Fault:
    return Fault(path, "FieldValueInvalid", f"Invalid value: {quoted(shown)}: {why}")


def quoted(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return f'"{value}"' if isinstance(value, str) else f'"{type_name(value)}"'


def value_faults(schema: Object, value: Any, path: str) -> Iterator[Fault]:
    """What a schema has against a value of the right type."""
    if "enum" in schema and value not in schema["enum"]:
        known = ", ".join(quoted(each) for each in schema["enum"])
        yield Fault(path, "FieldValueNotSupported", f"Unsupported value: {quoted(value)}: supported values: {known}")
    if isinstance(value, str):
        yield from text_faults(schema, value, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from number_faults(schema, value, path)
    elif isinstance(value, list):
        yield from list_faults(schema, value, path)
    elif isinstance(value, dict):
        yield from size_faults(schema, len(value), path, "Properties", "properties")
    yield from combined_faults(schema, value, path)


def text_faults(schema: Object, value: str, path: str) -> Iterator[Fault]:
    if len(value) < schema.get("minLength", 0):
        yield invalid(path, value, f"{path} in body should be at least {schema['minLength']} chars long")
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        yield Fault(path, "FieldValueTooLong", f"Too long: may not be more than {schema['maxLength']} bytes")
    if "pattern" in schema and not matches(schema["pattern"], value):
        yield invalid(path, value, f"{path} in body should match '{schema['pattern']}'")
    check = FORMATS.get(schema.get("format", ""))
    if check is not None and not check(value):
        yield invalid(path, value, f"{path} in body must be of type {schema['format']}: {quoted(value)}")


def matches(pattern: str, value: str) -> bool:
    """Whether some of the text matches; what would take too long to find out does not."""
    try:
        found = regex(pattern)
    except RegexError:  # it was stored before patterns were looked at
        return True
    return len(value) * found.size <= MAX_WORK and found.is_in(value)


def number_faults(schema: Object, value: float, path: str) -> Iterator[Fault]:
    if "minimum" in schema:
        least, strict = schema["minimum"], schema.get("exclusiveMinimum")
        if value < least or (strict and value == least):
            words = "greater than" if strict else "greater than or equal to"
            yield invalid(path, value, f"{path} in body should be {words} {least}")
    if "maximum" in schema:
        most, strict = schema["maximum"], schema.get("exclusiveMaximum")
        if value > most or (strict and value == most):
            words = "less than" if strict else "less than or equal to"
            yield invalid(path, value, f"{path} in body should be {words} {most}")
    if schema.get("multipleOf") and value % schema["multipleOf"]:
        yield invalid(path, value, f"{path} in body should be a multiple of {schema['multipleOf']}")


def list_faults(schema: Object, value: list[Any], path: str) -> Iterator[Fault]:
    yield from size_faults(schema, len(value), path, "Items", "items")
    kind = schema.get("x-kubernetes-list-type")
    if kind not in ("set", "map"):
        return
    seen: list[Any] = []
    for number, each in enumerate(value):
        key = identity(each, schema.get("x-kubernetes-list-map-keys")) if kind == "map" else each
        if key in seen:
            yield Fault(f"{path}[{number}]", "FieldValueDuplicate", f"Duplicate value: {shown_key(key)}")
        seen.append(key)


def identity(item: Any, keys: Iterable[str] | None) -> Any:
    return {key: item.get(key) for key in keys or ()} if isinstance(item, dict) else item


def shown_key(key: Any) -> str:
    if isinstance(key, dict):
        inner = ",".join(f'"{name}":{quoted(value)}' for name, value in key.items())
        return "{" + inner + "}"
    return quoted(key)


def size_faults(schema: Object, size: int, path: str, word: str, noun: str) -> Iterator[Fault]:
    most, least = schema.get(f"max{word}"), schema.get(f"min{word}", 0)
    if most is not None and size > most:
        yield Fault(path, "FieldValueTooMany", f"Too many: {size}: must have at most {most} items")
    if size < least:
        yield invalid(path, size, f"{path} in body should have at least {least} {noun}")


def combined_faults(schema: Object, value: Any, path: str) -> Iterator[Fault]:
    """allOf, anyOf, oneOf and not: they may only add to what the structure says."""
    for each in schema.get("allOf") or ():
        yield from branch_faults(each, value, path)
    some = schema.get("anyOf") if not schema.get(INT_OR_STRING) else None
    if some and all(any(branch_faults(each, value, path)) for each in some):
        yield invalid(path, "", f"{path} in body must validate at least one schema (anyOf)")
    if schema.get("oneOf"):
        good = sum(not any(branch_faults(each, value, path)) for each in schema["oneOf"])
        if good != 1:
            found = "none" if not good else "more than one"
            yield invalid(
                path, "", f"{path} in body must validate one and only one schema (oneOf). Found {found} valid"
            )
    if "not" in schema and not any(branch_faults(schema["not"], value, path)):
        yield invalid(path, "", f"{path} in body must not validate the schema (not)")


def branch_faults(schema: Object, value: Any, path: str) -> Iterator[Fault]:
    return compiled(schema, is_open=True).faults(value, path)
