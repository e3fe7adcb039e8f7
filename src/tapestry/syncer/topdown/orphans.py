"""Twins whose pods are gone: when one counts as an orphan, and how many of them go at once.

An absence that is seen once may be a cache's fault, and a thousand of them at once somebody's mistake: a twin goes
after a second sighting, and no more than so many in a minute.  Where the pod was seen going, that was the first
sighting, and there is no doubt about it.
"""

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta

SECOND_SIGHTING = timedelta(seconds=10)
"""After how long a twin that is still without a pod is an orphan."""
SWEEP, SWEEP_LASTS = 100, timedelta(minutes=1)
"""How many of those go within that time."""


@dataclass(frozen=True)
class Orphans:
    """What was seen of twins without pods, by the twins' UIDs."""

    since: dict[str, datetime | None] = field(default_factory=dict)
    """None where the pod was seen going."""
    swept: deque[datetime] = field(default_factory=deque)
    """When the last of the others went."""

    def bereaved(self, uid: str) -> None:
        """The twin's pod was seen going."""
        self.since[uid] = None

    def forget(self, uid: str) -> None:
        self.since.pop(uid, None)

    def sighted(self, uid: str, now: datetime) -> datetime | None:
        """Note that the twin has no pod; when to look again, or None where it is to go now."""
        first = self.since.setdefault(uid, now)
        if first is None:
            return None
        if now < first + SECOND_SIGHTING:
            return first + SECOND_SIGHTING
        while self.swept and self.swept[0] + SWEEP_LASTS <= now:
            self.swept.popleft()
        if len(self.swept) >= SWEEP:
            return self.swept[0] + SWEEP_LASTS
        self.swept.append(now)
        return None
