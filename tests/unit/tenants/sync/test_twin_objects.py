"""The generic reconciler of twins, with disruption budgets as an example of a kind."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, Binding
from tapestry.apis.names import physical_name
from tapestry.client.client import Client
from tapestry.client.transport import Transport
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.testing import Scenario, in_virtual_time, perturb
from tapestry.kube.errors import Forbidden
from tapestry.kube.objects import Object, is_deleting, name_of, namespace_of, object_named, uid_of, value_at
from tapestry.kube.resources import DISRUPTION_BUDGETS
from tapestry.syncer.components import Syncer
from tapestry.syncer.translate.metadata import source_metadata
from tapestry.tenants.sync.twin_objects import NotSynced, TwinKind, wire_twin_kind

from ...syncer.world import A_DAY, SERVED, rejecting
from .twin_world import (
    CONFIG,
    MOUNT,
    TwinWorld,
    add_binding,
    build_twin_syncer,
    condition,
    is_about,
    new_twin_world,
    the_binding,
)

QUOTA = Forbidden(403, "Forbidden", "exceeded quota: tapestry")


def new_budget(name: str = "shop", minimum: int = 1, **spec: Any) -> Object:
    return {**object_named(name, "team-a"), "spec": {"minAvailable": minimum, "selector": {}, **spec}}


def desired_twin(budget: Object, binding: Binding) -> Object:
    if budget["spec"]["minAvailable"] == 0:
        raise NotSynced("TooSmall", "spec.minAvailable: it is 0")
    name = physical_name(binding.virtual_cluster, binding.uid, namespace_of(budget) or "", name_of(budget))
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": MOUNT, **source_metadata(budget, binding)},
        "spec": {
            "minAvailable": budget["spec"]["minAvailable"],
            "unhealthyPodEvictionPolicy": budget["spec"].get("unhealthyPodEvictionPolicy"),
            "selector": {"matchLabels": binding.owner_labels()},
        },
    }


def reported(_: Object, twin: Object | None) -> Object:
    return {"status": {"expectedPods": value_at(twin, "status", "expectedPods", default=0) if twin else 0}}


def needs_recreate(existing: Object, desired: Object) -> bool:
    """Treat a field as immutable."""
    return value_at(existing, "spec", "unhealthyPodEvictionPolicy") != value_at(
        desired, "spec", "unhealthyPodEvictionPolicy"
    )


def wire(syncer: Syncer) -> None:
    kind = TwinKind(DISRUPTION_BUDGETS, desired_twin, reported, needs_recreate, has_conditions=True)
    wire_twin_kind(syncer, "budgets", kind)


async def budget_of(world: TwinWorld, name: str = "shop") -> Object:
    return await world.plane.get(DISRUPTION_BUDGETS, name, "team-a")


async def change(world: TwinWorld, name: str = "shop", **spec: Any) -> None:
    await world.plane.patch(DISRUPTION_BUDGETS, object_named(name, "team-a"), {"spec": spec})
    await asyncio.sleep(1)


async def the_twin(world: TwinWorld) -> Object:
    [twin] = await world.twins(DISRUPTION_BUDGETS)
    return twin


@in_virtual_time
async def test_twin_follows_object_until_deleted() -> None:
    world = await new_twin_world()
    await world.plane.create(DISRUPTION_BUDGETS, new_budget())
    async with world.syncer(wire):
        twin = await the_twin(world)
        assert (await the_binding(world.plane)).owns(twin)
        assert twin["spec"]["minAvailable"] == 1
        await change(world, minAvailable=2)
        assert (await the_twin(world))["spec"]["minAvailable"] == 2
        await world.plane.delete(DISRUPTION_BUDGETS, object_named("shop", "team-a"))
        await asyncio.sleep(1)
        assert await world.twins(DISRUPTION_BUDGETS) == []


@in_virtual_time
async def test_unchanged_objects_cause_no_write() -> None:
    world = await new_twin_world()
    await world.plane.create(DISRUPTION_BUDGETS, new_budget())
    async with world.syncer(wire):
        pass
    writes = len(world.down.writes()), len(world.up.writes())
    async with world.syncer(wire):
        note = {"metadata": {"annotations": {"a": "b"}}}
        await world.plane.patch(DISRUPTION_BUDGETS, object_named("shop", "team-a"), note)
        await world.set_binding(unbindGraceSeconds=3)
        await asyncio.sleep(100)
        assert (len(world.down.writes()), len(world.up.writes())) == writes


@in_virtual_time
async def test_changed_or_deleted_twin_is_restored() -> None:
    world = await new_twin_world()
    await world.plane.create(DISRUPTION_BUDGETS, new_budget())
    async with world.syncer(wire):
        twin = await the_twin(world)
        await world.host.patch(DISRUPTION_BUDGETS, twin, {"spec": {"minAvailable": 7}})
        await asyncio.sleep(1)
        assert (await the_twin(world))["spec"]["minAvailable"] == 1
        await world.host.delete(DISRUPTION_BUDGETS, object_named(name_of(twin), MOUNT))
        await asyncio.sleep(1)
        assert uid_of(await the_twin(world)) != uid_of(twin)


@in_virtual_time
async def test_status_of_twin_reaches_object() -> None:
    world = await new_twin_world()
    await world.plane.create(DISRUPTION_BUDGETS, new_budget())
    async with world.syncer(wire):
        ref = object_named(name_of(await the_twin(world)), MOUNT)
        status = {"expectedPods": 5, "currentHealthy": 4, "desiredHealthy": 1, "disruptionsAllowed": 0}
        await world.host.patch(DISRUPTION_BUDGETS, ref, {"status": status}, subresource="status")
        await asyncio.sleep(1)
        assert value_at(await budget_of(world), "status", "expectedPods") == 5
        await change(world, minAvailable=0)
        assert value_at(await budget_of(world), "status", "expectedPods", default=0) == 0


@in_virtual_time
async def test_immutable_change_recreates_twin() -> None:
    world = await new_twin_world()
    await world.plane.create(DISRUPTION_BUDGETS, new_budget())
    async with world.syncer(wire):
        before = await the_twin(world)
        await change(world, unhealthyPodEvictionPolicy="AlwaysAllow")
        after = await the_twin(world)
        assert uid_of(after) != uid_of(before)
        assert after["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


@in_virtual_time
async def test_terminating_twin_is_replaced_when_gone() -> None:
    world = await new_twin_world()
    await world.plane.create(DISRUPTION_BUDGETS, new_budget())
    async with world.syncer(wire):
        before = await the_twin(world)
        ref = object_named(name_of(before), MOUNT)
        await world.host.patch(DISRUPTION_BUDGETS, ref, {"metadata": {"finalizers": ["example.com/wait"]}})
        await world.host.delete(DISRUPTION_BUDGETS, ref)
        await change(world, minAvailable=2)
        assert is_deleting(await the_twin(world))
        assert not world.down.writes("PATCH")
        await world.host.patch(DISRUPTION_BUDGETS, ref, {"metadata": {"finalizers": None}})
        await asyncio.sleep(1)
        after = await the_twin(world)
        assert (uid_of(after) != uid_of(before), after["spec"]["minAvailable"]) == (True, 2)


# -- objects without a twin


@in_virtual_time
async def test_object_without_twin_gets_event_and_condition() -> None:
    world = await new_twin_world()
    await world.plane.create(DISRUPTION_BUDGETS, new_budget(minimum=0))
    async with world.syncer(wire):
        assert await world.twins(DISRUPTION_BUDGETS) == []
        assert await world.events("TooSmall") == ["spec.minAvailable: it is 0"]
        assert condition(await budget_of(world), keys.SYNCED_CONDITION) == ("False", "TooSmall")
        await change(world, minAvailable=1)
        assert condition(await budget_of(world), keys.SYNCED_CONDITION) == ("True", "Synced")
        await change(world, minAvailable=0)
        assert await world.twins(DISRUPTION_BUDGETS) == []
        assert condition(await budget_of(world), keys.SYNCED_CONDITION) == ("False", "TooSmall")


@in_virtual_time
async def test_rejection_by_host_is_reported_and_retried() -> None:
    world = await new_twin_world()
    world.down.rejection = rejecting("POST", "/poddisruptionbudgets", QUOTA)
    await world.plane.create(DISRUPTION_BUDGETS, new_budget())
    async with world.syncer(wire):
        await asyncio.sleep(10)
        assert await world.events("HostRejected") == ["exceeded quota: tapestry"]
        assert condition(await budget_of(world), keys.SYNCED_CONDITION) == ("False", "HostRejected")
        world.down.rejection = lambda _: None
        await asyncio.sleep(300)
        assert condition(await budget_of(world), keys.SYNCED_CONDITION) == ("True", "Synced")


@in_virtual_time
async def test_deletion_of_twin_retries_rejected_objects() -> None:
    world = await new_twin_world()
    for name in ("first", "second"):
        await world.plane.create(DISRUPTION_BUDGETS, new_budget(name))
        if name == "first":
            async with world.syncer(wire):
                pass
            world.down.rejection = rejecting("POST", "/poddisruptionbudgets", QUOTA)
    async with world.syncer(wire):
        await asyncio.sleep(3600)
        world.down.rejection = lambda _: None
        await world.plane.delete(DISRUPTION_BUDGETS, object_named("first", "team-a"))
        await asyncio.sleep(1)
        assert condition(await budget_of(world, "second"), keys.SYNCED_CONDITION) == ("True", "Synced")


# -- safety


@in_virtual_time
async def test_foreign_object_with_name_of_twin_stays() -> None:
    world = await new_twin_world()
    await world.plane.create(DISRUPTION_BUDGETS, new_budget())
    name = name_of(desired_twin(new_budget(), await the_binding(world.plane)))
    await world.host.create(DISRUPTION_BUDGETS, {**new_budget(minimum=9), **object_named(name, MOUNT)})
    async with world.syncer(wire):
        assert (await the_twin(world))["spec"]["minAvailable"] == 9
        assert len(await world.events("NameTaken")) == 1
        await world.plane.delete(DISRUPTION_BUDGETS, object_named("shop", "team-a"))
        await asyncio.sleep(100)
        assert (await the_twin(world))["spec"]["minAvailable"] == 9


@pytest.mark.parametrize("label", [keys.CLUSTER_BINDING_UID, keys.VIRTUAL_CLUSTER])
@in_virtual_time
async def test_object_of_another_tenant_stays(label: str) -> None:
    world = await new_twin_world()
    other = desired_twin(new_budget(), await the_binding(world.plane))
    other["metadata"]["labels"][label] = "other"
    await world.host.create(DISRUPTION_BUDGETS, other)
    async with world.syncer(wire):
        await asyncio.sleep(100)
        assert len(await world.twins(DISRUPTION_BUDGETS)) == 1


@in_virtual_time
async def test_twin_stays_while_cache_lacks_object() -> None:
    world = await new_twin_world()
    await world.plane.create(DISRUPTION_BUDGETS, new_budget())
    async with world.syncer(wire) as syncer:
        twin = await the_twin(world)
        informer = syncer.manager.informer(DISRUPTION_BUDGETS)
        informer.store.remove("team-a/shop")
        await world.host.patch(DISRUPTION_BUDGETS, twin, {"metadata": {"annotations": {"a": "b"}}})
        await asyncio.sleep(1)
        assert uid_of(await the_twin(world)) == uid_of(twin)


@in_virtual_time
async def test_nothing_is_written_while_binding_is_deleted() -> None:
    world = await new_twin_world()
    finalizer = {"metadata": {"finalizers": [keys.TENANT_FINALIZER]}}
    await world.plane.patch(CLUSTER_BINDINGS, object_named("green"), finalizer)
    async with world.syncer(wire):
        await world.plane.delete(CLUSTER_BINDINGS, object_named("green"))
        await asyncio.sleep(1)
        await world.plane.create(DISRUPTION_BUDGETS, new_budget())
        await asyncio.sleep(1)
        assert await world.twins(DISRUPTION_BUDGETS) == []


# -- faults


async def twin_until(host: Client, name: str, until: Callable[[Object | None], bool]) -> Object | None:
    return await wait_for(host, DISRUPTION_BUDGETS, name, MOUNT, until=until, timeout=A_DAY)


async def budget_comes_and_goes(plane: Client, host: Client) -> None:
    await add_binding(plane)
    await plane.create(DISRUPTION_BUDGETS, new_budget())
    name, ref = name_of(desired_twin(new_budget(), await the_binding(plane))), object_named("shop", "team-a")
    await twin_until(host, name, bool)
    await plane.patch(DISRUPTION_BUDGETS, ref, {"spec": {"minAvailable": 3}})
    await twin_until(host, name, lambda twin: value_at(twin or {}, "spec", "minAvailable") == 3)
    await plane.delete(DISRUPTION_BUDGETS, ref)
    await twin_until(host, name, lambda twin: twin is None)
    await asyncio.sleep(400)


async def budget_is_recreated(plane: Client, host: Client) -> None:
    await add_binding(plane)
    await plane.create(DISRUPTION_BUDGETS, new_budget())
    name, ref = name_of(desired_twin(new_budget(), await the_binding(plane))), object_named("shop", "team-a")
    await twin_until(host, name, bool)
    await plane.patch(DISRUPTION_BUDGETS, ref, {"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}})
    await twin_until(host, name, lambda twin: bool(value_at(twin or {}, "spec", "unhealthyPodEvictionPolicy")))
    await plane.patch(DISRUPTION_BUDGETS, ref, {"spec": {"minAvailable": 0}})
    await twin_until(host, name, lambda twin: twin is None)
    await asyncio.sleep(400)


async def setup(manager: Manager, host: Transport) -> None:
    await build_twin_syncer(manager, host, wire)


SCENARIOS = [
    Scenario(name, SERVED, setup, world, CONFIG, others=[SERVED], counts=is_about(DISRUPTION_BUDGETS))
    for name, world in {
        "a budget comes and goes": budget_comes_and_goes,
        "a twin is recreated and not wanted any more": budget_is_recreated,
    }.items()
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_twins_reach_same_state_despite_faults(
    scenario: Scenario, record_property: Callable[[str, object], None]
) -> None:
    report = perturb(scenario)
    record_property("figure", f"perturbed twins: {report.cases} replays: {scenario.name}")
    report.check()
