"""The gate: how many requests may be under way at once, so that a crowd of slow ones cannot take all the memory.

Whoever comes when it is full is asked to come again in a second.  Watches do not count: they hold next to nothing; nor
do masters and probes, who must get in when nobody else does.
"""

from dataclasses import dataclass, field

from tapestry.apiserver import refusals

READING, WRITING = "readOnly", "mutating"


@dataclass(frozen=True)
class Gate:
    """Two bounds, for reads and for writes; 0 is none."""

    bounds: dict[str, int]
    under_way: dict[str, int] = field(default_factory=lambda: {READING: 0, WRITING: 0})

    def enter(self, method: str, *, exempt: bool = False) -> str:
        """As what a request is let in, until it leaves; raises TooManyRequests where there is no room for it."""
        kind = READING if method in ("GET", "HEAD", "OPTIONS") else WRITING
        bound = self.bounds.get(kind, 0)
        if bound and self.under_way[kind] >= bound and not exempt:
            raise refusals.too_many_requests()
        self.under_way[kind] += 1
        return kind

    def leave(self, kind: str) -> None:
        self.under_way[kind] -= 1
