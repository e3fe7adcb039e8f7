"""One HTTP/1.1 connection to a server: one request at a time, and the response as it arrives.

llhttp (through httptools) parses the syntax.  A response that breaks the protocol, exceeds a limit or ends early closes
the connection.
"""

import asyncio
import ssl
from functools import lru_cache
from typing import cast

import httptools

from tapestry.client.metrics import RECEIVED

MAX_HEAD_BYTES = 1 << 17
"""Maximum bytes of a response head.  Also of everything else between two parts of a body."""
MAX_BUFFERED_BYTES = 1 << 20
"""Bytes of an unread stream after which reading is paused."""


class ResponseError(Exception):
    """The response did not arrive completely, or cannot be accepted."""


class BodyTooLarge(ResponseError):
    """The body is larger than the caller allows."""


class HttpConnection(asyncio.Protocol):
    """A connection to a server, or to a proxy.

    Call `start`, then either `body`, or `head` and `chunks`.  Afterwards the connection can be used again if
    `is_reusable`; otherwise the caller aborts it.
    """

    status = 0
    """Status code of the response; 0 before its head is complete."""
    reason = b""
    idle_since = 0.0
    transport: asyncio.Transport
    _waiter: asyncio.Future[None] | None = None
    _error: ResponseError | None = None
    _is_complete = True
    _ends_at_eof = False
    _is_paused = False
    _keep_alive = True

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.context = context
        """The TLS context that the connection was made with."""
        self.headers: dict[str, str] = {}
        """Headers of the response; names are lower case."""
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._size = 0
        self._head_bytes = 0
        self._max_body: int | None = None

    # -- use

    def start(self, request: bytes, max_body: int | None) -> None:
        """Send a request.  `max_body` limits a response that is read with `body`; None announces `chunks`."""
        self.status, self.reason, self.headers = 0, b"", {}
        self._parts, self._size, self._head_bytes = [], 0, 0
        self._max_body = max_body
        self._is_complete = False
        self.transport.write(request)

    async def head(self) -> None:
        """Wait for the head of the response."""
        while not self.status:
            await self._progress()

    def chunks(self) -> "HttpConnection":
        """Return the body as it arrives.  Not a generator, so that a read that timed out can be repeated."""
        return self

    def __aiter__(self) -> "HttpConnection":
        return self

    async def __anext__(self) -> bytes:
        while not self._parts:
            if self._is_complete:
                raise StopAsyncIteration
            await self._progress()
        data = b"".join(self._parts)
        self._parts, self._size = [], 0
        if self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()
        return data

    async def body(self) -> bytes:
        """Wait for the whole response and return its body."""
        while not self._is_complete:
            await self._progress()
        return b"".join(self._parts)

    @property
    def is_open(self) -> bool:
        return self._error is None and not self.transport.is_closing()

    @property
    def is_reusable(self) -> bool:
        """True after a complete response, if the server keeps the connection open and has read the request."""
        return self._is_complete and self._keep_alive and self.is_open and not self.transport.get_write_buffer_size()

    def abort(self) -> None:
        """Fail the request and close the connection, without sending what is still buffered."""
        self._fail(ResponseError("the connection was aborted"))

    async def _progress(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: ResponseError) -> None:
        if self._error is None:
            self._error = error
            self._wake()
            # Later: while it delivers data, uvloop would still write to the closed transport, and log that as an error.
            asyncio.get_running_loop().call_soon(self.transport.abort)

    # -- transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self.status and self._ends_at_eof and error is None:
            self.on_message_complete()
        self._fail(ResponseError(f"{type(error).__name__}: {error}" if error else "the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        if self._is_complete:
            self._fail(ResponseError("the server sent data without a request"))
            return
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ResponseError(f"the response is not HTTP: {error}"))
        if self._head_bytes > MAX_HEAD_BYTES:
            self._fail(ResponseError(f"the head of the response is over {MAX_HEAD_BYTES} bytes"))
        elif self._max_body is None and self._size > MAX_BUFFERED_BYTES and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    # -- parser callbacks

    def on_message_begin(self) -> None:
        if self._is_complete:  # a second response to one request
            self._keep_alive = False

    def on_status(self, reason: bytes) -> None:
        self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # otherwise a trailer
            self.headers[header_name(name)] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self.status:
            return
        status = self._parser.get_status_code()
        if status < 200:  # informational; the response follows
            self.headers, self.reason = {}, b""
            return
        self.status = status
        headers = self.headers
        self._ends_at_eof = "content-length" not in headers and "transfer-encoding" not in headers
        if headers.get("content-encoding", "identity") != "identity":
            self._fail(ResponseError("the response is compressed, although the request did not allow it"))
        elif self._max_body is None:
            self._wake()
        else:
            self._check_size(int(headers.get("content-length", 0)), self._max_body)

    def on_body(self, data: bytes) -> None:
        self._head_bytes = 0
        if self._is_complete or self._error is not None:
            return
        RECEIVED.inc(by=len(data))
        self._parts.append(data)
        self._size += len(data)
        if self._max_body is None:
            self._wake()
        else:
            self._check_size(self._size, self._max_body)

    def _check_size(self, size: int, limit: int) -> None:
        if size > limit:
            self._fail(BodyTooLarge(f"the response is over {limit} bytes"))

    def on_message_complete(self) -> None:
        if self.status and self._error is None and not self._is_complete:
            self._head_bytes = 0
            self._keep_alive = self._parser.should_keep_alive()
            self._is_complete = True
            self._wake()


@lru_cache(maxsize=256)  # servers use few
def header_name(name: bytes) -> str:
    return name.decode("latin-1").lower()
