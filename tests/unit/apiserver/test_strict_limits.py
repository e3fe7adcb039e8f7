"""Strict limits, which hold for every user, and limits that the servers of a process share."""

from typing import Any

import pytest

from tapestry.apiserver.core.requests import MASTERS_GROUP, User
from tapestry.apiserver.core.session_limiter import SessionLimiter
from tapestry.apiserver.core.shared_capacity import SharedCapacity
from tapestry.apiserver.serving.connection_limiter import ConnectionLimiter
from tapestry.apiserver.serving.inflight_limiter import MUTATING, READ_ONLY, InflightLimiter, WatchLimiter
from tapestry.apiserver.serving.request_handler import RequestHandler
from tapestry.apiserver.serving.uploads import UploadBudget
from tapestry.kube.errors import TooManyRequests

from .conftest import ServerClient
from .serving.test_http import MAPS, BlockingHandler, request
from .serving.test_request_order import FakeConnection, http_server

ROOT = User("root", (MASTERS_GROUP,))


def limits(read: int, *, is_strict: bool) -> InflightLimiter:
    return InflightLimiter({READ_ONLY: read, MUTATING: read}, is_strict=is_strict)


@pytest.mark.parametrize(("is_strict", "path"), [(True, "/x"), (True, "/healthz"), (False, "/x")])
async def test_strict_total_of_requests_holds_for_masters_and_probes(is_strict: bool, path: str) -> None:
    handler = BlockingHandler()
    async with http_server(handler, inflight_limiter=limits(2, is_strict=is_strict)) as connect:
        for number in range(1, 3):  # more than the share of a user
            (await connect()).send(request("GET", "/x", user="root"))
            await handler.wait_for(number)
        third = await connect()
        third.send(request("GET", path, user="root"))
        if is_strict:
            assert (await third.receive())[0] == 429
        else:
            await handler.wait_for(3)


async def test_watches_over_limit_get_429_with_retry(call: ServerClient) -> None:
    limiter = WatchLimiter(2)
    async with http_server(RequestHandler(call.server, 10), watch_limiter=limiter) as connect:

        async def watch() -> tuple[Any, bytes]:
            client = await connect()
            client.send(request("GET", f"{MAPS}?watch=1", user="root"))
            return client, await client.reader.readuntil(b"\r\n\r\n")

        first, head = await watch()
        assert b" 200 " in head
        assert b" 200 " in (await watch())[1]
        rejected, head = await watch()
        assert b" 429 " in head
        assert b"Retry-After: 1" in head
        assert b"the server has 2 watches, which is its limit" in await rejected.reader.readuntil(b"limit:")
        other = await connect()
        other.send(request("GET", MAPS, user="root"))
        assert (await other.receive())[0] == 200
        first.writer.transport.abort()
        while limiter.open == 2:  # until the server has noticed
            other.send(request("GET", MAPS, user="root"))
            await other.receive()
        assert b" 200 " in (await watch())[1]


def test_strict_total_of_sessions_holds_for_masters() -> None:
    assert SessionLimiter(1, 1, total=1).acquire(ROOT)
    with pytest.raises(TooManyRequests, match="the server has 1 sessions, which is its limit"):
        SessionLimiter(1, 1, total=1, is_strict=True).acquire(ROOT)
    assert SessionLimiter(2, 0, total=1, is_strict=True).acquire(ROOT)


def test_strict_total_of_connections_holds_for_masters() -> None:
    limiter = ConnectionLimiter(max_connections=2, max_per_user=1, is_strict=True)
    for _ in range(2):
        limiter.assign(FakeConnection("10.0.0.1", is_idle=False), "root", exempt=True)
    with pytest.raises(TooManyRequests):
        limiter.assign(FakeConnection("10.0.0.1", is_idle=False), "root", exempt=True)


def test_server_cannot_take_all_shared_connections() -> None:
    shared = SharedCapacity(20)
    first, second = (ConnectionLimiter(server=name, capacity=shared) for name in "ab")
    connections = [FakeConnection("10.0.0.1", is_idle=False) for _ in range(10)]
    for number, each in enumerate(connections):
        first.assign(each, f"user-{number}", exempt=True)
    with pytest.raises(TooManyRequests):
        first.assign(FakeConnection("10.0.0.1", is_idle=False), "other", exempt=True)
    assert (shared.held("a"), first.is_full) == (10, True)
    for number in range(5):
        second.assign(FakeConnection("10.0.0.1", is_idle=False), f"user-{number}")
    for each in connections:
        first.remove(each)
    assert (shared.held("a"), shared.held("b"), second.authenticated) == (0, 5, 5)


def test_connection_moves_between_servers() -> None:
    """A connection that names its server in the path may serve users of the same name in two servers."""
    shared, connection = SharedCapacity(20), FakeConnection("10.0.0.1")
    first, second = (ConnectionLimiter(server=name, capacity=shared) for name in "ab")
    for limiter in (first, second):
        limiter.assign(connection, "admin")
    assert (shared.held("a"), shared.held("b")) == (0, 1)
    second.remove(connection)
    assert (shared.held("b"), second.authenticated) == (0, 0)


def test_server_cannot_take_all_shared_bytes_of_bodies() -> None:
    shared = SharedCapacity(100)
    first, second = (UploadBudget(shared=shared, owner=name) for name in "ab")
    first.acquire("root", 50)
    with pytest.raises(TooManyRequests):
        first.acquire("other", 1)
    second.acquire("root", 25)
    first.release("root", 50)
    second.acquire("root", 25)
