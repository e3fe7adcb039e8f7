"""Channels of exec and attach, over WebSocket and over SPDY."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.streams import remote_command, spdy_connection
from tapestry.streams.background import background_tasks
from tapestry.streams.connection import SocketConnection
from tapestry.streams.input_stream import MAX_UNREAD_BYTES
from tapestry.streams.remote_command import (
    V4,
    V5,
    Channel,
    CommandChannels,
    RequestedStreams,
    ResizeParser,
    SpdyChannels,
    WebSocketChannels,
    exit_status,
    failure_status,
    wait_for_disconnect,
)
from tapestry.streams.spdy import SpdyProtocol
from tapestry.streams.spdy_connection import MAX_BACKLOG, SpdyConnection
from tapestry.streams.websocket import WebSocket

from .peers import WebSocketClient, connected

ALL = RequestedStreams(stdin=True, stdout=True, stderr=True, terminal=False)
TERMINAL = RequestedStreams(stdin=True, stdout=True, stderr=False, terminal=True)


async def ignore_disconnect(channels: CommandChannels) -> None:
    with suppress(ConnectionError):
        await channels.run()


@asynccontextmanager
async def websocket_session(
    subprotocol: str = V5, requested: RequestedStreams = ALL
) -> AsyncIterator[tuple[WebSocketChannels, WebSocketClient]]:
    async with connected() as (near, far):
        channels = WebSocketChannels(WebSocket(near), subprotocol, requested)
        async with background_tasks(ignore_disconnect(channels)):
            yield channels, WebSocketClient(far)


@asynccontextmanager
async def spdy_session(requested: RequestedStreams = ALL) -> AsyncIterator[tuple[SpdyChannels, SpdyChannels]]:
    """Yield the server and the client of an established session."""
    async with connected() as (near, far):
        server = SpdyChannels(near, requested, is_server=True)
        client = SpdyChannels(far, requested, is_server=False)
        async with background_tasks(ignore_disconnect(server), ignore_disconnect(client)):
            async with asyncio.TaskGroup() as group:
                group.create_task(server.start())
                group.create_task(client.start())
            yield server, client


# -- WebSocket


async def test_websocket_messages_carry_channels() -> None:
    async with websocket_session() as (channels, client):
        await channels.start()
        assert await client.message() == b"\x01"
        client.protocol.send_binary(b"\x00in", fin=False)
        client.protocol.send_continuation(b"put", fin=True)
        await client.send(b"")
        await client.send(b"\x07an unknown channel")
        await client.send(b"\xff\x00")
        received = b""
        while data := await channels.read(Channel.STDIN):
            received += data
        assert received == b"input"
        await channels.write(Channel.STDOUT, b"out")
        await channels.write(Channel.STDERR, b"err")
        await channels.write(Channel.ERROR, exit_status(0))
        async with asyncio.TaskGroup() as group:
            group.create_task(channels.close())
            output = await client.channels()
        assert output == {1: b"out", 2: b"err", 3: exit_status(0)}


async def test_v4_has_no_close_signal() -> None:
    async with websocket_session(V4) as (channels, client):
        await client.send(b"\xff\x00")
        await client.send(b"\x00a")
        assert await channels.read(Channel.STDIN) == b"a"


@pytest.mark.parametrize("signal", [b"\xff\x00\x01", b"\xff\x09"])
async def test_invalid_close_signal_ends_the_session(signal: bytes) -> None:
    async with websocket_session() as (channels, client):
        await client.send(signal)
        with pytest.raises(ConnectionError, match="close signal"):
            await channels.read(Channel.STDIN)


async def test_channels_that_were_not_requested_are_dropped() -> None:
    async with websocket_session(V5, RequestedStreams(False, False, True, False)) as (channels, client):
        await channels.start()
        assert await client.message() == b"\x02"
        await client.send(b"\x00" + bytes(MAX_UNREAD_BYTES))
        await client.send(b"\x00" + bytes(MAX_UNREAD_BYTES))  # would stop the reader if it were kept
        await channels.write(Channel.STDOUT, b"dropped")
        await channels.write(Channel.STDERR, b"err")
        assert await client.message() == b"\x02err"
        client.connection.abort()
        with pytest.raises(ConnectionError):
            await channels.read(Channel.STDIN)


async def test_unread_stdin_slows_down_the_client() -> None:
    async with websocket_session() as (channels, client):
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(256):
                await client.send(b"\x00" + bytes(1 << 16))
                sent += 1 << 16

        async with asyncio.TaskGroup() as group:
            task = group.create_task(send())
            await asyncio.wait([task], timeout=0.5)
            assert sent < 8 * MAX_UNREAD_BYTES
            received = 0
            while received < 256 << 16:
                received += len(await channels.read(Channel.STDIN))
        assert sent == received


async def test_input_before_a_disconnect_is_read() -> None:
    async with websocket_session() as (channels, client):
        await client.send(b"\x00last")
        await client.connection.close()
        assert await channels.read(Channel.STDIN) == b"last"
        with pytest.raises(ConnectionError):
            await channels.read(Channel.STDIN)


async def test_disconnect_ends_the_session_after_a_grace_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_command, "DISCONNECT_SECONDS", 0.01)
    async with connected() as (near, far):
        channels = WebSocketChannels(WebSocket(near), V5, ALL)
        far.abort()
        with pytest.raises(ConnectionError):
            await wait_for_disconnect(channels)


# -- SPDY


async def test_spdy_streams_carry_channels() -> None:
    async with spdy_session() as (server, client):
        await client.write(Channel.STDIN, b"input")
        await client.end(Channel.STDIN)
        assert await server.read(Channel.STDIN) == b"input"
        assert await server.read(Channel.STDIN) == b""
        await server.write(Channel.STDOUT, b"out")
        await server.write(Channel.STDERR, b"err")
        await server.write(Channel.ERROR, exit_status(3))
        async with asyncio.TaskGroup() as group:
            group.create_task(server.close())
            for channel, expected in (
                (Channel.STDOUT, b"out"),
                (Channel.STDERR, b"err"),
                (Channel.ERROR, exit_status(3)),
            ):
                assert await client.read(channel) == expected
                assert await client.read(channel) == b""
            await client.close()


async def test_lost_spdy_connection_is_not_an_end() -> None:
    async with connected() as (near, far):
        server = SpdyChannels(near, ALL, is_server=True)
        client = SpdyChannels(far, ALL, is_server=False)
        async with background_tasks(ignore_disconnect(server), ignore_disconnect(client)):
            async with asyncio.TaskGroup() as group:
                group.create_task(server.start())
                group.create_task(client.start())
            near.abort()
            with pytest.raises(ConnectionError):
                await client.read(Channel.ERROR)


async def test_terminal_has_a_resize_stream() -> None:
    async with spdy_session(TERMINAL) as (server, client):
        await client.write(Channel.RESIZE, b'{"Width":80,"Height":24}\n')
        assert [*ResizeParser().feed(await server.read(Channel.RESIZE))] == [(80, 24)]


async def test_unexpected_streams_are_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_command, "STREAMS_SECONDS", 2.0)
    only_output = RequestedStreams(False, True, False, False)

    async def open_streams(connection: SocketConnection) -> None:
        spdy = SpdyConnection(connection, is_server=False)

        async def run() -> None:
            with suppress(ConnectionError):
                await spdy.run()

        async with background_tasks(run()):
            for kind in ("stdin", "nonsense"):
                with pytest.raises(ConnectionRefusedError):
                    await spdy.open({"streamtype": kind})
            await spdy.open({"streamtype": "error"})
            with pytest.raises(ConnectionRefusedError):
                await spdy.open({"streamtype": "error"})

    async with connected() as (near, far):
        server = SpdyChannels(near, only_output, is_server=True)
        async with background_tasks(ignore_disconnect(server)), asyncio.TaskGroup() as group:
            group.create_task(open_streams(far))
            with pytest.raises(ConnectionError, match="did not open the streams stdout"):
                await server.start()


async def test_unread_streams_are_limited() -> None:
    async with connected() as (near, far):
        server, client = SpdyConnection(near, is_server=True), SpdyConnection(far, is_server=False)

        async def run(connection: SpdyConnection) -> None:
            with suppress(ConnectionError):
                await connection.run()

        async with background_tasks(run(server), run(client)):
            for _ in range(MAX_BACKLOG):  # each is closed again, but waits in the queue
                stream_id, frame = client.protocol.open_stream({})
                await client.send(frame + client.protocol.reset_frame(stream_id))
            with pytest.raises(ConnectionRefusedError):
                await client.open({})
            await server.next_stream()


async def test_idle_spdy_peer_gets_pings_until_it_disconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spdy_connection, "PING_SECONDS", 0.01)
    async with connected() as (near, far), asyncio.TaskGroup() as group:
        pinging = group.create_task(SpdyConnection(near, is_server=True).ping_regularly())
        protocol = SpdyProtocol(is_server=True)
        expected = protocol.ping_frame() + protocol.ping_frame()
        received = b""
        while len(received) < len(expected):
            received += await far.read()
        assert received.startswith(expected)
        assert not pinging.done()
        far.abort()
        await pinging


# -- contents


def test_exit_status_names_the_code() -> None:
    assert json.loads(exit_status(0))["status"] == "Success"
    status = json.loads(exit_status(42))
    assert (status["reason"], status["details"]["causes"]) == (
        "NonZeroExitCode",
        [{"reason": "ExitCode", "message": "42"}],
    )
    assert json.loads(failure_status("broken"))["message"] == "Internal error occurred: broken"


@given(st.lists(st.tuples(st.integers(0, 65535), st.integers(0, 65535)), max_size=5), st.integers(1, 20))
def test_resizes_arrive_in_any_pieces(sizes: list[tuple[int, int]], step: int) -> None:
    text = b"".join(json.dumps({"Width": width, "Height": height}).encode() + b"\n" for width, height in sizes)
    parser, result = ResizeParser(), list[tuple[int, int]]()
    for start in range(0, len(text), step):
        result += parser.feed(text[start : start + step])
    assert result == sizes


@pytest.mark.parametrize(
    "text",
    [b"nonsense}", b'{"Width":-1,"Height":1}', b'{"Width":1}', b"[1]}", b'{"Width":1,"Height":"a"}', b"x" * 2000],
)
def test_invalid_resize_is_rejected(text: bytes) -> None:
    parser = ResizeParser()
    with pytest.raises(ValueError):
        list(parser.feed(text))
