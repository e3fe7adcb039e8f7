"""WebSockets on real sockets: messages, limits, pings and ends."""

import asyncio

import pytest
from websockets.frames import CloseCode, Frame, Opcode

from tapestry.streams import websocket as module
from tapestry.streams.negotiation import UpgradeRejected, spdy_handshake
from tapestry.streams.websocket import (
    MAX_FRAME_BYTES,
    SLICE_BYTES,
    Fragment,
    WebSocket,
    WebSocketTunnel,
    websocket_handshake,
)

from .peers import WebSocketClient, connected

HEADERS = {
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-version": "13",
    "sec-websocket-protocol": "v9.channel.k8s.io, v5.channel.k8s.io, v4.channel.k8s.io",
}


def test_handshake_selects_the_first_supported_subprotocol() -> None:
    subprotocol, headers = websocket_handshake("GET", HEADERS, ["v4.channel.k8s.io", "v5.channel.k8s.io"])
    assert subprotocol == headers["Sec-WebSocket-Protocol"] == "v5.channel.k8s.io"
    assert headers["Sec-WebSocket-Accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # the example of RFC 6455


@pytest.mark.parametrize(
    ("method", "change"),
    [
        ("POST", {}),
        ("GET", {"sec-websocket-version": "8"}),
        ("GET", {"sec-websocket-key": ""}),
        ("GET", {"sec-websocket-protocol": "base64.channel.k8s.io"}),
        ("GET", {"sec-websocket-protocol": ""}),
    ],
)
def test_invalid_handshake_is_rejected(method: str, change: dict[str, str]) -> None:
    with pytest.raises(UpgradeRejected):
        websocket_handshake(method, {**HEADERS, **change}, ["v5.channel.k8s.io"])


def test_spdy_handshake_selects_the_first_supported_protocol() -> None:
    requested = [("x-stream-protocol-version", each) for each in ("v5.channel.k8s.io", "v4.channel.k8s.io, v3")]
    protocol, headers = spdy_handshake(requested, ["v4.channel.k8s.io"])
    assert (protocol, headers["X-Stream-Protocol-Version"], headers["Upgrade"]) == (protocol, protocol, "SPDY/3.1")
    with pytest.raises(UpgradeRejected) as refused:
        spdy_handshake(requested, ["v9.channel.k8s.io"])
    assert (refused.value.status, "v9" in str(refused.value)) == (403, True)
    with pytest.raises(UpgradeRejected, match="X-Stream-Protocol-Version is required"):
        spdy_handshake([], ["v4.channel.k8s.io"])


async def test_messages_and_their_fragments_arrive() -> None:
    async with connected() as (near, far):
        server, client = WebSocket(near), WebSocketClient(far)
        client.protocol.send_binary(b"ab", fin=False)
        client.protocol.send_ping(b"between")
        client.protocol.send_continuation(b"cd", fin=True)
        client.protocol.send_text(b"text")
        await client.flush()
        received: list[Fragment] = []
        while len(received) < 3:
            received += await server.read()
        assert received == [(b"ab", True), (b"cd", False), (b"text", True)]
        pong = await client.frame()
        assert pong is not None
        assert (pong.opcode, bytes(pong.data)) == (Opcode.PONG, b"between")
        await server.write(b"answer")
        assert await client.message() == b"answer"


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (Frame(Opcode.BINARY, b"x").serialize(mask=False), CloseCode.PROTOCOL_ERROR),
        (b"\x83\x80" + bytes(4), CloseCode.PROTOCOL_ERROR),  # an unknown opcode
        (b"\x09\x80" + bytes(4), CloseCode.PROTOCOL_ERROR),  # a fragmented ping
        (b"\x89\xfe\x00\x7e" + bytes(4 + 126), CloseCode.PROTOCOL_ERROR),  # a long ping
        (b"\xc2\x80" + bytes(4), CloseCode.PROTOCOL_ERROR),  # an extension
        (b"\x80\x80" + bytes(4), CloseCode.PROTOCOL_ERROR),  # the continuation of nothing
        (b"\x82\xff" + (MAX_FRAME_BYTES + 1).to_bytes(8, "big"), CloseCode.MESSAGE_TOO_BIG),
        (b"\x82\xff" + bytes(b"\xff" * 8), CloseCode.MESSAGE_TOO_BIG),
    ],
)
async def test_invalid_frame_closes_the_websocket(frames: bytes, code: int) -> None:
    async with connected() as (near, far):
        server, client = WebSocket(near), WebSocketClient(far)
        await far.write(frames)
        with pytest.raises(ConnectionError, match="invalid WebSocket frame"):
            await server.read()
        assert (await client.frame()) is not None
        assert client.protocol.close_rcvd is not None
        assert client.protocol.close_rcvd.code == code
        with pytest.raises(ConnectionError):
            await server.write(b"x")


async def test_messages_before_an_invalid_frame_are_received() -> None:
    async with connected() as (near, far):
        server, client = WebSocket(near), WebSocketClient(far)
        client.protocol.send_binary(b"good")
        await far.write(b"".join(client.protocol.data_to_send()) + b"\x83\x80" + bytes(4))
        assert await server.read() == [(b"good", True)]
        with pytest.raises(ConnectionError, match="invalid"):
            await server.read()


async def test_many_small_frames_do_not_block_the_event_loop() -> None:
    async with connected() as (near, far):
        server, client = WebSocket(near), WebSocketClient(far)
        frame = Frame(Opcode.BINARY, b"x").serialize(mask=True)
        await far.write(frame * 30_000)
        received, batches = 0, 0
        while received < 30_000:
            fragments = await server.read()
            assert len(fragments) * len(frame) <= SLICE_BYTES + len(frame)
            received, batches = received + len(fragments), batches + 1
        assert batches > 5
        assert client.protocol.close_rcvd is None


async def test_close_waits_for_the_client_to_confirm() -> None:
    async with connected() as (near, far):
        server, client = WebSocket(near), WebSocketClient(far)
        async with asyncio.TaskGroup() as group:
            group.create_task(server.close(CloseCode.NORMAL_CLOSURE, "é" * 200))
            await client.send(b"still sending")
            assert await client.message() is None
        assert client.protocol.close_rcvd is not None
        assert client.protocol.close_rcvd.code == CloseCode.NORMAL_CLOSURE


async def test_close_by_the_client_ends_the_reader() -> None:
    async with connected() as (near, far):
        server, client = WebSocket(near), WebSocketClient(far)
        client.protocol.send_close(CloseCode.NORMAL_CLOSURE)
        await client.flush()
        assert await server.read() == ()
        assert await server.read() == ()


async def test_idle_client_gets_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PING_SECONDS", 0.01)
    async with connected() as (near, far):
        server, client = WebSocket(near), WebSocketClient(far)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(server.ping_regularly())
            for _ in range(2):
                frame = await client.frame()
                assert frame is not None
                assert frame.opcode is Opcode.PING
            task.cancel()


async def test_tunnel_carries_bytes_without_boundaries() -> None:
    async with connected() as (near, far):
        tunnel, client = WebSocketTunnel(WebSocket(near)), WebSocketClient(far)
        for message in (b"", b"ab", b"c"):
            await client.send(message)
        received = b""
        while len(received) < 3:
            received += await tunnel.read()
        assert received == b"abc"
        await tunnel.write(b"back")
        assert await client.message() == b"back"
        client.protocol.send_close(CloseCode.NORMAL_CLOSURE)
        await client.flush()
        assert await tunnel.read() == b""
