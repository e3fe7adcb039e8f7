"""Deadlines: how long answers may take, with one timer for all of them.

Nearly every request is answered long before its time is over, and to set a timer for each and take it back again costs
as much as to read an object.  So one timer rings when somebody may be due, looks who is, and is set for the next.
"""

import asyncio
from math import inf
from types import TracebackType


class Deadlines:
    """Those of one event loop."""

    def __init__(self) -> None:
        self.active: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.rings_at = inf
        """When the timer is set for."""

    def within(self, seconds: float) -> "Deadline":
        """A context that ends with a TimeoutError after so many seconds."""
        return Deadline(self, asyncio.get_running_loop().time() + seconds)

    def schedule(self, due: float) -> None:
        """Ring at that time at the latest."""
        if due < self.rings_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self.rings_at = asyncio.get_running_loop().call_at(due, self._expire_due), due

    def _expire_due(self) -> None:
        self._timer, self.rings_at = None, inf
        now = asyncio.get_running_loop().time()
        for limit in [each for each in self.active if each.due <= now]:
            limit.expire()
        if self.active:
            self.schedule(min(each.due for each in self.active))


class Deadline:
    """What one task may take; entered once."""

    __slots__ = ("_deadlines", "_is_over", "_others", "_task", "due")

    def __init__(self, deadlines: Deadlines, due: float) -> None:
        self._deadlines, self.due, self._is_over = deadlines, due, False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._others = task, task.cancelling()
        self._deadlines.active.add(self)
        if self.due < self._deadlines.rings_at:
            self._deadlines.schedule(self.due)

    def expire(self) -> None:
        self._deadlines.active.discard(self)
        self._is_over = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not self._is_over:
            self._deadlines.active.discard(self)
        elif self._task.uncancel() <= self._others and kind is asyncio.CancelledError:  # nobody else wants it to end
            raise TimeoutError from error
