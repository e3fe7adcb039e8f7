"""The API of virtual clusters through the service: `/v1/vclusters/{id}/k8s/` for kubectl with an access key.

The plane handles a request in this process, with its own limits on bodies, watches, sessions and concurrent requests,
as the user that a kubeconfig of the caller names. Of the headers of a request, it gets only those that it needs: no
credentials and no impersonation. For exec, attach and port-forward, the plane takes over the connection of the client.
"""

import asyncio
import re
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import unquote

from aiohttp import hdrs, web

from tapestry.apiserver.access.authentication import Credentials, UnionAuthenticator
from tapestry.apiserver.core.responses import status_response
from tapestry.apiserver.serving.connection_limiter import ConnectionLimiter
from tapestry.apiserver.serving.http_connection import Exchange, HttpConnection
from tapestry.apiserver.serving.http_handler import send_response
from tapestry.kube.errors import ApiError
from tapestry.kube.objects import Object
from tapestry.planes.forwarding import ForwardTarget
from tapestry.streams.connection import SocketConnection, enable_keepalive
from tapestry.vclusters.access.roles import Caller
from tapestry.vclusters.errors import not_found, permission_denied, unavailable
from tapestry.vclusters.gateway import Outcome
from tapestry.vclusters.vcluster_kubeconfigs import VClusterKubeconfigs

PROXIED_PATH = re.compile("(/v1/vclusters/([^/]+)/k8s)(/.*)?", re.DOTALL)
REQUEST_HEADERS = ("accept", "accept-encoding", "content-encoding", "content-length", "content-type", "user-agent")
"""Headers that planes get. The others are about the connection, about credentials, or for other servers."""
UPGRADE_HEADERS = (
    *("connection", "upgrade", "x-stream-protocol-version"),
    *("sec-websocket-key", "sec-websocket-version", "sec-websocket-protocol"),
)
"""Headers that planes get, too, of a request that upgrades its connection."""
WEBSOCKET_TOKEN = "base64url.bearer.authorization.k8s.io."
"""Start of a WebSocket subprotocol that is a credential."""
HTTP2 = "h2c"
"""Upgrade that clients offer with any request, and that is declined."""
SET_COOKIE = "set-cookie"
RESPONSE_HEADERS = {"Content-Security-Policy": "sandbox", "X-Content-Type-Options": "nosniff"}
"""A pod may answer a browser with a web page, which must not act in the origin of the service."""


@dataclass(frozen=True)
class ProxiedPath:
    base: str
    """Path of the service under which the API of the virtual cluster is."""
    id: str
    path: str
    """Path in the API of the virtual cluster, percent-encoded."""


def proxied_path(raw_path: str) -> ProxiedPath | None:
    """Return the parts of a path below that of a virtual cluster, or None for all other paths."""
    found = PROXIED_PATH.fullmatch(raw_path)
    return ProxiedPath(found[1], unquote(found[2], errors="replace"), found[3] or "/") if found is not None else None


@dataclass(eq=False)
class ProxiedConnection:
    """The connection of a proxied request, as far as the limits of a plane need one. It has one request."""

    request: web.Request
    peer: str
    owner: str = ""
    limiter: ConnectionLimiter | None = None
    task: asyncio.Task[None] | None = None
    is_idle: bool = False
    tls: None = None

    def upgrade(self, head: bytes) -> SocketConnection:
        """Send the head of the response, and take the connection from the listener of the service."""
        transport = self.request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has disconnected")
        if (sock := transport.get_extra_info("socket")) is not None:
            enable_keepalive(sock)
        upgraded = SocketConnection.take_over(transport)
        transport.write(head)
        return upgraded

    def terminate(self) -> None:
        if self.task is not None:
            self.task.cancel()

    abort = close = terminate

    def drop_client(self) -> None:
        """Close the connection of the client, which so learns that a response is not complete."""
        if self.request.transport is not None:
            self.request.transport.abort()


