"""HTTP/1.1 on a connection: what comes in as exchanges, one at a time, and what is answered to each.

The grammar is llhttp's, through httptools; here is what a server adds to it.  A request is served once its head is
there, while its body may still be coming; what a client sends ahead of its turn waits, and so does the client.  Whoever
takes too long for a head, sends none, or sends too much of one, is shown the door; a client that leaves takes its
request along.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from time import time
from typing import TYPE_CHECKING, cast

import httptools

from tapestry.process.logs import logger

if TYPE_CHECKING:
    from tapestry.apiserver.serving.http_server import Handshake, HttpServer

log = logger(__name__)

MAX_HEAD_BYTES = 1 << 17
"""Bytes of a head, all its headers together."""
MAX_HEADERS = 256
MAX_BUFFERED_BODY = 1 << 18
"""Bytes of a body that lie here before somebody reads them; then the client waits."""
LINGERING_CLOSE_SECONDS = 2.0
"""For how long a client is listened to whose request was answered before all of it was there."""
WRITE_STALL_SECONDS = 60.0
"""How long a client may read nothing of an answer or a watch that waits for it."""
CHUNK_BYTES = 1 << 17
"""Bytes of a long answer that are sent at a time: all at once they would lie in memory several times."""


BODY_HEADERS = frozenset({"content-length", "transfer-encoding"})
"""Headers of requests that have a body."""


class Exchange:
    """A request, and the way to answer it."""

    __slots__ = (
        *("_is_chunked", "_pieces", "_waiter", "connection"),
        *("headers", "is_response_started", "is_complete", "keep_alive", "method", "header_pairs", "target", "version"),
    )

    def __init__(self, connection: "HttpConnection") -> None:
        self.connection = connection
        self._pieces: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._is_chunked = False
        self.method, self.target, self.version = "", b"", ""
        self.header_pairs: list[tuple[str, str]] = []
        """Its headers, the names in lower case, in the order in which they came."""
        self.headers: dict[str, str] = {}
        """The first of each name."""
        self.is_complete = False
        """Whether all of the request is here."""
        self.is_response_started = False
        """Whether the answer is on its way."""
        self.keep_alive = True
        """Whether the connection is used again."""

    @property
    def is_write_blocked(self) -> bool:
        """Whether the client has yet to take what it was answered before."""
        return self.connection.is_write_blocked

    # -- what came in

    def feed_body(self, data: bytes) -> None:
        self._pieces.append(data)
        self.wake()

    def without_upgrade(self) -> bytes:
        """Its head, for one that is to be read as any other and is the last."""
        lines = [f"{name}: {value}\r\n" for name, value in self.header_pairs if name not in ("connection", "upgrade")]
        head = f"{''.join(lines)}Connection: close\r\n\r\n".encode()
        return b"%b %b HTTP/%b\r\n%b" % (self.method.encode(), self.target, self.version.encode(), head)

    @property
    def has_duplicate_host(self) -> bool:
        """Whether it is for more than one host: who let it through may have looked at the other."""
        return len(self.header_pairs) > len(self.headers) and [name for name, _ in self.header_pairs].count("host") > 1

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the body that nobody has read."""
        return sum(map(len, self._pieces))

    def body(self) -> bytes:
        """All of the body, where the request is whole."""
        pieces = self._pieces
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def read(self) -> bytes:
        """What has come of the body since; nothing at its end."""
        if not self.is_complete and self.headers.pop("expect", "").lower() == "100-continue":
            self.connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")  # only now: it may have been refused for its head
        while not self._pieces and not self.is_complete:
            self.connection.resume_reading()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        found = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        return found

    # -- what goes out

    def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """A whole answer."""
        head = self._head(status, headers, b"Content-Length: %d\r\n" % len(body))
        self.connection.write(head if self.method == "HEAD" else head + body)

    async def send_large(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """A whole answer, as fast as the client takes it."""
        await self.connection.write_and_drain(self._head(status, headers, b"Content-Length: %d\r\n" % len(body)))
        if self.method != "HEAD":
            view = memoryview(body)
            for at in range(0, len(body), CHUNK_BYTES):
                await self.connection.write_and_drain(view[at : at + CHUNK_BYTES])

    async def start_stream(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of an answer whose length nobody knows."""
        self._is_chunked = self.version != "1.0"
        if not self._is_chunked:
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
        """That was all of it."""
        if self._is_chunked:
            self.connection.write(b"0\r\n\r\n")

    def abort(self) -> None:
        """Break off: what was sent of the answer is not all of it."""
        self.keep_alive = False
        self.connection.abort()

    def _head(self, status: int, headers: Mapping[str, str], length: bytes) -> bytes:
        self.is_response_started = True
        if not self.is_complete:
            self.keep_alive = False
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
            raise ValueError("a header with a line break in it")
        last = b"\r\n" if self.keep_alive else b"Connection: close\r\n\r\n"
        return b"%b%b%b%b" % (status_line(status, int(time())), lines.encode("utf-8", "surrogateescape"), length, last)


@lru_cache(maxsize=256)  # clients have few
def header_name(name: bytes) -> str:
    return name.decode("latin-1").lower()


PHRASES = {each.value: each.phrase for each in HTTPStatus}


@lru_cache(maxsize=64)
def status_line(status: int, second: int) -> bytes:
    """How an answer begins in this second."""
    phrase = PHRASES.get(status, "Unknown")  # what a webhook answers with may be any number
    return f"HTTP/1.1 {status} {phrase}\r\nDate: {formatdate(second, usegmt=True)}\r\n".encode()


class HttpConnection(asyncio.Protocol):
    """One client's."""

    peer = ""
    owner = ""
    """The user whose it is, once a request was authenticated."""
    tls: ssl.SSLObject | None = None
    _transport: asyncio.Transport

    def __init__(self, http_server: "HttpServer", handshake: "Handshake | None" = None) -> None:
        self._http_server = http_server
        self._handshake = handshake
        """What it was before, over TLS."""
        self._parser = httptools.HttpRequestParser(self)
        self._reading: Exchange | None = None
        """What is coming in."""
        self._head_bytes = 0
        """Bytes that came since the last request, or the last piece of a body."""
        self._pending: deque[Exchange] = deque()
        """What is still to be served; the first may be."""
        self.task: asyncio.Task[None] | None = None
        self._write_blocked: asyncio.Future[None] | None = None
        """While the client takes nothing."""
        self._ignores_input = False
        """Whether all that there is to say is said."""
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None

    # -- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._handshake is not None:
            self._handshake.finish()
        if self._http_server.is_stopped:
            self.abort()  # it was accepted in the last moment
            return
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        self.tls = transport.get_extra_info("ssl_object")
        self._http_server.connections.add(self)
        self._http_server.connection_limiter.add(self)
        self._become_idle()
        self._check_idle()

    def connection_lost(self, _: Exception | None) -> None:
        self._http_server.connections.discard(self)
        self._http_server.connection_limiter.remove(self)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self.task is not None:
            self.task.cancel()  # also where it waits for the client to take something

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            return
        self._head_bytes += len(data)
        try:
            self._feed(data)
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

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            asked = self._pending[-1]  # nobody here speaks anything else; if it has a body, that is one all the same
            if asked.method != "CONNECT" and not BODY_HEADERS.isdisjoint(asked.headers):
                self._pending.pop()
                self._parser = httptools.HttpRequestParser(self)
                self._parser.feed_data(asked.without_upgrade() + data[upgrade.args[0] :])

    # -- the parser's calls

    def on_message_begin(self) -> None:
        self._reading = Exchange(self)

    def on_url(self, url: bytes) -> None:
        assert self._reading is not None
        self._reading.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        exchange = self._reading
        assert exchange is not None
        if exchange.method:
            return  # it comes behind the body, where nobody who lets requests through has looked at it
        if len(exchange.header_pairs) >= MAX_HEADERS:
            raise ValueError("too many headers")  # which the parser takes for its own error
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
        self.task = self._http_server.group.create_task(self._serve(exchange))

    async def _serve(self, exchange: Exchange) -> None:
        try:
            await self._http_server.handle(exchange)
        except ConnectionError:
            self._transport.abort()
        except Exception:
            log.exception("a connection failed")  # and only this one: all are in one group
            self._transport.abort()
        finally:
            self.task = None
        self._pending.popleft()
        if not exchange.keep_alive:
            self._close_lingering(exchange)
        elif self._pending:
            if len(self._pending) == 1:
                self.resume_reading()  # to hear it leave
            self._serve_next()
        else:
            self._become_idle()

    def _send_error(self, status: int) -> None:
        """Answer what is no request."""
        if self.task is None:
            self.write(status_line(status, int(time())) + b"Content-Length: 0\r\nConnection: close\r\n\r\n")
        self._close_lingering(None)

    def _close_lingering(self, exchange: Exchange | None) -> None:
        """Close, but not in the face of a client that is still talking: it would not hear the answer."""
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
        """Write; raises ConnectionResetError where the client is gone."""
        if self._transport.is_closing():
            raise ConnectionResetError("the client is gone")
        self._transport.write(data)

    async def write_and_drain(self, data: bytes | memoryview) -> None:
        """Write, and wait until the client has taken most of what was written."""
        self.write_open(data)
        await self.drained()

    async def drained(self) -> None:
        """Wait until the client has taken most of what was written."""
        if self._write_blocked is not None:
            try:
                async with asyncio.timeout(WRITE_STALL_SECONDS):
                    await self._write_blocked
            except TimeoutError:
                raise ConnectionAbortedError("the client does not read its answer") from None

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    # -- idleness

    def _become_idle(self) -> None:
        self._idle_since = asyncio.get_running_loop().time()
        self._transport.resume_reading()

    @property
    def is_idle(self) -> bool:
        return self.task is None

    def _check_idle(self) -> None:
        loop = asyncio.get_running_loop()
        ends = (self._idle_since or loop.time()) + self._http_server.idle_timeout
        if ends <= loop.time():
            self.abort()
        else:
            self._idle_timer = loop.call_at(ends, self._check_idle)

    def terminate(self) -> None:
        """Stop whatever is under way."""
        if self.task is not None:
            self.task.cancel()
        self.abort()
