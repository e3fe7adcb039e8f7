"""Requests that a server is handling for clients, so that it can end them before it closes."""

import asyncio
import time
from collections.abc import Callable, Iterable
from enum import Enum, auto

from tapestry.apiserver.serving.http_connection import HttpConnection


class RequestKind(Enum):
    SHORT = auto()
    """A request that ends by itself."""
    WATCH = auto()
    """A watch, which ends when the store ends its watches."""
    SESSION = auto()
    """A session as long as its client wants: exec, port-forward, a followed log."""


class ActiveRequests:
    """The requests in progress by connection, and the time at which the last one ended."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._kinds: dict[HttpConnection, RequestKind] = {}
        self._waiter: asyncio.Future[None] | None = None
        """Set while a caller waits for the end of requests."""
        self.last_end = monotonic()
        """Time at which the last request ended, or of the start."""

    def __len__(self) -> int:
        return len(self._kinds)

    def begin(self, connection: HttpConnection) -> None:
        self._kinds[connection] = RequestKind.SHORT

    def classify(self, connection: HttpConnection, kind: RequestKind) -> None:
        """State what the request of a connection turned out to be."""
        self._kinds[connection] = kind
        self._wake()

    def end(self, connection: HttpConnection) -> None:
        self._kinds.pop(connection, None)
        self.last_end = self._monotonic()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait_for_end(self, kind: RequestKind, seconds: float) -> None:
        """Wait until no request of a kind is in progress, but at most `seconds`. Only one caller may wait at a time."""
        try:
            async with asyncio.timeout(seconds):
                while kind in self._kinds.values():
                    self._waiter = asyncio.get_running_loop().create_future()
                    await self._waiter
        except TimeoutError:
            return

    async def terminate(self, kinds: Iterable[RequestKind], seconds: float) -> None:
        """Cancel the requests of these kinds, close their connections, and wait for their end, at most `seconds`."""
        ended = set(kinds)
        connections = [each for each, kind in self._kinds.items() if kind in ended]
        tasks = [each.task for each in connections if each.task is not None]
        for connection in connections:
            connection.terminate()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
