"""Pods that the physical cluster does not accept: waiting, conditions and failure."""

import asyncio
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.policies import POLICIES
from tapestry.apis.priorities import PRIORITY_CLASSES
from tapestry.client.transport import Request
from tapestry.client.watch import wait_for
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import ApiError, Invalid, NotFound, ServerError, Unavailable
from tapestry.kube.objects import object_named, value_at
from tapestry.kube.resources import NODES, PODS

from ..world import (
    INSUFFICIENT_CPU,
    MAPPED,
    NODE,
    World,
    accept_all,
    forbidden,
    has_condition,
    new_world,
    phase,
    rejecting,
)

FIVE_MINUTES = 300.0
TEN_MINUTES = 600.0
ONE_CPU = {"cpu": "1"}
OVER_QUOTA = forbidden('pods "work" is forbidden: exceeded quota: all, requested: cpu=1, used: cpu=4, limited: cpu=4')
NO_CLASS = forbidden('pods "work" is forbidden: no PriorityClass with name tapestry-leased was found')


def rejecting_pods(error: ApiError) -> Any:
    return rejecting("POST", "/pods", error)


async def fail_as_unschedulable(world: World, message: str = INSUFFICIENT_CPU) -> None:
    """Create a pod of one CPU that stays unschedulable for five minutes."""
    await world.add_pod(requests=ONE_CPU)
    await world.wait_for_pod(MAPPED)
    await world.mark_unschedulable(message=message)
    await world.wait_for_pod(phase("Failed"), timeout=FIVE_MINUTES + 10)


# -- unschedulable twins


@in_virtual_time
async def test_unschedulable_pod_fails_after_five_minutes() -> None:
    world = await new_world()
    async with world.syncer():
        await world.add_pod()
        await world.wait_for_pod(MAPPED)
        await world.mark_unschedulable()
        await asyncio.sleep(FIVE_MINUTES - 2)
        assert (await world.phase_and_reason())[0] == "Pending"
        await asyncio.sleep(4)
        assert await world.phase_and_reason() == ("Failed", "UnschedulableBelow")
        assert (await world.pod())["status"]["message"] == INSUFFICIENT_CPU
        assert await world.twins() == []
        await asyncio.sleep(3600)
        assert len(world.down.writes("POST", "/pods")) == 1
        assert len(await world.events("UnschedulableBelow")) == 1


@in_virtual_time
async def test_gated_twin_fails_pod_without_shrinking_lease() -> None:
    world = await new_world()
    async with world.syncer():
        await world.add_pod(requests=ONE_CPU)
        await world.wait_for_pod(MAPPED)
        gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gates"}
        await world.set_twin_status(conditions=[{**gated, "lastTransitionTime": world.timestamp()}])
        await world.wait_for_pod(has_condition("PodScheduled", "False", "SchedulingGatedBelow"))
        leased = await world.allocatable()
        await world.wait_for_pod(phase("Failed"), timeout=FIVE_MINUTES + 10)
        assert await world.phase_and_reason() == ("Failed", "SchedulingGatedBelow")
        assert await world.allocatable() == leased


@in_virtual_time
async def test_pod_scheduled_in_time_runs() -> None:
    world = await new_world()
    async with world.syncer():
        await world.add_pod()
        await world.wait_for_pod(MAPPED)
        await world.mark_unschedulable()
        await asyncio.sleep(FIVE_MINUTES - 2)
        await world.place()
        await asyncio.sleep(FIVE_MINUTES)
        assert (await world.phase_and_reason())[0] == "Pending"
        assert len(await world.twins()) == 1


@in_virtual_time
async def test_slow_physical_clock_does_not_shorten_timeout() -> None:
    world = await new_world()
    async with world.syncer():
        await world.add_pod()
        await world.wait_for_pod(MAPPED)
        old = {"type": "PodScheduled", "status": "False", "lastTransitionTime": "2023-12-31T00:00:00Z"}
        await world.set_twin_status(conditions=[old])
        await asyncio.sleep(FIVE_MINUTES - 2)
        assert (await world.phase_and_reason())[0] == "Pending"
        await asyncio.sleep(4)
        assert await world.phase_and_reason() == ("Failed", "UnschedulableBelow")


