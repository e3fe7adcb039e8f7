"""Structural schemas: what a custom resource may look like, compiled once from its definition.

Reading does in one walk what Kubernetes does before it validates: fields that the schema does not know are pruned, and
reported, and defaults are filled in.  Checking says what is wrong with the result, in Kubernetes' words, with its path.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tapestry.apiserver.customs.formats import FORMATS
from tapestry.kube.budget import charge
from tapestry.kube.cel.regexes import RegexError, regex
from tapestry.kube.objects import Object

METADATA = ("apiVersion", "kind", "metadata")
PRESERVE = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
EMBEDDED = "x-kubernetes-embedded-resource"
MAX_WORK = 5_000_000
"""What the patterns of a schema may take in one object: the instructions of each, for each letter that it sees."""
COSTLY = "validation failed due to running out of cost budget, no further patterns will be matched"
LONGEST_PATH = 2_000
"""Characters of a path in a message: what comes after them is left out."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is wrong with an object."""

    path: str
    reason: str
    """As in `FieldValueInvalid`."""
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


MOST_FAULTS, LONGEST_FAULTS = 1_000, 1 << 20
"""Faults of one object that are reported, and characters of them."""


def first_faults(faults: Iterable[Fault]) -> list[Fault]:
    """The faults of an object, or the first of very many: then nobody looks for more."""
    found, left = [], LONGEST_FAULTS
    for each in faults:
        found.append(each)
        left -= len(each.path) + len(each.message)
        if len(found) >= MOST_FAULTS or left < 0:
            break
    return found


