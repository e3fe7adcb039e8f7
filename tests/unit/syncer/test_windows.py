"""Time windows, tested with a table that can be checked by hand and with a second implementation.

The second implementation knows nothing of edges: it reads the wall clock of every minute. `Schedule` must agree for
each minute, and find the edges between them.

In 2026 clocks go forward in New York on 8 March, in Berlin on 29 March and on Lord Howe Island, by half an hour, on 4
October; they go back there on 1 November, 25 October and 5 April.
"""

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.apis.policies import POLICY, ResourceLeasingPolicySpec, TimeWindow
from tapestry.kube.crds import InvalidSpec, decode_spec
from tapestry.syncer.windows import NEVER_OPEN, Schedule, WindowError, schedule_of

MINUTE = timedelta(minutes=1)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def new_schedule(windows: str, zone: str = "UTC") -> Schedule:
    """Return a schedule from a text like `Fri,Sat 22:00-06:00 + 12:00-13:00`, with or without days."""
    found = []
    for text in windows.split(" + ") if windows else ():
        *days, hours = text.split()
        start, end = hours.split("-")
        found.append(TimeWindow(start, end, tuple(days[0].split(",")) if days else ()))
    return schedule_of(ResourceLeasingPolicySpec(cluster="c", time_windows=tuple(found)), zone)


def at(text: str, zone: str = "UTC", fold: int = 0) -> datetime:
    """Return the instant at which a clock in the zone reads e.g. `2026-03-07 22:00`; `fold=1` is the second time."""
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC)


# -- the table

# 2 March 2026 is a Monday.
PLAIN = [
    # window, instant, open?, changed last, changes next
    ("08:00-18:00", "2026-03-02 07:59", False, "2026-03-01 18:00", "2026-03-02 08:00"),
    ("08:00-18:00", "2026-03-02 08:00", True, "2026-03-02 08:00", "2026-03-02 18:00"),
    ("08:00-18:00", "2026-03-02 17:59", True, "2026-03-02 08:00", "2026-03-02 18:00"),
    ("08:00-18:00", "2026-03-02 18:00", False, "2026-03-02 18:00", "2026-03-03 08:00"),
    # overnight
    ("22:00-06:00", "2026-03-02 21:59", False, "2026-03-02 06:00", "2026-03-02 22:00"),
    ("22:00-06:00", "2026-03-02 22:00", True, "2026-03-02 22:00", "2026-03-03 06:00"),
    ("22:00-06:00", "2026-03-03 00:00", True, "2026-03-02 22:00", "2026-03-03 06:00"),
    ("22:00-06:00", "2026-03-03 06:00", False, "2026-03-03 06:00", "2026-03-03 22:00"),
    # it belongs to the day it starts on: Friday night is over on Saturday, and Friday's early morning is Thursday's
    ("Fri 18:00-08:00", "2026-03-06 07:00", False, "2026-02-28 08:00", "2026-03-06 18:00"),
    ("Fri 18:00-08:00", "2026-03-06 18:00", True, "2026-03-06 18:00", "2026-03-07 08:00"),
    ("Fri 18:00-08:00", "2026-03-07 07:59", True, "2026-03-06 18:00", "2026-03-07 08:00"),
    ("Fri 18:00-08:00", "2026-03-07 18:00", False, "2026-03-07 08:00", "2026-03-13 18:00"),
    ("Sun 23:00-01:00", "2026-03-02 00:30", True, "2026-03-01 23:00", "2026-03-02 01:00"),
    # up to the end of the day, and into the next
    ("18:00-24:00", "2026-03-02 23:59", True, "2026-03-02 18:00", "2026-03-03 00:00"),
    ("18:00-24:00", "2026-03-03 00:00", False, "2026-03-03 00:00", "2026-03-03 18:00"),
    ("18:00-00:00", "2026-03-03 00:00", False, "2026-03-03 00:00", "2026-03-03 18:00"),
    ("Mon 00:00-24:00", "2026-03-02 12:00", True, "2026-03-02 00:00", "2026-03-03 00:00"),
    ("Mon,Tue 00:00-24:00", "2026-03-02 12:00", True, "2026-03-02 00:00", "2026-03-04 00:00"),
    ("00:00-24:00", "2026-03-02 12:00", True, None, None),
    # equal ends are the whole day, starting there
    ("08:00-08:00", "2026-03-02 12:00", True, None, None),
    ("Mon 08:00-08:00", "2026-03-02 07:59", False, "2026-02-24 08:00", "2026-03-02 08:00"),
    ("Mon 08:00-08:00", "2026-03-03 07:59", True, "2026-03-02 08:00", "2026-03-03 08:00"),
    ("Mon 00:00-00:00", "2026-03-02 23:59", True, "2026-03-02 00:00", "2026-03-03 00:00"),
    # days, long and short, in any case
    ("monday 08:00-18:00", "2026-03-02 12:00", True, "2026-03-02 08:00", "2026-03-02 18:00"),
    ("MON,wEd 08:00-18:00", "2026-03-03 12:00", False, "2026-03-02 18:00", "2026-03-04 08:00"),
    ("Tuesday 08:00-18:00", "2026-03-02 12:00", False, "2026-02-24 18:00", "2026-03-03 08:00"),
    # several windows: adjacent ones are joined, an inner one changes nothing
    ("08:00-12:00 + 13:00-18:00", "2026-03-02 12:30", False, "2026-03-02 12:00", "2026-03-02 13:00"),
    ("08:00-12:00 + 12:00-18:00", "2026-03-02 09:00", True, "2026-03-02 08:00", "2026-03-02 18:00"),
    ("08:00-18:00 + 10:00-11:00", "2026-03-02 10:30", True, "2026-03-02 08:00", "2026-03-02 18:00"),
    ("22:00-24:00 + 00:00-06:00", "2026-03-02 23:00", True, "2026-03-02 22:00", "2026-03-03 06:00"),
    # no window: always open
    ("", "2026-03-02 12:00", True, None, None),
]


