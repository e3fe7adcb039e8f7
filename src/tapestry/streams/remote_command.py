"""Remote command protocol of exec and attach: its channels over WebSocket and over SPDY.

The versions are `v5.channel.k8s.io` (WebSocket) and `v4.channel.k8s.io` (WebSocket and SPDY). Kubernetes also has older
versions without exit codes, and base64 encodings of them. kubectl and the client libraries of Kubernetes do not need
them, so they are not supported.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import msgspec

from tapestry.streams.connection import Connection
from tapestry.streams.input_stream import InputBudget, InputStream
from tapestry.streams.spdy_connection import SpdyConnection, SpdyStream
from tapestry.streams.websocket import WebSocket

V4 = "v4.channel.k8s.io"
V5 = "v5.channel.k8s.io"
WEBSOCKET_PROTOCOLS = (V5, V4)
SPDY_PROTOCOLS = (V4,)
STREAM_TYPE = "streamtype"
"""Header of a SPDY stream that names its channel."""
STREAMS_SECONDS = 30.0
"""Seconds in which a SPDY client must open its streams."""
DISCONNECT_SECONDS = 5.0
"""Seconds for which a command may continue after its client has disconnected."""
CLOSE_SIGNAL = 255
"""Number of the messages that end a channel: the number of the channel follows."""
MAX_RESIZE_BYTES = 1024


class Channel(IntEnum):
    """Streams of a session, numbered as in the messages of WebSockets."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    ERROR = 3
    """End with a Status object: the result of the command."""
    RESIZE = 4
    """Sizes of the client's terminal, as JSON objects."""


STREAM_TYPES = {each: each.name.lower() for each in Channel}


@dataclass(frozen=True, slots=True)
class RequestedStreams:
    """Streams that a client requests in the query of exec or attach. A terminal has no stderr of its own."""

    stdin: bool
    stdout: bool
    stderr: bool
    terminal: bool

    def channels(self) -> list[Channel]:
        """Return the channels of a SPDY session, in the order in which kubectl opens them."""
        wanted = {
            Channel.ERROR: True,
            Channel.STDIN: self.stdin,
            Channel.STDOUT: self.stdout,
            Channel.STDERR: self.stderr,
            Channel.RESIZE: self.terminal,
        }
        return [channel for channel, is_wanted in wanted.items() if is_wanted]


class CommandChannels(Protocol):
    """The channels of one session, while `run` is running."""

    async def run(self) -> None:
        """Receive until the session ends. Raise ConnectionError if the peer ends it."""
        ...

    async def start(self) -> None:
        """Establish the channels that the client requested; raise ConnectionError if the peer does not."""
        ...

    async def read(self, channel: Channel) -> bytes:
        """Return the bytes that have arrived; none at the end. Raise ConnectionError if the peer disconnected.

        A channel that the client did not request has no end before the session ends.
        """
        ...

    async def write(self, channel: Channel, data: bytes) -> None:
        """Send bytes, and wait while the peer does not read. Those of a channel that is not open are dropped."""
        ...

    async def ping_regularly(self) -> None: ...

    async def close(self) -> None:
        """Send the end of all channels, and close the connection when the peer has read them."""
        ...


class WebSocketChannels:
    """Server side of a session over WebSocket: each message starts with the number of its channel."""

    def __init__(self, websocket: WebSocket, subprotocol: str, requested: RequestedStreams) -> None:
        self._websocket = websocket
        self._has_close_signal = subprotocol == V5
        self._budget = InputBudget()
        self._inputs = {each: InputStream(self._budget) for each in (Channel.STDIN, Channel.RESIZE)}
        self._open = set(requested.channels())
        self._channel: int | None = None
        """Channel of the message that is arriving."""
        self._is_closing = False

    async def run(self) -> None:
        error: ConnectionError = ConnectionResetError("the client has closed the session")
        try:
            while fragments := await self._websocket.read():
                for data, is_first in fragments:
                    self._receive(data, is_first)
                await self._budget.wait_for_space()
        except ConnectionError as lost:
            error = lost
        finally:
            for each in self._inputs.values():
                each.end(error)
        if not self._is_closing:
            raise error

    def _receive(self, data: bytes, is_first: bool) -> None:
        if is_first:
            self._channel, data = (data[0], data[1:]) if data else (None, b"")
        if self._channel == CLOSE_SIGNAL and self._has_close_signal:
            if len(data) > 1 or any(each not in STREAM_TYPES for each in data):
                raise ConnectionAbortedError("the close signal of the client is not valid")
            for each in data:
                if each in self._inputs:
                    self._inputs[Channel(each)].end()
        elif self._channel in self._inputs and self._channel in self._open and not self._is_closing:
            self._inputs[Channel(self._channel)].feed(data)

    async def start(self) -> None:
        # as kubelets do: some clients wait for a first message
        await self.write(min(self._open - self._inputs.keys()), b"")

    async def read(self, channel: Channel) -> bytes:
        return await self._inputs[channel].read()

    async def write(self, channel: Channel, data: bytes) -> None:
        if channel in self._open:
            await self._websocket.write(bytes((channel,)) + data)

    async def ping_regularly(self) -> None:
        await self._websocket.ping_regularly()

    async def close(self) -> None:
        self._is_closing = True
        self._budget.lift()
        await self._websocket.close()


