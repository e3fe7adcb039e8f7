"""Timestamps and durations in the formats of Kubernetes.

Inside our code a timestamp is an aware datetime in UTC, and a duration is a timedelta. These functions convert at the
boundary. Kubernetes writes most timestamps with seconds (`metav1.Time`), and those of leases and events with
microseconds (`metav1.MicroTime`). Durations are Go durations (`1h30m0s`).
"""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})"
)

NANOS_PER_UNIT = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
# The number of digits is limited, far above any valid duration, because the input is untrusted.
DURATION_PART = re.compile(r"(?=\.?[0-9])([0-9]{0,40})(?:\.([0-9]{0,40}))?(ns|us|µs|μs|ms|s|m|h)")
DURATION = re.compile(rf"([+-]?)((?:{DURATION_PART.pattern})+|0)")
MAX_DURATION_NANOS = 2**63 - 1  # about 292 years, the maximum of Go

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND, MICROSECOND = timedelta(seconds=1), timedelta(microseconds=1)


def timestamp(time: datetime) -> str:
    """Return `time` as a `metav1.Time`, truncated to seconds."""
    if time.tzinfo is None:
        raise _naive_time_error(time)
    return _timestamp_of_second((time - EPOCH) // SECOND)


@lru_cache(maxsize=256)  # most timestamps are the current time
def _timestamp_of_second(number: int) -> str:
    return f"{(EPOCH + number * SECOND).isoformat(timespec='seconds')[:19]}Z"


def micro_timestamp(time: datetime) -> str:
    return f"{_in_utc(time).isoformat(timespec='microseconds')[:26]}Z"


def _in_utc(time: datetime) -> datetime:
    if time.tzinfo is UTC:
        return time
    if time.tzinfo is None:
        raise _naive_time_error(time)
    return time.astimezone(UTC)


def _naive_time_error(time: datetime) -> ValueError:
    return ValueError(f"{time.isoformat()} has no time zone; use an aware datetime")


def parse_time(text: str, path: str = "") -> datetime:
    """Parse an RFC 3339 timestamp into UTC. Any offset is accepted; the fraction is truncated to microseconds.

    A ValueError names `path`, the field that contains the text.
    """
    try:
        if RFC3339.fullmatch(text):
            return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        pass  # valid format, but no valid date or time
    raise _parse_error(path, f"{text[:60]!r} is not a time; write it as 2006-01-02T15:04:05Z")


def parse_duration(text: str, path: str = "") -> timedelta:
    """Parse a Go duration: `1h30m`, `10s`, `-1.5ms`.

    Fractions of a microsecond round away from zero, so that a short duration does not become zero. A ValueError names
    `path`, the field that contains the text.
    """
    match = DURATION.fullmatch(text)
    if match is None:
        raise _parse_error(path, f"{text[:60]!r} is not a duration; write it as 1h30m, 10s or 500ms")
    nanos = 0
    for integer, fraction, unit in DURATION_PART.findall(match[2]):
        nanos += int(integer + fraction) * NANOS_PER_UNIT[unit] // 10 ** len(fraction)
    if nanos > MAX_DURATION_NANOS:
        raise _parse_error(path, f"{text[:60]!r} is too long; the maximum is about 292 years")
    duration = -(-nanos // 1000) * MICROSECOND
    return -duration if match[1] == "-" else duration


def duration_text(duration: timedelta) -> str:
    """Format `duration` as Go does: `1h30m0s`, `1.5s`, `500ms`."""
    micros = duration // MICROSECOND
    if micros < 0:
        return f"-{duration_text(-duration)}"
    if micros == 0:
        return "0s"
    if micros < 1000:
        return f"{micros}µs"
    if micros < 1_000_000:
        return f"{_decimal(micros, 3)}ms"
    minutes, micros = divmod(micros, 60_000_000)
    seconds = f"{_decimal(micros, 6)}s"
    if minutes == 0:
        return seconds
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}" if hours else f"{minutes}m{seconds}"


def _decimal(number: int, places: int) -> str:
    """Return `number / 10**places` without trailing zeros."""
    integer, rest = divmod(number, 10**places)
    return f"{integer}.{rest:0{places}}".rstrip("0") if rest else str(integer)


def _parse_error(path: str, message: str) -> ValueError:
    return ValueError(f"{path}: {message}" if path else message)
