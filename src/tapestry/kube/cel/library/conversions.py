"""CEL type conversion functions."""

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from tapestry.kube.cel.errors import EvaluationError
from tapestry.kube.cel.functions import as_evaluation_error, cel_function, register_functions
from tapestry.kube.cel.library.timestamps import duration_text, parse_duration, parse_timestamp, timestamp_text
from tapestry.kube.cel.values import INT_RANGE, UINT_RANGE, UInt

BOOL_STRINGS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


@cel_function("int(int) -> int", "int(uint) -> int", "int(double) -> int")
@as_evaluation_error("integer overflow")
def int_from_number(value: float) -> int:
    converted = int(value)
    if converted not in INT_RANGE or (isinstance(value, float) and not -(2**63) < value < 2**63):
        raise OverflowError
    return converted


@cel_function("int(string) -> int")
@as_evaluation_error("type conversion error from 'string' to 'int'")
def int_from_string(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text) or int(text) not in INT_RANGE:
        raise ValueError
    return int(text)


@cel_function("uint(int) -> uint", "uint(uint) -> uint", "uint(double) -> uint")
@as_evaluation_error("unsigned integer overflow")
def uint_from_number(value: float) -> UInt:
    if int(value) not in UINT_RANGE or value < 0:
        raise OverflowError
    return UInt(int(value))


@cel_function("uint(string) -> uint")
@as_evaluation_error("type conversion error from 'string' to 'uint'")
def uint_from_string(text: str) -> UInt:
    if not re.fullmatch("[0-9]+", text) or int(text) not in UINT_RANGE:
        raise ValueError
    return UInt(int(text))


@cel_function("double(string) -> double")
@as_evaluation_error("type conversion error from 'string' to 'double'")
def double_from_string(text: str) -> float:
    return float(text)


@cel_function("bool(string) -> bool")
def bool_from_string(text: str) -> bool:
    if text in BOOL_STRINGS:
        return BOOL_STRINGS[text]
    raise EvaluationError("type conversion error from 'string' to 'bool'")


@cel_function(*(f"string({each}) -> string" for each in ("string", "int", "uint", "bool", "double")))
def string_from_scalar(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return double_text(value) if isinstance(value, float) else str(value)


def double_text(value: float) -> str:
    """Format a double with the fewest digits, without a fraction or exponent where possible."""
    if math.isinf(value) or math.isnan(value):
        return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}[str(value)]
    if value == int(value) and abs(value) < 1e21:
        return str(int(value))
    return re.sub(r"e([+-])(\d)$", r"e\g<1>0\2", repr(value))


@cel_function("string(bytes) -> string")
@as_evaluation_error("invalid UTF-8 in bytes, cannot convert to string")
def string_from_bytes(value: bytes) -> str:
    return value.decode()


@cel_function("timestamp(string) -> timestamp")
@as_evaluation_error("type conversion error from 'string' to 'google.protobuf.Timestamp'")
def timestamp_from_string(text: str) -> datetime:
    return parse_timestamp(text)


@cel_function("timestamp(int) -> timestamp")
@as_evaluation_error("timestamp overflow")
def timestamp_from_int(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


@cel_function("duration(string) -> duration")
@as_evaluation_error("type conversion error from 'string' to 'google.protobuf.Duration'")
def duration_from_string(text: str) -> timedelta:
    return parse_duration(text)


register_functions(
    {
        "int(timestamp) -> int": lambda value: math.floor(value.timestamp()),
        "int(duration) -> int": lambda value: int(value / timedelta(microseconds=1)) * 1000,
        "double(int) -> double": lambda value: float(value),
        "double(uint) -> double": lambda value: float(value),
        "double(double) -> double": lambda value: float(value),
        "bool(bool) -> bool": lambda value: value,
        "string(timestamp) -> string": lambda value: timestamp_text(value),
        "string(duration) -> string": lambda value: duration_text(value),
        "bytes(bytes) -> bytes": lambda value: value,
        "bytes(string) -> bytes": lambda value: value.encode(),
        "timestamp(timestamp) -> timestamp": lambda value: value,
        "duration(duration) -> duration": lambda value: value,
        "duration(int) -> duration": lambda nanoseconds: timedelta(microseconds=nanoseconds / 1000),
    }
)
