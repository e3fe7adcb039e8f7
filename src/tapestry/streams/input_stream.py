"""Received bytes of the streams that share a connection, until they are read."""

import asyncio

MAX_UNREAD_BYTES = 1 << 18
"""Unread bytes of all streams after which their connection is not read."""
PIECE_BYTES = 64
"""Memory that each received piece needs in addition."""


class InputBudget:
    """Unread bytes of all streams of a connection."""

    def __init__(self) -> None:
        self._unread = 0
        self._is_lifted = False
        self._waiter: asyncio.Future[None] | None = None

    def add(self, count: int) -> None:
        self._unread += count
        if self._has_space and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def lift(self) -> None:
        """Remove the limit, because no stream keeps its input any more."""
        self._is_lifted = True
        self.add(0)

    async def wait_for_space(self) -> None:
        while not self._has_space:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    @property
    def _has_space(self) -> bool:
        return self._is_lifted or self._unread <= MAX_UNREAD_BYTES


class InputStream:
    """The input of one stream. It has one reader."""

    def __init__(self, budget: InputBudget) -> None:
        self._budget = budget
        self._pieces: list[bytes] = []
        self._reader: asyncio.Future[None] | None = None
        self._error: ConnectionError | None = None
        self.is_ended = False

    def feed(self, data: bytes) -> None:
        """Add bytes; those after the end are dropped."""
        if not self.is_ended and data:
            self._pieces.append(data)
            self._budget.add(len(data) + PIECE_BYTES)
            self._wake()

    def end(self, error: ConnectionError | None = None) -> None:
        """End the input, once; the reader gets `error` after what has arrived before."""
        if not self.is_ended:
            self.is_ended, self._error = True, error
            self._wake()

    def drop(self) -> None:
        """End the input, and drop what is unread."""
        self.end()
        self._take()

    async def read(self) -> bytes:
        """Return the bytes that have arrived, at least one; none at the end. Raise ConnectionError if it was lost."""
        while not self._pieces and not self.is_ended:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if not self._pieces and self._error is not None:
            raise self._error
        return self._take()

    def _take(self) -> bytes:
        count = len(self._pieces)
        result = self._pieces[0] if count == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._budget.add(-len(result) - count * PIECE_BYTES)
        return result

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
