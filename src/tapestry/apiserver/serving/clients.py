"""Clients: who has how many connections, and which of them has to go when there are too many.

A connection is unknown until a request on it is authenticated.  When too many are unknown, the oldest one of the
address with the most of them is closed: a client that sends its request at once gets its answer, however many others
hold connections open.  From then on the connection is its user's, and each user has a bound; masters have none.  The
connections of watches count as all others, so that the bound is one for watches, too.
"""

import ipaddress
from functools import lru_cache
from typing import Protocol

from tapestry.apiserver import refusals
from tapestry.apiserver.serving.metrics import CLOSED

MOST_CONNECTIONS, MOST_PER_USER, MOST_UNKNOWN = 10_000, 2_000, 1_000


class Connection(Protocol):
    """One client's."""

    peer: str
    """Its address."""
    owner: str
    """The user whose it is; empty while it is unknown."""

    @property
    def is_idle(self) -> bool: ...

    def abort(self) -> None: ...


class Clients:
    """The clients of a server, over all of its listeners."""

    def __init__(
        self, most: int = MOST_CONNECTIONS, per_user: int = MOST_PER_USER, unknown: int = MOST_UNKNOWN
    ) -> None:
        self._most, self._per_user, self._most_unknown = most, per_user, unknown
        self._unknown: dict[str, dict[Connection, None]] = {}
        """By address, the oldest first."""
        self._known: dict[str, dict[Connection, None]] = {}
        """By user, likewise."""
        self.unknown = self.known = 0

    def arrived(self, connection: Connection) -> None:
        """Count a new connection, at the cost of an older unknown one where there are too many."""
        self._unknown.setdefault(network_of(connection.peer), {})[connection] = None
        self.unknown += 1
        if self.unknown > self._most_unknown:
            largest = max(self._unknown.values(), key=len)
            self._close(next((each for each in largest if each.is_idle), next(iter(largest))), "unauthenticated")

    @property
    def states(self) -> dict[str, int]:
        """How many there are, for metrics."""
        return {"authenticated": self.known, "unauthenticated": self.unknown}

    def left(self, connection: Connection) -> None:
        """Forget a connection; nothing happens the second time."""
        counts, key = (
            (self._known, connection.owner) if connection.owner else (self._unknown, network_of(connection.peer))
        )
        group = counts.get(key)
        if group is None or connection not in group:
            return
        del group[connection]
        if not group:
            del counts[key]
        if connection.owner:
            self.known -= 1
        else:
            self.unknown -= 1

    def claim(self, connection: Connection, user: str, *, exempt: bool = False) -> None:
        """Make a connection a user's; raises TooManyRequests where that user, or all together, have enough."""
        if connection.owner == user:
            return
        own = self._known.get(user, {})
        if not exempt and (len(own) >= self._per_user or self.known >= self._most):
            idle = next((each for each in own if each.is_idle), None)
            if idle is None:
                CLOSED.labels("user" if len(own) >= self._per_user else "total").inc()
                raise refusals.too_many_requests()
            self._close(idle, "user")
        self.left(connection)
        connection.owner = user
        self._known.setdefault(user, {})[connection] = None
        self.known += 1

    def _close(self, connection: Connection, why: str) -> None:
        CLOSED.labels(why).inc()
        self.left(connection)
        connection.abort()


@lru_cache(maxsize=4096)
def network_of(peer: str) -> str:
    """What one client can choose its addresses from: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if address.version == 4:
        return peer
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
