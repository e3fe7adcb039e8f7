"""Life of a pod between two clusters: mapping, status and end."""

import asyncio
from collections.abc import Callable

import pytest

from tapestry.apis import keys
from tapestry.client.options import PatchType
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import annotations_of, labels_of, name_of, namespace_of, uid_of, value_at
from tapestry.kube.resources import PODS

from ..world import INSUFFICIENT_CPU, MAPPED, MOUNT, World, new_world, phase


@in_virtual_time
async def test_bound_pod_has_one_recorded_twin() -> None:
    world = await new_world()
    async with world.syncer():
        pod = await world.add_pod()
        actual = await world.wait_for_pod(MAPPED)
        [twin] = await world.twins()
        assert find_condition(actual["status"]["conditions"], keys.MAPPED_CONDITION)["message"] == uid_of(twin)
        assert annotations_of(actual)[keys.PHYSICAL_POD_UID] == uid_of(twin)
        assert annotations_of(actual)[keys.PHYSICAL_POD_NAME] == name_of(twin)
        assert annotations_of(actual)[keys.PHYSICAL_POD_NAMESPACE] == namespace_of(twin) == MOUNT
        assert annotations_of(twin)[keys.VIRTUAL_POD_UID] == uid_of(pod)


@in_virtual_time
async def test_starting_a_pod_takes_three_writes() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        await asyncio.sleep(3600)
        assert world.up.writes("/pods/") == ["PATCH /api/v1/namespaces/default/pods/work/status"] * 2
        assert world.down.writes("/pods") == [f"POST /api/v1/namespaces/{MOUNT}/pods"]


@in_virtual_time
async def test_uncopied_twin_changes_cause_no_write() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        before = len(world.up.requests), len(world.down.requests)
        await world.set_twin({"metadata": {"annotations": {"owner/seen": "yes"}}})
        await world.set_twin_status(nominatedNodeName="n7")
        await asyncio.sleep(1)
        assert [request.method for request in world.up.requests[before[0] :] if "/pods" in request.path] == []
        assert [request.method for request in world.down.requests[before[1] :] if "/pods" in request.path] == []


@pytest.mark.parametrize("node", ["n1", "vnode-east-gone", "vnode-west-n1", "vnode-east-2-n1"])
@in_virtual_time
async def test_pod_on_another_node_gets_no_twin(node: str) -> None:
    world = await new_world()
    await world.add_pod("unbound", node="")
    async with world.syncer():
        await world.add_pod(node=node)
        await asyncio.sleep(60)
        assert await world.twins() == []
        assert world.up.writes("/pods/") == []
        await world.delete_pod()
        await asyncio.sleep(60)
        assert await world.remaining_pods() == ["unbound"]
        assert world.up.writes("/pods/") == []


@in_virtual_time
async def test_pod_seen_before_its_node_is_mapped() -> None:
    world = await new_world()
    await world.add_pod(node="vnode-east-n2")
    async with world.syncer():
        await asyncio.sleep(60)
        assert await world.twins() == []
        await world.add_node("n2")
        await world.wait_for_pod(MAPPED)


@in_virtual_time
async def test_safety_rule_1_bindings_never_touch_each_others_twins() -> None:
    world = await new_world("east", "west")
    async with world.syncer("east"), world.syncer("west"):
        for name in ("east", "west"):
            await world.add_pod(name, node=f"vnode-{name}-n1")
            await world.wait_for_pod(MAPPED, name)
        west = await world.twin("west", binding="west")
        await world.delete_pod("east")
        await asyncio.sleep(60)
        assert await world.remaining_pods() == ["west"]
        assert await world.twins() == [west]


@in_virtual_time
async def test_safety_rule_1_tenant_metadata_does_not_redirect_pod() -> None:
    world = await new_world()
    victim = await world.add_foreign_pod("victim", "n1")
    forged = {
        keys.PHYSICAL_POD_NAMESPACE: "default",
        keys.PHYSICAL_POD_NAME: "victim",
        keys.PHYSICAL_POD_UID: uid_of(victim),
        keys.VIRTUAL_POD_UID: "somebody",
    }
    async with world.syncer():
        pod = await world.add_pod(metadata={"annotations": forged, "labels": {keys.MANAGED_BY: "nobody"}})
        await world.wait_for_pod(MAPPED)
        twin = await world.twin()
        assert annotations_of(twin)[keys.VIRTUAL_POD_UID] == uid_of(pod)
        assert labels_of(twin)[keys.MANAGED_BY] == keys.TAPESTRY
        await world.delete_pod()
        await world.wait_until_pod_is_gone()
        assert await world.physical.get(PODS, "victim", "default") == victim