@pytest.mark.parametrize(("windows", "instant", "is_open", "last", "following"), PLAIN)
@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "America/Phoenix", "Asia/Kathmandu"])
def test_every_day_is_alike_without_clock_changes(
    windows: str, instant: str, is_open: bool, last: str | None, following: str | None, zone: str
) -> None:
    schedule, now = new_schedule(windows, zone), at(instant, zone)
    assert schedule.is_open(now) is is_open
    assert schedule.last_change(now) == (at(last, zone) if last else None)
    assert schedule.next_change(now) == (at(following, zone) if following else None)


# In UTC: Berlin goes from 02:00 (+1) to 03:00 (+2) on 29 March at 01:00, and back from 03:00 to 02:00 on 25 October at
# 01:00.  New York from 02:00 (-5) to 03:00 (-4) on 8 March at 07:00, back on 1 November at 06:00.  Lord Howe from 02:00
# (+10:30) to 02:30 (+11) on 4 October, which is 3 October 15:30, back from 02:00 to 01:30 on 5 April, 4 April 15:00.
SET = [
    # window, zone, instant in UTC, open?, changed last, changes next
    # a gap inside a window: an hour is missing
    ("01:00-04:00", "Europe/Berlin", "2026-03-29 00:30", True, "2026-03-29 00:00", "2026-03-29 02:00"),
    # a gap over the end: the window ends at the gap
    ("22:00-02:30", "Europe/Berlin", "2026-03-29 00:59", True, "2026-03-28 21:00", "2026-03-29 01:00"),
    ("22:00-02:30", "Europe/Berlin", "2026-03-29 01:00", False, "2026-03-29 01:00", "2026-03-29 20:00"),
    # a gap over the start: it begins after the gap
    ("02:30-05:00", "Europe/Berlin", "2026-03-29 01:00", True, "2026-03-29 01:00", "2026-03-29 03:00"),
    # a window inside a gap: never read
    ("02:15-02:45", "Europe/Berlin", "2026-03-29 00:30", False, "2026-03-28 01:45", "2026-03-30 00:15"),
    ("Sun 02:00-03:00", "Europe/Berlin", "2026-03-29 12:00", False, "2026-03-22 02:00", "2026-04-05 00:00"),
    ("Sun 02:00-03:00", "Europe/Berlin", "2026-03-22 02:00", False, "2026-03-22 02:00", "2026-04-05 00:00"),
    ("Sun 02:00-03:00", "Europe/Berlin", "2026-04-04 23:59", False, "2026-03-22 02:00", "2026-04-05 00:00"),
    # a fold inside a window: one more hour
    ("01:00-04:00", "Europe/Berlin", "2026-10-25 01:30", True, "2026-10-24 23:00", "2026-10-25 03:00"),
    # a fold over the end: open until the first reading, and again
    ("22:00-02:30", "Europe/Berlin", "2026-10-25 00:15", True, "2026-10-24 20:00", "2026-10-25 00:30"),
    ("22:00-02:30", "Europe/Berlin", "2026-10-25 00:30", False, "2026-10-25 00:30", "2026-10-25 01:00"),
    ("22:00-02:30", "Europe/Berlin", "2026-10-25 01:15", True, "2026-10-25 01:00", "2026-10-25 01:30"),
    # a fold over the start
    ("02:30-05:00", "Europe/Berlin", "2026-10-25 00:45", True, "2026-10-25 00:30", "2026-10-25 01:00"),
    ("02:30-05:00", "Europe/Berlin", "2026-10-25 01:00", False, "2026-10-25 01:00", "2026-10-25 01:30"),
    # the same west of Greenwich, where the day in UTC is another one
    ("20:00-02:00", "America/New_York", "2026-03-08 06:59", True, "2026-03-08 01:00", "2026-03-08 07:00"),
    ("Sat 20:00-24:00", "America/New_York", "2026-03-08 04:00", True, "2026-03-08 01:00", "2026-03-08 05:00"),
    ("01:00-02:00", "America/New_York", "2026-11-01 05:30", True, "2026-11-01 05:00", "2026-11-01 07:00"),
    ("01:30-02:00", "America/New_York", "2026-11-01 05:45", True, "2026-11-01 05:30", "2026-11-01 06:00"),
    ("01:30-02:00", "America/New_York", "2026-11-01 06:15", False, "2026-11-01 06:00", "2026-11-01 06:30"),
    # and by half an hour
    ("01:00-03:00", "Australia/Lord_Howe", "2026-10-03 15:29", True, "2026-10-03 14:30", "2026-10-03 16:00"),
    ("02:00-02:30", "Australia/Lord_Howe", "2026-10-03 15:30", False, "2026-10-02 16:00", "2026-10-04 15:00"),
    ("01:30-01:45", "Australia/Lord_Howe", "2026-04-04 14:35", True, "2026-04-04 14:30", "2026-04-04 14:45"),
    ("01:30-01:45", "Australia/Lord_Howe", "2026-04-04 14:50", False, "2026-04-04 14:45", "2026-04-04 15:00"),
    ("01:30-01:45", "Australia/Lord_Howe", "2026-04-04 15:05", True, "2026-04-04 15:00", "2026-04-04 15:15"),
]