def repetitions(values: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """The values that came before, with their numbers."""
    seen: set[Any] = set()
    for number, each in enumerate(values):
        key = each if isinstance(each, str) else msgspec.json.encode(each, order="deterministic")
        if key in seen:
            yield number, each
        seen.add(key)


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
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What fields of it are where nobody says anything, with defaults of their own."""
    default_sizes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each of them as JSON."""
    enum: frozenset[Any] | None = None
    """The values that there may be, where all of them can be hashed."""
    branches: Mapping[str, tuple["Node", ...]] = field(default_factory=dict)
    """Of allOf, anyOf, oneOf and not."""

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
            below = path_below(path, key)
            if node is not None:
                if each is None and not node.schema.get("nullable"):
                    continue  # as if it were not there: it may have a default
                found[key] = node.read(each, below, unknown)
            elif self.is_open or (self.schema.get(EMBEDDED) and key in METADATA):
                found[key] = each
            else:
                unknown.append(below)
        for key, default in self.defaults.items():
            if key not in found:
                charge(self.default_sizes[key])  # a small object can have many of them
                found[key] = default
        return found

    @property
    def has_defaults(self) -> bool:
        below = [*self.properties.values(), *filter(None, (self.items, self.values))]
        return bool(self.defaults) or any(node.has_defaults for node in below)

    # -- checking

    def faults(self, value: Any, path: str, left: "Left | None" = None) -> Iterator[Fault]:
        """What is wrong with a value; `left` is what its patterns may take, which all of an object share."""
        left = Left() if left is None else left
        charge(1)
        if value is None:
            if not self.schema.get("nullable"):
                yield invalid(path, "null", f'{path} in body must be of type {self.schema.get("type")}: "null"')
            return
        mismatch = self._mismatch(value, path)
        if mismatch is not None:
            yield mismatch
            return
        yield from self._value_faults(value, path, left)
        if isinstance(value, dict):
            for key in self.schema.get("required") or ():
                if key not in value:
                    yield Fault(path_below(path, key), "FieldValueRequired", "Required value")
            for key, each in value.items():
                node = self.properties.get(key) or self.values
                if node is not None:
                    yield from node.faults(each, path_below(path, key), left)
        elif isinstance(value, list) and self.items is not None:
            for number, each in enumerate(value):
                yield from self.items.faults(each, f"{path}[{number}]", left)

    def _value_faults(self, value: Any, path: str, left: "Left") -> Iterator[Fault]:
        """What the schema has against a value of the right type."""
        schema = self.schema
        if "enum" in schema and not self._is_listed(value):
            known = ", ".join(quoted(each) for each in schema["enum"])
            message = f"Unsupported value: {quoted(value)}: supported values: {known}"
            yield Fault(path, "FieldValueNotSupported", message)
        if isinstance(value, str):
            yield from text_faults(schema, value, path, left)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield from number_faults(schema, value, path)
        elif isinstance(value, list):
            yield from list_faults(schema, value, path)
        elif isinstance(value, dict):
            yield from size_faults(schema, len(value), path, "Properties", "properties")
        if self.branches:
            yield from self._combined_faults(value, path, left)

    def _is_listed(self, value: Any) -> bool:
        if self.enum is not None:
            return not isinstance(value, dict | list) and value in self.enum
        charge(len(self.schema["enum"]))
        return value in self.schema["enum"]

    def _combined_faults(self, value: Any, path: str, left: "Left") -> Iterator[Fault]:
        """allOf, anyOf, oneOf and not: they may only add to what the structure says."""
        for each in self.branches.get("allOf", ()):
            yield from each.faults(value, path, left)
        some = self.branches.get("anyOf") if not self.schema.get(INT_OR_STRING) else None
        if some and all(any(each.faults(value, path, left)) for each in some):
            yield invalid(path, "", f"{path} in body must validate at least one schema (anyOf)")
        if self.branches.get("oneOf"):
            good = sum(not any(each.faults(value, path, left)) for each in self.branches["oneOf"])
            if good != 1:
                found = "none" if not good else "more than one"
                yield invalid(
                    path, "", f"{path} in body must validate one and only one schema (oneOf). Found {found} valid"
                )
        if "not" in self.branches and not any(self.branches["not"][0].faults(value, path, left)):
            yield invalid(path, "", f"{path} in body must not validate the schema (not)")

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


class Left:
    """What the patterns of a schema may still take in one object."""

    __slots__ = ("work",)

    def __init__(self) -> None:
        self.work = MAX_WORK


def path_below(path: str, key: str) -> str:
    """The path of a field; a caller chooses how long keys are, and how often the path of one is written."""
    if len(path) + len(key) > LONGEST_PATH:
        return f"{path}.{key}"[:LONGEST_PATH] + "..."
    return f"{path}.{key}" if path else key


def compiled(schema: Object, *, is_open: bool = False) -> Node:
    charge(5)
    open_here = is_open or bool(schema.get(PRESERVE))
    values = schema.get("additionalProperties")
    properties = {name: compiled(each) for name, each in (schema.get("properties") or {}).items()}
    declared = {name: node for name, node in properties.items() if "default" in node.schema}
    defaults = {name: node.read(node.schema["default"], name, []) for name, node in declared.items()}
    return Node(
        schema,
        properties,
        compiled(schema["items"]) if isinstance(schema.get("items"), dict) else None,
        compiled(values)
        if isinstance(values, dict)
        else compiled({PRESERVE: True, "nullable": True})
        if values is True
        else None,
        open_here or (not schema.get("type") and not schema.get("properties")),
        defaults,
        {name: len(msgspec.json.encode(each)) for name, each in defaults.items()},
        enum_of(schema),
        branches_of(schema),
    )


def enum_of(schema: Object) -> frozenset[Any] | None:
    values = schema.get("enum") or ()
    return None if any(isinstance(each, dict | list) for each in values) else frozenset(values)


def branches_of(schema: Object) -> dict[str, tuple[Node, ...]]:
    listed = {name: schema[name] for name in ("allOf", "anyOf", "oneOf") if schema.get(name)}
    if "not" in schema:
        listed["not"] = [schema["not"]]
    return {name: tuple(compiled(each, is_open=True) for each in found) for name, found in listed.items()}


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


def text_faults(schema: Object, value: str, path: str, left: Left) -> Iterator[Fault]:
    if len(value) < schema.get("minLength", 0):
        yield invalid(path, value, f"{path} in body should be at least {schema['minLength']} chars long")
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        yield Fault(path, "FieldValueTooLong", f"Too long: may not be more than {schema['maxLength']} bytes")
    if "pattern" in schema:
        is_match = matches(schema["pattern"], value, left)
        if is_match is None:
            yield Fault(path, "FieldValueInvalid", f"Invalid value: {COSTLY}")
        elif not is_match:
            yield invalid(path, value, f"{path} in body should match '{schema['pattern']}'")
    check = FORMATS.get(schema.get("format", ""))
    if check is not None and not check(value):
        yield invalid(path, value, f"{path} in body must be of type {schema['format']}: {quoted(value)}")


def matches(pattern: str, value: str, left: Left) -> bool | None:
    """Whether some of the text matches; None where it would take too long to find out."""
    try:
        found = regex(pattern)
    except RegexError:  # it was stored before patterns were looked at
        return True
    work = len(value) * found.size
    left.work -= work
    if left.work < 0:
        return None
    charge(work)
    return found.is_in(value)


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
    names = schema.get("x-kubernetes-list-map-keys")
    for number, key in repetitions((identity(each, names) for each in value) if kind == "map" else value):
        yield Fault(f"{path}[{number}]", "FieldValueDuplicate", f"Duplicate value: {shown_key(key)}")


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
