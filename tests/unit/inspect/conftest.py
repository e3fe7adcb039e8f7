"""An API server in this process, and a hand in it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tapestry.apiserver import bootstrap
from tapestry.apiserver.app import running
from tapestry.apiserver.config import ApiServerConfig
from tapestry.client.client import Client
from tapestry.controlplane.direct import Direct
from tapestry.inspect.anykind.hand import Hand


@pytest.fixture
async def hand(tmp_path: Path) -> AsyncIterator[Hand]:
    """Somebody who may do everything, on an API server in this process."""
    config = ApiServerConfig(backend="memory", secure_address="", file_rootpath=str(tmp_path), pod_accounts=False)
    async with running(config) as served:
        yield Hand(Client(Direct(served.server, bootstrap.SYSTEM)), "default")
