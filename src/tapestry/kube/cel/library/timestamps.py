"""CEL functions on timestamps and durations."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tapestry.kube.cel.errors import EvaluationError
from tapestry.kube.cel.functions import cel_function, register_functions

DURATION = re.compile(
    r"([-+]?)((?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h)(?:(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))*|0)"
)
DURATION_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
SECONDS_PER_UNIT = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)")


def parse_duration(text: str) -> timedelta:
    """Parse a duration like `1h30m`. Raise ValueError."""
    match = DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration")
    try:
        total = timedelta(
            seconds=sum(float(amount) * SECONDS_PER_UNIT[unit] for amount, unit in DURATION_PART.findall(match[2]))
        )
    except OverflowError as error:
        raise ValueError(f"{text!r} is too long") from error
    return -total if match[1] == "-" else total


def parse_timestamp(text: str) -> datetime:
    """Parse an RFC 3339 timestamp. Raise ValueError."""
    match = TIMESTAMP.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a timestamp")
    fraction = (match[2] or ".0")[:7]
    return datetime.fromisoformat(match[1] + fraction.ljust(7, "0") + match[3].replace("Z", "+00:00")).astimezone(UTC)


def parse_date(text: str) -> datetime:
    """Parse a date into its first instant. Raise ValueError."""
    return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)


def duration_text(value: timedelta) -> str:
    """Return a duration in seconds, as CEL writes it."""
    seconds = value.total_seconds()
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"


def timestamp_text(value: datetime) -> str:
    text = value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return re.sub(r"(\.\d*?)0+Z", r"\1Z", text).replace(".Z", "Z")


# -- arithmetic


def checked_sum(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except OverflowError:
        raise EvaluationError("timestamp overflow") from None


# -- getters


def parse_time_zone(name: str) -> tzinfo:
    offset = re.fullmatch(r"([+-]?)(\d\d):(\d\d)", name)
    if offset is not None:
        minutes = int(offset[2]) * 60 + int(offset[3])
        return timezone(timedelta(minutes=-minutes if offset[1] == "-" else minutes))
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise EvaluationError(f"unknown time zone {name}") from None


TIMESTAMP_GETTERS: dict[str, Callable[[datetime], int]] = {
    "getFullYear": lambda value: value.year,
    "getMonth": lambda value: value.month - 1,
    "getDate": lambda value: value.day,
    "getDayOfMonth": lambda value: value.day - 1,
    "getDayOfWeek": lambda value: value.isoweekday() % 7,
    "getDayOfYear": lambda value: value.timetuple().tm_yday - 1,
    "getHours": lambda value: value.hour,
    "getMinutes": lambda value: value.minute,
    "getSeconds": lambda value: value.second,
    "getMilliseconds": lambda value: value.microsecond // 1000,
}
DURATION_GETTERS: dict[str, Callable[[timedelta], int]] = {
    "getHours": lambda value: int(value / timedelta(hours=1)),
    "getMinutes": lambda value: int(value / timedelta(minutes=1)),
    "getSeconds": lambda value: int(value / timedelta(seconds=1)),
    "getMilliseconds": lambda value: int(value / timedelta(milliseconds=1)),
}


def declare_timestamp_getter(name: str, part: Callable[[datetime], int]) -> None:
    cel_function(f"timestamp.{name}() -> int")(lambda value: part(value.astimezone(UTC)))
    cel_function(f"timestamp.{name}(string) -> int")(lambda value, zone: part(value.astimezone(parse_time_zone(zone))))


for _name, _part in TIMESTAMP_GETTERS.items():
    declare_timestamp_getter(_name, _part)
for _name, _whole in DURATION_GETTERS.items():
    cel_function(f"duration.{_name}() -> int")(_whole)


register_functions(
    {
        "_+_(timestamp, duration) -> timestamp": lambda left, right: checked_sum(lambda: left + right),
        "_+_(duration, timestamp) -> timestamp": lambda left, right: checked_sum(lambda: left + right),
        "_+_(duration, duration) -> duration": lambda left, right: checked_sum(lambda: left + right),
        "_-_(timestamp, duration) -> timestamp": lambda left, right: checked_sum(lambda: left - right),
        "_-_(timestamp, timestamp) -> duration": lambda left, right: checked_sum(lambda: left - right),
        "_-_(duration, duration) -> duration": lambda left, right: checked_sum(lambda: left - right),
    }
)
