"""Encoding of the OpenAPI v2 document in protobuf; tests/integration has a test with kubectl."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tapestry.apiserver.documents.openapi_v2_protobuf import (
    CONTENT_TYPE,
    encode_document,
    encode_message,
    encode_string,
    encode_varint,
)

from ..conftest import ServerClient

Fields = list[tuple[int, bytes]]


def read_varint(raw: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[position]
        value, shift, position = value | (byte & 0x7F) << shift, shift + 7, position + 1
        if byte < 0x80:
            return value, position


def read_fields(raw: bytes) -> Fields:
    """Decode a message that has only length-delimited fields."""
    read, position = [], 0
    while position < len(raw):
        tag, position = read_varint(raw, position)
        size, position = read_varint(raw, position)
        assert tag & 7 == 2
        read.append((tag >> 3, raw[position : position + size]))
        position += size
    return read


def field_at(raw: bytes, *path: int) -> bytes:
    """The value at a path of field numbers, each of which occurs once."""
    for step in path:
        (raw,) = [value for field, value in read_fields(raw) if field == step]
    return raw


@given(st.integers(0, 2**32))
def test_varint_round_trips(value: int) -> None:
    assert read_varint(encode_varint(value), 0) == (value, len(encode_varint(value)))


@given(st.integers(1, 1000), st.text())
def test_string_round_trips(field: int, value: str) -> None:
    assert read_fields(encode_message(field, encode_string(1, value))) == [(field, encode_string(1, value))]
    assert field_at(encode_message(field, encode_string(1, value)), field, 1).decode() == value


def test_schema_is_encoded() -> None:
    schema: Any = {
        "type": "object",
        "required": ["a"],
        "properties": {"a": {"type": "array", "items": {"$ref": "#/definitions/x"}}},
        "additionalProperties": {"type": "string"},
        "default": {"a": []},
        "x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "X"}],
    }
    swagger = {
        "swagger": "2.0",
        "info": {"title": "t", "version": "v"},
        "paths": {"/x": {}},
        "definitions": {"d": schema},
    }
    raw = encode_document(swagger)
    assert field_at(raw, 1) == b"2.0"
    assert [value for _, value in read_fields(field_at(raw, 2))] == [b"t", b"v"]
    assert field_at(raw, 8) == b""
    definition = field_at(raw, 9, 1)
    assert field_at(definition, 1) == b"d"
    encoded = field_at(definition, 2)
    assert field_at(encoded, 5, 2) == b'{"a":[]}'
    assert field_at(encoded, 19) == b"a"
    assert field_at(encoded, 21, 1, 22, 1) == b"string"
    assert field_at(encoded, 22, 1) == b"object"
    assert field_at(encoded, 25, 1, 1) == b"a"
    assert field_at(encoded, 25, 1, 2, 23, 1, 1) == b"#/definitions/x"
    assert field_at(encoded, 31, 1) == b"x-kubernetes-group-version-kind"
    assert field_at(encoded, 31, 2, 2) == b'[{"group":"","version":"v1","kind":"X"}]'


async def test_server_returns_requested_protobuf(call: ServerClient) -> None:
    response: Any = await call.answer("GET", "/openapi/v2", accept=CONTENT_TYPE.replace("v2.v1", "v2@v1"))
    assert (response.status, response.content_type) == (200, CONTENT_TYPE)
    names = {field_at(value, 1) for _, value in read_fields(field_at(response.body, 9))}
    assert b"io.k8s.api.core.v1.Pod" in names
