"""Translation of WebSocket clients to SPDY servers."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from websockets.frames import CloseCode

from tapestry.streams.background import background_tasks
from tapestry.streams.connection import SocketConnection
from tapestry.streams.port_forward import serve_port_forward
from tapestry.streams.remote_command import V4, V5, Channel, RequestedStreams, SpdyChannels, exit_status
from tapestry.streams.spdy_connection import SpdyConnection
from tapestry.streams.translator import translate_port_forward, translate_remote_command
from tapestry.streams.tunnel import Transferred

from .peers import WebSocketClient, connected

ALL = RequestedStreams(stdin=True, stdout=True, stderr=True, terminal=False)
TERMINAL = RequestedStreams(stdin=True, stdout=True, stderr=False, terminal=True)
Serve = Callable[[SpdyChannels], Awaitable[None]]


@asynccontextmanager
async def translated(
    serve: Serve, subprotocol: str = V5, requested: RequestedStreams = ALL
) -> AsyncIterator[tuple[WebSocketClient, Transferred, SocketConnection]]:
    """Yield a client whose session `serve` handles at a SPDY server, and the connection of the server."""
    async with connected() as (near, far), connected() as (back, kubelet):
        transferred = Transferred()
        server = SpdyChannels(kubelet, requested, is_server=True)

        async def run() -> None:
            with suppress(ConnectionError):
                await server.run()

        async def handle() -> None:
            with suppress(ConnectionError):
                await server.start()
                await serve(server)

        async with background_tasks(run(), handle()), asyncio.TaskGroup() as group:
            group.create_task(translate_remote_command(near, subprotocol, back, requested, transferred))
            yield WebSocketClient(far), transferred, kubelet


async def cat(channels: SpdyChannels) -> None:
    while data := await channels.read(Channel.STDIN):
        await channels.write(Channel.STDOUT, data)
    await channels.write(Channel.STDERR, b"done")
    await channels.write(Channel.ERROR, exit_status(7))
    await channels.close()


async def test_streams_half_close_and_exit_code_are_translated() -> None:
    async with translated(cat) as (client, transferred, _):
        for _ in range(3):
            await client.send(b"\x00" + b"abc" * 1000)
        await client.send(b"\xff\x00")
        output = await client.channels()
    assert output == {1: b"abc" * 3000, 2: b"done", 3: exit_status(7)}
    assert transferred == Transferred(9000, 9000 + 4 + len(exit_status(7)))
    assert client.protocol.close_rcvd is not None
    assert client.protocol.close_rcvd.code == CloseCode.NORMAL_CLOSURE


async def test_large_transfers_keep_their_bytes() -> None:
    chunk = bytes(range(256)) * 128

    async def send(client: WebSocketClient) -> None:
        for _ in range(300):
            await client.send(b"\x00" + chunk)
        await client.send(b"\xff\x00")

    async with translated(cat) as (client, _, _), asyncio.TaskGroup() as group:
        group.create_task(send(client))
        assert (await client.channels())[1] == chunk * 300


async def test_resizes_reach_the_server() -> None:
    async def report(channels: SpdyChannels) -> None:
        await channels.write(Channel.STDOUT, await channels.read(Channel.RESIZE))
        await channels.write(Channel.ERROR, exit_status(0))
        await channels.close()

    async with translated(report, V4, TERMINAL) as (client, _, _):
        await client.send(b'\x04{"Width":100,"Height":50}')
        output = await client.channels()
    assert output == {1: b'{"Width":100,"Height":50}', 3: exit_status(0)}


async def test_lost_server_is_reported_to_the_client() -> None:
    async def start(channels: SpdyChannels) -> None:
        await channels.write(Channel.STDOUT, b"begin")

    async with translated(start) as (client, _, kubelet):
        assert await client.message() == b"\x01"
        assert await client.message() == b"\x01begin"
        kubelet.abort()
        status = json.loads((await client.channels())[3])
    assert (status["status"], status["message"]) == (
        "Failure",
        "Internal error occurred: the connection to the node was lost",
    )


@pytest.mark.parametrize("subprotocol", [V4, V5])
async def test_input_of_a_disconnected_client_reaches_the_server(subprotocol: str) -> None:
    received: list[bytes] = []

    async def collect(channels: SpdyChannels) -> None:
        with suppress(ConnectionError):
            while data := await channels.read(Channel.STDIN):
                received.append(data)
        await channels.close()

    async with translated(collect, subprotocol) as (client, _, _):
        await client.send(b"\x00last words")
        await client.connection.close()
    assert b"".join(received) == b"last words"


async def test_invalid_client_ends_the_session_at_the_server() -> None:
    ended = asyncio.Event()

    async def wait(channels: SpdyChannels) -> None:
        with suppress(ConnectionError):
            await channels.read(Channel.STDIN)
        ended.set()
        await channels.close()

    async with translated(wait) as (client, _, _):
        await client.connection.write(b"\x83\x80\x00\x00\x00\x00")
        assert await ended.wait()


async def test_port_forward_passes_spdy_through() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read(-1)).upper())
        await writer.drain()
        writer.close()

    async with (
        await asyncio.start_server(serve, "127.0.0.1", 0) as target,
        connected() as (near, far),
        connected() as (back, kubelet),
    ):

        async def dial(_: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await asyncio.open_connection(*target.sockets[0].getsockname())

        transferred = Transferred()
        websocket = WebSocketClient(far)
        spdy = SpdyConnection(ClientTunnel(websocket), is_server=False)

        async def run() -> None:
            with suppress(ConnectionError):
                await spdy.run()

        async with background_tasks(serve_port_forward(kubelet, dial), run()), asyncio.TaskGroup() as group:
            group.create_task(translate_port_forward(near, back, transferred))
            errors = await spdy.open({"streamtype": "error", "port": "80", "requestid": "0"})
            data = await spdy.open({"streamtype": "data", "port": "80", "requestid": "0"})
            await data.write(b"hello")
            await data.end()
            assert await data.read() == b"HELLO"
            assert await errors.read() == b""
            websocket.protocol.send_close(CloseCode.NORMAL_CLOSURE)
            await websocket.flush()
        assert transferred.received > 0
        assert transferred.sent > 0


class ClientTunnel:
    """Client side of a tunnel."""

    peer = ""

    def __init__(self, websocket: WebSocketClient) -> None:
        self._websocket = websocket

    async def read(self) -> bytes:
        return await self._websocket.message() or b""

    async def write(self, data: bytes) -> None:
        await self._websocket.send(data)

    async def close(self) -> None:
        await self._websocket.connection.close()

    def abort(self) -> None:
        self._websocket.connection.abort()
