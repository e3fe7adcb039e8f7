"""HTTP on real sockets: malformed, slow and concurrent requests."""

import asyncio
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from tapestry.apiserver.access.authentication import Credentials, UnionAuthenticator
from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.codec import MAX_BODY_BYTES
from tapestry.apiserver.core.requests import Call, User
from tapestry.apiserver.core.responses import ApiResponse, status_response
from tapestry.apiserver.handlers.watches import WatchResponse
from tapestry.apiserver.serving.http_connection import MAX_HEAD_BYTES
from tapestry.apiserver.serving.http_handler import HttpHandler, start_http_server
from tapestry.apiserver.serving.http_server import MAX_STARTED_HANDSHAKES, HandshakeTurns
from tapestry.apiserver.serving.inflight_limiter import MUTATING, READ_ONLY, InflightLimiter, InflightSlot
from tapestry.apiserver.serving.request_handler import RequestHandler
from tapestry.kube.errors import ApiError

from ..conftest import ServerClient

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
MAPS = "/api/v1/namespaces/default/configmaps"
TIMEOUT = 10.0


def authenticate_by_token(credentials: Credentials) -> User | None:
    """Authenticate the user that the token names; `root` is a master."""
    name = credentials.bearer_token
    return User(name, ("system:masters",) if name == "root" else ("system:authenticated",)) if name else None


