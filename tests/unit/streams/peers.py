"""Peers for tests of streams: connected sockets, and the client side of a WebSocket."""

import asyncio
import socket
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, Protocol

from tapestry.streams.connection import SocketConnection

SECONDS = 30.0


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[SocketConnection, SocketConnection]]:
    """Yield the two ends of a connection; a test that hangs fails."""
    loop = asyncio.get_running_loop()
    ends = [(await loop.create_connection(SocketConnection, sock=each))[1] for each in socket.socketpair()]
    try:
        async with asyncio.timeout(SECONDS):
            yield ends[0], ends[1]
    finally:
        for each in ends:
            each.abort()


class WebSocketClient:
    """Client side of a WebSocket."""

    def __init__(self, connection: SocketConnection) -> None:
        self.connection = connection
        self.protocol = Protocol(CLIENT)
        self._frames: list[Frame] = []

    async def send(self, message: bytes) -> None:
        self.protocol.send_binary(message)
        await self.flush()

    async def flush(self) -> None:
        await self.connection.write(b"".join(self.protocol.data_to_send()))

    async def frame(self) -> Frame | None:
        """Return the next frame, or None when the server has closed the connection."""
        while not self._frames:
            data = await self.connection.read()
            if not data:
                return None
            self.protocol.receive_data(data)
            self._frames += self.protocol.events_received()
            if self.protocol.close_rcvd is not None:
                await self.flush()
        return self._frames.pop(0)

    async def message(self) -> bytes | None:
        """Return the next binary message, or None at the end."""
        while (frame := await self.frame()) is not None:
            if frame.opcode is Opcode.BINARY:
                return bytes(frame.data)
        return None

    async def channels(self) -> dict[int, bytes]:
        """Return all that the server sends until it closes the WebSocket, by channel."""
        result: dict[int, bytearray] = defaultdict(bytearray)
        while (message := await self.message()) is not None:
            result[message[0]] += message[1:]
        return {channel: bytes(data) for channel, data in result.items() if data}
