"""Types: what JSON has to look like to be an object of a built-in kind, compiled once from its schema.

Reading a value checks it as Kubernetes' own decoding does: a field that the type does not have is dropped and reported,
null is absent, and a value of the wrong JSON type is refused.  What is meaningless all the same is for validation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tapestry.apiserver import refusals
from tapestry.kube.objects import Object


@dataclass(slots=True)
class Reading:
    """What was noticed while a body was read."""

    unknown: list[str] = field(default_factory=list)
    """Paths of fields that the type does not have."""


Read = Callable[[Any, str, Reading], Any]

SCALARS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}
GO_NAMES = {"string": "string", "boolean": "bool", "integer": "int64", "number": "float64"}


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
            raise refusals.bad_request(f"{kind} cannot be handled as a {kind}: json: {error}") from error
        return found, reading

    def named(self, name: str) -> Read:
        if name not in self._compiled:
            self._compiled[name] = self._compile(self._schemas[name])
        return self._compiled[name]

    def _compile(self, schema: Object) -> Read:
        if "$ref" in schema:
            return Deferred(self, schema["$ref"])
        if schema.get("x-kubernetes-int-or-string"):
            return int_or_string
        kind: str = schema.get("type", "")
        if kind in SCALARS:
            return scalar(kind, schema.get("format", ""))
        if kind == "array":
            return array(self._compile(schema["items"]))
        if "properties" in schema:
            return struct({name: self._compile(each) for name, each in schema["properties"].items()})
        if isinstance(values := schema.get("additionalProperties"), dict):
            return mapping(self._compile(values))
        return raw_object if kind else anything


class Mismatch(Exception):
    """A value is not of the type that its field has."""

    def __init__(self, value: Any, path: str, wanted: str) -> None:
        found = {dict: "object", list: "array", str: "string", bool: "bool", type(None): "null"}.get(
            type(value), "number"
        )
        super().__init__(f"cannot unmarshal {found} into Go struct field {path} of type {wanted}")


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


def scalar(kind: str, format: str) -> Read:
    accepted = SCALARS[kind]

    def read(value: Any, path: str, _: Reading) -> Any:
        if type(value) in accepted:
            return value
        if kind == "integer" and isinstance(value, float) and value.is_integer():
            return int(value)
        raise Mismatch(value, path, format if format.startswith("int") else GO_NAMES[kind])

    return read


def array(item: Read) -> Read:
    def read(value: Any, path: str, reading: Reading) -> Any:
        if type(value) is not list:
            raise Mismatch(value, path, "slice")
        return [item(each, f"{path}[{number}]", reading) for number, each in enumerate(value) if each is not None]

    return read


def struct(fields: Mapping[str, Read]) -> Read:
    def read(value: Any, path: str, reading: Reading) -> Any:
        if type(value) is not dict:
            raise Mismatch(value, path, "object")
        found = {}
        for key, each in value.items():
            known = fields.get(key)
            if known is None:
                reading.unknown.append(f"{path}.{key}" if path else key)
            elif each is not None:
                found[key] = known(each, f"{path}.{key}" if path else key, reading)
        return found

    return read


def mapping(item: Read) -> Read:
    def read(value: Any, path: str, reading: Reading) -> Any:
        if type(value) is not dict:
            raise Mismatch(value, path, "map")
        return {key: item(each, f"{path}.{key}", reading) for key, each in value.items() if each is not None}

    return read


def int_or_string(value: Any, path: str, _: Reading) -> Any:
    if type(value) in (str, int, float):
        return value
    raise Mismatch(value, path, "intstr.IntOrString")


def raw_object(value: Any, path: str, reading: Reading) -> Any:
    if type(value) is not dict:
        raise Mismatch(value, path, "object")
    return anything(value, path, reading)


def anything(value: Any, _: str, __: Reading) -> Any:
    return value


def keys_in(value: Any) -> int:
    """How many keys a JSON value has, at every depth."""
    if isinstance(value, dict):
        return len(value) + sum(map(keys_in, value.values()))
    return sum(map(keys_in, value)) if isinstance(value, list) else 0
