"""Structural OpenAPI schemas generated from Structs, for pruning, defaulting and validation.

A structural schema has no references and no alternatives. Nested Structs are therefore inlined, a Struct must not
contain itself, and a union must be `T | None` or `int | str`. Any other type raises SchemaError, which names the type
and the field: `AtSpec.windows[].start: ...`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from functools import reduce
from inspect import cleandoc
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, UNSET, Meta, Struct, UnsetType
from msgspec.structs import FieldInfo

from tapestry.kube.api_types import (
    DURATION_PATTERN,
    IMMUTABLE,
    LIST_MAP_KEYS,
    LIST_TYPE,
    VALIDATIONS,
    Duration,
    decode_hook,
)
from tapestry.kube.objects import Object
from tapestry.kube.times import duration_text

INT_OR_STRING = "x-kubernetes-int-or-string"
PRESERVE_UNKNOWN_FIELDS = "x-kubernetes-preserve-unknown-fields"

JSON_TYPES: dict[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
SCALAR_SCHEMAS: dict[Any, Object] = {
    **{kind: {"type": name} for kind, name in JSON_TYPES.items()},
    Any: {PRESERVE_UNKNOWN_FIELDS: True},
    datetime: {"type": "string", "format": "date-time"},
    Duration: {"type": "string", "format": "duration", "pattern": DURATION_PATTERN},
}
LENGTH_SUFFIXES = {"array": "Items", "object": "Properties"}  # suffix of length limits other than minLength


class SchemaError(TypeError):
    """A type has no structural schema, or its default is invalid."""


def schema_of(struct: type[Struct]) -> Object:
    """Return the structural schema of a Struct. No part is shared, so callers may change it and YAML has no anchors."""
    schema: Object = msgspec.to_builtins(schema_for_hint(struct, SchemaPath(struct.__name__)))
    return schema


def to_unstructured(value: Any) -> Any:
    """Return `value` as JSON data. Struct fields that are None are omitted."""
    if isinstance(value, Struct):
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        parts = {name: getattr(value, attribute) for attribute, name in names}
        return {name: to_unstructured(part) for name, part in parts.items() if part is not None and part is not UNSET}
    if isinstance(value, dict):
        return {key: to_unstructured(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_unstructured(part) for part in value]
    return duration_text(value) if isinstance(value, Duration) else msgspec.to_builtins(value, order="deterministic")


@dataclass(frozen=True, slots=True)
class SchemaPath:
    """Position in the traversed type: the path for errors, and the enclosing Structs."""

    path: str
    enclosing: tuple[type[Struct], ...] = ()

    def at(self, step: str) -> "SchemaPath":
        return replace(self, path=self.path + step)

    def schema_error(self, message: str) -> SchemaError:
        return SchemaError(f"{self.path}: {message}")


def schema_for_hint(hint: Any, schema_path: SchemaPath) -> Object:
    bare, metas = unwrap_annotated(hint)
    schema = bare_schema(bare, schema_path)
    for meta in (*getattr(bare, "__rules__", ()), *metas):
        schema = with_meta(schema, meta, schema_path)
    if LIST_TYPE in schema or "items" in schema:
        check_list(schema, schema_path)
    if schema.get("nullable") and "enum" in schema:
        raise schema_path.schema_error(
            "an enum cannot be null in Kubernetes; use the default None to make the field optional"
        )
    if VALIDATIONS in schema and "type" not in schema and INT_OR_STRING not in schema:
        raise schema_path.schema_error("a rule needs a typed value, and Any has no type")
    return schema


def unwrap_annotated(hint: Any) -> tuple[Any, list[Meta]]:
    if get_origin(hint) is not Annotated:
        return hint, []
    return hint.__origin__, [meta for meta in hint.__metadata__ if isinstance(meta, Meta)]


def bare_schema(hint: Any, schema_path: SchemaPath) -> Object:
    if hint in SCALAR_SCHEMAS:
        return SCALAR_SCHEMAS[hint]
    if isinstance(hint, type) and issubclass(hint, Struct):
        return struct_schema(hint, schema_path)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return enum_schema([member.value for member in hint], schema_path)
    if (origin := get_origin(hint) or hint) in GENERIC_SCHEMAS:
        return GENERIC_SCHEMAS[origin](get_args(hint), schema_path)
    if hint is timedelta:
        raise schema_path.schema_error(
            "a timedelta is read as ISO 8601 (PT90S) and Kubernetes writes 90s; use Duration"
        )
    raise schema_path.schema_error(
        f"{type_name(hint)} has no structural schema; use Structs, scalars, and lists and dicts of them"
    )


def struct_schema(struct: type[Struct], schema_path: SchemaPath) -> Object:
    if struct in schema_path.enclosing:
        raise schema_path.schema_error(
            f"{struct.__name__} contains itself; a schema has no references, use dict[str, Any]"
        )
    config = struct.__struct_config__
    if config.tag is not None or config.array_like:
        raise schema_path.schema_error(
            f"{struct.__name__} is tagged or array_like; a schema describes plain Structs only"
        )
    inner = SchemaPath(schema_path.path, (*schema_path.enclosing, struct))
    fields = msgspec.structs.fields(struct)
    schema = {
        "description": cleandoc(struct.__doc__ or ""),
        "type": "object",
        "required": [info.encode_name for info in fields if info.required],
        "properties": {info.encode_name: field_schema(info, inner.at(f".{info.name}")) for info in fields},
    }
    return {key: value for key, value in schema.items() if value}


def field_schema(info: FieldInfo, schema_path: SchemaPath) -> Object:
    default = info.default if info.default_factory is NODEFAULT else info.default_factory()
    may_be_absent = default is None or default is UNSET
    schema = schema_for_hint(without_none(info.type) if may_be_absent else info.type, schema_path)
    if may_be_absent and is_immutable(schema):
        raise schema_path.schema_error(
            "an immutable field must be required or have a default, or it could be removed and set again"
        )
    try:
        decoder = msgspec.json.Decoder(info.type, dec_hook=decode_hook)
    except TypeError as error:  # a constraint that does not fit its type
        raise schema_path.schema_error(str(error)) from None
    return (
        schema
        if info.required or may_be_absent
        else {**schema, "default": checked_default(to_unstructured(default), decoder, schema_path)}
    )


def checked_default(default: Any, decoder: msgspec.json.Decoder[Any], schema_path: SchemaPath) -> Any:
    try:
        decoder.decode(msgspec.json.encode(default))
    except msgspec.ValidationError as error:
        raise schema_path.schema_error(f"the default {default!r} is not valid: {error}") from None
    return default


def is_immutable(schema: Object) -> bool:
    (rule,) = (IMMUTABLE.extra_json_schema or {})[VALIDATIONS]
    return rule in schema.get(VALIDATIONS, ())


def without_none(hint: Any) -> Any:
    """Return `T` for `T | None`, with its annotations."""
    bare, metas = unwrap_annotated(hint)
    if get_origin(bare) not in (Union, UnionType):
        return hint
    remaining = reduce(or_, [arg for arg in get_args(bare) if arg is not NoneType])
    return Annotated[(remaining, *metas)] if metas else remaining


def list_schema(args: Sequence[Any], schema_path: SchemaPath) -> Object:
    if len(args) != 1:
        raise schema_path.schema_error("all items must have one type: list[T] or tuple[T, ...]")
    return {"type": "array", "items": schema_for_hint(args[0], schema_path.at("[]"))}


def tuple_schema(args: Sequence[Any], schema_path: SchemaPath) -> Object:
    return list_schema(args[:1] if args[1:] == (...,) else (), schema_path)


def set_schema(args: Sequence[Any], schema_path: SchemaPath) -> Object:
    return {**list_schema(args, schema_path), LIST_TYPE: "set"}


def dict_schema(args: Sequence[Any], schema_path: SchemaPath) -> Object:
    key, value = args or (str, Any)
    if key is not str:
        raise schema_path.schema_error(f"the keys of a JSON object are any str, not {type_name(key)}")
    if value is Any:
        return {"type": "object", PRESERVE_UNKNOWN_FIELDS: True}
    return {"type": "object", "additionalProperties": schema_for_hint(value, schema_path.at("[]"))}


def enum_schema(values: Sequence[Any], schema_path: SchemaPath) -> Object:
    types = {type(value) for value in values}
    if len(types) != 1 or not types <= JSON_TYPES.keys():
        raise schema_path.schema_error(f"an enum is all str or all int, not {', '.join(map(repr, values))}")
    return {"type": JSON_TYPES[types.pop()], "enum": list(values)}


def union_schema(args: Sequence[Any], schema_path: SchemaPath) -> Object:
    members = [arg for arg in args if arg not in (NoneType, UnsetType)]
    schemas = [schema_for_hint(member, schema_path) for member in members]
    if len(members) == 1:
        schema = schemas[0]
    elif {unwrap_annotated(member)[0] for member in members} == {int, str}:
        limits = {key: value for part in schemas for key, value in part.items() if key != "type"}
        schema = {INT_OR_STRING: True, **limits}
    else:
        names = " | ".join(map(type_name, members))
        raise schema_path.schema_error(
            f"{names} has no structural schema, only T | None and int | str do; use optional fields"
        )
    return {**schema, "nullable": True} if NoneType in args else schema


GENERIC_SCHEMAS: dict[Any, Callable[[Sequence[Any], SchemaPath], Object]] = {
    list: list_schema,
    tuple: tuple_schema,
    set: set_schema,
    frozenset: set_schema,
    dict: dict_schema,
    Literal: enum_schema,
    Union: union_schema,
    UnionType: union_schema,
}


def with_meta(schema: Object, meta: Meta, schema_path: SchemaPath) -> Object:
    """Return `schema` with the constraints of `meta`. msgspec checks that they fit the type."""
    extra = meta.extra_json_schema or {}
    if any(not key.startswith("x-kubernetes-") and key not in ("format", "nullable") for key in extra) or meta.examples:
        raise schema_path.schema_error(
            "a Meta may set only its arguments, format, nullable and x-kubernetes-*, and no examples"
        )
    if meta.multiple_of is not None and meta.multiple_of != int(meta.multiple_of):
        raise schema_path.schema_error(
            f"multiple_of={meta.multiple_of}: Kubernetes truncates it to an int when it validates an integer"
        )
    length = LENGTH_SUFFIXES.get(schema.get("type", ""), "Length")
    constraints = {
        "title": meta.title,
        "description": meta.description,
        "minimum": meta.gt if meta.ge is None else meta.ge,
        "exclusiveMinimum": None if meta.gt is None else True,
        "maximum": meta.lt if meta.le is None else meta.le,
        "exclusiveMaximum": None if meta.lt is None else True,
        "multipleOf": meta.multiple_of,
        "pattern": meta.pattern,
        f"min{length}": meta.min_length,
        f"max{length}": meta.max_length,
        **extra,
    }
    if VALIDATIONS in schema and VALIDATIONS in extra:
        constraints[VALIDATIONS] = [*schema[VALIDATIONS], *extra[VALIDATIONS]]
    return {**schema, **{key: value for key, value in constraints.items() if value is not None}}


def check_list(schema: Object, schema_path: SchemaPath) -> None:
    items, kind = schema.get("items", {}), schema.get(LIST_TYPE, "atomic")
    if "items" not in schema:
        raise schema_path.schema_error("only a list can be a set or a map of its items")
    if kind != "map" and uses_old_self(items):
        raise schema_path.schema_error("rules on oldSelf need items with keys; annotate the list with as_map(...)")
    if kind == "set" and items.get("type") in ("object", "array"):
        raise schema_path.schema_error("the items of a set are scalars; for Structs use as_map(...)")
    if kind != "atomic" and items.get("nullable"):
        raise schema_path.schema_error("the items of a set or a map are never null")
    for key in schema.get(LIST_MAP_KEYS, ()):
        key_schema = items.get("properties", {}).get(key)
        if key_schema is None or key_schema.get("type") not in JSON_TYPES.values() or key_schema.get("nullable"):
            raise schema_path.schema_error(
                f"as_map({key!r}): the items have no such field that is a scalar and never null"
            )
        if key not in items.get("required", ()) and "default" not in key_schema:
            raise schema_path.schema_error(f"as_map({key!r}): the key of a map is required or has a default")


def uses_old_self(schema: Object) -> bool:
    """Return True if any rule in `schema` uses the old value."""
    parts = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    is_used = any("oldSelf" in rule["rule"] for rule in schema.get(VALIDATIONS, ()))
    return is_used or any(uses_old_self(part) for part in parts if part)


def type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
