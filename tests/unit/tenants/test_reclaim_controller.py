"""Reclaim of the twins of tenants without a running syncer: kill switches, windows, and twins without a node."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.ownership import MAX_GRACE_SECONDS
from tapestry.apis.policies import POLICIES
from tapestry.controller.testing import in_virtual_time, running_clock
from tapestry.kube.objects import Object, is_deleting, object_named, uid_of
from tapestry.kube.resources import EVENTS, NAMESPACES, PODS
from tapestry.tenants.host_connection import SHARED_NAMESPACE
from tapestry.tenants.tenant_controller import plane_of

from .tenant_world import (
    TenantProcess,
    TenantWorld,
    has_phase,
    new_world,
)

MINUTE = 60.0
A_WEEK = 7 * 24 * 3600
RECLAIM_NOW = {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
FORCED = {"forceReclaim": True, "gracefulReclaimPeriodSeconds": 120}
AT_FIRST = {"timeWindows": [{"start": "00:00", "end": "00:20"}]}
PLACEMENTS = pytest.mark.parametrize("placement", ["host", "virtual"])


@asynccontextmanager
async def running_pod(
    placement: str = "host", *, policy: Object | None = None, **spec: Any
) -> AsyncIterator[TenantWorld]:
    """Run a pod of a tenant, and enter when its process has ended."""
    world = await new_world("blue", policy=policy, placement=placement)
    async with world.process():
        await world.wait_until_ready()
        await run_pod(world, placement, **spec)
    yield world


async def run_pod(world: TenantWorld, placement: str, name: str = "work", plane: str = "blue", **spec: Any) -> None:
    if placement == "host":
        await world.run_pod(name, plane=plane, **spec)
        return
    await world.add_pod(name, plane, nodeName=await world.wait_for_node("n1", plane), **spec)
    await world.wait_for_twin(name=name, plane=plane)
    await world.place("n1", name, plane)
    await world.start(name, plane)
    await world.wait_for_pod(has_phase("Running"), name, plane)


def other_process() -> TenantProcess:
    """Return a process that holds no plane."""
    return TenantProcess(is_responsible=lambda _: False, holds_planes=False)


async def sleep_until(minutes: float) -> None:
    """Sleep until a time after midnight, when the clock of the test started."""
    await asyncio.sleep(minutes * MINUTE - running_clock().monotonic())


async def set_kill_switch(world: TenantWorld, where: str) -> None:
    if where == "node":
        await world.change_node("n1", RECLAIM_NOW)
    elif where == "namespace":
        await world.host.patch(NAMESPACES, object_named(await world.namespace()), RECLAIM_NOW)
    else:
        await world.host.patch(NAMESPACES, object_named(SHARED_NAMESPACE), RECLAIM_NOW)


# -- kill switches


@pytest.mark.parametrize("where", ["node", "namespace", "all tenants"])
@PLACEMENTS
@in_virtual_time
async def test_kill_switch_deletes_twins_within_two_seconds(placement: str, where: str) -> None:
    async with running_pod(placement, terminationGracePeriodSeconds=A_WEEK) as world, world.process(other_process()):
        await world.host.create(NAMESPACES, object_named(SHARED_NAMESPACE))
        await asyncio.sleep(MINUTE)
        assert not is_deleting(await world.twin())
        await set_kill_switch(world, where)
        twin = await world.wait_for_twin(is_deleting, timeout=2)
        assert twin["metadata"]["deletionGracePeriodSeconds"] == MAX_GRACE_SECONDS
        [event] = [each for each in await world.management.list(EVENTS) if each["reason"] == "Reclaimed"]
        assert event["involvedObject"]["name"] == "blue"


@in_virtual_time
async def test_kill_switch_shortens_grace_of_deleted_twin() -> None:
    async with running_pod(terminationGracePeriodSeconds=A_WEEK) as world, world.process(other_process()):
        await world.host.delete(PODS, await world.twin())
        await asyncio.sleep(5)
        assert (await world.twin())["metadata"]["deletionGracePeriodSeconds"] == A_WEEK
        await set_kill_switch(world, "node")
        await world.wait_for_twin(
            lambda twin: twin["metadata"]["deletionGracePeriodSeconds"] == MAX_GRACE_SECONDS, timeout=2
        )


@in_virtual_time
async def test_kill_switch_works_without_management_api() -> None:
    async with running_pod() as world, world.process(other_process()):
        await asyncio.sleep(1)
        world.up.cut()
        await set_kill_switch(world, "node")
        await world.wait_for_twin(is_deleting, timeout=2)


@in_virtual_time
async def test_kill_switch_of_other_node_changes_nothing() -> None:
    async with running_pod() as world, world.process(other_process()):
        await world.change_node("n2", RECLAIM_NOW)
        await asyncio.sleep(10 * MINUTE)
        assert not is_deleting(await world.twin())


@in_virtual_time
async def test_two_processes_delete_a_twin_once() -> None:
    async with running_pod() as world, world.process(other_process()), world.process(other_process()):
        await set_kill_switch(world, "node")
        await world.wait_for_twin(is_deleting, timeout=2)
        await asyncio.sleep(MINUTE)
        events = [each for each in await world.management.list(EVENTS) if each["reason"] == "Reclaimed"]
        assert len(events) <= 2
        assert 1 <= len(world.down.writes("DELETE", "/pods/")) <= 2


# -- windows


@PLACEMENTS
@in_virtual_time
async def test_twins_end_at_deadline_of_window(placement: str) -> None:
    async with running_pod(placement, policy={**AT_FIRST, **FORCED}) as world, world.process(other_process()):
        await sleep_until(21.9)
        assert not is_deleting(await world.twin())
        await sleep_until(22.03)
        assert is_deleting(await world.twin())


@PLACEMENTS
@in_virtual_time
async def test_twins_finish_after_window_without_force(placement: str) -> None:
    async with running_pod(placement, policy=AT_FIRST) as world, world.process(other_process()):
        await sleep_until(12 * 60)
        assert not is_deleting(await world.twin())


@pytest.mark.parametrize("minutes", [5, 0], ids=["after the process", "before the process"])
@PLACEMENTS
@in_virtual_time
async def test_terms_of_deleted_policy_apply(placement: str, minutes: int) -> None:
    async with running_pod(placement, policy=FORCED) as world:
        if not minutes:
            await world.management.delete(POLICIES, object_named("east"))
        async with world.process(other_process()):
            await asyncio.sleep(minutes * MINUTE)
            if minutes:
                await world.management.delete(POLICIES, object_named("east"))
            await asyncio.sleep(1.9 * MINUTE)
            assert not is_deleting(await world.twin())
            await world.wait_for_twin(is_deleting, timeout=10)


@in_virtual_time
async def test_deleted_policy_without_force_reclaims_nothing() -> None:
    async with running_pod() as world, world.process(other_process()):
        await world.management.delete(POLICIES, object_named("east"))
        await asyncio.sleep(60 * MINUTE)
        assert not is_deleting(await world.twin())


@in_virtual_time
async def test_closed_policy_reclaims_excess_of_virtual_nodes() -> None:
    half, whole = ({"resourceLimits": [{"resource": "cpu", "percent": each}]} for each in (25, 100))
    async with running_pod("virtual", policy={**AT_FIRST, **FORCED, **whole}) as world:
        async with world.process():
            await world.wait_until_ready()
            resources = {"requests": {"cpu": "2"}}
            await world.management.create(POLICIES, {**object_named("rest"), "spec": {"cluster": "east", **half}})
            await asyncio.sleep(1)
            await run_pod(world, "virtual", "big", containers=[{"name": "c", "image": "i", "resources": resources}])
        async with world.process(other_process()):
            await sleep_until(21.9)
            assert not is_deleting(await world.twin("big"))
            await sleep_until(22.1)
            assert is_deleting(await world.twin("big"))
            assert not is_deleting(await world.twin("work"))


# -- twins without a node


@in_virtual_time
async def test_twin_without_node_is_deleted_and_comes_back() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        await world.add_pod()
        first = await world.wait_for_twin(timeout=60)
    async with world.process(other_process()):
        await asyncio.sleep(5)
        assert uid_of(await world.twin()) == uid_of(first)
        await world.wait_until_twin_is_gone()
        assert running_clock().monotonic() < 2 * MINUTE
    async with world.process():
        second = await world.wait_for_twin(timeout=60)
        assert uid_of(second) != uid_of(first)


@in_virtual_time
async def test_twin_placed_on_closed_node_never_runs() -> None:
    world = await new_world("blue", policy=AT_FIRST)
    async with world.process():
        await world.wait_until_ready()
        await world.add_pod()
        await world.wait_for_twin(timeout=60)
    await sleep_until(21)
    await world.place("n1")
    async with world.process(other_process()):
        await world.wait_for_twin(is_deleting, timeout=2)


# -- tenants with a syncer


@in_virtual_time
async def test_tenant_of_other_process_is_left_to_it() -> None:
    async with running_pod() as world:
        process = other_process()
        process.runs_elsewhere = lambda _: True
        async with world.process(process):
            await set_kill_switch(world, "node")
            await asyncio.sleep(MINUTE)
            assert not is_deleting(await world.twin())
            process.runs_elsewhere = lambda _: False
            process.recheck_reclaim(plane_of(await world.binding()))
            await world.wait_for_twin(is_deleting, timeout=2)


@in_virtual_time
async def test_host_is_not_watched_while_all_syncers_run() -> None:
    world = await new_world("blue")
    async with world.process() as process:
        await world.wait_until_ready()
        await world.run_pod()
        assert process.clusters is not None
        host = process.clusters.get("east")
        assert host is not None
        assert not host.connection.every_twin._views
        before = len(host.connection.nodes._views)
        process.is_responsible = lambda _: False
        process.recheck(plane_of(await world.binding()))
        await asyncio.sleep(1)
        assert host.connection.every_twin._views
        process.is_responsible = lambda _: True
        process.recheck(plane_of(await world.binding()))
        await asyncio.sleep(MINUTE)
        assert not host.connection.every_twin._views
        assert len(host.connection.nodes._views) == before


@in_virtual_time
async def test_twins_of_other_installations_are_not_touched() -> None:
    async with running_pod() as world:
        twin = await world.twin()
        labels = {**twin["metadata"]["labels"], keys.CLUSTER_BINDING_UID: "0b6c2d0e-0000-4000-8000-000000000000"}
        foreign = {"metadata": {**object_named("other", "default")["metadata"], "labels": labels}}
        await world.host.create(PODS, {**foreign, "spec": {"nodeName": "n1", "containers": twin["spec"]["containers"]}})
        forged = {"metadata": {**object_named("forged", "default")["metadata"], "labels": twin["metadata"]["labels"]}}
        await world.host.create(PODS, {**forged, "spec": {"nodeName": "n1", "containers": twin["spec"]["containers"]}})
        async with world.process(other_process()):
            await set_kill_switch(world, "node")
            await world.wait_for_twin(is_deleting, timeout=2)
            await asyncio.sleep(MINUTE)
            for name in ("other", "forged"):
                assert not is_deleting(await world.host.get(PODS, name, "default"))


# -- after the plane runs again


@PLACEMENTS
@in_virtual_time
async def test_reclaimed_pod_has_ended_when_its_plane_runs_again(placement: str) -> None:
    async with running_pod(placement) as world:
        async with world.process(other_process()):
            await set_kill_switch(world, "node")
            await world.wait_for_twin(is_deleting, timeout=2)
            await world.stop()
        async with world.process():
            pod = await world.wait_for_pod(has_phase("Failed"), timeout=60)
            assert pod["status"]["reason"] == "PhysicalPodLost"
            await asyncio.sleep(10 * MINUTE)
            assert await world.twins() == []


@in_virtual_time
async def test_policies_are_followed_as_they_change() -> None:
    """A policy that closes while no syncer runs reclaims from then on, and an owner's policy as well."""
    async with running_pod(policy=FORCED) as world, world.process(other_process()):
        await asyncio.sleep(5 * MINUTE)
        assert not is_deleting(await world.twin())
        await world.set_policy(gracefulReclaimPeriodSeconds=5, timeWindows=[{"start": "12:00", "end": "13:00"}])
        await world.wait_for_twin(is_deleting, timeout=8)


@in_virtual_time
async def test_invalid_binding_does_not_protect_its_pods() -> None:
    async with running_pod() as world:
        unknown = {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["x"]}]}
        await world.set_binding(nodeSelector={"nodeSelectorTerms": [unknown]})
        async with world.process(other_process()):
            await set_kill_switch(world, "namespace")
            await world.wait_for_twin(is_deleting, timeout=2)
