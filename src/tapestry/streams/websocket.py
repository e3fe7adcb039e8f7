"""Server side of WebSockets (RFC 6455) on upgraded HTTP connections.

The library `websockets` implements the protocol. It rejects unmasked and oversized frames, unknown opcodes, fragmented
control frames and frames out of order, and it answers pings.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from websockets.exceptions import InvalidState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import OPEN, SERVER, Protocol
from websockets.utils import accept_key

from tapestry.streams.connection import Connection
from tapestry.streams.negotiation import UpgradeRejected, first_common, header_values

MAX_FRAME_BYTES = 1 << 20
"""Maximum size of a received frame in bytes. Messages have no limit, because fragments are passed on as they arrive."""
SLICE_BYTES = 1 << 15
"""Bytes that are parsed before others may use the event loop: thousands of small frames."""
PING_SECONDS = 30.0
"""Seconds between pings, which keep idle connections open."""
CLOSE_SECONDS = 2.0
"""Seconds for which the client may take to confirm the end of the connection."""
MAX_REASON_BYTES = 120
DATA_OPCODES = frozenset({Opcode.TEXT, Opcode.BINARY, Opcode.CONT})
LOGGER = logging.getLogger("websockets.server")
LOGGER.setLevel(logging.WARNING)  # at lower levels, it logs the end of each connection and the content of frames


class Fragment(NamedTuple):
    """A data frame: a message, or a part of one."""

    data: bytes
    is_first: bool
    """True if a message begins with this frame."""


class WebSocket:
    """An open WebSocket, at the server. It has one reader and any number of writers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._protocol = Protocol(SERVER, max_size=(None, MAX_FRAME_BYTES), logger=LOGGER)
        self._unparsed = b""
        self._is_being_read = False
        self._ended = asyncio.Event()
        """Set when nothing more can be read."""

    @property
    def peer(self) -> str:
        return self._connection.peer

    async def read(self) -> Sequence[Fragment]:
        """Return the fragments that have arrived, at least one; none when the client has closed the WebSocket.

        Raise ConnectionError if the connection is lost, or if the client violates the protocol.
        """
        self._is_being_read = True
        try:
            return await self._read()
        finally:
            self._is_being_read = False

    async def _read(self) -> Sequence[Fragment]:
        protocol, fragments = self._protocol, list[Fragment]()
        while protocol.close_rcvd is None:
            if protocol.parser_exc is not None:
                self._ended.set()
                raise ConnectionAbortedError(f"invalid WebSocket frame: {protocol.parser_exc}")
            data = self._unparsed or await self._connection.read()
            if not data:
                self._ended.set()
                raise ConnectionResetError("the client has disconnected")
            self._unparsed = data[SLICE_BYTES:]
            protocol.receive_data(data[:SLICE_BYTES])
            for frame in protocol.events_received():
                if isinstance(frame, Frame) and frame.opcode in DATA_OPCODES:
                    fragments.append(Fragment(bytes(frame.data), frame.opcode is not Opcode.CONT))
            with suppress(ConnectionError):  # what the client sent before it disconnected is still read
                await self._flush()
            if self._unparsed:
                await asyncio.sleep(0)
            if fragments:
                return fragments
        self._ended.set()
        return ()

    async def write(self, data: bytes) -> None:
        """Send a binary message, and wait while the client does not read."""
        try:
            self._protocol.send_binary(data)
        except InvalidState as error:
            raise ConnectionResetError("the WebSocket is closed") from error
        await self._flush()

    async def ping_regularly(self) -> None:
        """Send pings, so that no proxy on the way closes an idle connection."""
        with suppress(ConnectionError):
            while self._protocol.state is OPEN:
                await asyncio.sleep(PING_SECONDS)
                self._protocol.send_ping(b"")
                await self._flush()

    async def close(self, code: int = CloseCode.NORMAL_CLOSURE, reason: str = "") -> None:
        """Close the WebSocket, and its connection when the client has confirmed that.

        A reader continues until then. Unread input would make the operating system discard what was sent last.
        """
        try:
            if self._protocol.state is OPEN:
                self._protocol.send_close(code, reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore"))
                with suppress(ConnectionError, TimeoutError):
                    async with asyncio.timeout(CLOSE_SECONDS):
                        await self._flush()
                        while not self._is_being_read and await self.read():
                            pass
                        await self._ended.wait()
            await self._connection.close()
        finally:
            self._connection.abort()

    def abort(self) -> None:
        self._connection.abort()

    async def _flush(self) -> None:
        if output := b"".join(self._protocol.data_to_send()):
            await self._connection.write(output)


class WebSocketTunnel:
    """A byte stream in the binary messages of a WebSocket; message boundaries have no meaning."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    @property
    def peer(self) -> str:
        return self._websocket.peer

    async def read(self) -> bytes:
        data = b""
        while not data:  # messages may be empty
            fragments = await self._websocket.read()
            if not fragments:
                return b""
            data = b"".join([each.data for each in fragments])
        return data

    async def write(self, data: bytes) -> None:
        await self._websocket.write(data)

    async def close(self) -> None:
        await self._websocket.close()

    def abort(self) -> None:
        self._websocket.abort()


def websocket_handshake(
    method: str, headers: Mapping[str, str], supported: Sequence[str]
) -> tuple[str, dict[str, str]]:
    """Return the negotiated subprotocol and the headers of the response; raise UpgradeRejected.

    `headers` are those of the request, with names in lower case. A subprotocol is required.
    """
    key = headers.get("sec-websocket-key", "")
    if method != "GET" or headers.get("sec-websocket-version") != "13" or not key:
        raise UpgradeRejected(400, "the WebSocket handshake is not valid: GET, a key and version 13 are required")
    requested = header_values(headers.get("sec-websocket-protocol", ""))
    subprotocol = first_common(requested, supported)
    if subprotocol is None:
        raise UpgradeRejected(
            400, f"no requested WebSocket subprotocol is supported: {', '.join(requested)}; use {', '.join(supported)}"
        )
    return subprotocol, {
        "Upgrade": "websocket",
        "Sec-WebSocket-Accept": accept_key(key),
        "Sec-WebSocket-Protocol": subprotocol,
    }
