"""The transport interface of the client, and its request and response types."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

JSON = "application/json"
SMALL_RESPONSE_BYTES = 1 << 20
"""Maximum bytes of a response from an unknown server, and of responses that are always small."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request to an API server.  `path` is already quoted.  `timeout` is in seconds for the whole exchange."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = JSON
    accept: str = JSON
    timeout: float = 30.0
    max_body: int | None = None
    """Maximum bytes of the response body.  None means the limit of the transport."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Response:
    """A complete response.  Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Stream(Protocol):
    """A response that is still arriving.  Chunks may be split anywhere."""

    @property
    def status(self) -> int: ...

    def chunks(self) -> AsyncIterator[bytes]: ...


class Transport(Protocol):
    """Send requests.  Raise TransportError if there is no response, never because of the response's content."""

    async def send(self, request: Request) -> Response: ...

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]: ...

    def abort(self) -> None:
        """Cut every connection at once, without waiting.  Requests in flight fail, later ones reconnect."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SmallResponseTransport:
    """A Transport that limits responses to a small size, for a server that is not known yet."""

    transport: Transport

    async def send(self, request: Request) -> Response:
        return await self.transport.send(replace(request, max_body=SMALL_RESPONSE_BYTES))

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        return self.transport.stream(request)

    def abort(self) -> None:
        self.transport.abort()

    async def close(self) -> None:
        await self.transport.close()
