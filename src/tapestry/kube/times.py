"""Times and durations as Kubernetes writes them.

In our code a moment is an aware datetime in UTC and a span is a timedelta; these functions stand at the border.
Kubernetes writes most moments to the second (`metav1.Time`) and those of leases and events to the microsecond
(`metav1.MicroTime`); spans are Go durations (`1h30m0s`).
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
# Digits have a bound, far above what a duration can hold: texts come from strangers.
DURATION_PART = re.compile(r"(?=\.?[0-9])([0-9]{0,40})(?:\.([0-9]{0,40}))?(ns|us|µs|μs|ms|s|m|h)")
DURATION = re.compile(rf"([+-]?)((?:{DURATION_PART.pattern})+|0)")
MAX_DURATION_NANOS = 2**63 - 1  # nanoseconds, some 292 years: Go can hold no more

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND, MICROSECOND = timedelta(seconds=1), timedelta(microseconds=1)


def timestamp(moment: datetime) -> str:
    """`moment` as a `metav1.Time`; parts of a second are cut off."""
    if moment.tzinfo is None:
        raise _naive_time_error(moment)
    return _timestamp_of_second((moment - EPOCH) // SECOND)


@lru_cache(maxsize=256)  # most are of now
def _timestamp_of_second(number: int) -> str:
    return f"{(EPOCH + number * SECOND).isoformat(timespec='seconds')[:19]}Z"


def micro_timestamp(moment: datetime) -> str:
    """`moment` as a `metav1.MicroTime`."""
    return f"{_in_utc(moment).isoformat(timespec='microseconds')[:26]}Z"


def _in_utc(moment: datetime) -> datetime:
    if moment.tzinfo is UTC:
        return moment
    if moment.tzinfo is None:
        raise _naive_time_error(moment)
    return moment.astimezone(UTC)


def _naive_time_error(moment: datetime) -> ValueError:
    return ValueError(f"{moment.isoformat()} has no time zone; moments are aware datetimes")


def parse_time(text: str, path: str = "") -> datetime:
    """The moment of an RFC 3339 text, in UTC; any offset and number of digits, cut to microseconds.

    A ValueError names `path`, the field that holds it.
    """
    try:
        if RFC3339.fullmatch(text):
            return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        pass  # the right shape, but no such day or second
    raise _parse_error(path, f"{text[:60]!r} is not a time; write it as 2006-01-02T15:04:05Z")


def parse_duration(text: str, path: str = "") -> timedelta:
    """The span of a Go duration: `1h30m`, `10s`, `-1.5ms`.

    Parts of a microsecond round away from zero, so that a short span does not become none.  A ValueError names `path`,
    the field that holds it.
    """
    found = DURATION.fullmatch(text)
    if found is None:
        raise _parse_error(path, f"{text[:60]!r} is not a duration; write it as 1h30m, 10s or 500ms")
    nanos = 0
    for whole, fraction, unit in DURATION_PART.findall(found[2]):
        nanos += int(whole + fraction) * NANOS_PER_UNIT[unit] // 10 ** len(fraction)
    if nanos > MAX_DURATION_NANOS:
        raise _parse_error(path, f"{text[:60]!r} is too long; a duration reaches to some 292 years")
    span = -(-nanos // 1000) * MICROSECOND
    return -span if found[1] == "-" else span


def duration_text(span: timedelta) -> str:
    """`span` as Go writes it: `1h30m0s`, `1.5s`, `500ms`."""
    micros = span // MICROSECOND
    if micros < 0:
        return f"-{duration_text(-span)}"
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
    """`number / 10**places` without trailing zeros."""
    whole, rest = divmod(number, 10**places)
    return f"{whole}.{rest:0{places}}".rstrip("0") if rest else str(whole)


def _parse_error(path: str, message: str) -> ValueError:
    return ValueError(f"{path}: {message}" if path else message)
