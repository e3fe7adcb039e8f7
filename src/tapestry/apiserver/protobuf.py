"""Protobuf: the form in which Go programs send objects of built-in kinds, read into what their JSON would have been.

A body is four bytes, MAGIC, and an envelope that says of which kind the message in it is.  What the fields of a
message are called, and how their values look in JSON, is in a table made of published data (tools/protobuf_tables.py);
it is not read before the first such body comes.  A message is compiled when it is first met, into a dict from tags (a
field's number and wire type, as they stand before each value) to functions that put a value where it belongs.

As in Kubernetes, what comes twice is merged or replaces the first, and fields that the table does not have are passed
over.  Unlike there, text that is not UTF-8 and groups, which nobody has sent for decades, are refused.
"""

import gzip
import math
import struct
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from tapestry.kube.objects import Object

DATA = "protobuf.json.gz"
MAGIC = b"k8s\0"
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types: how a value is written."""
SIZES = {FIXED64: 8, FIXED32: 4}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Put = Callable[[bytes, int, int, Object], None]
"""Puts what `data[at:end]` says into an object."""
PutNumber = Callable[[int, Object], None]
Read = Callable[[bytes, int, int], Any]
"""What `data[at:end]` says."""
Field = tuple[int, int, Put | PutNumber]
"""A number, a wire type, and what to do with values: PutNumber is for varints, Put for all others."""


class Malformed(ValueError):
    """The bytes are not an object of a kind that can be read."""


def decoded(body: bytes) -> Object:
    """The object in a body; raises Malformed, or RecursionError for what is nested too deeply."""
    if not body.startswith(MAGIC):
        raise Malformed("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
    try:
        return messages().opened(body)
    except UnicodeDecodeError as error:
        raise Malformed(f"text is not UTF-8: {error.reason}") from error
    except IndexError as error:
        raise Malformed("unexpected EOF") from error


@cache
def messages() -> "Messages":
    raw = gzip.decompress(resources.files("tapestry.apiserver").joinpath("data", DATA).read_bytes())
    data = msgspec.json.decode(raw)
    return Messages(data["kinds"], data["messages"])


class Messages:
    """The messages of the published table, whose notation tools/protobuf_tables.py explains."""

    def __init__(self, kinds: dict[str, str], rows: dict[str, list[tuple[int, str, str, bool]]]) -> None:
        self.kinds, self._rows = kinds, rows
        self._compiled: dict[str, Put] = {}

    def opened(self, body: bytes) -> Object:
        """What the envelope is around."""
        envelope: Object = {"type": {}, "message": (0, 0)}
        ENVELOPE(body, len(MAGIC), len(body), envelope)
        found: Object = envelope["type"]
        version, kind = found.get("apiVersion", ""), found.get("kind", "")
        name = self.kinds.get(f"{version}/{kind}") or self.kinds.get(kind)
        if name is None:
            raise Malformed(f'no kind "{kind}" is registered for version "{version}"')
        at, end = envelope["message"]
        self._named(name)(body, at, end, found)
        return found

    def _named(self, name: str) -> Put:
        if name not in self._compiled:
            self._compiled[name] = message(lambda: self._fields(name))
        return self._compiled[name]

    def _fields(self, name: str) -> Iterator[Field]:
        for number, key, kind, drops in self._rows[name]:
            if kind in INTEGERS:
                yield number, VARINT, integer_field(key, INTEGERS[kind], drops=drops)
            elif kind.startswith("[]") and kind[2:] in INTEGERS:
                yield number, VARINT, one_more_integer(key, INTEGERS[kind[2:]])
                yield number, BYTES, packed_integers(key, INTEGERS[kind[2:]])
            elif kind == "double":
                yield number, FIXED64, field(key, double)
            else:
                yield number, BYTES, self._put(key, kind, drops=drops)

    def _put(self, key: str, kind: str, *, drops: bool) -> Put:
        if kind.startswith("[]"):
            return one_more(key, self._read(kind[2:]))
        if kind.startswith("{}"):
            return entry(key, self._read(kind[2:]))
        if kind == "string":
            return text_field(key, drops=drops)
        if kind in self._rows:
            return part(key, self._named(kind)) if key else self._named(kind)
        return field(key, self._read(kind), drops=drops)

    def _read(self, kind: str) -> Read:
        if kind in READS:
            return READS[kind]
        if kind.startswith("[*]"):
            return items(self._read(kind[3:]))
        if kind.startswith("|"):
            return last_of(self._named(kind[1:]))
        return whole(self._named(kind))


# -- messages


def message(fields: Callable[[], Iterable[Field]]) -> Put:
    """Reads a message, whose fields are asked for when the first one comes."""
    known: dict[int, Any] = {}

    def put(data: bytes, at: int, end: int, into: Object) -> None:
        if not known:
            known.update({number << 3 | wire: each for number, wire, each in fields()})
        while at < end:
            tag = data[at]
            at += 1
            if tag > 127:
                tag, at = varint(data, at - 1)
            found = known.get(tag) or passed_over(tag, known)
            wire = tag & 7
            if wire in SIZES:
                size = SIZES[wire]
            else:
                size = data[at]
                at += 1
                if size > 127:
                    size, at = varint(data, at - 1)
                if wire == VARINT:
                    found(size, into)
                    continue
            if at + size > end:
                raise Malformed("unexpected EOF")
            found(data, at, at + size, into)
            at += size
        if at > end:
            raise Malformed("unexpected EOF")

    return put


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that is written from `at` on, seven bits a byte, and where it ends."""
    found = 0
    for shift in range(0, 64, 7):
        byte = data[at]
        at += 1
        found |= (byte & 127) << shift
        if byte < 128:
            return found & (1 << 64) - 1, at
    raise Malformed("integer overflow")