@pytest.mark.parametrize(("window", "zone", "instant", "is_open", "last", "following"), SET)
def test_window_follows_the_wall_clock(
    window: str, zone: str, instant: str, is_open: bool, last: str, following: str
) -> None:
    schedule, now = new_schedule(window, zone), at(instant)
    assert schedule.is_open(now) is is_open
    assert schedule.last_change(now) == at(last)
    assert schedule.next_change(now) == at(following)


def test_seconds_do_not_matter() -> None:
    schedule, second = new_schedule("08:00-18:00"), timedelta(seconds=1)
    before, edge = at("2026-03-02 08:00") - second, at("2026-03-02 08:00")
    assert not schedule.is_open(before)
    assert schedule.next_change(before) == edge
    assert schedule.is_open(edge + 59 * second)
    assert schedule.next_change(edge + 59 * second) == at("2026-03-02 18:00")
    assert schedule.last_change(edge + 59 * second) == edge


def test_window_zone_precedes_policy_and_default() -> None:
    window = TimeWindow("08:00", "09:00")
    own = ResourceLeasingPolicySpec("c", time_windows=(TimeWindow("08:00", "09:00", time_zone="Asia/Tokyo"), window))
    assert schedule_of(own, "UTC") == Schedule(
        (*new_schedule("08:00-09:00", "Asia/Tokyo").windows, *new_schedule("08:00-09:00").windows)
    )
    policys = ResourceLeasingPolicySpec("c", time_windows=(window,), time_zone="Asia/Tokyo")
    assert schedule_of(policys, "UTC") == new_schedule("08:00-09:00", "Asia/Tokyo")


def test_schedule_may_use_several_zones() -> None:
    tokyo, berlin = new_schedule("08:00-18:00", "Asia/Tokyo"), new_schedule("08:00-18:00", "Europe/Berlin")
    both = Schedule((*tokyo.windows, *berlin.windows))
    assert both.last_change(at("2026-01-15 05:00")) == at("2026-01-14 23:00")
    assert both.next_change(at("2026-01-15 05:00")) == at("2026-01-15 17:00")


