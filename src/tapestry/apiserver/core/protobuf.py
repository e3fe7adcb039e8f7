"""Protobuf decoder for objects of built-in kinds, which returns the same data as their JSON form.

A body consists of MAGIC (four bytes) and an envelope that names the kind of the message in it. The names of the fields
and the JSON form of their values are in a table of published data (tools/protobuf_tables.py), which is loaded on first
use. A message type is compiled on first use into a dict from tags (field number and wire type) to functions that store
a value.

As in Kubernetes, a repeated field is merged or replaces the first value, and unknown fields are skipped. Unlike
Kubernetes, the decoder rejects text that is not UTF-8, and groups, a deprecated feature of protobuf.
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

DATA_FILE = "protobuf.json.gz"
MAGIC = b"k8s\0"
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types: the encodings of values."""
FIXED_SIZES = {FIXED64: 8, FIXED32: 4}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

FieldDecoder = Callable[[bytes, int, int, Object], None]
"""Store the value of `data[at:end]` in an object."""
VarintDecoder = Callable[[int, Object], None]
ValueReader = Callable[[bytes, int, int], Any]
"""Return the value of `data[at:end]`."""
FieldEntry = tuple[int, int, FieldDecoder | VarintDecoder]
"""A field number, a wire type and a decoder: VarintDecoder for varints, FieldDecoder for all others."""


class MalformedMessage(ValueError):
    """The bytes are not an object of a known kind."""


def decode_object(body: bytes) -> Object:
    """Return the object in a body. Raises MalformedMessage, or RecursionError for deep nesting."""
    if not body.startswith(MAGIC):
        raise MalformedMessage("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
    try:
        return message_decoders().decode(body)
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"text is not UTF-8: {error.reason}") from error
    except IndexError as error:
        raise MalformedMessage("unexpected EOF") from error


@cache
def message_decoders() -> "MessageDecoders":
    raw = gzip.decompress(resources.files("tapestry.apiserver").joinpath("data", DATA_FILE).read_bytes())
    data = msgspec.json.decode(raw)
    return MessageDecoders(data["kinds"], data["messages"])


class MessageDecoders:
    """Compiled message types of the published table; tools/protobuf_tables.py explains its notation."""

    def __init__(self, kinds: dict[str, str], rows: dict[str, list[tuple[int, str, str, bool]]]) -> None:
        self.kinds, self._rows = kinds, rows
        self._compiled: dict[str, FieldDecoder] = {}

    def decode(self, body: bytes) -> Object:
        """Return the object in the envelope."""
        envelope: Object = {"type": {}, "message": (0, 0)}
        DECODE_ENVELOPE(body, len(MAGIC), len(body), envelope)
        result: Object = envelope["type"]
        version, kind = result.get("apiVersion", ""), result.get("kind", "")
        name = self.kinds.get(f"{version}/{kind}") or self.kinds.get(kind)
        if name is None:
            raise MalformedMessage(f'no kind "{kind}" is registered for version "{version}"')
        at, end = envelope["message"]
        self._decoder_for(name)(body, at, end, result)
        return result

    def _decoder_for(self, name: str) -> FieldDecoder:
        if name not in self._compiled:
            self._compiled[name] = message_decoder(lambda: self._field_entries(name))
        return self._compiled[name]

    def _field_entries(self, name: str) -> Iterator[FieldEntry]:
        for number, key, kind, omit_empty in self._rows[name]:
            if kind in INTEGER_CONVERSIONS:
                yield number, VARINT, integer_field(key, INTEGER_CONVERSIONS[kind], omit_empty=omit_empty)
            elif kind.startswith("[]") and kind[2:] in INTEGER_CONVERSIONS:
                yield number, VARINT, repeated_integer_field(key, INTEGER_CONVERSIONS[kind[2:]])
                yield number, BYTES, packed_integer_field(key, INTEGER_CONVERSIONS[kind[2:]])
            elif kind == "double":
                yield number, FIXED64, value_field(key, read_double)
            else:
                yield number, BYTES, self._length_delimited_decoder(key, kind, omit_empty=omit_empty)

    def _length_delimited_decoder(self, key: str, kind: str, *, omit_empty: bool) -> FieldDecoder:
        if kind.startswith("[]"):
            return repeated_field(key, self._value_reader(kind[2:]))
        if kind.startswith("{}"):
            return map_entry_field(key, self._value_reader(kind[2:]))
        if kind == "string":
            return text_field(key, omit_empty=omit_empty)
        if kind in self._rows:
            return nested_message_field(key, self._decoder_for(kind)) if key else self._decoder_for(kind)
        return value_field(key, self._value_reader(kind), omit_empty=omit_empty)

    def _value_reader(self, kind: str) -> ValueReader:
        if kind in VALUE_READERS:
            return VALUE_READERS[kind]
        if kind.startswith("[*]"):
            return list_reader(self._value_reader(kind[3:]))
        if kind.startswith("|"):
            return union_reader(self._decoder_for(kind[1:]))
        return message_reader(self._decoder_for(kind))


