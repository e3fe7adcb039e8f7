"""Fair queues: a bounded capacity that requests share, with a turn for each user in rotation.

A user with many requests delays the requests of another user by one request at most. The servers of a process have a
turn each, and their users have turns within it (`NestedQueue`). What requests may hold for long is not waited for by
another server: a server that holds too much is rejected (`LimitedQueue`).
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.shared_capacity import SharedCapacity


class Queue(Protocol):
    async def acquire(self, user: str, amount: int = 1) -> None:
        """Wait until an amount of the capacity is free, and take it."""

    def release(self, amount: int = 1) -> None: ...


@asynccontextmanager
async def turn(queue: Queue, user: str, amount: int = 1) -> AsyncIterator[None]:
    """Hold an amount of a capacity for the duration of the context."""
    await queue.acquire(user, amount)
    try:
        yield
    finally:
        queue.release(amount)


class FairQueue:
    """A shared capacity. A request for more than the capacity gets all of it."""

    def __init__(self, capacity: int) -> None:
        self._capacity = self._free = capacity
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}
        """Waiting requests by user; the first user in this dict is the next to get a turn."""

    async def acquire(self, user: str, amount: int = 1) -> None:
        amount = min(amount, self._capacity)
        if not self._waiting and amount <= self._free:
            self._free -= amount
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append((amount, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():  # it was granted at the same time
                self.release(amount)
            else:
                self._serve_next()  # smaller requests behind it may fit
            raise

    def release(self, amount: int = 1) -> None:
        self._free += min(amount, self._capacity)
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


class NestedQueue:
    """The part of a capacity that the users of one server share."""

    def __init__(self, shared: Queue, owner: str, capacity: int) -> None:
        self._shared, self._owner = shared, owner
        self._own = FairQueue(capacity)

    async def acquire(self, user: str, amount: int = 1) -> None:
        await self._own.acquire(user, amount)
        try:
            await self._shared.acquire(self._owner, amount)
        except BaseException:
            self._own.release(amount)
            raise

    def release(self, amount: int = 1) -> None:
        self._shared.release(amount)
        self._own.release(amount)


class LimitedQueue:
    """A capacity of one server, as far as its share of the capacity of all servers allows."""

    def __init__(self, shared: SharedCapacity, owner: str, capacity: int) -> None:
        self._shared, self._owner, self._capacity = shared, owner, capacity
        self._own = FairQueue(capacity)

    async def acquire(self, user: str, amount: int = 1) -> None:
        """Wait until an amount of the capacity of the server is free. Raises TooManyRequests if its share is used."""
        await self._own.acquire(user, amount)
        if not self._shared.has_capacity(self._owner, min(amount, self._capacity)):
            self._own.release(amount)
            raise api_errors.too_many_requests()
        self._shared.acquire(self._owner, min(amount, self._capacity))

    def release(self, amount: int = 1) -> None:
        self._shared.release(self._owner, min(amount, self._capacity))
        self._own.release(amount)
