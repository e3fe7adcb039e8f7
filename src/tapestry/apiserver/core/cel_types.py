"""CEL types of structural schemas, and conversion of JSON to values of these types.

`escaped_name` gives the name of a field in expressions. Parts of a schema without a type have no CEL type, and
expressions cannot access them.
"""

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any

from tapestry.kube.cel.library.timestamps import parse_date, parse_duration, parse_timestamp
from tapestry.kube.cel.parser import RESERVED
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

CelConversion = Callable[[Any], Any]
INT_OR_STRING, EMBEDDED_RESOURCE = "x-kubernetes-int-or-string", "x-kubernetes-embedded-resource"
KEYWORDS = RESERVED | {"true", "false", "null", "in"}
ESCAPES = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
STRING_SCHEMA = {"type": "string"}
METADATA_SCHEMA: Object = {"type": "object", "properties": {"name": STRING_SCHEMA, "generateName": STRING_SCHEMA}}
OBJECT_PROPERTIES = {"apiVersion": STRING_SCHEMA, "kind": STRING_SCHEMA, "metadata": METADATA_SCHEMA}

SIMPLE_TYPES = {"boolean": BOOL, "number": DOUBLE, "integer": INT}
FORMAT_TYPES = {"byte": BYTES, "duration": DURATION, "date": TIMESTAMP, "date-time": TIMESTAMP}
FORMAT_CONVERSIONS: Mapping[str, CelConversion] = {
    "byte": lambda text: base64.b64decode(text, validate=True),
    "duration": parse_duration,
    "date": parse_date,
    "date-time": parse_timestamp,
}


def escaped_name(name: str) -> str | None:
    """A field's name in expressions, or None if expressions cannot access it."""
    if not re.fullmatch(r"[A-Za-z_./-][A-Za-z0-9_./-]*", name):
        return None
    if name in KEYWORDS:
        return f"__{name}__"
    return re.sub(r"__|[-./]", lambda match: ESCAPES[match.group()], name)


def resource_root_schema(schema: Object) -> Object:
    """The schema of an object with apiVersion, kind and metadata, of which only the names are declared."""
    return {**schema, "properties": {**(schema.get("properties") or {}), **OBJECT_PROPERTIES}}


def declared_type(schema: Object, name: str, *, is_resource_root: bool = False) -> Type | None:
    """The type of what a structural schema describes. `name` distinguishes object types."""
    if schema.get(INT_OR_STRING):
        return DYN
    if is_resource_root or schema.get(EMBEDDED_RESOURCE):
        schema = resource_root_schema(schema)
    match schema.get("type"):
        case "array":
            item = declared_type(schema.get("items") or {}, f"{name}.@idx")
            return list_of(item, max_items(schema)) if item is not None else None
        case "object":
            return object_type(schema, name)
        case "string":
            return FORMAT_TYPES.get(schema.get("format", ""), STRING)
        case kind:
            return SIMPLE_TYPES.get(kind or "")


def object_type(schema: Object, name: str) -> Type | None:
    values = schema.get("additionalProperties")
    if isinstance(values, dict):
        value_type = declared_type(values, f"{name}.@elem")
        return map_of(STRING, value_type, max_items(schema)) if value_type is not None else None
    fields = {}
    for field_name, field_schema in (schema.get("properties") or {}).items():
        escaped = escaped_name(field_name)
        value_type = declared_type(field_schema, f"{name}.{escaped}")
        if escaped is not None and value_type is not None:
            fields[escaped] = Field(field_name, value_type)
    return Type(name, fields=fields)


def max_items(schema: Object) -> int:
    """Maximum number of elements of a list or map: the declared limit, or what fits into a request."""
    if schema["type"] == "array":
        return int(schema.get("maxItems", (MAX_REQUEST_BYTES - 2) // (min_size(schema.get("items") or {}) + 1)))
    return int(schema.get("maxProperties", (MAX_REQUEST_BYTES - 2) // (min_size(schema["additionalProperties"]) + 6)))


def min_size(schema: Object) -> int:
    """Minimum size of a value in bytes."""
    kind = schema.get("type", "")
    if kind == "object" and not isinstance(schema.get("additionalProperties"), dict):
        properties = schema.get("properties") or {}
        required = [name for name in schema.get("required") or () if "default" not in properties.get(name, NO_PROPERTY)]
        return 2 + sum(len(name) + min_size(properties[name]) + 4 for name in required)
    if kind == "string" and schema.get("format") in MIN_FORMAT_SIZES:
        return MIN_FORMAT_SIZES[schema["format"]]
    return MIN_SIZES.get(kind, 1)


MAX_REQUEST_BYTES = 3 * 1024 * 1024
MIN_SIZES = {"array": 2, "object": 2, "string": 2, "boolean": 4, "integer": 1, "number": 1}
MIN_FORMAT_SIZES = {"duration": 3, "date": 12, "date-time": 21}
NO_PROPERTY: Object = {"default": None}


def cel_conversion(schema: Object) -> CelConversion | None:
    """The conversion from JSON to CEL values, or None if none is needed."""
    if schema.get(INT_OR_STRING):
        return None
    match schema.get("type"):
        case "number":
            return lambda value: float(value) if isinstance(value, int) else value
        case "string":
            parse = FORMAT_CONVERSIONS.get(schema.get("format", ""))
            return lenient_conversion(parse) if parse is not None else None
        case "array":
            return list_conversion(schema)
        case "object":
            return object_conversion(schema)
    return None


def lenient_conversion(read: CelConversion) -> CelConversion:
    def convert(value: Any) -> Any:
        try:
            return read(value)
        except (ValueError, TypeError):  # a null, or a text that was not validated
            return value

    return convert


def list_conversion(schema: Object) -> CelConversion | None:
    item, kind = cel_conversion(schema.get("items") or {}), schema.get("x-kubernetes-list-type")
    keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
    if item is None and kind not in ("set", "map"):
        return None

    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        items = [item(each) for each in value] if item is not None else value
        return MapList(items, keys) if kind == "map" else SetList(items) if kind == "set" else items

    return convert


def object_conversion(schema: Object) -> CelConversion | None:
    values = schema.get("additionalProperties")
    convert_value = cel_conversion(values) if isinstance(values, dict) else None
    fields = {name: cel_conversion(field_schema) for name, field_schema in (schema.get("properties") or {}).items()}
    convert_field = {name: convert for name, convert in fields.items() if convert is not None}
    if convert_value is None and not convert_field:
        return None

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if convert_value is not None:
            return {key: convert_value(each) for key, each in value.items()}
        return {key: convert_field[key](each) if key in convert_field else each for key, each in value.items()}

    return convert
