"""Order of request processing on real sockets: the cost of a request before it is authorized."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tapestry.apiserver.access.auditing import Auditor
from tapestry.apiserver.access.authentication import UnionAuthenticator, authenticate_localhost
from tapestry.apiserver.access.certificates import CertificateAuthority, server_ssl_context
from tapestry.apiserver.core.requests import Call, User
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.apiserver.serving import http_connection
from tapestry.apiserver.serving import http_server as accepting
from tapestry.apiserver.serving.connection_limiter import ConnectionLimiter, client_network
from tapestry.apiserver.serving.http_handler import REJECTION_PAUSE, HttpHandler, start_http_server
from tapestry.apiserver.serving.inflight_limiter import MUTATING, READ_ONLY, InflightLimiter
from tapestry.apiserver.serving.request_handler import RequestHandler
from tapestry.apiserver.serving.uploads import UploadBudget
from tapestry.kube.errors import TooManyRequests
from tapestry.process.audit import AuditLog

from ..access.test_auditing import policy
from ..conftest import ServerClient
from ..core.test_yaml_decoder import BOMBS
from .test_http import MAPS, REVIEWS, TIMEOUT, BlockingHandler, RawConnection, authenticate_by_token, request


@asynccontextmanager
async def http_server(server: Any, tls: ssl.SSLContext | None = None, **more: Any) -> AsyncIterator[Any]:
    """Run an HTTP server with the limits of a test; yield a function that connects to it."""
    options = {
        "inflight_limiter": InflightLimiter({}),
        "timeout": 5.0,
        "authenticate": UnionAuthenticator([authenticate_by_token]),
        **more,
    }
    async with asyncio.TaskGroup() as group:
        running = await start_http_server(HttpHandler(server, **options), "127.0.0.1", 0, tls, group=group)
        clients: list[RawConnection] = []

        async def connect(**how: Any) -> RawConnection:
            clients.append(RawConnection(*await asyncio.open_connection(*running.addresses[0][:2], **how)))
            return clients[-1]

        try:
            yield connect
        finally:
            for client in clients:
                client.writer.transport.abort()
            await running.stop()


def anonymous(data: bytes) -> bytes:
    return b"\r\n".join(line for line in data.split(b"\r\n") if not line.startswith(b"Authorization"))


HUGE = request("POST", MAPS, b"x" * 100, Content_Type="application/yaml").replace(b"h: 100", b"h: 3000000")


# -- bodies of rejected requests are not read


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("expects", [True, False])
@pytest.mark.parametrize(("user", "status"), [("", 403), ("eve", 403), ("unknown", 401)])
async def test_rejected_request_is_answered_without_its_body(
    call: ServerClient, method: str, expects: bool, user: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "LINGERING_CLOSE_SECONDS", 0.02)

    def known(credentials: Any) -> User | None:
        return authenticate_by_token(credentials) if credentials.bearer_token != "unknown" else None

    path = MAPS if method == "POST" else f"{MAPS}/a"
    data = request(method, path, b"x" * 9, user=user, **({"Expect": "100-continue"} if expects else {}))
    data = data.replace(b"Content-Length: 9", b"Content-Length: 3000000")
    async with http_server(RequestHandler(call.server, 10), authenticate=UnionAuthenticator([known])) as connect:
        client = await connect()
        client.send((data if user else anonymous(data))[: -9 if expects else None])
        result, headers, _ = await client.receive()
        assert (result, headers["connection"]) == (status, "close")
        client.send(b"x" * 100_000)  # ignored
        assert await client.is_closed()


async def test_complete_rejected_request_keeps_its_connection(call: ServerClient) -> None:
    async with http_server(RequestHandler(call.server, 10)) as connect:
        client = await connect()
        for _ in range(2):
            client.send(request("POST", MAPS, b"x" * 100, user="eve"))
            assert (await client.receive())[0] == 403
        client.send(request("POST", MAPS, b'{"metadata":{"name":"a"}}', Content_Type="application/json"))
        assert (await client.receive())[0] == 201


class Unread:
    """A body that must not be read."""

    async def read(self) -> bytes:
        raise AssertionError("the body of a rejected request was read")


@pytest.mark.parametrize("level", ["Metadata", "RequestResponse"])
async def test_audit_log_does_not_decode_rejected_bodies(call: ServerClient, tmp_path: Path, level: Any) -> None:
    file = AuditLog(str(tmp_path / "audit.log"))
    auditor = Auditor(policy({"level": level}), file, call.server.authorize, call.server.verbs.now)
    handler = RequestHandler(call.server, 10, auditor)
    headers = {"content-type": "application/yaml"}
    eve = User("eve", ("system:authenticated",))
    response = await handler.handle(Call("POST", MAPS, {}, headers, b"", eve, body_reader=Unread()))
    assert isinstance(response, ApiResponse)
    assert response.status == 403
    for path, status in ((MAPS, 403), (REVIEWS, 400)):
        response = await handler.handle(Call("POST", path, {}, headers, BOMBS["merge keys"], eve))
        assert isinstance(response, ApiResponse)
        assert response.status == status
    named = b"metadata: {name: a}\ndata: {b: c}"
    await handler.handle(Call("POST", MAPS, {}, headers, named, User("root", ("system:masters",))))
    file.close()
    events = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    *rejected, last = [each for each in events if each["stage"] == "ResponseComplete"]
    assert [each["responseStatus"]["code"] for each in rejected] == [403, 403, 400]
    assert not any("requestObject" in each for each in rejected)
    assert last["objectRef"]["name"] == "a"
    assert ("requestObject" in last) is (level != "Metadata")


async def test_accepted_body_is_requested_and_read(call: ServerClient) -> None:
    body = b"metadata: {name: yaml}"
    data = request("POST", MAPS, body, Content_Type="application/yaml", Expect="100-continue")
    async with http_server(RequestHandler(call.server, 10)) as connect:
        client = await connect()
        client.send(data[: -len(body)])
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        for at in range(len(body)):
            client.send(body[at : at + 1])
            await asyncio.sleep(0)
        assert (await client.receive())[0] == 201


# -- inflight limits


async def test_only_watches_and_followed_logs_are_long_running(call: ServerClient) -> None:
    handler = RequestHandler(call.server, 10)
    root = User("root", ("system:masters",))

    def is_long(method: str, path: str, **query: str) -> bool:
        return handler.is_long_running(Call(method, path, query, {}, b"", root))

    log = "/api/v1/namespaces/default/pods/p/log"
    assert is_long("GET", MAPS, watch="true")
    assert is_long("GET", f"{MAPS}/a", watch="1")
    assert is_long("GET", log, follow="true")
    for method in ("POST", "PUT", "PATCH", "DELETE", "HEAD"):
        assert not is_long(method, MAPS, watch="true")
        assert not is_long(method, log, follow="true")
    assert not is_long("GET", MAPS, watch="no")
    assert not is_long("GET", MAPS, follow="true")
    assert not is_long("GET", log, watch="true")
    assert not is_long("GET", log)
    for path in ("/version", "/openapi/v2", "/metrics", "/api/v1/nowhere", f"{MAPS}/a/status", REVIEWS):
        assert not is_long("GET", path, watch="true", follow="true")


@pytest.mark.parametrize("path", ["/x?watch=true", "/x?follow=true", "/x"])
async def test_write_with_watch_parameter_takes_a_slot(path: str) -> None:
    handler = BlockingHandler()
    async with http_server(handler, inflight_limiter=InflightLimiter({READ_ONLY: 1, MUTATING: 1})) as connect:
        first, second = await connect(), await connect()
        first.send(request("POST", path, user="eve"))
        await handler.wait_for(1)
        second.send(request("POST", path, user="bob"))
        assert (await second.receive())[0] == 429


async def test_read_with_missing_body_takes_a_slot() -> None:
    handler = BlockingHandler()
    async with http_server(handler, inflight_limiter=InflightLimiter({READ_ONLY: 1, MUTATING: 1})) as connect:
        first, second = await connect(), await connect()
        first.send(request("GET", "/x", b"x", user="eve")[:-1])
        await handler.wait_for(1)
        second.send(request("GET", "/x", user="bob"))
        assert (await second.receive())[0] == 429


async def test_one_user_gets_half_of_the_slots() -> None:
    handler = BlockingHandler()
    async with http_server(handler, inflight_limiter=InflightLimiter({READ_ONLY: 4, MUTATING: 4})) as connect:
        for number in range(1, 3):
            (await connect()).send(request("POST", "/x", user="eve"))
            await handler.wait_for(number)
        third = await connect()
        third.send(request("POST", "/x", user="eve"))
        assert (await third.receive())[0] == 429
        (await connect()).send(request("POST", "/x", user="bob"))
        await handler.wait_for(3)


class ProcessShare:
    """Scheduler of a server that shares its process."""

    def __init__(self) -> None:
        self.is_exceeded = True

    def run(self, work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
        return work

    def may_start(self) -> bool:
        return not self.is_exceeded


async def test_server_over_share_rejects_and_pauses_connections(
    call: ServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses, pause_ends, sleep = list[float](), asyncio.Event(), asyncio.sleep

    async def pause(seconds: float) -> None:
        if seconds < REJECTION_PAUSE[0]:
            await sleep(seconds)
        else:
            pauses.append(seconds)
            await pause_ends.wait()

    monkeypatch.setattr(asyncio, "sleep", pause)
    share = ProcessShare()
    async with http_server(RequestHandler(call.server, 10), scheduler=share) as connect:
        client, other = await connect(), await connect()
        client.send(request("GET", "/readyz", user="root"))
        assert (await client.receive())[0] != 429  # probes are exempt
        client.send(request("GET", "/version", user="root"))
        status, headers, body = await client.receive()
        assert (status, headers["retry-after"], json.loads(body)["reason"]) == (429, "1", "TooManyRequests")
        share.is_exceeded = False
        client.send(request("GET", "/version", user="root"))
        other.send(request("GET", "/version", user="root"))
        assert (await other.receive())[0] == 200
        assert [REJECTION_PAUSE[0] <= each <= REJECTION_PAUSE[1] for each in pauses] == [True]
        pause_ends.set()
        assert (await client.receive())[0] == 200


async def test_slow_anonymous_uploads_do_not_block_others(call: ServerClient) -> None:
    async with http_server(
        RequestHandler(call.server, 10), inflight_limiter=InflightLimiter({READ_ONLY: 4, MUTATING: 4})
    ) as connect:
        connections = [await connect() for _ in range(200)]
        for client in connections:
            client.send(anonymous(HUGE)[:-99])
        other = await connect()
        other.send(request("POST", REVIEWS, b"{}", user="bob", Content_Type="application/json"))
        assert (await other.receive())[0] == 201
        assert {(await client.receive())[0] for client in connections} == {403}


# -- upload budget


async def test_upload_budget_is_per_user(call: ServerClient) -> None:
    budget = UploadBudget(max_bytes=1 << 20, max_bytes_per_user=1 << 18)
    head = request("POST", REVIEWS, b"{}", user="eve").replace(b"h: 2", b"h: 200000")[:-2]
    async with http_server(RequestHandler(call.server, 10), upload_budget=budget) as connect:
        first, second, other = [await connect() for _ in range(3)]
        async with asyncio.TaskGroup() as group:
            for client in (first, second):
                client.send(head + b" " * 199_000)
            responses = [group.create_task(client.receive()) for client in (first, second)]
            done, waiting = await asyncio.wait(responses, return_when="FIRST_COMPLETED")
            assert [each.result()[0] for each in done] == [429]
            other.send(head.replace(b"eve", b"bob") + b" " * 199_000)
            other.send(b" " * 998 + b"{}")
            assert (await other.receive())[0] == 201
            for each in waiting:
                each.cancel()
    assert (budget.total_bytes, budget.bytes_by_user) == (0, {})


def test_upload_budget_limits_total_and_user() -> None:
    budget = UploadBudget(max_bytes=10, max_bytes_per_user=6)
    budget.acquire("a", 6)
    with pytest.raises(Exception, match="Too many requests"):
        budget.acquire("a", 1)
    budget.acquire("b", 4)
    with pytest.raises(Exception, match="Too many requests"):
        budget.acquire("c", 1)
    budget.release("a", 6)
    budget.acquire("c", 6)
    assert (budget.total_bytes, budget.bytes_by_user) == (10, {"b": 4, "c": 6})


# -- connections


@pytest.mark.parametrize("data", [b"", b"GET /version HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_idle_connections_are_closed_for_newer_ones(call: ServerClient, data: bytes) -> None:
    limiter = ConnectionLimiter(max_unauthenticated=50)
    async with http_server(RequestHandler(call.server, 10), connection_limiter=limiter) as connect:
        known = await connect()
        known.send(request("GET", "/version", user="bob"))
        assert (await known.receive())[0] == 200
        connections = []
        for _ in range(500):
            connections.append(await connect())
            connections[-1].send(data)
        late = await connect()
        late.send(request("GET", "/version", user="joe"))
        assert (await late.receive())[0] == 200
        known.send(request("GET", "/version", user="bob"))
        assert (await known.receive())[0] == 200  # it is authenticated
        assert await connections[0].is_closed()
        assert limiter.counts == {"authenticated": 2, "unauthenticated": 49}


@dataclass(eq=False)
class CountedConnection:
    """A connection without a socket."""

    peer: str = "10.0.0.1"
    owner: str = ""
    limiter: ConnectionLimiter | None = None
    is_idle: bool = True
    is_closed: bool = False

    def close(self) -> None:
        self.is_closed = True

    abort = close


def test_connection_counts_at_server_of_its_last_request() -> None:
    listener, first, second = ConnectionLimiter(), ConnectionLimiter(max_per_user=1), ConnectionLimiter(max_per_user=1)
    connection, other = CountedConnection(is_idle=False), CountedConnection()
    for each in (connection, other):
        listener.add(each)
    first.assign(connection, "admin")
    with pytest.raises(TooManyRequests):
        first.assign(other, "admin")
    second.assign(connection, "admin")  # another user with the same name
    assert [each.counts["authenticated"] for each in (listener, first, second)] == [0, 0, 1]
    first.assign(other, "admin")
    assert connection.limiter is second
    second.remove(connection)
    first.close_authenticated()
    assert (other.is_closed, connection.is_closed) == (True, False)
    assert [sum(each.counts.values()) for each in (listener, first, second)] == [0, 0, 0]


def loops() -> Any:
    return [pytest.param(asyncio.new_event_loop, id="asyncio"), pytest.param(uvloop.new_event_loop, id="uvloop")]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS contexts of a server and of its clients."""
    ca = CertificateAuthority(tmp_path_factory.mktemp("pki"))
    ca.certificate_pem()
    client_context = ssl.create_default_context(cafile=str(ca.certificate_file))
    return server_ssl_context(*ca.server_certificate(["localhost", "127.0.0.1"]), [ca.certificate_file]), client_context


