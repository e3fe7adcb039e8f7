"""What a cache says may be old, and what does not answer may be well: no pod is run, failed or ended because of it."""

import asyncio

import pytest

from tapestry.apis import keys
from tapestry.client.options import PatchType
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import is_deleting, object_named, uid_of, value_at
from tapestry.kube.resources import NODES, PODS
from tapestry.syncer.context import SyncContext
from tapestry.syncer.topdown.orphans import CONFIRMATION_DELAY
from tapestry.syncer.topdown.pods import FRESH_POD_AGE

from ..world import MAPPED, NO_ROOM, World, a_world, phase, said

SILENCE = 20.0


async def look_again(site: SyncContext, seconds: int = 15) -> None:
    """Have every pod looked at again and again, by whatever the caches say."""
    for _ in range(seconds):
        for controller in site.manager.controllers:
            if controller.name in ("pods", "pod-status"):
                for key in ("default/work", *site.virtual_pods.store):
                    controller.queue.add(key)
        await asyncio.sleep(1)


def creations(world: World) -> int:
    return len(world.down.writes("POST", "/pods"))


# -- caches that are behind


@in_virtual_time
async def test_rule_2_a_virtual_cache_that_is_behind_runs_no_finished_pod_again() -> None:
    world = await a_world()
    async with world.syncer() as site:
        await world.add_pod()
        await world.wait_for_twin()
        world.up.api.freeze()  # nothing that is written above comes back from now on
        await asyncio.sleep(1)
        await world.end("Succeeded")
        await asyncio.sleep(1)
        await world.stop()
        await look_again(site)
        assert creations(world) == 1
        world.up.api.thaw()
        await asyncio.sleep(60)
        assert (await world.ended())[0] == "Succeeded"
        assert creations(world) == 1


@in_virtual_time
async def test_rule_2_a_virtual_cache_that_is_behind_runs_no_pod_that_is_gone() -> None:
    world = await a_world()
    await world.add_pod()
    await asyncio.sleep(FRESH_POD_AGE.total_seconds())
    async with world.syncer() as site:
        await world.wait_for_pod(MAPPED)
        world.up.api.freeze()
        await world.delete_pod(grace=0)
        await world.stop()
        await look_again(site)
        assert creations(world) == 1
        world.up.api.thaw()
        await asyncio.sleep(60)
        assert await world.twins() == []


@pytest.mark.parametrize("truth", ["mapped", "finished", "going", "replaced"])
@in_virtual_time
async def test_rule_2_a_pod_that_has_been_there_for_a_while_is_read_again_before_it_is_run(truth: str) -> None:
    """A process that has just begun to lead may know of less than the one before it did."""
    world = await a_world()
    async with world.syncer() as site:
        await world.add_pod()
        await world.wait_for_pod(MAPPED)
        waiting = {"phase": "Pending", "conditions": [], "types": [], "shown": ""}
        then = {**site.virtual_pods.store.get("default/work"), "status": waiting}
        await asyncio.sleep(FRESH_POD_AGE.total_seconds())
        if truth == "finished":
            await world.end("Succeeded")
            await world.wait_for_pod(phase("Succeeded"))
        if truth == "replaced":
            await world.delete_pod(grace=0)
            await asyncio.sleep(1)
    if truth != "replaced":
        await world.stop()
    else:
        await world.add_pod(hostNetwork=True)
    async with world.syncer() as site:
        await asyncio.sleep(1)
        world.up.api.freeze()
        if truth == "going":
            await world.delete_pod(grace=300)
        site.virtual_pods.store.put(then)
        await look_again(site)
        assert creations(world) == 1


@in_virtual_time
async def test_rule_2_a_pod_that_is_missing_from_a_cache_is_read_before_its_twin_goes() -> None:
    world = await a_world()
    async with world.syncer():
        await world.run_pod()
    async with world.syncer() as site:
        await asyncio.sleep(1)
        site.virtual_pods.store.remove("default/work")
        await look_again(site, int(3 * CONFIRMATION_DELAY.total_seconds()))
        assert not is_deleting(await world.twin())


@in_virtual_time
async def test_rule_2_a_twin_that_is_missing_from_a_cache_is_read_before_its_pod_fails_or_goes() -> None:
    world = await a_world()
    async with world.syncer() as site:
        await world.run_pod("work")
        await world.run_pod("going")
        world.down.api.freeze()
        for name in ("work", "going"):
            place = await world.twin_place(name)
            site.physical_pods.store.remove(f"{place['metadata']['namespace']}/{place['metadata']['name']}")
        await world.delete_pod("going", grace=300)
        await look_again(site)
        assert (await world.ended("work"))[0] == "Running"
        assert is_deleting(await world.pod("going"))
        assert is_deleting(await world.twin("going"))
        assert not is_deleting(await world.twin("work"))
        assert creations(world) == 2


