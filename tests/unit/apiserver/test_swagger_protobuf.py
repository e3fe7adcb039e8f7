"""OpenAPI v2 in protobuf: kubectl reads it (tests/integration/test_apiserver_with_kubectl.py); here is what it says."""

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

from .conftest import Hand

Fields = list[tuple[int, bytes]]


def number(raw: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = raw[at]
        found, shift, at = found | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return found, at


def fields(raw: bytes) -> Fields:
    """The fields of a message that has only such with a length."""
    found, at = [], 0
    while at < len(raw):
        tag, at = number(raw, at)
        size, at = number(raw, at)
        assert tag & 7 == 2
        found.append((tag >> 3, raw[at : at + size]))
        at += size
    return found


def one(raw: bytes, *path: int) -> bytes:
    """What is in the only field of a number, of the only field of a number, and so on."""
    for step in path:
        (raw,) = [value for field, value in fields(raw) if field == step]
    return raw


@given(st.integers(0, 2**32))
def test_a_number_is_read_as_it_was_written(value: int) -> None:
    assert number(encode_varint(value), 0) == (value, len(encode_varint(value)))


@given(st.integers(1, 1000), st.text())
def test_a_text_is_read_as_it_was_written(field: int, value: str) -> None:
    assert fields(encode_message(field, encode_string(1, value))) == [(field, encode_string(1, value))]
    assert one(encode_message(field, encode_string(1, value)), field, 1).decode() == value


def test_a_schema_says_what_an_object_may_look_like() -> None:
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
    assert one(raw, 1) == b"2.0"
    assert [value for _, value in fields(one(raw, 2))] == [b"t", b"v"]
    assert one(raw, 8) == b""
    definition = one(raw, 9, 1)
    assert one(definition, 1) == b"d"
    found = one(definition, 2)
    assert one(found, 5, 2) == b'{"a":[]}'
    assert one(found, 19) == b"a"
    assert one(found, 21, 1, 22, 1) == b"string"
    assert one(found, 22, 1) == b"object"
    assert one(found, 25, 1, 1) == b"a"
    assert one(found, 25, 1, 2, 23, 1, 1) == b"#/definitions/x"
    assert one(found, 31, 1) == b"x-kubernetes-group-version-kind"
    assert one(found, 31, 2, 2) == b'[{"group":"","version":"v1","kind":"X"}]'


async def test_the_server_gives_it_to_whoever_asks_for_it(call: Hand) -> None:
    answer: Any = await call.answer("GET", "/openapi/v2", accept=CONTENT_TYPE.replace("v2.v1", "v2@v1"))
    assert (answer.status, answer.content_type) == (200, CONTENT_TYPE)
    names = {one(value, 1) for _, value in fields(one(answer.body, 9))}
    assert b"io.k8s.api.core.v1.Pod" in names
