"""Client transport that calls an API server in the same process, without a socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from tapestry.apiserver.core.requests import Call, CallOrigin, User
from tapestry.apiserver.core.responses import ApiResponse, SessionResponse
from tapestry.apiserver.handlers.server import CallHandler
from tapestry.apiserver.handlers.watches import WatchResponse
from tapestry.client.transport import Request, Response, Stream
from tapestry.kube.errors import ResponseTooLarge, TransportError


class InProcessTransport:
    """Send requests to `server` as `user`.

    `origin` gives rights that no user of the server has, so requests made for a client keep the default.
    """

    def __init__(self, server: CallHandler, user: User, origin: CallOrigin = CallOrigin.CLIENT) -> None:
        self._server, self._user, self._origin = server, user, origin
        self._timeouts: set[asyncio.Timeout] = set()

    async def send(self, request: Request) -> Response:
        async with self.stream(request) as stream, self._limit_time(request, request.timeout):
            chunks, size = [], 0
            async for chunk in stream.chunks():
                chunks.append(chunk)
                size += len(chunk)
                if request.max_body is not None and size > request.max_body:
                    raise ResponseTooLarge(f"{request}: the response is over {request.max_body} bytes", maybe_sent=True)
            headers = stream.headers if isinstance(stream, BufferedStream) else {}
            return Response(stream.status, headers, b"".join(chunks))

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        async with self._limit_time(request, request.timeout):
            response = await self._handle(request)
        if isinstance(response, ApiResponse) and response.stream is None:
            yield BufferedStream(response)
            return
        source = response.stream if isinstance(response, ApiResponse) else response
        assert source is not None
        try:
            async with self._limit_time(request, None), aclosing(source.chunks()) as chunks:
                yield ChunkStream(chunks, response.status if isinstance(response, ApiResponse) else 200)
        finally:
            source.end()

    def abort(self) -> None:
        now = asyncio.get_running_loop().time()
        for each in self._timeouts:
            each.reschedule(now)

    async def close(self) -> None:
        self.abort()

    async def _handle(self, request: Request) -> ApiResponse | WatchResponse:
        headers = {"content-type": request.content_type, "accept": request.accept}
        call = Call(
            *(request.method, request.path, request.query, headers, request.body or b"", self._user),
            origin=self._origin,
        )
        response = await self._server.handle(call)
        assert not isinstance(response, SessionResponse)  # these calls request no upgrade
        return response

    @asynccontextmanager
    async def _limit_time(self, request: Request, seconds: float | None) -> AsyncIterator[None]:
        """Raise TransportError after `seconds`, or when the transport is aborted."""
        try:
            async with asyncio.timeout(seconds) as limit:
                self._timeouts.add(limit)
                try:
                    yield
                finally:
                    self._timeouts.discard(limit)
        except TimeoutError as error:
            why = f"{request}: the connection was aborted, or the response timed out"
            raise TransportError(why, maybe_sent=True) from error


@dataclass(frozen=True, slots=True)
class BufferedStream:
    """A complete response, read as a stream."""

    response: ApiResponse

    @property
    def status(self) -> int:
        return self.response.status

    @property
    def headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.response.headers.items()}

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self.response.body


@dataclass(frozen=True, slots=True)
class ChunkStream:
    """A response that arrives in chunks, for example a watch."""

    source: AsyncIterator[bytes]
    status: int = 200

    def chunks(self) -> AsyncIterator[bytes]:
        return self.source
