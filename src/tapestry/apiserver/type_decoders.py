"""Types: what JSON has to look like to be an object of a built-in kind, compiled once from its schema.

Reading a value checks it as Kubernetes' own decoding does: a field that the type does not have is dropped and reported,
null is absent, and so are lists and maps without anything in them; a struct that Go always has is there, and a value of
the wrong JSON type is refused.  What is meaningless all the same is for validation.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

from tapestry.apiserver import api_errors, spec_cache
from tapestry.apiserver.customresources.structural_schema import child_path
from tapestry.kube.budget import checkpoint
from tapestry.kube.objects import Object
from tapestry.kube.quantity import QuantityError, parse_quantity
from tapestry.kube.times import micro_timestamp, timestamp


@dataclass(slots=True)
class DecodeReport:
    """What was noticed while a body was read."""

    unknown: list[str] = field(default_factory=list)
    """Paths of fields that the type does not have."""


Decoder = Callable[[Any, str, DecodeReport], Any]

encode = msgspec.json.Encoder().encode

SCALARS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "number": (int, float),
}
CHECKPOINT_ITEMS = 1_000
"""Items of a list before which a request looks at its time."""
BASE64_PATTERN = re.compile(r"[A-Za-z0-9+/]*={0,2}")
QUANTITY_PATTERN = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
GO_NAMES = {"string": "string", "boolean": "bool", "number": "float64"}


class TypeDecoders:
    """The types of the published table.  Each is compiled when it is first asked for, and once."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas
        self._compiled: dict[str, Decoder] = {}

    def decode(self, name: str, body: Object, kind: str) -> tuple[Object, DecodeReport]:
        """`body` as an object of type `name`; raises BadRequest."""
        reading = DecodeReport()
        try:
            found: Object = self.decoder_for(name)(body, "", reading)
        except TypeMismatch as error:
            version = body.get("apiVersion", "").rpartition("/")[2]
            described = f'{kind} in version "{version}"' if version else kind
            raise api_errors.bad_request(f"{described} cannot be handled as a {kind}: {error}") from error
        return found, reading

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
            several = (
                frozenset(field for field, each in schema["properties"].items() if is_collection(each))
                - SIGNIFICANT_WHEN_EMPTY
            )
            return struct_decoder(
                fields, several, self._zero_values(schema) | dict.fromkeys(NULL_WHERE_EMPTY.get(name, ()))
            )
        if isinstance(values := schema.get("additionalProperties"), dict):
            return map_decoder(self._compile(values))
        return decode_raw_object if kind else decode_any

    def _zero_values(self, schema: Object) -> Object:
        """What a struct has even where nobody said anything: the structs in it, which are no pointers."""
        fields = schema.get("properties", {}).items()
        return {
            name: self._zero_values(self._schemas[each["$ref"]]) for name, each in fields if each.get("default") == {}
        }


class TypeMismatch(Exception):
    """A value is not of the type that its field has."""

    def __init__(self, value: Any, path: str, go_type: str) -> None:
        found = {dict: "object", list: "array", str: "string", bool: "bool", type(None): "null"}.get(
            type(value), "number"
        )
        super().__init__(f"json: cannot unmarshal {found} into Go struct field {path} of type {go_type}")


def plain_number(number: float) -> str:
    """A number without an exponent; of a very long one, its beginning."""
    return f"{number:.0f}" if isinstance(number, float) else str(number)[:40]


class OutOfRange(TypeMismatch):
    """A number does not fit into as many bits as its field has."""

    def __init__(self, value: float, path: str, go_type: str) -> None:
        Exception.__init__(
            self, f"json: cannot unmarshal number {plain_number(value)} into Go struct field {path} of type {go_type}"
        )


class InvalidQuantity(TypeMismatch):
    """A value is no quantity."""

    def __init__(self) -> None:
        Exception.__init__(self, f"quantities must match the regular expression '{QUANTITY_PATTERN}'")


class InvalidTime(TypeMismatch):
    """A value is no time."""

    def __init__(self, value: str) -> None:
        why = f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot parse "{value}" as "2006"'
        Exception.__init__(self, why)


class LazyDecoder:
    """A type that is looked up when a value first comes to it: types refer to each other in circles."""

    __slots__ = ("_name", "_read", "_types")

    def __init__(self, types: TypeDecoders, name: str) -> None:
        self._types, self._name = types, name
        self._read: Decoder | None = None

    def __call__(self, value: Any, path: str, reading: DecodeReport) -> Any:
        if self._read is None:
            self._read = self._types.decoder_for(self._name)
        return self._read(value, path, reading)


def scalar_decoder(kind: str) -> Decoder:
    accepted = SCALARS[kind]

    def read(value: Any, path: str, _: DecodeReport) -> Any:
        if type(value) in accepted:
            return value
        raise TypeMismatch(value, path, GO_NAMES[kind])

    return read


def integer_decoder(format: str) -> Decoder:
    """Of so many bits: who loops over a number that came in has to know that it ends."""
    beyond = 2 ** (int(format.removeprefix("int")) - 1)

    def read(value: Any, path: str, _: DecodeReport) -> Any:
        if type(value) is not int and not (isinstance(value, float) and value.is_integer()):
            raise TypeMismatch(value, path, format)
        if not -beyond <= value < beyond:
            raise OutOfRange(value, path, format)
        return int(value)

    return read


