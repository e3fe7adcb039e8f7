"""Requests that cost more than they should: refused bodies, large bodies, and expensive filters."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tapestry.apiext import event_stream, flat_objects, lists, requests
from tapestry.apiext.http import ApiExtHandler, access_for_callers, serve_http
from tapestry.apiext.list_query import MAX_FILTER_TERMS, MAX_SORT_KEYS, Match, parse_list_query
from tapestry.apiext.resource_mapper import ResourceMapper
from tapestry.apiext.rest_api import RestApi
from tapestry.apiserver.app import RunningServer, run_apiserver
from tapestry.apiserver.core.codec import MAX_COLLECTIONS
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.fairness import FairQueue
from tapestry.apiserver.core.requests import Call, User
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.cli.mounted_apiext import apiext_handler
from tapestry.client.access import Access
from tapestry.client.credentials import Credentials, StaticAuthorization, bearer_header
from tapestry.client.http_transport import HttpTransport
from tapestry.kube.budget import CURRENT_BUDGET, Budget, DeadlineExceeded
from tapestry.kube.resources import CONFIGMAPS
from tapestry.process.addresses import Address

ADMIN = User("admin", ("system:masters",))
EVE = User("eve", ("system:authenticated",))
ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))
MAPS = "/apiext/v1/configmaps"
LARGE_TEXT = "x" * 1_000_000


class Unread:
    """A body that must not be received."""

    async def read(self) -> bytes:
        raise AssertionError("the body of a refused request was received")

    def chunks(self) -> AsyncIterator[bytes]:
        raise AssertionError("the body of a refused request was received")


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[RunningServer]:
    tokens = tmp_path / "tokens.csv"
    tokens.touch(0o600)
    tokens.write_text('of-admin,admin,1,"system:masters"\nof-bob,bob,2\n')
    config = ApiServerConfig(
        backend="memory",
        pod_accounts=False,
        file_rootpath=str(tmp_path),
        secure_address="",
        local_address="127.0.0.1:0",
        authn_allow_localhost=True,
        token_auth_file=str(tokens),
    )
    async with run_apiserver(config, mounted_handlers={"apiext": apiext_handler()}) as running:
        yield running


async def ask(
    served: RunningServer, method: str, path: str, body: Any = None, user: User = ADMIN, **query: str
) -> ApiResponse:
    raw = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
    call = Call(method, path, query, {"content-type": "application/json"}, raw, user)
    response = await served.request_handler.handle(call)
    assert isinstance(response, ApiResponse)
    return response


# -- bodies


@pytest.mark.parametrize(("method", "path"), [("POST", MAPS), ("PUT", f"{MAPS}/a"), ("PATCH", f"{MAPS}/a")])
@pytest.mark.parametrize("user", [EVE, ANONYMOUS])
async def test_body_of_refused_request_is_not_received(
    served: RunningServer, method: str, path: str, user: User
) -> None:
    await ask(served, "GET", MAPS)  # the kinds are now cached
    call = Call(method, path, {}, {"content-type": "application/json"}, b"", user, body_reader=Unread())
    response = await served.request_handler.handle(call)
    assert isinstance(response, ApiResponse)
    assert response.status == 403
    assert b"you may not" in response.body


@contextmanager
def recorded_threads(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> Iterator[list[str]]:
    """Record the names of the threads that call a function."""
    function: Callable[..., Any] = getattr(module, name)
    found: list[str] = []

    def recorded(*arguments: Any) -> Any:
        found.append(threading.current_thread().name)
        return function(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(module, name, recorded)
        yield found


def is_worker(name: str) -> bool:
    return name.startswith("large-requests")


async def test_large_objects_are_converted_in_the_worker(
    served: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        recorded_threads(monkeypatch, requests, "decode_json") as bodies,
        recorded_threads(monkeypatch, flat_objects, "full_object") as objects,
    ):
        created = await ask(served, "POST", MAPS, {"name": "a", "data": {"text": LARGE_TEXT}})
        assert created.status == 201
        assert (await ask(served, "GET", f"{MAPS}/a")).status == 200
        assert (await ask(served, "PUT", f"{MAPS}/a", {"data": {"text": LARGE_TEXT[1:]}})).status == 200
        assert (await ask(served, "PATCH", f"{MAPS}/a", {"data": {"b": "c"}})).status == 200
        assert (await ask(served, "GET", MAPS, filter="name=a")).status == 200
    assert [is_worker(each) for each in bodies] == [True, True, False]  # the patch is small
    assert [is_worker(each) for each in objects] == [True] * 5


async def test_large_creates_of_several_users_are_served(served: RunningServer) -> None:
    """A request reserves memory once, although it makes calls of its own that need it."""
    users = [User(f"user{number}", ("system:masters",)) for number in range(3)]
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        bodies = [{"name": each.name, "data": {"text": LARGE_TEXT}} for each in users]
        tasks = [group.create_task(ask(served, "POST", MAPS, *each)) for each in zip(bodies, users, strict=True)]
    assert {each.result().status for each in tasks} == {201}


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"x":[%b{}]}' % (b"{}," * MAX_COLLECTIONS)])
async def test_body_of_too_many_objects_is_rejected(served: RunningServer, body: bytes) -> None:
    assert (await ask(served, "POST", MAPS, body)).status == 400
    assert (await ask(served, "PUT", f"{MAPS}/a", body)).status == 400


# -- lists


@pytest.mark.parametrize(
    ("parameter", "text", "message"),
    [
        ("filter", ",".join(["name~a"] * (MAX_FILTER_TERMS + 1)), "filter: 33 fields; send at most 32"),
        ("sort", ",".join(["name"] * (MAX_SORT_KEYS + 1)), "sort: 9 fields; send at most 8"),
        ("sort", "spec" + ".a" * 1_000, "sort: a field of 2004 characters; send at most 512"),
    ],
)
async def test_too_many_fields_are_rejected(served: RunningServer, parameter: str, text: str, message: str) -> None:
    response = await ask(served, "GET", MAPS, **{parameter: text})
    assert (response.status, msgspec.json.decode(response.body)["message"]) == (400, message)


def test_deadline_stops_filters_and_sorting() -> None:
    query = parse_list_query({"filter": ".data~x", "sort": ".data"})
    items = [{"metadata": {"name": f"c{number}"}, "data": {"a": "b"}} for number in range(1_000)]
    body = msgspec.json.encode({"metadata": {}, "items": items})
    reset_token = CURRENT_BUDGET.set(Budget(is_expired=lambda: True))
    try:
        with pytest.raises(DeadlineExceeded):
            lists.matching_objects(body, query, CONFIGMAPS)
        with pytest.raises(DeadlineExceeded):
            query.sorted([Match(msgspec.Raw(b"{}"), (None,))])
    finally:
        CURRENT_BUDGET.reset(reset_token)


async def test_work_of_a_filter_is_limited(served: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    await ask(served, "POST", MAPS, {"name": "a", "data": {"text": LARGE_TEXT}})
    monkeypatch.setattr("tapestry.apiserver.core.workers.Worker.max_units", 200_000)
    assert (await ask(served, "GET", MAPS, filter=".data~x")).status == 200
    response = await ask(served, "GET", MAPS, filter=",".join([".data!~y"] * MAX_FILTER_TERMS))
    assert (response.status, msgspec.json.decode(response.body)["code"]) == (413, 413)


async def test_pages_of_large_objects_are_shorter(served: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        await ask(served, "POST", MAPS, {"name": f"c{number}", "data": {"text": "x" * 1_000}})
    monkeypatch.setattr(lists, "MAX_PAGE_BYTES", 4_000)
    names: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        found = msgspec.json.decode((await ask(served, "GET", MAPS, namespace="default", limit="6", **cursor)).body)
        assert len(found["items"]) < 6
        names += [each["name"] for each in found["items"] if each["name"].startswith("c")]
        if found["next"] is None:
            break
        cursor = {"cursor": found["next"]}
    assert names == [f"c{number}" for number in range(6)]
    sorted_page = msgspec.json.decode((await ask(served, "GET", MAPS, filter="name~c", sort="-name")).body)
    assert [each["name"] for each in sorted_page["items"]][:6] == [f"c{number}" for number in reversed(range(6))]
    monkeypatch.setattr(lists, "MAX_MATCH_BYTES", 3_000)
    assert (await ask(served, "GET", MAPS, sort="name")).status == 413


async def test_lists_of_several_pages_take_turns(served: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "BATCH", 2)
    for number in range(4):
        await ask(served, "POST", MAPS, {"name": f"c{number}"})
    turns, full_lists = 0, FairQueue(1)
    acquire = full_lists.acquire

    async def counted_acquire(user: str, amount: int = 1) -> None:
        nonlocal turns
        turns += 1
        await acquire(user, amount)

    monkeypatch.setattr(full_lists, "acquire", counted_acquire)
    monkeypatch.setattr("tapestry.apiext.rest_api.FairQueue", lambda _: full_lists)
    handler = apiext_handler()
    for query in ({"sort": "name"}, {"sort": "name", "namespace": "kube-public"}):
        await handler(served.request_handler, Call("GET", MAPS, query, {}, b"", ADMIN))
    assert turns == 1  # the second list has one page


async def test_large_events_are_converted_in_the_worker(served: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded_threads(monkeypatch, event_stream, "encode_changes") as threads:
        response = await ask(served, "GET", MAPS, watch="1", namespace="default")
        assert response.stream is not None
        chunks = response.stream.chunks()
        while b"event: synced" not in await anext(chunks):
            pass
        await ask(served, "POST", MAPS, {"name": "a", "data": {"text": LARGE_TEXT}})
        while b"event: added" not in await anext(chunks):
            pass
        await chunks.aclose()
        response.stream.end()
    assert [is_worker(each) for each in threads] == [True]


# -- the separate process


@pytest.mark.parametrize(("token", "status"), [("guess", 401), ("of-bob", 403)])
async def test_front_does_not_receive_refused_bodies(served: RunningServer, token: str, status: int) -> None:
    credentials = Credentials(StaticAuthorization(bearer_header("of-admin")))
    access = Access(f"http://{served.addresses['local']}", credentials)
    transport = HttpTransport(access_for_callers(access))
    handler = ApiExtHandler(RestApi(ResourceMapper()), transport)
    try:
        async with serve_http(handler, Address("127.0.0.1", 0)) as address:
            reader, writer = await asyncio.open_connection(address.host, address.port)
            head = f"POST {MAPS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
            writer.write(f"{head}Content-Type: application/json\r\nContent-Length: 3000000\r\n\r\n{{".encode())
            assert int((await reader.readline()).split()[1]) == status
            writer.close()
            await writer.wait_closed()
    finally:
        handler.close()
        await transport.close()
