"""Draining of workloads: pods are marked, their twins end, and both come back."""

import asyncio
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.client.watch import wait_for
from tapestry.controller.testing import in_virtual_time, running_clock
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, is_deleting, uid_of, value_at
from tapestry.syncer.translate.pod_status import is_suspended

from ..world import INSUFFICIENT_CPU, MAPPED, NODE, Gate, World, has_condition, new_world, phase

SUSPENDED = has_condition(keys.MAPPED_CONDITION, "False", "Suspended")
TIMEOUT = 20


async def drain(world: World, **spec: Any) -> None:
    await world.set_binding(**{"workloads": "Drained", "drainTimeoutSeconds": TIMEOUT, **spec})


async def resume(world: World) -> None:
    await world.set_binding(workloads="Run")


async def restarted(world: World, name: str = "work", *, after: str) -> Object:
    """Wait for a twin other than the one with the UID `after`, and start it."""
    twin = await world.wait_for_twin(lambda twin: uid_of(twin) != after, name)
    await world.start(name)
    await world.wait_for_pod(phase("Running"), name)
    return twin


@in_virtual_time
async def test_drain_marks_pod_then_deletes_its_twin() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        before = await world.pod()
        world.down.requests.clear()
        await drain(world)
        pod = await world.wait_for_pod(SUSPENDED)
        assert (uid_of(pod), pod["spec"]["nodeName"]) == (uid_of(before), NODE)
        assert not is_deleting(pod)
        twin = await world.wait_for_twin(is_deleting)
        assert twin["metadata"]["deletionGracePeriodSeconds"] == TIMEOUT
        await world.stop()
        await asyncio.sleep(3600)
        assert (await world.twins(), len(world.down.writes("DELETE"))) == ([], 1)
        assert await world.phase_and_reason() == ("Pending", None)


@in_virtual_time
async def test_suspended_pod_looks_like_one_that_never_started() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        status = {"name": "c", "ready": True, "restartCount": 3, "image": "i", "imageID": "i", "state": {"running": {}}}
        await world.set_twin_status(containerStatuses=[status], hostIP="10.0.0.1", startTime=world.timestamp())
        await world.wait_for_pod(lambda pod: bool(pod["status"].get("containerStatuses")))
        await drain(world)
        pod = await world.wait_for_pod(SUSPENDED)
        assert {*pod["status"]} == {"phase", "conditions", "qosClass"}
        conditions = {each["type"]: each["status"] for each in pod["status"]["conditions"]}
        assert conditions == {"PodScheduled": "True", keys.MAPPED_CONDITION: "False"}
        assert keys.PHYSICAL_POD_UID not in (pod["metadata"].get("annotations") or {})


@in_virtual_time
async def test_resumed_pod_runs_again_as_same_pod() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod(restartPolicy="Never")
        before, twin = uid_of(await world.pod()), uid_of(await world.twin())
        await drain(world)
        await world.wait_for_twin(is_deleting)
        await world.stop()
        await asyncio.sleep(60)
        await resume(world)
        await restarted(world, after=twin)
        assert uid_of(await world.pod()) == before
        assert await world.condition(keys.MAPPED_CONDITION) == ("True", "Mapped")
        assert len(await world.twins()) == 1


@in_virtual_time
async def test_resume_during_drain_waits_for_old_twin() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        twin = uid_of(await world.twin())
        await drain(world)
        await world.wait_for_twin(is_deleting)
        await resume(world)
        await world.end("Failed")  # as containers that are terminated by a signal
        await asyncio.sleep(1)
        assert await world.phase_and_reason() == ("Pending", None)
        await world.stop()
        await restarted(world, after=twin)


@in_virtual_time
async def test_twin_that_does_not_end_is_deleted_without_grace() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        start = running_clock().now()
        await drain(world)
        await world.wait_until_twin_is_gone(timeout=3600)
        assert TIMEOUT <= (running_clock().now() - start).total_seconds() <= TIMEOUT + 6


@pytest.mark.parametrize(("own", "expected"), [(5, 5), (600, TIMEOUT)])
@in_virtual_time
async def test_grace_is_smaller_of_both(own: int, expected: int) -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod(terminationGracePeriodSeconds=own)
        await drain(world)
        twin = await world.wait_for_twin(is_deleting)
        assert twin["metadata"]["deletionGracePeriodSeconds"] == expected


@in_virtual_time
async def test_timeout_of_zero_ends_twins_at_once() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        await drain(world, drainTimeoutSeconds=0)
        await world.wait_until_twin_is_gone(timeout=2)


@in_virtual_time
async def test_terminated_pod_stays_terminated() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        await world.end()
        await world.wait_for_pod(phase("Succeeded"))
        await drain(world)
        await asyncio.sleep(60)
        await resume(world)
        await asyncio.sleep(60)
        assert (await world.phase_and_reason())[0] == "Succeeded"
        assert len(await world.twins()) == 1


@in_virtual_time
async def test_new_pod_gets_no_twin_while_drained() -> None:
    world = await new_world(workloads="Drained")
    async with world.syncer():
        await world.add_pod()
        pod = await world.wait_for_pod(SUSPENDED)
        condition = find_condition(pod["status"]["conditions"], keys.MAPPED_CONDITION)
        assert "drained" in condition["message"]
        await asyncio.sleep(1)
        [event] = await world.events("Suspended")
        assert event["message"] == condition["message"]
        await asyncio.sleep(3600)
        assert await world.twins() == []
        await resume(world)
        await world.wait_for_pod(MAPPED)


