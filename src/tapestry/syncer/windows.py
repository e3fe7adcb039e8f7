"""Time windows of policies: whether a policy is open, and when that changes.

A window is a set of wall clock readings in a time zone. It is open at an instant if the wall clock then reads a time
from `start` up to but excluding `end`, on one of its days. An overnight window belongs to the day that it starts on.
Daylight saving time needs no special rule: a reading that the clock skips never occurs, and a window opens twice when
the clock reads its time twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tapestry.apis.policies import ResourceLeasingPolicySpec

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EVERY_DAY = frozenset(range(7))
MIDNIGHT = 24 * 60
HORIZON = 15
"""Days that are searched for a change. All weeks are alike, except one in which the clock is changed."""


class WindowError(ValueError):
    """Unknown time zone; the message begins with the field path. The schema checks the rest of a window."""


@dataclass(frozen=True, slots=True)
class Window:
    """Start and end in minutes of the day; an `end` at or before `start` is on the next day. Monday is day 0."""

    start: int
    end: int
    days: frozenset[int]
    zone: ZoneInfo

    def is_open(self, instant: datetime) -> bool:
        wall = instant.astimezone(self.zone)
        minute, today = wall.hour * 60 + wall.minute, wall.weekday()
        if self.start < self.end:
            return self.start <= minute < self.end and today in self.days
        return (minute >= self.start and today in self.days) or (minute < self.end and (today - 1) % 7 in self.days)

    def edges(self, first: date, last: date) -> Iterator[datetime]:
        """Yield every instant from `first` to `last` at which the window could open or close."""
        day = first
        while day <= last:
            for minute in {self.start, self.end % MIDNIGHT}:
                wall = datetime.combine(day, time(minute // 60, minute % 60))
                for fold in (0, 1):
                    yield wall.replace(tzinfo=self.zone, fold=fold).astimezone(UTC)
            yield from clock_changes(self.zone, day)
            day += timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The windows of one policy; a schedule without windows is always open.

    Nothing changes within a minute, so results are cached by minute: a thousand nodes under one policy cost as much as
    one.
    """

    windows: tuple[Window, ...] = ()

    def is_open(self, instant: datetime) -> bool:
        return not self.windows or is_open(self, minute_at(instant))

    def next_change(self, instant: datetime) -> datetime | None:
        """Return the first instant after this one at which the policy opens or closes; None if it never does."""
        return next_change(self, minute_at(instant)) if self.windows else None

    def last_change(self, instant: datetime) -> datetime | None:
        """Return the instant of the last change at or before this one; None if there was none."""
        return last_change(self, minute_at(instant)) if self.windows else None


NEVER_OPEN = Schedule((Window(0, MIDNIGHT, frozenset(), ZoneInfo("UTC")),))


def minute_at(instant: datetime) -> datetime:
    return instant.astimezone(UTC).replace(second=0, microsecond=0)


@lru_cache(maxsize=4096)
def is_open(schedule: Schedule, minute: datetime) -> bool:
    return any(window.is_open(minute) for window in schedule.windows)


@lru_cache(maxsize=1024)
def next_change(schedule: Schedule, minute: datetime) -> datetime | None:
    now = is_open(schedule, minute)
    edges = (edge for edge in schedule_edges(schedule, minute, 0, HORIZON) if edge > minute)
    return next((edge for edge in edges if is_open(schedule, edge) != now), None)


@lru_cache(maxsize=1024)
def last_change(schedule: Schedule, minute: datetime) -> datetime | None:
    now, since = is_open(schedule, minute), None
    for edge in reversed(schedule_edges(schedule, minute, -HORIZON, 0)):
        if edge <= minute:
            if is_open(schedule, edge) != now:
                return since
            since = edge
    return None


def schedule_edges(schedule: Schedule, minute: datetime, before: int, after: int) -> list[datetime]:
    """Return every instant within these days of `minute` at which the schedule could change, in order."""
    # One more day on either side: the date in the zone may differ from the date in UTC.
    first, last = minute.date() + timedelta(days=before - 1), minute.date() + timedelta(days=after + 1)
    return sorted({edge for window in schedule.windows for edge in window.edges(first, last)})


@lru_cache(maxsize=1024)
def clock_changes(zone: ZoneInfo, day: date) -> tuple[datetime, ...]:
    """Return the instants on `day` at which the zone's UTC offset changes, to the second."""
    begin = datetime.combine(day, time(), UTC)
    end = begin + timedelta(days=1)
    if begin.astimezone(zone).utcoffset() == end.astimezone(zone).utcoffset():
        return ()
    before = begin.astimezone(zone).utcoffset()
    while end - begin > timedelta(seconds=1):
        middle = begin + timedelta(seconds=int((end - begin).total_seconds()) // 2)
        if middle.astimezone(zone).utcoffset() == before:
            begin = middle
        else:
            end = middle
    return (end,)


def schedule_of(spec: ResourceLeasingPolicySpec, default_zone: str) -> Schedule:
    """Return the schedule of a policy. The zone of a window precedes that of the policy, which precedes the default."""
    policy_zone = zone_named(spec.time_zone or default_zone, "spec.timeZone")
    windows = []
    for index, window in enumerate(spec.time_windows):
        zone = zone_named(window.time_zone, f"spec.timeWindows[{index}].timeZone") if window.time_zone else policy_zone
        days = frozenset(DAYS.index(day[:3].lower()) for day in window.days) or EVERY_DAY
        windows.append(Window(minute_of(window.start), minute_of(window.end), days, zone))
    return Schedule(tuple(windows))


def minute_of(clock: str) -> int:
    """Return the minute of the day of an `HH:MM` text."""
    hours, minutes = clock.split(":")
    return int(hours) * 60 + int(minutes)


@lru_cache(maxsize=256)
def zone_named(name: str, path: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise WindowError(f"{path}: {name!r} is not a time zone; give an IANA name such as Asia/Shanghai") from None
