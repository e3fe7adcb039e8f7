"""The gate: how many requests may be under way at once, so that a crowd of slow ones cannot take all the memory.

Whoever comes when it is full is asked to come again in a second; so is a user who has half of it already.  Watches do
not count: they hold next to nothing, and connections are counted elsewhere (`clients`); nor do masters and probes, who
must get in when nobody else does.
"""

from dataclasses import dataclass, field

from tapestry.apiserver import refusals

READING, WRITING = "readOnly", "mutating"
READS = frozenset({"GET", "HEAD", "OPTIONS"})

Seat = tuple[str, str]
"""The kind of a request that was let in, and the name of its user."""


@dataclass(frozen=True)
class Gate:
    """Two bounds, for reads and for writes; 0 is none."""

    bounds: dict[str, int]
    under_way: dict[str, int] = field(default_factory=lambda: {READING: 0, WRITING: 0})
    seats: dict[Seat, int] = field(default_factory=dict)
    """How many each user has of each kind."""

    def enter(self, method: str, user: str = "", *, exempt: bool = False) -> Seat:
        """Let a request in, until it leaves; raises TooManyRequests where there is no room for it."""
        kind = READING if method in READS else WRITING
        bound, seat = self.bounds.get(kind, 0), (kind, user)
        taken = self.seats.get(seat, 0)
        if bound and not exempt and (self.under_way[kind] >= bound or taken >= (bound + 1) // 2):
            raise refusals.too_many_requests()
        self.under_way[kind] += 1
        self.seats[seat] = taken + 1
        return seat

    def leave(self, seat: Seat) -> None:
        self.under_way[seat[0]] -= 1
        left = self.seats[seat] - 1
        if left:
            self.seats[seat] = left
        else:
            del self.seats[seat]
