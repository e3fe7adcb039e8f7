"""The seam between the verbs of a client and whatever carries them: HTTP, or a server in this process."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

JSON = "application/json"
SMALL_RESPONSE_BYTES = 1 << 20
"""Bytes for an answer of a server that nobody knows yet, and for what is always small."""


@dataclass(frozen=True, slots=True)
class Request:
    """One exchange with an API server.  `path` is quoted already; `timeout` is in seconds for the whole of it."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = JSON
    accept: str = JSON
    timeout: float = 30.0
    max_body: int | None = None
    """Bytes that the body of the answer may have; None for what the transport allows."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Response:
    """An answer read to its end.  Headers are looked up in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Stream(Protocol):
    """An answer that is still arriving: its chunks come as they do, split anywhere."""

    @property
    def status(self) -> int: ...

    def chunks(self) -> AsyncIterator[bytes]: ...


class Transport(Protocol):
    """Carries requests; raises TransportError when no answer came, never for what the answer says."""

    async def send(self, request: Request) -> Response: ...

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]: ...

    def abort(self) -> None:
        """Cut every connection at once, without waiting; requests under way fail, later ones connect anew."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SmallResponseTransport:
    """A Transport that takes small answers only: to ask a server that nobody knows yet."""

    transport: Transport

    async def send(self, request: Request) -> Response:
        return await self.transport.send(replace(request, max_body=SMALL_RESPONSE_BYTES))

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        return self.transport.stream(request)

    def abort(self) -> None:
        self.transport.abort()

    async def close(self) -> None:
        await self.transport.close()
