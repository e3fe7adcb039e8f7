"""Tests of cron schedules against a check of every minute."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tapestry.kube.cron_schedule import ScheduleError, parse_schedule

NOON = datetime(2024, 1, 31, 12, 0, tzinfo=UTC)
ZONES = ("UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "America/St_Johns", "Africa/Cairo")
BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
NAMES = {
    3: ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    4: ["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
}


def at(text: str, zone: str = "UTC") -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


@pytest.mark.parametrize(
    ("text", "after", "due"),
    [
        ("* * * * *", "2024-01-31T12:00:00", "2024-01-31T12:01"),
        ("* * * * *", "2024-01-31T12:00:59", "2024-01-31T12:01"),
        ("0 12 * * *", "2024-01-31T12:00", "2024-02-01T12:00"),
        ("*/15 * * * *", "2024-01-31T12:46", "2024-01-31T13:00"),
        ("5/20 * * * *", "2024-01-31T12:26", "2024-01-31T12:45"),
        ("0 9-17/4 * * *", "2024-01-31T13:00", "2024-01-31T17:00"),
        ("0 0 29 2 *", "2024-03-01T00:00", "2028-02-29T00:00"),
        ("0 0 * * MON-FRI", "2024-02-02T12:00", "2024-02-05T00:00"),
        ("0 0 13 * FRI", "2024-01-31T12:00", "2024-02-02T00:00"),  # either of the two days
        ("0 0 */2 * FRI", "2024-01-31T12:00", "2024-02-01T00:00"),  # a step is not a wildcard
        ("0 0 ? * FRI", "2024-01-31T12:00", "2024-02-02T00:00"),
        ("0 0 1 jan,Jul *", "2024-01-31T12:00", "2024-07-01T00:00"),
        ("@yearly", "2024-01-31T12:00", "2025-01-01T00:00"),
        ("@monthly", "2024-01-31T12:00", "2024-02-01T00:00"),
        ("@weekly", "2024-01-31T12:00", "2024-02-04T00:00"),
        ("@daily", "2024-01-31T12:00", "2024-02-01T00:00"),
        ("@hourly", "2024-01-31T12:00", "2024-01-31T13:00"),
        ("@every 90m", "2024-01-31T12:00", "2024-01-31T13:30"),
    ],
)
def test_next_start_follows_cron_rules(text: str, after: str, due: str) -> None:
    assert parse_schedule(text).next_after(at(after)) == at(due)


def test_schedule_without_start_returns_none() -> None:
    assert parse_schedule("0 0 30 2 *").next_after(NOON) is None
    assert parse_schedule("0 0 30 2 *").last_between(NOON - timedelta(days=400), NOON) is None


@pytest.mark.parametrize(
    "text",
    [
        "", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 7", "a * * * *",
        "*/0 * * * *", "5-1 * * * *", "1- * * * *", "@sometimes", "@every day", "-1 * * * *",
        "* * * * mond", "*-5 * * * *",
    ],
)  # fmt: skip
def test_invalid_schedule_raises_error(text: str) -> None:
    with pytest.raises(ScheduleError):
        parse_schedule(text)


def test_unknown_time_zone_raises_error() -> None:
    with pytest.raises(ZoneInfoNotFoundError):
        parse_schedule("* * * * *", "Middle/Earth")


def test_start_in_skipped_hour_is_skipped() -> None:
    schedule = parse_schedule("30 2 * * *", "Europe/Berlin")
    assert schedule.next_after(at("2024-03-30T12:00", "Europe/Berlin")) == at("2024-04-01T02:30", "Europe/Berlin")


def test_start_in_repeated_hour_runs_twice() -> None:
    schedule = parse_schedule("30 2 * * *", "Europe/Berlin")
    first = schedule.next_after(at("2024-10-26T12:00", "Europe/Berlin"))
    assert first == datetime(2024, 10, 27, 0, 30, tzinfo=UTC)
    assert first is not None
    assert schedule.next_after(first) == datetime(2024, 10, 27, 1, 30, tzinfo=UTC)


# -- comparison with every minute


@st.composite
def parts(draw: st.DrawFn, field: int) -> str:
    minimum, maximum = BOUNDS[field]

    def word(value: int) -> str:
        return NAMES[field][value - minimum].upper() if field in NAMES and draw(st.booleans()) else str(value)

    first = draw(st.integers(minimum, maximum))
    kind = draw(st.sampled_from(["*", "value", "range", "step", "every", "?"]))
    increment = draw(st.integers(1, maximum))
    if kind in ("*", "?"):
        return kind
    if kind == "every":
        return f"*/{increment}"
    if kind == "step":
        return f"{word(first)}/{increment}"
    if kind == "range":
        return f"{word(first)}-{word(draw(st.integers(first, maximum)))}" + draw(st.sampled_from(["", f"/{increment}"]))
    return word(first)


@st.composite
def schedules(draw: st.DrawFn) -> str:
    return " ".join(",".join(draw(st.lists(parts(field), min_size=1, max_size=2))) for field in range(5))


def field_values(text: str, field: int) -> tuple[set[int], bool]:
    """Return all values of a field, and whether it is a wildcard."""
    minimum, maximum = BOUNDS[field]
    found: set[int] = set()
    is_wildcard = False

    def number(word: str) -> int:
        return NAMES[field].index(word.lower()) + minimum if word.isalpha() else int(word)

    for part in text.split(","):
        span, _, step = part.partition("/")
        if span in ("*", "?"):
            first, last = minimum, maximum
            is_wildcard |= step in ("", "1")
        elif "-" in span:
            first, last = map(number, span.split("-"))
        else:
            first = number(span)
            last = maximum if step else first
        found |= {
            value
            for value in range(minimum, maximum + 1)
            if first <= value <= last and not (value - first) % int(step or 1)
        }
    return found, is_wildcard


def is_due(words: list[str], local: datetime) -> bool:
    fields = [field_values(word, number) for number, word in enumerate(words)]
    clock = (local.minute, local.hour, local.day, local.month, (local.weekday() + 1) % 7)
    minute, hour, day, month, weekday = (value in values for value, (values, _) in zip(clock, fields, strict=True))
    has_wildcard_day = fields[2][1] or fields[4][1]
    return minute and hour and month and (day and weekday if has_wildcard_day else day or weekday)


def each_minute(start: datetime, count: int) -> Iterable[datetime]:
    return (start + timedelta(minutes=number) for number in range(1, count + 1))


CHANGES = {
    "America/New_York": "2024-03-10T06:00",
    "Europe/Berlin": "2024-10-27T00:00",
    "Australia/Lord_Howe": "2024-04-06T14:30",
    "America/St_Johns": "2010-03-14T03:00",
    "Africa/Cairo": "2024-04-25T21:30",
    "UTC": "2024-02-28T20:00",
}


@given(schedules(), st.sampled_from(ZONES), st.integers(-600, 600))
@example("30 2 * * *", "Europe/Berlin", 0)
@example("* 0 * * *", "Africa/Cairo", 0)
@example("15,45 1-2 * * *", "Australia/Lord_Howe", 0)
def test_next_start_is_first_matching_minute(text: str, zone: str, offset: int) -> None:
    start, words, minutes = at(CHANGES[zone]) + timedelta(minutes=offset), text.split(), 900
    matching = (each for each in each_minute(start, minutes) if is_due(words, each.astimezone(ZoneInfo(zone))))
    expected = next(matching, None)
    found = parse_schedule(text, zone).next_after(start)
    if expected is None:
        assert found is None or found > start + timedelta(minutes=minutes)
    else:
        assert found == expected


@given(schedules(), st.sampled_from(ZONES), st.integers(0, 700))
def test_last_start_is_last_matching_minute(text: str, zone: str, minutes: int) -> None:
    start, words = at(CHANGES[zone]) - timedelta(minutes=300), text.split()
    matching = [each for each in each_minute(start, minutes) if is_due(words, each.astimezone(ZoneInfo(zone)))]
    found = parse_schedule(text, zone).last_between(start, start + timedelta(minutes=minutes, seconds=30))
    assert found == (matching[-1] if matching else None)


@given(st.integers(1, 7200), st.integers(0, 100_000))
def test_interval_counts_from_last_start(seconds: int, elapsed: int) -> None:
    schedule, end = parse_schedule(f"@every {seconds}s"), NOON + timedelta(seconds=elapsed)
    found = schedule.last_between(NOON, end)
    assert (found is None) == (elapsed < seconds)
    if found is not None:
        assert found <= end < found + timedelta(seconds=seconds)
        assert (found - NOON) % timedelta(seconds=seconds) == timedelta()
