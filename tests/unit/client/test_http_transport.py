"""The HTTP transport over real loopback sockets, with correct, broken and silent servers."""

import asyncio
import base64
import gc
import json
import re
import socket
import ssl
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

import pytest
import uvloop
from aiohttp import web

from tapestry import __version__
from tapestry.client.access import Access
from tapestry.client.addresses import AddressPolicy
from tapestry.client.client import Client
from tapestry.client.credentials import (
    AuthorizationSource,
    Credentials,
    StaticAuthorization,
    TokenFile,
    basic_header,
)
from tapestry.client.http_transport import HttpTransport
from tapestry.client.metrics import RECEIVED, SENT
from tapestry.client.tls import KeyPair, Pem, ServerVerification, TlsContextSource, temporary_file
from tapestry.client.transport import Request, Response
from tapestry.kube.errors import ResponseTooLarge, TransportError
from tapestry.kube.objects import name_of
from tapestry.kube.resources import CONFIGMAPS
from tapestry.process import metrics
from tapestry.streams.connection import KEEPALIVE_OPTIONS

TOKEN = "the-token-of-the-administrator"
PASSWORD = "the-password-of-the-proxy"
READ = Request("GET", "/api/v1/pods")
WRITE = Request("PUT", "/api/v1/namespaces/default/pods/web", body=b"{}")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Dialogue = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Run a server that passes every request to `handler`.  Yield its URL."""

    async def route(request: web.Request) -> web.StreamResponse:
        return await handler(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", route)
    runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        yield f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def listening(dialogue: Dialogue, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Run a server that calls `dialogue` on every connection and then closes it.  Yield its URL."""
    under_way: set[asyncio.Task[Any] | None] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way.add(asyncio.current_task())
        try:
            await dialogue(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async with await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls) as server:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.wait([task for task in under_way if task is not None])


@asynccontextmanager
async def connected_to(
    url: str, *, source: AuthorizationSource | None = None, in_flight: int = 64, max_body: int = 1 << 20, **access: Any
) -> AsyncIterator[HttpTransport]:
    credentials = Credentials(source or StaticAuthorization(f"Bearer {TOKEN}"), access.pop("tls", None))
    transport = HttpTransport(Access(url, credentials, **access), max_in_flight=in_flight, max_body=max_body)
    try:
        yield transport
    finally:
        await transport.close()


async def echo(request: web.Request) -> web.Response:
    return web.json_response(
        {
            "line": f"{request.method} {request.raw_path}",
            "headers": [[name.lower(), text] for name, text in request.headers.items()],
            "body": (await request.read()).decode(),
            "peer": request.transport.get_extra_info("peername")[1] if request.transport else None,
        }
    )


class Gate:
    """A handler that holds every request until it is opened."""

    def __init__(self) -> None:
        self.arrived = asyncio.Semaphore(0)
        self.left = asyncio.Semaphore(0)
        self.opened = asyncio.Event()
        self.seen: Counter[str] = Counter()
        self.inside = self.most_inside = 0

    async def __call__(self, request: web.Request) -> web.Response:
        self.seen[request.method] += 1
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        self.arrived.release()
        try:
            await self.opened.wait()
        finally:
            self.inside -= 1
            self.left.release()
        return web.Response()


def json_of(response: Response) -> Any:
    assert response.status == 200, response
    return json.loads(response.body)


async def failure_of(answer: Coroutine[Any, Any, Any]) -> TransportError:
    with pytest.raises(TransportError) as caught:
        await answer
    return caught.value


async def streamed(transport: HttpTransport, request: Request = READ) -> bytes:
    async with transport.stream(request) as stream:
        return b"".join([chunk async for chunk in stream.chunks()])


# -- requests and responses


