"""Status and metrics of a binding: leased amounts and last response, on virtual time."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

from prometheus_client import REGISTRY

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.policies import POLICIES
from tapestry.controller.testing import in_virtual_time, running_clock
from tapestry.inspect.queries import Queries
from tapestry.kube.objects import Object, object_named, value_at
from tapestry.kube.resources import LEASES, NAMESPACES, NODE_LEASE_NAMESPACE
from tapestry.kube.times import parse_time

from .world import MOUNT, NODE, World, new_world

SILENCE = 20.0


def metric(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"tapestry_{name}", {"binding": "east", **labels})


def cached(informer: str, resource: str) -> float | None:
    return REGISTRY.get_sample_value("tapestry_cached_objects", {"informer": informer, "resource": resource})


def age(moment: datetime | None) -> float:
    assert moment is not None
    return (running_clock().now() - moment).total_seconds()


async def binding_row(world: World) -> Any:
    """Return the binding as `tapestry status` shows it."""
    questions = Queries(world.virtual, lambda _: world.down.connect(), running_clock().now())
    (found,) = await questions.bindings()
    return found


async def status(world: World, *path: str) -> Any:
    return value_at(await world.virtual.get(CLUSTER_BINDINGS, "east"), "status", *path)


async def set_switch(world: World, value: str | None) -> None:
    await world.physical.patch(NAMESPACES, object_named(MOUNT), {"metadata": {"annotations": {keys.RECLAIM: value}}})
    await asyncio.sleep(5)


@in_virtual_time
async def test_last_seen_is_at_most_ten_seconds_old() -> None:
    world = await new_world("east")
    async with world.syncer("east", silence_seconds=SILENCE):
        await asyncio.sleep(20)
        written = len(world.up.writes("clusterbindings/east/status"))
        for _ in range(24):
            await asyncio.sleep(7)
            found = await binding_row(world)
            assert found.last_seen_exact
            assert age(found.last_seen) <= 15  # ten seconds of a Lease, plus the response before its renewal
            assert age(datetime.fromtimestamp(last_seen(), found.last_seen.tzinfo)) <= SILENCE / 4
        assert len(world.up.writes("clusterbindings/east/status")) == written


def last_seen() -> float:
    found = metric("physical_cluster_last_seen_timestamp_seconds")
    assert found is not None
    return found


@in_virtual_time
async def test_last_seen_stops_when_the_cluster_is_unreachable() -> None:
    world = await new_world("east")
    async with world.syncer("east", silence_seconds=SILENCE):
        await asyncio.sleep(33)
        world.down.cut()
        cut = running_clock().now()
        for waited in (12, 18, 60):
            await asyncio.sleep(waited)
            found = await binding_row(world)
            assert timedelta() <= cut - found.last_seen <= timedelta(seconds=15)
            assert cut.timestamp() - last_seen() <= SILENCE / 4
        assert await status(world, "lastSeen") == value_at(await lease(world), *LAST_SEEN)
        reported = next(each for each in await status(world, "conditions") if each["type"] == "Leasing")
        assert cut - parse_time(reported["message"].rpartition(" ")[2]) <= timedelta(seconds=SILENCE / 4 + 1)


LAST_SEEN = ("metadata", "annotations", keys.LAST_SEEN)


async def lease(world: World) -> Object:
    return await world.virtual.get(LEASES, NODE, NODE_LEASE_NAMESPACE)


@in_virtual_time
async def test_unreachable_metric_exists_from_the_start() -> None:
    world = await new_world("east")
    async with world.syncer("east", silence_seconds=SILENCE):
        assert metric("physical_cluster_unreachable") == 0
        world.down.cut()
        await asyncio.sleep(2 * SILENCE)
        assert metric("physical_cluster_unreachable") == 1
    assert metric("physical_cluster_unreachable") is None  # the syncer stopped and would never correct the value


@in_virtual_time
async def test_kill_switch_leases_nothing_but_keeps_allocatable() -> None:
    world = await new_world("east")
    async with world.syncer("east"):
        await asyncio.sleep(5)
        assert (await status(world, "leased"))["cpu"] == "4"
        await set_switch(world, keys.RECLAIM_NOW)
        assert (await status(world, "leased"))["cpu"] == "0"
        assert (await binding_row(world)).leased["cpu"] == "0"
        assert metric("leased", resource="cpu") == 0
        assert await world.allocatable() == "4"
        policy = await world.virtual.get(POLICIES, "east-all")
        assert (policy["status"]["nodes"], policy["status"].get("leased") or {}) == (0, {})
        questions = Queries(world.virtual, lambda _: world.down.connect(), running_clock().now())
        (listed,), _ = await questions.policies()
        assert (listed.state, listed.nodes, listed.leased) == ("Reclaimed", 0, {})
        (node,) = await questions.nodes()
        assert (node.state, node.leased["cpu"]) == ("Closed", "0")
        await set_switch(world, None)
        assert (await status(world, "leased"))["cpu"] == "4"
        assert metric("leased", resource="cpu") == 4


@in_virtual_time
async def test_closed_window_leases_nothing() -> None:
    now = running_clock().now()
    opens = (now + timedelta(minutes=3)).strftime("%H:%M")
    world = await new_world("east", policy={"timeWindows": [{"start": opens, "end": "24:00"}]})
    async with world.syncer("east"):
        await asyncio.sleep(5)
        assert ((await status(world, "leased"))["cpu"], await world.allocatable()) == ("0", "4")
        questions = Queries(world.virtual, lambda _: world.down.connect(), running_clock().now())
        (answer,) = await questions.node(NODE)
        assert [each.leased for each in answer.resources] == ["0"] * 3
        assert answer.next_change == parse_time(await status(world, "nextChange"))
        (policy,) = await questions.policy("east-all")
        assert (policy.nodes, policy.others, policy.leased) == ([], 1, {})
        await asyncio.sleep(200)
        assert (await status(world, "leased"))["cpu"] == "4"


@in_virtual_time
async def test_each_pod_counts_once_per_outcome() -> None:
    before = {outcome: count(*outcome) for outcome in OUTCOMES}
    world = await new_world("east")
    async with world.syncer("east"):
        assert metric("pods_total", outcome="mapped", reason="") is not None
        await world.run_pod("work")
        await world.add_pod("root", hostNetwork=True)
        await asyncio.sleep(30)
        await world.stop("work")
        await asyncio.sleep(30)
        found = {outcome: count(*outcome) - before[outcome] for outcome in OUTCOMES}
    assert found == dict.fromkeys(OUTCOMES, 1)


OUTCOMES = (("mapped", ""), ("refused", "PodSecurity"), ("failed", "PhysicalPodLost"))


def count(outcome: str, reason: str) -> float:
    return metric("pods_total", outcome=outcome, reason=reason) or 0


@in_virtual_time
async def test_each_cache_reports_its_size() -> None:
    world = await new_world("east")
    async with world.syncer("east"):
        await world.add_foreign_pod("shop", "n1")
        await world.add_foreign_pod("till", "n1")
        await world.run_pod("work")
        await asyncio.sleep(1)
        found = [cached(name, "pods") for name in ("virtual_pods", "physical_pods", "placeholders")]
        assert found == [1, 3, 0]
        assert [cached(name, "nodes") for name in ("virtual_nodes", "physical_nodes")] == [1, 1]
    assert cached("virtual_pods", "pods") is None
