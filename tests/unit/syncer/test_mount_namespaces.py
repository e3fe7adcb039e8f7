"""Labels of the mount namespace: its virtual cluster, and the owner's Pod Security level."""

import asyncio

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.names import virtual_cluster_label
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, object_named, uid_of, value_at
from tapestry.kube.resources import NAMESPACES
from tapestry.syncer.bindings import MARKED_CONDITION

from .world import MOUNT, World, has_condition, new_world

PRIVILEGED = {"containers": [{"name": "c", "image": "i", "securityContext": {"privileged": True}}]}
ROOT = {"containers": [{"name": "c", "image": "i"}]}
"""Allowed at `baseline`, rejected at `restricted`."""


async def label(world: World, **labels: str | None) -> None:
    named_keys = {"mark": keys.VIRTUAL_CLUSTER, "enforce": keys.POD_SECURITY_ENFORCE}
    patch = {"metadata": {"labels": {named_keys[name]: value for name, value in labels.items()}}}
    await world.physical.patch(NAMESPACES, object_named(MOUNT), patch)


async def own_label(world: World) -> str:
    return virtual_cluster_label(uid_of(await world.virtual.get(NAMESPACES, "kube-system")))


async def condition(world: World, type: str) -> Object:
    binding = await world.virtual.get(CLUSTER_BINDINGS, "east")
    return find_condition(value_at(binding, "status", "conditions"), type) or {}


# -- ownership


@in_virtual_time
async def test_syncer_ignores_a_namespace_of_another_cluster() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        await label(world, mark="another")
        await asyncio.sleep(5)
        assert world.started[-1].outdated.is_set()  # the process continues with a new syncer
    before, twins = world.down.writes(), await world.twins()
    async with world.syncer() as parts:
        await world.add_pod("later")
        await world.delete_pod()
        await asyncio.sleep(600)
        assert not parts.partition.transport.is_connected
        assert world.down.writes() == before
        assert await world.twins() == twins


@in_virtual_time
async def test_syncer_continues_when_the_namespace_is_ours_again() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
    await label(world, mark="another")
    async with world.syncer():
        await asyncio.sleep(60)
        await label(world, mark=await own_label(world))
        await asyncio.sleep(300)
        await world.run_pod("later")
        assert len(await world.twins()) == 2


@in_virtual_time
async def test_unlabelled_namespace_works_and_sets_a_condition() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        await asyncio.sleep(5)
        reported = await condition(world, MARKED_CONDITION)
        assert (reported["status"], reported["reason"]) == ("False", keys.MOUNT_NAMESPACE_UNMARKED)
        assert f"{keys.VIRTUAL_CLUSTER}={await own_label(world)}" in reported["message"]
        await label(world, mark=await own_label(world))
        await asyncio.sleep(5)
        assert (await condition(world, MARKED_CONDITION))["status"] == "True"
        await world.run_pod("later")


@in_virtual_time
async def test_labelled_namespace_sets_no_condition() -> None:
    world = await new_world()
    await label(world, mark=await own_label(world))
    async with world.syncer():
        await asyncio.sleep(5)
        assert await condition(world, MARKED_CONDITION) == {}


# -- Pod Security


@in_virtual_time
async def test_stricter_owner_level_applies() -> None:
    world = await new_world(podSecurity="privileged")
    await label(world, enforce="baseline")
    async with world.syncer():
        await world.add_pod(**PRIVILEGED)
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "PodSecurity"))
        assert await world.twins() == []
        await asyncio.sleep(2)
        reported = await condition(world, "Permitted")
        assert (reported["status"], reported["reason"]) == ("False", keys.POD_SECURITY_STRICTER)
        assert "level privileged" in reported["message"]
        assert "enforces baseline" in reported["message"]


@in_virtual_time
async def test_stricter_binding_level_applies() -> None:
    world = await new_world(podSecurity="restricted")
    await label(world, enforce="privileged")
    async with world.syncer():
        await world.add_pod(**ROOT)
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "PodSecurity"))
        await asyncio.sleep(5)
        assert await condition(world, "Permitted") == {}


@in_virtual_time
async def test_pods_are_rechecked_when_the_owner_level_changes() -> None:
    world = await new_world(podSecurity="privileged")
    await label(world, enforce="restricted")
    async with world.syncer():
        await world.add_pod(**ROOT)
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "PodSecurity"))
        await asyncio.sleep(5)
        assert (await condition(world, "Permitted"))["status"] == "False"
        await label(world, enforce="privileged")
        await world.wait_for_twin()
        await asyncio.sleep(5)
        assert (await condition(world, "Permitted"))["status"] == "True"
        await label(world, enforce="restricted")
        await asyncio.sleep(60)
        assert len(await world.twins()) == 1  # running pods stay


@in_virtual_time
async def test_unknown_level_counts_as_strictest() -> None:
    world = await new_world()
    await label(world, enforce="lax")
    async with world.syncer():
        await world.add_pod(**ROOT)
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "PodSecurity"))
