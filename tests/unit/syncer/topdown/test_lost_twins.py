"""Lost twins: the end of their pods and the reported reasons."""

import asyncio

import pytest

from tapestry.apis import keys
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.objects import is_deleting
from tapestry.kube.resources import PODS

from ..world import MAPPED, accept_all, forbidden, new_world, phase, rejecting


@in_virtual_time
async def test_pod_fails_when_its_twin_is_deleted() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        await world.physical.delete(PODS, await world.twin())
        await asyncio.sleep(10)
        assert (await world.phase_and_reason())[0] == "Running"
        await world.stop()
        await world.wait_for_pod(phase("Failed"))
        assert await world.phase_and_reason() == ("Failed", "PhysicalPodLost")
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
async def test_disruption_reason_becomes_failure_reason(by: str, reason: str, at_once: bool) -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        if at_once:
            world.down.api.freeze()
        target = {"type": "DisruptionTarget", "status": "True", "reason": by, "lastTransitionTime": world.timestamp()}
        await world.set_twin_status(conditions=[target])
        await world.physical.delete(PODS, await world.twin())
        await asyncio.sleep(5)
        await world.stop()
        world.down.api.thaw()
        await world.wait_for_pod(phase("Failed"))
        assert await world.phase_and_reason() == ("Failed", reason)


@in_virtual_time
async def test_kubelet_eviction_fails_pod_with_its_reason() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        await world.set_twin_status(phase="Failed", reason="Evicted", message="The node was low on memory.")
        await world.wait_for_pod(phase("Failed"))
        assert await world.phase_and_reason() == ("Failed", "Evicted")
        assert (await world.pod())["status"]["message"] == "The node was low on memory."


@in_virtual_time
async def test_safety_rule_1_twin_without_labels_is_lost() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        await world.set_twin({"metadata": {"labels": {keys.VIRTUAL_CLUSTER: None}}})
        await world.wait_for_pod(phase("Failed"))
        assert await world.phase_and_reason() == ("Failed", "PhysicalPodLost")
        assert "is no longer ours" in (await world.pod())["status"]["message"]
        await world.delete_pod()
        await world.wait_until_pod_is_gone()
        [foreign] = await world.twins()
        assert not is_deleting(foreign)


@in_virtual_time
async def test_finished_and_deleted_twin_finishes_its_pod() -> None:
    """A cache may see both changes at once, before the first was written."""
    world = await new_world()
    async with world.syncer():
        await world.add_pod()
        await world.wait_for_pod(MAPPED)
        await world.start()
        world.down.api.freeze()
        await world.end("Succeeded")
        await world.stop()
        world.down.api.thaw()
        await asyncio.sleep(60)
        assert await world.phase_and_reason() == ("Succeeded", None)
        assert len(world.down.writes("POST", "/pods")) == 1


@in_virtual_time
async def test_lost_twin_is_not_recreated_before_mapping() -> None:
    world = await new_world()
    async with world.syncer():
        world.up.rejection = rejecting("PATCH", "/pods/work/status", forbidden("not now"))
        await world.add_pod()
        await world.wait_for_twin()
        await world.end("Succeeded")
        await asyncio.sleep(1)
        await world.stop()
        await asyncio.sleep(1)
        world.up.rejection = accept_all
        await asyncio.sleep(600)
        assert await world.phase_and_reason() == ("Succeeded", None)
        assert len(world.down.writes("POST", "/pods")) == 1
