"""Write-back of changed copies of ConfigMaps and Secrets, on virtual time."""

import asyncio
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.objects import object_named
from tapestry.kube.resources import CONFIGMAPS, SECRETS

from ..world import MAPPED, World, forbidden, new_world
from .test_copies import add, change, config, copies, edit, secret

OPTED_IN = {"annotations": {keys.SYNC_BACK: "true"}}
ALLOWED = {"syncBack": {"namespaces": ["default"]}}


async def new_running_pod(world: World, **metadata: Any) -> None:
    """Run a pod whose ConfigMap and Secret are copied."""
    settings = await add(world, CONFIGMAPS, "settings", data={"a": "1", "b": "2"})
    password = await add(world, SECRETS, "password", data={"p": "AAAA"})
    for resource, source in ((CONFIGMAPS, settings), (SECRETS, password)):
        if metadata:
            await world.virtual.patch(resource, source, {"metadata": metadata})
    await world.add_pod(volumes=[config("settings"), secret("password")])
    await world.wait_for_pod(MAPPED)


async def source_data(world: World) -> tuple[Any, Any]:
    settings = await world.virtual.get(CONFIGMAPS, "settings", "default")
    password = await world.virtual.get(SECRETS, "password", "default")
    return settings["data"], password["data"]


async def copy_data(world: World) -> tuple[Any, Any]:
    return (await copies(world))["settings"]["data"], (await copies(world, SECRETS))["password"]["data"]


@in_virtual_time
async def test_changes_are_written_back_if_both_allow() -> None:
    world = await new_world(**ALLOWED)
    async with world.syncer():
        await new_running_pod(world, **OPTED_IN)
        await edit(world, CONFIGMAPS, "settings", data={"a": "changed", "b": None, "added": "x"})
        await edit(world, SECRETS, "password", data={"p": "AAEC"})
        await asyncio.sleep(5)
        assert await source_data(world) == ({"a": "changed", "b": "2"}, {"p": "AAEC"})
        assert await copy_data(world) == await source_data(world)
        assert len(await world.events("SyncedBack")) == 2
        assert "AAEC" not in str(await world.events("SyncedBack"))


@pytest.mark.parametrize(
    ("spec", "metadata"), [({}, OPTED_IN), (ALLOWED, {}), ({"syncBack": {"namespaces": ["other"]}}, OPTED_IN)]
)
@in_virtual_time
async def test_changes_stay_unless_both_sides_allow(spec: Any, metadata: Any) -> None:
    world = await new_world(**spec)
    async with world.syncer():
        await new_running_pod(world, **metadata)
        await edit(world, CONFIGMAPS, "settings", data={"a": "changed"})
        await edit(world, SECRETS, "password", data={"p": "AAEC"})
        await asyncio.sleep(5)
        assert await source_data(world) == ({"a": "1", "b": "2"}, {"p": "AAAA"})
        assert await copy_data(world) == await source_data(world)
        assert len(await world.events("LocalChangeOverwritten")) == 2


@in_virtual_time
async def test_tenant_wins_if_both_sides_changed() -> None:
    world = await new_world(**ALLOWED)
    async with world.syncer():
        await new_running_pod(world, **OPTED_IN)
        world.down.cut()
        await edit(world, CONFIGMAPS, "settings", data={"a": "owner"})
        await change(world, CONFIGMAPS, "settings", data={"a": "tenant"})
        world.down.restore()
        await asyncio.sleep(120)
        assert (await source_data(world))[0] == {"a": "tenant", "b": "2"}
        assert (await copy_data(world))[0] == {"a": "tenant", "b": "2"}
        assert await world.events("SyncedBack") == []


@in_virtual_time
async def test_missing_permission_is_reported() -> None:
    world = await new_world(**ALLOWED)
    async with world.syncer():
        await new_running_pod(world, **OPTED_IN)
        world.up.rejection = lambda request: (
            forbidden("no") if request.method == "PATCH" and "configmaps" in request.path else None
        )
        await edit(world, CONFIGMAPS, "settings", data={"a": "changed"})
        await asyncio.sleep(5)
        (event,) = await world.events("SyncBackForbidden")
        assert "may not patch this object" in event["message"]
        assert (await copy_data(world))[0] == {"a": "1", "b": "2"}


@in_virtual_time
async def test_immutable_source_is_never_changed() -> None:
    world = await new_world(**ALLOWED)
    async with world.syncer():
        await new_running_pod(world, **OPTED_IN)
        await world.virtual.patch(CONFIGMAPS, object_named("settings", "default"), {"immutable": True})
        await asyncio.sleep(5)
        copy = (await copies(world))["settings"]
        await world.physical.delete(CONFIGMAPS, copy)
        await asyncio.sleep(60)
        assert await copy_data(world) == await source_data(world)
        assert await world.events("SyncedBack") == []


@in_virtual_time
async def test_frequent_copy_changes_cause_few_writes() -> None:
    world = await new_world(**ALLOWED)
    async with world.syncer():
        await new_running_pod(world, **OPTED_IN)
        world.up.requests.clear()
        for number in range(600):
            await edit(world, CONFIGMAPS, "settings", data={"a": str(number)})
            await asyncio.sleep(1)
        assert 1 <= len(world.up.writes("PATCH", "configmaps")) <= 24
