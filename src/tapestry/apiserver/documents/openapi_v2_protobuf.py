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

STRING_FIELDS = {"$ref": 1, "format": 2, "title": 3, "description": 4, "pattern": 13}
EXTENSION_PREFIX = "x-"


def encode_document(swagger: Object) -> bytes:
    about = encode_string(1, swagger["info"]["title"]) + encode_string(2, swagger["info"]["version"])
    definitions = b"".join(encode_named(1, name, encode_schema(each)) for name, each in swagger["definitions"].items())
    return (
        encode_string(1, swagger["swagger"])
        + encode_message(2, about)
        + encode_message(8, b"")
        + encode_message(9, definitions)
    )


def encode_schema(value: Mapping[str, Any]) -> bytes:
    """One schema; what says nothing about the shape of an object is left out."""
    return b"".join(schema_fields(value))


def schema_fields(value: Mapping[str, Any]) -> Iterable[bytes]:
    for key, field in STRING_FIELDS.items():
        if value.get(key):
            yield encode_string(field, value[key])
    if "default" in value:
        yield encode_message(5, encode_any(value["default"]))
    for each in value.get("required") or ():
        yield encode_string(19, each)
    for each in value.get("enum") or ():
        yield encode_message(20, encode_any(each))
    if isinstance(more := value.get("additionalProperties"), dict):
        yield encode_message(21, encode_message(1, encode_schema(more)))
    if "type" in value:
        yield encode_message(22, encode_string(1, value["type"]))
    if "items" in value:
        yield encode_message(23, encode_message(1, encode_schema(value["items"])))
    if "properties" in value:
        yield encode_message(
            25, b"".join(encode_named(1, name, encode_schema(each)) for name, each in value["properties"].items())
        )
    for key, each in value.items():
        if key.startswith(EXTENSION_PREFIX):
            yield encode_named(31, key, encode_any(each))


def encode_any(value: Any) -> bytes:
    """A value of any type, as YAML: JSON is some."""
    return encode_string(2, msgspec.json.encode(value).decode())


def encode_named(field: int, name: str, value: bytes) -> bytes:
    return encode_message(field, encode_string(1, name) + encode_message(2, value))


def encode_string(field: int, value: str) -> bytes:
    return encode_message(field, value.encode())


def encode_message(field: int, value: bytes) -> bytes:
    """A field whose value has a length."""
    return encode_varint(field << 3 | 2) + encode_varint(len(value)) + value


def encode_varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
