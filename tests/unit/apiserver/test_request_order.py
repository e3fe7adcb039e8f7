"""Attacks on a real socket: what a request costs before its sender is known to have a right to it."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tapestry.apiserver.access.auditing import Auditor
from tapestry.apiserver.access.authentication import UnionAuthenticator, authenticate_localhost
from tapestry.apiserver.access.certificates import CertificateAuthority, server_ssl_context
from tapestry.apiserver.requests import Call, User
from tapestry.apiserver.server import ApiResponse
from tapestry.apiserver.serving import http_connection
from tapestry.apiserver.serving import http_server as accepting
from tapestry.apiserver.serving.connection_limiter import ConnectionLimiter, client_network
from tapestry.apiserver.serving.http_handler import HttpHandler, start_http_server
from tapestry.apiserver.serving.inflight_limiter import MUTATING, READ_ONLY, InflightLimiter
from tapestry.apiserver.serving.request_handler import RequestHandler
from tapestry.apiserver.serving.uploads import UploadBudget
from tapestry.process.audit import AuditLog

from .conftest import Hand
from .test_auditing import policy
from .test_http import MAPS, PATIENCE, REVIEWS, Held, Line, request, somebody
from .test_yaml_decoder import BOMBS


@asynccontextmanager
async def listening(server: Any, tls: ssl.SSLContext | None = None, **more: Any) -> AsyncIterator[Any]:
    """A listener with the bounds of a test, and a way to call it up."""
    given = {"gate": InflightLimiter({}), "seconds": 5.0, "authenticate": UnionAuthenticator([somebody]), **more}
    async with asyncio.TaskGroup() as group:
        runner = await start_http_server(HttpHandler(server, **given), "127.0.0.1", 0, tls, group=group)
        lines: list[Line] = []

        async def call_up(**how: Any) -> Line:
            lines.append(Line(*await asyncio.open_connection(*runner.addresses[0][:2], **how)))
            return lines[-1]

        try:
            yield call_up
        finally:
            for line in lines:
                line.writer.transport.abort()
            await runner.stop()


def anonymous(said: bytes) -> bytes:
    return b"\r\n".join(line for line in said.split(b"\r\n") if not line.startswith(b"Authorization"))


HUGE = request("POST", MAPS, b"x" * 100, Content_Type="application/yaml").replace(b"h: 100", b"h: 3000000")


# -- nothing is read of what is refused


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("expects", [True, False])
@pytest.mark.parametrize(("user", "status"), [("", 403), ("eve", 403), ("unknown", 401)])
async def test_a_refused_request_is_answered_without_its_body(
    call: Hand, method: str, expects: bool, user: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "LINGERING_CLOSE_SECONDS", 0.02)

    def known(credentials: Any) -> User | None:
        return somebody(credentials) if credentials.bearer != "unknown" else None

    path = MAPS if method == "POST" else f"{MAPS}/a"
    said = request(method, path, b"x" * 9, user=user, **({"Expect": "100-continue"} if expects else {}))
    said = said.replace(b"Content-Length: 9", b"Content-Length: 3000000")
    async with listening(RequestHandler(call.server, 10), authenticate=UnionAuthenticator([known])) as call_up:
        line = await call_up()
        line.say((said if user else anonymous(said))[: -9 if expects else None])
        found, headers, _ = await line.hear()
        assert (found, headers["connection"]) == (status, "close")
        line.say(b"x" * 100_000)  # which nobody minds
        assert await line.is_cut()


async def test_a_refused_request_that_is_all_there_keeps_its_connection(call: Hand) -> None:
    async with listening(RequestHandler(call.server, 10)) as call_up:
        line = await call_up()
        for _ in range(2):
            line.say(request("POST", MAPS, b"x" * 100, user="eve"))
            assert (await line.hear())[0] == 403
        line.say(request("POST", MAPS, b'{"metadata":{"name":"a"}}', Content_Type="application/json"))
        assert (await line.hear())[0] == 201


class Unread:
    """A body that must not be read."""

    async def read(self) -> bytes:
        raise AssertionError("the body of a refused request was read")


@pytest.mark.parametrize("level", ["Metadata", "RequestResponse"])
async def test_the_audit_log_decodes_no_refused_body(call: Hand, tmp_path: Path, level: Any) -> None:
    file = AuditLog(str(tmp_path / "audit.log"))
    auditor = Auditor(policy({"level": level}), file, call.server.authorize, call.server.verbs.now)
    reception = RequestHandler(call.server, 10, auditor)
    headers = {"content-type": "application/yaml"}
    eve = User("eve", ("system:authenticated",))
    answer = await reception.handle(Call("POST", MAPS, {}, headers, b"", eve, body_reader=Unread()))
    assert isinstance(answer, ApiResponse)
    assert answer.status == 403
    for path, status in ((MAPS, 403), (REVIEWS, 400)):
        answer = await reception.handle(Call("POST", path, {}, headers, BOMBS["merge keys"], eve))
        assert isinstance(answer, ApiResponse)
        assert answer.status == status
    named = b"metadata: {name: a}\ndata: {b: c}"
    await reception.handle(Call("POST", MAPS, {}, headers, named, User("root", ("system:masters",))))
    file.close()
    events = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    *refused, last = [each for each in events if each["stage"] == "ResponseComplete"]
    assert [each["responseStatus"]["code"] for each in refused] == [403, 403, 400]
    assert not any("requestObject" in each for each in refused)
    assert last["objectRef"]["name"] == "a"
    assert ("requestObject" in last) is (level != "Metadata")


async def test_a_body_that_is_allowed_is_asked_for_and_read(call: Hand) -> None:
    body = b"metadata: {name: yaml}"
    said = request("POST", MAPS, body, Content_Type="application/yaml", Expect="100-continue")
    async with listening(RequestHandler(call.server, 10)) as call_up:
        line = await call_up()
        line.say(said[: -len(body)])
        assert await line.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        for at in range(len(body)):
            line.say(body[at : at + 1])
            await asyncio.sleep(0)
        assert (await line.hear())[0] == 201


# -- places in the gate


async def test_only_real_watches_skip_the_gate(call: Hand) -> None:
    reception = RequestHandler(call.server, 10)
    root = User("root", ("system:masters",))

    def is_long(method: str, path: str, **query: str) -> bool:
        return reception.is_long_running(Call(method, path, query, {}, b"", root))

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
async def test_a_write_with_watch_in_its_query_takes_a_place(path: str) -> None:
    held = Held()
    async with listening(held, gate=InflightLimiter({READ_ONLY: 1, MUTATING: 1})) as call_up:
        first, second = await call_up(), await call_up()
        first.say(request("POST", path, user="eve"))
        await held.wait_for(1)
        second.say(request("POST", path, user="bob"))
        assert (await second.hear())[0] == 429


async def test_a_read_whose_body_never_comes_takes_a_place() -> None:
    held = Held()
    async with listening(held, gate=InflightLimiter({READ_ONLY: 1, MUTATING: 1})) as call_up:
        first, second = await call_up(), await call_up()
        first.say(request("GET", "/x", b"x", user="eve")[:-1])
        await held.wait_for(1)
        second.say(request("GET", "/x", user="bob"))
        assert (await second.hear())[0] == 429


async def test_one_user_gets_half_of_the_places() -> None:
    held = Held()
    async with listening(held, gate=InflightLimiter({READ_ONLY: 4, MUTATING: 4})) as call_up:
        for number in range(1, 3):
            (await call_up()).say(request("POST", "/x", user="eve"))
            await held.wait_for(number)
        third = await call_up()
        third.say(request("POST", "/x", user="eve"))
        assert (await third.hear())[0] == 429
        (await call_up()).say(request("POST", "/x", user="bob"))
        await held.wait_for(3)


async def test_slow_anonymous_writers_cost_others_nothing(call: Hand) -> None:
    async with listening(RequestHandler(call.server, 10), gate=InflightLimiter({READ_ONLY: 4, MUTATING: 4})) as call_up:
        crowd = [await call_up() for _ in range(200)]
        for line in crowd:
            line.say(anonymous(HUGE)[:-99])
        other = await call_up()
        other.say(request("POST", REVIEWS, b"{}", user="bob", Content_Type="application/json"))
        assert (await other.hear())[0] == 201
        assert {(await line.hear())[0] for line in crowd} == {403}


# -- bytes


async def test_bodies_that_are_arriving_have_a_budget_for_each_user(call: Hand) -> None:
    budget = UploadBudget(max_bytes=1 << 20, max_bytes_per_user=1 << 18)
    head = request("POST", REVIEWS, b"{}", user="eve").replace(b"h: 2", b"h: 200000")[:-2]
    async with listening(RequestHandler(call.server, 10), budget=budget) as call_up:
        first, second, other = [await call_up() for _ in range(3)]
        async with asyncio.TaskGroup() as group:
            for line in (first, second):
                line.say(head + b" " * 199_000)
            answers = [group.create_task(line.hear()) for line in (first, second)]
            done, waiting = await asyncio.wait(answers, return_when="FIRST_COMPLETED")
            assert [each.result()[0] for each in done] == [429]
            other.say(head.replace(b"eve", b"bob") + b" " * 199_000)
            other.say(b" " * 998 + b"{}")
            assert (await other.hear())[0] == 201
            for each in waiting:
                each.cancel()
    assert (budget.held, budget.users) == (0, {})


def test_a_budget_is_for_all_together_and_for_each() -> None:
    budget = UploadBudget(max_bytes=10, max_bytes_per_user=6)
    budget.acquire("a", 6)
    with pytest.raises(Exception, match="Too many requests"):
        budget.acquire("a", 1)
    budget.acquire("b", 4)
    with pytest.raises(Exception, match="Too many requests"):
        budget.acquire("c", 1)
    budget.release("a", 6)
    budget.acquire("c", 6)
    assert (budget.held, budget.users) == (10, {"b": 4, "c": 6})


# -- connections


@pytest.mark.parametrize("said", [b"", b"GET /version HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_idle_and_slow_connections_make_room_for_newer_ones(call: Hand, said: bytes) -> None:
    clients = ConnectionLimiter(max_unauthenticated=50)
    async with listening(RequestHandler(call.server, 10), clients=clients) as call_up:
        known = await call_up()
        known.say(request("GET", "/version", user="bob"))
        assert (await known.hear())[0] == 200
        crowd = []
        for _ in range(500):
            crowd.append(await call_up())
            crowd[-1].say(said)
        late = await call_up()
        late.say(request("GET", "/version", user="joe"))
        assert (await late.hear())[0] == 200
        known.say(request("GET", "/version", user="bob"))
        assert (await known.hear())[0] == 200  # it is no stranger any more
        assert await crowd[0].is_cut()
        assert clients.counts == {"authenticated": 2, "unauthenticated": 49}


def loops() -> Any:
    return [pytest.param(asyncio.new_event_loop, id="asyncio"), pytest.param(uvloop.new_event_loop, id="uvloop")]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS of a server, and of its clients."""
    made = CertificateAuthority(tmp_path_factory.mktemp("pki"))
    made.certificate_pem()
    trusting = ssl.create_default_context(cafile=str(made.certificate_file))
    return server_ssl_context(*made.server_certificate(["localhost", "127.0.0.1"]), [made.certificate_file]), trusting


