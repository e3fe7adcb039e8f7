"""Cron schedules: five fields, time zones and start times. Pure.

    schedule = parse_schedule("*/15 9-17 * * MON-FRI", "Europe/Berlin")
    schedule.next_after(now)

A schedule refers to local time. A start in an hour that is skipped in spring does not happen that day. A start in an
hour that occurs twice in autumn happens twice.
"""

from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Protocol
from zoneinfo import ZoneInfo

from tapestry.kube.times import parse_duration

MONTHS = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1
    )
}
DAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
DESCRIPTORS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
EVERY_PREFIX = "@every "
MINUTE, MINUTES_PER_DAY = timedelta(minutes=1), 24 * 60
HORIZON = timedelta(days=5 * 366)
"""A schedule without a start time in this period has none at all, for example the 30th of February."""


class ScheduleError(ValueError):
    """The schedule cannot be parsed."""


class Schedule(Protocol):
    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first start time after `moment`, or None if there is none."""

    def last_between(self, after: datetime, until: datetime) -> datetime | None:
        """Return the last start time after `after` and up to `until`, or None if there is none."""


@dataclass(frozen=True, slots=True)
class CronField:
    """Values of one field, in ascending order."""

    values: tuple[int, ...]
    is_wildcard: bool = False
    """If one of the two day fields is a wildcard, only the other counts."""


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """Start times given by five cron fields, in a time zone."""

    minutes: CronField
    hours: CronField
    days: CronField
    months: CronField
    weekdays: CronField
    zone: tzinfo = UTC

    def next_after(self, moment: datetime) -> datetime | None:
        candidate = moment.astimezone(UTC).replace(second=0, microsecond=0) + MINUTE
        end = candidate + HORIZON
        while candidate < end:
            local = candidate.astimezone(self.zone)
            if not self.matches_day(local):
                tomorrow = datetime.combine(local.date() + timedelta(days=1), time(), self.zone).astimezone(UTC)
                candidate = max(tomorrow, candidate + MINUTE)
                continue
            delay = self.time_until_match(local)
            if not delay:
                return candidate
            target = candidate + delay
            # Across a change of the UTC offset, the delay does not lead to the expected local time.
            candidate = target if target.astimezone(self.zone).utcoffset() == local.utcoffset() else candidate + MINUTE
        return None

    def last_between(self, after: datetime, until: datetime) -> datetime | None:
        span = MINUTE
        while True:
            start = max(after, until - span)
            last, following = None, self.next_after(start)
            while following is not None and following <= until:
                last, following = following, self.next_after(following)
            if last is not None or start == after:
                return last
            span *= 4

    def matches_day(self, local: datetime) -> bool:
        if local.month not in self.months.values:
            return False
        day, weekday = local.day in self.days.values, local.isoweekday() % 7 in self.weekdays.values
        return day and weekday if self.days.is_wildcard or self.weekdays.is_wildcard else day or weekday

    def time_until_match(self, local: datetime) -> timedelta:
        """Return the time until the local clock matches, or until midnight."""
        hours, minutes = self.hours.values, self.minutes.values
        minute_of_day = local.hour * 60 + local.minute
        if local.hour in hours and local.minute <= minutes[-1]:
            return timedelta(minutes=minutes[bisect_left(minutes, local.minute)] - local.minute)
        following = bisect_left(hours, local.hour + 1)
        due = hours[following] * 60 + minutes[0] if following < len(hours) else MINUTES_PER_DAY
        return timedelta(minutes=due - minute_of_day)


@dataclass(frozen=True, slots=True)
class IntervalSchedule:
    """Start times at a fixed interval, counted from the last one."""

    interval: timedelta

    def next_after(self, moment: datetime) -> datetime:
        return moment.replace(microsecond=0) + self.interval

    def last_between(self, after: datetime, until: datetime) -> datetime | None:
        times = (until - after.replace(microsecond=0)) // self.interval
        return after.replace(microsecond=0) + times * self.interval if times > 0 else None


def parse_schedule(text: str, zone: str | None = None) -> Schedule:
    """Parse a schedule. Raises ScheduleError, or ZoneInfoNotFoundError for an unknown time zone."""
    if text.startswith(EVERY_PREFIX):
        try:
            interval = parse_duration(text.removeprefix(EVERY_PREFIX).strip())
        except ValueError as error:
            raise ScheduleError(f"failed to parse duration {text}: {error}") from error
        return IntervalSchedule(max(timedelta(seconds=interval // timedelta(seconds=1)), timedelta(seconds=1)))
    if text.startswith("@") and text not in DESCRIPTORS:
        raise ScheduleError(f"unrecognized descriptor: {text}")
    words = DESCRIPTORS.get(text, text).split()
    if len(words) != 5:
        raise ScheduleError(f"expected exactly 5 fields, found {len(words)}: {words}")
    return CronSchedule(
        parse_field(words[0], 0, 59),
        parse_field(words[1], 0, 23),
        parse_field(words[2], 1, 31),
        parse_field(words[3], 1, 12, MONTHS),
        parse_field(words[4], 0, 6, DAYS),
        ZoneInfo(zone) if zone else UTC,
    )


def parse_field(text: str, minimum: int, maximum: int, names: dict[str, int] | None = None) -> CronField:
    """Parse values, ranges and steps separated by commas."""
    values: set[int] = set()
    is_wildcard = False
    for part in text.split(","):
        span, slash, step = part.partition("/")
        first, dash, last = span.partition("-")
        increment = parse_number(step) if slash else 1
        if first in ("*", "?") and not dash:
            start, end = minimum, maximum
            is_wildcard = is_wildcard or increment == 1
        else:
            start = parse_number(first, names)
            end = parse_number(last, names) if dash else maximum if slash else start
        if not minimum <= start <= end <= maximum or increment < 1:
            raise ScheduleError(f"{part}: not within {minimum}-{maximum}")
        values.update(range(start, end + 1, increment))
    return CronField(tuple(sorted(values)), is_wildcard)


def parse_number(text: str, names: dict[str, int] | None = None) -> int:
    known = (names or {}).get(text.lower())
    if known is not None:
        return known
    if not (text.isascii() and text.isdecimal()):
        raise ScheduleError(f"failed to parse number: {text!r}")
    return int(text)
