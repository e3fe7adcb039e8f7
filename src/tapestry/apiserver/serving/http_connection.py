"""HTTP/1.1 connections: parsing of requests into exchanges, one at a time, and writing of responses.

llhttp (through httptools) parses the syntax. A request is served once its head is complete, while its body may still
be arriving. Reading is paused while a client sends ahead of its turn. A client is disconnected if its head is too
slow, missing or too large. When a client disconnects, its request is cancelled.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache, partial
from http import HTTPStatus
from time import time
from typing import Any, cast

import httptools

from tapestry.apiserver.core.responses import BODYLESS_STATUSES, CHUNK_BYTES
from tapestry.apiserver.serving.connection_limiter import ConnectionLimiter
from tapestry.process.logs import logger
from tapestry.streams.connection import SocketConnection, enable_keepalive

log = logger(__name__)

MAX_HEAD_BYTES = 1 << 17
"""Maximum size of a request head in bytes, with all headers."""
MAX_HEADERS = 256
MAX_BUFFERED_BODY = 1 << 18
"""Bytes of an unread body after which reading is paused."""
LINGERING_CLOSE_SECONDS = 2.0
"""Seconds for which input is drained after a response that was sent before the request was complete."""
WRITE_STALL_SECONDS = 60.0
"""Seconds after which a client that does not read its response is disconnected."""
READ_BYTES = 1 << 18
"""Bytes that are read at once."""
BODY_HEADERS = frozenset({"content-length", "transfer-encoding"})
"""Headers of requests that have a body."""


class Exchange:
    """A request and its response."""

    __slots__ = (
        *("_is_chunked", "_pieces", "_waiter", "base_path", "connection"),
        *("headers", "is_response_started", "is_complete", "is_upgrade", "keep_alive", "method", "header_pairs"),
        *("pause", "target", "version"),
    )

    def __init__(self, connection: "HttpConnection") -> None:
        self.connection = connection
        self._pieces: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._is_chunked = False
        self.method, self.target, self.version = "", b"", ""
        self.base_path = ""
        """Prefix that a listener with several servers has removed from the target."""
        self.header_pairs: list[tuple[str, str]] = []
        """Headers in the order of arrival, with names in lower case."""
        self.headers: dict[str, str] = {}
        """First value of each header."""
        self.is_complete = False
        """True if the whole request has arrived."""
        self.is_response_started = False
        """True if the response has started."""
        self.keep_alive = True
        """True if the connection is kept open afterwards."""
        self.pause = 0.0
        """Seconds after the response for which no further request of the connection is served."""
        self.is_upgrade = False
        """True if the client requests an upgrade and `upgrade` can accept it: nothing follows the head."""

    @property
    def is_write_blocked(self) -> bool:
        """True while the client has not read earlier responses."""
        return self.connection.is_write_blocked

    # -- request

    def feed_body(self, data: bytes) -> None:
        self._pieces.append(data)
        self.wake()

    def without_upgrade(self) -> bytes:
        """Return the head of an upgrade request as a plain request that closes the connection."""
        lines = [f"{name}: {value}\r\n" for name, value in self.header_pairs if name not in ("connection", "upgrade")]
        head = f"{''.join(lines)}Connection: close\r\n\r\n".encode()
        return b"%b %b HTTP/%b\r\n%b" % (self.method.encode(), self.target, self.version.encode(), head)

    @property
    def has_no_body(self) -> bool:
        """True if the headers announce no body; clients in Go send a length of 0 with a POST."""
        return self.headers.get("content-length", "0") == "0" and "transfer-encoding" not in self.headers

    @property
    def has_duplicate_host(self) -> bool:
        """True if there are several Host headers: a proxy may have checked another one."""
        return len(self.header_pairs) > len(self.headers) and [name for name, _ in self.header_pairs].count("host") > 1

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def buffered_bytes(self) -> int:
        """Number of unread bytes of the body."""
        return sum(map(len, self._pieces))

    def body(self) -> bytes:
        """Return the whole body of a complete request."""
        pieces = self._pieces
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def read(self) -> bytes:
        """Return the next part of the body; empty at its end."""
        if not self.is_complete and self.headers.pop("expect", "").lower() == "100-continue":
            # sent late, because the request may be rejected by its head
            self.connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not self._pieces and not self.is_complete:
            self.connection.resume_reading()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        result = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        return result

    # -- response

    def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a complete response."""
        head = self._head(status, headers, b"Content-Length: %d\r\n" % len(body))
        self.connection.write(head if self.method == "HEAD" else head + body)

    async def send_large(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a complete response in chunks, as fast as the client reads it."""
        await self.connection.write_and_drain(self._head(status, headers, b"Content-Length: %d\r\n" % len(body)))
        if self.method != "HEAD":
            view = memoryview(body)
            for start in range(0, len(body), CHUNK_BYTES):
                await self.connection.write_and_drain(view[start : start + CHUNK_BYTES])

    async def start_stream(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of a response whose body follows; of unknown length unless the headers state one."""
        has_length = self.method == "HEAD" or status in BODYLESS_STATUSES or "Content-Length" in headers
        self._is_chunked = self.version != "1.0" and not has_length
        if not self._is_chunked and not has_length:
            self.keep_alive = False
        length = b"Transfer-Encoding: chunked\r\n" if self._is_chunked else b""
        await self.connection.write_and_drain(self._head(status, headers, length))

    async def send_chunk(self, data: bytes) -> None:
        if data:
            connection = self.connection
            connection.write_open(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)
            if connection.is_write_blocked:
                await connection.drained()

    def end_stream(self) -> None:
        """Send the end of a chunked response."""
        if self._is_chunked:
            self.connection.write(b"0\r\n\r\n")

    def upgrade(self, headers: Mapping[str, str]) -> SocketConnection:
        """Accept the requested upgrade, and return the connection, which is no longer HTTP."""
        self.keep_alive = True  # the client's Connection header is the answer's
        head = self._head(101, headers, b"Connection: Upgrade\r\n")
        self.keep_alive = False
        return self.connection.upgrade(head)

    def abort(self) -> None:
        """Close the connection in the middle of the response."""
        self.keep_alive = False
        self.connection.abort()

    def _head(self, status: int, headers: Mapping[str, str], length: bytes) -> bytes:
        self.is_response_started = True
        if not self.is_complete:
            self.keep_alive = False
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
            raise ValueError("a response header contains a line break")
        last = b"\r\n" if self.keep_alive else b"Connection: close\r\n\r\n"
        return b"%b%b%b%b" % (status_line(status, int(time())), lines.encode("utf-8", "surrogateescape"), length, last)


class ClosedTransport(asyncio.Transport):
    """Transport of connections that are closed: it ignores everything."""

    def is_closing(self) -> bool:
        return True

    def write(self, data: Any) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    abort = pause_reading = resume_reading = close


CLOSED_TRANSPORT, CLOSED_PARSER = ClosedTransport(), httptools.HttpRequestParser(None)


@lru_cache(maxsize=256)  # clients use few
def header_name(name: bytes) -> str:
    return name.decode("latin-1").lower()


PHRASES = {each.value: each.phrase for each in HTTPStatus}


@lru_cache(maxsize=64)
def status_line(status: int, second: int) -> bytes:
    """Return the status line and the Date header for this second."""
    phrase = PHRASES.get(status, "Unknown")  # webhooks may respond with any number
    return f"HTTP/1.1 {status} {phrase}\r\nDate: {formatdate(second, usegmt=True)}\r\n".encode()


@dataclass(eq=False)
class Listener:
    """State that the connections of a listening socket share."""

    handle: Callable[[Exchange], Awaitable[None]]
    """Handle an exchange; an exception closes the connection."""
    group: asyncio.TaskGroup
    """Group of the tasks of all exchanges."""
    idle_timeout: float
    """Seconds that a connection may be without a complete request head."""
    connection_limiter: ConnectionLimiter
    connections: set["HttpConnection"] = field(default_factory=set, init=False)
    is_stopped: bool = field(default=False, init=False)
    read_buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(READ_BYTES)), init=False)
    """Buffer for the input of any connection, which is parsed before anything else is read."""


