"""OpenAPI v2 in protobuf, the one form in which Go clients ask for it: kubectl does, to judge a `List` beforehand.

The messages are those of gnostic's OpenAPIv2.proto.  Of a document they get its definitions, which is what is judged
by, and no paths.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tapestry.kube.objects import Object

MEDIA_TYPES = frozenset(f"application/com.github.proto-openapi.spec.v2{mark}v1.0+protobuf" for mark in ("@", "."))
"""As clients ask for it; only the second is a media type by the book."""
CONTENT_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"

TEXTS = {"$ref": 1, "format": 2, "title": 3, "description": 4, "pattern": 13}
EXTENSIONS = "x-"


def document(swagger: Object) -> bytes:
    about = text(1, swagger["info"]["title"]) + text(2, swagger["info"]["version"])
    definitions = b"".join(named(1, name, schema(each)) for name, each in swagger["definitions"].items())
    return text(1, swagger["swagger"]) + message(2, about) + message(8, b"") + message(9, definitions)


def schema(value: Mapping[str, Any]) -> bytes:
    """One schema; what says nothing about the shape of an object is left out."""
    return b"".join(parts(value))


def parts(value: Mapping[str, Any]) -> Iterable[bytes]:
    for key, field in TEXTS.items():
        if value.get(key):
            yield text(field, value[key])
    if "default" in value:
        yield message(5, anything(value["default"]))
    for each in value.get("required") or ():
        yield text(19, each)
    for each in value.get("enum") or ():
        yield message(20, anything(each))
    if isinstance(more := value.get("additionalProperties"), dict):
        yield message(21, message(1, schema(more)))
    if "type" in value:
        yield message(22, text(1, value["type"]))
    if "items" in value:
        yield message(23, message(1, schema(value["items"])))
    if "properties" in value:
        yield message(25, b"".join(named(1, name, schema(each)) for name, each in value["properties"].items()))
    for key, each in value.items():
        if key.startswith(EXTENSIONS):
            yield named(31, key, anything(each))


def anything(value: Any) -> bytes:
    """A value of any type, as YAML: JSON is some."""
    return text(2, msgspec.json.encode(value).decode())


def named(field: int, name: str, value: bytes) -> bytes:
    return message(field, text(1, name) + message(2, value))


def text(field: int, value: str) -> bytes:
    return message(field, value.encode())


def message(field: int, value: bytes) -> bytes:
    """A field whose value has a length."""
    return varint(field << 3 | 2) + varint(len(value)) + value


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
