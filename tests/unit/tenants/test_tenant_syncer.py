"""The syncer of a tenant with either placement: drained workloads, and safety rules of leased nodes."""

import asyncio

import pytest

from tapestry.apis import keys
from tapestry.apis.ownership import MAX_GRACE_SECONDS
from tapestry.client.transport import Request
from tapestry.controller.testing import in_virtual_time, running_clock
from tapestry.kube.objects import Object, is_deleting, object_named, uid_of
from tapestry.kube.resources import NAMESPACES, PODS
from tapestry.tenants.host_connection import SHARED_NAMESPACE

from .tenant_world import TenantWorld, condition, has_condition, has_phase, message, new_world

MINUTE = 60.0
PLACEMENTS = pytest.mark.parametrize("placement", ["host", "virtual"])
SUSPENDED = ("False", "Suspended")
RECLAIM_NOW = {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
AT_FIRST = {"timeWindows": [{"start": "00:00", "end": "00:20"}]}
LATER = {"timeWindows": [{"start": "00:20", "end": "01:00"}]}
FORCED = {"forceReclaim": True, "gracefulReclaimPeriodSeconds": 120}


async def add_pod(world: TenantWorld, placement: str, name: str = "work", **spec: object) -> None:
    """Create a pod, on the virtual node of `n1` if the plane schedules pods itself."""
    if placement == "virtual":
        spec["nodeName"] = await world.wait_for_node("n1")
    await world.add_pod(name, **spec)


async def start_pod(world: TenantWorld, name: str = "work") -> None:
    """Let the twin of a pod run on `n1`."""
    await world.wait_for_twin(lambda twin: not is_deleting(twin), name)
    await world.place("n1", name)
    await world.start(name)
    await world.wait_for_pod(has_phase("Running"), name)


async def sleep_until(minutes: float) -> None:
    """Sleep until a time after midnight, when the clock of the test started."""
    await asyncio.sleep(minutes * MINUTE - running_clock().monotonic())


# -- drained workloads


@PLACEMENTS
@in_virtual_time
async def test_drain_marks_each_pod_before_its_twin_is_deleted(placement: str) -> None:
    world = await new_world("blue", placement=placement)
    seen: list[Object] = []

    async def look(request: Request) -> None:
        if request.method == "DELETE":
            seen.append(await world.pod())

    async with world.process():
        await world.wait_until_ready()
        await add_pod(world, placement, terminationGracePeriodSeconds=600)
        await start_pod(world)
        world.down.before = look
        await world.set_binding(workloads="Drained", drainTimeoutSeconds=20)
        twin = await world.wait_for_twin(is_deleting, timeout=5)
        assert twin["metadata"]["deletionGracePeriodSeconds"] == 20
        [pod] = seen
        assert condition(pod, keys.MAPPED_CONDITION) == SUSPENDED
        assert pod["status"]["phase"] == "Pending"
        assert "podIP" not in pod["status"]
        await world.wait_until_twin_is_gone()  # without a kubelet: at last, it is deleted without grace
        await world.wait_for_binding(has_condition("Drained", "True", "Drained"), timeout=30)


@PLACEMENTS
@in_virtual_time
async def test_drain_does_not_extend_a_short_grace(placement: str) -> None:
    world = await new_world("blue", placement=placement)
    async with world.process():
        await world.wait_until_ready()
        await add_pod(world, placement, terminationGracePeriodSeconds=3)
        await start_pod(world)
        await world.set_binding(workloads="Drained", drainTimeoutSeconds=60)
        twin = await world.wait_for_twin(is_deleting, timeout=5)
        assert twin["metadata"]["deletionGracePeriodSeconds"] == 3


@PLACEMENTS
@in_virtual_time
async def test_drained_pods_run_again_with_the_same_uid(placement: str) -> None:
    """No object of the plane is deleted. The pods say why they wait, also to a new process, until they are resumed."""
    world = await new_world("blue", placement=placement)
    async with world.process():
        await world.wait_until_ready()
        await add_pod(world, placement)
        await start_pod(world)
        pod, twin = await world.pod(), await world.twin()
        await world.set_binding(workloads="Drained", drainTimeoutSeconds=5)
        await world.wait_for_twin(is_deleting)
        await world.stop()
        await world.wait_for_binding(has_condition("Drained", "True", "Drained"))
    async with world.process():
        await world.add_pod("new")
        await asyncio.sleep(10 * MINUTE)
        assert await world.twins() == []
        waiting = await world.pod()
        assert uid_of(waiting) == uid_of(pod)
        assert not is_deleting(waiting)
        assert condition(waiting, keys.MAPPED_CONDITION) == SUSPENDED
        assert "drained" in message(waiting, keys.MAPPED_CONDITION)
        assert world.plane_links["blue"].writes("DELETE", "/pods/") == []

        await world.set_binding(workloads="Run")
        again = await world.wait_for_twin(timeout=60)
        assert uid_of(again) != uid_of(twin)
        await start_pod(world)
        assert uid_of(await world.pod()) == uid_of(pod)
        assert condition(await world.pod(), keys.MAPPED_CONDITION) == ("True", "Mapped")


# -- nothing starts after a deadline or beyond a lease


@in_virtual_time
async def test_safety_rule_10_virtual_pod_starts_within_window() -> None:
    world = await new_world("blue", policy=LATER, placement="virtual")
    async with world.process():
        await world.wait_until_ready()
        await add_pod(world, "virtual")
        await sleep_until(19.9)
        assert await world.twins() == []
        await sleep_until(20.1)
        await world.wait_for_twin(timeout=2)


@PLACEMENTS
@in_virtual_time
async def test_safety_rule_10_forced_window_ends_twins_and_starts_none(placement: str) -> None:
    world = await new_world("blue", policy={**AT_FIRST, **FORCED}, placement=placement)
    async with world.process():
        await world.wait_until_ready()
        await add_pod(world, placement, terminationGracePeriodSeconds=600)
        await start_pod(world)
        await sleep_until(20.1)
        await add_pod(world, placement, "late")
        await sleep_until(21.9)
        assert [is_deleting(each) for each in await world.twins()] == [False]
        twin = await world.wait_for_twin(is_deleting, timeout=15)
        assert twin["metadata"]["deletionGracePeriodSeconds"] <= MAX_GRACE_SECONDS
        await world.stop()
        await asyncio.sleep(60 * MINUTE)
        assert await world.twins() == []


@pytest.mark.parametrize("where", ["node", "namespace", "all tenants"])
@in_virtual_time
async def test_safety_rule_10_virtual_kill_switch_ends_all_twins(where: str) -> None:
    world = await new_world("blue", placement="virtual")
    await world.host.create(NAMESPACES, object_named(SHARED_NAMESPACE))
    async with world.process():
        await world.wait_until_ready()
        await add_pod(world, "virtual", terminationGracePeriodSeconds=600)
        await start_pod(world)
        if where == "node":
            await world.change_node("n1", RECLAIM_NOW)
        else:
            name = SHARED_NAMESPACE if where == "all tenants" else await world.namespace()
            await world.host.patch(NAMESPACES, object_named(name), RECLAIM_NOW)
        await asyncio.sleep(2)
        assert [each["metadata"]["deletionGracePeriodSeconds"] for each in await world.twins()] == [MAX_GRACE_SECONDS]
        await world.stop()
        await add_pod(world, "virtual", "late")
        await asyncio.sleep(10 * MINUTE)
        assert await world.twins() == []


@PLACEMENTS
@in_virtual_time
async def test_safety_rule_10_deleted_pod_is_reclaimed_with_little_grace(placement: str) -> None:
    world = await new_world("blue", placement=placement)
    async with world.process():
        await world.wait_until_ready()
        await add_pod(world, placement, terminationGracePeriodSeconds=3600)
        await start_pod(world)
        await world.delete_pod()
        await world.wait_for_twin(is_deleting, timeout=5)
        assert (await world.twin())["metadata"]["deletionGracePeriodSeconds"] == 3600
        await world.change_node("n1", RECLAIM_NOW)
        await world.wait_for_twin(
            lambda twin: twin["metadata"]["deletionGracePeriodSeconds"] <= MAX_GRACE_SECONDS, timeout=2
        )


# -- other safety rules


@PLACEMENTS
@in_virtual_time
async def test_safety_rule_1_foreign_pod_with_the_twins_name_is_untouched(placement: str) -> None:
    world = await new_world("blue", placement=placement)
    async with world.process():
        await world.wait_until_ready()
        foreign = {**(await world.twin_ref()), "spec": {"containers": [{"name": "c", "image": "owner:1"}]}}
        before = await world.host.create(PODS, foreign)
        await add_pod(world, placement)
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "NameTaken"), timeout=60)
        await world.delete_pod(grace=0)
        await asyncio.sleep(10 * MINUTE)
        assert await world.twin() == before


