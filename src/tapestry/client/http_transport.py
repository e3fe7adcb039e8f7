"""HTTP transport to one API server: connections, credentials, limits.

The transport creates every socket itself.  So it can set keep-alive probes that detect a dead peer in seconds, and
`abort` can cut all connections synchronously.  A leader that lost its lease relies on this.  After `abort`, no earlier
request is sent any more, whether it was queued or connecting.
"""

import asyncio
import errno
import socket
import weakref
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import aiohttp
from yarl import URL

from tapestry import __version__
from tapestry.client.access import Access
from tapestry.client.metrics import RECEIVED, SENT
from tapestry.client.transport import Request, Response
from tapestry.kube.errors import ResponseTooLarge, TransportError

CONNECT_SECONDS = 10.0
MAX_IN_FLIGHT = 64
"""Maximum number of concurrent requests.  Watches do not count."""
MAX_BODY = 32 << 20
"""Maximum bytes of a response body.  A larger list is requested again in smaller pages."""

KEEPALIVE_OPTIONS = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
"""TCP keep-alive options: a vanished peer is detected within 30 s.  Options that the platform lacks are skipped."""

# Result of an address lookup: family, type, protocol, canonical name, address.
AddressInfo = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]


class HttpTransport:
    """A Transport over HTTP/1.1 with its own connection pool."""

    def __init__(self, access: Access, *, max_in_flight: int = MAX_IN_FLIGHT, max_body: int = MAX_BODY) -> None:
        self._access = access
        self._max_body = max_body
        self._slots = asyncio.Semaphore(max_in_flight)
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._bodies: set[aiohttp.StreamReader] = set()
        self._session: aiohttp.ClientSession | None = None
        self._aborted_sessions: list[aiohttp.ClientSession] = []
        self._abort_count = 0
        self._base = access.server.rstrip("/")
        self._base_url = URL(self._base)

    async def send(self, request: Request) -> Response:
        abort_count = self._abort_count
        try:
            async with asyncio.timeout(request.timeout), self._slots:
                response = await self._exchange(request, abort_count)
                if response.status == 401 and self._access.credentials.handle_unauthorized():
                    response = await self._exchange(request, abort_count)
                return response
        except TimeoutError as error:
            raise self._timeout_error(request) from error

    async def _exchange(self, request: Request, abort_count: int) -> Response:
        # Without the context manager of `_open`: every read and write passes here, and it costs CPU.
        limit = min(self._max_body, request.max_body or self._max_body)
        try:
            response = await self._start(request, abort_count)
            try:
                return Response(response.status, response.headers, await read_body(response, limit))
            finally:
                self._bodies.discard(response.content)
                response.release()
        except (aiohttp.ClientError, OSError) as error:
            self._raise_transport_error(request, error)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator["HttpStream"]:
        async with AsyncExitStack() as stack:
            # The timeout covers opening only.  The reader of a stream limits how long it may be idle.
            try:
                async with asyncio.timeout(request.timeout):
                    response = await stack.enter_async_context(self._open(request, self._abort_count))
            except TimeoutError as error:
                raise self._timeout_error(request) from error
            if response.status == 401:
                self._access.credentials.handle_unauthorized()
            yield response

    def _timeout_error(self, request: Request) -> TransportError:
        return TransportError(f"{request} to {self._base}: no response in {request.timeout:g} s", maybe_sent=True)

    @asynccontextmanager
    async def _open(self, request: Request, abort_count: int) -> AsyncIterator["HttpStream"]:
        """Send a request that started after `abort_count` aborts, and open its response."""
        try:
            response = await self._start(request, abort_count)
            try:
                yield HttpStream(response)
            finally:
                self._bodies.discard(response.content)
                response.release()
        except (aiohttp.ClientError, OSError) as error:
            self._raise_transport_error(request, error)

    async def _start(self, request: Request, abort_count: int) -> aiohttp.ClientResponse:
        """Send a request and wait for the head of the response.  The caller releases the response."""
        access = self._access
        headers = [*access.impersonation, *await access.credentials.headers(), ("Accept", request.accept)]
        if request.body is not None:
            headers.append(("Content-Type", request.content_type))
            SENT.inc(by=len(request.body))
        if self._aborted_sessions:
            await self._close_aborted_sessions()
        if abort_count != self._abort_count:
            raise TransportError(f"{request} to {self._base}: aborted before it was sent", maybe_sent=False)
        response = await self._open_session().request(
            request.method,
            self._url(request),
            data=request.body,
            headers=headers,
            ssl=access.credentials.ssl_context() or True,
            server_hostname=access.tls_server_name,
            proxy=access.proxy_url,
            allow_redirects=False,
        )
        if response.headers.get("Content-Encoding", "identity") != "identity":
            response.close()
            problem = "the response is compressed, although the request did not allow it"
            raise TransportError(f"{request} to {self._base}: {problem}", maybe_sent=True)
        self._bodies.add(response.content)
        return response

    def _raise_transport_error(self, request: Request, error: aiohttp.ClientError | OSError) -> NoReturn:
        if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
            raise error  # the caller's timeout, not a connection error, although it is an OSError
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            # aiohttp's own message contains the memory address of an object, which differs each time.
            reason = getattr(error, "strerror", None) or error
            raise TransportError(f"{request}: {self._base} cannot be reached: {reason}", maybe_sent=False) from error
        if isinstance(error, aiohttp.ClientResponseError):
            # The full error would reveal the token that we sent and the password in the proxy's URL.
            by_proxy = isinstance(error, aiohttp.ClientHttpProxyError)
            problem = "the proxy rejected the request" if by_proxy else "the response is not HTTP"
            message = f"{request} to {self._base}: {problem}: {error.status} {error.message}"
            raise TransportError(message, maybe_sent=not by_proxy) from None
        raise TransportError(f"{request} to {self._base}: {type(error).__name__}: {error}", maybe_sent=True) from error

    def _url(self, request: Request) -> URL:
        """Return the URL of a request.  The path is quoted already, so nothing is parsed or quoted again."""
        url = self._base_url.with_path(self._base_url.raw_path.rstrip("/") + request.path, encoded=True)
        return url.with_query(request.query) if request.query else url

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, keepalive_timeout=60, socket_factory=partial(self._socket, self._abort_count)
                ),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                # identity: within a cluster, compressing a list costs the server more than sending it
                headers={"User-Agent": f"tapestry/{__version__}", "Accept-Encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=1 << 20,
                auto_decompress=False,  # none requested, and a few compressed bytes could expand without limit
                middlewares=(disable_retries,),
            )
        return self._session

    def _socket(self, abort_count: int, address: AddressInfo) -> socket.socket:
        if abort_count != self._abort_count:
            raise ConnectionAbortedError(errno.ECONNABORTED, "aborted while connecting")
        policy, ip = self._access.address_policy, str(address[4][0])
        if policy is not None and (problem := policy.denial_reason(ip)):
            raise PermissionError(errno.EACCES, f"{ip} is {problem}, which a kubeconfig from a Secret may not lead to")
        sock = socket.socket(address[0], address[1], address[2])
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE_OPTIONS.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._sockets.add(sock)
        return sock

    def abort(self) -> None:
        self._abort_session()
        self._abort_count += 1
        for each in list(self._sockets):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:  # closed already
                continue
        self._sockets.clear()
        for body in self._bodies:  # else readers hang if the session closes before it notices
            body.set_exception(aiohttp.ClientConnectionError("aborted"))

    async def close(self) -> None:
        sockets = list(self._sockets)
        self.abort()
        await self._close_aborted_sessions()
        # An aborted TLS connection waits for the server's close_notify, unknown to its session.  After the shutdown
        # above, it needs a few iterations of the event loop to notice.
        for _ in range(100):
            if all(each.fileno() < 0 for each in sockets):
                return
            await asyncio.sleep(0)

    def _abort_session(self) -> None:
        """Stop using the session.  Closing it takes awaiting, so that happens later."""
        if self._session is not None:
            self._aborted_sessions.append(self._session)
            self._session = None

    async def _close_aborted_sessions(self) -> None:
        while self._aborted_sessions:
            await self._aborted_sessions.pop().close()


