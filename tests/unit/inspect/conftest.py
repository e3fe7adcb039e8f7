"""API server in this process, with a kubectl-like client."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.client.client import Client
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.inspect.anykind.kubectl_lite import KubectlLite


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[KubectlLite]:
    """`KubectlLite` of an administrator on an API server in this process."""
    config = ApiServerConfig(backend="memory", secure_address="", file_rootpath=str(tmp_path), pod_accounts=False)
    async with run_apiserver(config) as served:
        yield KubectlLite(Client(InProcessTransport(served.server, APISERVER_USER)), "default")
