"""Reclaim by a whole syncer: no twin outlasts its deadline by more than 30 seconds."""

import asyncio

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.ownership import MAX_GRACE_SECONDS
from tapestry.apis.policies import POLICIES
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.objects import Object, is_deleting, name_of, object_named
from tapestry.kube.resources import NODES, PODS
from tapestry.syncer.bottomup.reclaimer import Reclaimer
from tapestry.syncer.lease_cache import LeaseCache
from tapestry.syncer.offline_reclaim import OfflineReclaim

from .world import MOUNT, NODE, Gate, World, new_world

A_WEEK = 604800
GRACE = MAX_GRACE_SECONDS


def grace(obj: Object) -> int:
    found: int = obj["metadata"].get("deletionGracePeriodSeconds", -1)
    return found


async def set_kill_switch(world: World) -> None:
    await world.physical.patch(
        NODES, object_named("n1"), {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
    )


async def run_lasting_pod(world: World, **options: object) -> None:
    await world.run_pod(terminationGracePeriodSeconds=A_WEEK, **options)


async def wait_for_end_of_twin(world: World, timeout: float = 2) -> None:
    await world.wait_for_twin(lambda twin: 0 <= grace(twin) <= GRACE, timeout=timeout)


@in_virtual_time
async def test_kill_switch_shortens_grace_of_deleted_pod() -> None:
    world = await new_world()
    async with world.syncer():
        await run_lasting_pod(world)
        await world.delete_pod()
        await world.wait_for_twin(lambda twin: grace(twin) == A_WEEK)
        await set_kill_switch(world)
        await wait_for_end_of_twin(world)
        await world.wait_for_pod(lambda pod: grace(pod) == GRACE, timeout=2)
        assert await world.condition("DisruptionTarget") == ("True", "Reclaimed")
        deletes = len(world.up.writes("DELETE", "/pods/work")), len(world.down.writes("DELETE", "/pods/"))
        await asyncio.sleep(600)
        assert (len(world.up.writes("DELETE", "/pods/work")), len(world.down.writes("DELETE", "/pods/"))) == deletes


@pytest.mark.parametrize("finalizers", [[], ["example.com/keep"]], ids=["gone", "kept by a finalizer"])
@in_virtual_time
async def test_kill_switch_ends_twin_of_force_deleted_pod(finalizers: list[str]) -> None:
    world = await new_world()
    async with world.syncer():
        await run_lasting_pod(world, metadata={"finalizers": finalizers})
        await world.delete_pod(grace=0)
        await world.wait_for_twin(lambda twin: grace(twin) == A_WEEK)
        await set_kill_switch(world)
        await wait_for_end_of_twin(world)


@in_virtual_time
async def test_kill_switch_shortens_grace_of_deleted_twin() -> None:
    world = await new_world()
    async with world.syncer():
        await run_lasting_pod(world)
        await world.physical.delete(PODS, await world.twin())
        await asyncio.sleep(5)
        assert grace(await world.twin()) == A_WEEK
        await set_kill_switch(world)
        await wait_for_end_of_twin(world)


@in_virtual_time
async def test_window_deadline_shortens_grace_of_deleted_pods() -> None:
    terms = {"forceReclaim": True, "gracefulReclaimPeriodSeconds": 60}
    world = await new_world(policy={"timeWindows": [{"start": "00:00", "end": "00:10"}], **terms})
    async with world.syncer():
        await run_lasting_pod(world)
        await world.delete_pod()
        await asyncio.sleep(650)
        assert grace(await world.twin()) == A_WEEK
        await wait_for_end_of_twin(world, timeout=12)


@in_virtual_time
async def test_deleted_pod_keeps_grace_without_force() -> None:
    world = await new_world(policy={"timeWindows": [{"start": "00:00", "end": "00:10"}]})
    async with world.syncer():
        await run_lasting_pod(world)
        await world.delete_pod()
        await asyncio.sleep(3600)
        assert grace(await world.twin()) == A_WEEK


@in_virtual_time
async def test_deleted_pods_leave_while_virtual_api_is_unreachable() -> None:
    world = await new_world()
    async with world.syncer():
        await run_lasting_pod(world)
        await world.delete_pod()
        await world.wait_for_twin(lambda twin: grace(twin) == A_WEEK)
        world.up.cut()
        await set_kill_switch(world)
        await wait_for_end_of_twin(world, timeout=30)


@pytest.mark.parametrize("pod_grace", [None, 0], ids=["with grace", "by force"])
@in_virtual_time
async def test_former_leader_shortens_grace_of_deleted_twins(pod_grace: int | None) -> None:
    world = await new_world()
    async with world.syncer() as parts:
        await run_lasting_pod(world)
        await world.delete_pod(grace=pod_grace)
        await world.wait_for_twin(lambda twin: grace(twin) == A_WEEK)
        world.up.cut()
        unfenced = Client(parts.partition.transport, identity=parts.manager.identity)
        now, binding, caches = parts.manager.now, parts.current_binding, parts.caches
        leases = LeaseCache(binding, caches, parts.ledger, parts.shortages, parts.config, list, lambda: None)
        reclaimer = Reclaimer(parts.identity, binding, caches, parts.clients, now, {}, leases)
        elector, reads = parts.manager.elector, parts.manager.reads
        watch = OfflineReclaim(elector, reads, caches.virtual_nodes, now, reclaimer, unfenced)
        await set_kill_switch(world)
        await asyncio.sleep(0.01)
        await watch.reclaim_due()
        assert grace(await world.twin()) == GRACE


@in_virtual_time
async def test_forced_withdrawal_shortens_grace_of_deleted_pods() -> None:
    world = await new_world(policy={"forceReclaim": True, "gracefulReclaimPeriodSeconds": 5})
    async with world.syncer():
        await run_lasting_pod(world)
        await world.delete_pod(grace=0)
        await world.wait_for_twin(lambda twin: grace(twin) == A_WEEK)
        await world.virtual.delete(POLICIES, object_named("east-all"))
        await wait_for_end_of_twin(world, timeout=10)


@pytest.mark.parametrize("finalizers", [[], ["example.com/keep"]], ids=["gone", "kept by a finalizer"])
@in_virtual_time
async def test_kill_switch_shortens_grace_of_later_twin(finalizers: list[str]) -> None:
    world = await new_world(directScheduling=True)
    async with world.syncer():
        world.down.before = gate = Gate("POST", "/pods")
        await world.add_pod(terminationGracePeriodSeconds=A_WEEK, metadata={"finalizers": finalizers})
        await gate.reached()
        await world.delete_pod(grace=0)
        await set_kill_switch(world)
        await asyncio.sleep(5)
        gate.open()
        await wait_for_end_of_twin(world)


@in_virtual_time
async def test_unbinding_shortens_grace_of_deleting_twins() -> None:
    world = await new_world()
    async with world.syncer():
        await run_lasting_pod(world)
        place = await world.twin_ref()
        await world.delete_pod(grace=0)
        await world.wait_for_twin(lambda twin: grace(twin) == A_WEEK)
        await world.virtual.delete(CLUSTER_BINDINGS, object_named("east"))
        await wait_for(
            world.physical,
            PODS,
            name_of(place),
            MOUNT,
            until=lambda twin: bool(twin and is_deleting(twin) and grace(twin) == GRACE),
            timeout=10,
        )
        await world.physical.delete(PODS, place, grace_seconds=0)
        await wait_for(world.virtual, CLUSTER_BINDINGS, "east", until=lambda obj: obj is None, timeout=60)


@in_virtual_time
async def test_unbinding_unreachable_cluster_deletes_virtual_nodes() -> None:
    world = await new_world()
    async with world.syncer():
        await run_lasting_pod(world)
        world.down.cut()
        await world.virtual.delete(CLUSTER_BINDINGS, object_named("east"))
        await world.delete_pod(grace=0)
        await wait_for(world.virtual, NODES, NODE, until=lambda node: node is None, timeout=60)
        world.down.restore()
        await world.wait_for_twin(is_deleting)
        await world.stop()
        await wait_for(world.virtual, CLUSTER_BINDINGS, "east", until=lambda binding: binding is None, timeout=600)
