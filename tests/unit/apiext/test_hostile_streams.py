"""Clients that open many event streams, or do not read them, on sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tapestry.apiext import http
from tapestry.apiext.http import ApiExtHandler, access_for_callers, serve_http
from tapestry.apiext.resource_mapper import ResourceMapper
from tapestry.apiext.rest_api import RestApi
from tapestry.apiserver.app import RunningServer, run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.serving import http_connection
from tapestry.cli.mounted_apiext import apiext_handler
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.credentials import Credentials, StaticAuthorization, bearer_header
from tapestry.client.http_transport import HttpTransport
from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import CLUSTER_ROLE_BINDINGS, CONFIGMAPS
from tapestry.process.addresses import Address

TOKENS = 'of-admin,admin,1,"system:masters"\nof-bob,bob,2,"readers"\nof-eve,eve,3,"readers"\n'
READER: Object = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "readers"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "readers"}],
}
WATCHES = 1_000
SECONDS = 60.0
LARGE = {"text": "x" * 200_000}

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def running_server(folder: Path, **options: int) -> AsyncIterator[tuple[RunningServer, Client]]:
    """An API server with the REST API, and a client of its administrator."""
    tokens = folder / "tokens.csv"
    tokens.touch(0o600)
    tokens.write_text(TOKENS)
    config = ApiServerConfig(
        backend="memory",
        file_rootpath=str(folder),
        secure_address="",
        authn_allow_localhost=True,
        local_address="127.0.0.1:0",
        token_auth_file=str(tokens),
        **options,  # type: ignore[arg-type]
    )
    async with run_apiserver(config, mounted_handlers={"apiext": apiext_handler()}) as served:
        client = Client(HttpTransport(access_to(served)))
        try:
            await client.create(CLUSTER_ROLE_BINDINGS, READER)
            yield served, client
        finally:
            await client.close()


def access_to(served: RunningServer) -> Access:
    return Access(f"http://{served.addresses['local']}", Credentials(StaticAuthorization(bearer_header("of-admin"))))


async def watch(address: str, token: str, name: str = "", buffer: int = 0) -> Connection:
    """Send the request of a watch of ConfigMaps."""
    host, _, port = address.rpartition(":")
    connection = socket.socket()
    if buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 12)
    path = f"/apiext/v1/configmaps{name}?watch=true&namespace=default"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    return reader, writer


async def status_of(connection: Connection) -> int:
    return int((await connection[0].readline()).split()[1])


async def wait_for_line(reader: asyncio.StreamReader, text: bytes) -> None:
    while text not in (line := await reader.readline()):
        assert line, "the stream has ended"


async def read_to_end(connection: Connection) -> None:
    with suppress(ConnectionError):
        while await connection[0].read(1 << 16):
            pass
    await close(connection)


async def close(*connections: Connection) -> None:
    for _, writer in connections:
        writer.close()
    for _, writer in connections:
        with suppress(ConnectionError):
            await writer.wait_closed()


async def change_until_dropped(served: RunningServer, client: Client) -> None:
    """Change an object until the watch of it has ended."""
    number = 0
    while not served.store.watcher_count(CONFIGMAPS.name):
        await client.list(CONFIGMAPS)  # the watch starts after its list
    while served.store.watcher_count(CONFIGMAPS.name):
        number += 1
        await client.patch(CONFIGMAPS, object_named("c", "default"), {"data": {**LARGE, "number": str(number)}})


async def test_watches_of_a_user_are_limited_and_served(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(SECONDS),
        running_server(tmp_path, max_connections_per_user=WATCHES) as (served, client),
    ):
        address = served.addresses["local"]
        connections = []
        for _ in range(WATCHES // 50):
            opened = [await watch(address, "of-bob") for _ in range(50)]
            assert {await status_of(each) for each in opened} == {200}
            connections += opened
        refused, other = await watch(address, "of-bob"), await watch(address, "of-eve")
        assert (await status_of(refused), await status_of(other)) == (429, 200)
        await client.create(CONFIGMAPS, {"metadata": {"name": "c", "namespace": "default"}})
        async with asyncio.TaskGroup() as group:
            for reader, _ in (*connections, other):
                group.create_task(wait_for_line(reader, b'"name":"c"'))
        await close(*connections, refused, other)


async def test_unread_watch_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "WRITE_STALL_SECONDS", 0.2)
    async with asyncio.timeout(SECONDS), running_server(tmp_path) as (served, client):
        await client.create(CONFIGMAPS, {"metadata": {"name": "c", "namespace": "default"}})
        unread = await watch(served.addresses["local"], "of-bob", "/c", buffer=1 << 12)
        await wait_for_line(unread[0], b"event: synced")
        await change_until_dropped(served, client)
        await read_to_end(unread)


@asynccontextmanager
async def running_front(served: RunningServer) -> AsyncIterator[str]:
    """The REST API as a separate process runs it."""
    transport = HttpTransport(access_for_callers(access_to(served)))
    handler = ApiExtHandler(RestApi(ResourceMapper()), transport)
    try:
        async with serve_http(handler, Address("127.0.0.1", 0)) as address:
            yield str(address)
    finally:
        handler.close()
        await transport.close()


async def test_streams_of_a_caller_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_STREAMS_PER_CALLER", 3)
    monkeypatch.setattr(http, "MAX_STREAMS", 4)
    async with (
        asyncio.timeout(SECONDS),
        running_server(tmp_path) as (served, client),
        running_front(served) as address,
    ):
        streams = [await watch(address, "of-bob") for _ in range(3)]
        assert [await status_of(each) for each in streams] == [200] * 3
        refused, other, last = [await watch(address, token) for token in ("of-bob", "of-eve", "of-admin")]
        assert [await status_of(each) for each in (refused, other, last)] == [429, 200, 429]
        await close(streams.pop())
        while served.store.watcher_count(CONFIGMAPS.name) == 4:
            await client.list(CONFIGMAPS)  # until the server has noticed
        again = await watch(address, "of-bob")
        assert await status_of(again) == 200
        await close(*streams, refused, other, last, again)


async def test_unread_stream_is_aborted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "WRITE_SECONDS", 0.2)
    async with (
        asyncio.timeout(SECONDS),
        running_server(tmp_path) as (served, client),
        running_front(served) as address,
    ):
        await client.create(CONFIGMAPS, {"metadata": {"name": "c", "namespace": "default"}})
        unread = await watch(address, "of-bob", "/c", buffer=1 << 12)
        await wait_for_line(unread[0], b"event: synced")
        await change_until_dropped(served, client)
        await read_to_end(unread)