@in_virtual_time
async def test_lease_shrinks_for_ten_minutes_after_shortage() -> None:
    world = await new_world()
    async with world.syncer():
        await fail_as_unschedulable(world)
        await asyncio.sleep(1)
        assert (await world.allocatable("cpu"), await world.allocatable("pods")) == ("3", "109")
        await asyncio.sleep(TEN_MINUTES - 20)
        assert await world.allocatable("cpu") == "3"
        await asyncio.sleep(20)
        assert (await world.allocatable("cpu"), await world.allocatable("pods")) == ("4", "110")


@in_virtual_time
async def test_limited_lease_shrinks_as_much() -> None:
    world = await new_world()
    policy = await world.virtual.get(POLICIES, "east-all")
    await world.virtual.patch(POLICIES, policy, {"spec": {"resourceLimits": [{"resource": "cpu", "quantity": "2"}]}})
    async with world.syncer():
        assert await world.allocatable("cpu") == "2"
        await fail_as_unschedulable(world)
        await asyncio.sleep(1)
        assert await world.allocatable("cpu") == "1"


@in_virtual_time
async def test_lease_recovers_when_foreign_requests_change() -> None:
    world = await new_world()
    await world.add_node("n2")
    foreign = await world.add_foreign_pod("shop", "n1", requests=ONE_CPU)
    async with world.syncer():
        assert await world.allocatable("cpu") == "3"
        await fail_as_unschedulable(world)
        await asyncio.sleep(1)
        assert await world.allocatable("cpu") == "2"
        await world.physical.patch(PODS, foreign, {"status": {"message": "well"}}, subresource="status")
        await world.add_foreign_pod("elsewhere", "n2", requests=ONE_CPU)
        await asyncio.sleep(1)
        assert await world.allocatable("cpu") == "2"
        await world.physical.delete(PODS, object_named("shop", "default"), grace_seconds=0)
        await asyncio.sleep(1)
        assert await world.allocatable("cpu") == "4"


@in_virtual_time
async def test_pod_specific_failure_shrinks_no_lease() -> None:
    world = await new_world()
    async with world.syncer():
        await fail_as_unschedulable(world, "0/1 nodes are available: 1 node(s) had untolerated taint {a: b}.")
        await asyncio.sleep(1)
        assert await world.allocatable("cpu") == "4"


@in_virtual_time
async def test_pod_shrinks_lease_once_despite_retries() -> None:
    world = await new_world()
    async with world.syncer():
        await world.add_pod(requests=ONE_CPU)
        await world.wait_for_pod(MAPPED)
        await world.mark_unschedulable()
        await asyncio.sleep(FIVE_MINUTES - 1)
        world.up.rejection = rejecting("PATCH", "/pods/work/status", forbidden("a webhook says no"))
        await asyncio.sleep(10)
        world.up.rejection = accept_all
        await world.wait_for_pod(phase("Failed"))
        await asyncio.sleep(1)
        assert await world.allocatable("cpu") == "3"


# -- rejected twins


@in_virtual_time
async def test_rejected_pod_fails_after_five_minutes_of_backoff() -> None:
    world = await new_world()
    world.down.rejection = rejecting_pods(Invalid(422, "Invalid", "spec.x: must be y"))
    async with world.syncer():
        await world.add_pod(requests=ONE_CPU)
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "RefusedBelow"))
        await asyncio.sleep(FIVE_MINUTES - 2)
        assert (await world.phase_and_reason())[0] == "Pending"
        await asyncio.sleep(4)
        assert await world.phase_and_reason() == ("Failed", "RefusedBelow")
        assert 5 <= len(world.down.writes("POST", "/pods")) <= 12


# -- quotas


@in_virtual_time
async def test_pod_waits_for_quota_indefinitely() -> None:
    world = await new_world()
    world.down.rejection = rejecting_pods(OVER_QUOTA)
    async with world.syncer() as parts:
        await world.add_pod(requests=ONE_CPU)
        pod = await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "QuotaExceeded"))
        assert "exceeded quota: all" in find_condition(pod["status"]["conditions"], keys.ACCEPTED_CONDITION)["message"]
        await asyncio.sleep(12 * FIVE_MINUTES)
        assert await world.phase_and_reason() == ("Pending", None)
        assert 5 <= len(world.down.writes("POST", "/pods")) <= 24
        assert len(world.up.writes("/pods/work/status")) == 1
        assert len(await world.events("QuotaExceeded")) == 1
        assert await world.allocatable("cpu") == "4"
        assert dict(parts.ledger.held_amounts(NODE)) == {}
        world.down.rejection = accept_all
        await world.wait_for_pod(MAPPED, timeout=FIVE_MINUTES + 1)
        await asyncio.sleep(5)
        assert await world.condition(keys.ACCEPTED_CONDITION) is None


