"""On real sockets: what strangers may send, how slowly, and how many of them at once."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from tapestry.apiserver import api_errors
from tapestry.apiserver.access.authentication import Credentials, UnionAuthenticator
from tapestry.apiserver.codec import MAX_BODY_BYTES
from tapestry.apiserver.requests import Call, User
from tapestry.apiserver.server import ApiResponse, RejectingCallHandler, error_response
from tapestry.apiserver.serving.http_connection import MAX_HEAD_BYTES
from tapestry.apiserver.serving.http_handler import HttpHandler, start_http_server
from tapestry.apiserver.serving.inflight_limiter import MUTATING, READ_ONLY, InflightLimiter, InflightSlot
from tapestry.apiserver.serving.request_handler import RequestHandler
from tapestry.apiserver.watches import WatchResponse
from tapestry.kube.errors import ApiError

from .conftest import Hand

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
MAPS = "/api/v1/namespaces/default/configmaps"
PATIENCE = 10.0


def somebody(credentials: Credentials) -> User | None:
    """Whoever shows a token: `root` is a master."""
    name = credentials.bearer_token
    return User(name, ("system:masters",) if name == "root" else ("system:authenticated",)) if name else None


@dataclass
class Line:
    """One connection, spoken to by hand."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def say(self, text: str | bytes) -> None:
        self.writer.write(text if isinstance(text, bytes) else text.encode())

    async def hear(self) -> tuple[int, dict[str, str], bytes]:
        """A whole answer: its status, its headers, its body."""
        async with asyncio.timeout(PATIENCE):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(first.split()[1]), headers, body

    async def is_cut(self) -> bool:
        async with asyncio.timeout(PATIENCE):
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
async def listening(
    server: RejectingCallHandler, gate: InflightLimiter | None = None, *, seconds: float = 5, idle: float = 5
) -> AsyncIterator[Any]:
    """A listener, and a way to call it up."""
    listener = HttpHandler(server, UnionAuthenticator([somebody]), gate or InflightLimiter({}), seconds)
    async with asyncio.TaskGroup() as group:
        runner = await start_http_server(listener, "127.0.0.1", 0, group=group, idle_timeout=idle)
        lines: list[Line] = []

        async def call_up() -> Line:
            lines.append(Line(*await asyncio.open_connection(*runner.addresses[0][:2])))
            return lines[-1]

        try:
            yield call_up
        finally:
            for line in lines:
                line.writer.close()
            await runner.stop()


class Plain:
    """What servers in these tests have in common."""

    def refused(self, _: Call, error: ApiError) -> ApiResponse:
        return error_response(error)

    def is_long_running(self, asked: Call) -> bool:
        return asked.method == "GET" and "watch" in asked.query


@dataclass
class Held(Plain):
    """A server that answers when it is told to."""

    waiting: int = 0

    def __post_init__(self) -> None:
        self.released, self.came, self.left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(self, _: Call) -> ApiResponse:
        self.waiting += 1
        self.came.set()
        try:
            await self.released.wait()
        finally:
            self.waiting -= 1
            self.left.set()
        return ApiResponse(200, b"{}")

    async def wait_for(self, number: int) -> None:
        """Until so many are waiting."""
        async with asyncio.timeout(PATIENCE):
            while self.waiting < number:
                self.came.clear()
                await self.came.wait()


# -- bodies


