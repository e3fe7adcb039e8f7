"""Waiting for rights in the virtual cluster.

The manager grants a syncer rights on its nodes, and on what its pods use, a moment after these appear.  Until then
requests fail, which is not an error.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tapestry.controller import Result
from tapestry.controller.controller import Reconcile
from tapestry.kube.errors import Forbidden

GRANT_TIMEOUT = timedelta(seconds=10)
"""Time after which a missing right is reported."""
MIN_PAUSE, MAX_PAUSE = 0.1, 30.0
"""Seconds between two attempts.  The pause grows with the time waited."""


@dataclass(frozen=True)
class GrantWaits:
    """The keys that wait for a right."""

    now: Callable[[], datetime]
    since: dict[str, datetime] = field(default_factory=dict)

    def pause(self, key: str) -> float:
        """Return the seconds until the next attempt, and record the first."""
        waited = self.now() - self.since.setdefault(key, self.now())
        return min(MAX_PAUSE, max(MIN_PAUSE, waited.total_seconds() / 4))

    def is_overdue(self, key: str) -> bool:
        return key in self.since and self.now() - self.since[key] >= GRANT_TIMEOUT

    def clear(self, key: str) -> None:
        self.since.pop(key, None)


def waiting_for_grants(reconcile: Reconcile, now: Callable[[], datetime]) -> Reconcile:
    """Return a reconciler that repeats a forbidden request soon, and fails if it stays forbidden."""
    waits = GrantWaits(now)

    async def wrapper(key: str) -> Result | None:
        try:
            result = await reconcile(key)
        except Forbidden:
            pause = waits.pause(key)
            if waits.is_overdue(key):
                raise
            return Result(requeue_after=pause)
        waits.clear(key)
        return result

    return wrapper