@in_virtual_time
async def test_safety_rule_9_twin_metadata_is_not_copied_back() -> None:
    world = await new_world()
    async with world.syncer():
        await world.add_pod(metadata={"labels": {"app": "web"}, "annotations": {"note": "mine"}})
        await world.wait_for_pod(MAPPED)
        await world.set_twin({"metadata": {"labels": {"app": "db", "more": "x"}, "annotations": {"note": "theirs"}}})
        await world.start()
        pod = await world.wait_for_pod(phase("Running"))
        assert labels_of(pod) == {"app": "web"}
        assert annotations_of(pod)["note"] == "mine"


@in_virtual_time
async def test_safety_rule_9_phase_never_goes_backwards() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        await world.end("Pending")
        await asyncio.sleep(10)
        assert (await world.phase_and_reason())[0] == "Running"
        await world.end("Failed")
        await world.wait_for_pod(phase("Failed"))
        await world.end("Running")
        await asyncio.sleep(10)
        assert (await world.phase_and_reason())[0] == "Failed"


@pytest.mark.parametrize("end", ["Succeeded", "Failed"])
@in_virtual_time
async def test_ended_pod_never_runs_again(end: str) -> None:
    world = await new_world()
    async with world.syncer():
        await world.add_pod()
        await world.wait_for_pod(MAPPED)
        await world.start()
        await world.end(end)
        await world.wait_for_pod(phase(end))
        await world.stop()
        await asyncio.sleep(3600)
        await world.change_pod({"metadata": {"labels": {"new": "label"}}})
        await asyncio.sleep(60)
    async with world.syncer():
        await asyncio.sleep(3600)
        assert (await world.phase_and_reason())[0] == end
        assert world.down.writes("POST", "/pods") == [f"POST /api/v1/namespaces/{MOUNT}/pods"]


@in_virtual_time
async def test_pod_is_ready_when_its_gates_are() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod(readinessGates=[{"conditionType": "lb/attached"}])
        assert await world.condition("Ready") == ("False", "ReadinessGatesNotReady")
        gate = {"type": "lb/attached", "status": "True", "lastTransitionTime": world.timestamp()}
        await world.virtual.patch(
            PODS, await world.pod(), {"status": {"conditions": [gate]}}, type=PatchType.STRATEGIC, subresource="status"
        )
        await asyncio.sleep(1)
        conditions = value_at(await world.pod(), "status", "conditions")
        assert find_condition(conditions, "Ready")["status"] == "True"
        assert find_condition(conditions, "lb/attached") == gate


async def running(world: World) -> None:
    await world.add_pod("running")
    await world.wait_for_pod(MAPPED, "running")
    await world.start("running")


async def finished(world: World) -> None:
    await world.add_pod("finished")
    await world.wait_for_pod(MAPPED, "finished")
    await world.end("Succeeded", "finished")


async def finished_and_deleted(world: World) -> None:
    await finished(world)
    await asyncio.sleep(1)
    await world.stop("finished")


async def lost(world: World) -> None:
    await world.add_pod("lost")
    await world.wait_for_pod(MAPPED, "lost")
    await world.stop("lost")


async def unschedulable(world: World) -> None:
    await world.add_pod("waiting")
    await world.wait_for_pod(MAPPED, "waiting")
    await world.mark_unschedulable("waiting", message=INSUFFICIENT_CPU)


async def rejected(world: World) -> None:
    await world.add_pod("privileged", hostNetwork=True)


async def system_pod(world: World) -> None:
    await world.add_pod("proxy", namespace="kube-system")


@pytest.mark.parametrize(
    "there_is", [running, finished, finished_and_deleted, lost, unschedulable, rejected, system_pod]
)
@in_virtual_time
async def test_restart_changes_no_pod(there_is: Callable[[World], object]) -> None:
    world = await new_world()
    async with world.syncer():
        await there_is(world)
        await asyncio.sleep(30)
    before = len(world.up.writes("/pods/")), len(world.down.writes("/pods"))
    async with world.syncer():
        await asyncio.sleep(60)
        assert (len(world.up.writes("/pods/")), len(world.down.writes("/pods"))) == before
