"""Requests that are forwarded to other servers, and their responses.

Used for the servers of APIServices and for the proxy subresources. Credentials of the user and headers that concern
only one connection are not forwarded.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

import aiohttp

from tapestry.apiserver.core.outgoing_http import os_error_text
from tapestry.apiserver.core.pod_sessions import CONNECT_SECONDS, OpenSocket
from tapestry.apiserver.core.requests import Call
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.kube.errors import ServerError, Unavailable
from tapestry.streams.connection import SocketConnection
from tapestry.streams.sockets import connection_on
from tapestry.streams.upgrade import UpgradeResponse, dial, request_upgrade

SAFE_PATH_CHARACTERS = "/:@!$&'()*+,;=~"
HOP_BY_HOP_HEADERS = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)
REQUEST_HEADERS_NOT_FORWARDED = HOP_BY_HOP_HEADERS | {
    *("authorization", "host", "content-length", "expect", "accept-encoding", "x-forwarded-for"),
}
CORS_HEADERS = {f"access-control-allow-{each}" for each in ("credentials", "headers", "methods", "origin")}
RESPONSE_HEADERS_NOT_FORWARDED = HOP_BY_HOP_HEADERS | CORS_HEADERS | {"date", "set-cookie", "content-type"}
PREFIXES_NOT_FORWARDED = ("x-remote-", "impersonate-")
"""Headers that state a user; servers may read underscores as hyphens."""
CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class UpgradeServer:
    """Server to which a connection is upgraded."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    check: Callable[[str], None]
    """Raise OSError for an address that must not be called."""
    name: str = ""
    """Name in its certificate, if it is not the host."""
    open_socket: OpenSocket | None = None
    """Function that connects the host and port, if the host is a name of `pod_sessions`."""

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(slots=True)
class ProxiedBody:
    """A response that is passed on as it arrives."""

    response: aiohttp.ClientResponse
    timeout: float | None = None
    """Seconds for the rest of the response; None for a response without a limit."""
    on_end: Callable[[], None] | None = None

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            async with asyncio.timeout(self.timeout):
                async for chunk in self.response.content.iter_any():
                    yield chunk
        except aiohttp.ClientError as error:  # the rest will not arrive: the connection to the client is aborted
            raise TimeoutError from error

    def end(self) -> None:
        self.response.close()
        if self.on_end is not None:
            self.on_end()


async def forward_upgrade(
    server: UpgradeServer, method: str, target: str, headers: Sequence[tuple[str, str]]
) -> UpgradeResponse:
    """Send an upgrade request to a server, and return its response. Raises ServerError if there is none."""
    lines = [*headers, ("Connection", "Upgrade")]
    try:
        connection = await connection_to(server)
        response = await request_upgrade(connection, method, target, lines)
    except (OSError, ValueError) as error:
        why = os_error_text(error, server.host, server.port) if isinstance(error, OSError) else ""
        raise ServerError(500, "", f"error dialing backend: {why or error or type(error).__name__}") from error
    if response.status < 400 and response.connection is None:
        raise ServerError(500, "", f"invalid upgrade response: status code {response.status}")
    return response


async def connection_to(server: UpgradeServer) -> SocketConnection:
    """Return a new connection to a server. Raises OSError."""
    if server.open_socket is None:
        return await dial(server.host, server.port, server.tls, server.check, server.name)
    async with asyncio.timeout(CONNECT_SECONDS):
        return await connection_on(await server.open_socket(server.host, server.port), server.tls, server.host)


def refused_upgrade(response: UpgradeResponse) -> ApiResponse:
    """Return the response of a server that has refused an upgrade, as it is."""
    return ApiResponse(response.status, response.body, response.headers.get("content-type", "text/plain"))


def is_forwarded(name: str) -> bool:
    """Return whether a header of a response is passed on; some are set again from other values."""
    return name not in RESPONSE_HEADERS_NOT_FORWARDED


def unreachable(why: str) -> Unavailable:
    return Unavailable(503, "ServiceUnavailable", f"error trying to reach service: {why}")


def request_target(call: Call, path: str) -> str:
    """Return a decoded path and the query of the call. The path is the authorized one, not the one that was sent."""
    query = call.uri.partition("?")[2] if call.uri else urlencode(call.query)
    encoded = quote(path, safe=SAFE_PATH_CHARACTERS)
    return f"{encoded}?{quote(query, safe='%' + SAFE_PATH_CHARACTERS + '?')}" if query else encoded


def forwarded_headers(call: Call, not_forwarded: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield the headers of a request that are passed on, and the address of the client."""
    pairs = call.header_pairs or call.headers.items()
    connection = ",".join(value for name, value in pairs if name == "connection")
    dropped = {*not_forwarded, *(each.strip().lower() for each in connection.split(","))}
    for name, value in pairs:
        if name in REQUEST_HEADERS_NOT_FORWARDED or name in dropped or not value:
            continue
        if not name.replace("_", "-").startswith(PREFIXES_NOT_FORWARDED) and not CONTROL_CHARACTERS.search(value):
            yield name, value
    if call.source_ip:
        yield "X-Forwarded-For", call.source_ip
