"""Structural schemas: what a custom resource may look like, compiled once from its definition.

Reading does in one walk what Kubernetes does before it validates: fields that the schema does not know are pruned, and
reported, and defaults are filled in.  Checking says what is wrong with the result, in Kubernetes' words, with its path.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tapestry.apiserver.customresources.formats import FORMATS
from tapestry.kube.budget import charge
from tapestry.kube.cel.regexes import RegexError, compile_regex
from tapestry.kube.objects import Object

METADATA_FIELDS = ("apiVersion", "kind", "metadata")
PRESERVE_UNKNOWN_FIELDS = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
EMBEDDED_RESOURCE = "x-kubernetes-embedded-resource"
MAX_PATTERN_WORK = 5_000_000
"""What the patterns of a schema may take in one object: the instructions of each, for each letter that it sees."""
PATTERN_BUDGET_EXCEEDED = "validation failed due to running out of cost budget, no further patterns will be matched"
MAX_PATH_LENGTH = 2_000
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


MAX_FAULTS, MAX_FAULTS_LENGTH = 1_000, 1 << 20
"""Faults of one object that are reported, and characters of them."""


def first_faults(faults: Iterable[Fault]) -> list[Fault]:
    """The faults of an object, or the first of very many: then nobody looks for more."""
    found, left = [], MAX_FAULTS_LENGTH
    for each in faults:
        found.append(each)
        left -= len(each.path) + len(each.message)
        if len(found) >= MAX_FAULTS or left < 0:
            break
    return found


def duplicates(values: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """The values that came before, with their numbers."""
    seen: set[Any] = set()
    for number, each in enumerate(values):
        key = each if isinstance(each, str) else msgspec.json.encode(each, order="deterministic")
        if key in seen:
            yield number, each
        seen.add(key)


@dataclass(frozen=True)
class SchemaNode:
    """One level of a schema."""

    schema: Object
    properties: Mapping[str, "SchemaNode"] = field(default_factory=dict)
    items: "SchemaNode | None" = None
    values: "SchemaNode | None" = None
    """Of a map."""
    preserves_unknown: bool = False
    """Whether it keeps fields that it does not know."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What fields of it are where nobody says anything, with defaults of their own."""
    default_sizes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each of them as JSON."""
    enum: frozenset[Any] | None = None
    """The values that there may be, where all of them can be hashed."""
    branches: Mapping[str, tuple["SchemaNode", ...]] = field(default_factory=dict)
    """Of allOf, anyOf, oneOf and not."""

    # -- reading

    def prune_and_default(self, value: Any, path: str, unknown: list[str]) -> Any:
        """`value` without what the schema does not know and nulls that it has no place for, and with its defaults."""
        if isinstance(value, dict):
            return self._prune_object(value, path, unknown)
        if isinstance(value, list) and self.items is not None:
            items = self.items
            return [items.prune_and_default(each, f"{path}[{number}]", unknown) for number, each in enumerate(value)]
        return value

    def _prune_object(self, value: Object, path: str, unknown: list[str]) -> Object:
        found: Object = {}
        for key, each in value.items():
            node = self.properties.get(key) or self.values
            below = child_path(path, key)
            if node is not None:
                if each is None and not node.schema.get("nullable"):
                    continue  # as if it were not there: it may have a default
                found[key] = node.prune_and_default(each, below, unknown)
            elif self.preserves_unknown or (self.schema.get(EMBEDDED_RESOURCE) and key in METADATA_FIELDS):
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

    def faults(self, value: Any, path: str, budget: "PatternBudget | None" = None) -> Iterator[Fault]:
        """What is wrong with a value; `left` is what its patterns may take, which all of an object share."""
        budget = PatternBudget() if budget is None else budget
        charge(1)
        if value is None:
            if not self.schema.get("nullable"):
                yield invalid_value(path, "null", f'{path} in body must be of type {self.schema.get("type")}: "null"')
            return
        mismatch = self._type_fault(value, path)
        if mismatch is not None:
            yield mismatch
            return
        yield from self._value_faults(value, path, budget)
        if isinstance(value, dict):
            for key in self.schema.get("required") or ():
                if key not in value:
                    yield Fault(child_path(path, key), "FieldValueRequired", "Required value")
            for key, each in value.items():
                node = self.properties.get(key) or self.values
                if node is not None:
                    yield from node.faults(each, child_path(path, key), budget)
        elif isinstance(value, list) and self.items is not None:
            for number, each in enumerate(value):
                yield from self.items.faults(each, f"{path}[{number}]", budget)

    def _value_faults(self, value: Any, path: str, budget: "PatternBudget") -> Iterator[Fault]:
        """What the schema has against a value of the right type."""
        schema = self.schema
        if "enum" in schema and not self._is_in_enum(value):
            known = ", ".join(quoted_value(each) for each in schema["enum"])
            message = f"Unsupported value: {quoted_value(value)}: supported values: {known}"
            yield Fault(path, "FieldValueNotSupported", message)
        if isinstance(value, str):
            yield from string_faults(schema, value, path, budget)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield from number_faults(schema, value, path)
        elif isinstance(value, list):
            yield from list_faults(schema, value, path)
        elif isinstance(value, dict):
            yield from size_faults(schema, len(value), path, "Properties", "properties")
        if self.branches:
            yield from self._combined_faults(value, path, budget)

    def _is_in_enum(self, value: Any) -> bool:
        if self.enum is not None:
            return not isinstance(value, dict | list) and value in self.enum
        charge(len(self.schema["enum"]))
        return value in self.schema["enum"]

    def _combined_faults(self, value: Any, path: str, budget: "PatternBudget") -> Iterator[Fault]:
        """allOf, anyOf, oneOf and not: they may only add to what the structure says."""
        for each in self.branches.get("allOf", ()):
            yield from each.faults(value, path, budget)
        some = self.branches.get("anyOf") if not self.schema.get(INT_OR_STRING) else None
        if some and all(any(each.faults(value, path, budget)) for each in some):
            yield invalid_value(path, "", f"{path} in body must validate at least one schema (anyOf)")
        if self.branches.get("oneOf"):
            good = sum(not any(each.faults(value, path, budget)) for each in self.branches["oneOf"])
            if good != 1:
                found = "none" if not good else "more than one"
                yield invalid_value(
                    path, "", f"{path} in body must validate one and only one schema (oneOf). Found {found} valid"
                )
        if "not" in self.branches and not any(self.branches["not"][0].faults(value, path, budget)):
            yield invalid_value(path, "", f"{path} in body must not validate the schema (not)")

    def _type_fault(self, value: Any, path: str) -> Fault | None:
        if self.schema.get(INT_OR_STRING):
            wanted, fits = "integer,string", isinstance(value, int | str) and not isinstance(value, bool)
        else:
            wanted = self.schema.get("type", "")
            fits = not wanted or TYPE_CHECKS[wanted](value)
        if fits:
            return None
        shown = type_name(value)
        return Fault(
            path,
            "FieldValueTypeInvalid",
            f'Invalid value: "{shown}": {path} in body must be of type {wanted}: "{shown}"',
        )


class PatternBudget:
    """What the patterns of a schema may still take in one object."""

    __slots__ = ("work",)

    def __init__(self) -> None:
        self.work = MAX_PATTERN_WORK


def child_path(path: str, key: str) -> str:
    """The path of a field; a caller chooses how long keys are, and how often the path of one is written."""
    if len(path) + len(key) > MAX_PATH_LENGTH:
        return f"{path}.{key}"[:MAX_PATH_LENGTH] + "..."
    return f"{path}.{key}" if path else key


def compile_schema(schema: Object, *, preserves_unknown: bool = False) -> SchemaNode:
    charge(5)
    open_here = preserves_unknown or bool(schema.get(PRESERVE_UNKNOWN_FIELDS))
    values = schema.get("additionalProperties")
    properties = {name: compile_schema(each) for name, each in (schema.get("properties") or {}).items()}
    declared = {name: node for name, node in properties.items() if "default" in node.schema}
    defaults = {name: node.prune_and_default(node.schema["default"], name, []) for name, node in declared.items()}
    return SchemaNode(
        schema,
        properties,
        compile_schema(schema["items"]) if isinstance(schema.get("items"), dict) else None,
        compile_schema(values)
        if isinstance(values, dict)
        else compile_schema({PRESERVE_UNKNOWN_FIELDS: True, "nullable": True})
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


def branches_of(schema: Object) -> dict[str, tuple[SchemaNode, ...]]:
    listed = {name: schema[name] for name in ("allOf", "anyOf", "oneOf") if schema.get(name)}
    if "not" in schema:
        listed["not"] = [schema["not"]]
    return {
        name: tuple(compile_schema(each, preserves_unknown=True) for each in found) for name, found in listed.items()
    }


TYPE_CHECKS: Mapping[str, Callable[[Any], bool]] = {
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


def invalid_value(path: str, value: Any, why: str) -> Fault:
    return Fault(path, "FieldValueInvalid", f"Invalid value: {quoted_value(value)}: {why}")


def quoted_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return f'"{value}"' if isinstance(value, str) else f'"{type_name(value)}"'


def string_faults(schema: Object, value: str, path: str, budget: PatternBudget) -> Iterator[Fault]:
    if len(value) < schema.get("minLength", 0):
        yield invalid_value(path, value, f"{path} in body should be at least {schema['minLength']} chars long")
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        yield Fault(path, "FieldValueTooLong", f"Too long: may not be more than {schema['maxLength']} bytes")
    if "pattern" in schema:
        is_match = pattern_matches(schema["pattern"], value, budget)
        if is_match is None:
            yield Fault(path, "FieldValueInvalid", f"Invalid value: {PATTERN_BUDGET_EXCEEDED}")
        elif not is_match:
            yield invalid_value(path, value, f"{path} in body should match '{schema['pattern']}'")
    check = FORMATS.get(schema.get("format", ""))
    if check is not None and not check(value):
        yield invalid_value(path, value, f"{path} in body must be of type {schema['format']}: {quoted_value(value)}")


def pattern_matches(pattern: str, value: str, budget: PatternBudget) -> bool | None:
    """Whether some of the text matches; None where it would take too long to find out."""
    try:
        found = compile_regex(pattern)
    except RegexError:  # it was stored before patterns were looked at
        return True
    work = len(value) * found.size
    budget.work -= work
    if budget.work < 0:
        return None
    charge(work)
    return found.matches(value)


def number_faults(schema: Object, value: float, path: str) -> Iterator[Fault]:
    if "minimum" in schema:
        least, strict = schema["minimum"], schema.get("exclusiveMinimum")
        if value < least or (strict and value == least):
            words = "greater than" if strict else "greater than or equal to"
            yield invalid_value(path, value, f"{path} in body should be {words} {least}")
    if "maximum" in schema:
        most, strict = schema["maximum"], schema.get("exclusiveMaximum")
        if value > most or (strict and value == most):
            words = "less than" if strict else "less than or equal to"
            yield invalid_value(path, value, f"{path} in body should be {words} {most}")
    if schema.get("multipleOf") and value % schema["multipleOf"]:
        yield invalid_value(path, value, f"{path} in body should be a multiple of {schema['multipleOf']}")


def list_faults(schema: Object, value: list[Any], path: str) -> Iterator[Fault]:
    yield from size_faults(schema, len(value), path, "Items", "items")
    kind = schema.get("x-kubernetes-list-type")
    if kind not in ("set", "map"):
        return
    names = schema.get("x-kubernetes-list-map-keys")
    for number, key in duplicates((list_map_key(each, names) for each in value) if kind == "map" else value):
        yield Fault(f"{path}[{number}]", "FieldValueDuplicate", f"Duplicate value: {key_text(key)}")


def list_map_key(item: Any, keys: Iterable[str] | None) -> Any:
    return {key: item.get(key) for key in keys or ()} if isinstance(item, dict) else item


def key_text(key: Any) -> str:
    if isinstance(key, dict):
        inner = ",".join(f'"{name}":{quoted_value(value)}' for name, value in key.items())
        return "{" + inner + "}"
    return quoted_value(key)


def size_faults(schema: Object, size: int, path: str, word: str, noun: str) -> Iterator[Fault]:
    most, least = schema.get(f"max{word}"), schema.get(f"min{word}", 0)
    if most is not None and size > most:
        yield Fault(path, "FieldValueTooMany", f"Too many: {size}: must have at most {most} items")
    if size < least:
        yield invalid_value(path, size, f"{path} in body should have at least {least} {noun}")
