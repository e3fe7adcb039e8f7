"""Measured work of one part of a process, for example of one of several API servers.

The meter of a part belongs to its context (`contextvars`), so it also covers tasks and threads that work for it.
"""

from collections.abc import Mapping
from contextvars import ContextVar

from tapestry.kube.objects import EMPTY_MAPPING


class WorkMeter:
    """Time that the tasks of one part have used."""

    __slots__ = ("log_values", "loop_ns", "steps", "thread_ns")

    def __init__(self, log_values: Mapping[str, str] = EMPTY_MAPPING) -> None:
        self.log_values = log_values
        """Values in all log lines of the part."""
        self.loop_ns = 0
        """Nanoseconds on the event loop."""
        self.steps = 0
        """Number of times that the event loop has run one of its tasks."""
        self.thread_ns = 0
        """Nanoseconds of CPU time in worker threads, of which a part uses one at a time."""

    @property
    def seconds(self) -> float:
        return (self.loop_ns + self.thread_ns) / 1e9


CURRENT_METER: ContextVar[WorkMeter | None] = ContextVar("METER", default=None)
