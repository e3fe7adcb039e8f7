"""Structural schemas: pruning, defaulting and validation of custom resources.

A schema is compiled once. One pass prunes unknown fields, reports them, and sets defaults. Validation reports
violations with their paths, in the wording of Kubernetes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tapestry.apiserver.core.faults import Fault, child_path, duplicates
from tapestry.apiserver.customresources.formats import FORMATS
from tapestry.kube.budget import charge
from tapestry.kube.cel.regexes import RegexError, compile_regex
from tapestry.kube.objects import Object

METADATA_FIELDS = ("apiVersion", "kind", "metadata")
PRESERVE_UNKNOWN_FIELDS = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
EMBEDDED_RESOURCE = "x-kubernetes-embedded-resource"
MAX_PATTERN_WORK = 5_000_000
"""Maximum work of all patterns of a schema per object: instructions of a pattern times characters it reads."""
PATTERN_BUDGET_EXCEEDED = "validation failed due to running out of cost budget, no further patterns will be matched"


@dataclass(frozen=True)
class SchemaNode:
    """One level of a schema."""

    schema: Object
    properties: Mapping[str, "SchemaNode"] = field(default_factory=dict)
    items: "SchemaNode | None" = None
    values: "SchemaNode | None" = None
    """Schema of the values of a map."""
    preserves_unknown: bool = False
    """Unknown fields are not pruned."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of the fields, including nested defaults."""
    default_sizes: Mapping[str, int] = field(default_factory=dict)
    """Size of each default in bytes of JSON."""
    enum: frozenset[Any] | None = None
    """The allowed values, if all of them are hashable."""
    branches: Mapping[str, tuple["SchemaNode", ...]] = field(default_factory=dict)
    """Schemas of allOf, anyOf, oneOf and not."""

    # -- pruning and defaulting

    def prune_and_default(self, value: Any, path: str, unknown: list[str]) -> Any:
        """Return `value` with defaults, without unknown fields and without nulls that are not allowed."""
        if isinstance(value, dict):
            return self._prune_object(value, path, unknown)
        if isinstance(value, list) and self.items is not None:
            items = self.items
            return [items.prune_and_default(each, f"{path}[{number}]", unknown) for number, each in enumerate(value)]
        return value

    def _prune_object(self, value: Object, path: str, unknown: list[str]) -> Object:
        result: Object = {}
        for key, each in value.items():
            node = self.properties.get(key) or self.values
            field_path = child_path(path, key)
            if node is not None:
                if each is None and not node.schema.get("nullable"):
                    continue  # treat as absent, so a default can apply
                result[key] = node.prune_and_default(each, field_path, unknown)
            elif self.preserves_unknown or (self.schema.get(EMBEDDED_RESOURCE) and key in METADATA_FIELDS):
                result[key] = each
            else:
                unknown.append(field_path)
        for key, default in self.defaults.items():
            if key not in result:
                charge(self.default_sizes[key])  # a small object can get many defaults
                result[key] = default
        return result

    @property
    def has_defaults(self) -> bool:
        nested = [*self.properties.values(), *filter(None, (self.items, self.values))]
        return bool(self.defaults) or any(node.has_defaults for node in nested)

    # -- validation

    def faults(self, value: Any, path: str, budget: "PatternBudget | None" = None) -> Iterator[Fault]:
        """Faults of a value. All values of an object share the pattern `budget`."""
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
        """Faults of a value that has the right type."""
        schema = self.schema
        if "enum" in schema and not self._is_in_enum(value):
            supported = ", ".join(quoted_value(each) for each in schema["enum"])
            message = f"Unsupported value: {quoted_value(value)}: supported values: {supported}"
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
        """Faults of allOf, anyOf, oneOf and not, which may only add constraints."""
        for each in self.branches.get("allOf", ()):
            yield from each.faults(value, path, budget)
        any_of = self.branches.get("anyOf") if not self.schema.get(INT_OR_STRING) else None
        if any_of and all(any(each.faults(value, path, budget)) for each in any_of):
            yield invalid_value(path, "", f"{path} in body must validate at least one schema (anyOf)")
        if self.branches.get("oneOf"):
            valid_count = sum(not any(each.faults(value, path, budget)) for each in self.branches["oneOf"])
            if valid_count != 1:
                count_text = "none" if not valid_count else "more than one"
                yield invalid_value(
                    path, "", f"{path} in body must validate one and only one schema (oneOf). Found {count_text} valid"
                )
        if "not" in self.branches and not any(self.branches["not"][0].faults(value, path, budget)):
            yield invalid_value(path, "", f"{path} in body must not validate the schema (not)")

    def _type_fault(self, value: Any, path: str) -> Fault | None:
        if self.schema.get(INT_OR_STRING):
            expected, is_valid = "integer,string", isinstance(value, int | str) and not isinstance(value, bool)
        else:
            expected = self.schema.get("type", "")
            is_valid = not expected or TYPE_CHECKS[expected](value)
        if is_valid:
            return None
        actual = type_name(value)
        return Fault(
            path,
            "FieldValueTypeInvalid",
            f'Invalid value: "{actual}": {path} in body must be of type {expected}: "{actual}"',
        )


