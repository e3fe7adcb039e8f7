"""What schemas say to expressions: the types of what they describe, and how its JSON becomes values of these types.

A field has in expressions the name that `escaped` gives it.  What a schema leaves open is of no type, and fields of no
type cannot be asked for.
"""

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any

from tapestry.kube.cel.library.moments import day, moment, span
from tapestry.kube.cel.syntax import RESERVED
from tapestry.kube.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    Field,
    Type,
    list_of,
    map_of,
)
from tapestry.kube.cel.values import MapList, SetList
from tapestry.kube.objects import Object

Convert = Callable[[Any], Any]
INT_OR_STRING, EMBEDDED = "x-kubernetes-int-or-string", "x-kubernetes-embedded-resource"
KEYWORDS = RESERVED | {"true", "false", "null", "in"}
ESCAPES = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
TEXT = {"type": "string"}
METADATA: Object = {"type": "object", "properties": {"name": TEXT, "generateName": TEXT}}
EVERY_OBJECT = {"apiVersion": TEXT, "kind": TEXT, "metadata": METADATA}

SIMPLE = {"boolean": BOOL, "number": DOUBLE, "integer": INT}
FORMATTED = {"byte": BYTES, "duration": DURATION, "date": TIMESTAMP, "date-time": TIMESTAMP}
READ: Mapping[str, Convert] = {
    "byte": lambda text: base64.b64decode(text, validate=True),
    "duration": span,
    "date": day,
    "date-time": moment,
}


def escaped(name: str) -> str | None:
    """A field's name in expressions; None where it can have none."""
    if not re.fullmatch(r"[A-Za-z_./-][A-Za-z0-9_./-]*", name):
        return None
    if name in KEYWORDS:
        return f"__{name}__"
    return re.sub(r"__|[-./]", lambda found: ESCAPES[found.group()], name)


def whole_object(schema: Object) -> Object:
    """The schema of an object that has an apiVersion, a kind and metadata, of which only the names are known."""
    return {**schema, "properties": {**(schema.get("properties") or {}), **EVERY_OBJECT}}


def declared_type(schema: Object, name: str, *, is_whole: bool = False) -> Type | None:
    """The type of what a structural schema describes; types of objects are told apart by name."""
    if schema.get(INT_OR_STRING):
        return DYN
    if is_whole or schema.get(EMBEDDED):
        schema = whole_object(schema)
    match schema.get("type"):
        case "array":
            item = declared_type(schema.get("items") or {}, f"{name}.@idx")
            return list_of(item, most_items(schema)) if item is not None else None
        case "object":
            return object_type(schema, name)
        case "string":
            return FORMATTED.get(schema.get("format", ""), STRING)
        case kind:
            return SIMPLE.get(kind or "")


def object_type(schema: Object, name: str) -> Type | None:
    values = schema.get("additionalProperties")
    if isinstance(values, dict):
        found = declared_type(values, f"{name}.@elem")
        return map_of(STRING, found, most_items(schema)) if found is not None else None
    fields = {}
    for each, below in (schema.get("properties") or {}).items():
        called = escaped(each)
        found = declared_type(below, f"{name}.{called}")
        if called is not None and found is not None:
            fields[called] = Field(each, found)
    return Type(name, fields=fields)


def most_items(schema: Object) -> int:
    """How many elements a list or a map can have: as it says, or as fit into a request."""
    if schema["type"] == "array":
        return int(schema.get("maxItems", (MAX_REQUEST - 2) // (least_size(schema.get("items") or {}) + 1)))
    return int(schema.get("maxProperties", (MAX_REQUEST - 2) // (least_size(schema["additionalProperties"]) + 6)))


def least_size(schema: Object) -> int:
    """The bytes that a value takes at least."""
    kind = schema.get("type", "")
    if kind == "object" and not isinstance(schema.get("additionalProperties"), dict):
        properties = schema.get("properties") or {}
        needed = [name for name in schema.get("required") or () if "default" not in properties.get(name, NONE)]
        return 2 + sum(len(name) + least_size(properties[name]) + 4 for name in needed)
    if kind == "string" and schema.get("format") in LEAST_FORMATTED:
        return LEAST_FORMATTED[schema["format"]]
    return LEAST.get(kind, 1)


MAX_REQUEST = 3 * 1024 * 1024
LEAST = {"array": 2, "object": 2, "string": 2, "boolean": 4, "integer": 1, "number": 1}
LEAST_FORMATTED = {"duration": 3, "date": 12, "date-time": 21}
NONE: Object = {"default": None}


def conversion(schema: Object) -> Convert | None:
    """How JSON becomes values; None where it can stay as it is."""
    if schema.get(INT_OR_STRING):
        return None
    match schema.get("type"):
        case "number":
            return lambda value: float(value) if isinstance(value, int) else value
        case "string":
            read = READ.get(schema.get("format", ""))
            return reading(read) if read is not None else None
        case "array":
            return list_conversion(schema)
        case "object":
            return object_conversion(schema)
    return None


def reading(read: Convert) -> Convert:
    def convert(value: Any) -> Any:
        try:
            return read(value)
        except (ValueError, TypeError):  # a null, or what its format has not been asked of
            return value

    return convert


def list_conversion(schema: Object) -> Convert | None:
    item, kind = conversion(schema.get("items") or {}), schema.get("x-kubernetes-list-type")
    keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
    if item is None and kind not in ("set", "map"):
        return None

    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        items = [item(each) for each in value] if item is not None else value
        return MapList(items, keys) if kind == "map" else SetList(items) if kind == "set" else items

    return convert


def object_conversion(schema: Object) -> Convert | None:
    values = schema.get("additionalProperties")
    every = conversion(values) if isinstance(values, dict) else None
    fields = {name: conversion(below) for name, below in (schema.get("properties") or {}).items()}
    known = {name: convert for name, convert in fields.items() if convert is not None}
    if every is None and not known:
        return None

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if every is not None:
            return {key: every(each) for key, each in value.items()}
        return {key: known[key](each) if key in known else each for key, each in value.items()}

    return convert
