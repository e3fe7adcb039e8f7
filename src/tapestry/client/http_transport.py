"""HTTP transport to one API server: connection pool, credentials, limits.

`abort` cuts all connections synchronously.  A leader that lost its lease relies on this.  After `abort`, no earlier
request is sent any more, whether it was queued or connecting.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlencode, urlsplit

from tapestry import __version__
from tapestry.client.access import Access
from tapestry.client.dialer import CONNECT_SECONDS, Dialer, ProxyError, proxy_authorization
from tapestry.client.http_connection import BodyTooLarge, HttpConnection, ResponseError
from tapestry.client.metrics import SENT
from tapestry.client.transport import Request, Response
from tapestry.kube.errors import ResponseTooLarge, TransportError
from tapestry.streams.connection import SocketConnection
from tapestry.streams.upgrade import Headers, UpgradeResponse, request_upgrade

IDLE_SECONDS = 30.0
"""Seconds after which an unused connection is closed, at the next check: after at most twice this time."""
MAX_IN_FLIGHT = 64
"""Maximum number of concurrent requests.  Watches do not count."""
MAX_BODY = 32 << 20
"""Maximum bytes of a response body.  A larger list is requested again in smaller pages."""


class HttpTransport:
    """A Transport over HTTP/1.1 with its own connection pool."""

    def __init__(self, access: Access, *, max_in_flight: int = MAX_IN_FLIGHT, max_body: int = MAX_BODY) -> None:
        self._access = access
        self._max_body = max_body
        self._slots = asyncio.Semaphore(max_in_flight)
        self._dialer = Dialer(access)
        self._busy: set[HttpConnection] = set()
        self._idle: list[HttpConnection] = []
        """Connections for later requests.  The one that became idle last is at the end."""
        self._idle_check: asyncio.TimerHandle | None = None
        self._base = access.server.rstrip("/")
        url = urlsplit(self._base)
        self._target_prefix = url.path
        self._headers = [
            f"Host: {url.netloc}",
            f"User-Agent: tapestry/{__version__}",
            "Accept-Encoding: identity",  # within a cluster, compressing a list costs the server more than sending it
            *(f"{name}: {value}" for name, value in access.impersonation),
        ]
        if access.proxy_url and url.scheme == "http":  # a proxy tunnels only TLS; it reads other requests itself
            self._target_prefix = self._base
            self._headers += proxy_authorization(urlsplit(access.proxy_url))

    async def send(self, request: Request) -> Response:
        abort_count = self._dialer.abort_count
        try:
            async with asyncio.timeout(request.timeout), self._slots:
                response = await self._exchange(request, abort_count)
                if response.status == 401 and self._access.credentials.handle_unauthorized():
                    response = await self._exchange(request, abort_count)
                return response
        except TimeoutError as error:
            raise self._timeout_error(request) from error

    async def _exchange(self, request: Request, abort_count: int) -> Response:
        connection = await self._start(request, abort_count, min(self._max_body, request.max_body or self._max_body))
        try:
            body = await connection.body()
        except ResponseError as error:
            raise self._response_error(request, error) from None
        finally:
            self._release(connection)
        return Response(connection.status, connection.headers, body)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[HttpConnection]:
        connection: HttpConnection | None = None
        try:
            # The timeout covers opening only.  The reader of a stream limits how long it may be idle.
            try:
                async with asyncio.timeout(request.timeout):
                    connection = await self._start(request, self._dialer.abort_count, None)
                    await connection.head()
            except TimeoutError as error:
                raise self._timeout_error(request) from error
            if connection.status == 401:
                self._access.credentials.handle_unauthorized()
            yield connection
        except ResponseError as error:
            raise self._response_error(request, error) from None
        finally:
            if connection is not None:
                self._release(connection)

    async def upgrade(self, request: Request, query: Sequence[tuple[str, str]], headers: Headers) -> UpgradeResponse:
        """Send an upgrade request on a new connection.  `query` may contain a name several times.

        `abort` also cuts upgraded connections.  The method, path and timeout are those of `request`.
        """
        credentials, abort_count = self._access.credentials, self._dialer.abort_count
        own = [(name, value) for name, _, value in (each.partition(": ") for each in self._headers)]
        own += await credentials.headers()
        encoded = urlencode(query, errors="surrogateescape")  # the command of an exec may have any bytes
        try:
            async with asyncio.timeout(request.timeout):
                dialed = await self._dial(request, credentials.ssl_context(), abort_count)
                connection = SocketConnection.take_over(dialed.transport)
                target = f"{self._target_prefix}{request.path}{f'?{encoded}' if query else ''}"
                response = await request_upgrade(connection, request.method, target, [*own, *headers])
        except TimeoutError as error:
            raise self._timeout_error(request) from error
        except ConnectionError as error:
            raise TransportError(f"{request} to {self._base}: {error}", maybe_sent=True) from error
        if response.status == 401:
            credentials.handle_unauthorized()
        return response

    def _timeout_error(self, request: Request) -> TransportError:
        return TransportError(f"{request} to {self._base}: no response in {request.timeout:g} s", maybe_sent=True)

    def _response_error(self, request: Request, error: ResponseError) -> TransportError:
        if isinstance(error, BodyTooLarge):
            return ResponseTooLarge(f"{request}: {error}", maybe_sent=True)
        return TransportError(f"{request} to {self._base}: {error}", maybe_sent=True)

    async def _start(self, request: Request, abort_count: int, max_body: int | None) -> HttpConnection:
        """Send a request on an idle or a new connection.  The caller releases the connection."""
        credentials = self._access.credentials
        data = self._request_bytes(request, await credentials.headers())
        context = credentials.ssl_context()
        connection = self._idle_connection(context)
        if connection is None:
            connection = await self._dial(request, context, abort_count)
        if abort_count != self._dialer.abort_count:
            connection.abort()
            raise TransportError(f"{request} to {self._base}: aborted before it was sent", maybe_sent=False)
        self._busy.add(connection)
        connection.start(data, max_body)
        SENT.inc(by=len(request.body or b""))
        return connection

    def _request_bytes(self, request: Request, credentials: list[tuple[str, str]]) -> bytes:
        query = f"?{urlencode(request.query)}" if request.query else ""
        lines = [f"{request.method} {self._target_prefix}{request.path}{query} HTTP/1.1", *self._headers]
        lines += [f"{name}: {value}" for name, value in credentials]
        lines.append(f"Accept: {request.accept}")
        body = request.body
        if body is not None:
            lines.append(f"Content-Type: {request.content_type}")
        if body is not None or request.method != "GET":
            lines.append(f"Content-Length: {len(body or b'')}")
        head = "\r\n".join(lines)
        if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1:
            raise ValueError(f"{request}: a line break in the path or in a header")
        return b"%b\r\n\r\n%b" % (head.encode(), body or b"")

    # -- connections

    async def _dial(self, request: Request, context: ssl.SSLContext | None, abort_count: int) -> HttpConnection:
        try:
            return await self._dialer.dial(context, abort_count)
        except ProxyError as error:
            raise TransportError(f"{request} to {self._base}: {error}", maybe_sent=False) from None
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            if isinstance(error, TimeoutError) and not error.errno:
                reason = f"no connection in {CONNECT_SECONDS:g} s"
            raise TransportError(f"{request}: {self._base} cannot be reached: {reason}", maybe_sent=False) from error

    def _idle_connection(self, context: ssl.SSLContext | None) -> HttpConnection | None:
        """Return an idle connection that was made with this TLS context."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.context is context:
                return connection
            connection.abort()
        return None

    def _release(self, connection: HttpConnection) -> None:
        self._busy.discard(connection)
        if not connection.is_reusable:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._idle_check is None:
            self._idle_check = loop.call_later(IDLE_SECONDS, self._close_idle)

    def _close_idle(self) -> None:
        """Close connections that were idle for too long, and check the others later."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - IDLE_SECONDS
        for connection in self._idle:
            if connection.idle_since <= oldest:
                connection.abort()
        self._idle = [each for each in self._idle if each.is_open]
        self._idle_check = loop.call_later(IDLE_SECONDS, self._close_idle) if self._idle else None

    def abort(self) -> None:
        self._dialer.abort()
        for connection in (*self._busy, *self._idle):
            connection.abort()
        self._idle.clear()

    async def close(self) -> None:
        self.abort()
        if self._idle_check is not None:
            self._idle_check.cancel()
            self._idle_check = None
        await self._dialer.wait_closed()
