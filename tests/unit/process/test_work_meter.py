"""The meter of a part of a process: its time, and its values in log lines."""

import io
from math import exp

import msgspec
import pytest

from tapestry.process import logs
from tapestry.process.work_meter import CURRENT_METER, MEMORY_NS, WorkMeter


def test_seconds_include_loop_and_threads() -> None:
    meter = WorkMeter()
    meter.loop_ns, meter.thread_ns = 1_500_000_000, 500_000_000
    assert meter.seconds == 2.0


def test_log_lines_name_the_part() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    token = CURRENT_METER.set(WorkMeter({"plane": "a"}))
    logs.logger("test").info("in the part")
    CURRENT_METER.reset(token)
    logs.logger("test").info("elsewhere")
    lines = [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]
    assert [line.get("plane") for line in lines] == ["a", None]


def test_old_use_fades_in_recent_share() -> None:
    meter = WorkMeter()
    for expected in (0.5 * (1 - exp(-1)), 0.5 * (1 - exp(-2))):
        meter.loop_ns += MEMORY_NS // 2
        meter.update_share(meter.loop_ns * 2)
        assert meter.recent_share == pytest.approx(expected)
    assert meter.update_share(MEMORY_NS * 12) < 0.001


def test_recent_share_is_independent_of_update_times() -> None:
    rare, often = WorkMeter(), WorkMeter()
    for now in range(0, MEMORY_NS, MEMORY_NS // 100):
        rare.loop_ns = often.loop_ns = now // 4
        often.update_share(now)
    assert rare.update_share(now) == pytest.approx(often.update_share(now))
    assert rare.update_share(now) == rare.recent_share
