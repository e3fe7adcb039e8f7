"""The listener of planes: finds the plane of each request, and opens it if it is asleep.

Only a request with credentials of the plane opens it or learns its state. All other requests for a plane that is not
open get the same response as requests for an unknown plane.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from typing import NamedTuple
from weakref import WeakKeyDictionary

from cryptography import x509

from tapestry.apiserver.access.authentication import Credentials
from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.responses import status_response
from tapestry.apiserver.serving.connection_limiter import ConnectionLimiter
from tapestry.apiserver.serving.http_connection import Exchange
from tapestry.apiserver.serving.http_handler import IDLE_SECONDS, Subject, credentials_with, send_response
from tapestry.apiserver.serving.http_server import HandOver, HttpServer
from tapestry.kube.errors import ApiError, Unavailable
from tapestry.planes.open_plane import OpenPlane
from tapestry.planes.plane_credentials import PlaneCredentials, unknown_plane_authenticator
from tapestry.planes.plane_names import MISDIRECTED, route_of
from tapestry.planes.plane_set import PlaneEntry, PlaneSet, PlaneState
from tapestry.planes.plane_tls import PlaneTls
from tapestry.process.logs import logger

log = logger(__name__)

HOLD_SECONDS = 5.0
"""Seconds that a request waits for its plane to open."""
CLOSING_CODES = frozenset({401, MISDIRECTED})
"""Codes after which the connection is closed: a load balancer may know another process that holds the plane."""
RETRY_SECONDS = 1
"""Seconds after which a client may repeat a request for a plane that is opening."""
RELOAD_SECONDS = 10.0
"""Seconds after which credentials that could not be loaded are tried again."""


class LoadedCredentials(NamedTuple):
    """Credentials of a plane with this configuration; None if they could not be loaded."""

    credentials: PlaneCredentials | None
    config: ApiServerConfig
    retry_at: float


class PlaneListener:
    """Listen for all planes on one port, and for single planes on their own ports."""

    def __init__(
        self,
        planes: PlaneSet,
        tls: PlaneTls,
        group: asyncio.TaskGroup,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        hold_seconds: float = HOLD_SECONDS,
    ) -> None:
        """`group` owns the tasks of requests. Close the planes and stop the HTTP servers before the group ends."""
        self._planes, self._tls, self._group, self._now, self._hold_seconds = planes, tls, group, now, hold_seconds
        self._connection_limiter = ConnectionLimiter()
        """Counts connections until a plane authenticates a request on them."""
        self._credentials: WeakKeyDictionary[PlaneEntry, LoadedCredentials] = WeakKeyDictionary()
        self._authenticate_unknown = unknown_plane_authenticator(now)
        self.forward: Callable[[Exchange, str], Awaitable[bool]] = forward_nothing
        """Pass a request to the process of its plane, by the id of the plane. Return whether it has one."""

    async def listen(self, host: str, port: int, plane_id: str = "", hand_over: HandOver | None = None) -> HttpServer:
        """Listen for all planes, or for one plane that has this port for itself. Raises OSError.

        `hand_over` passes connections to other processes.
        """
        http_server = HttpServer(self.handle, self._group, IDLE_SECONDS, self._connection_limiter, hand_over)
        await http_server.start(host, port, self._tls.listener_context(plane_id))
        return http_server

    async def handle(self, exchange: Exchange) -> None:
        try:
            found = await self._plane_for(exchange)
        except ApiError as error:
            exchange.keep_alive = exchange.keep_alive and error.code not in CLOSING_CODES
            send_response(exchange, status_response(error))
            return
        if found is not None:
            plane, credentials = found
            await plane.opened.http_handler.handle(exchange, credentials)

    async def _plane_for(self, exchange: Exchange) -> tuple[OpenPlane, Credentials] | None:
        """Return the open plane of a request, and the credentials of the request. Raises ApiError.

        Return None if another process has answered the request.
        """
        connection = exchange.connection
        connection_plane = self._tls.plane_of(connection.tls)
        route = route_of(exchange.target, exchange.headers.get("host", ""), connection_plane, self._tls.names)
        exchange.target, exchange.base_path = route.target, route.base_path
        entry = self._planes.get(route.plane_id)
        certificate = self._certificate(exchange, entry) if entry is not None and connection_plane else {}
        credentials = credentials_with(exchange, certificate)
        if entry is None:
            if credentials.bearer_token and not connection_plane and await self.forward(exchange, route.plane_id):
                return None
            self._authenticate_unknown(credentials)
            raise api_errors.unauthorized()
        plane = entry.plane
        if plane is None:
            plane = await self._opened_plane(entry, credentials)
        limiter = plane.opened.http_handler.connection_limiter
        if limiter.is_full and connection.limiter is not limiter:  # members of system:masters have no own limit
            exchange.keep_alive = False
            raise api_errors.too_many_requests()
        return plane, credentials

    def _certificate(self, exchange: Exchange, entry: PlaneEntry) -> Subject | None:
        """Return the client certificate of a connection that is only for this plane."""

        def client_cas() -> list[x509.Certificate]:
            loaded = self._loaded_credentials(entry)
            return loaded.client_cas if loaded is not None else []

        tls = exchange.connection.tls
        return self._tls.peer_subject(tls, client_cas) if tls is not None else {}

    async def _opened_plane(self, entry: PlaneEntry, credentials: Credentials) -> OpenPlane:
        """Open a plane for an authenticated request. Raises Unauthorized, or Unavailable with the state."""
        accepted = self._loaded_credentials(entry)
        (accepted.authenticate if accepted is not None else self._authenticate_unknown)(credentials)
        return await woken(self._planes, entry, self._hold_seconds)

    def _loaded_credentials(self, entry: PlaneEntry) -> PlaneCredentials | None:
        loop_time, loaded = asyncio.get_running_loop().time(), self._credentials.get(entry)
        if loaded is not None and loaded.config is entry.config and loop_time < loaded.retry_at:
            return loaded.credentials
        credentials, retry_at = None, loop_time + RELOAD_SECONDS
        try:
            credentials, retry_at = PlaneCredentials(entry.config, self._now), inf
        except (OSError, ValueError) as error:
            log.warning("plane credentials unreadable", plane=entry.id, error=str(error))
        self._credentials[entry] = LoadedCredentials(credentials, entry.config, retry_at)
        return credentials


async def forward_nothing(_: Exchange, __: str) -> bool:
    return False


async def woken(planes: PlaneSet, entry: PlaneEntry, hold_seconds: float = HOLD_SECONDS) -> OpenPlane:
    """Return a plane, opened if it is asleep. Raises Unavailable with its state if it is not open in time."""
    if entry.plane is not None:
        return entry.plane
    with suppress(TimeoutError):
        async with asyncio.timeout(hold_seconds):
            if (plane := await planes.wake(entry)) is not None:
                return plane
    raise unavailable(entry)


def unavailable(entry: PlaneEntry) -> Unavailable:
    """Return the error for an authenticated request to a plane that is not open."""
    details = {}
    match entry.state:
        case PlaneState.SUSPENDED:
            message = f"the plane is suspended: {entry.message}" if entry.message else "the plane is suspended"
        case PlaneState.FAILED:  # the message is for operators
            message = "the plane could not be opened; its operator can see why"
        case _:
            message, details = "the plane is not open yet; try again", {"retryAfterSeconds": RETRY_SECONDS}
    return Unavailable(503, "ServiceUnavailable", message, details=details)
