"""Admission of pods to the leases of their nodes: twins, waiting pods and failures."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.policies import POLICIES
from tapestry.client.transport import Request
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import Invalid, KubeError, Timeout, TransportError
from tapestry.kube.objects import Object, is_deleting, labels_of, object_named, value_at
from tapestry.kube.resources import CONFIGMAPS, NODES, PODS

from ..world import MAPPED, NODE, Gate, World, has_condition, new_world, phase

ONE_CPU = {"cpu": "1"}
EVERYTHING = [{"operator": "Exists"}]
OUR_TAINT = [{"key": keys.OUT_OF_TIME_WINDOWS_TAINT, "operator": "Exists"}]
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}
MORNING = {"timeWindows": [{"start": "08:00", "end": "09:00"}]}
HOUR = 3600.0


async def add_bound_pod(world: World, name: str = "work", **options: Any) -> None:
    """Create a controlled pod and bind it like a scheduler."""
    await world.add_pod(name, node="", metadata={"ownerReferences": [OWNER]}, **options)
    await bind(world, name)


async def bind(world: World, name: str) -> None:
    target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
    binding = {"apiVersion": "v1", "kind": "Binding", **object_named(name, "default"), "target": target}
    await world.virtual.create(PODS, binding, subresource="binding")


async def set_switch(world: World, value: str | None) -> None:
    await world.physical.patch(NODES, object_named("n1"), {"metadata": {"annotations": {keys.RECLAIM: value}}})
    await asyncio.sleep(1)


async def change_policy(world: World, **spec: Any) -> None:
    await world.virtual.patch(POLICIES, object_named("east-all"), {"spec": spec})
    await asyncio.sleep(1)


async def message_of(world: World, name: str = "work", type: str = keys.ACCEPTED_CONDITION) -> str:
    found = find_condition(value_at(await world.pod(name), "status", "conditions"), type)
    assert found is not None
    text: str = found["message"]
    return text


async def resize(world: World, cpu: str, name: str = "work") -> None:
    patch = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}}
    await world.change_pod(patch, name, subresource="resize")


def cpu_of(twin: Object) -> str:
    found: str = twin["spec"]["containers"][0]["resources"]["requests"]["cpu"]
    return found


# -- a closed lease


@pytest.mark.parametrize("tolerations", [EVERYTHING, OUR_TAINT, []], ids=["everything", "our taint", "node name"])
@in_virtual_time
async def test_pod_waits_for_the_window_to_open(tolerations: list[Object]) -> None:
    world = await new_world(policy=MORNING)
    async with world.syncer():
        await world.add_pod(tolerations=tolerations)
        await world.add_pod("replica", tolerations=tolerations, metadata={"ownerReferences": [OWNER]})
        for name in ("work", "replica"):
            await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "OutOfTimeWindows"), name)
            assert "2024-01-01T08:00:00Z" in await message_of(world, name)
        await asyncio.sleep(7.9 * HOUR)
        assert await world.twins() == []
        assert len(world.up.writes("/pods/work/status")) == 1
        assert len(await world.events("OutOfTimeWindows")) == 2
        await asyncio.sleep(0.2 * HOUR)
        await world.wait_for_pod(MAPPED)
        await world.wait_for_pod(MAPPED, "replica")
        assert await world.condition(keys.ACCEPTED_CONDITION) is None


@in_virtual_time
async def test_scheduled_controlled_pod_fails_in_closed_window() -> None:
    world = await new_world(policy=MORNING)
    async with world.syncer():
        await add_bound_pod(world)
        await world.wait_for_pod(phase("Failed"))
        assert await world.phase_and_reason() == ("Failed", "OutOfTimeWindows")
        assert await world.condition("DisruptionTarget") == ("True", "OutOfTimeWindows")
        await add_bound_pod(world, "tolerant", tolerations=OUR_TAINT)
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "OutOfTimeWindows"), "tolerant")
        await asyncio.sleep(9 * HOUR)
        assert len(await world.twins()) == 1
        assert await world.phase_and_reason() == ("Failed", "OutOfTimeWindows")


@in_virtual_time
async def test_nothing_starts_while_kill_switch_is_on() -> None:
    world = await new_world()
    async with world.syncer():
        await set_switch(world, keys.RECLAIM_NOW)
        for number in range(3):
            await world.add_pod(f"p{number}", tolerations=EVERYTHING)
        await asyncio.sleep(HOUR)
        assert world.down.writes("POST", "/pods") == []
        assert await world.condition(keys.ACCEPTED_CONDITION, "p0") == ("False", "Reclaimed")
        assert len(await world.remaining_pods()) == 3
        await set_switch(world, None)
        for number in range(3):
            await world.wait_for_pod(MAPPED, f"p{number}", timeout=5)


@in_virtual_time
async def test_waiting_pods_survive_the_window_deadline() -> None:
    window = {"timeWindows": [{"start": "00:00", "end": "00:10"}], "forceReclaim": True}
    world = await new_world(policy=window)
    async with world.syncer():
        await world.run_pod()
        await asyncio.sleep(0.1 * HOUR)
        await world.add_pod("late", requests={"cpu": "1"}, tolerations=EVERYTHING)
        await world.wait_for_pod(MAPPED, "late")
        await asyncio.sleep(0.1 * HOUR)
        await world.add_pod("waiting", tolerations=EVERYTHING)
        await asyncio.sleep(HOUR)
        assert await world.remaining_pods() == ["waiting"]
        assert await world.condition(keys.ACCEPTED_CONDITION, "waiting") == ("False", "OutOfTimeWindows")


@in_virtual_time
async def test_withdrawn_node_is_deleted_with_waiting_pods() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod("before")
        await world.virtual.delete(POLICIES, object_named("east-all"))
        await asyncio.sleep(5)
        await world.add_pod("after", tolerations=EVERYTHING)
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "Withdrawn"), "after")
        await asyncio.sleep(HOUR)
        assert len(world.down.writes("POST", "/pods")) == 1
        await world.end("Succeeded", "before")
        await world.wait_until_pod_is_gone("after")
        await asyncio.sleep(10)
        assert await world.virtual.find(NODES, NODE) is None


@in_virtual_time
async def test_withdrawn_node_waits_for_last_twin() -> None:
    world = await new_world(directScheduling=True)
    async with world.syncer():
        await world.run_pod()
        await world.virtual.delete(POLICIES, object_named("east-all"))
        await asyncio.sleep(5)
        await world.change_pod({"status": {"phase": "Failed"}}, subresource="status")  # like the pod garbage collector
        await world.wait_for_twin(is_deleting)
        await asyncio.sleep(5)
        await world.stop()
        await asyncio.sleep(5)
        assert await world.virtual.find(NODES, NODE) is None


@in_virtual_time
async def test_lease_that_closes_during_copying_blocks_the_pod() -> None:
    world = await new_world()
    async with world.syncer():
        reference = [{"configMapRef": {"name": "settings"}}]
        container = {"name": "c", "image": "busybox:1", "envFrom": reference}
        await world.add_pod(containers=[container], tolerations=EVERYTHING)
        await asyncio.sleep(5)
        await set_switch(world, keys.RECLAIM_NOW)
        await world.virtual.create(CONFIGMAPS, {**object_named("settings", "default"), "data": {"a": "b"}})
        await asyncio.sleep(60)
        assert await world.twins() == []


# -- capacity


@in_virtual_time
async def test_pods_beyond_the_lease_fail_like_kubelet() -> None:
    world = await new_world()
    names = [f"p{number}" for number in range(7)]
    for name in names:
        await world.add_pod(name, requests=ONE_CPU)  # all of them exist when the syncer starts
    async with world.syncer():
        await asyncio.sleep(60)
        ended = [await world.phase_and_reason(name) for name in names]
        assert sorted(ended, key=str).count(("Failed", "OutOfcpu")) == 3
        assert len(await world.twins()) == 4
        assert await world.allocatable() == "4"


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ({"cpu": "5", "memory": "9Gi"}, "OutOfcpu"),
        ({"memory": "9Gi"}, "OutOfmemory"),
        ({"x.io/gpu": "1"}, "OutOfx.io/gpu"),
    ],
)
@in_virtual_time
async def test_too_large_pod_names_the_resource(requests: Object, reason: str) -> None:
    world = await new_world()
    async with world.syncer():
        await world.add_pod(
            containers=[{"name": "c", "image": "b", "resources": {"requests": requests, "limits": requests}}]
        )
        await world.wait_for_pod(phase("Failed"))
        assert await world.phase_and_reason() == ("Failed", reason)
        assert "leased" in (await world.pod())["status"]["message"]


@in_virtual_time
async def test_number_of_pods_is_limited() -> None:
    world = await new_world(policy={"resourceLimits": [{"resource": "pods", "quantity": 2}]})
    async with world.syncer():
        for number in range(3):
            await world.add_pod(f"p{number}")
        await asyncio.sleep(10)
        assert sorted([await world.phase_and_reason(f"p{n}") for n in range(3)], key=str)[0] == ("Failed", "OutOfpods")
        assert len(await world.twins()) == 2


@in_virtual_time
async def test_running_pods_count_after_restart() -> None:
    world = await new_world()
    async with world.syncer():
        for number in range(3):
            await world.run_pod(f"p{number}", requests=ONE_CPU)
    async with world.syncer():
        await world.add_pod("fits", requests=ONE_CPU)
        await world.wait_for_pod(MAPPED, "fits")
        await world.add_pod("not", requests=ONE_CPU)
        await world.wait_for_pod(phase("Failed"), "not")


@in_virtual_time
async def test_failed_pod_gets_no_twin_from_freed_capacity() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod("big", requests={"cpu": "4"})
        await world.add_pod(requests=ONE_CPU)
        await world.end("Succeeded", "big")
        await asyncio.sleep(60)
        ended, twins = await world.phase_and_reason(), len(world.down.writes("POST", "/pods"))
        assert (ended, twins) in [(("Failed", "OutOfcpu"), 1), (("Pending", None), 2)]


@in_virtual_time
async def test_ended_pods_free_capacity() -> None:
    world = await new_world()
    async with world.syncer():
        for number in range(10):
            await world.run_pod(f"p{number}", requests={"cpu": "4"})
            await world.end("Succeeded", f"p{number}")
            await world.wait_for_pod(phase("Succeeded"), f"p{number}")


@in_virtual_time
async def test_pod_waits_for_twin_of_force_deleted_pod() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod("old", requests={"cpu": "4"}, terminationGracePeriodSeconds=600)
        await world.delete_pod("old", grace=0)
        await world.wait_for_twin(lambda twin: "deletionTimestamp" in twin["metadata"], "old")
        await world.add_pod(requests=ONE_CPU)
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "CapacityPending"))
        assert len(await world.twins()) == 1
        await world.stop("old")
        await world.wait_for_pod(MAPPED)


@in_virtual_time
async def test_running_pods_stay_when_lease_shrinks() -> None:
    world = await new_world()
    async with world.syncer():
        for number in range(4):
            await world.run_pod(f"p{number}", requests=ONE_CPU)
        await world.add_foreign_pod("shop", "n1", requests={"cpu": "2"})
        await asyncio.sleep(60)
        assert len(await world.remaining_pods()) == 4
        await world.end("Succeeded", "p0")
        await world.wait_for_pod(phase("Succeeded"), "p0")
        await world.add_pod("more", requests=ONE_CPU)
        await world.wait_for_pod(phase("Failed"), "more")


@in_virtual_time
async def test_rejected_creation_releases_its_reservation() -> None:
    world = await new_world()
    async with world.syncer() as parts:
        world.down.rejection = lambda request: (
            Invalid(422, "Invalid", "no") if request.method == "POST" and b'"name":"work-' in request.body else None
        )
        await world.add_pod(requests={"cpu": "4"})
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "RefusedBelow"))
        assert dict(parts.ledger.held_amounts(NODE)) == {}
        await world.add_pod("other", requests={"cpu": "4"})
        await world.wait_for_pod(MAPPED, "other")
        await world.wait_for_pod(phase("Failed"))
        assert await world.phase_and_reason() == ("Failed", "OutOfcpu")


@in_virtual_time
async def test_pod_runs_after_unused_reservation_expires() -> None:
    world = await new_world()
    async with world.syncer():
        world.down.before = gate = Gate("POST", "/pods")
        await world.add_pod("old", requests={"cpu": "4"})
        await gate.reached()
        await world.delete_pod("old", grace=0)
        await world.add_pod(requests=ONE_CPU)
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "CapacityPending"))
        await asyncio.sleep(5)
        world.down.rejection = lambda request: (
            Invalid(422, "Invalid", "no") if request.method == "POST" and b'"name":"old-' in request.body else None
        )
        gate.open()
        await world.wait_for_pod(MAPPED, timeout=120)


@pytest.mark.parametrize(
    "error",
    [TransportError("lost", maybe_sent=True), Timeout(504, "Timeout", "slow")],
    ids=lambda error: type(error).__name__,
)
@in_virtual_time
async def test_unknown_outcome_keeps_reservation_for_a_while(error: KubeError) -> None:
    world = await new_world()

    async def fail(request: Request) -> None:
        if request.method == "POST" and request.path.endswith("/pods"):
            raise error

    async with world.syncer() as parts:
        world.down.before = fail
        await world.add_pod(requests=ONE_CPU)
        await asyncio.sleep(1)
        await change_policy(world, timeWindows=[{"start": "08:00", "end": "09:00"}])
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "OutOfTimeWindows"), timeout=600)
        assert str(parts.ledger.held_amounts(NODE)["cpu"]) == "1"
        assert parts.ledger.release_expired(NODE, parts.manager.now() + timedelta(minutes=1))
        assert dict(parts.ledger.held_amounts(NODE)) == {}


@in_virtual_time
async def test_pod_runs_if_lease_opens_before_taint() -> None:
    world = await new_world()
    async with world.syncer():
        world.up.before = gate = Gate("PATCH", f"/nodes/{NODE}")
        await world.physical.patch(NODES, object_named("n1"), {"metadata": {"labels": {"a": "b"}}})
        await gate.reached()
        await set_switch(world, keys.RECLAIM_NOW)
        await world.add_pod()
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "Reclaimed"))
        await set_switch(world, None)
        gate.open()
        await world.wait_for_pod(MAPPED)


# -- resize


@in_virtual_time
async def test_deferred_resize_is_done_when_it_fits() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod(requests=ONE_CPU)
        await world.run_pod("other", requests={"cpu": "2"})
        await resize(world, "3")
        await world.wait_for_pod(has_condition("PodResizePending", "True", "Deferred"))
        assert "requested 3, in use 2, leased 4" in await message_of(world, type="PodResizePending")
        await world.change_pod({"metadata": {"labels": {"a": "b"}}})
        twin = await world.wait_for_twin(lambda twin: labels_of(twin).get("a") == "b")
        assert cpu_of(twin) == "1"
        await asyncio.sleep(HOUR)
        writes = len(world.up.writes("/pods/work/status"))
        await asyncio.sleep(HOUR)
        assert len(world.up.writes("/pods/work/status")) == writes
        await world.end("Succeeded", "other")
        await world.wait_for_twin(lambda twin: cpu_of(twin) == "3")
        await asyncio.sleep(5)
        assert await world.condition("PodResizePending") is None


@in_virtual_time
async def test_infeasible_resize_clears_when_reverted() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod(requests=ONE_CPU)
        await resize(world, "9")
        await world.wait_for_pod(has_condition("PodResizePending", "True", "Infeasible"))
        assert cpu_of(await world.twin()) == "1"
        await resize(world, "2")
        await world.wait_for_twin(lambda twin: cpu_of(twin) == "2")
        await asyncio.sleep(5)
        assert await world.condition("PodResizePending") is None


@in_virtual_time
async def test_pod_grows_only_under_open_lease() -> None:
    world = await new_world(policy={"timeWindows": [{"start": "00:00", "end": "01:00"}]})
    async with world.syncer():
        await world.run_pod(requests={"cpu": "2"})
        await asyncio.sleep(1.5 * HOUR)
        await resize(world, "3")
        await world.wait_for_pod(has_condition("PodResizePending", "True", "Deferred"))
        assert cpu_of(await world.twin()) == "2"
        await resize(world, "1")
        await world.wait_for_twin(lambda twin: cpu_of(twin) == "1")


@in_virtual_time
async def test_concurrent_resizes_stay_within_lease() -> None:
    world = await new_world()
    async with world.syncer():
        for name in ("a", "b"):
            await world.run_pod(name, requests=ONE_CPU)
        for name in ("a", "b"):
            await resize(world, "3", name)
        await asyncio.sleep(60)
        assert sorted([cpu_of(await world.twin(name)) for name in ("a", "b")]) == ["1", "3"]


@in_virtual_time
async def test_resize_is_done_if_lease_opens_before_taint() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod(requests=ONE_CPU)
        world.up.before = gate = Gate("PATCH", f"/nodes/{NODE}")
        await world.physical.patch(NODES, object_named("n1"), {"metadata": {"labels": {"a": "b"}}})
        await gate.reached()
        await change_policy(world, timeWindows=[{"start": "08:00", "end": "09:00"}])
        await resize(world, "2")
        await world.wait_for_pod(has_condition("PodResizePending", "True", "Deferred"))
        await change_policy(world, timeWindows=None)
        gate.open()
        await world.wait_for_twin(lambda twin: cpu_of(twin) == "2")


@in_virtual_time
async def test_pending_resize_is_reported_after_restart() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod(requests=ONE_CPU)
        await resize(world, "9")
        await world.wait_for_pod(has_condition("PodResizePending", "True", "Infeasible"))
    async with world.syncer():
        await asyncio.sleep(60)
        assert await world.condition("PodResizePending") == ("True", "Infeasible")
        assert cpu_of(await world.twin()) == "1"
