"""Clusters in this process with a process kubelet or a simulated one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .worlds import World, new_cluster


@pytest.fixture
async def open_world(tmp_path: Path) -> AsyncIterator[World]:
    """Cluster that runs any command."""
    async with new_cluster(tmp_path, run_pods=True) as world:
        yield world


@pytest.fixture
async def strict_world(tmp_path: Path) -> AsyncIterator[World]:
    """Cluster that runs only our own program, in trusted namespaces."""
    async with new_cluster(tmp_path) as world:
        yield world


@pytest.fixture
async def simulated_world(tmp_path: Path) -> AsyncIterator[World]:
    """Cluster with a simulated node."""
    async with new_cluster(tmp_path, simulated=True) as world:
        yield world
