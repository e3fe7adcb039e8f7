"""Limits on the number of client connections, in total and per user.

A connection is unauthenticated until a request on it is authenticated. When there are too many unauthenticated
connections, the oldest one of the network with the most of them is closed. So a client that sends its request at
once is served, however many idle connections others hold open. An authenticated connection belongs to its user, and
each user has a limit, except for members of system:masters. Watches count like all other connections.
"""

import ipaddress
from functools import lru_cache
from typing import Protocol

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.serving.metrics import CONNECTIONS_REFUSED

MAX_CONNECTIONS, MAX_PER_USER, MAX_UNAUTHENTICATED = 10_000, 2_000, 1_000


class ClientConnection(Protocol):
    peer: str
    """IP address of the client."""
    owner: str
    """Name of the user; empty while unauthenticated."""

    @property
    def is_idle(self) -> bool: ...

    def abort(self) -> None: ...


class ConnectionLimiter:
    """Connections of a server, over all of its listeners."""

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
        """Connections by network, oldest first."""
        self._connections_by_user: dict[str, dict[ClientConnection, None]] = {}
        """Connections by user, oldest first."""
        self.unauthenticated = self.authenticated = 0

    def add(self, connection: ClientConnection) -> None:
        """Count a new connection; if there are too many, close an older unauthenticated one."""
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
            self.authenticated -= 1
        else:
            self.unauthenticated -= 1

    def assign(self, connection: ClientConnection, user: str, *, exempt: bool = False) -> None:
        """Assign a connection to a user. Raises TooManyRequests if the user or the server has too many."""
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
