"""Upgrades on real sockets with TLS: our HTTP server, our client, and a tunnel through both."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from tapestry.apiserver.access.certificates import CertificateAuthority, server_ssl_context
from tapestry.apiserver.serving.connection_limiter import ConnectionLimiter
from tapestry.apiserver.serving.http_connection import Exchange
from tapestry.apiserver.serving.http_server import HttpServer
from tapestry.streams.connection import MAX_BUFFERED_BYTES, SocketConnection
from tapestry.streams.tunnel import Transferred, tunnel
from tapestry.streams.upgrade import MAX_ERROR_BYTES, UpgradeResponse, dial, request_upgrade

SPDY = "SPDY/3.1"
HEADERS = (("Host", "x"), ("Connection", "Upgrade"), ("Upgrade", SPDY))
SECONDS = 20.0

Handle = Callable[[Exchange], Awaitable[None]]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS contexts of a server and of its clients."""
    authority = CertificateAuthority(tmp_path_factory.mktemp("pki"))
    server = server_ssl_context(*authority.server_certificate(["localhost"]), [])
    client = ssl.create_default_context(cafile=str(Path(authority.certificate_file)))
    return server, client


@asynccontextmanager
async def serve(handle: Handle, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[int, HttpServer]]:
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        server = HttpServer(handle, group, 10.0, ConnectionLimiter())
        await server.start("127.0.0.1", 0, tls)
        try:
            yield server.addresses[0][1], server
        finally:
            await server.stop()


async def echo(exchange: Exchange) -> None:
    connection = exchange.upgrade({"Upgrade": SPDY})
    while data := await connection.read():
        await connection.write(data)


async def upgraded(port: int, tls: ssl.SSLContext | None = None) -> SocketConnection:
    host = "localhost" if tls else "127.0.0.1"
    response = await request_upgrade(await dial(host, port, tls), "POST", "/x", HEADERS)
    assert response.connection is not None
    assert (response.status, response.headers["upgrade"], response.headers["connection"]) == (101, SPDY, "Upgrade")
    return response.connection


async def read_exactly(connection: SocketConnection, size: int) -> bytes:
    result = b""
    while len(result) < size:
        data = await connection.read()
        assert data, "the connection ended early"
        result += data
    return result


async def until_closed(server: HttpServer) -> None:
    """Wait until the server has noticed that its clients are gone."""
    for _ in range(100_000):
        if not server.connections:
            return
        await asyncio.sleep(0)
    pytest.fail("connections are left")


async def write_chunks(connection: SocketConnection, count: int) -> None:
    for _ in range(count):
        await connection.write(bytes(1 << 16))


