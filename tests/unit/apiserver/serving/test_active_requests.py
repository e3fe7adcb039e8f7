"""The end of requests when a server closes, on real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tapestry.apiserver.access.authentication import UnionAuthenticator
from tapestry.apiserver.assembly import OpenServer, ServerThreads, open_server
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import Call
from tapestry.apiserver.core.responses import ApiResponse, SessionResponse
from tapestry.apiserver.serving.active_requests import ActiveRequests
from tapestry.apiserver.serving.http_handler import start_http_server
from tapestry.streams.connection import Connection

from .test_http import MAPS, TIMEOUT, BaseHandler, BlockingHandler, RawConnection, authenticate_by_token, request


@dataclass(frozen=True)
class ListeningServer:
    opened: OpenServer
    address: tuple[str, int]
    clients: list[RawConnection] = field(default_factory=list)

    @property
    def requests(self) -> ActiveRequests:
        return self.opened.http_handler.active_requests

    async def connect(self) -> RawConnection:
        self.clients.append(RawConnection(*await asyncio.open_connection(*self.address)))
        return self.clients[-1]


@asynccontextmanager
async def listening_server(tmp_path: Path, server: Any = None) -> AsyncIterator[ListeningServer]:
    """Run a server, or its HTTP handler in front of another one."""
    config = ApiServerConfig(backend="memory", file_rootpath=str(tmp_path), pod_accounts=False)
    with closing(ServerThreads()) as threads:
        async with open_server(config, threads) as opened, asyncio.TaskGroup() as group:
            http_handler = replace(opened.http_handler, authenticate=UnionAuthenticator([authenticate_by_token]))
            if server is not None:
                http_handler = replace(http_handler, server=server)
            http_server = await start_http_server(http_handler, "127.0.0.1", 0, group=group)
            running = ListeningServer(replace(opened, http_handler=http_handler), http_server.addresses[0][:2])
            yield running
            for client in running.clients:
                client.writer.close()
            await http_server.stop()


async def test_watch_gets_bookmark_and_its_end(tmp_path: Path) -> None:
    async with listening_server(tmp_path) as running:
        client, idle = await running.connect(), await running.connect()
        idle.send(request("GET", MAPS))
        await idle.receive()
        client.send(request("GET", f"{MAPS}?watch=1&allowWatchBookmarks=true&resourceVersion=0"))
        async with asyncio.timeout(TIMEOUT):
            await client.reader.readuntil(b"\r\n\r\n")
            await running.opened.finish()
            rest = await client.reader.read()
        size, line, *end = rest.split(b"\r\n")
        assert int(size, 16) == len(line)
        bookmark = json.loads(line)
        assert bookmark["type"] == "BOOKMARK"
        assert bookmark["object"]["metadata"]["resourceVersion"] == str(running.opened.store.revision)
        assert end == [b"0", b"", b""]
        assert await idle.is_closed()
        assert len(running.requests) == 0


async def test_short_request_ends_before_the_store(tmp_path: Path) -> None:
    handler = BlockingHandler()
    async with listening_server(tmp_path, handler) as running, asyncio.TaskGroup() as group:
        client = await running.connect()
        client.send(request("GET", MAPS))
        await handler.wait_for(1)
        finishing = group.create_task(running.opened.finish())
        await asyncio.sleep(0)
        assert not running.opened.store.is_finished
        handler.released.set()
        assert (await client.receive())[0] == 200
        await finishing
        assert running.opened.store.is_finished


async def test_request_that_does_not_end_is_cancelled(tmp_path: Path) -> None:
    handler = BlockingHandler()
    async with listening_server(tmp_path, handler) as running:
        client = await running.connect()
        client.send(request("GET", MAPS))
        await handler.wait_for(1)
        await running.opened.finish()
        assert await client.is_closed()
        assert handler.waiting == 0


@dataclass
class SessionHandler(BaseHandler):
    """A handler that upgrades every connection and echoes what it reads."""

    releases: int = 0
    started: asyncio.Event = field(default_factory=asyncio.Event)

    def is_long_running(self, _: Call) -> bool:
        return True

    async def handle(self, _: Call) -> ApiResponse | SessionResponse:
        return SessionResponse({"Upgrade": "echo"}, self.run, self.release)

    async def run(self, connection: Connection) -> None:
        self.started.set()
        while data := await connection.read():
            await connection.write(data)

    def release(self) -> None:
        self.releases += 1


async def test_upgraded_connection_ends(tmp_path: Path) -> None:
    handler = SessionHandler()
    async with listening_server(tmp_path, handler) as running:
        client = await running.connect()
        client.send(request("GET", MAPS, connection="upgrade", upgrade="echo"))
        assert (await client.receive())[0] == 101
        client.send(b"hello")
        assert await client.reader.readexactly(5) == b"hello"
        await running.opened.finish()
        assert await client.is_closed()
        assert handler.releases == 1


async def test_time_of_last_request_is_recorded(tmp_path: Path) -> None:
    now = 100.0
    requests = ActiveRequests(lambda: now)
    async with listening_server(tmp_path) as running:
        handler = replace(running.opened.http_handler, active_requests=requests)
        async with asyncio.TaskGroup() as group:
            http_server = await start_http_server(handler, "127.0.0.1", 0, group=group)
            client = RawConnection(*await asyncio.open_connection(*http_server.addresses[0][:2]))
            now = 200.0
            client.send(request("GET", MAPS))
            await client.receive()
            assert (requests.last_end, len(requests)) == (200.0, 0)
            client.writer.close()
            await http_server.stop()
