"""DNS messages: queries of clients, responses to them, and responses of other servers. It is pure.

Names are in wire format without compression. All input is untrusted: a malformed message raises MessageError, after
work that is limited by its length.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

MAX_NAME, MAX_LABEL = 255, 63
HEADER = struct.Struct("!HHHHHH")
QUESTION_TAIL, RECORD_TAIL = struct.Struct("!HH"), struct.Struct("!HHIH")
OPT_TAIL = struct.Struct("!HHBBHH")
IS_RESPONSE, AUTHORITATIVE, TRUNCATED, RECURSION_DESIRED, RECURSION_AVAILABLE = 0x8000, 0x0400, 0x0200, 0x0100, 0x0080
OPCODE = 0x7800
CLASS_IN = 1
MIN_UDP, MAX_UDP = 512, 1232
"""Least and greatest size of UDP responses. The latter passes all networks without fragments."""
MAX_TCP = 65535
MAX_RECORDS = 512
"""Records of a response of another server that are read."""
MAX_POINTERS = 16
"""Compression pointers of one name that are followed."""
POINTER = 0xC0
QUESTION_POINTER = b"\xc0\x0c"
"""Compression pointer to the name in the question."""
NO_COMPRESSION = 0x3FFF
"""Offset from which no pointer can refer to a name."""


class Type(IntEnum):
    """Types of records that are treated in a special way."""

    A = 1
    NS = 2
    CNAME = 5
    SOA = 6
    PTR = 12
    MX = 15
    TXT = 16
    AAAA = 28
    SRV = 33
    DNAME = 39
    OPT = 41
    SVCB = 64
    HTTPS = 65
    ANY = 255


META_TYPES = range(128, 256)
"""Types of requests that no record has, such as transfers of zones."""


class Code(IntEnum):
    """Response codes."""

    NOERROR = 0
    FORMERR = 1
    SERVFAIL = 2
    NXDOMAIN = 3
    NOTIMP = 4
    REFUSED = 5
    BADVERS = 16


class MessageError(Exception):
    """A malformed message. `code` is the response to it; None if it gets none."""

    def __init__(self, code: Code | None) -> None:
        super().__init__(code.name if code is not None else "no query")
        self.code = code


class Query(NamedTuple):
    """A query with one question."""

    id: int
    flags: int
    question: bytes
    """The question as the client sent it."""
    name: bytes
    """Name in lower case, in wire format."""
    type: int
    payload: int | None
    """Size of UDP responses that the client accepts by EDNS; None if it does not use EDNS."""

    @property
    def udp_size(self) -> int:
        return min(max(self.payload or MIN_UDP, MIN_UDP), MAX_UDP)


class Record(NamedTuple):
    """A resource record of the class IN. Names in `data` are not compressed."""

    name: bytes
    type: int
    ttl: int
    data: bytes


@dataclass(frozen=True)
class Answer:
    """Content of a response."""

    code: Code = Code.NOERROR
    records: Sequence[Record] = ()
    authority: Sequence[Record] = ()
    additional: Sequence[Record] = ()
    is_authoritative: bool = False

    @property
    def ttl(self) -> int:
        """Seconds for which the answer is valid."""
        return min((each.ttl for each in (*self.records, *self.authority)), default=0)


# -- names


def wire_name(text: str) -> bytes:
    """Return a name in wire format and in lower case. Raise ValueError if it is no name."""
    labels = [each.encode("ascii") for each in text.lower().rstrip(".").split(".")] if text.strip(".") else []
    if any(not 0 < len(each) <= MAX_LABEL for each in labels):
        raise ValueError(f"{text!r} is not a DNS name")
    return joined(labels)


def joined(labels: Iterable[bytes]) -> bytes:
    """Return the name of some labels. Raise ValueError if it is too long."""
    name = b"".join(bytes((len(each),)) + each for each in labels) + b"\0"
    if len(name) > MAX_NAME:
        raise ValueError("a DNS name has at most 255 bytes")
    return name


def labels_of_name(name: bytes) -> list[bytes]:
    """Return the labels of a name in wire format, which must be valid."""
    labels, at = [], 0
    while length := name[at]:
        labels.append(name[at + 1 : at + 1 + length])
        at += 1 + length
    return labels


def is_within(name: bytes, domain: bytes) -> bool:
    """Return whether a name is a domain or a name in it. Both are in lower case."""
    if not name.endswith(domain):
        return False
    at, start = 0, len(name) - len(domain)
    while at < start:
        at += 1 + name[at]
    return at == start


def read_name(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the name at an offset of a message without compression, and the offset after it.

    A pointer must refer to an earlier place than that of the name so far, so that there are no loops.
    """
    parts: list[bytes] = []
    size, end, earliest, pointers = 1, 0, at, 0
    while True:
        length = data[at]
        if length == 0:
            return b"".join(parts) + b"\0", end or at + 1
        if length >= POINTER:
            target = (length & ~POINTER) << 8 | data[at + 1]
            end = end or at + 2
            pointers += 1
            if target >= earliest or pointers > MAX_POINTERS:
                raise MessageError(Code.FORMERR)
            at = earliest = target
            continue
        size += 1 + length
        if length > MAX_LABEL or size > MAX_NAME or at + 1 + length >= len(data):
            raise MessageError(Code.FORMERR)
        parts.append(data[at : at + 1 + length])
        at += 1 + length


