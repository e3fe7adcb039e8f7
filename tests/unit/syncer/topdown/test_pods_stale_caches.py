"""Pods with stale caches or unreachable clusters: none is run, failed or ended because of them."""

import asyncio

import pytest

from tapestry.apis import keys
from tapestry.client.options import PatchType
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import is_deleting, object_named, uid_of, value_at, with_value
from tapestry.kube.resources import NODES, PODS
from tapestry.syncer.cache_transforms import virtual_pod
from tapestry.syncer.components import Syncer
from tapestry.syncer.topdown.orphans import CONFIRMATION_DELAY
from tapestry.syncer.topdown.pods import FRESH_POD_AGE

from ..world import INSUFFICIENT_CPU, MAPPED, World, has_condition, new_world, phase

SILENCE = 20.0


async def requeue_pods(parts: Syncer, seconds: int = 15) -> None:
    """Requeue every pod repeatedly."""
    for _ in range(seconds):
        for controller in parts.manager.controllers:
            if controller.name in ("pods", "pod-status"):
                for key in ("default/work", *parts.caches.virtual_pods.store):
                    controller.queue.add(key)
        await asyncio.sleep(1)


def creations(world: World) -> int:
    return len(world.down.writes("POST", "/pods"))


# -- stale caches


@in_virtual_time
async def test_safety_rule_2_stale_cache_reruns_no_finished_pod() -> None:
    world = await new_world()
    async with world.syncer() as parts:
        await world.add_pod()
        await world.wait_for_twin()
        world.up.api.freeze()  # the cache sees no writes from now on
        await asyncio.sleep(1)
        await world.end("Succeeded")
        await asyncio.sleep(1)
        await world.stop()
        await requeue_pods(parts)
        assert creations(world) == 1
        world.up.api.thaw()
        await asyncio.sleep(60)
        assert (await world.phase_and_reason())[0] == "Succeeded"
        assert creations(world) == 1


@in_virtual_time
async def test_safety_rule_2_stale_cache_runs_no_deleted_pod() -> None:
    world = await new_world()
    await world.add_pod()
    await asyncio.sleep(FRESH_POD_AGE.total_seconds())
    async with world.syncer() as parts:
        await world.wait_for_pod(MAPPED)
        world.up.api.freeze()
        await world.delete_pod(grace=0)
        await world.stop()
        await requeue_pods(parts)
        assert creations(world) == 1
        world.up.api.thaw()
        await asyncio.sleep(60)
        assert await world.twins() == []


@pytest.mark.parametrize("truth", ["mapped", "finished", "going", "replaced"])
@in_virtual_time
async def test_safety_rule_2_old_pod_is_read_before_it_runs(truth: str) -> None:
    """A new leader may know less than the previous one."""
    world = await new_world()
    async with world.syncer() as parts:
        await world.add_pod()
        await world.wait_for_pod(MAPPED)
        now = parts.caches.virtual_pods.store.get("default/work")
        assert now is not None
        then = virtual_pod({**now.object, "status": {"phase": "Pending"}})
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
    async with world.syncer() as parts:
        await asyncio.sleep(1)
        world.up.api.freeze()
        if truth == "going":
            await world.delete_pod(grace=300)
        parts.caches.virtual_pods.store.put("default/work", then)
        await requeue_pods(parts)
        assert creations(world) == 1


@in_virtual_time
async def test_safety_rule_2_missing_pod_is_read_before_twin_deletion() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
    async with world.syncer() as parts:
        await asyncio.sleep(1)
        parts.caches.virtual_pods.store.remove("default/work")
        await requeue_pods(parts, int(3 * CONFIRMATION_DELAY.total_seconds()))
        assert not is_deleting(await world.twin())


@in_virtual_time
async def test_safety_rule_2_missing_twin_is_read_before_pod_fails() -> None:
    world = await new_world()
    async with world.syncer() as parts:
        await world.run_pod("work")
        await world.run_pod("going")
        world.down.api.freeze()
        for name in ("work", "going"):
            place = await world.twin_ref(name)
            parts.caches.physical_pods.store.remove(f"{place['metadata']['namespace']}/{place['metadata']['name']}")
        await world.delete_pod("going", grace=300)
        await requeue_pods(parts)
        assert (await world.phase_and_reason("work"))[0] == "Running"
        assert is_deleting(await world.pod("going"))
        assert is_deleting(await world.twin("going"))
        assert not is_deleting(await world.twin("work"))
        assert creations(world) == 2


