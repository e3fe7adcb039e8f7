"""One client's way to the in-process API: a Transport that carries nothing anywhere, and can be cut all the same."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tapestry.client.transport import Request, Response
from tapestry.controller.testing.watches import Watch
from tapestry.kube.errors import TransportError


class Connection:
    """Carries the requests of one client.

    Each is under way for a turn of the event loop there and another one back, so that tasks interleave around it as
    they do around a real one.  Its timeout never passes.
    """

    def __init__(self, answer: Callable[[Request], Response | Watch], forget: Callable[[Watch], None]) -> None:
        self._answer = answer
        self._forget = forget
        self._cuts = 0
        self._watches: set[Watch] = set()

    async def send(self, request: Request) -> Response:
        async with self.stream(request) as answer:
            if isinstance(answer, Whole):
                return answer.response
            return Response(answer.status, {}, b"".join([chunk async for chunk in answer.chunks()]))

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator["Watch | Whole"]:
        cuts = self._cuts
        await self._turn(request, cuts, maybe_sent=False)
        answer = self._answer(request)
        if isinstance(answer, Response):
            await self._turn(request, cuts, maybe_sent=True)
            yield Whole(answer)
            return
        self._watches.add(answer)
        try:
            yield answer
        finally:
            self._watches.discard(answer)
            self._forget(answer)

    def abort(self) -> None:
        self._cuts += 1
        for watch in self._watches:
            watch.cut()

    async def close(self) -> None:
        self.abort()

    async def _turn(self, request: Request, cuts: int, *, maybe_sent: bool) -> None:
        await asyncio.sleep(0)
        if self._cuts != cuts:
            raise TransportError(f"{request}: the connection was cut", maybe_sent=maybe_sent)


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer that is all there, as a stream."""

    response: Response

    @property
    def status(self) -> int:
        return self.response.status

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self.response.body
