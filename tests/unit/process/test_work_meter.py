"""The meter of a part of a process: its time, and its values in log lines."""

import io

import msgspec

from tapestry.process import logs
from tapestry.process.work_meter import CURRENT_METER, WorkMeter


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
