"""Uploads: bodies that did not arrive together with the head of their request.

They are read once their sender is authorized, against a budget of bytes, and take a place in the gate only when they
are complete: slow senders keep nobody out.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tapestry.apiserver import api_errors
from tapestry.apiserver.codec import MAX_BODY_BYTES
from tapestry.apiserver.serving.http_connection import Exchange
from tapestry.apiserver.serving.inflight_limiter import InflightSlot
from tapestry.apiserver.serving.metrics import COMPONENT, REQUEST_TERMINATIONS
from tapestry.kube.errors import TooManyRequests

MAX_BYTES, MAX_BYTES_PER_USER = 256 << 20, 48 << 20
MAX_UPLOAD_SECONDS = 60.0
"""That a body may take, however long its answer may."""


@dataclass
class UploadBudget:
    """Bytes of bodies that are held: by all requests under way, and by those of each user."""

    max_bytes: int = MAX_BYTES
    max_bytes_per_user: int = MAX_BYTES_PER_USER
    held: int = 0
    users: dict[str, int] = field(default_factory=dict)

    def acquire(self, user: str, size: int) -> None:
        """Raises TooManyRequests where there is no room."""
        own = self.users.get(user, 0) + size
        if own > self.max_bytes_per_user or self.held + size > self.max_bytes:
            raise api_errors.too_many_requests()
        self.users[user] = own
        self.held += size

    def release(self, user: str, size: int) -> None:
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
    budget: UploadBudget
    user: str
    timeout: float
    """That it may take."""
    acquire_slot: Callable[[], InflightSlot]
    """Takes a place in the gate, once it is complete."""
    slot: InflightSlot | None = None
    size: int = 0

    async def read(self) -> bytes:
        try:
            return await self._read()
        except TooManyRequests:
            REQUEST_TERMINATIONS.labels(self.exchange.method, "429", COMPONENT).inc()
            raise

    async def _read(self) -> bytes:
        if int(self.exchange.headers.get("content-length", 0)) > MAX_BODY_BYTES:
            raise api_errors.body_too_large(MAX_BODY_BYTES)
        pieces = []
        try:
            async with asyncio.timeout(min(self.timeout, MAX_UPLOAD_SECONDS)):
                while piece := await self.exchange.read():
                    if self.size + len(piece) > MAX_BODY_BYTES:
                        raise api_errors.body_too_large(MAX_BODY_BYTES)
                    self.budget.acquire(self.user, len(piece))
                    self.size += len(piece)
                    pieces.append(piece)
        except TimeoutError:
            raise api_errors.request_timed_out() from None
        self.slot = self.acquire_slot()
        return b"".join(pieces)

    def close(self, release: Callable[[InflightSlot], None]) -> None:
        """Give back what it held: once, when its request is answered."""
        self.budget.release(self.user, self.size)
        if self.slot is not None:
            release(self.slot)
