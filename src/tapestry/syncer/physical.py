"""The door to the physical cluster: a transport whose lock can be changed while it is in use.

The kubeconfig comes out of a Secret and may be replaced at any time.  Requests that are under way finish or fail on the
old connections; everything later, watches included, goes over the new ones.  The door also knows when anyone last
answered from behind it, which is what a partition is told by.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tapestry.client.access import Access
from tapestry.client.connection import HttpTransport
from tapestry.client.transport import Request, Response, Stream, Transport
from tapestry.kube.errors import TransportError


class Door:
    """A Transport to wherever the binding's kubeconfig leads now; closed until it is opened for the first time."""

    def __init__(
        self,
        connect: Callable[[Access], Transport] = HttpTransport,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._monotonic = monotonic
        self._transport: Transport | None = None
        self._open = asyncio.Event()
        self.last_answer = monotonic()
        """When something last came back, on the monotonic clock; an error is an answer, silence is none."""

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def silence(self) -> float:
        """Seconds since something last came back."""
        return self._monotonic() - self.last_answer

    async def open(self, access: Access) -> None:
        """Lead to another place, or to the same one with other credentials."""
        old, self._transport = self._transport, self._connect(access)
        self.last_answer = self._monotonic()
        self._open.set()
        if old is not None:
            old.abort()
            await old.close()

    async def send(self, request: Request) -> Response:
        answer = await self._opened(request).send(request)
        self.last_answer = self._monotonic()
        return answer

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        await self._open.wait()  # an informer has all the time there is
        async with self._opened(request).stream(request) as stream:
            self.last_answer = self._monotonic()
            yield stream

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        if self._transport is not None:
            await self._transport.close()

    def _opened(self, request: Request) -> Transport:
        if self._transport is None:
            raise TransportError(
                f"{request}: there is no usable kubeconfig for the physical cluster yet", maybe_sent=False
            )
        return self._transport
