"""Decoders for JSON objects of built-in kinds, compiled once from their schemas.

They follow the decoding of Kubernetes: unknown fields are dropped and reported; nulls and empty lists and maps are
absent; structs that Go always encodes are present; a value of the wrong JSON type is rejected. Validation checks the
meaning of values.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, lru_cache
from typing import Any

import msgspec

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.faults import child_path
from tapestry.apiserver.core.resource_registry import published_api
from tapestry.apiserver.core.spec_cache import Interned, SpecCache
from tapestry.kube.budget import checkpoint
from tapestry.kube.objects import Object
from tapestry.kube.quantity import QuantityError, parse_quantity
from tapestry.kube.times import micro_timestamp, timestamp

OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


@dataclass(slots=True)
class DecodeReport:
    """Findings while a body is decoded, and the cache of interned parts."""

    cache: SpecCache | None = None
    unknown: list[str] = field(default_factory=list)
    """Paths of unknown fields."""


Decoder = Callable[[Any, str, DecodeReport], Any]

encode = msgspec.json.Encoder().encode

SCALARS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "number": (int, float),
}
STRINGS = frozenset({str})
CHECKPOINT_ITEMS = 1_000
"""Length of a list above which the request checks its deadline."""
BASE64_PATTERN = re.compile(r"[A-Za-z0-9+/]*={0,2}")
QUANTITY_PATTERN = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
GO_NAMES = {"string": "string", "boolean": "bool", "number": "float64"}


@cache
def published_decoders() -> "TypeDecoders":
    """Return the decoders of the published types, which all servers of a process share."""
    return TypeDecoders(published_api().schemas)


class TypeDecoders:
    """Decoders of the published types. Each is compiled on first use."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas
        self._compiled: dict[str, Decoder] = {}

    def decode(self, name: str, body: Object, kind: str, cache: SpecCache | None = None) -> tuple[Object, DecodeReport]:
        """Return `body` as an object of type `name`. Raises BadRequest."""
        report = DecodeReport(cache)
        try:
            result: Object = self.decoder_for(name)(body, "", report)
        except TypeMismatch as error:
            version = body.get("apiVersion", "").rpartition("/")[2]
            described = f'{kind} in version "{version}"' if version else kind
            raise api_errors.bad_request(f"{described} cannot be handled as a {kind}: {error}") from error
        return result, report

    def decoder_for(self, name: str) -> Decoder:
        if name not in self._compiled:
            read = CUSTOM_DECODERS.get(name) or self._compile(self._schemas[name], name)
            self._compiled[name] = interned_decoder(read) if name in INTERNED_TYPES else read
        return self._compiled[name]

    def _compile(self, schema: Object, name: str = "") -> Decoder:
        if name in UNION_TYPES:
            return union_decoder(UNION_TYPES[name], LazyDecoder(self, JSON_SCHEMA))
        if "$ref" in schema:
            return LazyDecoder(self, schema["$ref"])
        if schema.get("x-kubernetes-int-or-string"):
            return decode_int_or_string
        kind: str = schema.get("type", "")
        if schema.get("format") == "byte":
            return decode_base64
        if kind in SCALARS:
            return scalar_decoder(kind)
        if kind == "integer":
            return integer_decoder(schema.get("format", "int64"))
        if kind == "array":
            return array_decoder(self._compile(schema["items"]))
        if "properties" in schema:
            fields = {field: self._compile(each) for field, each in schema["properties"].items()}
            omit_empty = (
                frozenset(field for field, each in schema["properties"].items() if is_collection(each))
                - SIGNIFICANT_WHEN_EMPTY
            )
            return struct_decoder(
                fields, omit_empty, self._zero_values(schema) | dict.fromkeys(NULL_WHERE_EMPTY.get(name, ()))
            )
        if isinstance(values := schema.get("additionalProperties"), dict):
            item = map_decoder(self._compile(values))
            return string_map_decoder(item) if values.get("type") == "string" and "format" not in values else item
        return decode_raw_object if kind else decode_any

    def _zero_values(self, schema: Object) -> Object:
        """Return the structs that are present even if unset, because they are not pointers in Go."""
        fields = schema.get("properties", {}).items()
        return {
            name: self._zero_values(self._schemas[each["$ref"]]) for name, each in fields if each.get("default") == {}
        }


