"""Transport to the physical cluster whose kubeconfig can be replaced while it is in use.

The kubeconfig is read from a Secret and may be replaced at any time. Requests in progress finish or fail on the old
connections; later requests and watches use the new ones. The transport records the time of the last response, from
which partitions are detected.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from tapestry.client.access import Access
from tapestry.client.http_transport import HttpTransport
from tapestry.client.transport import Request, Response, Stream, Transport
from tapestry.kube.errors import TransportError
from tapestry.streams.upgrade import Headers, UpgradeResponse


class SwitchableTransport:
    """Transport to the server of the binding's current kubeconfig; unusable before the first `switch_to`."""

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
        """Monotonic time of the last response; an error is a response."""

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    def seconds_since_response(self) -> float:
        return self._monotonic() - self.last_response

    async def switch_to(self, access: Access) -> None:
        """Use another server, or the same one with other credentials."""
        old, self._transport = self._transport, self._connect(access)
        self.last_response = self._monotonic()
        self._connected.set()
        if old is not None:
            old.abort()
            await old.close()

    async def send(self, request: Request) -> Response:
        response = await self._current(request).send(request)
        self.last_response = self._monotonic()
        return response

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        await self._connected.wait()  # informers have no deadline
        async with self._current(request).stream(request) as stream:
            self.last_response = self._monotonic()
            yield stream

    async def upgrade(self, request: Request, query: Sequence[tuple[str, str]], headers: Headers) -> UpgradeResponse:
        """Send an upgrade request on a new connection, which the next `switch_to` cuts."""
        transport = self._current(request)
        if not isinstance(transport, HttpTransport):
            raise TransportError(f"{request}: the transport has no connections to upgrade", maybe_sent=False)
        response = await transport.upgrade(request, query, headers)
        self.last_response = self._monotonic()
        return response

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        if self._transport is not None:
            await self._transport.close()

    def _current(self, request: Request) -> Transport:
        if self._transport is None:
            raise TransportError(f"{request}: no usable kubeconfig for the physical cluster yet", maybe_sent=False)
        return self._transport