@in_virtual_time
async def test_rule_2_a_physical_cache_that_is_behind_fails_no_pod_that_has_found_its_place() -> None:
    world = await a_world()
    async with world.syncer() as site:
        await world.add_pod()
        await world.wait_for_pod(MAPPED)
        await world.refuse_place(message=NO_ROOM)
        await asyncio.sleep(250)
        world.down.api.freeze()
        await world.start()
        await asyncio.sleep(100)
        await look_again(site)
        assert (await world.ended())[0] == "Pending"
        world.down.api.thaw()
        await world.wait_for_pod(phase("Running"))


@in_virtual_time
async def test_rule_2_a_namesakes_twin_goes_only_when_its_own_pod_is_gone() -> None:
    world = await a_world()
    async with world.syncer() as site:
        await world.run_pod()
        await asyncio.sleep(1)
        world.up.api.freeze()
        first = site.virtual_pods.store.get("default/work")
        assert first is not None
        older = {**first, "metadata": {**first["metadata"], "uid": "of an older pod"}}
        site.virtual_pods.store.put(older)
        await look_again(site)
        assert not is_deleting(await world.twin())
        assert creations(world) == 1


# -- clusters that do not answer


@in_virtual_time
async def test_rule_3_while_the_physical_cluster_is_silent_no_pod_fails_or_goes_and_no_twin_is_missed() -> None:
    world = await a_world()
    async with world.syncer(silence_seconds=SILENCE):
        for name in ("running", "going", "ends", "lost"):
            await world.run_pod(name)
        world.down.cut()
        await world.delete_pod("going")
        await world.add_pod("new")
        await world.end("Succeeded", "ends")
        await world.stop("lost")
        await asyncio.sleep(1800)
        assert [(await world.ended(name))[0] for name in ("running", "ends", "lost", "new")] == [
            *["Running"] * 3,
            "Pending",
        ]
        assert is_deleting(await world.pod("going"))
        assert not is_deleting(await world.twin("running"))
        world.down.mend()
        await world.wait_for_pod(phase("Succeeded"), "ends", timeout=400)
        await world.wait_for_pod(phase("Failed"), "lost", timeout=400)
        assert await world.ended("lost") == ("Failed", "PhysicalPodLost")
        await world.wait_for_pod(MAPPED, "new", timeout=400)
        await world.wait_for_twin(is_deleting, "going", timeout=400)
        assert (await world.ended("running"))[0] == "Running"


@in_virtual_time
async def test_rule_3_what_was_said_of_pods_during_the_silence_is_put_right_on_heal_and_not_before() -> None:
    world = await a_world()
    unready = {"type": "Ready", "status": "False", "reason": "NodeNotReady"}
    async with world.syncer(silence_seconds=SILENCE):
        for name in ("a", "b"):
            await world.run_pod(name)
        world.down.cut()
        await asyncio.sleep(2 * SILENCE)
        for name in ("a", "b"):  # as a node lifecycle controller does
            patch = {"status": {"conditions": [{**unready, "lastTransitionTime": world.moment()}]}}
            await world.virtual.patch(
                PODS, object_named(name, "default"), patch, type=PatchType.STRATEGIC, subresource="status"
            )
        await asyncio.sleep(600)
        assert [await world.condition("Ready", name) for name in ("a", "b")] == [("False", "NodeNotReady")] * 2
        world.down.mend()
        await asyncio.sleep(SILENCE)
        for name in ("a", "b"):
            ready = find_condition(value_at(await world.pod(name), "status", "conditions"), "Ready")
            assert ready["status"] == "True"


@in_virtual_time
async def test_rule_3_a_silent_virtual_cluster_ends_no_twin() -> None:
    world = await a_world()
    async with world.syncer():
        await world.run_pod()
        twin = await world.twin()
        world.up.cut()
        await asyncio.sleep(3600)
        assert await world.twin() == twin
        await world.set_twin_status(message="all is well")
        world.up.mend()
        await world.wait_for_pod(lambda pod: pod["status"].get("message") == "all is well", timeout=300)
        assert uid_of(await world.twin()) == uid_of(twin)


@pytest.mark.parametrize("direct", [True, False])
@in_virtual_time
async def test_nothing_new_goes_to_a_node_that_its_owner_cordoned_whatever_a_pod_tolerates(direct: bool) -> None:
    world = await a_world(directScheduling=direct)
    async with world.syncer():
        await world.run_pod("before")
        await world.physical.patch(NODES, object_named("n1"), {"spec": {"unschedulable": True}})
        await asyncio.sleep(5)
        await world.add_pod("after", tolerations=[{"operator": "Exists"}])
        await world.wait_for_pod(said(keys.ACCEPTED_CONDITION, "False", "Cordoned"), "after")
        assert [value_at(twin, "metadata", "annotations", keys.VIRTUAL_POD_NAME) for twin in await world.twins()] == [
            "before"
        ]
        await world.physical.patch(NODES, object_named("n1"), {"spec": {"unschedulable": None}})
        await world.wait_for_pod(MAPPED, "after")
