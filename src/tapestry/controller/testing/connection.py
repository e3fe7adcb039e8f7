"""In-process transport of one client to the in-process API, which can be cut like a real one."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass

from tapestry.apiserver.core.requests import Call, CallOrigin, User
from tapestry.apiserver.core.responses import ApiResponse, SessionResponse
from tapestry.apiserver.handlers.server import Server
from tapestry.apiserver.handlers.watches import WatchResponse
from tapestry.client.transport import Request, Response
from tapestry.kube.errors import TransportError

ADMIN = User("kubernetes-admin", ("system:masters",))


class Connection:
    """Transport of one client.

    A request takes one iteration of the event loop in each direction, so that tasks interleave as with a real server.
    Timeouts never expire.
    """

    def __init__(self, server: Server, watches: set["WatchStream"], origin: CallOrigin = CallOrigin.CLIENT) -> None:
        self.server, self._origin = server, origin
        self._watches = watches
        self._own: set[WatchStream] = set()
        self._abort_count = 0

    async def send(self, request: Request) -> Response:
        response = await self._call(request)
        if isinstance(response, ApiResponse):
            headers = {name.lower(): value for name, value in response.headers.items()}
            return Response(response.status, {"content-type": response.content_type, **headers}, response.body)
        with self._watch(response) as watch:
            return Response(watch.status, {}, b"".join([chunk async for chunk in watch.chunks()]))

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator["WatchStream | BufferedStream"]:
        response = await self._call(request)
        if isinstance(response, ApiResponse):
            yield BufferedStream(response)
            return
        with self._watch(response) as watch:
            yield watch

    async def _call(self, request: Request) -> ApiResponse | WatchResponse:
        abort_count = self._abort_count
        await self._turn(request, abort_count, maybe_sent=False)
        response = await self.server.handle(call_of(request, self._origin))
        assert not isinstance(response, SessionResponse)  # these calls request no upgrade
        if isinstance(response, ApiResponse):
            await self._turn(request, abort_count, maybe_sent=True)
        return response

    @contextmanager
    def _watch(self, response: WatchResponse) -> Iterator["WatchStream"]:
        watch = WatchStream(response)
        self._own.add(watch)
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._own.discard(watch)
            self._watches.discard(watch)
            response.end()

    def abort(self) -> None:
        self._abort_count += 1
        for watch in self._own:
            watch.cut()

    async def close(self) -> None:
        self.abort()

    async def _turn(self, request: Request, abort_count: int, *, maybe_sent: bool) -> None:
        await asyncio.sleep(0)
        if self._abort_count != abort_count:
            raise TransportError(f"{request}: the connection was cut", maybe_sent=maybe_sent)


def call_of(request: Request, origin: CallOrigin = CallOrigin.CLIENT) -> Call:
    headers = {"content-type": request.content_type, "accept": request.accept}
    return Call(request.method, request.path, request.query, headers, request.body or b"", ADMIN, origin=origin)


@dataclass(frozen=True, slots=True)
class BufferedStream:
    """A complete response as a stream."""

    response: ApiResponse

    @property
    def status(self) -> int:
        return self.response.status

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self.response.body


@dataclass(eq=False, slots=True)
class WatchStream:
    """A watch until either side ends it."""

    watch: WatchResponse
    status: int = 200
    is_cut: bool = False

    def end(self) -> None:
        """End the watch, as the server does."""
        self.watch.subscription.drop()

    def cut(self) -> None:
        """Break the watch, as a lost connection does."""
        self.is_cut = True
        self.end()

    async def chunks(self) -> AsyncIterator[bytes]:
        async with aclosing(self.watch.chunks()) as chunks:
            async for chunk in chunks:
                if self.is_cut:
                    break
                yield chunk
        if self.is_cut:
            resource = self.watch.info.resource.name
            raise TransportError(f"watch of {resource}: the connection was cut", maybe_sent=True)