class PatternBudget:
    """Remaining work for the patterns of a schema in one object."""

    __slots__ = ("work",)

    def __init__(self) -> None:
        self.work = MAX_PATTERN_WORK


def compile_schema(schema: Object, *, preserves_unknown: bool = False) -> SchemaNode:
    charge(5)
    is_open = preserves_unknown or bool(schema.get(PRESERVE_UNKNOWN_FIELDS))
    values = schema.get("additionalProperties")
    properties = {name: compile_schema(each) for name, each in (schema.get("properties") or {}).items()}
    with_default = {name: node for name, node in properties.items() if "default" in node.schema}
    defaults = {name: node.prune_and_default(node.schema["default"], name, []) for name, node in with_default.items()}
    return SchemaNode(
        schema,
        properties,
        compile_schema(schema["items"]) if isinstance(schema.get("items"), dict) else None,
        compile_schema(values)
        if isinstance(values, dict)
        else compile_schema({PRESERVE_UNKNOWN_FIELDS: True, "nullable": True})
        if values is True
        else None,
        is_open or (not schema.get("type") and not schema.get("properties")),
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
        name: tuple(compile_schema(each, preserves_unknown=True) for each in branches)
        for name, branches in listed.items()
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


def invalid_value(path: str, value: Any, message: str) -> Fault:
    return Fault(path, "FieldValueInvalid", f"Invalid value: {quoted_value(value)}: {message}")


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
    """Return whether the pattern matches part of the text, or None if the budget is exceeded."""
    try:
        regex = compile_regex(pattern)
    except RegexError:  # stored before patterns were validated
        return True
    work = len(value) * regex.size
    budget.work -= work
    if budget.work < 0:
        return None
    charge(work)
    return regex.matches(value)


def number_faults(schema: Object, value: float, path: str) -> Iterator[Fault]:
    if "minimum" in schema:
        minimum, strict = schema["minimum"], schema.get("exclusiveMinimum")
        if value < minimum or (strict and value == minimum):
            comparison = "greater than" if strict else "greater than or equal to"
            yield invalid_value(path, value, f"{path} in body should be {comparison} {minimum}")
    if "maximum" in schema:
        maximum, strict = schema["maximum"], schema.get("exclusiveMaximum")
        if value > maximum or (strict and value == maximum):
            comparison = "less than" if strict else "less than or equal to"
            yield invalid_value(path, value, f"{path} in body should be {comparison} {maximum}")
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
    maximum, minimum = schema.get(f"max{word}"), schema.get(f"min{word}", 0)
    if maximum is not None and size > maximum:
        yield Fault(path, "FieldValueTooMany", f"Too many: {size}: must have at most {maximum} items")
    if size < minimum:
        yield invalid_value(path, size, f"{path} in body should have at least {minimum} {noun}")
