"""Port-forward over SPDY to real sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from tapestry.streams import port_forward
from tapestry.streams.background import background_tasks
from tapestry.streams.port_forward import port_number, serve_port_forward
from tapestry.streams.spdy_connection import SpdyConnection, SpdyStream

from .peers import connected

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer after the end of the input, so that only a half-closed connection gets an answer."""
    writer.write(b"echo " + await reader.read(-1))
    await writer.drain()
    writer.close()


@asynccontextmanager
async def session(serve: Serve = echo) -> AsyncIterator[SpdyConnection]:
    """Yield a client whose port 80 is a server, and no other port is."""
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, connected() as (near, far):

        async def dial(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            if port != 80:
                raise ConnectionRefusedError(f"nobody listens on port {port}")
            return await asyncio.open_connection(*server.sockets[0].getsockname())

        client = SpdyConnection(far, is_server=False)

        async def run() -> None:
            with suppress(ConnectionError):
                await client.run()

        async with background_tasks(serve_port_forward(near, dial), run()):
            yield client


async def pair(client: SpdyConnection, request: int, port: int = 80) -> tuple[SpdyStream, SpdyStream]:
    """Return the data and the error stream of a new connection."""
    headers = {"port": str(port), "requestid": str(request)}
    errors = await client.open({**headers, "streamtype": "error"})
    await errors.end()
    return await client.open({**headers, "streamtype": "data"}), errors


async def all_of(stream: SpdyStream) -> bytes:
    result = b""
    while data := await stream.read():
        result += data
    return result


async def test_fifty_connections_are_independent() -> None:
    async def use(client: SpdyConnection, number: int) -> None:
        data, errors = await pair(client, number)
        message = str(number).encode() * 1000
        await data.write(message)
        await data.end()
        assert await all_of(data) == b"echo " + message
        assert await all_of(errors) == b""

    async with session() as client, asyncio.TaskGroup() as group:
        for number in range(50):
            group.create_task(use(client, number))


async def test_error_stream_says_why_a_port_is_unreachable() -> None:
    async with session() as client:
        data, errors = await pair(client, 1, port=81)
        assert await all_of(errors) == b"error forwarding port 81: nobody listens on port 81"
        assert await all_of(data) == b""
        data, _ = await pair(client, 2)  # the session continues
        await data.end()
        assert await all_of(data) == b"echo "


async def test_reset_closes_the_connection_to_the_server() -> None:
    closed = asyncio.Event()

    async def wait_for_reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read(1) == b"x"
        await reader.read()
        closed.set()
        writer.close()

    async with session(wait_for_reset) as client:
        data, _ = await pair(client, 1)
        await data.write(b"x")
        await data.reset()
        assert await closed.wait()


async def test_disconnect_closes_all_connections() -> None:
    closed = asyncio.Event()

    async def wait_for_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        closed.set()
        writer.close()

    async with session(wait_for_end) as client:
        data, _ = await pair(client, 1)
        await data.write(b"x")
        client.abort()
        assert await closed.wait()


@pytest.mark.parametrize(
    "headers",
    [
        {"streamtype": "data"},
        {"streamtype": "data", "port": "0"},
        {"streamtype": "data", "port": "65536"},
        {"streamtype": "stdin", "port": "80"},
        {"port": "80"},
    ],
)
async def test_invalid_stream_is_refused(headers: dict[str, str]) -> None:
    async with session() as client:
        with pytest.raises(ConnectionRefusedError):
            await client.open(headers)


async def test_streams_of_one_request_must_match() -> None:
    async with session() as client:
        await client.open({"streamtype": "data", "port": "80", "requestid": "1"})
        for headers in ({"streamtype": "data", "port": "80"}, {"streamtype": "error", "port": "81"}):
            with pytest.raises(ConnectionRefusedError):
                await client.open({**headers, "requestid": "1"})


async def test_streams_without_request_id_are_paired_in_order() -> None:
    async with session() as client:
        errors = await client.open({"streamtype": "error", "port": "80"})
        data = await client.open({"streamtype": "data", "port": "80"})
        await data.end()
        assert await all_of(data) == b"echo "
        assert await all_of(errors) == b""


async def test_incomplete_pairs_expire_and_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_forward, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(port_forward, "PAIR_SECONDS", 1.0)
    async with session() as client:
        first = await client.open({"streamtype": "data", "port": "80", "requestid": "1"})
        await client.open({"streamtype": "data", "port": "80", "requestid": "2"})
        with pytest.raises(ConnectionRefusedError):
            await client.open({"streamtype": "data", "port": "80", "requestid": "3"})
        assert await first.read() == b""  # reset
        await client.open({"streamtype": "data", "port": "80", "requestid": "3"})


@pytest.mark.parametrize(
    ("text", "port"), [("80", 80), ("65535", 65535), ("0", None), ("٣", None), ("1e3", None), ("", None)]
)
def test_port_number(text: str, port: int | None) -> None:
    assert port_number(text) == port