async def test_request_has_user_agent_and_credentials() -> None:
    impersonation = (("Impersonate-User", "eve"), ("Impersonate-Group", "staff"), ("Impersonate-Group", "ops"))
    async with serving(echo) as url, connected_to(url, impersonation=impersonation) as transport:
        got = json_of(await transport.send(Request("GET", "/api/v1/pods", accept="application/yaml")))
    assert [(name, text) for name, text in got["headers"] if name != "host"] == [
        ("user-agent", f"tapestry/{__version__}"),
        ("accept-encoding", "identity"),
        ("impersonate-user", "eve"),
        ("impersonate-group", "staff"),
        ("impersonate-group", "ops"),
        ("authorization", f"Bearer {TOKEN}"),
        ("accept", "application/yaml"),
    ]


async def test_request_is_sent_unchanged() -> None:
    query = {"labelSelector": "app in (a,b),x=é&y", "limit": "5"}
    request = Request("PATCH", "/apis/g/v1/things/a%20b:c", query, b'{"a":1}', "application/merge-patch+json")
    async with serving(echo) as url, connected_to(f"{url}/prefix") as transport:
        got = json_of(await transport.send(request))
    path, _, sent = got["line"].partition("?")
    assert path == "PATCH /prefix/apis/g/v1/things/a%20b:c"
    assert dict(parse_qsl(sent)) == query
    assert got["body"] == '{"a":1}'
    assert ["content-type", "application/merge-patch+json"] in got["headers"]


async def test_response_of_any_status_is_returned() -> None:
    async def busy(_: web.Request) -> web.Response:
        return web.Response(status=429, body=b"later", headers={"Retry-After": "7"})

    async with serving(busy) as url, connected_to(url) as transport:
        answer = await transport.send(READ)
    assert (answer.status, answer.body, answer.headers["retry-after"]) == (429, b"later", "7")


async def test_redirect_is_not_followed() -> None:
    async def redirect(request: web.Request) -> web.Response:
        paths.append(request.path)
        raise web.HTTPFound("/elsewhere")

    paths: list[str] = []
    async with serving(redirect) as url, connected_to(url) as transport:
        assert (await transport.send(READ)).status == 302
        async with transport.stream(READ) as stream:
            assert stream.status == 302
    assert paths == [READ.path, READ.path]


async def test_connection_is_reused() -> None:
    async with serving(echo) as url, connected_to(url) as transport:
        peers = {json_of(await transport.send(READ))["peer"] for _ in range(3)}
    assert len(peers) == 1


@pytest.mark.parametrize("request_", [replace(READ, path="/a\r\nX: y"), replace(READ, accept="a\nX: y")])
async def test_line_break_in_a_request_is_refused(request_: Request) -> None:
    async with serving(echo) as url, connected_to(url) as transport:
        with pytest.raises(ValueError, match="a line break"):
            await transport.send(request_)


async def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        assert await reader.read() == b""
        closed.set()

    monkeypatch.setattr("tapestry.client.http_transport.IDLE_SECONDS", 0.01)
    closed = asyncio.Event()
    async with listening(answer) as url, connected_to(url) as transport:
        await transport.send(READ)
        await closed.wait()


async def test_cookies_are_not_stored() -> None:
    async def sticky(request: web.Request) -> web.Response:
        answer = await echo(request)
        answer.set_cookie("session", "1")
        return answer

    async with serving(sticky) as url, connected_to(url) as transport:
        await transport.send(READ)
        assert "cookie" not in dict(json_of(await transport.send(READ))["headers"])


async def test_stream_is_read_as_it_arrives() -> None:
    more = asyncio.Event()

    async def two_parts(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"one")
        await more.wait()
        await answer.write(b"two")
        return answer

    async with serving(two_parts) as url, connected_to(url) as transport, transport.stream(READ) as stream:
        chunks = aiter(stream.chunks())
        assert (stream.status, await anext(chunks)) == (200, b"one")
        more.set()
        assert await anext(chunks) == b"two"
        assert [chunk async for chunk in chunks] == []


# -- no response


async def test_refused_connection_means_nothing_was_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    async with connected_to(url) as transport:
        error = await failure_of(transport.send(WRITE))
        assert not error.maybe_sent
        assert str(error).startswith(f"{WRITE}: {url} cannot be reached")
        assert not (await failure_of(streamed(transport))).maybe_sent