@in_virtual_time
async def test_pods_over_quota_are_retried_when_twins_end() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod("first")
        world.down.rejection = rejecting_pods(OVER_QUOTA)
        names = [f"p{number}" for number in range(20)]
        for name in names:
            await world.add_pod(name)
            await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "QuotaExceeded"), name)
        await asyncio.sleep(12 * FIVE_MINUTES + 1)
        before = len(world.down.writes("POST", "/pods"))
        await world.end("Succeeded", "first")
        await asyncio.sleep(1)
        assert len(world.down.writes("POST", "/pods")) - before <= 2
        world.down.rejection = accept_all
        await world.stop("first")
        await asyncio.sleep(FIVE_MINUTES)
        assert len(await world.twins()) == 20


@in_virtual_time
async def test_equal_pods_over_quota_are_sent_once_a_second() -> None:
    world = await new_world()
    world.down.rejection = rejecting_pods(OVER_QUOTA)
    async with world.syncer():
        names = [f"p{number}" for number in range(30)]
        for name in names:
            await world.add_pod(name, requests={"cpu": "10m"})
        for name in names:
            await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "QuotaExceeded"), name)
        await asyncio.sleep(10)
        sent = len(world.down.writes("POST", "/pods"))
        assert sent <= 20
        await world.add_pod("other", requests={"cpu": "20m"})
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "QuotaExceeded"), "other", timeout=0.5)
        assert len(world.down.writes("POST", "/pods")) > sent
        world.down.rejection = accept_all
        await asyncio.sleep(60)
        assert len(await world.twins()) == 31


@in_virtual_time
async def test_pod_waiting_for_lease_does_not_block_quota() -> None:
    world = await new_world()
    await world.add_node("n2")
    async with world.syncer():
        await wait_for(world.virtual, NODES, "vnode-east-n2", until=bool, timeout=60)
        await world.run_pod("running", node="vnode-east-n2")
        world.down.rejection = rejecting_pods(OVER_QUOTA)
        await world.add_pod()
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "QuotaExceeded"))
        await world.add_pod("other", node="vnode-east-n2")
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "QuotaExceeded"), "other")
        await asyncio.sleep(2 * TEN_MINUTES)
        await world.physical.patch(NODES, object_named("n1"), {"spec": {"unschedulable": True}})
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "Cordoned"), timeout=FIVE_MINUTES + 1)
        world.down.rejection = accept_all
        await world.end("Succeeded", "running")
        await world.wait_for_pod(MAPPED, "other", timeout=5)


@in_virtual_time
async def test_temporarily_rejected_pod_runs_later() -> None:
    world = await new_world()
    world.down.rejection = rejecting_pods(OVER_QUOTA)
    async with world.syncer():
        await world.add_pod()
        await asyncio.sleep(100)
        world.down.rejection = accept_all
        await world.wait_for_pod(MAPPED, timeout=100)


@in_virtual_time
async def test_invalid_twin_shrinks_no_lease() -> None:
    world = await new_world()
    world.down.rejection = rejecting_pods(Invalid(422, "Invalid", "spec.x: must be y"))
    async with world.syncer():
        await world.add_pod(requests=ONE_CPU)
        await world.wait_for_pod(phase("Failed"), timeout=FIVE_MINUTES + 10)
        await asyncio.sleep(1)
        assert (await world.pod())["status"]["message"] == "spec.x: must be y"
        assert await world.allocatable("cpu") == "4"


@pytest.mark.parametrize(
    "error",
    [
        Unavailable(503, "ServiceUnavailable", "apiserver is shutting down"),
        ServerError(500, "InternalError", "etcdserver: request timed out"),
        ServerError(500, "InternalError", 'Internal error occurred: failed calling webhook "kyverno"'),
        forbidden('pods is forbidden: User "syncer" cannot create resource "pods" in API group ""', kind="pods"),
        forbidden(
            'pods "x" is forbidden: unable to create new content in namespace a because it is being terminated',
            kind="pods",
            name="x",
            causes=[{"reason": "NamespaceTerminating", "field": "metadata.namespace"}],
        ),
        NotFound(404, "NotFound", 'namespaces "leased" not found'),
    ],
    ids=lambda error: error.message[-12:],
)
@in_virtual_time
async def test_safety_rule_3_unrelated_errors_never_fail_the_pod(error: ApiError) -> None:
    world = await new_world()
    world.down.rejection = rejecting_pods(error)
    async with world.syncer():
        await world.add_pod()
        await asyncio.sleep(10 * FIVE_MINUTES)
        assert (await world.phase_and_reason())[0] == "Pending"
        world.down.rejection = accept_all
        await world.wait_for_pod(MAPPED, timeout=FIVE_MINUTES)


