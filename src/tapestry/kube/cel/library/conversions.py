"""From one type to another."""

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from tapestry.kube.cel.errors import EvaluationError
from tapestry.kube.cel.functions import declared, failing
from tapestry.kube.cel.library.moments import moment, span, spoken, written
from tapestry.kube.cel.values import INT_RANGE, UINT_RANGE, UInt

TRUTHS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


@declared("int(int) -> int", "int(uint) -> int", "int(double) -> int")
@failing("integer overflow")
def whole_of(value: float) -> int:
    found = int(value)
    if found not in INT_RANGE or (isinstance(value, float) and not -(2**63) < value < 2**63):
        raise OverflowError
    return found


@declared("int(string) -> int")
@failing("type conversion error from 'string' to 'int'")
def whole_in(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text) or int(text) not in INT_RANGE:
        raise ValueError
    return int(text)


@declared("int(timestamp) -> int")
def seconds_of(value: datetime) -> int:
    return math.floor(value.timestamp())


@declared("int(duration) -> int")
def nanoseconds_of(value: timedelta) -> int:
    return int(value / timedelta(microseconds=1)) * 1000


@declared("uint(int) -> uint", "uint(uint) -> uint", "uint(double) -> uint")
@failing("unsigned integer overflow")
def natural_of(value: float) -> UInt:
    if int(value) not in UINT_RANGE or value < 0:
        raise OverflowError
    return UInt(int(value))


@declared("uint(string) -> uint")
@failing("type conversion error from 'string' to 'uint'")
def natural_in(text: str) -> UInt:
    if not re.fullmatch("[0-9]+", text) or int(text) not in UINT_RANGE:
        raise ValueError
    return UInt(int(text))


@declared("double(int) -> double", "double(uint) -> double", "double(double) -> double")
def real_of(value: float) -> float:
    return float(value)


@declared("double(string) -> double")
@failing("type conversion error from 'string' to 'double'")
def real_in(text: str) -> float:
    return float(text)


@declared("bool(bool) -> bool")
def truth_of(value: bool) -> bool:
    return value


@declared("bool(string) -> bool")
def truth_in(text: str) -> bool:
    if text in TRUTHS:
        return TRUTHS[text]
    raise EvaluationError("type conversion error from 'string' to 'bool'")


@declared(*(f"string({each}) -> string" for each in ("string", "int", "uint", "bool", "double")))
def text_of(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return real_text(value) if isinstance(value, float) else str(value)


def real_text(value: float) -> str:
    """A number with no more digits than it needs, nor a fraction or an exponent."""
    if math.isinf(value) or math.isnan(value):
        return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}[str(value)]
    if value == int(value) and abs(value) < 1e21:
        return str(int(value))
    return re.sub(r"e([+-])(\d)$", r"e\g<1>0\2", repr(value))


@declared("string(bytes) -> string")
@failing("invalid UTF-8 in bytes, cannot convert to string")
def text_in(value: bytes) -> str:
    return value.decode()


@declared("string(timestamp) -> string")
def moment_text(value: datetime) -> str:
    return written(value)


@declared("string(duration) -> string")
def span_text(value: timedelta) -> str:
    return spoken(value)


@declared("bytes(bytes) -> bytes")
def bytes_of(value: bytes) -> bytes:
    return value


@declared("bytes(string) -> bytes")
def bytes_in(value: str) -> bytes:
    return value.encode()


@declared("timestamp(timestamp) -> timestamp")
def moment_of(value: datetime) -> datetime:
    return value


@declared("timestamp(string) -> timestamp")
@failing("type conversion error from 'string' to 'google.protobuf.Timestamp'")
def moment_in(text: str) -> datetime:
    return moment(text)


@declared("timestamp(int) -> timestamp")
@failing("timestamp overflow")
def moment_at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


@declared("duration(duration) -> duration")
def span_of(value: timedelta) -> timedelta:
    return value


@declared("duration(string) -> duration")
@failing("type conversion error from 'string' to 'google.protobuf.Duration'")
def span_in(text: str) -> timedelta:
    return span(text)


@declared("duration(int) -> duration")
def span_for(nanoseconds: int) -> timedelta:
    return timedelta(microseconds=nanoseconds / 1000)
