"""Client side of an HTTP upgrade: one request, after which the connection is a byte stream."""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httptools

from tapestry.process.lookups import Lookups
from tapestry.streams.connection import Connection, SocketConnection
from tapestry.streams.sockets import connected_socket, connection_on

CONNECT_SECONDS = 30.0
RESPONSE_SECONDS = 30.0
"""Seconds in which a server must answer an upgrade request."""
MAX_HEAD_BYTES = 1 << 16
MAX_ERROR_BYTES = 1 << 16
"""Maximum bytes of the body of a response that is not an upgrade; the rest is dropped."""

Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class UpgradeResponse:
    """Response to an upgrade request."""

    status: int
    headers: dict[str, str]
    """Names are lower case."""
    body: bytes
    """The first bytes of the body of a refusal."""
    connection: Connection | None
    """The connection, if the server has accepted the upgrade."""


async def dial(
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    check: Callable[[str], None] | None = None,
    server_name: str = "",
) -> SocketConnection:
    """Connect to the first address of a host that answers.  `check` raises OSError for an address that is forbidden.

    The certificate of the server is for `server_name`, or for the host.
    """
    async with asyncio.timeout(CONNECT_SECONDS):
        addresses = await Lookups().addresses(host, port)
        failure: OSError = OSError(f"{host} has no address")
        for family, kind, protocol, _, address in addresses:
            if check is not None:
                check(str(address[0]))
            try:
                sock = await connected_socket(family, kind, protocol, address)
                return await connection_on(sock, tls, server_name or host)
            except OSError as error:
                failure = error
        raise failure


async def request_upgrade(connection: SocketConnection, method: str, target: str, headers: Headers) -> UpgradeResponse:
    """Send an upgrade request, and return the response.  The connection is closed unless the server accepts.

    Raise ConnectionError if there is no valid response, and TimeoutError if it is late.
    """
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    head = "\r\n".join(lines)
    if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1:
        raise ValueError("a line break in the target or in a header of the request")
    parser = ResponseParser()
    try:
        async with asyncio.timeout(RESPONSE_SECONDS):
            await connection.write(f"{head}\r\n\r\n".encode())
            while not parser.is_complete:
                data = await connection.read()
                if not data and not parser.status:
                    raise ConnectionResetError("the server closed the connection without a response")
                if not data:
                    break
                parser.feed(data)
    except BaseException:
        connection.abort()
        raise
    if parser.status != 101:
        connection.abort()
        return UpgradeResponse(parser.status, parser.headers, bytes(parser.body), None)
    connection.unread(parser.rest)
    return UpgradeResponse(101, parser.headers, b"", connection)


@dataclass
class ResponseParser:
    """Parser of one response."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    rest: bytes = b""
    """Bytes after the head of a response that accepts the upgrade."""
    is_complete: bool = False
    _head_bytes: int = 0

    def __post_init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self.rest, self.is_complete = data[upgrade.args[0] :], True
        except httptools.HttpParserError as error:
            raise ConnectionAbortedError("the response is not valid HTTP") from error
        self._head_bytes += len(data)
        if not self.status and self._head_bytes > MAX_HEAD_BYTES:
            raise ConnectionAbortedError("the head of the response is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.setdefault(name.decode("latin-1").lower(), value.decode("utf-8", "replace"))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status == 101 or status >= 200:
            self.status = status
        else:
            self.headers.clear()  # an interim response precedes the final one

    def on_body(self, data: bytes) -> None:
        self.body += data[: MAX_ERROR_BYTES - len(self.body)]
        self.is_complete = self.is_complete or len(self.body) == MAX_ERROR_BYTES

    def on_message_complete(self) -> None:
        self.is_complete = self.is_complete or bool(self.status)