@in_virtual_time
async def test_missing_permissions_are_reported() -> None:
    world = await new_world()
    world.down.rejection = rejecting_pods(forbidden('User "syncer" cannot create resource "pods"', kind="pods"))
    async with world.syncer():
        await world.add_pod()
        pod = await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "NotPermitted"))
        assert "cannot create resource" in find_condition(pod["status"]["conditions"], keys.MAPPED_CONDITION)["message"]


@in_virtual_time
async def test_failure_of_the_physical_server_is_reported_and_retried() -> None:
    world = await new_world()
    message = 'Internal error occurred: failed calling webhook "pods.example"'
    world.down.rejection = rejecting_pods(ServerError(500, "InternalError", message))
    async with world.syncer():
        await world.add_pod()
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "PhysicalServerError"))
        world.down.rejection = accept_all
        await world.wait_for_pod(MAPPED, timeout=FIVE_MINUTES)


async def permission(world: World) -> tuple[str, str] | None:
    binding = await world.virtual.get(CLUSTER_BINDINGS, "east")
    found = find_condition(value_at(binding, "status", "conditions"), "Permitted")
    return (found["status"], found["reason"]) if found else None


def no_class_and(may_create: bool) -> Any:
    """Return a rejection of all pods, and of PriorityClasses unless we may create them."""

    def refusal(request: Request) -> ApiError | None:
        if request.method == "POST" and request.path.endswith("/priorityclasses") and not may_create:
            return forbidden('priorityclasses is forbidden: User "syncer" cannot create resource')
        return NO_CLASS if request.method == "POST" and request.path.endswith("/pods") else None

    return refusal


@in_virtual_time
async def test_missing_priority_class_is_reported_once(caplog: Any) -> None:
    world = await new_world()
    world.down.rejection = no_class_and(may_create=False)
    async with world.syncer():
        names = [f"p{number}" for number in range(50)]
        for name in names:
            await world.add_pod(name)
        await asyncio.sleep(5)
        assert await permission(world) == ("False", "PriorityClassMissing")
        await asyncio.sleep(10 * FIVE_MINUTES)
        assert {await world.phase_and_reason(name) for name in names} == {("Pending", None)}
        assert await world.condition(keys.MAPPED_CONDITION, "p0") == ("False", "NotPermitted")
        assert await world.twins() == []
        [event] = await world.events("PriorityClassMissing")
        assert event["involvedObject"]["kind"] == "ClusterBinding"
        assert "tapestry join" in event.get("message", "")
        assert len(world.down.writes("POST", "/pods")) <= 50 + 60
        assert len([record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]) <= 2
        world.down.rejection = accept_all
        await asyncio.sleep(65)
        assert len(await world.twins()) == 50
        await asyncio.sleep(5)
        assert await permission(world) == ("True", "Permitted")


@in_virtual_time
async def test_syncer_creates_its_priority_class() -> None:
    world = await new_world()

    async with world.syncer():
        world.down.rejection = no_class_and(may_create=True)
        await world.add_pod()
        created = await wait_for(world.physical, PRIORITY_CLASSES, keys.PRIORITY_CLASS, until=bool, timeout=5)
        assert created is not None
        assert (created["value"], created["preemptionPolicy"]) == (-10000, "Never")
        world.down.rejection = accept_all
        await world.wait_for_pod(MAPPED, timeout=5)
        assert await world.events("PriorityClassMissing") == []
        assert await permission(world) is None


@in_virtual_time
async def test_syncer_never_creates_the_bindings_priority_class() -> None:
    world = await new_world(podPriorityClassName="scavengers")
    world.down.rejection = no_class_and(may_create=True)
    async with world.syncer():
        await world.add_pod()
        await asyncio.sleep(5)
        assert await world.physical.list(PRIORITY_CLASSES) == []
        [event] = await world.events("PriorityClassMissing")
        assert "spec.podPriorityClassName" in event.get("message", "")
