"""Tracker of twins whose pods are deleted: confirmation of orphans and a limit of their deletion rate.

A pod that is missing once may be a cache error, and a thousand missing pods may be a mistake. So a twin is deleted only
after a second sighting, and only a limited number per minute. If the deletion of the pod was observed, that was the
first sighting, and the limit does not apply.
"""

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta

CONFIRMATION_DELAY = timedelta(seconds=10)
"""Time after which a twin that still has no pod is an orphan."""
MAX_DELETIONS, DELETION_PERIOD = 100, timedelta(minutes=1)
"""Maximum number of orphans that are deleted within that period."""


@dataclass(frozen=True)
class OrphanTracker:
    """Sightings of twins without pods, by the twins' UIDs."""

    first_seen: dict[str, datetime | None] = field(default_factory=dict)
    """None if the deletion of the pod was observed."""
    recent_deletions: deque[datetime] = field(default_factory=deque)
    """Times of the recent deletions of other orphans."""

    def mark_pod_deleted(self, uid: str) -> None:
        """Record that the deletion of the twin's pod was observed."""
        self.first_seen[uid] = None

    def forget(self, uid: str) -> None:
        self.first_seen.pop(uid, None)

    def record_sighting(self, uid: str, now: datetime) -> datetime | None:
        """Record that the twin has no pod; return when to check again, or None if it must be deleted now."""
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
