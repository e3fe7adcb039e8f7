"""An API server in this process, and a hand in it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tapestry.apiserver import bootstrap
from tapestry.apiserver.access.service_accounts import Accounts
from tapestry.apiserver.access.signing import keys_in
from tapestry.apiserver.app import server_of, ways_of
from tapestry.apiserver.config import ApiServerConfig
from tapestry.apiserver.storage.local import LocalStore
from tapestry.apiserver.storage.memory import MemoryLog
from tapestry.client.client import Client
from tapestry.controlplane.direct import Direct
from tapestry.inspect.anykind.hand import Hand


@pytest.fixture
async def hand(tmp_path: Path) -> AsyncIterator[Hand]:
    """Somebody who may do everything, on an API server in this process."""

    def now() -> datetime:
        return datetime.now(UTC)

    config = ApiServerConfig(backend="memory", pod_accounts=False)
    store = LocalStore(MemoryLog())
    accounts = Accounts(store, keys_in(tmp_path / "key"), "https://here", now)
    server = server_of(config, store, accounts, ways_of(config, accounts), now)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(store.run())
        await bootstrap.install(server)
        yield Hand(Client(Direct(server, bootstrap.SYSTEM)), "default")
        await server.close()
        running.cancel()
    store.close()