class TypeMismatch(Exception):
    """A value does not have the type of its field."""

    def __init__(self, value: Any, path: str, go_type: str) -> None:
        result = {
            dict: "object",
            Interned: "object",
            list: "array",
            str: "string",
            bool: "bool",
            type(None): "null",
        }.get(type(value), "number")
        super().__init__(f"json: cannot unmarshal {result} into Go struct field {path} of type {go_type}")


def plain_number(number: float) -> str:
    """Return a number without an exponent, shortened if it is very long."""
    return f"{number:.0f}" if isinstance(number, float) else str(number)[:40]


class OutOfRange(TypeMismatch):
    """A number does not fit into the bits of its field."""

    def __init__(self, value: float, path: str, go_type: str) -> None:
        Exception.__init__(
            self, f"json: cannot unmarshal number {plain_number(value)} into Go struct field {path} of type {go_type}"
        )


class InvalidQuantity(TypeMismatch):
    """A value is not a valid quantity."""

    def __init__(self) -> None:
        Exception.__init__(self, f"quantities must match the regular expression '{QUANTITY_PATTERN}'")


class InvalidTime(TypeMismatch):
    """A value is not a valid time."""

    def __init__(self, value: str) -> None:
        why = f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot parse "{value}" as "2006"'
        Exception.__init__(self, why)


class LazyDecoder:
    """A decoder that is looked up on first use, because types can refer to each other in cycles."""

    __slots__ = ("_name", "_read", "_types")

    def __init__(self, types: TypeDecoders, name: str) -> None:
        self._types, self._name = types, name
        self._read: Decoder | None = None

    def __call__(self, value: Any, path: str, report: DecodeReport) -> Any:
        if self._read is None:
            self._read = self._types.decoder_for(self._name)
        return self._read(value, path, report)


def scalar_decoder(kind: str) -> Decoder:
    accepted = SCALARS[kind]

    def read(value: Any, path: str, _: DecodeReport) -> Any:
        if type(value) in accepted:
            return value
        raise TypeMismatch(value, path, GO_NAMES[kind])

    return read


def integer_decoder(format: str) -> Decoder:
    """Return a decoder for integers of a fixed size, so that loops over received numbers are bounded."""
    limit = 2 ** (int(format.removeprefix("int")) - 1)

    def read(value: Any, path: str, _: DecodeReport) -> Any:
        if type(value) is not int and not (isinstance(value, float) and value.is_integer()):
            raise TypeMismatch(value, path, format)
        if not -limit <= value < limit:
            raise OutOfRange(value, path, format)
        return int(value)

    return read


def time_decoder(canonical_pattern: str, format_time: Callable[[datetime], str]) -> Decoder:
    """Return a decoder that keeps times in the canonical form of Go and rewrites others."""
    pattern = re.compile(canonical_pattern)

    def read(value: Any, path: str, _: DecodeReport) -> Any:
        if type(value) is not str:
            raise TypeMismatch(value, path, "string")
        if pattern.fullmatch(value):
            return value
        try:
            return format_time(datetime.fromisoformat(value))
        except ValueError as error:  # not a time, or one without a zone
            raise InvalidTime(value) from error

    return read


def array_decoder(item: Decoder) -> Decoder:
    def read(value: Any, path: str, report: DecodeReport) -> Any:
        if type(value) is not list:
            raise TypeMismatch(value, path, "slice")
        if len(value) > CHECKPOINT_ITEMS:
            checkpoint()
        return [item(each, f"{path}[{number}]", report) for number, each in enumerate(value) if each is not None]

    return read


def is_collection(schema: Object) -> bool:
    """Return whether the schema is that of a list or a map."""
    return schema.get("type") == "array" or isinstance(schema.get("additionalProperties"), dict)


def struct_decoder(fields: Mapping[str, Decoder], omit_empty: frozenset[str], zero_values: Object) -> Decoder:
    """Return a decoder for a struct; `omit_empty` names fields that are absent if they are empty, as in Kubernetes."""

    def read(value: Any, path: str, report: DecodeReport) -> Any:
        if not isinstance(value, dict):
            raise TypeMismatch(value, path, "object")
        result = {}
        for key, each in value.items():
            decode = fields.get(key)
            if decode is None:
                report.unknown.append(child_path(path, key))
            elif each is not None:
                decoded = decode(each, f"{path}.{key}" if path else key, report)
                if decoded or key not in omit_empty:
                    result[key] = decoded
        for key, empty in zero_values.items():
            result.setdefault(key, empty)
        return result

    return read


