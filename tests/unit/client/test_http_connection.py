"""HTTP connections over real loopback sockets, with servers that send exactly the bytes of the test."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.client.access import Access
from tapestry.client.http_connection import (
    MAX_BUFFERED_BYTES,
    MAX_HEAD_BYTES,
    BodyTooLarge,
    HttpConnection,
    ResponseError,
)
from tapestry.client.http_transport import HttpTransport
from tapestry.client.transport import Request

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LIMIT = 10 << 20
PLAIN = b"HTTP/1.1 200 OK\r\nX-One: 1\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nx-one: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED = CHUNKED_HEAD + b"2\r\nhe\r\n3;a=b\r\nllo\r\n0\r\nX-Two: 2\r\n\r\n"

Dialogue = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(dialogue: Dialogue) -> AsyncIterator[int]:
    """Run a server that calls `dialogue` on every connection and waits for its end.  Yield its port."""
    ended: set[asyncio.Task[None] | None] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.add(asyncio.current_task())
        try:
            await dialogue(reader, writer)
            while await reader.read(1 << 16):
                pass
        except ConnectionError:
            return
        finally:
            writer.transport.abort()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.wait([task for task in ended if task is not None])


@asynccontextmanager
async def connected_to(dialogue: Dialogue) -> AsyncIterator[HttpConnection]:
    async with listening(dialogue) as port:
        _, connection = await asyncio.get_running_loop().create_connection(HttpConnection, "127.0.0.1", port)
        try:
            yield connection
        finally:
            connection.abort()


def answering(*pieces: bytes, close: bool = False) -> Dialogue:
    """Return a dialogue that sends these pieces after each request."""

    async def dialogue(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if close:
                writer.transport.close()
                return

    async def until_disconnected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await dialogue(reader, writer)
        except asyncio.IncompleteReadError:
            return

    return until_disconnected


async def body_of(connection: HttpConnection, limit: int = LIMIT) -> bytes:
    connection.start(GET, limit)
    return await connection.body()


async def streamed(connection: HttpConnection) -> bytes:
    connection.start(GET, None)
    await connection.head()
    return b"".join([chunk async for chunk in connection.chunks()])


# -- responses


@pytest.mark.parametrize("response", [PLAIN, CHUNKED], ids=["plain", "chunked"])
async def test_response_may_arrive_byte_by_byte(response: bytes) -> None:
    async with connected_to(answering(*(response[i : i + 1] for i in range(len(response))))) as connection:
        for read in (body_of, streamed, body_of):
            assert await read(connection) == b"hello"
            assert (connection.status, connection.headers["x-one"]) == (200, "1")
            assert "x-two" not in connection.headers
            assert connection.is_reusable


class Wire(asyncio.Transport):
    """A transport that accepts everything."""

    is_aborted = is_paused = False

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_reading(self) -> bool:
        return not self.is_paused

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_aborted

    def get_write_buffer_size(self) -> int:
        return 0


@given(st.sets(st.integers(1, len(PLAIN + CHUNKED) - 1)), st.sampled_from([PLAIN, CHUNKED]))
def test_response_may_be_split_anywhere(cuts: set[int], response: bytes) -> None:
    async def scenario() -> None:
        connection = HttpConnection()
        connection.connection_made(Wire())
        for _ in range(2):
            connection.start(GET, LIMIT)
            for begin, end in pairwise(sorted({0, *cuts, len(PLAIN + CHUNKED)})):
                if response[begin:end]:
                    connection.data_received(response[begin:end])
            assert (await connection.body(), connection.is_reusable) == (b"hello", True)

    asyncio.run(scenario())


async def test_informational_responses_are_skipped() -> None:
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nX-One: 0\r\nX-Three: 3\r\n\r\n"
    async with connected_to(answering(early, PLAIN)) as connection:
        assert await body_of(connection) == b"hello"
        assert (connection.status, connection.reason, connection.headers) == (
            200,
            b"OK",
            {"x-one": "1", "content-length": "5"},
        )
        assert await streamed(connection) == b"hello"


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_response_without_body_is_complete(status: bytes) -> None:
    async with connected_to(answering(b"HTTP/1.1 %b\r\n\r\n" % status)) as connection:
        assert await body_of(connection) == b""
        assert connection.is_reusable


@pytest.mark.parametrize("read", [body_of, streamed])
async def test_body_may_end_with_the_connection(read: Callable[[HttpConnection], Awaitable[bytes]]) -> None:
    async with connected_to(answering(b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo", close=True)) as connection:
        assert await read(connection) == b"hello"
        assert not connection.is_reusable


async def test_connection_that_the_server_closes_is_not_reused() -> None:
    closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"
    async with connected_to(answering(closing)) as connection:
        assert await body_of(connection) == b"hello"
        assert not connection.is_reusable


async def test_second_response_is_dropped_with_the_connection() -> None:
    second = b"HTTP/1.1 500 Forged\r\nX-One: 9\r\nContent-Length: 1\r\n\r\n!"
    async with connected_to(answering(PLAIN + second)) as connection:
        assert await body_of(connection) == b"hello"
        assert (connection.status, connection.headers["x-one"]) == (200, "1")
        assert not connection.is_reusable


async def test_data_on_an_idle_connection_closes_it() -> None:
    more = asyncio.Event()

    async def chatty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(PLAIN)
        await more.wait()
        writer.write(PLAIN)
        while await reader.read(1 << 16):
            pass
        gone.set()

    gone = asyncio.Event()
    async with connected_to(chatty) as connection:
        assert await body_of(connection) == b"hello"
        assert connection.is_reusable
        more.set()
        await gone.wait()
        assert not connection.is_open


BROKEN = {
    "not HTTP": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "a null byte in a header": b"HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "a length and chunks": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a chunk of no length": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: spdy\r\n\r\n",
    "compressed": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",
    "a large header": b"HTTP/1.1 200 OK\r\nX: " + b"x" * (MAX_HEAD_BYTES << 2),
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: x\r\n" % n for n in range(MAX_HEAD_BYTES)),
    "many informational responses": b"HTTP/1.1 100 Continue\r\n\r\n" * MAX_HEAD_BYTES,
    "a large trailer": CHUNKED.removesuffix(b"\r\n\r\n") + b"x" * (MAX_HEAD_BYTES << 2),
    "a large chunk extension": CHUNKED.partition(b"=")[0] + b"=" + b"x" * (MAX_HEAD_BYTES << 2),
}


@pytest.mark.parametrize("response", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("read", [body_of, streamed])
async def test_broken_response_closes_the_connection(
    response: bytes, read: Callable[[HttpConnection], Awaitable[bytes]]
) -> None:
    async with connected_to(answering(response)) as connection:
        with pytest.raises(ResponseError):
            await read(connection)
        assert not connection.is_open


@pytest.mark.parametrize("response", [PLAIN, CHUNKED], ids=["plain", "chunked"])
@pytest.mark.parametrize("end", [1, 20, -1])
async def test_premature_end_is_an_error(response: bytes, end: int) -> None:
    async with connected_to(answering(response[:end], close=True)) as connection:
        with pytest.raises(ResponseError, match="the server closed the connection"):
            await body_of(connection)


async def test_stream_delivers_what_arrived_before_a_premature_end() -> None:
    async with connected_to(answering(PLAIN[:-1], close=True)) as connection:
        connection.start(GET, None)
        await connection.head()
        received = b""
        while len(received) < 4:
            received += await anext(connection)
        assert received == b"hell"
        with pytest.raises(ResponseError):
            await anext(connection)


# -- sizes


async def test_body_over_the_limit_is_an_error() -> None:
    for response in (PLAIN, CHUNKED):
        async with connected_to(answering(response)) as connection:
            assert await body_of(connection, 5) == b"hello"
            with pytest.raises(BodyTooLarge, match="the response is over 4 bytes"):
                await body_of(connection, 4)


async def test_large_bodies_pass_in_both_directions() -> None:
    body = bytes(range(256)) * 12_000  # 3 MB

    async def mirror(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n")
            received = await reader.readexactly(len(body))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(received), received))

    async with connected_to(mirror) as connection:
        for _ in range(2):
            connection.start(GET.replace(b"GET", b"PUT") + body, LIMIT)
            assert await connection.body() == body


async def test_response_before_the_end_of_the_request() -> None:
    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await answered.wait()
        writer.transport.resume_reading()

    answered = asyncio.Event()
    async with connected_to(refuses) as connection:
        connection.start(b"PUT / HTTP/1.1\r\n\r\n" + b"x" * (30 << 20), LIMIT)
        assert await connection.body() == b""
        assert connection.status == 413
        assert not connection.is_reusable  # the rest of the request would precede the next one
        connection.abort()
        answered.set()


async def test_unread_stream_pauses_reading() -> None:
    wire, connection = Wire(), HttpConnection()
    connection.connection_made(wire)
    connection.start(GET, None)
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (2 * MAX_BUFFERED_BYTES))
    connection.data_received(b"x" * MAX_BUFFERED_BYTES)
    assert wire.is_reading()
    connection.data_received(b"x" * MAX_BUFFERED_BYTES)  # the rest was received before the pause
    assert not wire.is_reading()
    assert len(await anext(connection)) == 2 * MAX_BUFFERED_BYTES
    assert wire.is_reading()
    assert await anext(connection, None) is None
    assert connection.is_reusable


async def test_stream_larger_than_the_buffer_arrives_completely() -> None:
    size = 32 << 20

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        writer.write(b"x" * size)

    async with connected_to(flood) as connection:
        assert len(await streamed(connection)) == size


# -- concurrency


async def test_hundred_parallel_requests_get_their_own_responses() -> None:
    async def mirror(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while head := await reader.read(1 << 16):
            path = head.split()[1]
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(path), path))

    connections = 0
    async with listening(mirror) as port:
        transport = HttpTransport(Access(f"http://127.0.0.1:{port}"), max_in_flight=20)
        for _ in range(2):
            async with asyncio.TaskGroup() as group:
                sent = [group.create_task(transport.send(Request("GET", f"/{number}"))) for number in range(100)]
            assert [task.result().body for task in sent] == [b"/%d" % number for number in range(100)]
        await transport.close()
    assert connections <= 20


async def test_cancellation_within_a_body_closes_the_connection() -> None:
    async def halves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(PLAIN[:-2] if connections == 1 else PLAIN)
        arrived.set()
        assert await reader.read() == b""  # nothing else is sent on a connection whose response is incomplete

    connections, arrived = 0, asyncio.Event()
    async with listening(halves) as port:
        transport = HttpTransport(Access(f"http://127.0.0.1:{port}"))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(transport.send(Request("GET", "/")))
            await arrived.wait()
            task.cancel()
        assert (await transport.send(Request("GET", "/"))).body == b"hello"
        assert connections == 2
        await transport.close()