@pytest.mark.parametrize("size", [0, 2 << 20, MAX_BODY_BYTES - 200])
async def test_a_body_may_be_as_large_as_kubernetes_allows(call: Hand, size: int) -> None:
    body = json.dumps({"metadata": {"name": "a"}, "data": {"k": "x" * size}}).encode()
    async with listening(RequestHandler(call.server, 10)) as call_up:
        line = await call_up()
        line.say(request("POST", MAPS, body, Content_Type="application/json"))
        status, _, _ = await line.hear()
    assert status != 413
    assert (status == 201) is (size == 0)  # a ConfigMap has a limit of its own


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_a_body_that_is_larger_is_refused(call: Hand, is_chunked: bool) -> None:
    async with listening(RequestHandler(call.server, 10)) as call_up:
        line = await call_up()
        if is_chunked:
            line.say(request("POST", MAPS, Transfer_Encoding="chunked").replace(b"Content-Length: 0\r\n", b""))
            piece = b"x" * 65536
            for _ in range(MAX_BODY_BYTES // len(piece) + 1):
                line.say(b"%x\r\n%b\r\n" % (len(piece), piece))
        else:
            line.say(
                f"POST {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer root\r\n"
                f"Content-Length: {MAX_BODY_BYTES + 1}\r\n\r\n"
            )
        status, _, body = await line.hear()
    assert (status, json.loads(body)["reason"]) == (413, "RequestEntityTooLarge")


async def test_a_body_in_pieces_is_put_together(call: Hand) -> None:
    body = json.dumps({"metadata": {"name": "pieces"}}).encode()
    async with listening(RequestHandler(call.server, 10)) as call_up:
        line = await call_up()
        line.say(
            request("POST", MAPS, Transfer_Encoding="chunked", Content_Type="application/json").replace(
                b"Content-Length: 0\r\n", b""
            )
        )
        for piece in (body[:5], body[5:]):
            line.say(b"%x\r\n%b\r\n" % (len(piece), piece))
        line.say(b"0\r\n\r\n")
        status, _, found = await line.hear()
    assert (status, json.loads(found)["metadata"]["name"]) == (201, "pieces")


async def test_a_body_that_does_not_come_is_not_waited_for(call: Hand) -> None:
    async with listening(RequestHandler(call.server, 10), seconds=0.05) as call_up:
        line = await call_up()
        line.say(request("POST", MAPS, b"x" * 100)[:-50])
        status, _, body = await line.hear()
    assert (status, json.loads(body)["reason"]) == (504, "Timeout")


# -- heads


@pytest.mark.parametrize("said", ["", "GET /version HTTP/1.1\r\nX-Slow: "])
async def test_a_head_that_does_not_come_is_not_waited_for(call: Hand, said: str) -> None:
    async with listening(RequestHandler(call.server, 10), idle=0.05) as call_up:
        line = await call_up()
        line.say(said)
        assert await line.is_cut()


async def test_a_connection_is_used_again_and_left_when_it_is_not(call: Hand) -> None:
    async with listening(RequestHandler(call.server, 10), idle=0.2) as call_up:
        line = await call_up()
        for _ in range(3):
            line.say(request("GET", "/version"))
            assert (await line.hear())[0] == 200
        assert await line.is_cut()


@pytest.mark.parametrize(
    ("said", "code"),
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
async def test_what_is_no_http_is_refused_without_a_word_in_the_log(
    call: Hand, said: bytes, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(RequestHandler(call.server, 10)) as call_up:
        line = await call_up()
        line.say(said)
        assert (await line.hear())[0] == code
    assert caplog.records == []


async def test_requests_that_are_sent_ahead_are_answered_in_their_order(call: Hand) -> None:
    async with listening(RequestHandler(call.server, 10)) as call_up:
        line = await call_up()
        names = [f"n{number}" for number in range(20)]
        bodies = [json.dumps({"metadata": {"name": name}}).encode() for name in names]
        line.say(b"".join(request("POST", MAPS, body, Content_Type="application/json") for body in bodies))
        found = [json.loads((await line.hear())[2])["metadata"]["name"] for _ in names]
    assert found == names


async def test_every_way_to_cut_a_request_into_pieces_is_the_same_request(call: Hand) -> None:
    body = json.dumps({"metadata": {"name": "a"}}).encode()
    said = request("PUT", f"{MAPS}/a", body, Content_Type="application/json")
    async with listening(RequestHandler(call.server, 10)) as call_up:
        await call.made(MAPS, {"metadata": {"name": "a"}})
        line = await call_up()
        for size in (1, 2, 3, 7, 50, len(said) - 1):
            for at in range(0, len(said), size):
                line.say(said[at : at + size])
                await line.writer.drain()
                await asyncio.sleep(0)
            assert (await line.hear())[0] == 200


async def test_a_client_that_asks_before_it_sends_its_body_is_told_to_go_on(call: Hand) -> None:
    body = json.dumps({"metadata": {"name": "late"}}).encode()
    said = request("POST", MAPS, body, Content_Type="application/json", Expect="100-continue")
    async with listening(RequestHandler(call.server, 10)) as call_up:
        line = await call_up()
        line.say(said[: -len(body)])
        assert await line.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        line.say(body)
        assert (await line.hear())[0] == 201
        line.say(said[: -len(body)].replace(b"Content-Length: ", b"Content-Length: 9999999"))
        assert (await line.hear())[0] == 413  # without having been asked for


async def test_what_comes_behind_a_body_is_no_header(call: Hand) -> None:
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    body = b"2;of=no-interest\r\n{}\r\n0\r\n%b\r\n\r\n"
    async with listening(RequestHandler(call.server, 10)) as call_up:
        line = await call_up()
        line.say(request("POST", path, Transfer_Encoding="chunked").replace(b"Content-Length: 0\r\n", b""))
        line.say(body % b"Impersonate-User: joe")
        status, _, found = await line.hear()
        assert (status, json.loads(found)["status"]["userInfo"]["username"]) == (201, "root")
        line.say(f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        line.say(body % b"Authorization: Bearer root")
        assert (await line.hear())[0] == 403


async def test_what_comes_behind_a_body_has_an_end() -> None:
    async with listening(Held(), seconds=60) as call_up:
        line = await call_up()
        line.say(request("POST", MAPS, Transfer_Encoding="chunked").replace(b"Content-Length: 0\r\n", b""))
        line.say(b"2\r\n{}\r\n0\r\n")
        for _ in range(3):
            line.say(b"X: " + b"x" * MAX_HEAD_BYTES + b"\r\n")
        assert await line.is_cut()


async def test_bytes_that_are_no_text_in_a_header_are_no_obstacle(call: Hand) -> None:
    body = b'{"metadata":{"name":"strange"},"data":{"a":"b"}}'
    async with listening(RequestHandler(call.server, 10)) as call_up:
        line = await call_up()
        line.say(request("POST", MAPS, body, User_Agent="BYTES/1").replace(b"BYTES", b"caf\xe9"))
        status, _, found = await line.hear()
        assert (status, json.loads(found)["metadata"]["managedFields"][0]["manager"]) == (201, "caf\ufffd")
        line.say(request("GET", MAPS, Accept="BYTES").replace(b"BYTES", b"\xff"))
        assert (await line.hear())[0] == 406
        line.say(request("GET", MAPS, Accept="," * 100_000))
        assert (await line.hear())[0] == 406


@pytest.mark.parametrize("size", [1, 1000])
async def test_a_client_that_would_speak_something_else_is_answered_in_what_it_speaks(call: Hand, size: int) -> None:
    body = json.dumps({"metadata": {"name": "upgraded"}}).encode()
    more = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2_Settings": "AAMAAABk"}
    said = request("POST", MAPS, body, Content_Type="application/json", **more)
    async with listening(RequestHandler(call.server, 10)) as call_up:
        line = await call_up()
        for at in range(0, len(said), size):
            line.say(said[at : at + size])
            await line.writer.drain()
            await asyncio.sleep(0)
        status, headers, found = await line.hear()
        assert (status, headers["connection"]) == (201, "close")
        assert json.loads(found)["metadata"]["name"] == "upgraded"


async def test_each_request_is_answered_in_the_version_that_it_is_in(call: Hand) -> None:
    async with listening(RequestHandler(call.server, 10)) as call_up:
        line = await call_up()
        watch = request("GET", f"{MAPS}?watch=1&timeoutSeconds=1")
        line.say(watch + request("GET", "/version").replace(b"HTTP/1.1", b"HTTP/1.0"))
        async with asyncio.timeout(PATIENCE):
            found = await line.reader.read()
    first, second = found.split(b"0\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in first
    assert (second.startswith(b"HTTP/1.1 200"), b"gitVersion" in second) == (True, True)


@pytest.mark.parametrize(
    "said",
    [
        request("GET", "/version", Connection="close"),
        request("GET", "/version").replace(b"HTTP/1.1", b"HTTP/1.0"),
        request("GET", "/version", Connection="Upgrade", Upgrade="websocket"),
    ],
)
async def test_a_connection_that_is_not_used_again_is_closed_behind_the_answer(call: Hand, said: bytes) -> None:
    async with listening(RequestHandler(call.server, 10)) as call_up:
        line = await call_up()
        line.say(said)
        status, headers, _ = await line.hear()
        assert (status, headers["connection"]) == (200, "close")
        assert await line.is_cut()


async def test_the_answer_to_a_head_has_no_body(call: Hand) -> None:
    async with listening(RequestHandler(call.server, 10)) as call_up:
        line = await call_up()
        line.say(request("HEAD", "/version") + request("GET", "/version"))
        first = (await line.reader.readuntil(b"\r\n\r\n")).decode()
        status, headers, body = await line.hear()
    assert f"Content-Length: {len(body)}" in first
    assert (status, int(headers["content-length"])) == (200, len(body))


@pytest.mark.parametrize(("version", "ends"), [("1.1", b"\r\n0\r\n\r\n"), ("1.0", b"\n")])
async def test_a_watch_is_as_long_as_it_lasts_whatever_its_client_speaks(call: Hand, version: str, ends: bytes) -> None:
    await call.made(MAPS, {"metadata": {"name": "seen"}})
    async with listening(RequestHandler(call.server, 10)) as call_up:
        line = await call_up()
        said = request("GET", f"{MAPS}?watch=1&timeoutSeconds=1", Connection="close")
        line.say(said.replace(b"HTTP/1.1", f"HTTP/{version}".encode()))
        async with asyncio.timeout(PATIENCE):
            found = await line.reader.read()
    assert (b"chunked" in found) is (version == "1.1")
    assert found.endswith(ends)
    assert b'"name":"seen"' in found


async def test_a_query_is_read_as_it_is_meant_and_of_a_name_the_first(call: Hand) -> None:
    await call.made(MAPS, {"metadata": {"name": "a", "labels": {"app": "x"}}})
    await call.made(MAPS, {"metadata": {"name": "b"}})
    async with listening(RequestHandler(call.server, 10)) as call_up:
        line = await call_up()
        for path in (
            f"{MAPS}?labelSelector=app%3Dx&labelSelector=app%3Dy",
            f"{MAPS}?labelSelector=app+in+%28x%29",
            f"{MAPS.replace('configmaps', 'config%6Daps')}?labelSelector=app=x",
            f"http://localhost{MAPS}?labelSelector=app=x",
        ):
            line.say(request("GET", path))
            status, _, body = await line.hear()
            assert (status, [each["metadata"]["name"] for each in json.loads(body)["items"]]) == (200, ["a"])


async def test_the_names_that_are_used_come_through_each_of_them(call: Hand) -> None:
    async with listening(RequestHandler(call.server, 10)) as call_up:
        line = await call_up()
        head = request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", b"{}", Impersonate_User="joe")
        groups = b"Impersonate-Group: a\r\nImpersonate-Group: b, c\r\nImpersonate-Extra-Scope: x\r\n"
        line.say(head.replace(b"Impersonate-User", groups + b"Content-Type: application/json\r\nImpersonate-User"))
        status, _, body = await line.hear()
    assert status == 201
    assert json.loads(body)["status"]["userInfo"] == {
        "username": "joe",
        "groups": ["a", "b, c", "system:authenticated"],
        "extra": {"scope": ["x"]},
    }


# -- crowds


async def test_when_too_many_are_under_way_the_next_is_asked_to_come_again() -> None:
    held = Held()
    async with listening(held, InflightLimiter({READ_ONLY: 2, MUTATING: 1})) as call_up:
        lines = [await call_up() for _ in range(2)]
        for number, line in enumerate(lines, 1):
            line.say(request("GET", "/x", user=f"user{number}"))
            await held.wait_for(number)
        late = await call_up()
        late.say(request("GET", "/x", user="bob"))
        status, headers, body = await late.hear()
        assert (status, headers["retry-after"], json.loads(body)["reason"]) == (429, "1", "TooManyRequests")
        others = [await call_up() for _ in range(4)]
        others[0].say(request("POST", "/x", user="bob"))  # writes have room of their own
        others[1].say(request("GET", "/x", user="root"))  # masters get in
        others[2].say(request("GET", "/readyz", user="bob"))  # and probes
        others[3].say(request("GET", "/x?watch=1", user="bob"))  # and watches
        await held.wait_for(6)
        held.released.set()
        for line in (*lines, *others):
            assert (await line.hear())[0] == 200
        late.say(request("GET", "/x", user="bob"))
        assert (await late.hear())[0] == 200


async def test_slow_writers_take_no_place_of_others_and_are_cut_off(call: Hand) -> None:
    gate = InflightLimiter({READ_ONLY: 5, MUTATING: 20})
    async with listening(RequestHandler(call.server, 10), gate, seconds=0.5) as call_up:
        crowd = [await call_up() for _ in range(100)]
        for line in crowd:
            line.say(request("POST", REVIEWS, b"x" * 1000, user="bob")[:-500])
        other = await call_up()
        other.say(request("GET", "/version", user="bob"))
        assert (await other.hear())[0] == 200
        other.say(request("POST", REVIEWS, b"{}", user="joe", Content_Type="application/json"))
        assert (await other.hear())[0] == 201
        codes = [(await line.hear())[0] for line in crowd]
    assert set(codes) == {504}
    assert (gate.inflight, gate.inflight_by_user) == ({READ_ONLY: 0, MUTATING: 0}, {})


async def test_a_client_that_leaves_takes_its_request_along() -> None:
    held = Held()
    async with listening(held) as call_up:
        line = await call_up()
        line.say(request("GET", "/x"))
        await held.came.wait()
        line.writer.transport.abort()
        async with asyncio.timeout(PATIENCE):
            await held.left.wait()
    assert held.waiting == 0


@pytest.mark.parametrize("before", [[], [request("GET", "/version")] * 2])
async def test_a_watch_ends_when_its_client_leaves(call: Hand, before: list[bytes]) -> None:
    over = asyncio.Event()

    class Noting(Plain):
        async def answer(self, asked: Call) -> ApiResponse | WatchResponse:
            found = await call.server.handle(asked)
            if isinstance(found, WatchResponse):
                found.on_end = over.set
            return found

    async with listening(Noting()) as call_up:
        line = await call_up()
        line.say(b"".join([*before, request("GET", f"{MAPS}?watch=1")]))
        for _ in before:
            await line.hear()
        assert (await line.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        line.writer.transport.abort()
        async with asyncio.timeout(PATIENCE):
            await over.wait()


async def test_a_client_that_does_not_take_its_answer_is_cut_off() -> None:
    size = 64 << 20

    class Generous(Plain):
        async def answer(self, _: Call) -> ApiResponse:
            return ApiResponse(200, b"x" * size)

    class Noting(InflightLimiter):
        left = asyncio.Event()

        def leave(self, seat: InflightSlot) -> None:
            super().release(seat)
            self.left.set()

    gate = Noting({})
    async with listening(Generous(), gate, seconds=0.1) as call_up:
        line = await call_up()
        line.writer.transport.pause_reading()
        line.say(request("GET", "/x"))
        async with asyncio.timeout(PATIENCE):
            await gate.left.wait()
        line.writer.transport.resume_reading()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await line.reader.readexactly(size)


async def test_a_client_that_asks_and_asks_and_takes_nothing_is_cut_off_before_much_is_made_for_it() -> None:
    class Counting(Plain):
        made = 0

        async def answer(self, _: Call) -> ApiResponse:
            self.made += 1
            return ApiResponse(200, b"x" * 60_000)

    class Noting(InflightLimiter):
        begun, gave_up = 0.0, asyncio.Event()

        def enter(self, method: str, user: str = "", *, exempt: bool = False) -> InflightSlot:
            type(self).begun = time.monotonic()
            return super().acquire(method, user, exempt=exempt)

        def leave(self, seat: InflightSlot) -> None:
            super().release(seat)
            if time.monotonic() - self.begun >= 0.2:
                self.gave_up.set()

    counting, gate = Counting(), Noting({})
    async with listening(counting, gate, seconds=0.2) as call_up:
        line = await call_up()
        line.writer.transport.pause_reading()
        line.say(request("GET", "/x") * 2000)
        async with asyncio.timeout(PATIENCE):
            await gate.gave_up.wait()
        line.writer.transport.resume_reading()
        with suppress(ConnectionError):
            await line.reader.read()  # to its end: there is no more to come
    assert counting.made < 2000


async def test_what_goes_wrong_with_one_connection_leaves_the_others_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Plain):
        async def answer(self, asked: Call) -> ApiResponse:
            if asked.path == "/odd":
                return ApiResponse(599, b"{}")
            raise api_errors.method_not_allowed()

        def refused(self, _: Call, error: ApiError) -> ApiResponse:
            raise RuntimeError("even this fails") from error

    async with listening(Broken()) as call_up:
        one, other = await call_up(), await call_up()
        one.say(request("GET", "/x"))
        assert await one.is_cut()
        other.say(request("GET", "/odd"))
        assert (await other.hear())[0] == 599
    assert [each.message for each in caplog.records] == ["a connection failed"]


@pytest.mark.parametrize("turns", range(6))
async def test_a_client_that_comes_as_the_server_goes_is_not_left_hanging(call: Hand, turns: int) -> None:
    async with asyncio.TaskGroup() as group:
        listener = HttpHandler(call.server, UnionAuthenticator([somebody]), InflightLimiter({}), 5)
        runner = await start_http_server(listener, "127.0.0.1", 0, group=group, idle_timeout=60)
        with socket.create_connection(runner.addresses[0], timeout=PATIENCE) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            await runner.stop()
            with suppress(ConnectionResetError):
                assert await asyncio.to_thread(client.recv, 1) == b""
