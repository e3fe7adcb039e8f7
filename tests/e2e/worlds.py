"""`tapestry up` as a child process: its output, its processes, and a check that all of them end."""

import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TAPESTRY = Path(sys.executable).with_name("tapestry")
READY_MESSAGE = "Ctrl-C stops everything"
TIMEOUT_SECONDS = 120
"""Seconds to wait for output and for processes to end. It is generous because tests share the machine."""
EXIT_SECONDS = 10.0
"""Seconds in which the last child processes end after their parent."""


@dataclass
class WorldProcess:
    """A started `tapestry up`."""

    folder: Path
    process: subprocess.Popen[str]
    output: str = ""
    """The output until the world was ready."""

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "virtual" / "kubeconfig"

    def read_until(self, pattern: str) -> str:
        """Return the output up to the line that matches. A watchdog kills the process on timeout."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(TIMEOUT_SECONDS, self.process.kill)
        watchdog.start()
        text = ""
        for line in self.process.stdout:
            text += line
            if re.search(pattern, line):
                watchdog.cancel()
                return text
        watchdog.cancel()
        pytest.fail(f"it ended without printing {pattern!r}:\n{text}")

    def processes(self) -> dict[int, str]:
        """Return the command lines of all descendants, guards included, by PID."""
        parents, found = parent_pids(), {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return {pid: command_of(pid) for pid in found - {self.process.pid}}

    def pid_of(self, *words: str) -> int:
        """Return the only process whose command line contains these words in sequence."""
        (found,) = [pid for pid, command in self.processes().items() if f" {' '.join(words)} " in f"{command} "]
        return found


def parent_pids() -> dict[int, int]:
    found = {}
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            found[int(each.parent.name)] = int(each.read_text().rpartition(")")[2].split()[1])
        except OSError:  # the process has just ended
            continue
    return found


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def leftover_processes(folder: Path) -> list[str]:
    """Return the processes whose command lines still name the folder after EXIT_SECONDS."""
    due = time.monotonic() + EXIT_SECONDS
    while (found := commands_with(str(folder))) and time.monotonic() < due:
        threading.Event().wait(0.1)  # arbitrary processes cannot be watched
    return found


def commands_with(text: str) -> list[str]:
    return [command for command in map(command_of, parent_pids()) if text in command]


@contextmanager
def starting_world(folder: Path, *flags: str, **variables: str) -> Iterator[WorldProcess]:
    """Start `tapestry up`. All of its processes have ended on exit, also if the test fails."""
    process = subprocess.Popen(
        [TAPESTRY, "up", "--data", folder, *flags],
        cwd=ROOT,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    world = WorldProcess(folder, process)
    try:
        yield world
    finally:
        if process.poll() is None:
            with expect_processes_to_end(world):
                process.kill()
                process.communicate()


@contextmanager
def running_world(folder: Path, *flags: str) -> Iterator[WorldProcess]:
    """Run a world until it is ready. On exit, end it with SIGINT and check that no process is left."""
    with starting_world(folder, *flags) as world:
        world.output = world.read_until(READY_MESSAGE)
        yield world
        with expect_processes_to_end(world):
            world.process.send_signal(signal.SIGINT)
            rest, _ = world.process.communicate(timeout=TIMEOUT_SECONDS)
        assert "stopping" in rest
        assert world.process.returncode == 0


@contextmanager
def expect_processes_to_end(world: WorldProcess) -> Iterator[None]:
    """Check that the body ends all processes of a world."""
    ends = {}
    for pid, command in world.processes().items():
        try:
            ends[os.pidfd_open(pid)] = command
        except ProcessLookupError:  # a probe that has ended meanwhile
            continue
    try:
        yield
        left = [command for end, command in ends.items() if not select.select([end], [], [], TIMEOUT_SECONDS)[0]]
        assert left == []
    finally:
        for end in ends:
            os.close(end)
