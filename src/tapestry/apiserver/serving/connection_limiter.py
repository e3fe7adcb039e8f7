"""Clients: who has how many connections, and which of them has to go when there are too many.

A connection is unknown until a request on it is authenticated.  When too many are unknown, the oldest one of the
address with the most of them is closed: a client that sends its request at once gets its answer, however many others
hold connections open.  From then on the connection is its user's, and each user has a bound; masters have none.  The
connections of watches count as all others, so that the bound is one for watches, too.
"""

import ipaddress
from functools import lru_cache
from typing import Protocol

from tapestry.apiserver import api_errors
from tapestry.apiserver.serving.metrics import CONNECTIONS_REFUSED

MAX_CONNECTIONS, MAX_PER_USER, MAX_UNAUTHENTICATED = 10_000, 2_000, 1_000


class ClientConnection(Protocol):
    """One client's."""

    peer: str
    """Its address."""
    owner: str
    """The user whose it is; empty while it is unknown."""

    @property
    def is_idle(self) -> bool: ...

    def abort(self) -> None: ...


class ConnectionLimiter:
    """The clients of a server, over all of its listeners."""

    def __init__(
        self,
        max_connections: int = MAX_CONNECTIONS,
        max_per_user: int = MAX_PER_USER,
        max_unauthenticated: int = MAX_UNAUTHENTICATED,
    ) -> None:
        self._max_connections, self._max_per_user, self._max_unauthenticated = (
            max_connections,
            max_per_user,
            max_unauthenticated,
        )
        self._unauthenticated_by_network: dict[str, dict[ClientConnection, None]] = {}
        """By address, the oldest first."""
        self._connections_by_user: dict[str, dict[ClientConnection, None]] = {}
        """By user, likewise."""
        self.unauthenticated = self.authenticated = 0

    def add(self, connection: ClientConnection) -> None:
        """Count a new connection, at the cost of an older unknown one where there are too many."""
        self._unauthenticated_by_network.setdefault(client_network(connection.peer), {})[connection] = None
        self.unauthenticated += 1
        if self.unauthenticated > self._max_unauthenticated:
            largest = max(self._unauthenticated_by_network.values(), key=len)
            self._close(next((each for each in largest if each.is_idle), next(iter(largest))), "unauthenticated")

    @property
    def counts(self) -> dict[str, int]:
        """How many there are, for metrics."""
        return {"authenticated": self.authenticated, "unauthenticated": self.unauthenticated}

    def remove(self, connection: ClientConnection) -> None:
        """Forget a connection; nothing happens the second time."""
        counts, key = (
            (self._connections_by_user, connection.owner)
            if connection.owner
            else (self._unauthenticated_by_network, client_network(connection.peer))
        )
        group = counts.get(key)
        if group is None or connection not in group:
            return
        del group[connection]
        if not group:
            del counts[key]
        if connection.owner:
            self.authenticated -= 1
        else:
            self.unauthenticated -= 1

    def assign(self, connection: ClientConnection, user: str, *, exempt: bool = False) -> None:
        """Make a connection a user's; raises TooManyRequests where that user, or all together, have enough."""
        if connection.owner == user:
            return
        own = self._connections_by_user.get(user, {})
        if not exempt and (len(own) >= self._max_per_user or self.authenticated >= self._max_connections):
            idle = next((each for each in own if each.is_idle), None)
            if idle is None:
                CONNECTIONS_REFUSED.labels("user" if len(own) >= self._max_per_user else "total").inc()
                raise api_errors.too_many_requests()
            self._close(idle, "user")
        self.remove(connection)
        connection.owner = user
        self._connections_by_user.setdefault(user, {})[connection] = None
        self.authenticated += 1

    def _close(self, connection: ClientConnection, why: str) -> None:
        CONNECTIONS_REFUSED.labels(why).inc()
        self.remove(connection)
        connection.abort()


@lru_cache(maxsize=4096)
def client_network(peer: str) -> str:
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
