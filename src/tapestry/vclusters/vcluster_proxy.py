"""The API of virtual clusters through the service: `/v1/vclusters/{id}/k8s/` for kubectl with an access key.

The plane handles a request in this process, with its own limits on bodies, watches and concurrent requests, as the
user that a kubeconfig of the caller names. Of the headers of a request, it gets only those that it needs: no
credentials and no impersonation.
"""

import asyncio
import re
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import unquote

from aiohttp import hdrs, web

from tapestry.apiserver.access.authentication import Credentials, UnionAuthenticator
from tapestry.apiserver.serving.connection_limiter import ConnectionLimiter
from tapestry.apiserver.serving.http_connection import Exchange, HttpConnection
from tapestry.kube.errors import Unavailable
from tapestry.vclusters.access.roles import Caller
from tapestry.vclusters.errors import Code, ServiceError, not_found, unavailable
from tapestry.vclusters.vcluster_kubeconfigs import VClusterKubeconfigs

PROXIED_PATH = re.compile("(/v1/vclusters/([^/]+)/k8s)(/.*)?", re.DOTALL)
REQUEST_HEADERS = ("accept", "accept-encoding", "content-encoding", "content-length", "content-type", "user-agent")
"""Headers that planes get. The others are about the connection, about credentials, or for other servers."""
UPGRADES = frozenset({"websocket", "spdy/3.1"})
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
        self.headers = {name: request.headers[name] for name in REQUEST_HEADERS if name in request.headers}
        self.header_pairs = list(self.headers.items())
        self.is_complete = not request.can_read_body

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

    def end_stream(self) -> None:
        """Do nothing: the listener of the service ends the response."""

    def abort(self) -> None:
        self.proxied.drop_client()


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
    """Proxy to the virtual clusters whose planes this process holds."""

    kubeconfigs: VClusterKubeconfigs

    async def answer(self, request: web.Request, proxied: ProxiedPath, caller: Caller) -> web.StreamResponse:
        """Answer a request of a caller that may make it. Raises ServiceError if the plane does not get it."""
        if request.headers.get(hdrs.UPGRADE, "").lower() in UPGRADES:
            message = "exec, attach and port-forward need a connection to the virtual cluster; get a kubeconfig for it"
            raise ServiceError(Code.UNIMPLEMENTED, "UPGRADE_NOT_SUPPORTED", message)
        vcluster = self.kubeconfigs.with_id(proxied.id)
        if vcluster is None:
            raise not_found("VCluster", proxied.id)
        try:
            plane, user = await self.kubeconfigs.open_as(vcluster, caller)
        except Unavailable as error:
            raise unavailable(error.message) from error
        exchange = ProxiedExchange(request, proxied)
        handler = replace(plane.opened.http_handler, authenticate=UnionAuthenticator([lambda _: user]))
        await run_terminable(exchange, handler.handle(exchange, Credentials()))
        if exchange.response is None:
            raise unavailable("the control plane is closing; try again later")
        return exchange.response
