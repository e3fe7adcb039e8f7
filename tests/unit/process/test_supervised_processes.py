"""Supervised processes: restarts, stalled starts and exit messages."""

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from tapestry.process.supervised_processes import StallDetector, SupervisedProcess, exit_text


async def test_killed_process_is_restarted_until_cancelled(tmp_path: Path) -> None:
    started, lines = tmp_path / "started", list[str]()
    os.mkfifo(started)  # a reader waits until the process has written its ID
    process = SupervisedProcess(tmp_path, ("sh", "-c", f"echo $$ > {started}; exec sleep 1000"), has_responded=True)
    running = asyncio.create_task(process.supervise(lines.append))
    os.kill(int(await asyncio.to_thread(started.read_text)), signal.SIGKILL)
    second = int(await asyncio.to_thread(started.read_text))
    assert process.pid == second
    assert lines == [f"{tmp_path.name} was killed by SIGKILL; restarting"]
    running.cancel()
    await asyncio.wait([running])
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)
    assert process.pid == 0


class Clock:
    time = 0.0

    def __call__(self) -> float:
        return self.time


def test_slow_progress_does_not_stall() -> None:
    clock = Clock()
    progress = StallDetector(10, 1000, clock)
    for step in range(50):
        clock.time += 9
        assert not progress.has_stalled(step)
    clock.time += 11
    assert progress.has_stalled(49)


def test_progress_stalls_after_total_timeout() -> None:
    clock = Clock()
    progress = StallDetector(10, 100, clock)
    clock.time = 99
    assert not progress.has_stalled("busy")
    clock.time = 101
    assert progress.has_stalled("busier")


@pytest.mark.parametrize(
    ("code", "log", "text"),
    [
        (137, "a\nb\n", "was killed by SIGKILL"),
        (1, "a\nError: the port is taken\n", "exited with 1: Error: the port is taken"),
        (0, "", "exited with 0"),
    ],
)
def test_exit_text_names_signal_or_last_log_line(code: int, log: str, text: str) -> None:
    assert exit_text(code, log) == text


def test_full_disk_replaces_log_in_exit_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = SupervisedProcess(tmp_path, ())
    process.log.write_text("all is well\n")
    assert exit_text(1, process.log_tail()) == "exited with 1: all is well"
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
    assert exit_text(1, process.log_tail()) == f"exited with 1: no space is left on the disk of {tmp_path}; free some"
