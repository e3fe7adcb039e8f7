"""What the kernel says of a process of this machine."""

import os
from pathlib import Path
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
"""In a second."""
PAGE = os.sysconf("SC_PAGE_SIZE")


class Stat(NamedTuple):
    """A process so far."""

    worked: float
    """Seconds that it had on processors."""
    began: float
    """Seconds after the machine did."""
    memory: int
    """Bytes of it that are in memory now."""


def stat_of(pid: int) -> Stat:
    """Raises OSError where there is no such process."""
    text = Path(f"/proc/{pid}/stat").read_text()
    fields = text.rpartition(")")[2].split()  # its name comes before, in parentheses, with whatever is in it
    user, system, began, pages = (int(fields[at]) for at in (11, 12, 19, 21))
    return Stat((user + system) / TICKS, began / TICKS, pages * PAGE)


def uptime() -> float:
    """Seconds since the machine began."""
    return float(Path("/proc/uptime").read_text().split()[0])