async def test_timeout_when_server_is_silent() -> None:
    gate = Gate()
    async with serving(gate) as url, connected_to(url) as transport:
        hasty = Request("PUT", "/x", timeout=0.5)
        error = await failure_of(transport.send(hasty))
        assert error.maybe_sent
        assert str(error) == f"PUT /x to {url}: no response in 0.5 s"
        assert (await failure_of(streamed(transport, hasty))).maybe_sent
        await gate.left.acquire()  # both connections are closed
        await gate.left.acquire()


async def test_timeout_covers_the_body_but_not_a_stream() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"begun")
        await done.wait()
        return answer

    done = asyncio.Event()
    async with serving(endless) as url, connected_to(url) as transport:
        hasty = Request("GET", "/x", timeout=0.5)
        async with transport.stream(hasty) as stream:
            assert "no response in" in str(await failure_of(transport.send(hasty)))
            done.set()
            assert b"".join([chunk async for chunk in stream.chunks()]) == b"begun"


async def test_timeout_covers_waiting_for_a_slot() -> None:
    gate = Gate()
    async with serving(gate) as url, connected_to(url, in_flight=1) as transport, asyncio.TaskGroup() as group:
        group.create_task(transport.send(READ))
        await gate.arrived.acquire()
        assert "no response in 0.05 s" in str(await failure_of(transport.send(Request("PUT", "/x", timeout=0.05))))
        gate.opened.set()
    assert gate.seen == {"GET": 1}


def sockets_to(url: str) -> list[socket.socket]:
    """Return the sockets of this process that are connected to a server."""
    found = []
    for each in gc.get_objects():
        if isinstance(each, socket.socket) and each.family == socket.AF_INET:
            with suppress(OSError):  # not connected
                found += [each] if url.endswith(f":{each.getpeername()[1]}") else []
    return found


async def test_keepalive_detects_a_vanished_peer() -> None:
    async with serving(echo) as url, connected_to(url) as transport:
        await transport.send(READ)
        [ours] = sockets_to(url)
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        probes = {name: getattr(socket, name) for name in KEEPALIVE_OPTIONS if hasattr(socket, name)}
        assert probes
        assert all(
            ours.getsockopt(socket.IPPROTO_TCP, option) == KEEPALIVE_OPTIONS[name] for name, option in probes.items()
        )


BREAKS: dict[str, Dialogue] = {}


def breaking(dialogue: Dialogue) -> Dialogue:
    BREAKS[dialogue.__name__] = dialogue
    return dialogue


@breaking
async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")


@breaking
async def is_no_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
    await writer.drain()


@breaking
async def has_broken_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\n no colon\x00\r\n\r\n")
    await writer.drain()


@breaking
async def ends_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    await writer.drain()


@breaking
async def ends_inside_a_chunk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n{")
    await writer.drain()


@breaking
async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "PATCH", "DELETE"])
@pytest.mark.parametrize("break_", BREAKS.values(), ids=BREAKS.keys())
async def test_safety_rule_7_broken_response_reveals_no_secrets(break_: Dialogue, method: str) -> None:
    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await break_(reader, writer)

    connections: list[asyncio.StreamWriter] = []
    request = Request(method, "/api/v1/pods")
    async with listening(counted) as url, connected_to(url) as transport:
        error = await failure_of(transport.send(request))
        assert len(connections) == 1
        broken_stream = await failure_of(streamed(transport, request))
    for each in (error, broken_stream):
        assert each.maybe_sent
        assert str(each).startswith(f"{request} to {url}: ")
        assert TOKEN not in "".join(traceback.format_exception(each))


# -- size limits


def of_size(size: int, **options: Any) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        if options.get("chunked"):
            stream = web.StreamResponse()
            await stream.prepare(request)
            await stream.write(b"x" * size)
            return stream
        whole = web.Response(body=b"x" * size)
        if options.get("packed"):
            whole.enable_compression(web.ContentCoding.gzip)
        return whole

    return answer


