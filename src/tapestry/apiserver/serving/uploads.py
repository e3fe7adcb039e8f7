"""Uploads: bodies that did not arrive together with the head of their request.

They are read once their sender is authorized, against a budget of bytes, and take a place in the gate only when they
are complete: slow senders keep nobody out.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tapestry.apiserver import refusals
from tapestry.apiserver.codec import LONGEST_BODY
from tapestry.apiserver.serving.gate import Seat
from tapestry.apiserver.serving.metrics import COMPONENT, TERMINATED
from tapestry.apiserver.serving.wire import Exchange
from tapestry.kube.errors import TooManyRequests

MOST_BYTES, MOST_PER_USER = 256 << 20, 48 << 20
LONGEST_SECONDS = 60.0
"""That a body may take, however long its answer may."""


@dataclass
class Budget:
    """Bytes of bodies that are held: by all requests under way, and by those of each user."""

    most: int = MOST_BYTES
    per_user: int = MOST_PER_USER
    held: int = 0
    users: dict[str, int] = field(default_factory=dict)

    def take(self, user: str, size: int) -> None:
        """Raises TooManyRequests where there is no room."""
        own = self.users.get(user, 0) + size
        if own > self.per_user or self.held + size > self.most:
            raise refusals.too_many_requests()
        self.users[user] = own
        self.held += size

    def give_back(self, user: str, size: int) -> None:
        self.held -= size
        left = self.users.get(user, 0) - size
        if left > 0:
            self.users[user] = left
        else:
            self.users.pop(user, None)


@dataclass(slots=True)
class Upload:
    """A body that is still arriving."""

    exchange: Exchange
    budget: Budget
    user: str
    seconds: float
    """That it may take."""
    enter: Callable[[], Seat]
    """Takes a place in the gate, once it is complete."""
    seat: Seat | None = None
    size: int = 0

    async def read(self) -> bytes:
        try:
            return await self._read()
        except TooManyRequests:
            TERMINATED.labels(self.exchange.method, "429", COMPONENT).inc()
            raise

    async def _read(self) -> bytes:
        if int(self.exchange.headers.get("content-length", 0)) > LONGEST_BODY:
            raise refusals.too_large(LONGEST_BODY)
        pieces = []
        try:
            async with asyncio.timeout(min(self.seconds, LONGEST_SECONDS)):
                while piece := await self.exchange.read():
                    if self.size + len(piece) > LONGEST_BODY:
                        raise refusals.too_large(LONGEST_BODY)
                    self.budget.take(self.user, len(piece))
                    self.size += len(piece)
                    pieces.append(piece)
        except TimeoutError:
            raise refusals.out_of_time() from None
        self.seat = self.enter()
        return b"".join(pieces)

    def close(self, leave: Callable[[Seat], None]) -> None:
        """Give back what it held: once, when its request is answered."""
        self.budget.give_back(self.user, self.size)
        if self.seat is not None:
            leave(self.seat)