@in_virtual_time
async def test_safety_rule_2_stale_cache_fails_no_scheduled_pod() -> None:
    world = await new_world()
    async with world.syncer() as parts:
        await world.add_pod()
        await world.wait_for_pod(MAPPED)
        await world.mark_unschedulable(message=INSUFFICIENT_CPU)
        await asyncio.sleep(250)
        world.down.api.freeze()
        await world.start()
        await asyncio.sleep(100)
        await requeue_pods(parts)
        assert (await world.phase_and_reason())[0] == "Pending"
        world.down.api.thaw()
        await world.wait_for_pod(phase("Running"))


@in_virtual_time
async def test_safety_rule_2_stale_twin_waits_for_its_pods_deletion() -> None:
    world = await new_world()
    async with world.syncer() as parts:
        await world.run_pod()
        await asyncio.sleep(1)
        world.up.api.freeze()
        first = parts.caches.virtual_pods.store.get("default/work")
        assert first is not None
        older = with_value(first.object, ("metadata", "uid"), "of an older pod")
        parts.caches.virtual_pods.store.put("default/work", virtual_pod(older))
        await requeue_pods(parts)
        assert not is_deleting(await world.twin())
        assert creations(world) == 1


# -- unreachable clusters


@in_virtual_time
async def test_safety_rule_3_unreachable_physical_cluster_ends_nothing() -> None:
    world = await new_world()
    async with world.syncer(silence_seconds=SILENCE):
        for name in ("running", "going", "ends", "lost"):
            await world.run_pod(name)
        world.down.cut()
        await world.delete_pod("going")
        await world.add_pod("new")
        await world.end("Succeeded", "ends")
        await world.stop("lost")
        await asyncio.sleep(1800)
        assert [(await world.phase_and_reason(name))[0] for name in ("running", "ends", "lost", "new")] == [
            *["Running"] * 3,
            "Pending",
        ]
        assert is_deleting(await world.pod("going"))
        assert not is_deleting(await world.twin("running"))
        world.down.restore()
        await world.wait_for_pod(phase("Succeeded"), "ends", timeout=400)
        await world.wait_for_pod(phase("Failed"), "lost", timeout=400)
        assert await world.phase_and_reason("lost") == ("Failed", "PhysicalPodLost")
        await world.wait_for_pod(MAPPED, "new", timeout=400)
        await world.wait_for_twin(is_deleting, "going", timeout=400)
        assert (await world.phase_and_reason("running"))[0] == "Running"


@in_virtual_time
async def test_safety_rule_3_statuses_are_corrected_after_partition() -> None:
    world = await new_world()
    unready = {"type": "Ready", "status": "False", "reason": "NodeNotReady"}
    async with world.syncer(silence_seconds=SILENCE):
        for name in ("a", "b"):
            await world.run_pod(name)
        world.down.cut()
        await asyncio.sleep(2 * SILENCE)
        for name in ("a", "b"):  # like a node lifecycle controller
            patch = {"status": {"conditions": [{**unready, "lastTransitionTime": world.timestamp()}]}}
            await world.virtual.patch(
                PODS, object_named(name, "default"), patch, type=PatchType.STRATEGIC, subresource="status"
            )
        await asyncio.sleep(600)
        assert [await world.condition("Ready", name) for name in ("a", "b")] == [("False", "NodeNotReady")] * 2
        world.down.restore()
        await asyncio.sleep(SILENCE)
        for name in ("a", "b"):
            ready = find_condition(value_at(await world.pod(name), "status", "conditions"), "Ready")
            assert ready["status"] == "True"


@in_virtual_time
async def test_safety_rule_3_unreachable_virtual_cluster_ends_no_twin() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        twin = await world.twin()
        world.up.cut()
        await asyncio.sleep(3600)
        assert await world.twin() == twin
        await world.set_twin_status(message="all is well")
        world.up.restore()
        await world.wait_for_pod(lambda pod: pod["status"].get("message") == "all is well", timeout=300)
        assert uid_of(await world.twin()) == uid_of(twin)


@pytest.mark.parametrize("direct", [True, False])
@in_virtual_time
async def test_cordoned_node_takes_no_pods_despite_tolerations(direct: bool) -> None:
    world = await new_world(directScheduling=direct)
    async with world.syncer():
        await world.run_pod("before")
        await world.physical.patch(NODES, object_named("n1"), {"spec": {"unschedulable": True}})
        await asyncio.sleep(5)
        await world.add_pod("after", tolerations=[{"operator": "Exists"}])
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "Cordoned"), "after")
        assert [value_at(twin, "metadata", "annotations", keys.VIRTUAL_POD_NAME) for twin in await world.twins()] == [
            "before"
        ]
        await world.physical.patch(NODES, object_named("n1"), {"spec": {"unschedulable": None}})
        await world.wait_for_pod(MAPPED, "after")
