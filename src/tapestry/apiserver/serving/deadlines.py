"""Request deadlines that share one timer.

Nearly every request ends long before its deadline, and a timer per request would cost as much as reading an object.
So a single timer fires at the earliest deadline, cancels the requests that are due, and is set for the next one.
"""

import asyncio
from math import inf
from types import TracebackType

from tapestry.kube.budget import DeadlineExceeded


class Deadlines:
    """Deadlines of one event loop."""

    def __init__(self) -> None:
        self.active: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.fires_at = inf
        """Time at which the timer fires."""

    def within(self, seconds: float) -> "Deadline":
        """Return a context that raises DeadlineExceeded after the given seconds."""
        return Deadline(self, asyncio.get_running_loop().time() + seconds)

    def schedule(self, due: float) -> None:
        """Make sure that the timer fires at that time or earlier."""
        if due < self.fires_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self.fires_at = asyncio.get_running_loop().call_at(due, self._expire_due), due

    def _expire_due(self) -> None:
        self._timer, self.fires_at = None, inf
        now = asyncio.get_running_loop().time()
        for deadline in [each for each in self.active if each.due <= now]:
            deadline.expire()
        if self.active:
            self.schedule(min(each.due for each in self.active))


class Deadline:
    """Deadline of one task; can be entered once."""

    __slots__ = ("_deadlines", "_is_expired", "_others", "_task", "due")

    def __init__(self, deadlines: Deadlines, due: float) -> None:
        self._deadlines, self.due, self._is_expired = deadlines, due, False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._others = task, task.cancelling()
        self._deadlines.active.add(self)
        if self.due < self._deadlines.fires_at:
            self._deadlines.schedule(self.due)

    def expire(self) -> None:
        self._deadlines.active.discard(self)
        self._is_expired = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not self._is_expired:
            self._deadlines.active.discard(self)
        elif self._task.uncancel() <= self._others and kind is asyncio.CancelledError:  # no other cancellation
            raise DeadlineExceeded from error