# -- queries


def parse_query(data: bytes) -> Query:
    """Return the query in a message of a client. Raise MessageError."""
    if len(data) < HEADER.size or data[2] & 0x80:
        raise MessageError(None)  # responses get no response, or two servers would never end
    id, flags, questions, answers, authorities, additionals = HEADER.unpack_from(data)
    if flags & OPCODE:
        raise MessageError(Code.NOTIMP)
    if questions != 1 or answers or authorities or additionals > 2:
        raise MessageError(Code.FORMERR)
    try:
        at = HEADER.size
        while length := data[at]:
            if length > MAX_LABEL or at > MAX_NAME + HEADER.size:
                raise MessageError(Code.FORMERR)
            at += 1 + length
        end = at + 1 + QUESTION_TAIL.size
        type, cls = QUESTION_TAIL.unpack_from(data, at + 1)
        if end - HEADER.size - QUESTION_TAIL.size > MAX_NAME:
            raise MessageError(Code.FORMERR)
        payload = None
        for _ in range(additionals):
            payload, end = read_additional(data, end, payload)
    except (IndexError, struct.error):
        raise MessageError(Code.FORMERR) from None
    if cls != CLASS_IN:
        raise MessageError(Code.REFUSED)
    question = data[HEADER.size : at + 1 + QUESTION_TAIL.size]
    return Query(id, flags, question, question[: -QUESTION_TAIL.size].lower(), type, payload)


def read_additional(data: bytes, at: int, payload: int | None) -> tuple[int | None, int]:
    """Return the size in a record with the options of the client, and the offset after the record."""
    name, at = read_name(data, at)
    type, size, _, version, _, length = OPT_TAIL.unpack_from(data, at)
    end = at + OPT_TAIL.size + length
    if end > len(data):
        raise MessageError(Code.FORMERR)
    if type != Type.OPT:
        return payload, end
    if name != b"\0" or payload is not None:
        raise MessageError(Code.FORMERR)
    if version:
        raise MessageError(Code.BADVERS)
    return size, end


def encode_query(id: int, name: bytes, type: int) -> bytes:
    """Return a query to another server, with EDNS."""
    header = HEADER.pack(id, RECURSION_DESIRED, 1, 0, 0, 1)
    return header + name + QUESTION_TAIL.pack(type, CLASS_IN) + options_record(MAX_UDP)


def options_record(size: int, code: int = 0) -> bytes:
    return b"\0" + OPT_TAIL.pack(Type.OPT, size, code >> 4, 0, 0, 0)


# -- responses


def error_response(data: bytes, code: Code) -> bytes:
    """Return the response to a query that cannot be read: its header, and never more bytes than it has."""
    id, flags, *_ = HEADER.unpack_from(data)
    sent = IS_RESPONSE | (flags & (OPCODE | RECURSION_DESIRED)) | RECURSION_AVAILABLE | (code & 0xF)
    if code > 0xF and len(data) >= HEADER.size + 11:
        return HEADER.pack(id, sent, 0, 0, 0, 1) + options_record(MAX_UDP, code)
    return HEADER.pack(id, sent, 0, 0, 0, 0)


