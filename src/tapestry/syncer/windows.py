"""Time windows: when a policy is open, and when that changes.

A window is a set of readings of the wall clock in a time zone.  It is open at an instant if the clock on the wall then
reads a time between `start` and `end`, end excluded, on one of its days; an overnight window belongs to the day that it
starts on.  Nothing else is said about daylight saving time, and nothing else is needed: where the clock skips a
reading, nobody ever reads it, and where it reads one twice, the window is open twice.
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
"""Days that are searched for a change: every week is like the last, but for one in which the clock was set."""


class WindowError(ValueError):
    """A time zone that nobody knows; the message begins with the path.  The rest of a window its schema has checked."""


@dataclass(frozen=True, slots=True)
class Window:
    """Minutes of the day; `end` at or below `start` is on the next day.  Days count from Monday as 0."""

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
        """Every instant from `first` to `last` at which the window could open or close."""
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
    """The windows of one policy; without any it is always open.

    Nothing changes within a minute, so what was found for one instant is remembered for all of its minute: a thousand
    nodes under one policy cost as much as one.
    """

    windows: tuple[Window, ...] = ()

    def is_open(self, instant: datetime) -> bool:
        return not self.windows or is_open(self, minute_at(instant))

    def next_change(self, instant: datetime) -> datetime | None:
        """The first instant after this one at which the policy opens or closes; None where it never does."""
        return next_change(self, minute_at(instant)) if self.windows else None

    def last_change(self, instant: datetime) -> datetime | None:
        """The instant, not after this one, since which the policy has been as it is; None where it always was."""
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
    later = (turn for turn in schedule_edges(schedule, minute, 0, HORIZON) if turn > minute)
    return next((turn for turn in later if is_open(schedule, turn) != now), None)


@lru_cache(maxsize=1024)
def last_change(schedule: Schedule, minute: datetime) -> datetime | None:
    now, since = is_open(schedule, minute), None
    for turn in reversed(schedule_edges(schedule, minute, -HORIZON, 0)):
        if turn <= minute:
            if is_open(schedule, turn) != now:
                return since
            since = turn
    return None


def schedule_edges(schedule: Schedule, minute: datetime, before: int, after: int) -> list[datetime]:
    """Every instant in some days around this one at which the schedule could change, in order."""
    # A day more on either side: the date in the zone may not be the date in UTC.
    first, last = minute.date() + timedelta(days=before - 1), minute.date() + timedelta(days=after + 1)
    return sorted({turn for window in schedule.windows for turn in window.edges(first, last)})


@lru_cache(maxsize=1024)
def clock_changes(zone: ZoneInfo, day: date) -> tuple[datetime, ...]:
    """The instant on that day at which the clocks of the zone are set, to the second; most days have none."""
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
    """The schedule of a policy; a window's own zone goes before the policy's, that before the default."""
    policy_zone = zone_named(spec.time_zone or default_zone, "spec.timeZone")
    windows = []
    for index, window in enumerate(spec.time_windows):
        zone = zone_named(window.time_zone, f"spec.timeWindows[{index}].timeZone") if window.time_zone else policy_zone
        days = frozenset(DAYS.index(day[:3].lower()) for day in window.days) or EVERY_DAY
        windows.append(Window(minute_of(window.start), minute_of(window.end), days, zone))
    return Schedule(tuple(windows))


def minute_of(clock: str) -> int:
    """The minute of the day that `HH:MM` is."""
    hours, minutes = clock.split(":")
    return int(hours) * 60 + int(minutes)


@lru_cache(maxsize=256)
def zone_named(name: str, path: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise WindowError(f"{path}: {name!r} is not a time zone; give an IANA name such as Asia/Shanghai") from None
