"""Schedules: compared with looking at every minute."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tapestry.controlplane.workloads.cron_schedule import ScheduleError, parse_schedule

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
        ("0 0 13 * FRI", "2024-01-31T12:00", "2024-02-02T00:00"),  # either of the two
        ("0 0 */2 * FRI", "2024-01-31T12:00", "2024-02-01T00:00"),  # a step says something
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
def test_the_next_moment_is_the_one_that_cron_means(text: str, after: str, due: str) -> None:
    assert parse_schedule(text).next_after(at(after)) == at(due)


def test_what_is_never_due_is_not_looked_for_for_ever() -> None:
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
def test_what_cannot_be_read_is_said(text: str) -> None:
    with pytest.raises(ScheduleError):
        parse_schedule(text)


def test_a_zone_that_there_is_not_is_said() -> None:
    with pytest.raises(ZoneInfoNotFoundError):
        parse_schedule("* * * * *", "Middle/Earth")


def test_an_hour_that_is_skipped_is_not_made_up_for() -> None:
    schedule = parse_schedule("30 2 * * *", "Europe/Berlin")
    assert schedule.next_after(at("2024-03-30T12:00", "Europe/Berlin")) == at("2024-04-01T02:30", "Europe/Berlin")


def test_an_hour_that_comes_twice_counts_twice() -> None:
    schedule = parse_schedule("30 2 * * *", "Europe/Berlin")
    first = schedule.next_after(at("2024-10-26T12:00", "Europe/Berlin"))
    assert first == datetime(2024, 10, 27, 0, 30, tzinfo=UTC)
    assert first is not None
    assert schedule.next_after(first) == datetime(2024, 10, 27, 1, 30, tzinfo=UTC)


# -- by looking at every minute


@st.composite
def parts(draw: st.DrawFn, field: int) -> str:
    least, most = BOUNDS[field]

    def word(value: int) -> str:
        return NAMES[field][value - least].upper() if field in NAMES and draw(st.booleans()) else str(value)

    first = draw(st.integers(least, most))
    kind = draw(st.sampled_from(["*", "value", "range", "step", "every", "?"]))
    pace = draw(st.integers(1, most))
    if kind in ("*", "?"):
        return kind
    if kind == "every":
        return f"*/{pace}"
    if kind == "step":
        return f"{word(first)}/{pace}"
    if kind == "range":
        return f"{word(first)}-{word(draw(st.integers(first, most)))}" + draw(st.sampled_from(["", f"/{pace}"]))
    return word(first)


@st.composite
def schedules(draw: st.DrawFn) -> str:
    return " ".join(",".join(draw(st.lists(parts(field), min_size=1, max_size=2))) for field in range(5))


def meant(text: str, field: int) -> tuple[set[int], bool]:
    """The values of a field, one by one, and whether it says nothing."""
    least, most = BOUNDS[field]
    found: set[int] = set()
    any_value = False

    def number(word: str) -> int:
        return NAMES[field].index(word.lower()) + least if word.isalpha() else int(word)

    for part in text.split(","):
        span, _, step = part.partition("/")
        if span in ("*", "?"):
            first, last = least, most
            any_value |= step in ("", "1")
        elif "-" in span:
            first, last = map(number, span.split("-"))
        else:
            first = number(span)
            last = most if step else first
        found |= {
            value for value in range(least, most + 1) if first <= value <= last and not (value - first) % int(step or 1)
        }
    return found, any_value


def is_due(words: list[str], here: datetime) -> bool:
    fields = [meant(word, number) for number, word in enumerate(words)]
    shown = (here.minute, here.hour, here.day, here.month, (here.weekday() + 1) % 7)
    minute, hour, day, month, weekday = (value in values for value, (values, _) in zip(shown, fields, strict=True))
    says_nothing = fields[2][1] or fields[4][1]
    return minute and hour and month and (day and weekday if says_nothing else day or weekday)


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
def test_the_next_moment_is_the_first_minute_that_fits(text: str, zone: str, offset: int) -> None:
    start, words, minutes = at(CHANGES[zone]) + timedelta(minutes=offset), text.split(), 900
    fitting = (each for each in each_minute(start, minutes) if is_due(words, each.astimezone(ZoneInfo(zone))))
    expected = next(fitting, None)
    found = parse_schedule(text, zone).next_after(start)
    if expected is None:
        assert found is None or found > start + timedelta(minutes=minutes)
    else:
        assert found == expected


@given(schedules(), st.sampled_from(ZONES), st.integers(0, 700))
def test_the_last_moment_is_the_last_minute_that_fits(text: str, zone: str, minutes: int) -> None:
    start, words = at(CHANGES[zone]) - timedelta(minutes=300), text.split()
    fitting = [each for each in each_minute(start, minutes) if is_due(words, each.astimezone(ZoneInfo(zone)))]
    found = parse_schedule(text, zone).last_between(start, start + timedelta(minutes=minutes, seconds=30))
    assert found == (fitting[-1] if fitting else None)


@given(st.integers(1, 7200), st.integers(0, 100_000))
def test_every_so_often_is_counted_from_the_last_time(seconds: int, passed: int) -> None:
    schedule, end = parse_schedule(f"@every {seconds}s"), NOON + timedelta(seconds=passed)
    found = schedule.last_between(NOON, end)
    assert (found is None) == (passed < seconds)
    if found is not None:
        assert found <= end < found + timedelta(seconds=seconds)
        assert (found - NOON) % timedelta(seconds=seconds) == timedelta()
