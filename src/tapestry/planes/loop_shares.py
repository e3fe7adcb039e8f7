"""Shares of the planes in an event loop.

Each plane may use a quarter of the time. It may use more while the planes that use less than a quarter, the small ones,
need little: the rest without ten times the share of all small planes. Otherwise each of their many short steps would
wait for the work of a busy plane. Planes that use more than a quarter do not count for each other.
"""

from tapestry.process.work_meter import WorkMeter

GUARANTEED_SHARE = 0.25
"""Share of the time that a plane may use in any case."""
RESERVE = 10
"""Multiple of the share of all small planes that a plane leaves free beyond its guaranteed share."""


class LoopShares:
    """Recent shares of the planes, of which each is an exponentially weighted average."""

    def __init__(self) -> None:
        self.total = WorkMeter()
        """Work of all planes."""
        self._large: set[WorkMeter] = set()
        """Planes that use more than the guaranteed share."""

    def used_part(self, plane: WorkMeter, now: int) -> float:
        """Return what a plane has recently used, as a part of its share: over 1 if it has used more."""
        own, small = plane.update_share(now), self.total.update_share(now)
        if own > GUARANTEED_SHARE:
            self._large.add(plane)
        small -= own
        for each in [each for each in self._large if each is not plane]:
            share = each.update_share(now)
            if share > GUARANTEED_SHARE:
                small -= share
            else:
                self._large.discard(each)
        return own / max(GUARANTEED_SHARE, 1.0 - RESERVE * small)
