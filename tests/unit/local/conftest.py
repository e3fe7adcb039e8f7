"""Clusters in this process whose pods run, or say that they do."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .worlds import World, a_cluster


@pytest.fixture
async def sample(tmp_path: Path) -> AsyncIterator[World]:
    """A cluster that runs any command."""
    async with a_cluster(tmp_path, run_pods=True) as world:
        yield world


@pytest.fixture
async def strict(tmp_path: Path) -> AsyncIterator[World]:
    """A cluster that runs our own program, for those it trusts."""
    async with a_cluster(tmp_path) as world:
        yield world


@pytest.fixture
async def pretended(tmp_path: Path) -> AsyncIterator[World]:
    """A cluster whose node is simulated."""
    async with a_cluster(tmp_path, simulated=True) as world:
        yield world
