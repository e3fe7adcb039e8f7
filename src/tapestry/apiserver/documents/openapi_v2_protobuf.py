"""OpenAPI v2 document in protobuf, which kubectl requests to validate objects.

The messages are those of gnostic's OpenAPIv2.proto. Only the definitions are encoded, because clients do not use the
paths.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from gzip import decompress
from typing import Any

import msgspec

from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.apiserver.documents.openapi_archive import custom_part, recorded_document
from tapestry.apiserver.documents.openapi_v2 import CustomParts, custom_definitions
from tapestry.kube.objects import Object

MEDIA_TYPES = frozenset(f"application/com.github.proto-openapi.spec.v2{sign}v1.0+protobuf" for sign in ("@", "."))
"""The media types that clients request. Only the second one is valid by RFC 6838."""
CONTENT_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"

STRING_FIELDS = {"$ref": 1, "format": 2, "title": 3, "description": 4, "pattern": 13}
EXTENSION_PREFIX = "x-"


def encoded_document(custom: Sequence[ResourceInfo], parts: CustomParts) -> bytes:
    """The document with the definitions of all built-in and custom resources."""
    head, recorded = recorded_parts()
    definitions = [zlib.decompress(recorded), *(parts.part("protobuf", info, encoded_part) for info in custom)]
    return head + encode_message(9, b"".join(definitions))


@cache
def recorded_parts() -> tuple[bytes, bytes]:
    """The part before the definitions, and the compressed definitions of built-in resources."""
    document = msgspec.json.decode(decompress(recorded_document("v2")))
    return encode_head(document), zlib.compress(encode_definitions(document["definitions"]))


def encoded_part(info: ResourceInfo) -> bytes:
    part, _ = custom_part("v2", info)
    definitions = msgspec.json.decode(msgspec.json.encode(custom_definitions(info, part)))  # without encoded values
    return encode_definitions(definitions)


def encode_document(swagger: Object) -> bytes:
    return encode_head(swagger) + encode_message(9, encode_definitions(swagger["definitions"]))


def encode_head(swagger: Object) -> bytes:
    info = encode_string(1, swagger["info"]["title"]) + encode_string(2, swagger["info"]["version"])
    return encode_string(1, swagger["swagger"]) + encode_message(2, info) + encode_message(8, b"")


def encode_definitions(definitions: Object) -> bytes:
    return b"".join(encode_named(1, name, encode_schema(each)) for name, each in definitions.items())


def encode_schema(value: Mapping[str, Any]) -> bytes:
    """Encode one schema. Only fields that describe the shape of an object are encoded."""
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
    if isinstance(value_schema := value.get("additionalProperties"), dict):
        yield encode_message(21, encode_message(1, encode_schema(value_schema)))
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
    """Encode a value of any type as YAML, of which JSON is a subset."""
    return encode_string(2, msgspec.json.encode(value).decode())


def encode_named(field: int, name: str, value: bytes) -> bytes:
    return encode_message(field, encode_string(1, name) + encode_message(2, value))


def encode_string(field: int, value: str) -> bytes:
    return encode_message(field, value.encode())


def encode_message(field: int, value: bytes) -> bytes:
    """Encode a length-delimited field."""
    return encode_varint(field << 3 | 2) + encode_varint(len(value)) + value


def encode_varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
