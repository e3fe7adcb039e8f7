"""Limits on concurrent sessions: streams into pods and proxied requests, in total and per user.

A session lasts as long as its client wants and holds a connection to another server. So the limit per user is lower
than the limit on connections. Members of system:masters are exempt, from the total only if it is not strict.
"""

from dataclasses import dataclass, field

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.requests import MASTERS_GROUP, User
from tapestry.kube.errors import TooManyRequests


@dataclass(eq=False)
class SessionSlot:
    """A counted session."""

    limiter: "SessionLimiter"
    user: str
    is_released: bool = False

    def release(self) -> None:
        """Stop counting the session. Calling it again has no effect."""
        if not self.is_released:
            self.is_released = True
            self.limiter.remove(self.user)


@dataclass
class SessionLimiter:
    max_sessions: int
    max_sessions_per_user: int
    total: int = 0
    sessions_by_user: dict[str, int] = field(default_factory=dict)
    is_strict: bool = False
    """Apply the total also to exempt users."""

    def acquire(self, user: User) -> SessionSlot:
        """Count a new session. Raises TooManyRequests if the user or the server has too many."""
        own = self.sessions_by_user.get(user.name, 0)
        is_exempt = MASTERS_GROUP in user.groups
        if not is_exempt and own >= self.max_sessions_per_user:
            raise too_many_sessions(f"user {user.name} has {own} sessions, which is the limit per user")
        if (not is_exempt or self.is_strict) and self.total >= self.max_sessions:
            raise too_many_sessions(f"the server has {self.total} sessions, which is its limit")
        self.total += 1
        self.sessions_by_user[user.name] = own + 1
        return SessionSlot(self, user.name)

    def remove(self, user: str) -> None:
        self.total -= 1
        remaining = self.sessions_by_user[user] - 1
        if remaining:
            self.sessions_by_user[user] = remaining
        else:
            del self.sessions_by_user[user]


def too_many_sessions(why: str) -> TooManyRequests:
    error = api_errors.too_many_requests()
    return TooManyRequests(error.code, error.reason, f"{why}: end one and try again", details=error.details)
