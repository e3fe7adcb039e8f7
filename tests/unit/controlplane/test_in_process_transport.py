"""Tests of the in-process transport."""

import asyncio

import pytest

from tapestry.apiserver.core.requests import APISERVER_USER, User
from tapestry.apiserver.handlers.server import Server
from tapestry.client.client import Client
from tapestry.client.transport import Request
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.errors import Forbidden, NotFound, TransportError
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES

from .objects import new_map

WATCH = Request("GET", NAMESPACES.path(), {"watch": "1"})


async def test_responses_and_errors_are_returned(client: Client) -> None:
    created = await client.create(CONFIGMAPS, new_map("a"))
    assert await client.get(CONFIGMAPS, "a", "default") == created
    with pytest.raises(NotFound, match='configmaps "b" not found'):
        await client.get(CONFIGMAPS, "b", "default")


async def test_requests_are_sent_as_the_user(server: Server) -> None:
    with pytest.raises(Forbidden, match='User "eve" cannot list'):
        await Client(InProcessTransport(server, User("eve"))).list(NAMESPACES)


async def test_abort_breaks_watches_but_not_later_requests(server: Server) -> None:
    transport = InProcessTransport(server, APISERVER_USER)

    async def read() -> None:
        async with transport.stream(WATCH) as stream:
            async for _ in stream.chunks():
                transport.abort()

    with pytest.raises(TransportError, match="the connection was aborted"):
        await read()
    assert (await transport.send(Request("GET", "/version"))).status == 200


async def test_timeout_raises_transport_error(server: Server) -> None:
    later = {"resourceVersion": str(server.verbs.store.revision + 1)}
    request = Request("GET", NAMESPACES.path(), later, timeout=0.01)
    with pytest.raises(TransportError, match="the response timed out"):
        await InProcessTransport(server, APISERVER_USER).send(request)


async def test_unread_watch_is_unsubscribed_on_exit(server: Server) -> None:
    transport, store = InProcessTransport(server, APISERVER_USER), server.verbs.store
    before = len(store._cache("namespaces").subscriptions)
    async with transport.stream(WATCH):
        assert len(store._cache("namespaces").subscriptions) == before + 1
    assert len(store._cache("namespaces").subscriptions) == before


async def test_cancelled_reader_unsubscribes_its_watch(server: Server) -> None:
    transport, store = InProcessTransport(server, APISERVER_USER), server.verbs.store
    started = asyncio.Event()

    async def read() -> None:
        async with transport.stream(WATCH) as stream:
            async for _ in stream.chunks():
                started.set()

    async with asyncio.TaskGroup() as group:
        reader = group.create_task(read())
        await started.wait()
        reader.cancel()
    assert not store._cache("namespaces").subscriptions