# -- messages


def message_decoder(fields: Callable[[], Iterable[FieldEntry]]) -> FieldDecoder:
    """Return a decoder for a message; `fields` is called when the first message is decoded."""
    known: dict[int, Any] = {}

    def put(data: bytes, at: int, end: int, into: Object) -> None:
        if not known:
            known.update({number << 3 | wire: each for number, wire, each in fields()})
        while at < end:
            tag = data[at]
            at += 1
            if tag > 127:
                tag, at = read_varint(data, at - 1)
            decode = known.get(tag) or unknown_field_decoder(tag, known)
            wire = tag & 7
            if wire in FIXED_SIZES:
                size = FIXED_SIZES[wire]
            else:
                size = data[at]
                at += 1
                if size > 127:
                    size, at = read_varint(data, at - 1)
                if wire == VARINT:
                    decode(size, into)
                    continue
            if at + size > end:
                raise MalformedMessage("unexpected EOF")
            decode(data, at, at + size, into)
            at += size
        if at > end:
            raise MalformedMessage("unexpected EOF")

    return put


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint that starts at `at`, and the position after it."""
    result = 0
    for shift in range(0, 64, 7):
        byte = data[at]
        at += 1
        result |= (byte & 127) << shift
        if byte < 128:
            return result & (1 << 64) - 1, at
    raise MalformedMessage("integer overflow")


def unknown_field_decoder(tag: int, known: dict[int, Any]) -> Callable[..., None]:
    """Return a decoder that skips the value of an unknown field. Raises MalformedMessage for an invalid tag."""
    number, wire = tag >> 3, tag & 7
    if not number or wire not in (VARINT, FIXED64, BYTES, FIXED32):
        raise MalformedMessage(f"illegal tag {number} (wire type {wire})")
    if any(number << 3 | other in known for other in (VARINT, FIXED64, BYTES)):
        raise MalformedMessage(f"wrong wireType = {wire} for field {number}")
    return ignore_value


def ignore_value(*_: Any) -> None:
    """Skip a value."""


# -- fields


def value_field(key: str, read: ValueReader, *, omit_empty: bool = False) -> FieldDecoder:
    def put(data: bytes, at: int, end: int, into: Object) -> None:
        result = read(data, at, end)
        if result is None or (omit_empty and not result):
            into.pop(key, None)
        else:
            into[key] = result

    return put


def text_field(key: str, *, omit_empty: bool = False) -> FieldDecoder:
    def put(data: bytes, at: int, end: int, into: Object) -> None:
        if at == end and omit_empty:
            into.pop(key, None)
        else:
            into[key] = data[at:end].decode()

    return put


def integer_field(key: str, convert: Callable[[int], int], *, omit_empty: bool = False) -> VarintDecoder:
    def put(value: int, into: Object) -> None:
        result = convert(value)
        if omit_empty and not result:
            into.pop(key, None)
        else:
            into[key] = result

    return put


def repeated_integer_field(key: str, convert: Callable[[int], int]) -> VarintDecoder:
    def put(value: int, into: Object) -> None:
        into.setdefault(key, []).append(convert(value))

    return put


def packed_integer_field(key: str, convert: Callable[[int], int]) -> FieldDecoder:
    def put(data: bytes, at: int, end: int, into: Object) -> None:
        result = into.setdefault(key, [])
        while at < end:
            value, at = read_varint(data, at)
            result.append(convert(value))
        if at > end:
            raise MalformedMessage("unexpected EOF")

    return put


def nested_message_field(key: str, inner: FieldDecoder) -> FieldDecoder:
    def put(data: bytes, at: int, end: int, into: Object) -> None:
        result = into.get(key)
        if result is None:
            result = into[key] = {}
        inner(data, at, end, result)

    return put


def repeated_field(key: str, read: ValueReader) -> FieldDecoder:
    def put(data: bytes, at: int, end: int, into: Object) -> None:
        into.setdefault(key, []).append(read(data, at, end))

    return put


def map_entry_field(key: str, read: ValueReader) -> FieldDecoder:
    """Return a decoder for a map entry, which is a message with a key and a value."""
    pair = message_decoder(lambda: [(1, BYTES, text_field("key")), (2, BYTES, value_field("value", read))])

    def put(data: bytes, at: int, end: int, into: Object) -> None:
        result: Object = {"key": ""}
        pair(data, at, end, result)
        into.setdefault(key, {})[result["key"]] = result["value"] if "value" in result else read(b"", 0, 0)

    return put


# -- values


def message_reader(put: FieldDecoder) -> ValueReader:
    def read(data: bytes, at: int, end: int) -> Object:
        result: Object = {}
        put(data, at, end, result)
        return result

    return read


def list_reader(read: ValueReader) -> ValueReader:
    """Return a reader for a message whose only field is a list."""
    result = message_reader(message_decoder(lambda: [(1, BYTES, repeated_field("items", read))]))
    return lambda data, at, end: result(data, at, end).get("items", [])


def union_reader(put: FieldDecoder) -> ValueReader:
    """Return a reader for a message of which only the set field with the highest number counts."""
    result = message_reader(put)

    def read(data: bytes, at: int, end: int) -> Any:
        fields = result(data, at, end)
        return fields[max(fields)] if fields else None

    return read


def signed_integer(bits: int) -> Callable[[int], int]:
    half = 1 << bits - 1
    mask = (1 << bits) - 1
    return lambda value: (value + half & mask) - half


def read_string(data: bytes, at: int, end: int) -> str:
    return data[at:end].decode()


def read_base64(data: bytes, at: int, end: int) -> str:
    return b2a_base64(data[at:end], newline=False).decode()


def read_double(data: bytes, at: int, _: int) -> float:
    """Return a whole number as an int, as in the JSON that Go writes."""
    result: float = struct.unpack_from("<d", data, at)[0]
    if not math.isfinite(result):
        raise MalformedMessage(f"{result} is not a valid JSON number")
    return int(result) if result.is_integer() and abs(result) < 1 << 53 else result


def read_json(data: bytes, at: int, end: int) -> Any:
    try:
        return msgspec.json.decode(data[at:end]) if at < end else None
    except msgspec.DecodeError as error:
        raise MalformedMessage(f"JSON within the message: {error}") from error


INTEGER_CONVERSIONS: dict[str, Callable[[int], int]] = {
    "int32": signed_integer(32),
    "int64": signed_integer(64),
    "bool": bool,
}
READ_TIMESTAMP = message_reader(
    message_decoder(
        lambda: [
            (1, VARINT, integer_field("seconds", INTEGER_CONVERSIONS["int64"])),
            (2, VARINT, integer_field("nanos", INTEGER_CONVERSIONS["int32"])),
        ]
    )
)
READ_INT_OR_STRING = message_reader(
    message_decoder(
        lambda: [
            (1, VARINT, integer_field("is_string", INTEGER_CONVERSIONS["int64"])),
            (2, VARINT, integer_field("integer", INTEGER_CONVERSIONS["int32"])),
            (3, BYTES, text_field("string")),
        ]
    )
)
READ_QUANTITY = message_reader(message_decoder(lambda: [(1, BYTES, text_field("string"))]))
READ_RAW_EXTENSION = message_reader(message_decoder(lambda: [(1, BYTES, value_field("json", read_json))]))
DECODE_TYPE_META = message_decoder(lambda: [(1, BYTES, text_field("apiVersion")), (2, BYTES, text_field("kind"))])
DECODE_ENVELOPE = message_decoder(
    lambda: [
        (1, BYTES, nested_message_field("type", DECODE_TYPE_META)),
        (2, BYTES, value_field("message", lambda _, at, end: (at, end))),
    ]
)


def read_time(data: bytes, at: int, end: int, precision: str = "seconds") -> str | None:
    if at == end:
        return None
    stamp = READ_TIMESTAMP(data, at, end)
    try:
        result = EPOCH + timedelta(seconds=stamp.get("seconds", 0), microseconds=stamp.get("nanos", 0) // 1000)
    except OverflowError as error:
        raise MalformedMessage(f"timestamp {stamp['seconds']} is out of range") from error
    return result.isoformat(timespec=precision).replace("+00:00", "Z")


def read_micro_time(data: bytes, at: int, end: int) -> str | None:
    return read_time(data, at, end, "microseconds")


def read_int_or_string(data: bytes, at: int, end: int) -> int | str:
    result = READ_INT_OR_STRING(data, at, end)
    value: int | str = result.get("string", "") if result.get("is_string") else result.get("integer", 0)
    return value


VALUE_READERS: dict[str, ValueReader] = {
    "string": read_string,
    "bytes": read_base64,
    "time": read_time,
    "microtime": read_micro_time,
    "quantity": lambda data, at, end: READ_QUANTITY(data, at, end).get("string") or "0",
    "intorstring": read_int_or_string,
    "json": lambda data, at, end: READ_RAW_EXTENSION(data, at, end).get("json"),
}
