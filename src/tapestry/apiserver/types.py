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

from tapestry.apiserver import recurring, refusals
from tapestry.apiserver.customs.structural import path_below
from tapestry.kube.budget import checkpoint
from tapestry.kube.objects import Object
from tapestry.kube.quantity import QuantityError, parse
from tapestry.kube.times import micro_timestamp, timestamp


@dataclass(slots=True)
class Reading:
    """What was noticed while a body was read."""

    unknown: list[str] = field(default_factory=list)
    """Paths of fields that the type does not have."""


Read = Callable[[Any, str, Reading], Any]

encode = msgspec.json.Encoder().encode

SCALARS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "number": (int, float),
}
MANY = 1_000
"""Items of a list before which a request looks at its time."""
BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
QUANTITIES = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
GO_NAMES = {"string": "string", "boolean": "bool", "number": "float64"}


class Types:
    """The types of the published table.  Each is compiled when it is first asked for, and once."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas
        self._compiled: dict[str, Read] = {}

    def read(self, name: str, body: Object, kind: str) -> tuple[Object, Reading]:
        """`body` as an object of type `name`; raises BadRequest."""
        reading = Reading()
        try:
            found: Object = self.named(name)(body, "", reading)
        except Mismatch as error:
            version = body.get("apiVersion", "").rpartition("/")[2]
            described = f'{kind} in version "{version}"' if version else kind
            raise refusals.bad_request(f"{described} cannot be handled as a {kind}: {error}") from error
        return found, reading

    def named(self, name: str) -> Read:
        if name not in self._compiled:
            read = WRITTEN_OTHERWISE.get(name) or self._compile(self._schemas[name], name)
            self._compiled[name] = recurrent(read) if name in RECURRENT else read
        return self._compiled[name]

    def _compile(self, schema: Object, name: str = "") -> Read:
        if name in UNIONS:
            return struct_or(UNIONS[name], Deferred(self, JSON_SCHEMA))
        if "$ref" in schema:
            return Deferred(self, schema["$ref"])
        if schema.get("x-kubernetes-int-or-string"):
            return int_or_string
        kind: str = schema.get("type", "")
        if schema.get("format") == "byte":
            return base64_text
        if kind in SCALARS:
            return scalar(kind)
        if kind == "integer":
            return integer(schema.get("format", "int64"))
        if kind == "array":
            return array(self._compile(schema["items"]))
        if "properties" in schema:
            fields = {field: self._compile(each) for field, each in schema["properties"].items()}
            several = frozenset(field for field, each in schema["properties"].items() if is_several(each)) - TELLING
            return struct(fields, several, self._always(schema) | dict.fromkeys(NULL_WHERE_EMPTY.get(name, ())))
        if isinstance(values := schema.get("additionalProperties"), dict):
            return mapping(self._compile(values))
        return raw_object if kind else anything

    def _always(self, schema: Object) -> Object:
        """What a struct has even where nobody said anything: the structs in it, which are no pointers."""
        fields = schema.get("properties", {}).items()
        return {name: self._always(self._schemas[each["$ref"]]) for name, each in fields if each.get("default") == {}}


class Mismatch(Exception):
    """A value is not of the type that its field has."""

    def __init__(self, value: Any, path: str, wanted: str) -> None:
        found = {dict: "object", list: "array", str: "string", bool: "bool", type(None): "null"}.get(
            type(value), "number"
        )
        super().__init__(f"json: cannot unmarshal {found} into Go struct field {path} of type {wanted}")


def in_full(number: float) -> str:
    """A number without an exponent; of a very long one, its beginning."""
    return f"{number:.0f}" if isinstance(number, float) else str(number)[:40]


class OutOfRange(Mismatch):
    """A number does not fit into as many bits as its field has."""

    def __init__(self, value: float, path: str, wanted: str) -> None:
        Exception.__init__(
            self, f"json: cannot unmarshal number {in_full(value)} into Go struct field {path} of type {wanted}"
        )


class NoQuantity(Mismatch):
    """A value is no quantity."""

    def __init__(self) -> None:
        Exception.__init__(self, f"quantities must match the regular expression '{QUANTITIES}'")


class NoTime(Mismatch):
    """A value is no time."""

    def __init__(self, value: str) -> None:
        why = f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot parse "{value}" as "2006"'
        Exception.__init__(self, why)


class Deferred:
    """A type that is looked up when a value first comes to it: types refer to each other in circles."""

    __slots__ = ("_name", "_read", "_types")

    def __init__(self, types: Types, name: str) -> None:
        self._types, self._name = types, name
        self._read: Read | None = None

    def __call__(self, value: Any, path: str, reading: Reading) -> Any:
        if self._read is None:
            self._read = self._types.named(self._name)
        return self._read(value, path, reading)


def scalar(kind: str) -> Read:
    accepted = SCALARS[kind]

    def read(value: Any, path: str, _: Reading) -> Any:
        if type(value) in accepted:
            return value
        raise Mismatch(value, path, GO_NAMES[kind])

    return read


def integer(format: str) -> Read:
    """Of so many bits: who loops over a number that came in has to know that it ends."""
    beyond = 2 ** (int(format.removeprefix("int")) - 1)

    def read(value: Any, path: str, _: Reading) -> Any:
        if type(value) is not int and not (isinstance(value, float) and value.is_integer()):
            raise Mismatch(value, path, format)
        if not -beyond <= value < beyond:
            raise OutOfRange(value, path, format)
        return int(value)

    return read


def time(usual: str, written: Callable[[datetime], str]) -> Read:
    """Times that are written as Go would write them stay; others are written so."""
    pattern = re.compile(usual)

    def read(value: Any, path: str, _: Reading) -> Any:
        if type(value) is not str:
            raise Mismatch(value, path, "string")
        if pattern.fullmatch(value):
            return value
        try:
            return written(datetime.fromisoformat(value))
        except ValueError as error:  # no time, or one without a zone
            raise NoTime(value) from error

    return read


def array(item: Read) -> Read:
    def read(value: Any, path: str, reading: Reading) -> Any:
        if type(value) is not list:
            raise Mismatch(value, path, "slice")
        if len(value) > MANY:
            checkpoint()
        return [item(each, f"{path}[{number}]", reading) for number, each in enumerate(value) if each is not None]

    return read


def is_several(schema: Object) -> bool:
    """Whether it is that of a list or a map."""
    return schema.get("type") == "array" or isinstance(schema.get("additionalProperties"), dict)


def struct(fields: Mapping[str, Read], several: frozenset[str], always: Object) -> Read:
    """`several` are the fields that are absent where there is nothing in them: Kubernetes stores nothing of those."""

    def read(value: Any, path: str, reading: Reading) -> Any:
        if type(value) is not dict:
            raise Mismatch(value, path, "object")
        found = {}
        for key, each in value.items():
            known = fields.get(key)
            if known is None:
                reading.unknown.append(path_below(path, key))
            elif each is not None:
                inside = known(each, f"{path}.{key}" if path else key, reading)
                if inside or key not in several:
                    found[key] = inside
        for key, empty in always.items():
            found.setdefault(key, empty)
        return found

    return read


def mapping(item: Read) -> Read:
    def read(value: Any, path: str, reading: Reading) -> Any:
        if type(value) is not dict:
            raise Mismatch(value, path, "map")
        return {key: item(each, path_below(path, key), reading) for key, each in value.items() if each is not None}

    return read


def recurrent(read: Read) -> Read:
    """What is read is the same value whenever the same text is read in the same place."""

    def known(value: Any, path: str, reading: Reading) -> Any:
        def first() -> tuple[Any, list[str]]:
            inside = Reading()
            return read(value, path, inside), inside.unknown

        found, unknown = recurring.met(encode(value), (read, path), first)
        reading.unknown += unknown
        return found

    return known


def int_or_string(value: Any, path: str, _: Reading) -> Any:
    if type(value) in (str, int, float):
        return value
    raise Mismatch(value, path, "intstr.IntOrString")


class NoBase64(Mismatch):
    """A text is not bytes in base64."""

    def __init__(self, at: int) -> None:
        Exception.__init__(self, f"illegal base64 data at input byte {at}")


def base64_text(value: Any, path: str, _: Reading) -> Any:
    if type(value) is not str:
        raise Mismatch(value, path, "[]uint8")
    found = BASE64.match(value)
    if found is None or found.end() != len(value) or len(value) % 4:
        raise NoBase64(found.end() if found else 0)
    return value


def quantity(value: Any, _: str, __: Reading) -> Any:
    """Amounts are kept in their canonical form: `0.5` is `500m`."""
    try:
        return canonical(value)
    except (QuantityError, TypeError):
        raise NoQuantity from None


@lru_cache(maxsize=4096)  # a cluster writes the same few hundred texts over and over
def canonical(value: str | int | float) -> str:
    return str(parse(value))


def struct_or(other: type, struct: Read) -> Read:
    """A struct, or something else that Go reads in a way of its own."""
    return lambda value, path, reading: value if type(value) is other else struct(value, path, reading)


def raw_object(value: Any, path: str, reading: Reading) -> Any:
    if type(value) is not dict:
        raise Mismatch(value, path, "object")
    return anything(value, path, reading)


def anything(value: Any, _: str, __: Reading) -> Any:
    return value


SECONDS = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"
WRITTEN_OTHERWISE: Mapping[str, Read] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": quantity,
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": time(f"{SECONDS}Z", timestamp),
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime": time(rf"{SECONDS}\.\d{{6}}Z", micro_timestamp),
}
"""Types whose values Go writes in a way of its own."""
JSON_SCHEMA = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"
UNIONS = {f"{JSON_SCHEMA}OrArray": type(None), f"{JSON_SCHEMA}OrBool": bool, f"{JSON_SCHEMA}OrStringArray": list}
"""Types whose values are schemas, or something else: but a schema for each item of a list is not structural."""
RECURRENT = frozenset({"io.k8s.api.core.v1.PodSpec"})
"""Types whose values are written over and over, one for each replica."""
TELLING = frozenset({"managedFields"})
"""Lists of which an empty one is not none: it forgets all managers."""
NULL_WHERE_EMPTY: Mapping[str, tuple[str, ...]] = {
    "io.k8s.api.discovery.v1.EndpointSlice": ("endpoints", "ports"),
    "io.k8s.api.rbac.v1.ClusterRole": ("rules",),
    "io.k8s.api.rbac.v1.Role": ("rules",),
    "io.k8s.api.storage.v1.CSINodeSpec": ("drivers",),
}
"""Lists that may be empty and are written all the same, as null: their fields in Go are not marked `omitempty`."""
