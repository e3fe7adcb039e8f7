from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.times import duration_text, micro_timestamp, parse_duration, parse_time, timestamp

TIME = datetime(2024, 2, 29, 13, 4, 5, 678901, tzinfo=UTC)

times = st.datetimes(
    datetime(1, 1, 2),  # noqa: DTZ001 Hypothesis adds the zone
    datetime(9999, 12, 30),  # noqa: DTZ001
    timezones=st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)
durations = st.timedeltas(timedelta(days=-100_000), timedelta(days=100_000))


def test_timestamp_is_truncated_to_seconds() -> None:
    assert timestamp(TIME) == "2024-02-29T13:04:05Z"


@pytest.mark.parametrize(
    ("microsecond", "text"), [(678901, "2024-02-29T13:04:05.678901Z"), (0, "2024-02-29T13:04:05.000000Z")]
)
def test_micro_timestamp_has_six_digits(microsecond: int, text: str) -> None:
    assert micro_timestamp(TIME.replace(microsecond=microsecond)) == text


def test_early_year_has_four_digits() -> None:
    assert timestamp(datetime(1, 1, 1, tzinfo=UTC)) == "0001-01-01T00:00:00Z"


def test_naive_datetime_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"^2024-02-29T13:04:05\.678901 has no time zone"):
        timestamp(TIME.replace(tzinfo=None))


@given(times)
def test_timestamp_round_trips_in_utc(time: datetime) -> None:
    parsed = parse_time(micro_timestamp(time))
    assert parsed == time
    assert parsed.tzinfo is UTC
    assert parse_time(timestamp(time)) == time.astimezone(UTC).replace(microsecond=0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-02-29T13:04:05Z", TIME.replace(microsecond=0)),
        ("2024-02-29T21:04:05+08:00", TIME.replace(microsecond=0)),
        ("2024-02-28T23:34:05.678901-13:30", TIME),
        ("2024-02-29T13:04:05.678901Z", TIME),
        ("2024-02-29T13:04:05.678901999Z", TIME),
        ("2024-02-29T13:04:05.6Z", TIME.replace(microsecond=600000)),
    ],
)
def test_any_offset_and_precision_is_parsed(text: str, expected: datetime) -> None:
    assert parse_time(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "now",
            "2024-02-29",
            "2024-02-29T13:04:05",
            "2024-02-29T13:04Z",
            "20240229T130405Z",
            "2024-W09-4T00:00:00Z",
        ),
        *("2024-02-30T00:00:00Z", "2023-02-29T00:00:00Z", "2024-02-29T24:00:00Z", "2024-02-29T13:04:60Z"),
        *("2024-02-29 13:04:05Z", "2024-02-29t13:04:05z", "2024-02-29T13:04:05.Z", "2024-02-29T13:04:05+0800"),
        *(" 2024-02-29T13:04:05Z", "2024-02-29T13:04:05Z\n", "٢٠٢٤-02-29T13:04:05Z"),
        *("0000-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00"),
    ],
)
def test_invalid_time_is_rejected_with_path(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_time(text, "spec.renewTime")
    assert str(caught.value) == f"spec.renewTime: {text!r} is not a time; write it as 2006-01-02T15:04:05Z"


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("0", timedelta()),
        ("0s", timedelta()),
        ("-0", timedelta()),
        ("10s", timedelta(seconds=10)),
        ("1h30m", timedelta(hours=1, minutes=30)),
        ("30m1h", timedelta(hours=1, minutes=30)),
        ("500ms", timedelta(milliseconds=500)),
        ("1.5h", timedelta(minutes=90)),
        (".5s", timedelta(milliseconds=500)),
        ("5.s", timedelta(seconds=5)),
        ("-1m30s", timedelta(seconds=-90)),
        ("+1m", timedelta(minutes=1)),
        ("3us", timedelta(microseconds=3)),
        ("3µs", timedelta(microseconds=3)),
        ("3μs", timedelta(microseconds=3)),
        ("2000ns", timedelta(microseconds=2)),
        ("1m5ms", timedelta(minutes=1, milliseconds=5)),
        ("9223372036854775807ns", timedelta(microseconds=9223372036854776)),
    ],
)
def test_go_duration_is_parsed(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["1ns", "0.5us", "-1ns"])
def test_nanoseconds_round_up_to_a_microsecond(text: str) -> None:
    assert abs(parse_duration(text)) == timedelta(microseconds=1)


@pytest.mark.parametrize(
    "text", ["", "1", "s", ".s", "1d", "1h 30m", "1h-30m", "--1s", "1S", "1.2.3s", "1e3s", "1s\n", "00", "1" * 99 + "s"]
)
def test_invalid_duration_is_rejected_with_path(text: str) -> None:
    with pytest.raises(ValueError, match=r"^spec\.timeout: '.*' is not a duration; write it as 1h30m, 10s or 500ms$"):
        parse_duration(text, "spec.timeout")


@pytest.mark.parametrize("text", ["2562048h", "9" * 40 + "h", "-9223372036.854775808s"])
def test_duration_beyond_go_limit_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is too long"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(), "0s"),
        (timedelta(microseconds=7), "7µs"),
        (timedelta(microseconds=1500), "1.5ms"),
        (timedelta(milliseconds=1), "1ms"),
        (timedelta(milliseconds=500), "500ms"),
        (timedelta(seconds=1), "1s"),
        (timedelta(seconds=10), "10s"),
        (timedelta(seconds=1.05), "1.05s"),
        (timedelta(minutes=1), "1m0s"),
        (timedelta(minutes=1, milliseconds=500), "1m0.5s"),
        (timedelta(hours=1, minutes=30), "1h30m0s"),
        (timedelta(days=2), "48h0m0s"),
        (timedelta(seconds=-90), "-1m30s"),
        (timedelta(microseconds=-1), "-1µs"),
    ],
)
def test_duration_is_written_as_in_go(duration: timedelta, text: str) -> None:
    assert duration_text(duration) == text


@given(durations)
def test_written_duration_round_trips(duration: timedelta) -> None:
    assert parse_duration(duration_text(duration)) == duration
