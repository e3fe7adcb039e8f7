"""Copies and tokens under faults at every call about them: the final state is always the same."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.client.client import Client
from tapestry.client.transport import Transport
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.testing import Scenario, perturb, running_clock
from tapestry.kube.objects import Object, annotations_of, object_named, uid_of
from tapestry.kube.resources import CONFIGMAPS, NODES, SECRETS, SERVICE_ACCOUNTS, Resource
from tapestry.syncer.app import build_syncer
from tapestry.syncer.config import SyncerConfig, SyncerLeaderElection

from ..world import MAPPED, MOUNT, NODE, SERVED, Clusters

CONFIG = SyncerConfig(
    binding="east", name="east", silence_seconds=3600, leader_election=SyncerLeaderElection(enabled=False)
)
AN_HOUR = 3600.0


async def setup(manager: Manager, physical: Transport) -> None:
    await wait_for(manager.reads, CLUSTER_BINDINGS, "east", until=bool, timeout=AN_HOUR)
    await build_syncer(CONFIG, manager, connect=lambda _: physical, monotonic=running_clock().monotonic)


async def clusters(virtual: Client, physical: Client) -> Clusters:
    found = Clusters(virtual, physical)
    await found.populate("east")
    await wait_for(virtual, NODES, NODE, until=bool, timeout=AN_HOUR)
    return found


async def is_copied(client: Client, resource: Resource, name: str, data: Object | None) -> None:
    """Wait until the copy of `name` has that data, or is deleted."""
    async with asyncio.timeout(AN_HOUR):
        while True:
            found = await client.list(resource, MOUNT)
            copies = {annotations_of(each).get(keys.VIRTUAL_NAME): each.get("data") for each in found}
            if copies.get(name) == data:
                return
            await asyncio.sleep(1)


def config(name: str) -> Object:
    return {"name": name, "configMap": {"name": name}}


async def copy_follows_its_source(virtual: Client, physical: Client) -> None:
    world = await clusters(virtual, physical)
    settings = {**object_named("settings", "default"), "data": {"k": "1"}}
    optional = {"name": "s", "secret": {"secretName": "s", "optional": True}}
    await world.add_pod("work", volumes=[config("settings"), optional])
    await asyncio.sleep(1)
    await virtual.create(CONFIGMAPS, settings)
    await world.wait_for_pod(MAPPED, "work", timeout=AN_HOUR)
    await virtual.patch(CONFIGMAPS, object_named("settings", "default"), {"data": {"k": "2"}})
    await is_copied(physical, CONFIGMAPS, "settings", {"k": "2"})
    await virtual.create(SECRETS, {**object_named("s", "default"), "data": {"p": "cw=="}})
    await is_copied(physical, SECRETS, "s", {"p": "cw=="})
    [copy] = await physical.list(CONFIGMAPS, MOUNT)
    await physical.patch(CONFIGMAPS, object_named(copy["metadata"]["name"], MOUNT), {"data": {"k": "edited"}})
    await asyncio.sleep(1)
    await is_copied(physical, CONFIGMAPS, "settings", {"k": "2"})
    await virtual.delete(SECRETS, object_named("s", "default"))
    await is_copied(physical, SECRETS, "s", None)
    await world.delete_pod("work", grace=0)
    await is_copied(physical, CONFIGMAPS, "settings", None)
    await asyncio.sleep(60)


async def copy_and_its_users_are_replaced(virtual: Client, physical: Client) -> None:
    world = await clusters(virtual, physical)
    fixed = {**object_named("fixed", "default"), "immutable": True}
    await virtual.create(CONFIGMAPS, {**fixed, "data": {"k": "1"}})
    await world.add_pod("first", volumes=[config("fixed")])
    await world.wait_for_pod(MAPPED, "first", timeout=AN_HOUR)
    await virtual.delete(CONFIGMAPS, object_named("fixed", "default"))
    await virtual.create(CONFIGMAPS, {**fixed, "data": {"k": "2"}})
    await is_copied(physical, CONFIGMAPS, "fixed", {"k": "2"})
    await world.delete_pod("first", grace=0)
    await asyncio.sleep(2)  # a new user is created just after the copy is deleted
    await world.add_pod("second", volumes=[config("fixed")])
    await world.wait_for_pod(MAPPED, "second", timeout=AN_HOUR)
    await asyncio.sleep(60)
    await is_copied(physical, CONFIGMAPS, "fixed", {"k": "2"})


async def tokens_are_issued_renewed_and_deleted(virtual: Client, physical: Client) -> None:
    world = await clusters(virtual, physical)
    await virtual.create(SERVICE_ACCOUNTS, object_named("default", "default"))
    access = {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}
    volume = {"name": "access", "projected": {"sources": [access]}}
    await world.add_pod("work", volumes=[volume])
    await world.wait_for_pod(MAPPED, "work", timeout=AN_HOUR)
    [before] = await physical.list(SECRETS, MOUNT)
    await wait_for(
        physical,
        SECRETS,
        before["metadata"]["name"],
        MOUNT,
        until=lambda secret: secret is not None and secret["data"] != before["data"],
        timeout=AN_HOUR,
    )
    await world.delete_pod("work", grace=0)
    second = await world.add_pod("work", volumes=[volume])
    await world.wait_for_pod(MAPPED, "work", timeout=AN_HOUR)
    await asyncio.sleep(60)
    [secret] = await physical.list(SECRETS, MOUNT)
    assert annotations_of(secret)[keys.VIRTUAL_POD_UID] == uid_of(second)
    await world.delete_pod("work", grace=0)
    await asyncio.sleep(60)
    assert await physical.list(SECRETS, MOUNT) == []


def concerns_copies(call: str) -> bool:
    """Return whether faults are injected into the call; other tests cover nodes and bindings."""
    return not call.startswith("watch") and any(
        word in call for word in ("/configmaps", f"/{MOUNT}/secrets", "/default/", f"/{MOUNT}/pods")
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "world",
    [
        copy_follows_its_source,
        copy_and_its_users_are_replaced,
        tokens_are_issued_renewed_and_deleted,
    ],
)
def test_copies_reach_same_state_despite_faults(world: Any, record_property: Callable[[str, object], None]) -> None:
    name = world.__name__.replace("_", " ")
    report = perturb(Scenario(name, SERVED, setup, world, CONFIG, others=[SERVED], counts=concerns_copies))
    record_property("figure", f"perturbed: {name}: {report.calls} calls, {report.cases} replays")
    assert not report.failures, str(report)
