"""Limits on the number of client connections, in total and per user.

A connection is unauthenticated until a request on it is authenticated. When there are too many unauthenticated
connections, the oldest one of the network with the most of them is closed. So a client that sends its request at
once is served, however many idle connections others hold open. An authenticated connection belongs to its user, and
each user has a limit, except for members of system:masters. Watches count like all other connections.

Servers that share a listener have their own limiters. The listener's limiter counts unauthenticated connections. A
connection whose last request was for another server counts there. Such servers also share the number of connections of
their process, which holds for members of system:masters too, because they have no rights in the other servers.
"""

import ipaddress
from functools import lru_cache
from typing import Protocol

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.shared_capacity import SharedCapacity
from tapestry.apiserver.serving.metrics import CONNECTIONS_REFUSED

MAX_CONNECTIONS, MAX_PER_USER, MAX_UNAUTHENTICATED = 10_000, 2_000, 1_000


class ClientConnection(Protocol):
    peer: str
    """IP address of the client."""
    owner: str
    """Name of the user; empty while unauthenticated."""
    limiter: "ConnectionLimiter | None"
    """The limiter that counts this connection."""

    @property
    def is_idle(self) -> bool: ...

    def abort(self) -> None:
        """Close the connection at once."""
        ...

    def close(self) -> None:
        """Close the connection after sending what was written."""
        ...


class ConnectionLimiter:
    """Connections of a server, over all of its listeners, or unauthenticated connections of a shared listener."""

    def __init__(
        self,
        max_connections: int = MAX_CONNECTIONS,
        max_per_user: int = MAX_PER_USER,
        max_unauthenticated: int = MAX_UNAUTHENTICATED,
        *,
        is_strict: bool = False,
        server: str = "",
        capacity: SharedCapacity | None = None,
    ) -> None:
        """Create the limits. `is_strict` applies the total also to exempt users.

        `capacity` is the number of connections that the servers of a process share; `server` is one of them.
        """
        self._is_strict = is_strict or capacity is not None
        self._server, self._capacity = server, capacity
        self._max_connections, self._max_per_user, self._max_unauthenticated = (
            max_connections,
            max_per_user,
            max_unauthenticated,
        )
        self._unauthenticated_by_network: dict[str, dict[ClientConnection, None]] = {}
        """Connections by network, oldest first."""
        self._connections_by_user: dict[str, dict[ClientConnection, None]] = {}
        """Connections by user, oldest first."""
        self.unauthenticated = self.authenticated = 0

    def add(self, connection: ClientConnection) -> None:
        """Count a new connection; if there are too many, close an older unauthenticated one."""
        connection.limiter = self
        self._unauthenticated_by_network.setdefault(client_network(connection.peer), {})[connection] = None
        self.unauthenticated += 1
        if self.unauthenticated > self._max_unauthenticated:
            largest = max(self._unauthenticated_by_network.values(), key=len)
            self._close(next((each for each in largest if each.is_idle), next(iter(largest))), "unauthenticated")

    @property
    def counts(self) -> dict[str, int]:
        """Number of connections by state, for metrics."""
        return {"authenticated": self.authenticated, "unauthenticated": self.unauthenticated}

    def remove(self, connection: ClientConnection) -> None:
        """Stop counting a connection. Calling it again has no effect."""
        groups, key = (
            (self._connections_by_user, connection.owner)
            if connection.owner
            else (self._unauthenticated_by_network, client_network(connection.peer))
        )
        group = groups.get(key)
        if group is None or connection not in group:
            return
        del group[connection]
        if not group:
            del groups[key]
        if connection.owner:
            self._count(-1)
        else:
            self.unauthenticated -= 1

    def assign(self, connection: ClientConnection, user: str, *, exempt: bool = False) -> None:
        """Assign a connection to a user. Raises TooManyRequests if the user or the server has too many."""
        if connection.limiter is self and connection.owner == user:
            return
        own = self._connections_by_user.get(user, {})
        is_over_share = len(own) >= self._max_per_user and not exempt
        if is_over_share or ((self._is_strict or not exempt) and self.is_full):
            idle = next((each for each in own if each.is_idle), None)
            if idle is None:
                CONNECTIONS_REFUSED.labels("user" if is_over_share else "total").inc()
                raise api_errors.too_many_requests()
            self._close(idle, "user")
        if connection.limiter is not None:
            connection.limiter.remove(connection)
        connection.limiter, connection.owner = self, user
        self._connections_by_user.setdefault(user, {})[connection] = None
        self._count(1)

    @property
    def is_full(self) -> bool:
        return self.authenticated >= self._max_connections or (
            self._capacity is not None and not self._capacity.has_capacity(self._server)
        )

    def _count(self, change: int) -> None:
        self.authenticated += change
        if self._capacity is not None and change > 0:
            self._capacity.acquire(self._server)
        elif self._capacity is not None:
            self._capacity.release(self._server)

    def close_authenticated(self) -> None:
        """Close all authenticated connections after sending what was written."""
        for connection in [each for group in self._connections_by_user.values() for each in group]:
            self.remove(connection)
            connection.close()

    def _close(self, connection: ClientConnection, why: str) -> None:
        CONNECTIONS_REFUSED.labels(why).inc()
        self.remove(connection)
        connection.abort()


@lru_cache(maxsize=4096)
def client_network(peer: str) -> str:
    """Return the range from which a client can choose its address: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if address.version == 4:
        return peer
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