@pytest.mark.parametrize("factory", loops())
def test_unfinished_handshakes_are_closed_for_newer_ones(
    factory: Any, authority: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    tls, client_context = authority

    class Quick(BlockingHandler):
        async def handle(self, _: Call) -> ApiResponse:
            return ApiResponse(200, b"{}")

    async def scenario() -> None:
        limiter = ConnectionLimiter(max_unauthenticated=20)
        async with http_server(Quick(), tls, connection_limiter=limiter) as connect:
            connections = [await connect() for _ in range(100)]
            for client in connections[::2]:
                client.send(b"\x16\x03\x01\x02\x00\x01")  # the start of a ClientHello
            connections[-1].send(b"GET / HTTP/1.1\r\n\r\n" * 3)  # not TLS
            good = await connect(ssl=client_context, server_hostname="localhost")
            for _ in range(2):
                good.send(request("GET", "/x", user="bob"))
                assert (await good.receive())[0] == 200
            assert await connections[0].is_closed()
            assert limiter.authenticated == 1
            assert limiter.unauthenticated <= 20
        assert limiter.counts["unauthenticated"] == 0

    run(factory, scenario())


@pytest.mark.parametrize("factory", loops())
def test_handshake_has_timeout_and_early_data_is_read(
    factory: Any, authority: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    tls, client_context = authority
    monkeypatch.setattr(accepting, "HANDSHAKE_SECONDS", 0.3)

    async def scenario() -> None:
        handler = BlockingHandler()
        handler.released.set()
        async with http_server(handler, tls) as connect:
            mute = await connect()
            outgoing, incoming = ssl.MemoryBIO(), ssl.MemoryBIO()
            engine = client_context.wrap_bio(incoming, outgoing, server_hostname="localhost")
            raw = await connect()
            while True:
                try:
                    engine.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    raw.send(outgoing.read())
                    incoming.write(await raw.reader.read(65536))
            engine.write(request("GET", "/x", user="bob"))
            raw.send(outgoing.read())  # the end of the handshake and the request, in one write
            response = b""
            async with asyncio.timeout(TIMEOUT):
                while b"{}" not in response:
                    incoming.write(await raw.reader.read(65536))
                    with suppress(ssl.SSLWantReadError):
                        response += engine.read(65536)
            assert response.startswith(b"HTTP/1.1 200")
            assert await mute.is_closed()

    run(factory, scenario())


def run(factory: Any, scenario: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=factory) as running:
        running.run(scenario)


async def test_connections_and_watches_per_user_are_limited(call: ServerClient) -> None:
    reader = {"verbs": ["watch"], "apiGroups": [""], "resources": ["configmaps"]}
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    await call.made(f"{rbac}/clusterroles", {"metadata": {"name": "w"}, "rules": [reader]})
    group = {"kind": "Group", "name": "system:authenticated", "apiGroup": "rbac.authorization.k8s.io"}
    reference = {"kind": "ClusterRole", "name": "w", "apiGroup": "rbac.authorization.k8s.io"}
    await call.made(
        f"{rbac}/clusterrolebindings", {"metadata": {"name": "w"}, "subjects": [group], "roleRef": reference}
    )
    watch = f"{MAPS}?watch=1"
    async with http_server(
        RequestHandler(call.server, 10), connection_limiter=ConnectionLimiter(max_connections=5, max_per_user=3)
    ) as connect:

        async def get(user: str, path: str = watch) -> tuple[RawConnection, int]:
            client = await connect()
            client.send(request("GET", path, user=user))
            head = await client.reader.readuntil(b"\r\n\r\n")
            return client, int(head.split()[1])

        idle, status = await get("eve", "/version")
        assert status == 200
        assert [(await get("eve"))[1] for _ in range(3)] == [200, 200, 200]
        await idle.reader.readuntil(b"}")
        assert (await idle.reader.read()).strip() in (b"", b"}")  # it was closed for a watch
        assert (await get("eve"))[1] == 429
        assert [(await get("bob"))[1] for _ in range(3)] == [200, 200, 429]  # five in total
        assert (await get("root"))[1] == 200  # masters are exempt


async def test_connection_belongs_to_its_last_user(call: ServerClient) -> None:
    limiter = ConnectionLimiter()
    async with http_server(RequestHandler(call.server, 10), connection_limiter=limiter) as connect:
        client = await connect()
        for data, states in (
            (anonymous(request("GET", "/version")), {"authenticated": 0, "unauthenticated": 1}),
            (request("GET", "/version", user="eve"), {"authenticated": 1, "unauthenticated": 0}),
            (request("GET", "/version", user="bob"), {"authenticated": 1, "unauthenticated": 0}),
        ):
            client.send(data)
            assert (await client.receive())[0] == 200
            assert limiter.counts == states
        client.send(request("GET", "/version", user="bob", Connection="close"))
        assert (await client.receive())[0] == 200
        assert await client.is_closed()
        assert limiter.counts == {"authenticated": 0, "unauthenticated": 0}


def test_addresses_of_one_network_are_one_client() -> None:
    assert client_network("203.0.113.7") == "203.0.113.7"
    assert client_network("2001:db8::1") == client_network("2001:db8::ffff:1") != client_network("2001:db8:0:1::1")
    assert client_network("fe80::1%eth0") == "fe80::/64"
    assert client_network("::ffff:203.0.113.7") == "203.0.113.7"
    assert client_network("") == ""


class FakeConnection:
    """A connection without a socket."""

    def __init__(self, peer: str, is_idle: bool = True) -> None:
        self.peer, self.owner, self.is_idle, self.is_closed = peer, "", is_idle, False
        self.limiter: ConnectionLimiter | None = None

    def abort(self) -> None:
        self.is_closed = True


def test_network_with_most_connections_loses_one() -> None:
    limiter = ConnectionLimiter(max_unauthenticated=5)
    few = [FakeConnection("10.0.0.1") for _ in range(2)]
    busy, *many = [FakeConnection("10.0.0.2", is_idle=number > 0) for number in range(4)]
    for each in (*few, busy, *many):
        limiter.add(each)
    assert [each.is_closed for each in (*few, busy, *many)] == [False, False, False, True, False, False]
    limiter.remove(many[0])  # a second removal, as on connection_lost
    assert limiter.unauthenticated == 5


async def test_watch_client_that_does_not_read_is_aborted(call: ServerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "WRITE_STALL_SECONDS", 0.1)
    for number in range(40):
        await call.made(MAPS, {"metadata": {"name": f"m{number}"}, "data": {"k": "x" * 500_000}})
    ended = asyncio.Event()

    class RecordingHandler(RequestHandler):
        async def handle(self, call: Call) -> Any:
            result: Any = await super().handle(call)
            result.on_end = ended.set
            return result

    async with http_server(RecordingHandler(call.server, 10)) as connect:
        client = await connect()
        client.writer.transport.pause_reading()
        client.send(request("GET", f"{MAPS}?watch=1", user="root"))
        async with asyncio.timeout(TIMEOUT):
            await ended.wait()
    assert ended.is_set()


# -- localhost


@pytest.mark.parametrize(
    ("extra", "status"),
    [
        ({}, 200),
        ({"X_Forwarded_For": "203.0.113.9"}, 403),
        ({"Forwarded": "for=203.0.113.9"}, 403),
        ({"Via": "1.1 proxy"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Host": "[::1].evil.com"}, 403),
        ({"Host": "localhost:80.evil.com"}, 403),
    ],
)
async def test_localhost_requests_via_proxy_or_page_are_rejected(
    call: ServerClient, extra: dict[str, str], status: int
) -> None:
    data = anonymous(request("GET", MAPS, **extra))
    if "Host" in extra:
        data = data.replace(b"Host: localhost\r\n", b"")
    async with http_server(
        RequestHandler(call.server, 10), authenticate=UnionAuthenticator([authenticate_localhost])
    ) as connect:
        client = await connect()
        client.send(data)
        assert (await client.receive())[0] == status
