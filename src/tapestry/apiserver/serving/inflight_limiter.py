"""Limits on concurrent requests, so that many slow requests cannot exhaust memory.

A request over the limit gets 429 with a retry after one second. One user gets at most half of the limit. Watches have a
limit of their own. Members of system:masters and probes are exempt, so that they always get through. In strict limits,
they are exempt only from the share of a user.
"""

from dataclasses import dataclass, field

from tapestry.apiserver.core import api_errors
from tapestry.kube.errors import TooManyRequests

READ_ONLY, MUTATING = "readOnly", "mutating"
READ_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

InflightSlot = tuple[str, str]
"""Kind of an accepted request, and the name of its user."""


@dataclass(frozen=True)
class InflightLimiter:
    """Limits for reads and for writes; 0 means no limit."""

    limits: dict[str, int]
    inflight: dict[str, int] = field(default_factory=lambda: {READ_ONLY: 0, MUTATING: 0})
    inflight_by_user: dict[InflightSlot, int] = field(default_factory=dict)
    """Number of requests per kind and user."""
    is_strict: bool = False
    """Apply the limits also to exempt requests."""

    def acquire(self, method: str, user: str = "", *, exempt: bool = False) -> InflightSlot:
        """Take a slot for a request. Raises TooManyRequests if the limit is reached."""
        kind = READ_ONLY if method in READ_METHODS else MUTATING
        limit, slot = self.limits.get(kind, 0), (kind, user)
        used = self.inflight_by_user.get(slot, 0)
        is_full = self.inflight[kind] >= limit and (self.is_strict or not exempt)
        if limit and (is_full or (not exempt and used >= (limit + 1) // 2)):
            raise api_errors.too_many_requests()
        self.inflight[kind] += 1
        self.inflight_by_user[slot] = used + 1
        return slot

    def release(self, slot: InflightSlot) -> None:
        self.inflight[slot[0]] -= 1
        remaining = self.inflight_by_user[slot] - 1
        if remaining:
            self.inflight_by_user[slot] = remaining
        else:
            del self.inflight_by_user[slot]


@dataclass
class WatchLimiter:
    """Limit on watches and other requests that last as long as their client wants, for all users."""

    limit: int = 0
    """0 means no limit."""
    open: int = 0

    def acquire(self) -> None:
        """Count a watch. Raises TooManyRequests if the limit is reached."""
        if 0 < self.limit <= self.open:
            error = api_errors.too_many_requests()
            message = (
                f"the server has {self.open} watches, which is its limit: close some, or ask its operator for a "
                "higher limit"
            )
            raise TooManyRequests(error.code, error.reason, message, details=error.details)
        self.open += 1

    def release(self) -> None:
        self.open -= 1
