"""Sessions of exec over a WebSocket, against the server side of the same protocol."""

import asyncio

import pytest

from tapestry.client.pod_streams import CommandSession
from tapestry.streams.background import background_tasks
from tapestry.streams.remote_command import V5, Channel, RequestedStreams, WebSocketChannels, exit_status
from tapestry.streams.websocket import WebSocket, accepted_subprotocol, websocket_handshake, websocket_request_headers

from ..streams.peers import connected

ALL = RequestedStreams(stdin=True, stdout=True, stderr=True, terminal=True)


async def upper_case(channels: WebSocketChannels, code: int) -> None:
    """Serve a command that writes its input in upper case, and the sizes of its terminal to stderr."""
    async with background_tasks(channels.run()):
        await channels.start()
        while data := await channels.read(Channel.STDIN):
            await channels.write(Channel.STDOUT, data.upper())
        await channels.write(Channel.STDERR, await channels.read(Channel.RESIZE))
        await channels.write(Channel.ERROR, exit_status(code))
        await channels.close()


@pytest.mark.parametrize("code", [0, 1, 130])
async def test_session_carries_input_outputs_size_and_exit_code(code: int) -> None:
    async with connected() as (near, far):
        session = CommandSession(WebSocket(far, is_client=True), V5)
        received: dict[Channel, bytes] = {}
        async with asyncio.TaskGroup() as group:
            group.create_task(upper_case(WebSocketChannels(WebSocket(near), V5, ALL), code))
            await session.resize(120, 40)
            await session.write_stdin(b"hello ")
            await session.write_stdin(b"world")
            await session.close_stdin()
            async for channel, data in session.outputs():
                received[channel] = received.get(channel, b"") + data
        assert received == {Channel.STDOUT: b"HELLO WORLD", Channel.STDERR: b'{"Width":120,"Height":40}'}
        assert session.exit_code == code


async def test_lost_connection_is_an_error() -> None:
    async with connected() as (near, far):
        session = CommandSession(WebSocket(far, is_client=True), V5)
        near.abort()
        with pytest.raises(ConnectionError):
            async for _ in session.outputs():
                pass
        with pytest.raises(ConnectionError, match="before the command did"):
            _ = session.exit_code


def test_handshake_is_accepted_and_checked() -> None:
    request = websocket_request_headers((V5, "other"))
    chosen, response = websocket_handshake("GET", {name.lower(): value for name, value in request}, (V5,))
    answer = {name.lower(): value for name, value in response.items()}
    assert accepted_subprotocol(request, answer) == chosen == V5
    with pytest.raises(ConnectionError, match="did not accept"):
        accepted_subprotocol(websocket_request_headers((V5,)), answer)
    with pytest.raises(ConnectionError, match="chose the WebSocket subprotocol none"):
        accepted_subprotocol(request, {**answer, "sec-websocket-protocol": ""})
