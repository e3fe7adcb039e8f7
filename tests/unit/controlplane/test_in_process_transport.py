"""The way to a server in this process keeps what a Transport promises."""

import asyncio

import pytest

from tapestry.apiserver.bootstrap import APISERVER_USER
from tapestry.apiserver.requests import User
from tapestry.apiserver.server import Server
from tapestry.client.client import Client
from tapestry.client.transport import Request
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.errors import Forbidden, NotFound, TransportError
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES

from .objects import a_map

WATCH = Request("GET", NAMESPACES.path(), {"watch": "1"})


async def test_answers_and_refusals_come_back_as_over_a_socket(client: Client) -> None:
    made = await client.create(CONFIGMAPS, a_map("a"))
    assert await client.get(CONFIGMAPS, "a", "default") == made
    with pytest.raises(NotFound, match='configmaps "b" not found'):
        await client.get(CONFIGMAPS, "b", "default")


async def test_requests_are_those_of_the_user(server: Server) -> None:
    with pytest.raises(Forbidden, match='User "eve" cannot list'):
        await Client(InProcessTransport(server, User("eve"))).list(NAMESPACES)


async def test_cut_off_a_watch_breaks_and_the_next_request_is_answered(server: Server) -> None:
    transport = InProcessTransport(server, APISERVER_USER)

    async def read() -> None:
        async with transport.stream(WATCH) as stream:
            async for _ in stream.chunks():
                transport.abort()

    with pytest.raises(TransportError, match="the connection was cut"):
        await read()
    assert (await transport.send(Request("GET", "/version"))).status == 200


async def test_an_answer_that_does_not_come_in_time_is_an_error(server: Server) -> None:
    later = {"resourceVersion": str(server.verbs.store.revision + 1)}
    request = Request("GET", NAMESPACES.path(), later, timeout=0.01)
    with pytest.raises(TransportError, match="no answer came in time"):
        await InProcessTransport(server, APISERVER_USER).send(request)


async def test_a_watch_that_nobody_reads_is_forgotten_when_it_is_left(server: Server) -> None:
    transport, store = InProcessTransport(server, APISERVER_USER), server.verbs.store
    before = len(store._cache("namespaces").subscriptions)
    async with transport.stream(WATCH):
        assert len(store._cache("namespaces").subscriptions) == before + 1
    assert len(store._cache("namespaces").subscriptions) == before


async def test_a_cancelled_reader_leaves_no_watch_behind(server: Server) -> None:
    transport, store = InProcessTransport(server, APISERVER_USER), server.verbs.store
    began = asyncio.Event()

    async def read() -> None:
        async with transport.stream(WATCH) as stream:
            async for _ in stream.chunks():
                began.set()

    async with asyncio.TaskGroup() as group:
        reader = group.create_task(read())
        await began.wait()
        reader.cancel()
    assert not store._cache("namespaces").subscriptions