class ProxiedExchange(Exchange):
    """A request to the service as a request to a plane."""

    __slots__ = ("_request", "proxied", "response")

    def __init__(self, request: web.Request, proxied: ProxiedPath) -> None:
        connection = ProxiedConnection(request, request.remote or "")
        super().__init__(cast(HttpConnection, connection))
        self._request, self.proxied = request, connection
        self.response: web.StreamResponse | None = None
        self.method, self.version, self.base_path = request.method, "1.1", proxied.base
        query = request.rel_url.raw_query_string
        target = f"{proxied.path}?{query}" if query else proxied.path
        self.target = target.encode("utf-8", "surrogateescape")
        self.is_complete = not request.can_read_body
        self.is_upgrade = self.is_complete and is_upgrade(request)
        self.header_pairs = list(header_pairs(request, (*REQUEST_HEADERS, *UPGRADE_HEADERS * self.is_upgrade)))
        self.headers = dict(reversed(self.header_pairs))

    @property
    def is_write_blocked(self) -> bool:
        return False

    async def read(self) -> bytes:
        return await self._request.content.readany()

    def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.is_response_started = True
        self.response = web.Response(status=status, headers=response_headers(headers), body=body)

    async def send_large(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send(status, headers, body)

    async def start_stream(self, status: int, headers: Mapping[str, str]) -> None:
        self.is_response_started = True
        self.response = web.StreamResponse(status=status, headers=response_headers(headers))
        await self.response.prepare(self._request)

    async def send_chunk(self, data: bytes) -> None:
        if data and self.response is not None and self.method != hdrs.METH_HEAD:
            await self.response.write(data)

    def upgrade(self, headers: Mapping[str, str]) -> SocketConnection:
        self.response = UpgradedResponse(self._request)
        return super().upgrade(response_headers(headers))

    def end_stream(self) -> None:
        """Do nothing: the listener of the service ends the response."""

    def abort(self) -> None:
        self.proxied.drop_client()


class UpgradedResponse(web.StreamResponse):
    """The response of a request whose connection a plane has used up."""

    def __init__(self, request: web.Request) -> None:
        super().__init__(status=101)
        self._upgrade_request = request
        self.force_close()

    async def prepare(self, _: web.BaseRequest) -> None:
        """Do nothing: the head was sent when the connection was taken over."""

    async def write_eof(self, _: bytes = b"") -> None:
        """Tell the listener, which no longer sees the connection, to close it and to stop counting it."""
        asyncio.get_running_loop().call_soon(self._upgrade_request.protocol.connection_lost, None)


def is_upgrade(request: web.BaseRequest) -> bool:
    """Return whether the client requests that its connection becomes another protocol than HTTP."""
    connection = ",".join(request.headers.getall(hdrs.CONNECTION, ())).lower()
    protocol = request.headers.get(hdrs.UPGRADE, "").lower()
    return "upgrade" in map(str.strip, connection.split(",")) and protocol not in ("", HTTP2)


def header_pairs(request: web.Request, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the headers with these names, without credentials."""
    for name in names:
        for value in request.headers.getall(name, ()):
            if name == "sec-websocket-protocol":
                protocols = map(str.strip, value.split(","))
                value = ", ".join(each for each in protocols if not each.startswith(WEBSOCKET_TOKEN))
            yield name, value


def check_origin(request: web.Request) -> None:
    """Raise ServiceError for the upgrade of a web page of another origin.

    A browser sends a client certificate for any page, and lets each page use a WebSocket.
    """
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is not None and origin.partition("://")[2] != request.host:
        raise permission_denied("connect", "a web page of another origin")


def response_headers(headers: Mapping[str, str]) -> dict[str, str]:
    without_cookies = {name: value for name, value in headers.items() if name.lower() != SET_COOKIE}
    return {**without_cookies, **RESPONSE_HEADERS}


async def run_terminable(exchange: ProxiedExchange, work: Coroutine[Any, Any, None]) -> None:
    """Handle a request in a task that the plane cancels when it closes."""
    connection = exchange.proxied
    async with asyncio.TaskGroup() as group:
        connection.task = group.create_task(run_counted(connection, work))
    if connection.task.cancelled():
        connection.drop_client()


async def run_counted(connection: ProxiedConnection, work: Coroutine[Any, Any, None]) -> None:
    """Handle a request, and then free the place of its connection."""
    try:
        with suppress(ConnectionError):  # the client has gone
            await work
    finally:
        if connection.limiter is not None:
            connection.limiter.remove(connection)


@dataclass(frozen=True)
class VClusterProxy:
    """Proxy to virtual clusters: to the planes of this process, and to the processes that hold the others."""

    kubeconfigs: VClusterKubeconfigs

    async def answer(
        self, request: web.Request, proxied: ProxiedPath, caller: Caller, outcome: Outcome
    ) -> web.StreamResponse:
        """Answer a request of a caller that may make it. Raises ServiceError if the plane does not get it."""
        if is_upgrade(request):
            check_origin(request)
        vcluster = self.kubeconfigs.with_id(proxied.id)
        if vcluster is None:
            raise not_found("VCluster", proxied.id)
        exchange = ProxiedExchange(request, proxied)
        try:
            work = await self._work(exchange, vcluster, caller)
        except ApiError as error:
            raise unavailable(error.message) from error
        try:
            await run_terminable(exchange, work)
        finally:
            outcome.http_status = exchange.response.status if exchange.response is not None else 0
        if exchange.response is None:
            raise unavailable("the control plane is closing; try again later")
        if is_upgrade(request):
            exchange.response.force_close()  # what a client has sent already may be no HTTP
        return exchange.response

    async def _work(self, exchange: ProxiedExchange, vcluster: Object, caller: Caller) -> Coroutine[Any, Any, None]:
        """Return the handling of a request by its plane. Raises ApiError, and ServiceError."""
        target = await self.kubeconfigs.elsewhere(vcluster, caller)
        if target is not None:
            return self._forward(exchange, target)
        plane, user = await self.kubeconfigs.open_as(vcluster, caller)
        handler = replace(plane.opened.http_handler, authenticate=UnionAuthenticator([lambda _: user]))
        return handler.handle(exchange, Credentials())

    async def _forward(self, exchange: ProxiedExchange, target: ForwardTarget) -> None:
        try:
            await self.kubeconfigs.holders.forwarder.forward(exchange, target)
        except ApiError as error:
            send_response(exchange, status_response(error))
