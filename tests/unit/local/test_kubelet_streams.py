"""exec, attach and port-forward of a kubelet, with real processes and in every protocol."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import pytest

from tapestry.apiserver.serving.connection_limiter import ConnectionLimiter
from tapestry.apiserver.serving.http_connection import Exchange
from tapestry.apiserver.serving.http_server import HttpServer
from tapestry.kube.errors import ApiError, BadRequest, TooManyRequests
from tapestry.kube.objects import Object
from tapestry.kube.usage import PodUsage
from tapestry.local import kubelet_streams
from tapestry.local.kubelet_streams import SESSIONS, StreamServer, requested_streams
from tapestry.local.runtime import LogQuery, StreamRejected
from tapestry.streams import remote_command
from tapestry.streams.background import background_tasks
from tapestry.streams.connection import SocketConnection
from tapestry.streams.negotiation import UpgradeRejected
from tapestry.streams.port_forward import TUNNEL
from tapestry.streams.remote_command import V4, V5, Channel, RequestedStreams, SpdyChannels, exit_status
from tapestry.streams.spdy_connection import SpdyConnection
from tapestry.streams.upgrade import Headers, dial, request_upgrade

from ..streams.peers import SECONDS, WebSocketClient
from ..streams.test_translator import ClientTunnel

POD = {"metadata": {"name": "web", "namespace": "default"}}
WEBSOCKET_HEADERS = (
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
)
SPDY_HEADERS = (("Upgrade", "SPDY/3.1"), ("Content-Length", "0"))
INPUT_AND_OUTPUT = {"input": "1", "output": "1", "error": "1"}


@dataclass
class Subprocess:
    """A process whose streams are pipes."""

    process: asyncio.subprocess.Process
    sizes: list[tuple[int, int]] = field(default_factory=list)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def read_stdout(self) -> bytes:
        assert self.process.stdout is not None
        return await self.process.stdout.read(1 << 16)

    async def read_stderr(self) -> bytes:
        assert self.process.stderr is not None
        return await self.process.stderr.read(1 << 16)

    async def write_stdin(self, data: bytes) -> None:
        assert self.process.stdin is not None
        with suppress(ConnectionError):
            self.process.stdin.write(data)
            await self.process.stdin.drain()

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def resize(self, width: int, height: int) -> None:
        self.sizes.append((width, height))

    async def wait(self) -> int:
        return await self.process.wait()

    async def close(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        self.closed.set()


@dataclass
class Subprocesses:
    """A runtime whose containers are processes of this machine."""

    port: int = 0
    started: list[Subprocess] = field(default_factory=list)

    def log(self, pod: Object, container: str, query: LogQuery, /) -> AsyncIterator[bytes]:
        raise NotImplementedError

    def usage(self, node: Object) -> Sequence[PodUsage]:
        return ()

    async def exec(
        self, _: Object, container: str, command: Sequence[str], *, stdin: bool, terminal: bool
    ) -> Subprocess:
        if container == "missing":
            raise StreamRejected("the container is not running")
        pipe = asyncio.subprocess.PIPE
        process = Subprocess(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe))
        if not stdin:
            process.close_stdin()
        self.started.append(process)
        return process

    async def attach(self, pod: Object, container: str, *, stdin: bool, terminal: bool) -> Subprocess:
        return await self.exec(pod, container, ["sh", "-c", "cat; exit 3"], stdin=stdin, terminal=terminal)

    async def dial(self, _: Object, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if port != 80:
            raise StreamRejected("no process listens there")
        return await asyncio.open_connection("127.0.0.1", self.port)


@dataclass
class Kubelet:
    """A listener for the streams of one pod."""

    runtime: Subprocesses
    streams: StreamServer
    errors: list[Exception] = field(default_factory=list)
    port: int = 0

    async def handle(self, exchange: Exchange) -> None:
        path, _, text = exchange.target.decode().partition("?")
        pairs = parse_qsl(text)
        query = dict(pairs)
        container = query.get("container", "c")
        try:
            if path == "/exec":
                command = [value for name, value in pairs if name == "command"]
                await self.streams.exec(exchange, POD, container, query, command)
            elif path == "/attach":
                await self.streams.attach(exchange, POD, container, query)
            else:
                await self.streams.port_forward(exchange, POD)
        except (ApiError, UpgradeRejected) as error:
            self.errors.append(error)
            exchange.send(400, {}, str(error).encode())

    async def upgrade(self, method: str, path: str, headers: Headers) -> SocketConnection:
        own = (("Host", "x"), ("Connection", "Upgrade"))
        response = await request_upgrade(await dial("127.0.0.1", self.port, None), method, path, [*own, *headers])
        assert response.connection is not None, response.body
        return response.connection

    async def websocket(self, path: str, protocol: str = V5) -> WebSocketClient:
        headers = (*WEBSOCKET_HEADERS, ("Sec-WebSocket-Protocol", protocol))
        return WebSocketClient(await self.upgrade("GET", path, headers))

    async def spdy(self, path: str, *protocols: str) -> SocketConnection:
        return await self.upgrade(
            "POST", path, (*SPDY_HEADERS, *(("X-Stream-Protocol-Version", each) for each in protocols))
        )


@pytest.fixture
async def kubelet() -> AsyncIterator[Kubelet]:
    runtime = Subprocesses()
    kubelet = Kubelet(runtime, StreamServer(runtime))
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        server = HttpServer(kubelet.handle, group, 10.0, ConnectionLimiter())
        await server.start("127.0.0.1", 0, None)
        kubelet.port = server.addresses[0][1]
        try:
            yield kubelet
        finally:
            await server.stop()


def exec_path(*command: str, **query: str) -> str:
    pairs = [*(query or INPUT_AND_OUTPUT).items(), *(("command", each) for each in command)]
    return f"/exec?{urlencode(pairs)}"


def sessions(verb: str, protocol: str) -> float:
    return SESSIONS.values().get((verb, protocol), 0)


@asynccontextmanager
async def spdy_channels(connection: SocketConnection, streams: RequestedStreams) -> AsyncIterator[SpdyChannels]:
    channels = SpdyChannels(connection, streams, is_server=False)

    async def run() -> None:
        with suppress(ConnectionError):
            await channels.run()

    async with background_tasks(run()):
        await channels.start()
        yield channels


async def all_of(read: Callable[[], Awaitable[bytes]]) -> bytes:
    result = b""
    while data := await read():
        result += data
    return result


@pytest.mark.parametrize("protocol", [V4, V5])
async def test_exec_over_websocket(kubelet: Kubelet, protocol: str) -> None:
    before = sessions("exec", f"websocket {protocol}")
    client = await kubelet.websocket(exec_path("sh", "-c", "head -c5; echo err >&2; exit 42"), protocol)
    await client.send(b"\x00hello")
    assert await client.channels() == {1: b"hello", 2: b"err\n", 3: exit_status(42)}
    assert sessions("exec", f"websocket {protocol}") == before + 1
    await kubelet.runtime.started[0].closed.wait()


async def test_close_signal_ends_stdin(kubelet: Kubelet) -> None:
    client = await kubelet.websocket(exec_path("cat"))
    await client.send(b"\x00all of it")
    await client.send(b"\xff\x00")
    assert await client.channels() == {1: b"all of it", 3: exit_status(0)}


async def test_exec_over_spdy(kubelet: Kubelet) -> None:
    before = sessions("exec", f"SPDY/3.1 {V4}")
    connection = await kubelet.spdy(exec_path("sh", "-c", "cat; echo err >&2; exit 42"), V5, V4, "v3.channel.k8s.io")
    streams = RequestedStreams(stdin=True, stdout=True, stderr=True, terminal=False)
    async with spdy_channels(connection, streams) as channels, asyncio.TaskGroup() as group:
        await channels.write(Channel.STDIN, b"x" * 1_000_000)
        await channels.end(Channel.STDIN)
        output = group.create_task(all_of(lambda: channels.read(Channel.STDOUT)))
        errors = group.create_task(all_of(lambda: channels.read(Channel.STDERR)))
        assert await all_of(lambda: channels.read(Channel.ERROR)) == exit_status(42)
        assert (await output, await errors) == (b"x" * 1_000_000, b"err\n")
        await channels.close()
    assert sessions("exec", f"SPDY/3.1 {V4}") == before + 1


async def test_sizes_of_the_terminal_reach_the_process(kubelet: Kubelet) -> None:
    client = await kubelet.websocket(exec_path("cat", input="1", output="1", tty="1"))
    await client.send(b'\x04{"Width":80,"Height":24}')
    await client.send(b'\x04{"Width":100,"Height":50}')
    await client.send(b"\x04nonsense}")
    await client.send(b"\x00still works")
    await client.send(b"\xff\x00")
    assert (await client.channels())[1] == b"still works"
    assert kubelet.runtime.started[0].sizes == [(80, 24), (100, 50)]


async def test_attach_reports_the_exit_code_of_the_process(kubelet: Kubelet) -> None:
    client = await kubelet.websocket("/attach?input=1&output=1")
    await client.send(b"\x00hello")
    await client.send(b"\xff\x00")
    assert await client.channels() == {1: b"hello", 3: exit_status(3)}


async def test_disconnected_client_ends_the_command(kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_command, "DISCONNECT_SECONDS", 0.05)
    client = await kubelet.websocket(exec_path("sleep", "1000"))
    assert await client.message() == b"\x01"
    client.connection.abort()
    assert await kubelet.runtime.started[0].wait() == -9


async def test_command_reads_the_input_of_a_client_that_left(kubelet: Kubelet, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    client = await kubelet.websocket(exec_path("dd", f"of={target}", "status=none"), V4)
    await client.send(b"\x00last words")
    await client.connection.close()
    assert await kubelet.runtime.started[0].wait() == 0
    assert target.read_bytes() == b"last words"


async def test_client_that_does_not_open_its_streams_is_disconnected(
    kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_command, "STREAMS_SECONDS", 0.05)
    connection = await kubelet.spdy(exec_path("sleep", "1000"), V4)
    await all_of(connection.read)
    assert await kubelet.runtime.started[0].wait() == -9


@pytest.mark.parametrize("is_tunnel", [False, True])
async def test_port_forward(kubelet: Kubelet, is_tunnel: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read(-1)).upper())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        kubelet.runtime.port = server.sockets[0].getsockname()[1]
        if is_tunnel:
            spdy = SpdyConnection(ClientTunnel(await kubelet.websocket("/portForward", TUNNEL)), is_server=False)
        else:
            spdy = SpdyConnection(await kubelet.spdy("/portForward", "portforward.k8s.io"), is_server=False)

        async def run() -> None:
            with suppress(ConnectionError):
                await spdy.run()

        async with background_tasks(run()):
            for port, data, error in (
                (80, b"HELLO", b""),
                (81, b"", b"error forwarding port 81: no process listens there"),
            ):
                headers = {"port": str(port), "requestid": str(port)}
                errors = await spdy.open({**headers, "streamtype": "error"})
                stream = await spdy.open({**headers, "streamtype": "data"})
                with suppress(BrokenPipeError):
                    await stream.write(b"hello")
                await stream.end()
                assert (await all_of(stream.read), await all_of(errors.read)) == (data, error)
            spdy.abort()


@pytest.mark.parametrize(
    ("method", "path", "headers", "message"),
    [
        ("POST", exec_path("true"), (("Upgrade", "h2c"),), "is required, not h2c"),
        ("POST", exec_path("true"), SPDY_HEADERS, "X-Stream-Protocol-Version is required"),
        ("POST", exec_path("true"), (*SPDY_HEADERS, ("X-Stream-Protocol-Version", "v1")), "unable to negotiate"),
        ("POST", exec_path("true"), (*WEBSOCKET_HEADERS, ("Sec-WebSocket-Protocol", V5)), "not valid"),
        (
            "GET",
            exec_path("true"),
            (*WEBSOCKET_HEADERS, ("Sec-WebSocket-Protocol", "base64.channel.k8s.io")),
            "supported",
        ),
        ("GET", "/portForward", (*WEBSOCKET_HEADERS, ("Sec-WebSocket-Protocol", V4)), "supported"),
        (
            "GET",
            exec_path("true", output="1", container="missing"),
            (*WEBSOCKET_HEADERS, ("Sec-WebSocket-Protocol", V5)),
            "not running",
        ),
        (
            "GET",
            exec_path("true", tty="1"),
            (*WEBSOCKET_HEADERS, ("Sec-WebSocket-Protocol", V5)),
            "at least 1 of stdin",
        ),
        ("GET", exec_path(), (*WEBSOCKET_HEADERS, ("Sec-WebSocket-Protocol", V5)), "at least 1 command"),
    ],
)
async def test_invalid_request_is_rejected_before_the_upgrade(
    kubelet: Kubelet, method: str, path: str, headers: Headers, message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        await kubelet.upgrade(method, path, headers)
    assert isinstance(kubelet.errors[0], UpgradeRejected | BadRequest)
    assert kubelet.runtime.started == []


async def test_sessions_are_limited(kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubelet_streams, "MAX_SESSIONS", 1)
    first = await kubelet.websocket(exec_path("cat"))
    with pytest.raises(AssertionError):
        await kubelet.websocket(exec_path("cat"))
    [error] = kubelet.errors
    assert isinstance(error, TooManyRequests)
    assert error.retry_after == 5
    await first.send(b"\xff\x00")
    assert json.loads((await first.channels())[3])["status"] == "Success"


def test_terminal_has_no_stderr() -> None:
    assert requested_streams({"output": "1", "error": "1", "tty": "1"}) == RequestedStreams(False, True, False, True)
