"""Twins whose pods are gone: when one counts as an orphan, and how many of them go at once.

An absence that is seen once may be a cache's fault, and a thousand of them at once somebody's mistake: a twin goes
after a second sighting, and no more than so many in a minute.  Where the pod was seen going, that was the first
sighting, and there is no doubt about it.
"""

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta

CONFIRMATION_DELAY = timedelta(seconds=10)
"""After how long a twin that is still without a pod is an orphan."""
MAX_DELETIONS, DELETION_PERIOD = 100, timedelta(minutes=1)
"""How many of those go within that time."""


@dataclass(frozen=True)
class OrphanTracker:
    """What was seen of twins without pods, by the twins' UIDs."""

    first_seen: dict[str, datetime | None] = field(default_factory=dict)
    """None where the pod was seen going."""
    recent_deletions: deque[datetime] = field(default_factory=deque)
    """When the last of the others went."""

    def mark_pod_deleted(self, uid: str) -> None:
        """The twin's pod was seen going."""
        self.first_seen[uid] = None

    def forget(self, uid: str) -> None:
        self.first_seen.pop(uid, None)

    def record_sighting(self, uid: str, now: datetime) -> datetime | None:
        """Note that the twin has no pod; when to look again, or None where it is to go now."""
        first = self.first_seen.setdefault(uid, now)
        if first is None:
            return None
        if now < first + CONFIRMATION_DELAY:
            return first + CONFIRMATION_DELAY
        while self.recent_deletions and self.recent_deletions[0] + DELETION_PERIOD <= now:
            self.recent_deletions.popleft()
        if len(self.recent_deletions) >= MAX_DELETIONS:
            return self.recent_deletions[0] + DELETION_PERIOD
        self.recent_deletions.append(now)
        return None
