"""Snapshots as the service shows them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.protobuf.message_factory import GetMessageClass

from tapestry.vclusters.rest_routes import RPCS

from .service_world import ServiceWorld, service_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ServiceWorld]:
    async with service_world(tmp_path) as each:
        yield each


async def test_snapshot_without_an_id_does_not_exist(world: ServiceWorld) -> None:
    for method in ("GetSnapshot", "DeleteSnapshot"):
        assert world.contract.project_of(method, GetMessageClass(RPCS[method].input_type)()) is None