class SpdyChannels:
    """Either side of a session over SPDY: each channel is a stream."""

    def __init__(self, connection: Connection, requested: RequestedStreams, *, is_server: bool) -> None:
        self._spdy = SpdyConnection(connection, is_server=is_server)
        self._is_server = is_server
        self._requested = requested
        self._streams: Mapping[Channel, SpdyStream] = {}
        self._absent = InputStream(InputBudget())
        """Input of the channels that are not open."""
        self._is_closing = False

    async def run(self) -> None:
        error: ConnectionError = ConnectionResetError("the peer has closed the session")
        try:
            await self._spdy.run()
        except ConnectionError as lost:
            error = lost
        finally:
            self._absent.end(error)
        if not self._is_closing:
            raise error

    async def start(self) -> None:
        if self._is_server:
            self._streams = await accepted_streams(self._spdy, self._requested)
        else:
            self._streams = {
                each: await self._spdy.open({STREAM_TYPE: STREAM_TYPES[each]}) for each in self._requested.channels()
            }

    async def read(self, channel: Channel) -> bytes:
        stream = self._streams.get(channel)
        return await (stream.read() if stream is not None else self._absent.read())

    async def write(self, channel: Channel, data: bytes) -> None:
        if (stream := self._streams.get(channel)) is not None:
            with suppress(BrokenPipeError):  # the peer does not want more of this stream
                await stream.write(data)

    async def end(self, channel: Channel) -> None:
        """Send the end of a channel."""
        if (stream := self._streams.get(channel)) is not None:
            await stream.end()

    async def ping_regularly(self) -> None:
        await self._spdy.ping_regularly()

    async def close(self) -> None:
        self._is_closing = True
        with suppress(ConnectionError):
            for each in self._streams.values():
                await each.end()
        await self._spdy.close()


async def accepted_streams(spdy: SpdyConnection, requested: RequestedStreams) -> dict[Channel, SpdyStream]:
    """Accept the streams of a SPDY client, and reset those that it did not request; raise ConnectionAbortedError."""
    missing = {STREAM_TYPES[each]: each for each in requested.channels()}
    streams: dict[Channel, SpdyStream] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(STREAMS_SECONDS):
            while missing:
                stream = await spdy.next_stream()
                channel = missing.pop(stream.headers.get(STREAM_TYPE, ""), None)
                if channel is None:
                    await stream.reset()
                else:
                    streams[channel] = stream
                    await stream.accept()
    if missing:
        raise ConnectionAbortedError(f"the client did not open the streams {', '.join(missing)}")
    return streams


async def wait_for_disconnect(channels: CommandChannels) -> None:
    """Receive until the session ends. If the client disconnects, raise ConnectionError after a grace period.

    During this time, input that the client has sent still reaches the command.
    """
    try:
        await channels.run()
    except ConnectionError:
        await asyncio.sleep(DISCONNECT_SECONDS)
        raise


# -- contents of channels


def exit_status(code: int) -> bytes:
    """Return the Status object for the exit code of a command."""
    if code == 0:
        return msgspec.json.encode({"metadata": {}, "status": "Success"})
    return msgspec.json.encode(
        {
            "metadata": {},
            "status": "Failure",
            "message": f"command terminated with non-zero exit code: exit status {code}",
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
        }
    )


def failure_status(message: str) -> bytes:
    """Return the Status object for a session that failed."""
    return msgspec.json.encode(
        {
            "metadata": {},
            "status": "Failure",
            "message": f"Internal error occurred: {message}",
            "reason": "InternalError",
            "details": {"causes": [{"message": message}]},
            "code": 500,
        }
    )


class ResizeParser:
    """Parse the sizes of a terminal, which arrive as JSON objects in any number of pieces."""

    def __init__(self) -> None:
        self._unparsed = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield the sizes (width, height) that are complete; raise ValueError for other input."""
        *complete, self._unparsed = (self._unparsed + data).split(b"}")
        for each in complete:
            yield terminal_size(each + b"}")
        if len(self._unparsed) > MAX_RESIZE_BYTES:
            raise ValueError("the size of a terminal is too long")


def terminal_size(text: bytes) -> tuple[int, int]:
    value: Any = msgspec.json.decode(text)
    width, height = value.get("Width"), value.get("Height")
    if not all(isinstance(each, int) and 0 <= each < 1 << 16 for each in (width, height)):
        raise ValueError("the size of a terminal is not valid")
    return width, height
