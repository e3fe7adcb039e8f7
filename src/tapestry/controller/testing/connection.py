"""One client's way to the in-process API: a Transport that carries nothing anywhere, and can be cut all the same."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass

from tapestry.apiserver.requests import Call, User
from tapestry.apiserver.server import ApiResponse, Server
from tapestry.apiserver.watches import WatchResponse
from tapestry.client.transport import Request, Response
from tapestry.kube.errors import TransportError

ADMIN = User("kubernetes-admin", ("system:masters",))


class Connection:
    """Carries the requests of one client.

    Each is under way for a turn of the event loop there and another one back, so that tasks interleave around it as
    they do around a real one.  Its timeout never passes.
    """

    def __init__(self, server: Server, watches: set["WatchStream"]) -> None:
        self._server = server
        self._watches = watches
        """Of all connections."""
        self._own: set[WatchStream] = set()
        self._cuts = 0

    async def send(self, request: Request) -> Response:
        answer = await self._call(request)
        if isinstance(answer, ApiResponse):
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return Response(answer.status, {"content-type": answer.content_type, **headers}, answer.body)
        with self._watch(answer) as watch:
            return Response(watch.status, {}, b"".join([chunk async for chunk in watch.chunks()]))

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator["WatchStream | BufferedStream"]:
        answer = await self._call(request)
        if isinstance(answer, ApiResponse):
            yield BufferedStream(answer)
            return
        with self._watch(answer) as watch:
            yield watch

    async def _call(self, request: Request) -> ApiResponse | WatchResponse:
        cuts = self._cuts
        await self._turn(request, cuts, maybe_sent=False)
        answer = await self._server.handle(call_of(request))
        if isinstance(answer, ApiResponse):
            await self._turn(request, cuts, maybe_sent=True)
        return answer

    @contextmanager
    def _watch(self, watching: WatchResponse) -> Iterator["WatchStream"]:
        watch = WatchStream(watching)
        self._own.add(watch)
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._own.discard(watch)
            self._watches.discard(watch)
            watching.end()

    def abort(self) -> None:
        self._cuts += 1
        for watch in self._own:
            watch.cut()

    async def close(self) -> None:
        self.abort()

    async def _turn(self, request: Request, cuts: int, *, maybe_sent: bool) -> None:
        await asyncio.sleep(0)
        if self._cuts != cuts:
            raise TransportError(f"{request}: the connection was cut", maybe_sent=maybe_sent)


def call_of(request: Request) -> Call:
    headers = {"content-type": request.content_type, "accept": request.accept}
    return Call(request.method, request.path, request.query, headers, request.body or b"", ADMIN)


@dataclass(frozen=True, slots=True)
class BufferedStream:
    """An answer that is all there, as a stream."""

    response: ApiResponse

    @property
    def status(self) -> int:
        return self.response.status

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self.response.body


@dataclass(eq=False, slots=True)
class WatchStream:
    """A watch, for as long as neither side ends it."""

    watch: WatchResponse
    status: int = 200
    is_cut: bool = False

    def end(self) -> None:
        """End it, as a server does."""
        self.watch.subscription.drop()

    def cut(self) -> None:
        """Break it off, as a lost connection does."""
        self.is_cut = True
        self.end()

    async def chunks(self) -> AsyncIterator[bytes]:
        async with aclosing(self.watch.chunks()) as chunks:
            async for chunk in chunks:
                if self.is_cut:
                    break
                yield chunk
        if self.is_cut:
            what = self.watch.info.resource.name
            raise TransportError(f"watch of {what}: the connection was cut", maybe_sent=True)