def passed_over(tag: int, known: dict[int, Any]) -> Callable[..., None]:
    """What to do with the value of a field that a message does not have: nothing, if that is what it is."""
    number, wire = tag >> 3, tag & 7
    if not number or wire not in (VARINT, FIXED64, BYTES, FIXED32):
        raise Malformed(f"illegal tag {number} (wire type {wire})")
    if any(number << 3 | other in known for other in (VARINT, FIXED64, BYTES)):
        raise Malformed(f"wrong wireType = {wire} for field {number}")
    return nothing


def nothing(*_: Any) -> None:
    """Leaves a value aside."""


# -- fields


def field(key: str, read: Read, *, drops: bool = False) -> Put:
    def put(data: bytes, at: int, end: int, into: Object) -> None:
        found = read(data, at, end)
        if found is None or (drops and not found):
            into.pop(key, None)
        else:
            into[key] = found

    return put


def text_field(key: str, *, drops: bool = False) -> Put:
    def put(data: bytes, at: int, end: int, into: Object) -> None:
        if at == end and drops:
            into.pop(key, None)
        else:
            into[key] = data[at:end].decode()

    return put


def integer_field(key: str, meaning: Callable[[int], int], *, drops: bool = False) -> PutNumber:
    def put(value: int, into: Object) -> None:
        found = meaning(value)
        if drops and not found:
            into.pop(key, None)
        else:
            into[key] = found

    return put


def one_more_integer(key: str, meaning: Callable[[int], int]) -> PutNumber:
    def put(value: int, into: Object) -> None:
        into.setdefault(key, []).append(meaning(value))

    return put


def packed_integers(key: str, meaning: Callable[[int], int]) -> Put:
    def put(data: bytes, at: int, end: int, into: Object) -> None:
        found = into.setdefault(key, [])
        while at < end:
            value, at = varint(data, at)
            found.append(meaning(value))
        if at > end:
            raise Malformed("unexpected EOF")

    return put


def part(key: str, inner: Put) -> Put:
    """A message within the message."""

    def put(data: bytes, at: int, end: int, into: Object) -> None:
        found = into.get(key)
        if found is None:
            found = into[key] = {}
        inner(data, at, end, found)

    return put


def one_more(key: str, read: Read) -> Put:
    def put(data: bytes, at: int, end: int, into: Object) -> None:
        into.setdefault(key, []).append(read(data, at, end))

    return put