def encode_response(query: Query, answer: Answer, limit: int) -> bytes:
    """Return the response to a query. It has at most `limit` bytes; what does not fit is left out."""
    options = options_record(MAX_UDP) if query.payload is not None else b""
    writer = Writer(query, limit - len(options))
    counts = [writer.write_all(each) for each in (answer.records, answer.authority)]
    counts.append(0 if writer.is_full else writer.write_all(answer.additional))
    was_cut = counts[0] < len(answer.records) or counts[1] < len(answer.authority)
    flags = IS_RESPONSE | RECURSION_AVAILABLE | (query.flags & RECURSION_DESIRED) | answer.code
    flags |= AUTHORITATIVE if answer.is_authoritative else 0
    flags |= TRUNCATED if was_cut else 0
    header = HEADER.pack(query.id, flags, 1, counts[0], counts[1], counts[2] + bool(options))
    return b"".join((header, *writer.parts, options))


class Writer:
    """Writes records after a question, with compression of whole names."""

    def __init__(self, query: Query, limit: int) -> None:
        self.parts = [query.question]
        self._size, self._limit = HEADER.size + len(query.question), limit
        self._offsets = {query.name: HEADER.size}
        self.is_full = False

    def write_all(self, records: Iterable[Record]) -> int:
        """Write records as long as they fit, and return how many."""
        count = 0
        for each in records:
            if self.is_full or not self._write(each):
                self.is_full = True
                break
            count += 1
        return count

    def _write(self, record: Record) -> bool:
        name, type, ttl, data = record
        offset = self._offsets.get(name)
        owner = name if offset is None else (POINTER << 8 | offset).to_bytes(2, "big")
        start = self._size + len(owner) + RECORD_TAIL.size
        if start + len(data) > self._limit:
            return False
        self.parts += (owner, RECORD_TAIL.pack(type, CLASS_IN, ttl, len(data)), data)
        if offset is None and self._size < NO_COMPRESSION:
            self._offsets[name] = self._size
        if type == Type.CNAME and start < NO_COMPRESSION:
            self._offsets.setdefault(data.lower(), start)
        self._size = start + len(data)
        return True


# -- responses of other servers


def parse_response(data: bytes, id: int, question: bytes) -> tuple[Answer, bool]:
    """Return the answer in a response to our query, and whether it is truncated.

    Raise MessageError if it is malformed or does not belong to the query.
    """
    if len(data) < HEADER.size + len(question):
        raise MessageError(None)
    found, flags, questions, answers, authorities, _ = HEADER.unpack_from(data)
    is_ours = found == id and flags & IS_RESPONSE and not flags & OPCODE and questions == 1
    if not is_ours or data[HEADER.size : HEADER.size + len(question)] != question:
        raise MessageError(None)
    code = flags & 0xF
    if flags & TRUNCATED:
        return Answer(), True
    if answers + authorities > MAX_RECORDS:
        raise MessageError(Code.SERVFAIL)
    records: list[Record] = []
    at = HEADER.size + len(question)
    try:
        for _ in range(answers + authorities):
            record, at = read_record(data, at)
            records.append(record)
    except (IndexError, struct.error):
        raise MessageError(Code.SERVFAIL) from None
    known = Code(code) if code in (Code.NOERROR, Code.NXDOMAIN) else Code.SERVFAIL
    return Answer(known, records[:answers], records[answers:]), False


def read_record(data: bytes, at: int) -> tuple[Record, int]:
    name, at = read_name(data, at)
    type, cls, ttl, length = RECORD_TAIL.unpack_from(data, at)
    at += RECORD_TAIL.size
    end = at + length
    if end > len(data) or cls != CLASS_IN:
        raise MessageError(Code.SERVFAIL)
    return Record(name.lower(), type, 0 if ttl > 0x7FFFFFFF else ttl, expanded(data, at, end, type)), end


NAMES_IN_DATA = {
    **dict.fromkeys((Type.NS, Type.CNAME, Type.PTR, Type.DNAME), (0, 1, 0)),
    Type.MX: (2, 1, 0),
    Type.SRV: (6, 1, 0),
    Type.SOA: (0, 2, 20),
}
"""Bytes before the names in the data of a record, number of names, and bytes after them."""
DATA_SIZES = {Type.A: 4, Type.AAAA: 16}


def expanded(data: bytes, at: int, end: int, type: int) -> bytes:
    """Return the data of a record without compression."""
    if type in DATA_SIZES and end - at != DATA_SIZES[Type(type)]:
        raise MessageError(Code.SERVFAIL)
    if type not in NAMES_IN_DATA:
        return data[at:end]
    before, names, after = NAMES_IN_DATA[Type(type)]
    parts = [data[at : at + before]]
    at += before
    for _ in range(names):
        name, at = read_name(data, at)
        parts.append(name)
    if end - at != after:
        raise MessageError(Code.SERVFAIL)
    return b"".join((*parts, data[at:end]))
