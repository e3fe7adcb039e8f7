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
    from tapestry.apiserver.serving.listening import Handshake, Listening

log = logger(__name__)

LONGEST_HEAD = 1 << 17
"""Bytes of a head, all its headers together."""
MOST_HEADERS = 256
AHEAD = 1 << 18
"""Bytes of a body that lie here before somebody reads them; then the client waits."""
PARTING_SECONDS = 2.0
"""For how long a client is listened to whose request was answered before all of it was there."""
STALLED_SECONDS = 60.0
"""How long a client may read nothing of an answer or a watch that waits for it."""
PIECE = 1 << 17
"""Bytes of a long answer that are sent at a time: all at once they would lie in memory several times."""


BODIED = frozenset({"content-length", "transfer-encoding"})
"""Headers of requests that have a body."""


class Exchange:
    """A request, and the way to answer it."""

    __slots__ = (
        *("_is_chunked", "_pieces", "_waiter", "connection"),
        *("headers", "is_begun", "is_whole", "keeps", "method", "pairs", "target", "version"),
    )

    def __init__(self, connection: "Connection") -> None:
        self.connection = connection
        self._pieces: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._is_chunked = False
        self.method, self.target, self.version = "", b"", ""
        self.pairs: list[tuple[str, str]] = []
        """Its headers, the names in lower case, in the order in which they came."""
        self.headers: dict[str, str] = {}
        """The first of each name."""
        self.is_whole = False
        """Whether all of the request is here."""
        self.is_begun = False
        """Whether the answer is on its way."""
        self.keeps = True
        """Whether the connection is used again."""

    @property
    def is_backed_up(self) -> bool:
        """Whether the client has yet to take what it was answered before."""
        return self.connection.is_full

    # -- what came in

    def received(self, data: bytes) -> None:
        self._pieces.append(data)
        self.wake()

    def without_upgrade(self) -> bytes:
        """Its head, for one that is to be read as any other and is the last."""
        lines = [f"{name}: {value}\r\n" for name, value in self.pairs if name not in ("connection", "upgrade")]
        head = f"{''.join(lines)}Connection: close\r\n\r\n".encode()
        return b"%b %b HTTP/%b\r\n%b" % (self.method.encode(), self.target, self.version.encode(), head)

    @property
    def has_hosts(self) -> bool:
        """Whether it is for more than one host: who let it through may have looked at the other."""
        return len(self.pairs) > len(self.headers) and [name for name, _ in self.pairs].count("host") > 1

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def waiting(self) -> int:
        """Bytes of the body that nobody has read."""
        return sum(map(len, self._pieces))

    def body(self) -> bytes:
        """All of the body, where the request is whole."""
        pieces = self._pieces
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def read(self) -> bytes:
        """What has come of the body since; nothing at its end."""
        if not self.is_whole and self.headers.pop("expect", "").lower() == "100-continue":
            self.connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")  # only now: it may have been refused for its head
        while not self._pieces and not self.is_whole:
            self.connection.listen()
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

    async def send_long(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """A whole answer, as fast as the client takes it."""
        await self.connection.write_all(self._head(status, headers, b"Content-Length: %d\r\n" % len(body)))
        if self.method != "HEAD":
            view = memoryview(body)
            for at in range(0, len(body), PIECE):
                await self.connection.write_all(view[at : at + PIECE])

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of an answer whose length nobody knows."""
        self._is_chunked = self.version != "1.0"
        if not self._is_chunked:
            self.keeps = False
        length = b"Transfer-Encoding: chunked\r\n" if self._is_chunked else b""
        await self.connection.write_all(self._head(status, headers, length))

    async def go_on(self, data: bytes) -> None:
        if data:
            connection = self.connection
            connection.write_open(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)
            if connection.is_full:
                await connection.drained()

    def end(self) -> None:
        """That was all of it."""
        if self._is_chunked:
            self.connection.write(b"0\r\n\r\n")

    def abort(self) -> None:
        """Break off: what was sent of the answer is not all of it."""
        self.keeps = False
        self.connection.abort()

    def _head(self, status: int, headers: Mapping[str, str], length: bytes) -> bytes:
        self.is_begun = True
        if not self.is_whole:
            self.keeps = False
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
            raise ValueError("a header with a line break in it")
        last = b"\r\n" if self.keeps else b"Connection: close\r\n\r\n"
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


class Connection(asyncio.Protocol):
    """One client's."""

    peer = ""
    owner = ""
    """The user whose it is, once a request was authenticated."""
    tls: ssl.SSLObject | None = None
    _transport: asyncio.Transport

    def __init__(self, listening: "Listening", handshake: "Handshake | None" = None) -> None:
        self._listening = listening
        self._handshake = handshake
        """What it was before, over TLS."""
        self._parser = httptools.HttpRequestParser(self)
        self._reading: Exchange | None = None
        """What is coming in."""
        self._head = 0
        """Bytes that came since the last request, or the last piece of a body."""
        self._next: deque[Exchange] = deque()
        """What is still to be served; the first may be."""
        self.task: asyncio.Task[None] | None = None
        self._full: asyncio.Future[None] | None = None
        """While the client takes nothing."""
        self._is_deaf = False
        """Whether all that there is to say is said."""
        self._idle_since = 0.0
        self._alarm: asyncio.TimerHandle | None = None

    # -- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._handshake is not None:
            self._handshake.leave()
        if self._listening.is_over:
            self.abort()  # it was accepted in the last moment
            return
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        self.tls = transport.get_extra_info("ssl_object")
        self._listening.connections.add(self)
        self._listening.clients.arrived(self)
        self._rest()
        self._watch_for_idleness()

    def connection_lost(self, _: Exception | None) -> None:
        self._listening.connections.discard(self)
        self._listening.clients.left(self)
        if self._alarm is not None:
            self._alarm.cancel()
        if self.task is not None:
            self.task.cancel()  # also where it waits for the client to take something

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        self._head += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(400)
            return
        if self._head > LONGEST_HEAD and self._reading is not None:
            self._refuse(431)
        elif self._next:
            if len(self._next) > 1 or self._next[0].waiting > AHEAD:
                self._transport.pause_reading()
            if self.task is None:
                self._serve_next()

    def pause_writing(self) -> None:
        if self._full is None:
            self._full = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._full is not None and not self._full.done():
            self._full.set_result(None)
        self._full = None

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            asked = self._next[-1]  # nobody here speaks anything else; if it has a body, that is one all the same
            if asked.method != "CONNECT" and not BODIED.isdisjoint(asked.headers):
                self._next.pop()
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
        if len(exchange.pairs) >= MOST_HEADERS:
            raise ValueError("too many headers")  # which the parser takes for its own error
        pair = header_name(name), value.decode("utf-8", "replace")
        exchange.pairs.append(pair)
        exchange.headers.setdefault(*pair)

    def on_headers_complete(self) -> None:
        exchange = self._reading
        assert exchange is not None
        exchange.method = self._parser.get_method().decode("latin-1")
        exchange.keeps = self._parser.should_keep_alive() and not self._parser.should_upgrade()
        exchange.version = self._parser.get_http_version()
        self._next.append(exchange)

    def on_body(self, data: bytes) -> None:
        assert self._reading is not None
        self._head = 0
        self._reading.received(data)

    def on_message_complete(self) -> None:
        assert self._reading is not None
        self._head = 0
        self._reading.is_whole = True
        self._reading.wake()
        self._reading = None

    # -- exchanges

    def _serve_next(self) -> None:
        self._idle_since = 0.0
        exchange = self._next[0]
        if ("host" not in exchange.headers and exchange.version == "1.1") or exchange.has_hosts:
            self._refuse(400)
            return
        self.task = self._listening.group.create_task(self._serve(exchange))

    async def _serve(self, exchange: Exchange) -> None:
        try:
            await self._listening.serve(exchange)
        except ConnectionError:
            self._transport.abort()
        except Exception:
            log.exception("a connection failed")  # and only this one: all are in one group
            self._transport.abort()
        finally:
            self.task = None
        self._next.popleft()
        if not exchange.keeps:
            self._part(exchange)
        elif self._next:
            if len(self._next) == 1:
                self.listen()  # to hear it leave
            self._serve_next()
        else:
            self._rest()

    def _refuse(self, status: int) -> None:
        """Answer what is no request."""
        if self.task is None:
            self.write(status_line(status, int(time())) + b"Content-Length: 0\r\nConnection: close\r\n\r\n")
        self._part(None)

    def _part(self, exchange: Exchange | None) -> None:
        """Close, but not in the face of a client that is still talking: it would not hear the answer."""
        if exchange is not None and exchange.is_whole:
            self.close()
            return
        self._is_deaf = True
        self.listen()
        asyncio.get_running_loop().call_later(PARTING_SECONDS, self.close)

    # -- writing

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    @property
    def is_full(self) -> bool:
        return self._full is not None

    def write_open(self, data: bytes | memoryview) -> None:
        """Write; raises ConnectionResetError where the client is gone."""
        if self._transport.is_closing():
            raise ConnectionResetError("the client is gone")
        self._transport.write(data)

    async def write_all(self, data: bytes | memoryview) -> None:
        """Write, and wait until the client has taken most of what was written."""
        self.write_open(data)
        await self.drained()

    async def drained(self) -> None:
        """Wait until the client has taken most of what was written."""
        if self._full is not None:
            try:
                async with asyncio.timeout(STALLED_SECONDS):
                    await self._full
            except TimeoutError:
                raise ConnectionAbortedError("the client does not read its answer") from None

    def listen(self) -> None:
        self._transport.resume_reading()

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    # -- idleness

    def _rest(self) -> None:
        self._idle_since = asyncio.get_running_loop().time()
        self._transport.resume_reading()

    @property
    def is_idle(self) -> bool:
        return self.task is None

    def _watch_for_idleness(self) -> None:
        loop = asyncio.get_running_loop()
        ends = (self._idle_since or loop.time()) + self._listening.idle
        if ends <= loop.time():
            self.abort()
        else:
            self._alarm = loop.call_at(ends, self._watch_for_idleness)

    def end(self) -> None:
        """Stop whatever is under way."""
        if self.task is not None:
            self.task.cancel()
        self.abort()