@dataclass
class RawConnection:
    """One connection with raw reads and writes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, text: str | bytes) -> None:
        self.writer.write(text if isinstance(text, bytes) else text.encode())

    async def receive(self) -> tuple[int, dict[str, str], bytes]:
        """Return the status, the headers and the body of a complete response."""
        async with asyncio.timeout(TIMEOUT):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(first.split()[1]), headers, body

    async def is_closed(self) -> bool:
        async with asyncio.timeout(TIMEOUT):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True


def request(method: str, path: str, body: bytes = b"", user: str = "root", **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {user}"]
    if body or method in ("POST", "PUT"):
        lines.append(f"Content-Length: {len(body)}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


@asynccontextmanager
async def http_server(
    server: Any, limiter: InflightLimiter | None = None, *, seconds: float = 5, idle: float = 5
) -> AsyncIterator[Any]:
    """Run an HTTP server; yield a function that connects to it."""
    http_handler = HttpHandler(
        server, UnionAuthenticator([authenticate_by_token]), limiter or InflightLimiter({}), seconds
    )
    async with asyncio.TaskGroup() as group:
        running = await start_http_server(http_handler, "127.0.0.1", 0, group=group, idle_timeout=idle)
        clients: list[RawConnection] = []

        async def connect() -> RawConnection:
            clients.append(RawConnection(*await asyncio.open_connection(*running.addresses[0][:2])))
            return clients[-1]

        try:
            yield connect
        finally:
            for client in clients:
                client.writer.close()
            await running.stop()


class BaseHandler:
    """Base class of the handlers in these tests."""

    def reject(self, _: Call, error: ApiError) -> ApiResponse:
        return status_response(error)

    def is_long_running(self, api_call: Call) -> bool:
        return api_call.method == "GET" and "watch" in api_call.query


@dataclass
class BlockingHandler(BaseHandler):
    """A handler that responds when it is released."""

    waiting: int = 0

    def __post_init__(self) -> None:
        self.released, self.arrived, self.finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(self, _: Call) -> ApiResponse:
        self.waiting += 1
        self.arrived.set()
        try:
            await self.released.wait()
        finally:
            self.waiting -= 1
            self.finished.set()
        return ApiResponse(200, b"{}")

    async def wait_for(self, number: int) -> None:
        """Wait until that many requests are waiting."""
        async with asyncio.timeout(TIMEOUT):
            while self.waiting < number:
                self.arrived.clear()
                await self.arrived.wait()


# -- bodies


@pytest.mark.parametrize("size", [0, 2 << 20, MAX_BODY_BYTES - 200])
async def test_body_up_to_kubernetes_limit_is_accepted(call: ServerClient, size: int) -> None:
    body = json.dumps({"metadata": {"name": "a"}, "data": {"k": "x" * size}}).encode()
    async with http_server(RequestHandler(call.server, 10)) as connect:
        client = await connect()
        client.send(request("POST", MAPS, body, Content_Type="application/json"))
        status, _, _ = await client.receive()
    assert status != 413
    assert (status == 201) is (size == 0)  # a ConfigMap has its own limit


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_larger_body_is_rejected(call: ServerClient, is_chunked: bool) -> None:
    async with http_server(RequestHandler(call.server, 10)) as connect:
        client = await connect()
        if is_chunked:
            client.send(request("POST", MAPS, Transfer_Encoding="chunked").replace(b"Content-Length: 0\r\n", b""))
            piece = b"x" * 65536
            for _ in range(MAX_BODY_BYTES // len(piece) + 1):
                client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        else:
            client.send(
                f"POST {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer root\r\n"
                f"Content-Length: {MAX_BODY_BYTES + 1}\r\n\r\n"
            )
        status, _, body = await client.receive()
    assert (status, json.loads(body)["reason"]) == (413, "RequestEntityTooLarge")


async def test_chunked_body_is_assembled(call: ServerClient) -> None:
    body = json.dumps({"metadata": {"name": "pieces"}}).encode()
    async with http_server(RequestHandler(call.server, 10)) as connect:
        client = await connect()
        client.send(
            request("POST", MAPS, Transfer_Encoding="chunked", Content_Type="application/json").replace(
                b"Content-Length: 0\r\n", b""
            )
        )
        for piece in (body[:5], body[5:]):
            client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        client.send(b"0\r\n\r\n")
        status, _, result = await client.receive()
    assert (status, json.loads(result)["metadata"]["name"]) == (201, "pieces")


async def test_missing_body_times_out(call: ServerClient) -> None:
    async with http_server(RequestHandler(call.server, 10), seconds=0.05) as connect:
        client = await connect()
        client.send(request("POST", MAPS, b"x" * 100)[:-50])
        status, _, body = await client.receive()
    assert (status, json.loads(body)["reason"]) == (504, "Timeout")


# -- heads


@pytest.mark.parametrize("data", ["", "GET /version HTTP/1.1\r\nX-Slow: "])
async def test_missing_head_times_out(call: ServerClient, data: str) -> None:
    async with http_server(RequestHandler(call.server, 10), idle=0.05) as connect:
        client = await connect()
        client.send(data)
        assert await client.is_closed()


async def test_connection_is_reused_and_closed_when_idle(call: ServerClient) -> None:
    async with http_server(RequestHandler(call.server, 10), idle=0.2) as connect:
        client = await connect()
        for _ in range(3):
            client.send(request("GET", "/version"))
            assert (await client.receive())[0] == 200
        assert await client.is_closed()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (request("GET", "/version", X_Long="x" * 2 * MAX_HEAD_BYTES), 431),
        (request("GET", "/version").replace(b"\r\n\r\n", b"\r\nX: " + b"x" * 2 * MAX_HEAD_BYTES), 431),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 300 + b"\r\n", 400),
        (b"GET /version?" + b"&".join([b"a=1"] * 300) + b" HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"\0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: x\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.0\r\n\r\n", 400),
        (b"GET http://[/version HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2;a\n\r\n{}\r\n0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: a\rb\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n\0", 400),
    ],
)
async def test_malformed_http_is_rejected_without_logging(
    call: ServerClient, data: bytes, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with http_server(RequestHandler(call.server, 10)) as connect:
        client = await connect()
        client.send(data)
        assert (await client.receive())[0] == code
    assert caplog.records == []


async def test_pipelined_requests_are_answered_in_order(call: ServerClient) -> None:
    async with http_server(RequestHandler(call.server, 10)) as connect:
        client = await connect()
        names = [f"n{number}" for number in range(20)]
        bodies = [json.dumps({"metadata": {"name": name}}).encode() for name in names]
        client.send(b"".join(request("POST", MAPS, body, Content_Type="application/json") for body in bodies))
        result = [json.loads((await client.receive())[2])["metadata"]["name"] for _ in names]
    assert result == names


async def test_request_in_any_fragments_is_accepted(call: ServerClient) -> None:
    body = json.dumps({"metadata": {"name": "a"}}).encode()
    data = request("PUT", f"{MAPS}/a", body, Content_Type="application/json")
    async with http_server(RequestHandler(call.server, 10)) as connect:
        await call.made(MAPS, {"metadata": {"name": "a"}})
        client = await connect()
        for size in (1, 2, 3, 7, 50, len(data) - 1):
            for at in range(0, len(data), size):
                client.send(data[at : at + size])
                await client.writer.drain()
                await asyncio.sleep(0)
            assert (await client.receive())[0] == 200


async def test_expect_continue_gets_100(call: ServerClient) -> None:
    body = json.dumps({"metadata": {"name": "late"}}).encode()
    data = request("POST", MAPS, body, Content_Type="application/json", Expect="100-continue")
    async with http_server(RequestHandler(call.server, 10)) as connect:
        client = await connect()
        client.send(data[: -len(body)])
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(body)
        assert (await client.receive())[0] == 201
        client.send(data[: -len(body)].replace(b"Content-Length: ", b"Content-Length: 9999999"))
        assert (await client.receive())[0] == 413  # without a 100 response


async def test_trailers_are_not_headers(call: ServerClient) -> None:
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    body = b"2;of=no-interest\r\n{}\r\n0\r\n%b\r\n\r\n"
    async with http_server(RequestHandler(call.server, 10)) as connect:
        client = await connect()
        client.send(request("POST", path, Transfer_Encoding="chunked").replace(b"Content-Length: 0\r\n", b""))
        client.send(body % b"Impersonate-User: joe")
        status, _, result = await client.receive()
        assert (status, json.loads(result)["status"]["userInfo"]["username"]) == (201, "root")
        client.send(f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.send(body % b"Authorization: Bearer root")
        assert (await client.receive())[0] == 403


async def test_trailers_are_limited() -> None:
    async with http_server(BlockingHandler(), seconds=60) as connect:
        client = await connect()
        client.send(request("POST", MAPS, Transfer_Encoding="chunked").replace(b"Content-Length: 0\r\n", b""))
        client.send(b"2\r\n{}\r\n0\r\n")
        for _ in range(3):
            client.send(b"X: " + b"x" * MAX_HEAD_BYTES + b"\r\n")
        assert await client.is_closed()


async def test_non_utf8_header_is_replaced(call: ServerClient) -> None:
    body = b'{"metadata":{"name":"strange"},"data":{"a":"b"}}'
    async with http_server(RequestHandler(call.server, 10)) as connect:
        client = await connect()
        client.send(request("POST", MAPS, body, User_Agent="BYTES/1").replace(b"BYTES", b"caf\xe9"))
        status, _, result = await client.receive()
        assert (status, json.loads(result)["metadata"]["managedFields"][0]["manager"]) == (201, "caf\ufffd")
        client.send(request("GET", MAPS, Accept="BYTES").replace(b"BYTES", b"\xff"))
        assert (await client.receive())[0] == 406
        client.send(request("GET", MAPS, Accept="," * 100_000))
        assert (await client.receive())[0] == 406


@pytest.mark.parametrize("size", [1, 1000])
async def test_upgrade_is_ignored(call: ServerClient, size: int) -> None:
    body = json.dumps({"metadata": {"name": "upgraded"}}).encode()
    more = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2_Settings": "AAMAAABk"}
    data = request("POST", MAPS, body, Content_Type="application/json", **more)
    async with http_server(RequestHandler(call.server, 10)) as connect:
        client = await connect()
        for at in range(0, len(data), size):
            client.send(data[at : at + size])
            await client.writer.drain()
            await asyncio.sleep(0)
        status, headers, result = await client.receive()
        assert (status, headers["connection"]) == (201, "close")
        assert json.loads(result)["metadata"]["name"] == "upgraded"


async def test_response_uses_version_of_each_request(call: ServerClient) -> None:
    async with http_server(RequestHandler(call.server, 10)) as connect:
        client = await connect()
        watch = request("GET", f"{MAPS}?watch=1&timeoutSeconds=1")
        client.send(watch + request("GET", "/version").replace(b"HTTP/1.1", b"HTTP/1.0"))
        async with asyncio.timeout(TIMEOUT):
            result = await client.reader.read()
    first, second = result.split(b"0\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in first
    assert (second.startswith(b"HTTP/1.1 200"), b"gitVersion" in second) == (True, True)


@pytest.mark.parametrize(
    "data",
    [
        request("GET", "/version", Connection="close"),
        request("GET", "/version").replace(b"HTTP/1.1", b"HTTP/1.0"),
        request("GET", "/version", Connection="Upgrade", Upgrade="websocket"),
    ],
)
async def test_connection_is_closed_after_response_when_requested(call: ServerClient, data: bytes) -> None:
    async with http_server(RequestHandler(call.server, 10)) as connect:
        client = await connect()
        client.send(data)
        status, headers, _ = await client.receive()
        assert (status, headers["connection"]) == (200, "close")
        assert await client.is_closed()


async def test_head_response_has_no_body(call: ServerClient) -> None:
    async with http_server(RequestHandler(call.server, 10)) as connect:
        client = await connect()
        client.send(request("HEAD", "/version") + request("GET", "/version"))
        first = (await client.reader.readuntil(b"\r\n\r\n")).decode()
        status, headers, body = await client.receive()
    assert f"Content-Length: {len(body)}" in first
    assert (status, int(headers["content-length"])) == (200, len(body))


@pytest.mark.parametrize(("version", "ends"), [("1.1", b"\r\n0\r\n\r\n"), ("1.0", b"\n")])
async def test_watch_is_streamed_for_each_http_version(call: ServerClient, version: str, ends: bytes) -> None:
    await call.made(MAPS, {"metadata": {"name": "seen"}})
    async with http_server(RequestHandler(call.server, 10)) as connect:
        client = await connect()
        data = request("GET", f"{MAPS}?watch=1&timeoutSeconds=1", Connection="close")
        client.send(data.replace(b"HTTP/1.1", f"HTTP/{version}".encode()))
        async with asyncio.timeout(TIMEOUT):
            result = await client.reader.read()
    assert (b"chunked" in result) is (version == "1.1")
    assert result.endswith(ends)
    assert b'"name":"seen"' in result


async def test_query_is_decoded_and_first_value_counts(call: ServerClient) -> None:
    await call.made(MAPS, {"metadata": {"name": "a", "labels": {"app": "x"}}})
    await call.made(MAPS, {"metadata": {"name": "b"}})
    async with http_server(RequestHandler(call.server, 10)) as connect:
        client = await connect()
        for path in (
            f"{MAPS}?labelSelector=app%3Dx&labelSelector=app%3Dy",
            f"{MAPS}?labelSelector=app+in+%28x%29",
            f"{MAPS.replace('configmaps', 'config%6Daps')}?labelSelector=app=x",
            f"http://localhost{MAPS}?labelSelector=app=x",
        ):
            client.send(request("GET", path))
            status, _, body = await client.receive()
            assert (status, [each["metadata"]["name"] for each in json.loads(body)["items"]]) == (200, ["a"])


async def test_all_impersonation_headers_are_passed(call: ServerClient) -> None:
    async with http_server(RequestHandler(call.server, 10)) as connect:
        client = await connect()
        head = request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", b"{}", Impersonate_User="joe")
        groups = b"Impersonate-Group: a\r\nImpersonate-Group: b, c\r\nImpersonate-Extra-Scope: x\r\n"
        client.send(head.replace(b"Impersonate-User", groups + b"Content-Type: application/json\r\nImpersonate-User"))
        status, _, body = await client.receive()
    assert status == 201
    assert json.loads(body)["status"]["userInfo"] == {
        "username": "joe",
        "groups": ["a", "b, c", "system:authenticated"],
        "extra": {"scope": ["x"]},
    }


# -- concurrency


async def test_requests_over_limit_get_429() -> None:
    handler = BlockingHandler()
    async with http_server(handler, InflightLimiter({READ_ONLY: 2, MUTATING: 1})) as connect:
        clients = [await connect() for _ in range(2)]
        for number, client in enumerate(clients, 1):
            client.send(request("GET", "/x", user=f"user{number}"))
            await handler.wait_for(number)
        late = await connect()
        late.send(request("GET", "/x", user="bob"))
        status, headers, body = await late.receive()
        assert (status, headers["retry-after"], json.loads(body)["reason"]) == (429, "1", "TooManyRequests")
        others = [await connect() for _ in range(4)]
        others[0].send(request("POST", "/x", user="bob"))  # writes have their own limit
        others[1].send(request("GET", "/x", user="root"))  # masters are exempt
        others[2].send(request("GET", "/readyz", user="bob"))  # probes are exempt
        others[3].send(request("GET", "/x?watch=1", user="bob"))  # watches are exempt
        await handler.wait_for(6)
        handler.released.set()
        for client in (*clients, *others):
            assert (await client.receive())[0] == 200
        late.send(request("GET", "/x", user="bob"))
        assert (await late.receive())[0] == 200


async def test_slow_uploads_do_not_block_others(call: ServerClient) -> None:
    limiter = InflightLimiter({READ_ONLY: 5, MUTATING: 20})
    async with http_server(RequestHandler(call.server, 10), limiter, seconds=0.5) as connect:
        clients = [await connect() for _ in range(100)]
        for client in clients:
            client.send(request("POST", REVIEWS, b"x" * 1000, user="bob")[:-500])
        other = await connect()
        other.send(request("GET", "/version", user="bob"))
        assert (await other.receive())[0] == 200
        other.send(request("POST", REVIEWS, b"{}", user="joe", Content_Type="application/json"))
        assert (await other.receive())[0] == 201
        codes = [(await client.receive())[0] for client in clients]
    assert set(codes) == {504}
    assert (limiter.inflight, limiter.inflight_by_user) == ({READ_ONLY: 0, MUTATING: 0}, {})


async def test_disconnect_cancels_the_request() -> None:
    handler = BlockingHandler()
    async with http_server(handler) as connect:
        client = await connect()
        client.send(request("GET", "/x"))
        await handler.arrived.wait()
        client.writer.transport.abort()
        async with asyncio.timeout(TIMEOUT):
            await handler.finished.wait()
    assert handler.waiting == 0


@pytest.mark.parametrize("before", [[], [request("GET", "/version")] * 2])
async def test_watch_ends_when_client_disconnects(call: ServerClient, before: list[bytes]) -> None:
    ended = asyncio.Event()

    class RecordingHandler(BaseHandler):
        async def handle(self, api_call: Call) -> ApiResponse | WatchResponse:
            result = await call.server.handle(api_call)
            if isinstance(result, WatchResponse):
                result.on_end = ended.set
            return result

    async with http_server(RecordingHandler()) as connect:
        client = await connect()
        client.send(b"".join([*before, request("GET", f"{MAPS}?watch=1")]))
        for _ in before:
            await client.receive()
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        client.writer.transport.abort()
        async with asyncio.timeout(TIMEOUT):
            await ended.wait()


async def test_client_that_does_not_read_is_aborted() -> None:
    size = 64 << 20

    class LargeResponses(BaseHandler):
        async def handle(self, _: Call) -> ApiResponse:
            return ApiResponse(200, b"x" * size)

    class RecordingLimiter(InflightLimiter):
        finished = asyncio.Event()

        def release(self, slot: InflightSlot) -> None:
            super().release(slot)
            self.finished.set()

    limiter = RecordingLimiter({})
    async with http_server(LargeResponses(), limiter, seconds=0.1) as connect:
        client = await connect()
        client.writer.transport.pause_reading()
        client.send(request("GET", "/x"))
        async with asyncio.timeout(TIMEOUT):
            await limiter.finished.wait()
        client.writer.transport.resume_reading()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await client.reader.readexactly(size)


async def test_pipelining_client_that_does_not_read_is_aborted() -> None:
    class CountingHandler(BaseHandler):
        responses = 0

        async def handle(self, _: Call) -> ApiResponse:
            self.responses += 1
            return ApiResponse(200, b"x" * 60_000)

    class RecordingLimiter(InflightLimiter):
        begun, gave_up = 0.0, asyncio.Event()

        def acquire(self, method: str, user: str = "", *, exempt: bool = False) -> InflightSlot:
            type(self).begun = time.monotonic()
            return super().acquire(method, user, exempt=exempt)

        def release(self, slot: InflightSlot) -> None:
            super().release(slot)
            if time.monotonic() - self.begun >= 0.2:
                self.gave_up.set()

    counting, limiter = CountingHandler(), RecordingLimiter({})
    async with http_server(counting, limiter, seconds=0.2) as connect:
        client = await connect()
        client.writer.transport.pause_reading()
        client.send(request("GET", "/x") * 2000)
        async with asyncio.timeout(TIMEOUT):
            await limiter.gave_up.wait()
        client.writer.transport.resume_reading()
        with suppress(ConnectionError):
            await client.reader.read()  # until the connection is closed
    assert counting.responses < 2000


async def test_failed_connection_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    class FailingHandler(BaseHandler):
        async def handle(self, api_call: Call) -> ApiResponse:
            if api_call.path == "/odd":
                return ApiResponse(599, b"{}")
            raise api_errors.method_not_allowed()

        def reject(self, _: Call, error: ApiError) -> ApiResponse:
            raise RuntimeError("even this fails") from error

    async with http_server(FailingHandler()) as connect:
        one, other = await connect(), await connect()
        one.send(request("GET", "/x"))
        assert await one.is_closed()
        other.send(request("GET", "/odd"))
        assert (await other.receive())[0] == 599
    assert [each.message for each in caplog.records] == ["HTTP connection failed"]


@pytest.mark.parametrize("turns", range(6))
async def test_connection_during_shutdown_is_closed(call: ServerClient, turns: int) -> None:
    async with asyncio.TaskGroup() as group:
        http_handler = HttpHandler(call.server, UnionAuthenticator([authenticate_by_token]), InflightLimiter({}), 5)
        running = await start_http_server(http_handler, "127.0.0.1", 0, group=group, idle_timeout=60)
        with socket.create_connection(running.addresses[0], timeout=TIMEOUT) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            await running.stop()
            with suppress(ConnectionResetError):
                assert await asyncio.to_thread(client.recv, 1) == b""


# -- TLS handshakes


async def test_few_handshakes_start_in_one_iteration() -> None:
    turns, started = HandshakeTurns(), list[int]()

    async def start(number: int) -> None:
        await turns.wait()
        started.append(number)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(start(number)) for number in range(5 * MAX_STARTED_HANDSHAKES)]
        await asyncio.sleep(0)
        tasks[MAX_STARTED_HANDSHAKES].cancel()
        counts = [len(started)]
        async with asyncio.timeout(20):
            while len(started) < len(tasks) - 1:
                await asyncio.sleep(0)
                counts.append(len(started))
    assert max(after - before for before, after in pairwise([0, *counts])) == MAX_STARTED_HANDSHAKES
    assert started == [number for number in range(len(tasks)) if number != MAX_STARTED_HANDSHAKES]


async def test_waiting_handshakes_end_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.apiserver.serving.http_server.MAX_STARTED_HANDSHAKES", 0)
    async with asyncio.TaskGroup() as group:
        http_handler: Any = HttpHandler(None, UnionAuthenticator([authenticate_by_token]))  # type: ignore[arg-type]
        server = await start_http_server(http_handler, "127.0.0.1", 0, ssl.create_default_context(), group=group)
        reader, writer = await asyncio.open_connection(*server.addresses[0])
        async with asyncio.timeout(20):
            while not server.handshakes:  # noqa: ASYNC110  nothing tells it
                await asyncio.sleep(0)
            await server.stop()
            assert await reader.read() == b""
        writer.close()
        assert not server.handshakes
