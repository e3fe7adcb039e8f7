"""Storage classes that a plane has from its host cluster, in virtual time."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from tapestry.client.client import Client
from tapestry.client.transport import Transport
from tapestry.client.watch import wait_for
from tapestry.controller import Informer, Manager
from tapestry.controller.testing import Scenario, in_virtual_time, perturb
from tapestry.kube.objects import Object, annotations_of, object_named, uid_of
from tapestry.kube.resources import STORAGE_CLASSES
from tapestry.syncer.components import Syncer
from tapestry.tenants.sync.storage_classes import wire_storage_classes

from ...syncer.world import A_DAY, SERVED
from .twin_world import CONFIG, TwinWorld, add_binding, build_twin_syncer, is_about, new_twin_world
from .volume_world import HOST_CLASS, OfferingBinding

FAST, STANDARD = object_named("fast"), object_named("standard")
DEFAULT = "storageclass.kubernetes.io/is-default-class"


def wire(syncer: Syncer) -> None:
    binding = OfferingBinding(syncer.identity, syncer.caches.bindings, syncer.caches.mount_namespaces)
    of_host = Informer(syncer.clients.physical_reads, STORAGE_CLASSES).with_name("host_classes")
    host_classes = syncer.manager.add_optional_informer(of_host)
    wire_storage_classes(replace(syncer, current_binding=binding), syncer.caches.bindings, host_classes)


async def the_class(world: TwinWorld) -> Object:
    await asyncio.sleep(1)
    return await world.plane.get(STORAGE_CLASSES, "fast")


@in_virtual_time
async def test_offered_class_follows_that_of_host() -> None:
    world = await new_twin_world()
    async with world.syncer(wire):
        assert await world.plane.list(STORAGE_CLASSES) == []
        await world.host.create(STORAGE_CLASSES, HOST_CLASS)
        await world.host.create(STORAGE_CLASSES, {**HOST_CLASS, **object_named("not-offered")})
        found = await the_class(world)
        assert annotations_of(found) == {DEFAULT: "true"}
        assert len(await world.plane.list(STORAGE_CLASSES)) == 1
        await world.host.patch(STORAGE_CLASSES, STANDARD, {"allowVolumeExpansion": False})
        assert (await the_class(world))["allowVolumeExpansion"] is False
        await world.host.delete(STORAGE_CLASSES, STANDARD)
        await world.host.create(STORAGE_CLASSES, {**HOST_CLASS, "reclaimPolicy": "Retain"})
        assert (await the_class(world))["reclaimPolicy"] == "Retain"


@in_virtual_time
async def test_default_of_binding_replaces_that_of_host() -> None:
    world = await new_twin_world(defaultStorageClass="fast")
    await world.host.create(STORAGE_CLASSES, {**HOST_CLASS, "metadata": {"name": "standard"}})
    async with world.syncer(wire):
        assert annotations_of(await the_class(world)) == {DEFAULT: "true"}
        await world.set_binding(defaultStorageClass="other")
        assert annotations_of(await the_class(world)) == {DEFAULT: "false"}


@in_virtual_time
async def test_changed_or_deleted_class_is_restored() -> None:
    world = await new_twin_world()
    await world.host.create(STORAGE_CLASSES, HOST_CLASS)
    async with world.syncer(wire):
        await world.plane.patch(STORAGE_CLASSES, FAST, {"allowVolumeExpansion": False})
        before = await the_class(world)
        assert before["allowVolumeExpansion"]
        await world.plane.delete(STORAGE_CLASSES, FAST)
        assert uid_of(await the_class(world)) != uid_of(before)


@in_virtual_time
async def test_classes_go_when_the_switch_is_off() -> None:
    world = await new_twin_world()
    await world.host.create(STORAGE_CLASSES, HOST_CLASS)
    async with world.syncer(wire):
        assert await the_class(world)
        await world.set_binding(sync={"storageClasses": False})
        await asyncio.sleep(1)
        assert await world.plane.list(STORAGE_CLASSES) == []


@in_virtual_time
async def test_class_of_tenant_stays() -> None:
    world = await new_twin_world()
    await world.host.create(STORAGE_CLASSES, HOST_CLASS)
    await world.plane.create(STORAGE_CLASSES, {**FAST, "provisioner": "own.example.com"})
    async with world.syncer(wire):
        assert (await the_class(world))["provisioner"] == "own.example.com"


async def class_comes_changes_and_goes(plane: Client, host: Client) -> None:
    await add_binding(plane)
    await host.create(STORAGE_CLASSES, HOST_CLASS)

    async def wait_until(until: Callable[[Object | None], bool]) -> None:
        await wait_for(plane, STORAGE_CLASSES, "fast", until=until, timeout=A_DAY)

    await wait_until(bool)
    await host.delete(STORAGE_CLASSES, STANDARD)
    await wait_until(lambda each: each is None)
    await host.create(STORAGE_CLASSES, {**HOST_CLASS, "reclaimPolicy": "Retain"})
    await wait_until(lambda each: each is not None and each["reclaimPolicy"] == "Retain")
    await asyncio.sleep(400)


async def setup(manager: Manager, host: Transport) -> None:
    await build_twin_syncer(manager, host, wire)


def test_classes_reach_same_state_despite_faults(record_property: Callable[[str, object], None]) -> None:
    counts = is_about(STORAGE_CLASSES)
    name = "a class comes, changes and goes"
    report = perturb(
        Scenario(name, SERVED, setup, class_comes_changes_and_goes, CONFIG, others=[SERVED], counts=counts)
    )
    record_property("figure", f"perturbed storage classes: {report.cases} replays: {name}")
    report.check()