@pytest.mark.parametrize("options", [{}, {"chunked": True}], ids=["announced", "chunked"])
async def test_response_over_the_limit_is_an_error(options: dict[str, bool]) -> None:
    async with serving(of_size(100_001, **options)) as url, connected_to(url, max_body=100_000) as transport:
        error = await failure_of(transport.send(WRITE))
    assert str(error) == f"{WRITE}: the response is over 100000 bytes"
    assert error.maybe_sent


async def test_compressed_response_is_rejected() -> None:
    async with serving(of_size(10_000_000, packed=True)) as url, connected_to(url) as transport:
        error = await failure_of(transport.send(READ))
        assert str(error).endswith("the response is compressed, although the request did not allow it")


async def test_request_may_lower_the_limit() -> None:
    async with serving(of_size(2000)) as url, connected_to(url) as transport:
        assert len((await transport.send(READ)).body) == 2000
        error = await failure_of(transport.send(replace(READ, max_body=1000)))
        assert isinstance(error, ResponseTooLarge)


async def test_too_large_list_is_requested_in_smaller_pages() -> None:
    limits: list[int] = []

    async def listed(request: web.Request) -> web.Response:
        limits.append(int(request.query["limit"]))
        begin = int(request.query.get("continue", "0"))
        end = min(begin + limits[-1], 40)
        items = [{"metadata": {"name": str(number)}, "data": {"x": "x" * 1000}} for number in range(begin, end)]
        metadata = {"resourceVersion": "1", "continue": str(end) if end < 40 else ""}
        return web.json_response({"metadata": metadata, "items": items})

    async with serving(listed) as url, connected_to(url, max_body=10_000) as transport:
        found = await Client(transport).list(CONFIGMAPS, "default", page_size=20)
    assert [name_of(each) for each in found] == [str(number) for number in range(40)]
    assert limits == [20, *[5] * 8]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_address_is_checked_when_dialed(host: str) -> None:
    paths: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        paths.append(request.path)
        return web.Response()

    async with serving(answer) as url:
        async with connected_to(url.replace("127.0.0.1", host), address_policy=AddressPolicy()) as transport:
            error = await failure_of(transport.send(READ))
        assert "is a loopback address, which a kubeconfig from a Secret may not lead to" in str(error)
        assert (paths, error.maybe_sent) == ([], False)
        async with connected_to(url, address_policy=AddressPolicy(allow_loopback=True)) as transport:
            assert (await transport.send(READ)).status == 200


@pytest.mark.parametrize("options", [{}, {"chunked": True}], ids=["announced", "chunked"])
async def test_response_at_the_limit_is_read(options: dict[str, bool]) -> None:
    async with serving(of_size(100_000, **options)) as url, connected_to(url, max_body=100_000) as transport:
        assert (await transport.send(READ)).body == b"x" * 100_000


async def test_announced_size_over_the_limit_fails_at_once() -> None:
    async def boasts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
        assert await reader.read() == b""  # until the client disconnects

    async with listening(boasts) as url, connected_to(url) as transport:
        assert "the response is over" in str(await failure_of(transport.send(READ)))


# -- credentials


class Guard:
    """A handler that accepts one token and records the tokens it received."""

    def __init__(self, good: str) -> None:
        self.good = good
        self.tokens: list[str] = []

    async def __call__(self, request: web.Request) -> web.Response:
        token = request.headers["Authorization"].removeprefix("Bearer ")
        self.tokens.append(token)
        return web.Response(status=200 if token == self.good else 401)


