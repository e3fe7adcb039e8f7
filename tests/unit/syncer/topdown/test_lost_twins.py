"""Twins that are lost: what becomes of their pods, and what these say of it."""

import asyncio

import pytest

from tapestry.apis import keys
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.objects import is_deleting
from tapestry.kube.resources import PODS

from ..world import MAPPED, a_world, forbidden, nothing, phase, refusing


@in_virtual_time
async def test_a_pod_whose_twin_somebody_deleted_below_has_failed_when_the_twin_is_gone() -> None:
    world = await a_world()
    async with world.syncer():
        await world.run_pod()
        await world.physical.delete(PODS, await world.twin())
        await asyncio.sleep(10)
        assert (await world.ended())[0] == "Running"
        await world.stop()
        await world.wait_for_pod(phase("Failed"))
        assert await world.ended() == ("Failed", "PhysicalPodLost")
        await asyncio.sleep(3600)
        assert len(world.down.writes("POST", "/pods")) == 1
        assert len(await world.events("PhysicalPodLost")) == 1


@pytest.mark.parametrize(
    ("by", "reason"),
    [
        ("PreemptionByScheduler", "Preempted"),
        ("EvictionByEvictionAPI", "Evicted"),
        ("DeletionByTaintManager", "Evicted"),
        ("SomethingNew", "PhysicalPodLost"),
    ],
)
@pytest.mark.parametrize("at_once", [False, True], ids=["in time", "at once"])
@in_virtual_time
async def test_why_a_twin_was_disrupted_is_why_its_pod_failed(by: str, reason: str, at_once: bool) -> None:
    world = await a_world()
    async with world.syncer():
        await world.run_pod()
        if at_once:
            world.down.api.freeze()
        target = {"type": "DisruptionTarget", "status": "True", "reason": by, "lastTransitionTime": world.moment()}
        await world.set_twin_status(conditions=[target])
        await world.physical.delete(PODS, await world.twin())
        await asyncio.sleep(5)
        await world.stop()
        world.down.api.thaw()
        await world.wait_for_pod(phase("Failed"))
        assert await world.ended() == ("Failed", reason)


@in_virtual_time
async def test_a_pod_that_a_kubelet_evicted_failed_as_the_kubelet_says() -> None:
    world = await a_world()
    async with world.syncer():
        await world.run_pod()
        await world.set_twin_status(phase="Failed", reason="Evicted", message="The node was low on memory.")
        await world.wait_for_pod(phase("Failed"))
        assert await world.ended() == ("Failed", "Evicted")
        assert (await world.pod())["status"]["message"] == "The node was low on memory."


@in_virtual_time
async def test_rule_1_a_twin_that_lost_our_labels_is_a_stranger_and_its_pod_has_failed() -> None:
    world = await a_world()
    async with world.syncer():
        await world.run_pod()
        await world.set_twin({"metadata": {"labels": {keys.VIRTUAL_CLUSTER: None}}})
        await world.wait_for_pod(phase("Failed"))
        assert await world.ended() == ("Failed", "PhysicalPodLost")
        assert "is no longer ours" in (await world.pod())["status"]["message"]
        await world.delete_pod()
        await world.wait_until_pod_is_gone()
        [stranger] = await world.twins()
        assert not is_deleting(stranger)


@in_virtual_time
async def test_a_twin_that_ends_and_goes_at_once_has_ended_its_pod_as_it_ended_itself() -> None:
    """A cache may see both in one look, before anybody could show the first."""
    world = await a_world()
    async with world.syncer():
        await world.add_pod()
        await world.wait_for_pod(MAPPED)
        await world.start()
        world.down.api.freeze()
        await world.end("Succeeded")
        await world.stop()
        world.down.api.thaw()
        await asyncio.sleep(60)
        assert await world.ended() == ("Succeeded", None)
        assert len(world.down.writes("POST", "/pods")) == 1


@in_virtual_time
async def test_a_twin_that_came_and_went_before_its_pod_said_so_is_not_made_again() -> None:
    world = await a_world()
    async with world.syncer():
        world.up.refusal = refusing("PATCH", "/pods/work/status", forbidden("not now"))
        await world.add_pod()
        await world.wait_for_twin()
        await world.end("Succeeded")
        await asyncio.sleep(1)
        await world.stop()
        await asyncio.sleep(1)
        world.up.refusal = nothing
        await asyncio.sleep(600)
        assert await world.ended() == ("Succeeded", None)
        assert len(world.down.writes("POST", "/pods")) == 1
