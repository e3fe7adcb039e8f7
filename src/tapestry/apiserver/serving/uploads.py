"""Reading of request bodies that arrive after the request head.

They are read after the request is authorized, against a memory budget. They take an inflight slot only when they are
complete, so that slow senders do not block others.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.codec import MAX_BODY_BYTES
from tapestry.apiserver.core.shared_capacity import SharedCapacity
from tapestry.apiserver.serving.http_connection import Exchange
from tapestry.apiserver.serving.inflight_limiter import InflightSlot
from tapestry.apiserver.serving.metrics import COMPONENT, REQUEST_TERMINATIONS
from tapestry.kube.errors import TooManyRequests

MAX_BYTES, MAX_BYTES_PER_USER = 256 << 20, 48 << 20
MAX_UPLOAD_SECONDS = 60.0
"""Maximum seconds that a body may take, regardless of the request timeout."""


@dataclass
class UploadBudget:
    """Limits on the bytes of bodies in memory, in total and per user."""

    max_bytes: int = MAX_BYTES
    max_bytes_per_user: int = MAX_BYTES_PER_USER
    shared: SharedCapacity | None = None
    """Bytes that all servers of the process may hold, if there are several."""
    owner: str = ""
    """Name of this server among those that share the bytes."""
    total_bytes: int = 0
    bytes_by_user: dict[str, int] = field(default_factory=dict)

    def acquire(self, user: str, size: int) -> None:
        """Reserve bytes. Raises TooManyRequests if a limit is reached."""
        user_bytes = self.bytes_by_user.get(user, 0) + size
        is_shared_full = self.shared is not None and not self.shared.has_capacity(self.owner, size)
        if user_bytes > self.max_bytes_per_user or self.total_bytes + size > self.max_bytes or is_shared_full:
            raise api_errors.too_many_requests()
        if self.shared is not None:
            self.shared.acquire(self.owner, size)
        self.bytes_by_user[user] = user_bytes
        self.total_bytes += size

    def release(self, user: str, size: int) -> None:
        if self.shared is not None:
            self.shared.release(self.owner, size)
        self.total_bytes -= size
        remaining = self.bytes_by_user.get(user, 0) - size
        if remaining > 0:
            self.bytes_by_user[user] = remaining
        else:
            self.bytes_by_user.pop(user, None)


@dataclass(slots=True)
class Upload:
    """A body that is still arriving."""

    exchange: Exchange
    budget: UploadBudget
    user: str
    timeout: float
    """Maximum seconds that it may take."""
    acquire_slot: Callable[[], InflightSlot]
    """Take an inflight slot when the body is complete."""
    slot: InflightSlot | None = None
    size: int = 0

    async def read(self) -> bytes:
        try:
            return await self._read()
        except TooManyRequests:
            REQUEST_TERMINATIONS.labels(self.exchange.method, "429", COMPONENT).inc()
            raise

    async def chunks(self) -> AsyncIterator[bytes]:
        while piece := await self.exchange.read():
            yield piece

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
        """Release the budget and the slot; call it once, after the response."""
        self.budget.release(self.user, self.size)
        if self.slot is not None:
            release(self.slot)