@pytest.mark.parametrize("factory", loops())
def test_handshakes_that_do_not_end_make_room_for_newer_ones(
    factory: Any, authority: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    tls, trusting = authority

    class Quick(Held):
        async def answer(self, _: Call) -> ApiResponse:
            return ApiResponse(200, b"{}")

    async def scenario() -> None:
        clients = ConnectionLimiter(max_unauthenticated=20)
        async with listening(Quick(), tls, clients=clients) as call_up:
            crowd = [await call_up() for _ in range(100)]
            for line in crowd[::2]:
                line.say(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a ClientHello
            crowd[-1].say(b"GET / HTTP/1.1\r\n\r\n" * 3)  # no TLS at all
            good = await call_up(ssl=trusting, server_hostname="localhost")
            for _ in range(2):
                good.say(request("GET", "/x", user="bob"))
                assert (await good.hear())[0] == 200
            assert await crowd[0].is_cut()
            assert clients.authenticated == 1
            assert clients.unauthenticated <= 20
        assert clients.counts["unauthenticated"] == 0

    run(factory, scenario())


@pytest.mark.parametrize("factory", loops())
def test_a_handshake_has_its_time_and_what_follows_it_at_once_is_heard(
    factory: Any, authority: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    tls, trusting = authority
    monkeypatch.setattr(accepting, "HANDSHAKE_SECONDS", 0.3)

    async def scenario() -> None:
        held = Held()
        held.released.set()
        async with listening(held, tls) as call_up:
            mute = await call_up()
            outgoing, incoming = ssl.MemoryBIO(), ssl.MemoryBIO()
            engine = trusting.wrap_bio(incoming, outgoing, server_hostname="localhost")
            raw = await call_up()
            while True:
                try:
                    engine.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    raw.say(outgoing.read())
                    incoming.write(await raw.reader.read(65536))
            engine.write(request("GET", "/x", user="bob"))
            raw.say(outgoing.read())  # the end of the handshake and the request, in one piece
            answer = b""
            async with asyncio.timeout(PATIENCE):
                while b"{}" not in answer:
                    incoming.write(await raw.reader.read(65536))
                    with suppress(ssl.SSLWantReadError):
                        answer += engine.read(65536)
            assert answer.startswith(b"HTTP/1.1 200")
            assert await mute.is_cut()

    run(factory, scenario())


def run(factory: Any, scenario: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(scenario)


async def test_a_user_has_a_bound_of_connections_and_so_of_watches(call: Hand) -> None:
    reader = {"verbs": ["watch"], "apiGroups": [""], "resources": ["configmaps"]}
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    await call.made(f"{rbac}/clusterroles", {"metadata": {"name": "w"}, "rules": [reader]})
    group = {"kind": "Group", "name": "system:authenticated", "apiGroup": "rbac.authorization.k8s.io"}
    reference = {"kind": "ClusterRole", "name": "w", "apiGroup": "rbac.authorization.k8s.io"}
    await call.made(
        f"{rbac}/clusterrolebindings", {"metadata": {"name": "w"}, "subjects": [group], "roleRef": reference}
    )
    watch = f"{MAPS}?watch=1"
    async with listening(
        RequestHandler(call.server, 10), clients=ConnectionLimiter(max_connections=5, max_per_user=3)
    ) as call_up:

        async def asked(user: str, path: str = watch) -> tuple[Line, int]:
            line = await call_up()
            line.say(request("GET", path, user=user))
            head = await line.reader.readuntil(b"\r\n\r\n")
            return line, int(head.split()[1])

        idle, status = await asked("eve", "/version")
        assert status == 200
        assert [(await asked("eve"))[1] for _ in range(3)] == [200, 200, 200]
        await idle.reader.readuntil(b"}")
        assert (await idle.reader.read()).strip() in (b"", b"}")  # it had to make room for a watch
        assert (await asked("eve"))[1] == 429
        assert [(await asked("bob"))[1] for _ in range(3)] == [200, 200, 429]  # five in all
        assert (await asked("root"))[1] == 200  # masters get in


async def test_a_connection_counts_for_whoever_used_it_last(call: Hand) -> None:
    clients = ConnectionLimiter()
    async with listening(RequestHandler(call.server, 10), clients=clients) as call_up:
        line = await call_up()
        for said, states in (
            (anonymous(request("GET", "/version")), {"authenticated": 0, "unauthenticated": 1}),
            (request("GET", "/version", user="eve"), {"authenticated": 1, "unauthenticated": 0}),
            (request("GET", "/version", user="bob"), {"authenticated": 1, "unauthenticated": 0}),
        ):
            line.say(said)
            assert (await line.hear())[0] == 200
            assert clients.counts == states
        line.say(request("GET", "/version", user="bob", Connection="close"))
        assert (await line.hear())[0] == 200
        assert await line.is_cut()
        assert clients.counts == {"authenticated": 0, "unauthenticated": 0}


def test_addresses_of_one_network_are_one_client() -> None:
    assert client_network("203.0.113.7") == "203.0.113.7"
    assert client_network("2001:db8::1") == client_network("2001:db8::ffff:1") != client_network("2001:db8:0:1::1")
    assert client_network("fe80::1%eth0") == "fe80::/64"
    assert client_network("::ffff:203.0.113.7") == "203.0.113.7"
    assert client_network("") == ""


class Fake:
    """A connection of the registry alone."""

    def __init__(self, peer: str, is_idle: bool = True) -> None:
        self.peer, self.owner, self.is_idle, self.is_cut = peer, "", is_idle, False

    def abort(self) -> None:
        self.is_cut = True


def test_the_address_with_the_most_connections_makes_room() -> None:
    clients = ConnectionLimiter(max_unauthenticated=5)
    few = [Fake("10.0.0.1") for _ in range(2)]
    busy, *many = [Fake("10.0.0.2", is_idle=number > 0) for number in range(4)]
    for each in (*few, busy, *many):
        clients.add(each)
    assert [each.is_cut for each in (*few, busy, *many)] == [False, False, False, True, False, False]
    clients.remove(many[0])  # again, as its connection tells
    assert clients.unauthenticated == 5


async def test_a_client_that_reads_nothing_of_its_watch_is_cut_off(call: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "WRITE_STALL_SECONDS", 0.1)
    for number in range(40):
        await call.made(MAPS, {"metadata": {"name": f"m{number}"}, "data": {"k": "x" * 500_000}})
    over = asyncio.Event()

    class Noting(RequestHandler):
        async def answer(self, call: Call) -> Any:
            found: Any = await super().handle(call)
            found.over = over.set
            return found

    async with listening(Noting(call.server, 10)) as call_up:
        line = await call_up()
        line.writer.transport.pause_reading()
        line.say(request("GET", f"{MAPS}?watch=1", user="root"))
        async with asyncio.timeout(PATIENCE):
            await over.wait()
    assert over.is_set()


# -- this machine


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
async def test_localhost_trust_ends_at_proxies_and_pages(call: Hand, extra: dict[str, str], status: int) -> None:
    said = anonymous(request("GET", MAPS, **extra))
    if "Host" in extra:
        said = said.replace(b"Host: localhost\r\n", b"")
    async with listening(
        RequestHandler(call.server, 10), authenticate=UnionAuthenticator([authenticate_localhost])
    ) as call_up:
        line = await call_up()
        line.say(said)
        assert (await line.hear())[0] == status