def time_decoder(canonical_pattern: str, format_time: Callable[[datetime], str]) -> Decoder:
    """Times that are written as Go would write them stay; others are written so."""
    pattern = re.compile(canonical_pattern)

    def read(value: Any, path: str, _: DecodeReport) -> Any:
        if type(value) is not str:
            raise TypeMismatch(value, path, "string")
        if pattern.fullmatch(value):
            return value
        try:
            return format_time(datetime.fromisoformat(value))
        except ValueError as error:  # no time, or one without a zone
            raise InvalidTime(value) from error

    return read


def array_decoder(item: Decoder) -> Decoder:
    def read(value: Any, path: str, reading: DecodeReport) -> Any:
        if type(value) is not list:
            raise TypeMismatch(value, path, "slice")
        if len(value) > CHECKPOINT_ITEMS:
            checkpoint()
        return [item(each, f"{path}[{number}]", reading) for number, each in enumerate(value) if each is not None]

    return read


def is_collection(schema: Object) -> bool:
    """Whether it is that of a list or a map."""
    return schema.get("type") == "array" or isinstance(schema.get("additionalProperties"), dict)


def struct_decoder(fields: Mapping[str, Decoder], omit_empty: frozenset[str], zero_values: Object) -> Decoder:
    """`several` are the fields that are absent where there is nothing in them: Kubernetes stores nothing of those."""

    def read(value: Any, path: str, reading: DecodeReport) -> Any:
        if type(value) is not dict:
            raise TypeMismatch(value, path, "object")
        found = {}
        for key, each in value.items():
            known = fields.get(key)
            if known is None:
                reading.unknown.append(child_path(path, key))
            elif each is not None:
                inside = known(each, f"{path}.{key}" if path else key, reading)
                if inside or key not in omit_empty:
                    found[key] = inside
        for key, empty in zero_values.items():
            found.setdefault(key, empty)
        return found

    return read


def map_decoder(item: Decoder) -> Decoder:
    def read(value: Any, path: str, reading: DecodeReport) -> Any:
        if type(value) is not dict:
            raise TypeMismatch(value, path, "map")
        return {key: item(each, child_path(path, key), reading) for key, each in value.items() if each is not None}

    return read


def interned_decoder(read: Decoder) -> Decoder:
    """What is read is the same value whenever the same text is read in the same place."""

    def known(value: Any, path: str, reading: DecodeReport) -> Any:
        def first() -> tuple[Any, list[str]]:
            inside = DecodeReport()
            return read(value, path, inside), inside.unknown

        found, unknown = spec_cache.intern(encode(value), (read, path), first)
        reading.unknown += unknown
        return found

    return known


def decode_int_or_string(value: Any, path: str, _: DecodeReport) -> Any:
    if type(value) in (str, int, float):
        return value
    raise TypeMismatch(value, path, "intstr.IntOrString")


class InvalidBase64(TypeMismatch):
    """A text is not bytes in base64."""

    def __init__(self, at: int) -> None:
        Exception.__init__(self, f"illegal base64 data at input byte {at}")


def decode_base64(value: Any, path: str, _: DecodeReport) -> Any:
    if type(value) is not str:
        raise TypeMismatch(value, path, "[]uint8")
    found = BASE64_PATTERN.match(value)
    if found is None or found.end() != len(value) or len(value) % 4:
        raise InvalidBase64(found.end() if found else 0)
    return value


def decode_quantity(value: Any, _: str, __: DecodeReport) -> Any:
    """Amounts are kept in their canonical form: `0.5` is `500m`."""
    try:
        return canonical_quantity(value)
    except (QuantityError, TypeError):
        raise InvalidQuantity from None


@lru_cache(maxsize=4096)  # a cluster writes the same few hundred texts over and over
def canonical_quantity(value: str | int | float) -> str:
    return str(parse_quantity(value))


def union_decoder(other_type: type, struct_decode: Decoder) -> Decoder:
    """A struct, or something else that Go reads in a way of its own."""
    return lambda value, path, reading: value if type(value) is other_type else struct_decode(value, path, reading)


def decode_raw_object(value: Any, path: str, reading: DecodeReport) -> Any:
    if type(value) is not dict:
        raise TypeMismatch(value, path, "object")
    return decode_any(value, path, reading)


def decode_any(value: Any, _: str, __: DecodeReport) -> Any:
    return value


SECONDS_PATTERN = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"
CUSTOM_DECODERS: Mapping[str, Decoder] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": decode_quantity,
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": time_decoder(f"{SECONDS_PATTERN}Z", timestamp),
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime": time_decoder(rf"{SECONDS_PATTERN}\.\d{{6}}Z", micro_timestamp),
}
"""Types whose values Go writes in a way of its own."""
JSON_SCHEMA = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"
UNION_TYPES = {f"{JSON_SCHEMA}OrArray": type(None), f"{JSON_SCHEMA}OrBool": bool, f"{JSON_SCHEMA}OrStringArray": list}
"""Types whose values are schemas, or something else: but a schema for each item of a list is not structural."""
INTERNED_TYPES = frozenset({"io.k8s.api.core.v1.PodSpec"})
"""Types whose values are written over and over, one for each replica."""
SIGNIFICANT_WHEN_EMPTY = frozenset({"managedFields"})
"""Lists of which an empty one is not none: it forgets all managers."""
NULL_WHERE_EMPTY: Mapping[str, tuple[str, ...]] = {
    "io.k8s.api.discovery.v1.EndpointSlice": ("endpoints", "ports"),
    "io.k8s.api.rbac.v1.ClusterRole": ("rules",),
    "io.k8s.api.rbac.v1.Role": ("rules",),
    "io.k8s.api.storage.v1.CSINodeSpec": ("drivers",),
}
"""Lists that may be empty and are written all the same, as null: their fields in Go are not marked `omitempty`."""
