"""Server side of port-forward over SPDY: two streams for each forwarded connection, one for data and one for errors.

Clients open SPDY directly or in a WebSocket (`SPDY/3.1+portforward.k8s.io`); see `websocket.WebSocketTunnel`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from tapestry.streams.background import background_tasks
from tapestry.streams.connection import Connection
from tapestry.streams.spdy_connection import SpdyConnection, SpdyStream

PORT_FORWARD = "portforward.k8s.io"
TUNNEL = "SPDY/3.1+portforward.k8s.io"
MAX_CONNECTIONS = 256
"""Maximum number of forwarded connections of a session."""
PAIR_SECONDS = 30.0
"""Seconds in which the second stream of a connection must follow the first."""
CHUNK_BYTES = 1 << 16

Dial = Callable[[int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Connect to a port of the pod; raise OSError with a message for the client."""


@dataclass(eq=False)
class Pair:
    """The streams of one forwarded connection, by type."""

    port: int
    streams: dict[str, SpdyStream] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None


@dataclass(eq=False)
class PortForwarder:
    """A session of port-forward."""

    spdy: SpdyConnection
    dial: Dial
    group: asyncio.TaskGroup
    _incomplete: dict[str, Pair] = field(default_factory=dict, init=False)
    """Pairs with one stream, by request ID."""
    _connections: int = field(default=0, init=False)

    async def accept_streams(self) -> None:
        """Pair the streams that the client opens, and forward each pair."""
        while True:
            stream = await self.spdy.next_stream()
            pair = self._pair(stream)
            if pair is None:
                await stream.reset()
                continue
            await stream.accept()
            if len(pair.streams) == 2:
                self._connections += 1
                self.group.create_task(self._forward(pair))

    def _pair(self, stream: SpdyStream) -> Pair | None:
        """Return the pair of a new stream; None if the stream is not valid or there are too many connections."""
        kind, port = stream.headers.get("streamtype", ""), port_number(stream.headers.get("port", ""))
        # without the header, as from old clients, the data stream follows the error stream
        default_id = f"stream {stream.id - 2 if kind == 'data' else stream.id}"
        request_id = stream.headers.get("requestid") or default_id
        pair = self._incomplete.get(request_id)
        if kind not in ("data", "error") or port is None:
            return None
        if pair is None:
            if self._connections + len(self._incomplete) >= MAX_CONNECTIONS:
                return None
            pair = self._incomplete[request_id] = Pair(port)
            pair.timer = asyncio.get_running_loop().call_later(PAIR_SECONDS, self._expire, request_id)
        if kind in pair.streams or pair.port != port:
            return None
        pair.streams[kind] = stream
        if len(pair.streams) == 2:
            del self._incomplete[request_id]
            if pair.timer is not None:
                pair.timer.cancel()
        return pair

    def _expire(self, request_id: str) -> None:
        for each in self._incomplete.pop(request_id).streams.values():
            self.group.create_task(self._reset(each))

    async def _reset(self, stream: SpdyStream) -> None:
        with suppress(ConnectionError):
            await stream.reset()

    async def _forward(self, pair: Pair) -> None:
        data, errors = pair.streams["data"], pair.streams["error"]
        errors.input.drop()
        try:
            try:
                reader, writer = await self.dial(pair.port)
            except OSError as error:
                await errors.write(f"error forwarding port {pair.port}: {error}".encode())
            else:
                await exchange_bytes(data, reader, writer)
            await errors.end()
            await data.end()
        except ConnectionError:
            pass  # the client has disconnected
        finally:
            self._connections -= 1
            await self._reset(data)
            await self._reset(errors)


async def serve_port_forward(connection: Connection, dial: Dial) -> None:
    """Forward the connections of a client until it disconnects."""
    spdy = SpdyConnection(connection, is_server=True)
    try:
        async with asyncio.TaskGroup() as group:
            forwarder = PortForwarder(spdy, dial, group)
            async with background_tasks(spdy.ping_regularly(), forwarder.accept_streams()):
                await spdy.run()
            raise ConnectionResetError("the client has disconnected")  # cancels the forwarded connections
    except* ConnectionError:
        pass
    finally:
        connection.abort()


async def exchange_bytes(stream: SpdyStream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy both ways until the server has closed its side; the end of each direction is passed on."""
    try:
        async with background_tasks(copy_to_server(stream, writer)):
            while chunk := await reader.read(CHUNK_BYTES):
                await stream.write(chunk)
    except* ConnectionError:
        pass  # of either side: the connection ends
    finally:
        writer.close()


async def copy_to_server(stream: SpdyStream, writer: asyncio.StreamWriter) -> None:
    while chunk := await stream.read():
        writer.write(chunk)
        await writer.drain()
    if stream.is_reset:
        raise ConnectionResetError("the client has reset the stream")
    writer.write_eof()


def port_number(text: str) -> int | None:
    """Return a valid port, or None."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 1 << 16 else None
