"""Schedules: when something is due, as five fields of cron say it.  Pure.

    schedule = schedule_of("*/15 9-17 * * MON-FRI", "Europe/Berlin")
    schedule.after(now)

A schedule is about what clocks on the wall show.  What is due in an hour that is skipped in spring is not due that day;
what is due in an hour that comes twice in autumn is due twice.
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
"""What is not due within five years never is: the 30th of February."""


class ScheduleError(ValueError):
    """A schedule that nobody can read."""


class Schedule(Protocol):
    def next_after(self, moment: datetime) -> datetime | None:
        """The first moment after this one at which something is due; None where there is none."""

    def last_between(self, after: datetime, until: datetime) -> datetime | None:
        """The last moment after the one, up to the other, at which something is due."""


@dataclass(frozen=True, slots=True)
class CronField:
    """The values that one field means, in order."""

    values: tuple[int, ...]
    is_wildcard: bool = False
    """Whether it says nothing: of two fields for the day, one that says nothing does not count."""


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """Moments that five fields mean, on the clocks of a zone."""

    minutes: CronField
    hours: CronField
    days: CronField
    months: CronField
    weekdays: CronField
    zone: tzinfo = UTC

    def next_after(self, moment: datetime) -> datetime | None:
        found = moment.astimezone(UTC).replace(second=0, microsecond=0) + MINUTE
        end = found + HORIZON
        while found < end:
            here = found.astimezone(self.zone)
            if not self.matches_day(here):
                tomorrow = datetime.combine(here.date() + timedelta(days=1), time(), self.zone).astimezone(UTC)
                found = max(tomorrow, found + MINUTE)
                continue
            wait = self.time_until_match(here)
            if not wait:
                return found
            target = found + wait
            # Where the clocks change meanwhile, what they show does not follow from how long we wait.
            found = target if target.astimezone(self.zone).utcoffset() == here.utcoffset() else found + MINUTE
        return None

    def last_between(self, after: datetime, until: datetime) -> datetime | None:
        span = MINUTE
        while True:
            start = max(after, until - span)
            found, following = None, self.next_after(start)
            while following is not None and following <= until:
                found, following = following, self.next_after(following)
            if found is not None or start == after:
                return found
            span *= 4

    def matches_day(self, here: datetime) -> bool:
        if here.month not in self.months.values:
            return False
        day, weekday = here.day in self.days.values, here.isoweekday() % 7 in self.weekdays.values
        return day and weekday if self.days.is_wildcard or self.weekdays.is_wildcard else day or weekday

    def time_until_match(self, here: datetime) -> timedelta:
        """How long until the clock shows a time that is due, or midnight."""
        hours, minutes = self.hours.values, self.minutes.values
        shown = here.hour * 60 + here.minute
        if here.hour in hours and here.minute <= minutes[-1]:
            return timedelta(minutes=minutes[bisect_left(minutes, here.minute)] - here.minute)
        following = bisect_left(hours, here.hour + 1)
        due = hours[following] * 60 + minutes[0] if following < len(hours) else MINUTES_PER_DAY
        return timedelta(minutes=due - shown)


@dataclass(frozen=True, slots=True)
class IntervalSchedule:
    """Moments at the same distance from each other, counted from when something was last due."""

    interval: timedelta

    def next_after(self, moment: datetime) -> datetime:
        return moment.replace(microsecond=0) + self.interval

    def last_between(self, after: datetime, until: datetime) -> datetime | None:
        times = (until - after.replace(microsecond=0)) // self.interval
        return after.replace(microsecond=0) + times * self.interval if times > 0 else None


def parse_schedule(text: str, zone: str | None = None) -> Schedule:
    """Read a schedule; raises ScheduleError, or ZoneInfoNotFoundError for a zone that there is not."""
    if text.startswith(EVERY_PREFIX):
        try:
            distance = parse_duration(text.removeprefix(EVERY_PREFIX).strip())
        except ValueError as error:
            raise ScheduleError(f"failed to parse duration {text}: {error}") from error
        return IntervalSchedule(max(timedelta(seconds=distance // timedelta(seconds=1)), timedelta(seconds=1)))
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
    """Values, ranges and steps, with commas between them."""
    values: set[int] = set()
    is_any = False
    for part in text.split(","):
        span, slash, step = part.partition("/")
        first, dash, last = span.partition("-")
        pace = parse_number(step) if slash else 1
        if first in ("*", "?") and not dash:
            start, end = minimum, maximum
            is_any = is_any or pace == 1
        else:
            start = parse_number(first, names)
            end = parse_number(last, names) if dash else maximum if slash else start
        if not minimum <= start <= end <= maximum or pace < 1:
            raise ScheduleError(f"{part}: not within {minimum}-{maximum}")
        values.update(range(start, end + 1, pace))
    return CronField(tuple(sorted(values)), is_any)


def parse_number(text: str, names: dict[str, int] | None = None) -> int:
    known = (names or {}).get(text.lower())
    if known is not None:
        return known
    if not (text.isascii() and text.isdecimal()):
        raise ScheduleError(f"failed to parse number: {text!r}")
    return int(text)
