"""Sessions: a client connected to another server, with its slot and its audit annotations."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tapestry.apiserver.core.forwarding import UpgradeServer, forward_upgrade, is_forwarded, refused_upgrade
from tapestry.apiserver.core.requests import Call
from tapestry.apiserver.core.responses import ApiResponse, SessionResponse
from tapestry.apiserver.core.session_limiter import SessionSlot
from tapestry.streams.connection import Connection
from tapestry.streams.tunnel import Transferred, tunnel

ANNOTATION_PREFIX = "streams.tapestry.io/"


@dataclass(eq=False)
class Session:
    """One session of a client."""

    call: Call
    slot: SessionSlot
    transferred: Transferred = field(default_factory=Transferred)
    backend: Connection | None = None
    started: float = 0.0

    async def opened(self, response: Awaitable[ApiResponse | SessionResponse]) -> ApiResponse | SessionResponse:
        """Return the response, and end the session unless the response is a stream or a connection."""
        is_open = False
        try:
            result = await response
            is_open = isinstance(result, SessionResponse) or result.stream is not None
            return result
        finally:
            if not is_open:
                self.end()

    def annotate(self, **values: str) -> None:
        """Add annotations to the audit events of the call."""
        for name, value in values.items():
            self.call.audit_annotations[ANNOTATION_PREFIX + name.replace("_", "-")] = value

    async def upgrade(
        self, server: UpgradeServer, method: str, target: str, headers: Sequence[tuple[str, str]], protocol: str
    ) -> ApiResponse | SessionResponse:
        """Connect the client to a server that decides on the protocol, or return the refusal of the server."""
        response = await forward_upgrade(server, method, target, [*headers, ("Upgrade", protocol)])
        if response.connection is None:
            return refused_upgrade(response)
        self.annotate(protocol=protocol)
        forwarded = {name.title(): value for name, value in response.headers.items() if is_forwarded(name)}
        return self.tunnel(response.connection, {**forwarded, "Upgrade": response.headers.get("upgrade", protocol)})

    def tunnel(self, backend: Connection, headers: Mapping[str, str]) -> SessionResponse:
        """Return the response that connects the client to the other server, byte for byte."""
        return self.response(backend, headers, lambda client: tunnel(client, backend, self.transferred))

    def response(
        self, backend: Connection, headers: Mapping[str, str], run: Callable[[Connection], Awaitable[None]]
    ) -> SessionResponse:
        self.backend, self.started = backend, time.monotonic()
        return SessionResponse(headers, run, self.end)

    def end(self) -> None:
        """Close the connection to the other server, and state what was transferred."""
        self.slot.release()
        if self.backend is None:
            return
        self.backend.abort()
        self.annotate(
            seconds=f"{time.monotonic() - self.started:.3f}",
            bytes_received=str(self.transferred.received),
            bytes_sent=str(self.transferred.sent),
        )