def entry(key: str, read: Read) -> Put:
    """An entry of a map, which is a message of its own."""
    pair = message(lambda: [(1, BYTES, text_field("key")), (2, BYTES, field("value", read))])

    def put(data: bytes, at: int, end: int, into: Object) -> None:
        found: Object = {"key": ""}
        pair(data, at, end, found)
        into.setdefault(key, {})[found["key"]] = found["value"] if "value" in found else read(b"", 0, 0)

    return put


# -- values


def whole(put: Put) -> Read:
    def read(data: bytes, at: int, end: int) -> Object:
        found: Object = {}
        put(data, at, end, found)
        return found

    return read


def items(read: Read) -> Read:
    """The list in a message that has nothing else."""
    found = whole(message(lambda: [(1, BYTES, one_more("items", read))]))
    return lambda data, at, end: found(data, at, end).get("items", [])


def last_of(put: Put) -> Read:
    """That field of a message which counts if several are set; they are named by their numbers."""
    found = whole(put)

    def read(data: bytes, at: int, end: int) -> Any:
        fields = found(data, at, end)
        return fields[max(fields)] if fields else None

    return read


def signed(bits: int) -> Callable[[int], int]:
    half = 1 << bits - 1
    mask = (1 << bits) - 1
    return lambda value: (value + half & mask) - half


def text(data: bytes, at: int, end: int) -> str:
    return data[at:end].decode()


def base64(data: bytes, at: int, end: int) -> str:
    return b2a_base64(data[at:end], newline=False).decode()


def double(data: bytes, at: int, _: int) -> float:
    """A whole number is one, as in the JSON that Go writes."""
    found: float = struct.unpack_from("<d", data, at)[0]
    if not math.isfinite(found):
        raise Malformed(f"{found} is no number that JSON has")
    return int(found) if found.is_integer() and abs(found) < 1 << 53 else found


def json(data: bytes, at: int, end: int) -> Any:
    try:
        return msgspec.json.decode(data[at:end]) if at < end else None
    except msgspec.DecodeError as error:
        raise Malformed(f"JSON within the message: {error}") from error


INTEGERS: dict[str, Callable[[int], int]] = {"int32": signed(32), "int64": signed(64), "bool": bool}
STAMP = whole(
    message(
        lambda: [
            (1, VARINT, integer_field("seconds", INTEGERS["int64"])),
            (2, VARINT, integer_field("nanos", INTEGERS["int32"])),
        ]
    )
)
INTEGER_OR_STRING = whole(
    message(
        lambda: [
            (1, VARINT, integer_field("is_string", INTEGERS["int64"])),
            (2, VARINT, integer_field("integer", INTEGERS["int32"])),
            (3, BYTES, text_field("string")),
        ]
    )
)
QUANTITY = whole(message(lambda: [(1, BYTES, text_field("string"))]))
RAW = whole(message(lambda: [(1, BYTES, field("json", json))]))
TYPE = message(lambda: [(1, BYTES, text_field("apiVersion")), (2, BYTES, text_field("kind"))])
ENVELOPE = message(lambda: [(1, BYTES, part("type", TYPE)), (2, BYTES, field("message", lambda _, at, end: (at, end)))])


def moment(data: bytes, at: int, end: int, precision: str = "seconds") -> str | None:
    if at == end:
        return None
    stamp = STAMP(data, at, end)
    try:
        found = EPOCH + timedelta(seconds=stamp.get("seconds", 0), microseconds=stamp.get("nanos", 0) // 1000)
    except OverflowError as error:
        raise Malformed(f"{stamp['seconds']} seconds after 1970 are not in this calendar") from error
    return found.isoformat(timespec=precision).replace("+00:00", "Z")


def exact_moment(data: bytes, at: int, end: int) -> str | None:
    return moment(data, at, end, "microseconds")


def integer_or_string(data: bytes, at: int, end: int) -> int | str:
    found = INTEGER_OR_STRING(data, at, end)
    value: int | str = found.get("string", "") if found.get("is_string") else found.get("integer", 0)
    return value


READS: dict[str, Read] = {
    "string": text,
    "bytes": base64,
    "time": moment,
    "microtime": exact_moment,
    "quantity": lambda data, at, end: QUANTITY(data, at, end).get("string") or "0",
    "intorstring": integer_or_string,
    "json": lambda data, at, end: RAW(data, at, end).get("json"),
}
