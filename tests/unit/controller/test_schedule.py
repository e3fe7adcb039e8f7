from datetime import UTC, datetime, timedelta

import pytest

from tapestry.controller import Result, Schedule
from tapestry.kube.crds import InvalidSpec

NOON = datetime(2024, 1, 31, 12, 0, tzinfo=UTC)


def test_latest_start_time_is_due() -> None:
    schedule = Schedule("*/15 * * * *")
    assert schedule.due(NOON, NOON + timedelta(minutes=14)) is None
    assert schedule.due(NOON, NOON + timedelta(minutes=15)) == NOON + timedelta(minutes=15)
    assert schedule.due(NOON, NOON + timedelta(days=100, minutes=1)) == NOON + timedelta(days=100)


def test_requeue_is_at_next_start_time_in_time_zone() -> None:
    assert Schedule("0 9 * * *", "Europe/Berlin").requeue(NOON) == Result(
        requeue_at=datetime(2024, 2, 1, 8, 0, tzinfo=UTC)
    )


def test_intervals_count_from_last_start() -> None:
    schedule = Schedule("@every 90m")
    assert schedule.due(NOON, NOON + timedelta(hours=4)) == NOON + timedelta(hours=3)
    assert schedule.next_after(NOON) == NOON + timedelta(minutes=90)


@pytest.mark.parametrize(
    ("text", "zone", "message"),
    [
        ("61 * * * *", None, r"spec\.schedule: '61 \* \* \* \*' is not a schedule: 61: not within 0-59; write it as"),
        ("0 0 30 2 *", None, "it has no start time"),
        ("0," * 1_500_000, None, "a schedule has at most 256 characters, not 3,000,000"),
        ("9" * 200 + " * * * *", None, "is not a schedule"),
        ("@daily", "Mars/Olympus", "the time zone 'Mars/Olympus' is unknown; write it as Europe/Berlin"),
        ("@daily", "../../etc/passwd", "is unknown"),
        ("@daily", "America", "is unknown"),
    ],
)
def test_invalid_schedule_waits_for_a_change_of_spec(text: str, zone: str | None, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message) as refused:
        Schedule(text, zone)
    assert len(str(refused.value)) < 600
