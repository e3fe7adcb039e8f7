import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.controller.errors import Terminal
from tapestry.controller.informer import Informer
from tapestry.controller.owned import ensure_owned
from tapestry.controller.testing.clock import VirtualClock
from tapestry.kube.errors import Conflict
from tapestry.kube.objects import controller_of, object_named, uid_of
from tapestry.kube.resources import NODES, PODS

CONTENT = {"spec": {"containers": [{"name": "c", "image": "busybox:1"}]}}


@pytest.fixture
async def pods(world: Any) -> AsyncIterator[Informer]:
    informer = Informer(Client(world.api.connect()), PODS)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(informer.run())
        await informer.synced.wait()
        yield informer
        task.cancel()


async def test_owned_object_is_created_once(world: Any, pods: Informer) -> None:
    owner = await world.add(world.widgets, "w")
    made = await ensure_owned(world.client, pods, owner, CONTENT)
    await asyncio.sleep(1)
    assert await ensure_owned(world.client, pods, owner, {"spec": {"other": "content"}}) is pods.store.get("default/w")
    assert await world.client.list(PODS) == [made]
    assert controller_of(made) == {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "name": "w",
        "uid": uid_of(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }


async def test_owned_object_may_have_another_name(world: Any, pods: Informer) -> None:
    owner = await world.add(world.widgets, "w")
    for name in ("w-0", "w-1"):
        await ensure_owned(world.client, pods, owner, CONTENT, name=name)
    await asyncio.sleep(1)
    assert sorted(pods.store) == ["default/w-0", "default/w-1"]


async def test_stale_cache_makes_second_create_a_conflict(world: Any, pods: Informer) -> None:
    owner = await world.add(world.widgets, "w")
    world.api.freeze()
    await ensure_owned(world.client, pods, owner, CONTENT)
    with pytest.raises(Conflict):
        await ensure_owned(world.client, pods, owner, CONTENT)
    assert len(await world.client.list(PODS)) == 1


async def test_object_of_another_owner_is_not_changed(world: Any, pods: Informer) -> None:
    owner = await world.add(world.widgets, "w")
    foreign = await world.add(PODS, "w")
    await asyncio.sleep(1)
    with pytest.raises(Terminal, match="Pod default/w has another owner; rename or delete Widget default/w") as caught:
        await ensure_owned(world.client, pods, owner, CONTENT)
    assert caught.value.reason == "NameTaken"
    assert await world.client.list(PODS) == [foreign]


async def test_object_of_deleted_owner_is_not_ours(world: Any, pods: Informer) -> None:
    first = await world.add(world.widgets, "w")
    await ensure_owned(world.client, pods, first, CONTENT)
    await world.client.delete(world.widgets, object_named("w", "default"))
    second = await world.add(world.widgets, "w")
    await asyncio.sleep(1)
    with pytest.raises(Terminal, match="NameTaken"):
        await ensure_owned(world.client, pods, second, CONTENT)


async def test_cluster_scoped_object_has_no_namespace(world: Any, virtual_time: VirtualClock) -> None:
    owner = await world.add(world.widgets, "w")
    made = await ensure_owned(world.client, Informer(world.client, NODES), owner, {})
    assert "namespace" not in made["metadata"]
