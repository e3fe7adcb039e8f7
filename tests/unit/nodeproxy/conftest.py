"""The kubelet API of virtual nodes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .world import World, new_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with new_world(tmp_path) as made:
        yield made