def map_decoder(item: Decoder) -> Decoder:
    def read(value: Any, path: str, report: DecodeReport) -> Any:
        if not isinstance(value, dict):
            raise TypeMismatch(value, path, "map")
        return {key: item(each, child_path(path, key), report) for key, each in value.items() if each is not None}

    return read


def string_map_decoder(decode: Decoder) -> Decoder:
    """Return a decoder for a map of strings, which needs no paths if all values are strings."""

    def read(value: Any, path: str, report: DecodeReport) -> Any:
        if type(value) is dict and STRINGS.issuperset(map(type, value.values())):
            return {**value}
        return decode(value, path, report)

    return read


def interned_decoder(read: Decoder) -> Decoder:
    """Return a decoder that interns results: equal texts in the same place give the same value."""

    def decode(value: Any, path: str, report: DecodeReport) -> Any:
        if report.cache is None:
            return read(value, path, report)

        def read_first() -> tuple[Any, list[str]]:
            inner_report = DecodeReport()
            return read(value, path, inner_report), inner_report.unknown

        found, unknown = report.cache.intern(encode(value), (read, path), read_first)
        report.unknown += unknown
        return found

    return decode


def decode_int_or_string(value: Any, path: str, _: DecodeReport) -> Any:
    if type(value) in (str, int, float):
        return value
    raise TypeMismatch(value, path, "intstr.IntOrString")


class InvalidBase64(TypeMismatch):
    """A text is not valid base64."""

    def __init__(self, at: int) -> None:
        Exception.__init__(self, f"illegal base64 data at input byte {at}")


def decode_base64(value: Any, path: str, _: DecodeReport) -> Any:
    if type(value) is not str:
        raise TypeMismatch(value, path, "[]uint8")
    match = BASE64_PATTERN.match(value)
    if match is None or match.end() != len(value) or len(value) % 4:
        raise InvalidBase64(match.end() if match else 0)
    return value


def decode_quantity(value: Any, _: str, __: DecodeReport) -> Any:
    """Return the canonical form of a quantity: `0.5` becomes `500m`."""
    try:
        return canonical_quantity(value)
    except (QuantityError, TypeError):
        raise InvalidQuantity from None


@lru_cache(maxsize=4096)  # clusters repeat the same few hundred texts
def canonical_quantity(value: str | int | float) -> str:
    return str(parse_quantity(value))


def union_decoder(other_type: type, struct_decode: Decoder) -> Decoder:
    """Return a decoder for a struct or a value of another type."""
    return lambda value, path, report: value if type(value) is other_type else struct_decode(value, path, report)


def decode_raw_object(value: Any, path: str, report: DecodeReport) -> Any:
    if not isinstance(value, dict):
        raise TypeMismatch(value, path, "object")
    return decode_any(value, path, report)


def decode_any(value: Any, _: str, __: DecodeReport) -> Any:
    return value


SECONDS_PATTERN = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"
CUSTOM_DECODERS: Mapping[str, Decoder] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": decode_quantity,
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": time_decoder(f"{SECONDS_PATTERN}Z", timestamp),
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime": time_decoder(rf"{SECONDS_PATTERN}\.\d{{6}}Z", micro_timestamp),
}
"""Types with a custom JSON form in Go."""
JSON_SCHEMA = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"
UNION_TYPES = {f"{JSON_SCHEMA}OrArray": type(None), f"{JSON_SCHEMA}OrBool": bool, f"{JSON_SCHEMA}OrStringArray": list}
"""Types whose values are schemas or values of another type. Schemas for single list items are not structural."""
INTERNED_TYPES = frozenset({"io.k8s.api.core.v1.PodSpec"})
"""Types whose values repeat, once for each replica."""
SIGNIFICANT_WHEN_EMPTY = frozenset({"managedFields"})
"""Lists for which empty differs from absent: an empty one clears all managers."""
NULL_WHERE_EMPTY: Mapping[str, tuple[str, ...]] = {
    "io.k8s.api.discovery.v1.EndpointSlice": ("endpoints", "ports"),
    "io.k8s.api.rbac.v1.ClusterRole": ("rules",),
    "io.k8s.api.rbac.v1.Role": ("rules",),
    "io.k8s.api.storage.v1.CSINodeSpec": ("drivers",),
}
"""Lists that are encoded as null if empty, because their Go fields are not marked `omitempty`."""