async def test_rejected_token_is_reread_and_retried_once(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    guard = Guard("old")
    async with serving(guard) as url, connected_to(url, source=TokenFile(file, "tokenFile")) as transport:
        assert (await transport.send(WRITE)).status == 200
        file.write_text("new")
        guard.good = "new"
        assert (await transport.send(WRITE)).status == 200
        assert guard.tokens == ["old", "old", "new"]


async def test_unchanged_token_is_not_retried(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    guard = Guard("new")
    async with serving(guard) as url, connected_to(url, source=TokenFile(file, "tokenFile")) as transport:
        assert (await transport.send(READ)).status == 401
        assert guard.tokens == ["old"]
        file.write_text("no better")
        assert (await transport.send(READ)).status == 401
        assert guard.tokens == ["old", "old", "no better"]


async def test_rejected_stream_refreshes_the_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    guard = Guard("new")
    async with serving(guard) as url, connected_to(url, source=TokenFile(file, "tokenFile")) as transport:
        async with transport.stream(READ) as stream:
            assert stream.status == 401
            file.write_text("new")
        async with transport.stream(READ) as stream:
            assert stream.status == 401
        async with transport.stream(READ) as stream:
            assert stream.status == 200


# -- abort


LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


def on(new_loop: Callable[[], asyncio.AbstractEventLoop], scenario: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario)


@LOOPS
@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
def test_safety_rule_4_abort_cuts_a_request_without_retry(
    method: str, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def scenario() -> None:
        gate = Gate()
        async with serving(gate) as url, connected_to(url) as transport:
            async with asyncio.TaskGroup() as group:
                cut = group.create_task(failure_of(transport.send(Request(method, "/x"))))
                await gate.arrived.acquire()
                transport.abort()
            assert cut.result().maybe_sent
            await gate.left.acquire()  # the server notices
            assert gate.seen == {method: 1}
            gate.opened.set()
            assert (await transport.send(READ)).status == 200

    on(new_loop, scenario())


async def endless(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    await answer.write(b"begun")
    await asyncio.Event().wait()
    return answer


@LOOPS
def test_abort_cuts_a_stream(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def read_on(transport: HttpTransport) -> None:
        async with transport.stream(READ) as stream:
            async for _ in stream.chunks():
                transport.abort()

    async def scenario() -> None:
        async with serving(endless) as url, connected_to(url) as transport:
            assert (await failure_of(read_on(transport))).maybe_sent

    on(new_loop, scenario())


@LOOPS
def test_close_ends_streams(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def read_on(transport: HttpTransport, started: asyncio.Event) -> None:
        async with transport.stream(READ) as stream:
            async for _ in stream.chunks():
                started.set()

    async def scenario() -> None:
        started = asyncio.Event()
        async with serving(endless) as url, connected_to(url) as transport:
            async with asyncio.timeout(10), asyncio.TaskGroup() as group:
                cut = group.create_task(failure_of(read_on(transport, started)))
                await started.wait()
                await asyncio.sleep(0)  # the reader is waiting
                await transport.close()
            assert cut.result().maybe_sent

    on(new_loop, scenario())


@LOOPS
def test_request_after_abort_reconnects(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def scenario() -> None:
        async with serving(echo) as url, connected_to(url) as transport:
            first = json_of(await transport.send(WRITE))["peer"]
            transport.abort()  # without an iteration of the loop to notice
            second = json_of(await transport.send(WRITE))["peer"]
            transport.abort()
            transport.abort()
            third = json_of(await transport.send(WRITE))["peer"]
        assert len({first, second, third}) == 3

    on(new_loop, scenario())


@LOOPS
def test_safety_rule_4_abort_stops_requests_that_are_connecting(
    new_loop: Callable[[], asyncio.AbstractEventLoop], authority: Any
) -> None:
    async def scenario() -> None:
        connected = asyncio.Event()

        async def no_handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected.set()
            while await reader.read(1000):
                pass

        tls = TlsContextSource(ServerVerification(Pem("ca", authority.pem)))
        async with (
            listening(no_handshake) as url,
            connected_to(url.replace("http:", "https:"), tls=tls) as transport,
            asyncio.TaskGroup() as group,
        ):
            cut = group.create_task(failure_of(transport.send(WRITE)))
            await connected.wait()
            transport.abort()
            assert not (await cut).maybe_sent

    on(new_loop, scenario())


@LOOPS
@pytest.mark.parametrize("turns", [1, 2])
def test_safety_rule_4_abort_stops_requests_in_dns_lookup(
    turns: int, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def scenario() -> None:
        gate = Gate()
        async with serving(gate) as url, connected_to(url.replace("127.0.0.1", "localhost")) as transport:
            async with asyncio.TaskGroup() as group:
                cut = group.create_task(failure_of(transport.send(WRITE)))
                for _ in range(turns):
                    await asyncio.sleep(0)
                transport.abort()
            assert not cut.result().maybe_sent
            gate.opened.set()
            assert (await transport.send(READ)).status == 200
        assert gate.seen == {"GET": 1}

    on(new_loop, scenario())


class SlowCredentials:
    """Credentials that take time."""

    key_pair: KeyPair | None = None

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.ready = asyncio.Event()

    async def authorization(self) -> str | None:
        self.called.set()
        await self.ready.wait()
        return None

    def handle_unauthorized(self) -> bool:
        return False


async def test_safety_rule_4_abort_stops_requests_waiting_for_credentials() -> None:
    gate, slow = Gate(), SlowCredentials()
    async with serving(gate) as url, connected_to(url, source=slow) as transport:
        async with asyncio.TaskGroup() as group:
            cut = group.create_task(failure_of(transport.send(WRITE)))
            await slow.called.wait()
            transport.abort()
            slow.ready.set()
        assert not cut.result().maybe_sent
    assert not gate.seen


async def test_safety_rule_4_abort_stops_queued_requests() -> None:
    gate = Gate()
    async with serving(gate) as url, connected_to(url, in_flight=1) as transport:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(failure_of(transport.send(READ)))
            await gate.arrived.acquire()
            second = group.create_task(failure_of(transport.send(WRITE)))
            await asyncio.sleep(0)
            transport.abort()
        assert first.result().maybe_sent
        assert not second.result().maybe_sent
        assert gate.seen == {"GET": 1}


async def test_abort_and_close_of_unused_transport_do_nothing() -> None:
    async with serving(echo) as url, connected_to(url) as transport:
        transport.abort()
        await transport.close()
        await transport.close()
        assert (await transport.send(READ)).status == 200


# -- concurrency


async def test_concurrent_requests_are_limited_but_not_streams() -> None:
    gate = Gate()

    async def mixed(request: web.Request) -> web.StreamResponse:
        return await (echo if request.path == "/watch" else gate)(request)

    async with serving(mixed) as url, connected_to(url, in_flight=2) as transport:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(transport.send(READ)) for _ in range(5)]
            await gate.arrived.acquire()
            await gate.arrived.acquire()
            assert b"GET /watch" in await streamed(transport, Request("GET", "/watch"))
            gate.opened.set()
        assert [task.result().status for task in tasks] == [200] * 5
    assert gate.most_inside == 2


@pytest.mark.parametrize("kind", ["request", "stream"])
async def test_cancellation_disconnects_and_frees_the_slot(kind: str) -> None:
    gate = Gate()
    async with serving(gate) as url, connected_to(url, in_flight=1) as transport:
        request = transport.send(READ) if kind == "request" else streamed(transport)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(request)
            await gate.arrived.acquire()
            task.cancel()
        await gate.left.acquire()  # the server noticed
        gate.opened.set()
        assert (await transport.send(READ)).status == 200


async def test_leaving_a_stream_disconnects() -> None:
    gone = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()
        return answer

    async with serving(endless) as url, connected_to(url) as transport:
        async with transport.stream(READ):
            assert not gone.is_set()
        await gone.wait()


# -- TLS


def server_context(pair: Any, *, clients: bytes | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with temporary_file(pair.certificate) as certificate, temporary_file(pair.key) as key:
        context.load_cert_chain(certificate, key)
    if clients:
        context.load_verify_locations(cadata=clients.decode())
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


async def who(request: web.Request) -> web.Response:
    """Respond with the common name of the client's certificate and the requested server name."""
    assert request.transport is not None
    seen = request.transport.get_extra_info("peercert")
    return web.Response(text=seen["subject"][0][0][1] if seen else "nobody")


def trusting(authority: Any, pair: Any = None) -> TlsContextSource:
    keys = KeyPair(Pem("client-certificate", pair.certificate), Pem("client-key", pair.key)) if pair else None
    return TlsContextSource(ServerVerification(Pem("certificate-authority", authority.pem)), keys)


async def test_server_certificate_of_our_authority_is_accepted(authority: Any) -> None:
    context = server_context(authority.issue("server.test"), clients=authority.pem)
    async with serving(who, context) as url:
        async with connected_to(url, tls=trusting(authority), tls_server_name="server.test") as transport:
            assert (await transport.send(READ)).body == b"nobody"
        async with connected_to(url, tls=trusting(authority)) as transport:  # the certificate is not for 127.0.0.1
            error = await failure_of(transport.send(WRITE))
    assert not error.maybe_sent
    assert "certificate" in str(error)


async def test_server_certificate_of_other_authority_is_rejected(authority: Any, other_authority: Any) -> None:
    async with (
        serving(who, server_context(other_authority.issue("server.test"))) as url,
        connected_to(url, tls=trusting(authority), tls_server_name="server.test") as transport,
    ):
        for error in (await failure_of(transport.send(WRITE)), await failure_of(streamed(transport))):
            assert not error.maybe_sent
            assert "certificate verify failed" in str(error)


async def test_client_certificate_is_sent(authority: Any) -> None:
    context = server_context(authority.issue("server.test"), clients=authority.pem)
    tls = trusting(authority, authority.issue("administrator"))
    async with serving(who, context) as url, connected_to(url, tls=tls, tls_server_name="server.test") as transport:
        assert (await transport.send(READ)).body == b"administrator"


@LOOPS
@pytest.mark.parametrize("kind", ["a request", "a stream"])
@pytest.mark.parametrize("frozen", [False, True], ids=["a living server", "a frozen server"])
def test_closed_transport_leaves_no_open_sockets(
    new_loop: Callable[[], asyncio.AbstractEventLoop], kind: str, frozen: bool, authority: Any
) -> None:
    async def scenario() -> None:
        arrived, hung_up = asyncio.Event(), asyncio.Event()

        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
            if frozen:
                writer.transport.pause_reading()  # it does not even send close_notify
            arrived.set()
            await (hung_up.wait() if frozen else reader.read())
            writer.transport.abort()

        context = server_context(authority.issue("server.test"))
        access = {"tls": trusting(authority), "tls_server_name": "server.test"}
        async with listening(hold, context) as url, connected_to(url, **access) as transport:
            request = transport.send(READ) if kind == "a request" else streamed(transport)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(request)
                await arrived.wait()
                [ours] = sockets_to(url)
                task.cancel()
            await transport.close()
            assert ours.fileno() < 0
            hung_up.set()

    on(new_loop, scenario())


async def test_changed_client_certificate_is_used_for_new_connections(authority: Any, tmp_path: Path) -> None:
    def issue(name: str) -> None:
        pair = authority.issue(name)
        (tmp_path / "crt").write_bytes(pair.certificate)
        (tmp_path / "key").write_bytes(pair.key)

    issue("before")
    seconds = iter(range(0, 1000, 100))
    files = KeyPair(Pem("client-certificate", tmp_path / "crt"), Pem("client-key", tmp_path / "key"))
    tls = TlsContextSource(
        ServerVerification(Pem("certificate-authority", authority.pem)), files, monotonic=lambda: next(seconds)
    )
    context = server_context(authority.issue("server.test"), clients=authority.pem)
    async with serving(who, context) as url, connected_to(url, tls=tls, tls_server_name="server.test") as transport:
        assert (await transport.send(READ)).body == b"before"
        issue("after")
        assert (await transport.send(READ)).body == b"after"


# -- proxies


class Proxy:
    """An HTTP proxy that opens tunnels for clients with the password."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split(" ", 2)
        self.requests.append(f"{method} {target}")
        if base64.b64encode(f"us:{PASSWORD}".encode()).decode() not in head:
            writer.write(b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n")
            return
        there, back = await asyncio.open_connection("127.0.0.1", int(target.rpartition(":")[2]))
        writer.write(b"HTTP/1.1 200 Go ahead\r\n\r\n")
        async with asyncio.TaskGroup() as group:
            group.create_task(copied(reader, back))
            group.create_task(copied(there, writer))


async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


async def test_proxy_tunnels_tls(authority: Any) -> None:
    proxy = Proxy()
    async with serving(echo, server_context(authority.issue("server.test"))) as url, listening(proxy) as proxy_url:
        access = {"tls": trusting(authority), "tls_server_name": "server.test"}
        through = proxy_url.replace("//", f"//us:{PASSWORD}@")
        async with connected_to(url, proxy_url=through, **access) as transport:
            got = json_of(await transport.send(READ))
    assert ["authorization", f"Bearer {TOKEN}"] in got["headers"]
    assert not [name for name, _ in got["headers"] if name.startswith("proxy-")]
    assert proxy.requests == [url.replace("https://", "CONNECT ")]


async def relayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a plain request as an HTTP proxy, with the head that it received."""
    head = await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(head), head))
    await writer.drain()


async def test_proxy_receives_plain_requests_itself() -> None:
    async with listening(relayed) as proxy_url:
        through = proxy_url.replace("//", f"//us:{quote(PASSWORD)}@")
        async with connected_to("http://server.test:81/prefix", proxy_url=through) as transport:
            head = (await transport.send(READ)).body.decode()
    assert head.startswith("GET http://server.test:81/prefix/api/v1/pods HTTP/1.1\r\nHost: server.test:81\r\n")
    assert f"Proxy-Authorization: {basic_header('us', PASSWORD)}\r\n" in head


@LOOPS
def test_proxy_may_use_tls_itself(new_loop: Callable[[], asyncio.AbstractEventLoop], authority: Any) -> None:
    async def scenario() -> None:
        proxy, context = Proxy(), server_context(authority.issue("localhost"))
        access = {"tls": trusting(authority), "tls_server_name": "localhost"}
        async with serving(echo, context) as url, listening(proxy, context) as proxy_url:
            through = proxy_url.replace("//127.0.0.1", f"//us:{PASSWORD}@localhost")
            async with connected_to(url, proxy_url=through, **access) as transport:
                assert json_of(await transport.send(READ))["line"] == f"GET {READ.path}"
                assert json_of(await transport.send(READ))["line"] == f"GET {READ.path}"
        assert proxy.requests == [url.replace("https://", "CONNECT ")]

    on(new_loop, scenario())


@pytest.mark.parametrize("proxy", [Proxy(), *BREAKS.values()], ids=["refuses", *BREAKS])
async def test_safety_rule_7_proxy_errors_reveal_no_secrets(proxy: Dialogue, authority: Any) -> None:
    access = {"tls": trusting(authority), "tls_server_name": "server.test"}
    async with listening(proxy) as proxy_url:
        through = proxy_url.replace("//", f"//us:not-{PASSWORD}@")
        async with connected_to("https://server.test", proxy_url=through, **access) as transport:
            failed = await failure_of(transport.send(WRITE))
    async with connected_to("https://server.test", proxy_url=through, **access) as transport:
        unreachable = await failure_of(transport.send(WRITE))
    assert not unreachable.maybe_sent
    if isinstance(proxy, Proxy):
        assert str(failed).endswith("the proxy rejected the request: 407 Who are you")
        assert not failed.maybe_sent
    for error in (failed, unreachable):
        assert str(error).startswith(str(WRITE))
        text = "".join(traceback.format_exception(error))
        assert PASSWORD not in text
        assert base64.b64encode(f"us:not-{PASSWORD}".encode()).decode() not in text
        assert TOKEN not in text


async def test_body_bytes_are_counted_in_both_directions() -> None:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=b"x" * 3000)

    def counted() -> tuple[float, float]:
        return SENT.values().get((), 0), RECEIVED.values().get((), 0)

    async with serving(answer) as url, connected_to(url) as transport:
        sent, received = counted()
        await transport.send(Request("POST", "/", body=b"y" * 200))
        assert counted() == (sent + 200, received + 3000)
        assert len(await streamed(transport)) == 3000
        assert counted() == (sent + 200, received + 6000)
        match = re.search(rb"^tapestry_client_received_bytes_total (\S+)$", metrics.render()[0], re.MULTILINE)
        assert match is not None
        assert float(match[1]) == received + 6000