async def test_upgraded_connection_transfers_bytes_both_ways(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async with serve(echo, tls[0]) as (port, _):
        connection = await upgraded(port, tls[1])
        data = bytes(range(256)) * 8192
        async with asyncio.TaskGroup() as group:
            group.create_task(connection.write(data))
            assert await read_exactly(connection, len(data)) == data
        await connection.close()
        assert await connection.read() == b""
        with pytest.raises(ConnectionError):
            await connection.write(b"x")


async def test_tunnel_counts_bytes_and_closes_both_sides(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async with serve(echo, tls[0]) as (backend_port, _):
        transferred, ended = Transferred(), asyncio.Event()

        async def relay(exchange: Exchange) -> None:
            backend = await upgraded(backend_port, tls[1])
            await tunnel(exchange.upgrade({"Upgrade": SPDY}), backend, transferred)
            ended.set()

        async with serve(relay, tls[0]) as (port, server):
            connection = await upgraded(port, tls[1])
            await connection.write(b"a" * 100_000)
            await read_exactly(connection, 100_000)
            await connection.close()
            await ended.wait()
            assert (transferred.received, transferred.sent) == (100_000, 100_000)
            await until_closed(server)


async def test_last_bytes_of_a_closed_client_are_read() -> None:
    received = asyncio.get_running_loop().create_future()

    async def collect(exchange: Exchange) -> None:
        connection, parts = exchange.upgrade({"Upgrade": SPDY}), b""
        await until_closed(server)
        while data := await connection.read():
            parts += data
        received.set_result(parts)

    async with serve(collect) as (port, server):
        connection = await upgraded(port)
        await connection.write(b"last words")
        await connection.close()
        assert await received == b"last words"


async def test_peer_that_does_not_read_blocks_the_writer() -> None:
    read = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        connection = exchange.upgrade({"Upgrade": SPDY})
        await read.wait()
        while await connection.read():
            pass

    async with serve(slow) as (port, _):
        connection = await upgraded(port)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(write_chunks(connection, 64 * MAX_BUFFERED_BYTES >> 16), 1)
        read.set()
        async with asyncio.timeout(SECONDS):
            await connection.write(b"x")
        connection.abort()


async def test_refused_upgrade_returns_the_start_of_the_body() -> None:
    async def refuse(exchange: Exchange) -> None:
        await exchange.send_large(403, {"Content-Type": "text/plain"}, b"n" * (4 * MAX_ERROR_BYTES))

    async with serve(refuse) as (port, _):
        response: UpgradeResponse = await request_upgrade(await dial("127.0.0.1", port, None), "GET", "/x", HEADERS)
        assert (response.status, response.connection) == (403, None)
        assert 0 < len(response.body) <= MAX_ERROR_BYTES
        assert set(response.body) == {ord("n")}


async def test_request_with_body_or_early_bytes_is_no_upgrade() -> None:
    seen: list[bool] = []

    async def note(exchange: Exchange) -> None:
        seen.append(exchange.is_upgrade)
        exchange.send(400, {}, b"")

    head = "GET /x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
    async with serve(note) as (port, _):
        for text in (
            f"{head}\r\n",
            f"{head}Content-Length: 0\r\n\r\n",
            f"{head}\r\nGET /hidden HTTP/1.1\r\nHost: x\r\n\r\n",
            f"{head}Content-Length: 3\r\n\r\nabc",
            f"{head}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "GET /x HTTP/1.1\r\nHost: x\r\nUpgrade: SPDY/3.1\r\n\r\n",
            "CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(text.encode())
            assert (await reader.readuntil(b"\r\n")).split()[1] == b"400"
            writer.close()
    assert seen == [True, True, False, False, False, False, False]


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 101 X\r\nA: " + b"a" * (1 << 17)])
async def test_invalid_response_raises_connection_error(answer: bytes) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionError):
            await request_upgrade(await dial("127.0.0.1", port, None), "GET", "/x", HEADERS)


async def test_line_break_in_a_header_is_rejected() -> None:
    async with serve(echo) as (port, _):
        with pytest.raises(ValueError, match="line break"):
            await request_upgrade(await dial("127.0.0.1", port, None), "GET", "/x", (("Host", "x\r\nA: b"),))


async def test_forbidden_address_is_not_dialed() -> None:
    def check(address: str) -> None:
        raise PermissionError(f"{address} is forbidden")

    with pytest.raises(PermissionError):
        await dial("127.0.0.1", 1, None, check)


def test_peer_that_closes_while_reading_is_paused_loses_nothing(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    size = 2 * MAX_BUFFERED_BYTES  # half of it is in our buffer, the rest in that of TLS

    def send_and_close(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with tls[0].wrap_socket(client, server_side=True) as server:
            server.sendall(bytes(size))

    async def receive(listener: socket.socket) -> int:
        lost, host = asyncio.Event(), listener.getsockname()[:2]
        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(send_and_close, listener))
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: SocketConnection(lost.set), *host, ssl=tls[1], server_hostname="localhost"
            )
            await lost.wait()
            received = 0
            while data := await connection.read():
                received += len(data)
            return received

    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert uvloop.run(receive(listener)) == size
