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
from tapestry.client.http_transport import HttpTransport
from tapestry.client.transport import Request, Response, Stream, Transport
from tapestry.kube.errors import TransportError


class SwitchableTransport:
    """A Transport to wherever the binding's kubeconfig leads now; closed until it is opened for the first time."""

    def __init__(
        self,
        connect: Callable[[Access], Transport] = HttpTransport,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._monotonic = monotonic
        self._transport: Transport | None = None
        self._connected = asyncio.Event()
        self.last_response = monotonic()
        """When something last came back, on the monotonic clock; an error is an answer, silence is none."""

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    def seconds_since_response(self) -> float:
        """Seconds since something last came back."""
        return self._monotonic() - self.last_response

    async def switch_to(self, access: Access) -> None:
        """Lead to another place, or to the same one with other credentials."""
        old, self._transport = self._transport, self._connect(access)
        self.last_response = self._monotonic()
        self._connected.set()
        if old is not None:
            old.abort()
            await old.close()

    async def send(self, request: Request) -> Response:
        answer = await self._current(request).send(request)
        self.last_response = self._monotonic()
        return answer

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        await self._connected.wait()  # an informer has all the time there is
        async with self._current(request).stream(request) as stream:
            self.last_response = self._monotonic()
            yield stream

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        if self._transport is not None:
            await self._transport.close()

    def _current(self, request: Request) -> Transport:
        if self._transport is None:
            raise TransportError(
                f"{request}: there is no usable kubeconfig for the physical cluster yet", maybe_sent=False
            )
        return self._transport
