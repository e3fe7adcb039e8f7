"""Process statistics from /proc."""

import os
import subprocess
import sys

import pytest

from tapestry.local.proc import process_stat, uptime


def test_process_has_start_time_cpu_and_memory() -> None:
    before = process_stat(os.getpid())
    assert 0 < before.start_seconds <= uptime()
    assert 1 << 20 < before.memory < 1 << 40
    while process_stat(os.getpid()).cpu_seconds == before.cpu_seconds:
        sum(range(10_000))


def test_process_name_may_contain_anything() -> None:
    rename = "open('/proc/self/comm', 'w').write(') 1 2 (')"
    wait = "print(flush=True); input()"
    command = [sys.executable, "-c", f"{rename}; {wait}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 0 < process_stat(process.pid).start_seconds <= uptime()
        process.communicate(b"\n")


def test_ended_process_is_an_error() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    with pytest.raises(OSError):
        process_stat(ended.pid)
