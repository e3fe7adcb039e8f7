"""What the kernel says of a process of this machine."""

import os
from pathlib import Path
from typing import NamedTuple

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
"""In a second."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessStat(NamedTuple):
    """A process so far."""

    cpu_seconds: float
    """Seconds that it had on processors."""
    start_seconds: float
    """Seconds after the machine did."""
    memory: int
    """Bytes of it that are in memory now."""


def process_stat(pid: int) -> ProcessStat:
    """Raises OSError where there is no such process."""
    text = Path(f"/proc/{pid}/stat").read_text()
    fields = text.rpartition(")")[2].split()  # its name comes before, in parentheses, with whatever is in it
    user, system, began, pages = (int(fields[at]) for at in (11, 12, 19, 21))
    return ProcessStat((user + system) / TICKS_PER_SECOND, began / TICKS_PER_SECOND, pages * PAGE_BYTES)


def uptime() -> float:
    """Seconds since the machine began."""
    return float(Path("/proc/uptime").read_text().split()[0])