class HttpConnection(asyncio.BufferedProtocol):
    """One client connection."""

    peer = ""
    owner = ""
    """Name of the user, after a request was authenticated."""
    limiter: ConnectionLimiter | None = None
    tls: ssl.SSLObject | None = None
    _transport: asyncio.Transport

    def __init__(self, listener: Listener, end_handshake: Callable[[], None] | None = None) -> None:
        self._listener = listener
        self._end_handshake = end_handshake
        """End the TLS handshake that preceded this connection, if any."""
        self._parser = httptools.HttpRequestParser(self)
        self._reading: Exchange | None = None
        """The request that is being parsed."""
        self._head_bytes = 0
        """Bytes received since the last request, or since the last part of a body."""
        self._pending: deque[Exchange] = deque()
        """Requests to serve; the first one may be in progress."""
        self.task: asyncio.Task[None] | None = None
        self._write_blocked: asyncio.Future[None] | None = None
        """Set while the client does not read."""
        self._ignores_input = False
        """True after the last response, while input is drained."""
        self._is_upgraded = False
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None

    # -- transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._end_handshake is not None:
            self._end_handshake()
        if self._listener.is_stopped:
            self.abort()  # it was accepted during shutdown
            return
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        self.tls = transport.get_extra_info("ssl_object")
        self._listener.connections.add(self)
        self._listener.connection_limiter.add(self)
        self._become_idle()
        self._check_idle()

    def connection_lost(self, _: Exception | None) -> None:
        self._listener.connections.discard(self)
        if self.limiter is not None:
            self.limiter.remove(self)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._is_upgraded:
            return
        if self.task is not None:
            self.task.cancel()  # also if it waits for the client to read
        # without these reference cycles, the connection is freed at once, with the memory of OpenSSL
        self._ignores_input, self._end_handshake = True, None
        self._pending.clear()
        self._transport, self._parser = CLOSED_TRANSPORT, CLOSED_PARSER

    def get_buffer(self, _: int) -> memoryview:
        return self._listener.read_buffer

    def buffer_updated(self, count: int) -> None:
        if self._ignores_input:
            return
        self._head_bytes += count
        try:
            self._feed(self._listener.read_buffer[:count])
        except httptools.HttpParserError:
            self._send_error(400)
            return
        if self._head_bytes > MAX_HEAD_BYTES and self._reading is not None:
            self._send_error(431)
        elif self._pending:
            if len(self._pending) > 1 or self._pending[0].buffered_bytes > MAX_BUFFERED_BODY:
                self._transport.pause_reading()
            if self.task is None:
                self._serve_next()

    def pause_writing(self) -> None:
        if self._write_blocked is None:
            self._write_blocked = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._write_blocked is not None and not self._write_blocked.done():
            self._write_blocked.set_result(None)
        self._write_blocked = None

    def _feed(self, data: memoryview) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            request, rest = self._pending[-1], bytes(data[upgrade.args[0] :])
            if request.method == "CONNECT":
                return
            # a client that sends before the answer hides a request from a proxy
            request.is_upgrade = request.has_no_body and not rest
            if request.is_upgrade or BODY_HEADERS.isdisjoint(request.headers):
                return
            self._pending.pop()  # an upgrade with a body is a plain request, whose body is read as usual
            self._parser = httptools.HttpRequestParser(self)
            self._parser.feed_data(request.without_upgrade() + rest)

    # -- parser callbacks

    def on_message_begin(self) -> None:
        self._reading = Exchange(self)

    def on_url(self, url: bytes) -> None:
        assert self._reading is not None
        self._reading.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        exchange = self._reading
        assert exchange is not None
        if exchange.method:
            return  # a trailer: proxies do not check trailers
        if len(exchange.header_pairs) >= MAX_HEADERS:
            raise ValueError("too many headers")  # the parser turns it into its own error
        pair = header_name(name), value.decode("utf-8", "replace")
        exchange.header_pairs.append(pair)
        exchange.headers.setdefault(*pair)

    def on_headers_complete(self) -> None:
        exchange = self._reading
        assert exchange is not None
        exchange.method = self._parser.get_method().decode("latin-1")
        exchange.keep_alive = self._parser.should_keep_alive() and not self._parser.should_upgrade()
        exchange.version = self._parser.get_http_version()
        self._pending.append(exchange)

    def on_body(self, data: bytes) -> None:
        assert self._reading is not None
        self._head_bytes = 0
        self._reading.feed_body(data)

    def on_message_complete(self) -> None:
        assert self._reading is not None
        self._head_bytes = 0
        self._reading.is_complete = True
        self._reading.wake()
        self._reading = None

    # -- exchanges

    def _serve_next(self) -> None:
        self._idle_since = 0.0
        exchange = self._pending[0]
        if ("host" not in exchange.headers and exchange.version == "1.1") or exchange.has_duplicate_host:
            self._send_error(400)
            return
        self.task = self._listener.group.create_task(self._serve(exchange))

    async def _serve(self, exchange: Exchange) -> None:
        try:
            await self._listener.handle(exchange)
            if exchange.pause:
                await asyncio.sleep(exchange.pause)
        except ConnectionError:
            self._transport.abort()
        except Exception:
            log.exception("HTTP connection failed")  # caught here, because all connections share one task group
            self._transport.abort()
        finally:
            self.task = None
        if not self._pending:  # the client has disconnected
            return
        self._pending.popleft()
        if not exchange.keep_alive:
            self._close_lingering(exchange)
        elif self._pending:
            if len(self._pending) == 1:
                self.resume_reading()  # to notice a disconnect
            self._serve_next()
        else:
            self._become_idle()

    def _send_error(self, status: int) -> None:
        """Respond to a malformed request."""
        if self.task is None:
            self.write(status_line(status, int(time())) + b"Content-Length: 0\r\nConnection: close\r\n\r\n")
        self._close_lingering(None)

    def _close_lingering(self, exchange: Exchange | None) -> None:
        """Close the connection; first drain the input of a client that still sends, so that it gets the response."""
        if exchange is not None and exchange.is_complete:
            self.close()
            return
        self._ignores_input = True
        self.resume_reading()
        asyncio.get_running_loop().call_later(LINGERING_CLOSE_SECONDS, self.close)

    # -- writing

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    @property
    def is_write_blocked(self) -> bool:
        return self._write_blocked is not None

    def write_open(self, data: bytes | memoryview) -> None:
        """Write; raises ConnectionResetError if the connection is closed."""
        if self._transport.is_closing():
            raise ConnectionResetError("the client has disconnected")
        self._transport.write(data)

    async def write_and_drain(self, data: bytes | memoryview) -> None:
        """Write, and wait until the client has read most of the data."""
        self.write_open(data)
        await self.drained()

    async def drained(self) -> None:
        """Wait until the client has read most of the data."""
        if self._write_blocked is not None:
            try:
                async with asyncio.timeout(WRITE_STALL_SECONDS):
                    await self._write_blocked
            except TimeoutError:
                raise ConnectionAbortedError("the client does not read the response") from None

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def upgrade(self, head: bytes) -> SocketConnection:
        """Send the head of the response, and hand over the connection.

        The end of the connection no longer cancels the task: the last bytes of the client may still be unread.
        """
        if self._transport.is_closing():
            raise ConnectionResetError("the client has disconnected")
        self._is_upgraded = True
        if (sock := self._transport.get_extra_info("socket")) is not None:
            enable_keepalive(sock)
        upgraded = SocketConnection.take_over(self._transport, partial(self.connection_lost, None))
        self._transport.write(head)
        return upgraded

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    @property
    def local_address(self) -> str:
        """IP address to which the client has connected."""
        name = self._transport.get_extra_info("sockname")
        return str(name[0]) if isinstance(name, tuple) else ""

    # -- idle timeout

    def _become_idle(self) -> None:
        self._idle_since = asyncio.get_running_loop().time()
        self._transport.resume_reading()

    @property
    def is_idle(self) -> bool:
        return self.task is None

    def _check_idle(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = (self._idle_since or loop.time()) + self._listener.idle_timeout
        if deadline <= loop.time():
            self.abort()
        else:
            self._idle_timer = loop.call_at(deadline, self._check_idle)

    def terminate(self) -> None:
        """Cancel the current request and close the connection."""
        if self.task is not None:
            self.task.cancel()
        self.abort()
