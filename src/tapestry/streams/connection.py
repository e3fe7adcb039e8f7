"""Duplex byte streams: connections that are no longer HTTP after an upgrade."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, Self, cast

MAX_BUFFERED_BYTES = 1 << 18
"""Unread bytes after which reading from the peer is paused."""
CLOSE_SECONDS = 5.0
"""Seconds for which a closed connection may send what was written before."""
KEEPALIVE_OPTIONS = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
"""TCP keep-alive options: a vanished peer is detected within 30 s.  Options that the platform lacks are skipped."""


class Connection(Protocol):
    """A duplex byte stream."""

    @property
    def peer(self) -> str:
        """IP address of the other side."""
        ...

    async def read(self) -> bytes:
        """Return the bytes that have arrived, at least one.  Return nothing at the end of the stream."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes, and wait while the peer does not read.  Raise ConnectionError if the connection is closed."""
        ...

    async def close(self) -> None:
        """Send what was written, and close the connection."""
        ...

    def abort(self) -> None:
        """Close the connection at once."""
        ...


class SocketConnection(asyncio.Protocol):
    """A Connection on an asyncio transport, with or without TLS."""

    peer = ""
    _transport: asyncio.Transport
    _tls: ssl.SSLObject | None = None

    def __init__(self, on_lost: Callable[[], None] | None = None) -> None:
        self._on_lost = on_lost
        """Called when the connection is closed by either side."""
        self._chunks: list[bytes] = []
        self._size = 0
        self._is_paused = False
        self._is_ended = False
        self._reader: asyncio.Future[None] | None = None
        self._write_blocked: asyncio.Future[None] | None = None
        """Set while the peer does not read."""
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    def take_over(cls, transport: asyncio.Transport, on_lost: Callable[[], None] | None = None) -> Self:
        """Return a connection on a transport that another protocol has used."""
        connection = cls(on_lost)
        transport.pause_reading()  # uvloop passes data to the former protocol until reading starts again
        transport.set_protocol(connection)
        connection.connection_made(transport)
        transport.resume_reading()
        return connection

    # -- use

    async def read(self) -> bytes:
        while not self._chunks and not self._is_ended:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    def unread(self, data: bytes) -> None:
        """Put bytes back, in front of those that have arrived."""
        if data:
            self._chunks.insert(0, data)
            self._size += len(data)

    async def write(self, data: bytes) -> None:
        if self._transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        self._transport.write(data)
        if self._write_blocked is not None:
            await asyncio.shield(self._write_blocked)  # several writers may wait for it

    async def close(self) -> None:
        self._transport.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.shield(self._lost)
        self.abort()

    def abort(self) -> None:
        self._transport.abort()

    # -- transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        self._tls = transport.get_extra_info("ssl_object")

    def data_received(self, data: bytes) -> None:
        self._chunks.append(data)
        self._size += len(data)
        if self._size > MAX_BUFFERED_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake_reader()

    def pause_writing(self) -> None:
        if self._write_blocked is None:
            self._write_blocked = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._write_blocked is not None and not self._write_blocked.done():
            self._write_blocked.set_result(None)
        self._write_blocked = None

    def eof_received(self) -> None:
        """Close the connection: the protocols on it end their streams themselves."""
        self._end()

    def connection_lost(self, _: Exception | None) -> None:
        if self._tls is not None:
            self._read_rest(self._tls)
        self._end()
        self.resume_writing()
        if not self._lost.done():
            self._lost.set_result(None)
        if self._on_lost is not None:
            self._on_lost()

    def _read_rest(self, tls: ssl.SSLObject) -> None:
        """Take what arrived while reading was paused or about to resume: uvloop drops it when the peer closes."""
        with suppress(ssl.SSLError):
            while data := tls.read(MAX_BUFFERED_BYTES):
                self._chunks.append(data)

    def _end(self) -> None:
        self._is_ended = True
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def enable_keepalive(sock: socket.socket) -> None:
    """Let the kernel detect a vanished peer, also while the connection is idle for hours."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE_OPTIONS.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
