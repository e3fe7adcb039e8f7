"""SPDY connections on upgraded HTTP connections: streams that are read and written independently.

A peer is slowed down by not reading the connection while too many bytes of all its streams are unread. So a stream that
is not read delays the other streams of its connection, as in kubelets.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from tapestry.streams.connection import Connection
from tapestry.streams.input_stream import InputBudget, InputStream
from tapestry.streams.spdy import (
    DataReceived,
    Event,
    GoneAway,
    SpdyProtocol,
    StreamEnded,
    StreamOpened,
    StreamReplied,
    StreamReset,
)

REPLY_SECONDS = 30.0
"""Seconds in which the peer must accept a new stream."""
MAX_BACKLOG = 128
"""Maximum number of streams that wait to be accepted; others are refused."""
PING_SECONDS = 30.0
"""Seconds between pings, which keep idle connections open."""
CLOSE_SECONDS = 2.0
"""Seconds for which the peer may take to close the connection after the last frame."""


class SpdyStream:
    """One stream, with a single reader."""

    def __init__(self, connection: "SpdyConnection", stream_id: int, headers: Mapping[str, str]) -> None:
        self._connection = connection
        self.id = stream_id
        self.headers = headers
        """Headers with which the stream was opened; names are in lower case."""
        self.input = InputStream(connection.budget)
        self.answered = asyncio.Event()
        """Set when the peer has accepted or reset this stream, or when the connection has ended."""
        self.is_accepted = False
        self.is_reset = False
        """True if the peer has closed the stream in both directions."""

    async def accept(self) -> None:
        """Accept a stream that the peer has opened."""
        await self._connection.send(self._connection.protocol.reply_frame(self.id))

    async def read(self) -> bytes:
        """Return the bytes that have arrived; none after the end. Raise ConnectionError if the connection was lost."""
        return await self.input.read()

    async def write(self, data: bytes) -> None:
        """Send bytes; raise BrokenPipeError if the stream is closed."""
        if data:
            await self._connection.send(self._connection.protocol.data_frame(self.id, data))

    async def end(self) -> None:
        """Send the end of the data; the peer may still send. A second call has no effect."""
        with suppress(BrokenPipeError):
            await self._connection.send(self._connection.protocol.data_frame(self.id, b"", is_last=True))

    async def reset(self) -> None:
        """Close the stream in both directions. A second call has no effect."""
        self._connection.streams.pop(self.id, None)
        self.input.drop()
        await self._connection.send(self._connection.protocol.reset_frame(self.id))


class SpdyConnection:
    """One side of a SPDY connection; `run` must be running."""

    def __init__(self, connection: Connection, *, is_server: bool) -> None:
        self._connection = connection
        self.protocol = SpdyProtocol(is_server=is_server)
        self.budget = InputBudget()
        self.streams: dict[int, SpdyStream] = {}
        """Streams whose input has not ended."""
        self._opened: asyncio.Queue[SpdyStream] = asyncio.Queue()
        """Streams of the peer that were not accepted yet."""
        self._is_closing = False
        self._is_gone_away = False
        self._finished = asyncio.Event()
        """Set when the peer has nothing more to send."""

    async def run(self) -> None:
        """Receive frames until the connection ends. Raise ConnectionError if it was lost or the peer is invalid."""
        error: ConnectionError | None = None
        try:
            while data := await self._connection.read():
                try:
                    for event in self.protocol.receive_data(data):
                        self._dispatch(event)
                finally:
                    with suppress(ConnectionError):  # what the peer sent before it disconnected is still read
                        await self.send(self.protocol.data_to_send())
                await self.budget.wait_for_space()
            if not self._is_gone_away and not self._is_closing:
                error = ConnectionResetError("the connection was closed")
        except ConnectionError as lost:
            error = lost
        finally:
            self._finished.set()
            for stream in self.streams.values():
                stream.input.end(error)
                stream.answered.set()
        if error is not None:
            raise error

    async def open(self, headers: Mapping[str, str]) -> SpdyStream:
        """Open a stream, and wait until the peer accepts it."""
        stream_id, frame = self.protocol.open_stream(headers)
        stream = self.streams[stream_id] = SpdyStream(self, stream_id, headers)
        await self.send(frame)
        with suppress(TimeoutError):
            async with asyncio.timeout(REPLY_SECONDS):
                await stream.answered.wait()
        if not stream.is_accepted:
            raise ConnectionRefusedError("the server does not accept a stream")
        return stream

    async def next_stream(self) -> SpdyStream:
        """Return the next stream that the peer opens; the caller accepts or resets it."""
        return await self._opened.get()

    async def ping_regularly(self) -> None:
        """Send pings, so that no proxy on the way closes an idle connection."""
        with suppress(ConnectionError):
            while True:
                await asyncio.sleep(PING_SECONDS)
                await self.send(self.protocol.ping_frame())

    async def send(self, frames: bytes) -> None:
        """Send frames, and wait while the peer does not read."""
        if frames:
            await self._connection.write(frames)

    async def close(self) -> None:
        """Announce the end, and close the connection when the peer has announced it too, or has closed it.

        `run` continues until then, because unread input would make the operating system discard what was sent last.
        """
        self._is_closing = True
        self.budget.lift()
        try:
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self.send(self.protocol.goaway_frame())
                    await self._finished.wait()
            await self._connection.close()
        finally:
            self._connection.abort()

    def abort(self) -> None:
        self._connection.abort()

    def _dispatch(self, event: Event) -> None:
        match event:
            case GoneAway():
                self._is_gone_away = True
                self._finished.set()
            case StreamOpened(stream_id, headers):
                if self._is_closing or self._opened.qsize() >= MAX_BACKLOG:
                    self.protocol.refuse(stream_id)
                else:
                    stream = self.streams[stream_id] = SpdyStream(self, stream_id, headers)
                    self._opened.put_nowait(stream)
            case StreamReplied(stream_id):
                if (own := self.streams.get(stream_id)) is not None:
                    own.is_accepted = True
                    own.answered.set()
            case DataReceived(stream_id, data):
                if (receiver := self.streams.get(stream_id)) is not None and not self._is_closing:
                    receiver.input.feed(data)
            case StreamEnded(stream_id) | StreamReset(stream_id):
                if (ended := self.streams.pop(stream_id, None)) is not None:
                    ended.is_reset = isinstance(event, StreamReset)
                    ended.input.end()
                    ended.answered.set()