@in_virtual_time
async def test_twin_that_disappears_while_draining_is_not_lost() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        twin = uid_of(await world.twin())
    await world.stop()
    await drain(world)
    async with world.syncer():
        await world.wait_for_pod(SUSPENDED)
        await resume(world)
        await restarted(world, after=twin)


@in_virtual_time
async def test_twin_that_ended_before_its_deletion_ends_its_pod() -> None:
    world = await new_world()
    gate = Gate("PATCH", "/pods/work/status")
    async with world.syncer():
        await world.run_pod()
        world.up.before = gate
        await drain(world)
        await gate.reached()
        await world.end()  # while the pod is being marked
        gate.open()
        pod = await world.wait_for_pod(phase("Succeeded"))
        assert find_condition(pod["status"]["conditions"], keys.MAPPED_CONDITION)["status"] == "True"
        await asyncio.sleep(60)
        await resume(world)
        await asyncio.sleep(60)
        assert (await world.phase_and_reason())[0] == "Succeeded"


@in_virtual_time
async def test_status_during_termination_is_not_copied() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        await drain(world)
        await world.wait_for_twin(is_deleting)
        await world.end("Failed")
        await asyncio.sleep(1)
        assert await world.phase_and_reason() == ("Pending", None)
        await world.stop()
        await asyncio.sleep(60)
        assert await world.phase_and_reason() == ("Pending", None)


@in_virtual_time
async def test_deletion_of_pod_is_limited_by_drain() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod(terminationGracePeriodSeconds=3600)
        await world.delete_pod()
        await world.wait_for_twin(is_deleting)
        await drain(world)
        twin = await world.wait_for_twin(lambda twin: twin["metadata"]["deletionGracePeriodSeconds"] == TIMEOUT)
        assert is_deleting(twin)
        await world.wait_until_pod_is_gone()
        assert await world.twins() == []


@in_virtual_time
async def test_suspended_pod_can_be_deleted() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        await drain(world)
        await world.wait_for_twin(is_deleting)
        await world.stop()
        await world.delete_pod()
        await world.wait_until_pod_is_gone()


@in_virtual_time
async def test_drained_pods_stay_pending_after_restart() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        await drain(world)
        await world.wait_for_twin(is_deleting)
        await world.stop()
    async with world.syncer():
        await asyncio.sleep(3600)
        assert is_suspended(await world.pod())
        assert await world.twins() == []


@in_virtual_time
async def test_unscheduled_twin_is_drained_and_retried() -> None:
    world = await new_world()
    async with world.syncer():
        await world.add_pod()
        await world.wait_for_pod(MAPPED)
        await world.mark_unschedulable(message=INSUFFICIENT_CPU)
        await world.wait_for_pod(has_condition("PodScheduled", "False", "Unschedulable"))
        await drain(world)
        await world.wait_until_twin_is_gone()
        await world.wait_for_pod(SUSPENDED)
        await asyncio.sleep(3600)
        assert await world.phase_and_reason() == ("Pending", None)


@in_virtual_time
async def test_owner_finalizer_causes_no_endless_deletions() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        await world.set_twin({"metadata": {"finalizers": ["owner.example/wait"]}})
        await asyncio.sleep(1)
        world.down.requests.clear()
        await drain(world)
        await asyncio.sleep(3600)
        assert len(world.down.writes("DELETE")) == 2
        assert len(await world.twins()) == 1


@in_virtual_time
async def test_condition_of_binding_follows_the_drain() -> None:
    world = await new_world()

    async def wait_for_condition(status: str, reason: str) -> Object:
        binding = await wait_for(
            world.virtual, CLUSTER_BINDINGS, "east", until=has_condition("Drained", status, reason), timeout=10
        )
        found = find_condition(value_at(binding, "status", "conditions"), "Drained")
        assert found is not None
        assert found["observedGeneration"] == value_at(binding, "metadata", "generation")
        return found

    async with world.syncer():
        for name in ("work", "other"):
            await world.run_pod(name)
        await drain(world)
        condition = await wait_for_condition("False", "Draining")
        assert condition["message"].startswith("2 pods are left")
        for name in ("work", "other"):
            await world.wait_for_twin(is_deleting, name)
            await world.stop(name)
        await wait_for_condition("True", "Drained")
        await resume(world)
        await wait_for_condition("False", "Running")


@in_virtual_time
async def test_marked_pod_with_running_twin_is_mapped_again() -> None:
    """As after a process died between the mark and the deletion, and the workloads were resumed meanwhile."""
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        twin = uid_of(await world.twin())
    mark = {"type": keys.MAPPED_CONDITION, "status": "False", "reason": "Suspended", "message": "the workloads are..."}
    await world.change_pod({"status": {"phase": "Pending", "conditions": [mark]}}, subresource="status")
    async with world.syncer():
        pod = await world.wait_for_pod(MAPPED)
        assert find_condition(pod["status"]["conditions"], keys.MAPPED_CONDITION)["message"] == twin
        assert value_at(pod, "status", "phase") == "Running"
