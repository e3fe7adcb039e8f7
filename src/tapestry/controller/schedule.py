"""Cron schedules for reconcilers that act at certain times.

    schedule = Schedule(spec.schedule, spec.time_zone)
    last = parse_time(value_at(backup, "status", "lastTime") or backup["metadata"]["creationTimestamp"])
    if (due := schedule.due(last, now)) is not None:
        ...  # act, and write `due` to status.lastTime
    return schedule.requeue(now)

The last start time belongs in the status, so that a restart repeats nothing and catches up once after an outage.
"""

from datetime import UTC, datetime
from functools import lru_cache
from zoneinfo import ZoneInfoNotFoundError

from tapestry.controller.controller import Result
from tapestry.kube import cron_schedule
from tapestry.kube.crds import InvalidSpec

EXAMPLE = "write it as '*/15 9-17 * * MON-FRI' or '@daily'"
MAX_LENGTH = 256
"""Characters of a schedule.  Longer ones are attacks on the cache of parsed schedules."""
LEAP_YEAR = datetime(2024, 1, 1, tzinfo=UTC)


class Schedule:
    """The start times of a schedule with five cron fields, `@hourly` or `@every 90m`, in a time zone.

    Raise InvalidSpec for an invalid schedule, one without any start time, or an unknown time zone.  `path` is the field
    that the error names.
    """

    def __init__(self, text: str, zone: str | None = None, *, path: str = "spec.schedule") -> None:
        if len(text) > MAX_LENGTH:
            raise InvalidSpec(f"{path}: a schedule has at most {MAX_LENGTH} characters, not {len(text):,}")
        try:
            self._times = parse(text, zone)
        except cron_schedule.ScheduleError as error:
            raise InvalidSpec(f"{path}: {text[:60]!r} is not a schedule: {error}; {EXAMPLE}") from error
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise InvalidSpec(
                f"{path}: the time zone {str(zone)[:60]!r} is unknown; write it as Europe/Berlin"
            ) from error

    def due(self, last: datetime, now: datetime) -> datetime | None:
        """Return the latest start time after `last` and up to `now`.  Earlier ones that were missed are skipped."""
        return self._times.last_between(last, now)

    def next_after(self, moment: datetime) -> datetime | None:
        return self._times.next_after(moment)

    def requeue(self, now: datetime) -> Result:
        """Return the result of a reconcile that is to run again at the next start time."""
        return Result(requeue_at=self.next_after(now))


@lru_cache(maxsize=1024)  # a reconciler parses the same few schedules again and again
def parse(text: str, zone: str | None) -> cron_schedule.Schedule:
    schedule = cron_schedule.parse_schedule(text, zone)
    if schedule.next_after(LEAP_YEAR) is None:  # looking for a start time would be slow on each reconcile
        raise cron_schedule.ScheduleError("it has no start time")
    return schedule
