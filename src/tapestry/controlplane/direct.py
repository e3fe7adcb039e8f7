"""The way to an API server in this process: a Transport without a socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from tapestry.apiserver.requests import Call, User
from tapestry.apiserver.server import Answer, Answering
from tapestry.apiserver.storage.log import LogError
from tapestry.apiserver.watches import Watching
from tapestry.client.transport import Request, Response, Stream
from tapestry.kube.errors import TransportError


class Direct:
    """Carries requests to `server`, in the name of `user`."""

    def __init__(self, server: Answering, user: User) -> None:
        self._server = server
        self._user = user
        self._under_way: set[asyncio.Timeout] = set()

    async def send(self, request: Request) -> Response:
        async with self.stream(request) as stream, self._in_time(request, request.timeout):
            body = b"".join([chunk async for chunk in stream.chunks()])
            return Response(stream.status, stream.headers if isinstance(stream, Whole) else {}, body)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        async with self._in_time(request, request.timeout):
            answer = await self._answer(request)
        if isinstance(answer, Answer) and answer.stream is None:
            yield Whole(answer)
            return
        source = answer.stream if isinstance(answer, Answer) else answer
        assert source is not None
        try:
            async with self._in_time(request, None), aclosing(source.chunks()) as chunks:
                yield Flowing(chunks)
        finally:
            source.end()

    def abort(self) -> None:
        now = asyncio.get_running_loop().time()
        for each in self._under_way:
            each.reschedule(now)

    async def close(self) -> None:
        self.abort()

    async def _answer(self, request: Request) -> Answer | Watching:
        headers = {"content-type": request.content_type, "accept": request.accept}
        call = Call(request.method, request.path, request.query, headers, request.body or b"", self._user)
        try:
            return await self._server.answer(call)
        except LogError as error:
            raise TransportError(f"{request}: {error}", maybe_sent=True) from error

    @asynccontextmanager
    async def _in_time(self, request: Request, seconds: float | None) -> AsyncIterator[None]:
        """Ends with an error after so many seconds, or when the connection is cut."""
        try:
            async with asyncio.timeout(seconds) as limit:
                self._under_way.add(limit)
                try:
                    yield
                finally:
                    self._under_way.discard(limit)
        except TimeoutError as error:
            why = f"{request}: the connection was cut, or no answer came in time"
            raise TransportError(why, maybe_sent=True) from error


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer that is all there, as a stream."""

    answer: Answer

    @property
    def status(self) -> int:
        return self.answer.status

    @property
    def headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.answer.headers.items()}

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self.answer.body


@dataclass(frozen=True, slots=True)
class Flowing:
    """A watch, or what else comes in pieces."""

    source: AsyncIterator[bytes]
    status: int = 200

    def chunks(self) -> AsyncIterator[bytes]:
        return self.source
