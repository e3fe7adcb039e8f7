"""The gate: how many requests may be under way at once, so that a crowd of slow ones cannot take all the memory.

Whoever comes when it is full is asked to come again in a second; so is a user who has half of it already.  Watches do
not count: they hold next to nothing, and connections are counted elsewhere (`clients`); nor do masters and probes, who
must get in when nobody else does.
"""

from dataclasses import dataclass, field

from tapestry.apiserver import api_errors

READ_ONLY, MUTATING = "readOnly", "mutating"
READ_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

InflightSlot = tuple[str, str]
"""The kind of a request that was let in, and the name of its user."""


@dataclass(frozen=True)
class InflightLimiter:
    """Two bounds, for reads and for writes; 0 is none."""

    limits: dict[str, int]
    inflight: dict[str, int] = field(default_factory=lambda: {READ_ONLY: 0, MUTATING: 0})
    inflight_by_user: dict[InflightSlot, int] = field(default_factory=dict)
    """How many each user has of each kind."""

    def acquire(self, method: str, user: str = "", *, exempt: bool = False) -> InflightSlot:
        """Let a request in, until it leaves; raises TooManyRequests where there is no room for it."""
        kind = READ_ONLY if method in READ_METHODS else MUTATING
        bound, seat = self.limits.get(kind, 0), (kind, user)
        taken = self.inflight_by_user.get(seat, 0)
        if bound and not exempt and (self.inflight[kind] >= bound or taken >= (bound + 1) // 2):
            raise api_errors.too_many_requests()
        self.inflight[kind] += 1
        self.inflight_by_user[seat] = taken + 1
        return seat

    def release(self, slot: InflightSlot) -> None:
        self.inflight[slot[0]] -= 1
        left = self.inflight_by_user[slot] - 1
        if left:
            self.inflight_by_user[slot] = left
        else:
            del self.inflight_by_user[slot]
