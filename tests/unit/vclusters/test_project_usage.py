"""The usage of projects at the moment of a write: snapshots, whose operations are requested in virtual clusters."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tapestry.apis.operations import SNAPSHOTS
from tapestry.apis.vclusters import VCLUSTERS, Phase, Verb
from tapestry.apiserver.core.requests import User
from tapestry.kube.errors import ApiError
from tapestry.kube.objects import Object, name_of, object_named, uid_of
from tapestry.vclusters.admission import operation_of
from tapestry.vclusters.api_errors import service_error
from tapestry.vclusters.operations import snapshot_id

from .management_world import ManagementWorld, limit, management_world

PROJECT_QUOTA = "project shop: snapshots: requested 1, used 1, limit 1"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ManagementWorld]:
    async with management_world(tmp_path) as each:
        yield each


async def running(world: ManagementWorld, *names: str) -> list[Object]:
    return [await world.run(await world.create(name, project="shop")) for name in names]


async def rejection(write: Any) -> str:
    """Return the message with which the quota rejects a write; empty if it does not."""
    try:
        await write
    except ApiError as error:
        found = service_error(error)
        return found.message if found is not None else repr(error)
    return ""


def requested(world: ManagementWorld, vcluster: Object, request_id: str = "1") -> Any:
    operation = operation_of(Verb.SNAPSHOT, User("alice"), request_id)
    named = object_named(name_of(vcluster), "shop")
    return world.client("alice").patch(VCLUSTERS, named, {"spec": {"operation": operation}})


async def stored(world: ManagementWorld, vcluster: Object, name: str) -> Object:
    spec = {"vcluster": name_of(vcluster), "vclusterUid": uid_of(vcluster), "project": "shop", "owner": "alice"}
    return await world.orchestrator.create(SNAPSHOTS, {**object_named(name, "shop"), "spec": spec})


async def set_size(world: ManagementWorld, snapshot: Object, size: int) -> Object:
    status = {"status": {"phase": "Ready", "sizeBytes": size}}
    return await world.orchestrator.patch(SNAPSHOTS, snapshot, status, subresource="status")


async def test_concurrent_snapshots_never_exceed_quota(world: ManagementWorld) -> None:
    await limit(world, snapshots=1)
    vclusters = await running(world, *(f"vc{number}" for number in range(8)))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(rejection(requested(world, each, name_of(each)))) for each in vclusters]
    messages = [each.result() for each in tasks]
    assert messages.count("") == 1
    assert all(PROJECT_QUOTA in each for each in messages if each)


async def test_snapshot_counts_once(world: ManagementWorld) -> None:
    await limit(world, snapshots=2)
    first, second = await running(world, "a", "b")
    first = await requested(world, first)
    operation = first["spec"]["operation"]["id"]
    snapshot = await stored(world, first, snapshot_id(operation))
    assert await rejection(requested(world, second, "2")) == ""
    await set_size(world, snapshot, 100)
    await world.set_status(first, Phase.RUNNING, lastOperation=operation)
    assert "used 2, limit 2" in await rejection(requested(world, first, "3"))


async def test_size_of_a_snapshot_is_checked_when_known(world: ManagementWorld) -> None:
    await limit(world, snapshotBytes="100")
    first, second = await running(world, "a", "b")
    snapshots = [await stored(world, first, f"snap-{number}") for number in range(8)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(rejection(set_size(world, each, 60))) for each in snapshots]
    messages = [each.result() for each in tasks]
    assert messages.count("") == 1
    assert all("snapshotBytes: requested 60, used 60, limit 100" in each for each in messages if each)
    await set_size(world, await stored(world, first, "snap-9"), 40)
    assert "snapshotBytes: requested 1, used 100, limit 100" in await rejection(requested(world, second))
