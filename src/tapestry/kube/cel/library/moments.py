"""Moments and spans of time."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tapestry.kube.cel.errors import EvaluationError
from tapestry.kube.cel.functions import declared

SPAN = re.compile(
    r"([-+]?)((?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h)(?:(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))*|0)"
)
PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
MOMENT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)")


def span(text: str) -> timedelta:
    """The duration that a text like `1h30m` says; raises ValueError."""
    found = SPAN.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no duration")
    try:
        total = timedelta(seconds=sum(float(amount) * SECONDS[unit] for amount, unit in PART.findall(found[2])))
    except OverflowError as error:
        raise ValueError(f"{text!r} is too long") from error
    return -total if found[1] == "-" else total


def moment(text: str) -> datetime:
    """The timestamp that a text of RFC 3339 says; raises ValueError."""
    found = MOMENT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no timestamp")
    fraction = (found[2] or ".0")[:7]
    return datetime.fromisoformat(found[1] + fraction.ljust(7, "0") + found[3].replace("Z", "+00:00")).astimezone(UTC)


def day(text: str) -> datetime:
    """The beginning of a date; raises ValueError."""
    return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)


def spoken(value: timedelta) -> str:
    """A duration as it is written: seconds."""
    seconds = value.total_seconds()
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"


def written(value: datetime) -> str:
    text = value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return re.sub(r"(\.\d*?)0+Z", r"\1Z", text).replace(".Z", "Z")


# -- sums


def bounded(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except OverflowError:
        raise EvaluationError("timestamp overflow") from None


@declared(
    "_+_(timestamp, duration) -> timestamp",
    "_+_(duration, timestamp) -> timestamp",
    "_+_(duration, duration) -> duration",
)
def later(one: Any, other: Any) -> Any:
    return bounded(lambda: one + other)


@declared(
    "_-_(timestamp, duration) -> timestamp",
    "_-_(timestamp, timestamp) -> duration",
    "_-_(duration, duration) -> duration",
)
def earlier(one: Any, other: Any) -> Any:
    return bounded(lambda: one - other)


# -- parts of a moment


def zone(name: str) -> tzinfo:
    offset = re.fullmatch(r"([+-]?)(\d\d):(\d\d)", name)
    if offset is not None:
        minutes = int(offset[2]) * 60 + int(offset[3])
        return timezone(timedelta(minutes=-minutes if offset[1] == "-" else minutes))
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise EvaluationError(f"unknown time zone {name}") from None


PARTS: dict[str, Callable[[datetime], int]] = {
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
WHOLE: dict[str, Callable[[timedelta], int]] = {
    "getHours": lambda value: int(value / timedelta(hours=1)),
    "getMinutes": lambda value: int(value / timedelta(minutes=1)),
    "getSeconds": lambda value: int(value / timedelta(seconds=1)),
    "getMilliseconds": lambda value: int(value / timedelta(milliseconds=1)),
}


def declare_part(name: str, part: Callable[[datetime], int]) -> None:
    declared(f"timestamp.{name}() -> int")(lambda value: part(value.astimezone(UTC)))
    declared(f"timestamp.{name}(string) -> int")(lambda value, where: part(value.astimezone(zone(where))))


for _name, _part in PARTS.items():
    declare_part(_name, _part)
for _name, _whole in WHOLE.items():
    declared(f"duration.{_name}() -> int")(_whole)
