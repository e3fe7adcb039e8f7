"""DNS messages: queries of clients, and responses of other servers, also malformed ones."""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.dns.messages import (
    HEADER,
    TRUNCATED,
    Answer,
    Code,
    MessageError,
    Query,
    Record,
    Type,
    encode_query,
    encode_response,
    error_response,
    is_within,
    options_record,
    parse_query,
    parse_response,
    wire_name,
)

NAME = wire_name("web.default.svc.cluster.local")
QUESTION = NAME + b"\x00\x01\x00\x01"


def query_message(name: bytes = NAME, type: int = Type.A, *, more: bytes = b"", additionals: int = 0) -> bytes:
    return HEADER.pack(7, 0x0100, 1, 0, 0, additionals) + name + struct.pack("!HH", type, 1) + more


def response(query: Query, *records: Record, limit: int = 512) -> bytes:
    return encode_response(query, Answer(records=records), limit)


def a_record(address: bytes = b"\x0a\x60\0\x07", name: bytes = NAME) -> Record:
    return Record(name, Type.A, 5, address)


def test_query_is_parsed() -> None:
    query = parse_query(query_message(NAME.upper().replace(b"\x07", b"\x07"), more=options_record(4096), additionals=1))
    assert query.name == NAME
    assert query.type == Type.A
    assert query.payload == 4096
    assert query.udp_size == 1232


def test_response_has_the_question_and_compressed_names() -> None:
    found = response(parse_query(query_message()), a_record())
    assert found[:12] == HEADER.pack(7, 0x8180, 1, 1, 0, 0)
    assert found[12:] == QUESTION + b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 5, 4) + b"\x0a\x60\0\x07"


def test_response_that_is_too_large_is_truncated() -> None:
    query = parse_query(query_message())
    found = response(query, *(a_record(bytes((10, 0, n >> 8, n & 255))) for n in range(100)))
    assert len(found) <= 512
    assert HEADER.unpack_from(found)[1] & TRUNCATED
    assert HEADER.unpack_from(found)[3] == (512 - 12 - len(QUESTION)) // 16


def test_additional_records_are_left_out_without_truncation() -> None:
    query = parse_query(query_message())
    many = tuple(a_record(bytes((10, 0, 0, n))) for n in range(100))
    found = encode_response(query, Answer(records=(a_record(),), additional=many), 512)
    assert not HEADER.unpack_from(found)[1] & TRUNCATED


def test_response_of_another_server_is_read() -> None:
    message = encode_query(9, NAME, Type.A)
    question = message[12 : 12 + len(QUESTION)]
    alias = Record(NAME, Type.CNAME, 60, wire_name("a.example.com"))
    sent = encode_response(parse_query(message), Answer(records=(alias, a_record(name=alias.data))), 512)
    assert parse_response(sent, 9, question) == (
        Answer(records=[alias, a_record(name=alias.data)], authority=[]),
        False,
    )


@pytest.mark.parametrize(("id", "question"), [(8, QUESTION), (9, QUESTION.replace(b"web", b"Web"))])
def test_response_to_another_query_is_refused(id: int, question: bytes) -> None:
    sent = encode_response(parse_query(encode_query(9, NAME, Type.A)), Answer(records=(a_record(),)), 512)
    with pytest.raises(MessageError):
        parse_response(sent, id, question)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"short", None),
        (b"\0\0\x80\0" + bytes(8), None),
        (HEADER.pack(1, 0x2000, 1, 0, 0, 0) + QUESTION, Code.NOTIMP),
        (HEADER.pack(1, 0, 2, 0, 0, 0) + QUESTION * 2, Code.FORMERR),
        (HEADER.pack(1, 0, 0, 0, 0, 0), Code.FORMERR),
        (HEADER.pack(1, 0, 1, 0, 0, 0) + b"\xc0\x0c\0\x01\0\x01", Code.FORMERR),
        (HEADER.pack(1, 0, 1, 0, 0, 0) + b"\x3f" + bytes(3), Code.FORMERR),
        (HEADER.pack(1, 0, 1, 0, 0, 0) + (b"\x3f" + b"a" * 63) * 5 + b"\0\0\x01\0\x01", Code.FORMERR),
        (HEADER.pack(1, 0, 1, 0, 0, 0) + NAME + b"\0\x01\0\x03", Code.REFUSED),
        (query_message(more=options_record(512) * 2, additionals=2), Code.FORMERR),
        (query_message(more=options_record(512)[:-1], additionals=1), Code.FORMERR),
    ],
)
def test_malformed_query_is_refused(message: bytes, code: Code | None) -> None:
    with pytest.raises(MessageError) as raised:
        parse_query(message)
    assert raised.value.code == code


@given(st.binary(max_size=300))
def test_any_query_is_parsed_or_refused(data: bytes) -> None:
    check_query(data)


@given(st.randoms(use_true_random=False))
def test_any_changed_query_is_parsed_or_refused(random: random.Random) -> None:
    check_query(changed(query_message(more=options_record(1232), additionals=1), random))


def check_query(data: bytes) -> None:
    response = response_to(data)
    assert len(response) <= (1232 if response[2:3] and not response[3] & 0xF else max(len(data), HEADER.size))


def response_to(data: bytes) -> bytes:
    try:
        query = parse_query(data)
    except MessageError as error:
        return error_response(data, error.code) if error.code is not None else b""
    return encode_response(query, Answer(records=(a_record(),)), query.udp_size)


@given(st.randoms(use_true_random=False))
def test_any_response_is_parsed_or_refused(random: random.Random) -> None:
    message = encode_query(9, NAME, Type.A)
    soa = Record(NAME, Type.SOA, 60, wire_name("a") + wire_name("b") + bytes(20))
    records = (a_record(), soa, Record(NAME, Type.MX, 5, b"\0\x01" + wire_name("mx")))
    sent = encode_response(parse_query(message), Answer(records=records), 512)
    damaged = sent[: 12 + len(QUESTION)] + changed(sent[12 + len(QUESTION) :], random)
    try:
        found, _ = parse_response(damaged, 9, QUESTION)
    except MessageError:
        return
    assert len(found.records) <= 3


def test_pointers_in_a_loop_are_refused() -> None:
    start = 12 + len(QUESTION)
    loop = struct.pack("!H", 0xC000 | start) + struct.pack("!HHIH", 1, 1, 5, 4) + bytes(4)
    with pytest.raises(MessageError):
        parse_response(HEADER.pack(9, 0x8000, 1, 1, 0, 0) + QUESTION + loop, 9, QUESTION)


def changed(data: bytes, random: random.Random) -> bytes:
    """Return a message with some other bytes, and perhaps without its end."""
    found = bytearray(data)
    for _ in range(random.randrange(4)):
        found[random.randrange(len(found))] = random.randrange(256)
    return bytes(found[: random.randrange(len(found) + 1)]) if random.random() < 0.5 else bytes(found)


def test_names_within_a_domain() -> None:
    domain = wire_name("cluster.local")
    assert is_within(wire_name("a.cluster.local"), domain)
    assert is_within(domain, domain)
    assert not is_within(wire_name("xcluster.local"), domain)
    assert not is_within(wire_name("local"), domain)
    assert not is_within(b"\x10a" + domain + b"\0", domain)
