"""An API server in this process with its controllers beside it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tapestry.apiserver import bootstrap
from tapestry.apiserver.access.service_accounts import Accounts
from tapestry.apiserver.access.signing import keys_in
from tapestry.apiserver.app import server_of, ways_of
from tapestry.apiserver.config import ApiServerConfig
from tapestry.apiserver.server import Server
from tapestry.apiserver.storage.local import LocalStore
from tapestry.apiserver.storage.memory import MemoryLog
from tapestry.client.client import Client
from tapestry.controlplane.app import manager_beside
from tapestry.controlplane.direct import Direct

Beside = Callable[..., AbstractAsyncContextManager[None]]
AUTHORITY = "-----BEGIN CERTIFICATE-----\n"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    config = ApiServerConfig(backend="memory")

    def now() -> datetime:
        return datetime.now(UTC)

    store = LocalStore(MemoryLog())
    accounts = Accounts(store, keys_in(tmp_path / "key"), "https://here", now)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(store.run())
        server = server_of(config, store, accounts, ways_of(config, accounts), now)
        await bootstrap.install(server)
        yield server
        running.cancel()
    store.close()


@pytest.fixture
def client(server: Server) -> Client:
    return Client(Direct(server, bootstrap.SYSTEM))


@pytest.fixture
def beside(server: Server) -> Beside:
    """`async with beside("garbage")`: these controllers run meanwhile, all of them unless named."""

    @asynccontextmanager
    async def controllers(*patterns: str) -> AsyncIterator[None]:
        manager = manager_beside(server, AUTHORITY, list(patterns) or ["*"])
        async with asyncio.TaskGroup() as group:
            group.create_task(manager.run())
            yield
            manager.stop()

    return controllers