def test_never_open_schedule_never_changes() -> None:
    now = at("2026-03-02 12:00")
    assert not NEVER_OPEN.is_open(now)
    assert NEVER_OPEN.next_change(now) is None
    assert NEVER_OPEN.last_change(now) is None


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "Europe", "/etc/localtime", "a\0b"])
def test_unknown_zone_is_rejected_with_its_path(zone: str) -> None:
    window = TimeWindow("08:00", "09:00")
    with pytest.raises(WindowError, match=r"^spec\.timeZone: .* is not a time zone; give an IANA name"):
        schedule_of(ResourceLeasingPolicySpec("c", time_windows=(window,)), zone)


def test_unknown_window_zone_has_its_own_path() -> None:
    spec = decode_spec(
        POLICY,
        {"spec": {"cluster": "c", "timeWindows": [{"start": "08:00", "end": "09:00", "timeZone": "Mars/Olympus"}]}},
    )
    with pytest.raises(WindowError, match=r"^spec\.timeWindows\[0\]\.timeZone: 'Mars/Olympus' is not a time zone"):
        schedule_of(spec, "UTC")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("start", "8:00"),
        ("start", "25:00"),
        ("start", "24:00"),
        ("end", "24:01"),
        ("end", "08:60"),
        ("days", ["Funday"]),
    ],
)
def test_schema_rejects_invalid_times_and_days(field: str, value: object) -> None:
    window = {"start": "08:00", "end": "09:00", field: value}
    with pytest.raises(InvalidSpec, match=rf"^spec\.timeWindows\[0\]\.{field}"):
        decode_spec(POLICY, {"spec": {"cluster": "c", "timeWindows": [window]}})


# -- the second implementation

SPAN = 14 * 24 * 60
FIRST_DAYS = [  # two-week periods around a clock change, and one without
    datetime(2026, month, day, tzinfo=UTC)
    for month, day in [(3, 1), (3, 22), (3, 29), (9, 27), (10, 18), (10, 25), (6, 1)]
]
ZONES = ["UTC", "Asia/Shanghai", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]


@cache
def walls(zone: str, first: datetime) -> list[tuple[int, int]]:
    """Return weekday and minute of the wall clock for each minute of two weeks."""
    read = [(first + place * MINUTE).astimezone(ZoneInfo(zone)) for place in range(SPAN)]
    return [(wall.weekday(), wall.hour * 60 + wall.minute) for wall in read]


def readings(window: TimeWindow) -> set[tuple[int, int]]:
    """Return every weekday and minute at which a window is open, counted from its start."""
    hour, minute = map(int, window.start.split(":"))
    until, past = map(int, window.end.split(":"))
    start, end = hour * 60 + minute, until * 60 + past
    length = end - start if end > start else end - start + 24 * 60
    begins = [DAYS.index(day) for day in window.days] if window.days else range(7)
    week = (begin * 24 * 60 + start + step for begin in begins for step in range(length))
    return {(place // (24 * 60) % 7, place % (24 * 60)) for place in week}


clocks = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.sampled_from([0, 15, 30, 45, 1, 59]))
time_windows = st.builds(
    TimeWindow,
    start=clocks,
    end=clocks | st.just("24:00"),
    days=st.lists(st.sampled_from(DAYS), unique=True, max_size=7).map(tuple),
)


@settings(max_examples=60)
@given(
    windows=st.lists(time_windows, min_size=1, max_size=3).map(tuple),
    zone=st.sampled_from(ZONES),
    first=st.sampled_from(FIRST_DAYS),
    places=st.lists(st.integers(0, SPAN - 1), min_size=20, max_size=20),
)
def test_every_minute_matches_the_wall_clock(
    windows: tuple[TimeWindow, ...], zone: str, first: datetime, places: list[int]
) -> None:
    schedule = schedule_of(ResourceLeasingPolicySpec("c", time_windows=windows), zone)
    wanted = set().union(*map(readings, windows))
    truth = [wall in wanted for wall in walls(zone, first)]
    edges = [place for place, (before, after) in enumerate(pairwise(truth), 1) if before != after]
    for place in {0, SPAN - 1, *places, *edges, *(edge - 1 for edge in edges)}:
        now = first + place * MINUTE
        assert schedule.is_open(now) is truth[place]
        following, last = schedule.next_change(now), schedule.last_change(now)
        later = next((first + edge * MINUTE for edge in edges if edge > place), None)
        assert following == later or (later is None and (following is None or following >= first + SPAN * MINUTE))
        earlier = next((first + edge * MINUTE for edge in reversed(edges) if edge <= place), None)
        assert last == earlier or (earlier is None and (last is None or last <= first))
