"""HTTP to one API server: connections, credentials, limits.

The transport makes every socket itself.  That gives it keep-alive probes that notice a dead peer in seconds, and lets
`abort` cut all connections in one synchronous sweep, which a leader that lost its lease relies on.  Nothing that was
under way then leaves us any more: neither what waited for its turn, nor what was connecting.
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
from tapestry.kube.errors import AnswerTooLarge, TransportError

CONNECT_SECONDS = 10.0
MAX_IN_FLIGHT = 64
"""Requests under way at once; watches do not count."""
MAX_BODY = 32 << 20
"""Bytes of an answer that are read before it is given up.  A list that is larger is asked for in smaller pages."""

KEEPALIVE_OPTIONS = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
"""A peer that vanished without a word is noticed within 30 s.  Names that the platform lacks are left out."""

# What an address look-up gives: family, type, protocol, canonical name, address.
AddressInfo = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]


class HttpTransport:
    """A Transport over HTTP/1.1 with a connection pool of its own."""

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
        cuts = self._abort_count
        try:
            async with asyncio.timeout(request.timeout), self._slots:
                answer = await self._exchange(request, cuts)
                if answer.status == 401 and self._access.credentials.handle_unauthorized():
                    answer = await self._exchange(request, cuts)
                return answer
        except TimeoutError as error:
            raise self._timeout_error(request) from error

    async def _exchange(self, request: Request, abort_count: int) -> Response:
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
            # The deadline covers the opening only: how long a stream may be silent is for its reader to say.
            try:
                async with asyncio.timeout(request.timeout):
                    answer = await stack.enter_async_context(self._open(request, self._abort_count))
            except TimeoutError as error:
                raise self._timeout_error(request) from error
            if answer.status == 401:
                self._access.credentials.handle_unauthorized()
            yield answer

    def _timeout_error(self, request: Request) -> TransportError:
        return TransportError(f"{request} to {self._base}: no answer in {request.timeout:g} s", maybe_sent=True)

    @asynccontextmanager
    async def _open(self, request: Request, abort_count: int) -> AsyncIterator["HttpStream"]:
        """The response to a request that began after `abort_count` aborts."""
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
            raise TransportError(f"{request} to {self._base}: cut before it was sent", maybe_sent=False)
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
            words = "the answer is compressed, which was not asked for"
            raise TransportError(f"{request} to {self._base}: {words}", maybe_sent=True)
        self._bodies.add(response.content)
        return response

    def _raise_transport_error(self, request: Request, error: aiohttp.ClientError | OSError) -> NoReturn:
        if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
            raise error  # the caller's deadline, not an error of the connection, though an OSError by descent
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            # aiohttp's own words have the address of an object in memory, which is new each time.
            why = getattr(error, "strerror", None) or error
            raise TransportError(f"{request}: {self._base} cannot be reached: {why}", maybe_sent=False) from error
        if isinstance(error, aiohttp.ClientResponseError):
            # Its text would show the token that we sent and the password in the proxy's URL.
            refused = isinstance(error, aiohttp.ClientHttpProxyError)
            what = "the proxy refused" if refused else "the answer is not HTTP"
            words = f"{request} to {self._base}: {what}: {error.status} {error.message}"
            raise TransportError(words, maybe_sent=not refused) from None
        raise TransportError(f"{request} to {self._base}: {type(error).__name__}: {error}", maybe_sent=True) from error

    def _url(self, request: Request) -> URL:
        """The URL of a request.  Its path is quoted already, so nothing is parsed or quoted again."""
        url = self._base_url.with_path(self._base_url.raw_path.rstrip("/") + request.path, encoded=True)
        return url.with_query(request.query) if request.query else url

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, keepalive_timeout=60, socket_factory=partial(self._socket, self._abort_count)
                ),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                # identity: between neighbours, packing a list costs the server more than sending it
                headers={"User-Agent": f"tapestry/{__version__}", "Accept-Encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=1 << 20,
                auto_decompress=False,  # we ask for none, and a few bytes of it could become any number
                middlewares=(disable_retries,),
            )
        return self._session

    def _socket(self, abort_count: int, address: AddressInfo) -> socket.socket:
        if abort_count != self._abort_count:
            raise ConnectionAbortedError(errno.ECONNABORTED, "cut while connecting")
        rule, ip = self._access.address_policy, str(address[4][0])
        if rule is not None and (problem := rule.denial_reason(ip)):
            raise PermissionError(errno.EACCES, f"{ip} is {problem}, which a kubeconfig from a Secret may not lead to")
        made = socket.socket(address[0], address[1], address[2])
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE_OPTIONS.items():
            if hasattr(socket, name):
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._sockets.add(made)
        return made

    def abort(self) -> None:
        self._abort_session()
        self._abort_count += 1
        for each in list(self._sockets):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:  # gone already
                continue
        self._sockets.clear()
        for body in self._bodies:  # a session that is closed before it notices would leave their readers waiting
            body.set_exception(aiohttp.ClientConnectionError("cut"))

    async def close(self) -> None:
        sockets = list(self._sockets)
        self.abort()
        await self._close_aborted_sessions()
        # A TLS connection that was given up waits for the server's goodbye, unknown to its session; now it has been
        # cut, and takes a few turns of the loop to notice.
        for _ in range(100):
            if all(each.fileno() < 0 for each in sockets):
                return
            await asyncio.sleep(0)

    def _abort_session(self) -> None:
        """Its connections are no longer for use; to close it takes waiting."""
        if self._session is not None:
            self._aborted_sessions.append(self._session)
            self._session = None

    async def _close_aborted_sessions(self) -> None:
        while self._aborted_sessions:
            await self._aborted_sessions.pop().close()


async def read_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The whole body of an answer; raises AnswerTooLarge as soon as it is known to be over `limit` bytes."""
    announced, size = response.content_length or 0, 0
    chunks: list[bytes] = []
    while max(announced, size) <= limit:
        if not (chunk := await response.content.readany()):
            return b"".join(chunks)
        chunks.append(chunk)
        size += len(chunk)
        RECEIVED.inc(by=len(chunk))
    raise AnswerTooLarge(f"{response.method} {response.url.path}: the answer is over {limit} bytes", maybe_sent=True)


async def disable_retries(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Left alone, aiohttp repeats a PUT or DELETE whose connection broke: a write that may have happened already, or
    one that `abort` was meant to stop."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError(str(error)) from error


@dataclass(frozen=True, slots=True)
class HttpStream:
    """An answer as it arrives."""

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
    """Chunks that are counted as they come.  No generator: a read that was given up may be tried again."""

    chunks: AsyncIterator[bytes]

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunk = await anext(self.chunks)
        RECEIVED.inc(by=len(chunk))
        return chunk
