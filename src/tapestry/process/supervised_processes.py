"""Child processes that write to a log file and are restarted when they end."""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tapestry.process.child_processes import Streams, guarded_process, process_stat

MIN_RESTART_BACKOFF, MAX_RESTART_BACKOFF = 1.0, 30.0
"""Backoff in seconds before a process that ended soon is restarted."""
STOP_TIMEOUT = 60.0
"""Seconds after SIGTERM until a process is killed."""
SIGNAL_EXIT_BASE = 128
LOG_TAIL_BYTES = 2000
"""Bytes of a log that are reported."""


@dataclass
class SupervisedProcess:
    """A process with the log `FOLDER/log`."""

    folder: Path
    command: Sequence[str]
    pid: int = 0
    """Process ID; 0 while no process runs."""
    exit_message: str = ""
    """Description of how the last process ended."""
    has_responded: bool = False
    """Set by the caller. A process that never responded is restarted with backoff, even for the first time."""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def log(self) -> Path:
        return self.folder / "log"

    async def supervise(self, report: Callable[[str], None]) -> None:
        """Run the process until cancelled. Restart it whenever it ends; at once, unless it fails repeatedly."""
        failures = 0
        while True:
            began = time.monotonic()
            await self.run_once()
            failures = failures + 1 if time.monotonic() - began < MAX_RESTART_BACKOFF else 1
            if failures > 1 or not self.has_responded:  # gives waiting callers time to fail first
                await asyncio.sleep(min(MIN_RESTART_BACKOFF * 2 ** (failures - 1), MAX_RESTART_BACKOFF))
            report(f"{self.name} {self.exit_message}; restarting")

    async def run_once(self) -> None:
        with self.log.open("ab") as log:
            async with guarded_process(self.command, os.environ, Path.cwd(), Streams(log)) as process:
                self.pid = process.pid
                try:
                    code = await process.wait()
                except asyncio.CancelledError:
                    await process.stop(STOP_TIMEOUT)
                    raise
                finally:
                    self.pid = 0
        self.exit_message = exit_text(code, self.log_tail())

    def progress_value(self) -> tuple[float, ...]:
        """Return a value that changes while the process starts: its CPU time and log size."""
        try:
            return self.pid, process_stat(self.pid).cpu_seconds, self.log.stat().st_size
        except OSError:
            return (self.pid,)

    def log_tail(self) -> str:
        """Return the end of its log, or a message if the disk is full."""
        if shutil.disk_usage(self.folder).free < LOG_TAIL_BYTES:
            return f"no space is left on the disk of {self.folder}; free some"
        with self.log.open("rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES, 0))
            return log.read().decode(errors="replace")


@dataclass
class StallDetector:
    """Detect that an observed value has not changed for too long."""

    stall_timeout: float
    total_timeout: float
    now: Callable[[], float] = time.monotonic
    _last_value: Hashable = None
    _began: float = field(init=False)
    _changed: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self._changed = self.now()

    def has_stalled(self, value: Hashable) -> bool:
        """Return whether the value has not changed for `stall_timeout`, or `total_timeout` is over."""
        moment = self.now()
        if value != self._last_value:
            self._last_value, self._changed = value, moment
        return moment - self._changed > self.stall_timeout or moment - self._began > self.total_timeout


def exit_text(code: int, log: str) -> str:
    """Describe the exit: the signal, or the code and the last line of the log."""
    if code > SIGNAL_EXIT_BASE:
        return f"was killed by {signal.Signals(code - SIGNAL_EXIT_BASE).name}"
    return f"exited with {code}: {log.rstrip().rpartition(chr(10))[2]}".rstrip(": ")
