"""Measured work of one part of a process, for example of one of several API servers.

The meter of a part belongs to its context (`contextvars`), so it also covers tasks and threads that work for it.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from math import expm1

from tapestry.kube.objects import EMPTY_MAPPING

MEMORY_NS = 1_000_000_000
"""Time after which earlier use counts for about a third in the recent share."""
MAX_STEP_NS = 20_000_000
"""Time of one step that counts in the recent share. In most longer ones, the process did not run for a while."""


class WorkMeter:
    """Time that the tasks of one part have used."""

    __slots__ = (
        *("_averaged_ns", "_averaged_until", "excess_ns", "log_values", "loop_ns", "recent_share", "steps"),
        "thread_ns",
    )

    def __init__(self, log_values: Mapping[str, str] = EMPTY_MAPPING) -> None:
        self.log_values = log_values
        """Values in all log lines of the part."""
        self.loop_ns = 0
        """Nanoseconds on the event loop."""
        self.steps = 0
        """Number of times that the event loop has run one of its tasks."""
        self.thread_ns = 0
        """Nanoseconds of CPU time in worker threads, of which a part uses one at a time."""
        self.excess_ns = 0
        """Nanoseconds on the event loop that do not count in the recent share."""
        self.recent_share = 0.0
        """Share of the event loop that was used recently, when it was last updated."""
        self._averaged_ns = self._averaged_until = 0

    def update_share(self, now: int) -> float:
        """Return the recent share: an exponentially weighted average until now, in nanoseconds."""
        elapsed = now - self._averaged_until
        if elapsed > 0:
            used = self.loop_ns - self.excess_ns
            share = (used - self._averaged_ns) / elapsed
            self.recent_share -= (share - self.recent_share) * expm1(-elapsed / MEMORY_NS)
            self._averaged_ns, self._averaged_until = used, now
        return self.recent_share

    @property
    def seconds(self) -> float:
        return (self.loop_ns + self.thread_ns) / 1e9

    def count_step(self, used: int) -> None:
        """Count a step of this time."""
        self.loop_ns += used
        self.steps += 1
        if used > MAX_STEP_NS:
            self.excess_ns += used - MAX_STEP_NS


CURRENT_METER: ContextVar[WorkMeter | None] = ContextVar("METER", default=None)