@PLACEMENTS
@in_virtual_time
async def test_safety_rule_2_twin_without_pod_is_deleted_only_after_a_read(placement: str) -> None:
    world = await new_world("blue", placement=placement)
    async with world.process():
        await world.wait_until_ready()
        await add_pod(world, placement)
        await start_pod(world)
    await world.delete_pod(grace=0)
    world.plane_links["blue"].requests.clear()
    async with world.process():
        await world.wait_for_twin(is_deleting, timeout=10 * MINUTE)
        reads = [str(each) for each in world.plane_links["blue"].requests if each.method == "GET"]
        assert any(each.endswith("/pods/work") for each in reads)


@PLACEMENTS
@in_virtual_time
async def test_safety_rule_3_partition_deletes_nothing(placement: str) -> None:
    world = await new_world("blue", placement=placement)
    async with world.process():
        await world.wait_until_ready()
        await add_pod(world, placement)
        await start_pod(world)
        twin = uid_of(await world.twin())
        world.down.cut()
        await asyncio.sleep(30 * MINUTE)
        world.down.restore()
        await asyncio.sleep(5 * MINUTE)
        assert uid_of(await world.twin()) == twin
        assert not is_deleting(await world.twin())
        assert (await world.pod())["status"]["phase"] == "Running"


@PLACEMENTS
@in_virtual_time
async def test_safety_rule_9_phase_never_goes_backwards(placement: str) -> None:
    world = await new_world("blue", placement=placement)
    async with world.process():
        await world.wait_until_ready()
        await add_pod(world, placement)
        await start_pod(world)
        await world.set_twin_status(phase="Pending", podIP="127.0.0.1", message="x" * 100_000)
        await asyncio.sleep(10)
        status = (await world.pod())["status"]
        assert status["phase"] == "Running"
        assert status.get("podIP") != "127.0.0.1"
        assert len(status.get("message", "")) <= 4096


@pytest.mark.parametrize("mode", ["full", "lite"])
@in_virtual_time
async def test_safety_rule_6_privileged_pod_gets_no_twin(mode: str) -> None:
    world = await new_world("blue", isolation={"mode": mode})
    async with world.process():
        await world.wait_until_ready()
        privileged = {"name": "c", "image": "busybox:1", "securityContext": {"privileged": True}}
        await world.add_pod(containers=[privileged])
        await world.wait_for_pod(lambda each: "securityContext.privileged" in str(each["status"]), timeout=60)
        await asyncio.sleep(10 * MINUTE)
        assert await world.twins() == []