async def read_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the whole body.  Raise ResponseTooLarge as soon as it is known to exceed `limit` bytes."""
    announced, size = response.content_length or 0, 0
    chunks: list[bytes] = []
    while max(announced, size) <= limit:
        if not (chunk := await response.content.readany()):
            return b"".join(chunks)
        chunks.append(chunk)
        size += len(chunk)
        RECEIVED.inc(by=len(chunk))
    raise ResponseTooLarge(
        f"{response.method} {response.url.path}: the response is over {limit} bytes", maybe_sent=True
    )


async def disable_retries(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Stop aiohttp from repeating a PUT or DELETE whose connection broke: the write may have been applied already, or
    `abort` may have cancelled it."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError(str(error)) from error


@dataclass(frozen=True, slots=True)
class HttpStream:
    """A response as it arrives."""

    response: aiohttp.ClientResponse

    @property
    def status(self) -> int:
        return self.response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self.response.headers

    def chunks(self) -> AsyncIterator[bytes]:
        return CountedChunks(self.response.content.iter_any())


@dataclass(frozen=True, slots=True)
class CountedChunks:
    """Chunks, counted as they arrive.  Not a generator, so that a read that timed out can be repeated."""

    chunks: AsyncIterator[bytes]

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunk = await anext(self.chunks)
        RECEIVED.inc(by=len(chunk))
        return chunk
