"""Process statistics from /proc."""

import os
from pathlib import Path
from typing import NamedTuple

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
"""Clock ticks per second."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessStat(NamedTuple):
    """Statistics of a process."""

    cpu_seconds: float
    """CPU time in seconds."""
    start_seconds: float
    """Start time in seconds after boot."""
    memory: int
    """Resident memory in bytes."""


def process_stat(pid: int) -> ProcessStat:
    """Read /proc/PID/stat; raise OSError if there is no such process."""
    text = Path(f"/proc/{pid}/stat").read_text()
    fields = text.rpartition(")")[2].split()  # skip the name in parentheses, which may contain anything
    user, system, began, pages = (int(fields[index]) for index in (11, 12, 19, 21))
    return ProcessStat((user + system) / TICKS_PER_SECOND, began / TICKS_PER_SECOND, pages * PAGE_BYTES)


def uptime() -> float:
    """Return the seconds since boot."""
    return float(Path("/proc/uptime").read_text().split()[0])
