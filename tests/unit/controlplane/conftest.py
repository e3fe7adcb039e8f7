"""Fixtures: an API server in this process, and controllers that run beside it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.ca_publisher import CaBundle
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.apiserver.handlers.server import Server
from tapestry.apiserver.serving.request_handler import RequestHandler
from tapestry.client.client import Client
from tapestry.controlplane.app import control_plane_manager
from tapestry.controlplane.in_process_transport import InProcessTransport

RunControllers = Callable[..., AbstractAsyncContextManager[None]]
AUTHORITY = "-----BEGIN CERTIFICATE-----\n"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with run_apiserver(
        ApiServerConfig(backend="memory", secure_address="", file_rootpath=str(tmp_path))
    ) as served:
        yield served.server


@pytest.fixture
def client(server: Server) -> Client:
    return Client(InProcessTransport(server, APISERVER_USER))


@pytest.fixture
def run_controllers(server: Server, tmp_path: Path) -> RunControllers:
    """Run controllers in a context: `async with run_controllers("garbage")`. Without names, the defaults run."""

    @asynccontextmanager
    async def controllers(*patterns: str) -> AsyncIterator[None]:
        manager = control_plane_manager(
            RequestHandler(server, 60.0),
            CaBundle(AUTHORITY),
            list(patterns) or ["*"],
            CertificateAuthority(tmp_path / "pki"),
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(manager.run())
            yield
            manager.stop()

    return controllers
