"""Fair queues: a bounded capacity that requests share, with a turn for each user in rotation.

A user with many requests delays the requests of another user by one request at most.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairQueue:
    """A shared capacity. A request for more than the capacity gets all of it."""

    def __init__(self, capacity: int) -> None:
        self._capacity = self._free = capacity
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}
        """Waiting requests by user; the first user in this dict is the next to get a turn."""

    @asynccontextmanager
    async def turn(self, user: str, amount: int = 1) -> AsyncIterator[None]:
        """Hold an amount of the capacity for the duration of the context; wait until it is free."""
        amount = min(amount, self._capacity)
        await self._acquire(user, amount)
        try:
            yield
        finally:
            self._release(amount)

    async def _acquire(self, user: str, amount: int) -> None:
        if not self._waiting and amount <= self._free:
            self._free -= amount
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append((amount, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():  # it was granted at the same time
                self._release(amount)
            else:
                self._serve_next()  # smaller requests behind it may fit
            raise

    def _release(self, amount: int) -> None:
        self._free += amount
        self._serve_next()

    def _serve_next(self) -> None:
        while self._waiting:
            user, queue = next(iter(self._waiting.items()))
            while queue and queue[0][1].done():  # cancelled
                queue.popleft()
            if queue and queue[0][0] > self._free:
                return
            del self._waiting[user]
            if not queue:
                continue
            amount, granted = queue.popleft()
            self._free -= amount
            granted.set_result(None)
            if queue:
                self._waiting[user] = queue  # the user moves to the end of the rotation
