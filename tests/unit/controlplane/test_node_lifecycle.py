"""What becomes of nodes that are not heard of, and of their pods."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.client.waiting import wait_for
from tapestry.controller import Manager
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controller.testing import InProcessApi, run, running_clock
from tapestry.controlplane import node_lifecycle
from tapestry.controlplane.node_lifecycle import (
    GRACE_PERIOD,
    desired_taints,
    has_relevant_change,
    taints_of,
    unknown_conditions,
)
from tapestry.controlplane.pod_deletion import eviction_time, needs_forced_deletion, surplus_pods
from tapestry.kube.conditions import find_condition, is_condition_true
from tapestry.kube.objects import Object, is_deleting, name_of, object_named, value_at
from tapestry.kube.resources import EVENTS, LEASES, NODES, PODS
from tapestry.kube.taints import NOT_READY, UNREACHABLE
from tapestry.kube.times import micro_timestamp, timestamp

NOW = datetime(2024, 1, 1, tzinfo=UTC)
THEN = timestamp(NOW - timedelta(hours=1))
CONFIG = ManagerConfig(name="nodes", metrics=Metrics(address=""), probes=Probes(address=""))
AN_HOUR = 3600.0


def a_node(name: str = "n", ready: str = "True", *taints: Object, zone: str = "", **spec: Any) -> Object:
    condition = {"type": "Ready", "status": ready, "reason": "KubeletReady", "lastHeartbeatTime": THEN}
    return {
        "metadata": {"name": name, "creationTimestamp": THEN, "labels": {"topology.kubernetes.io/zone": zone}},
        "spec": {**spec, **({"taints": list(taints)} if taints else {})},
        "status": {"conditions": [{**condition, "lastTransitionTime": THEN}]} if ready else {},
    }


def a_taint(key: str, effect: str = "NoExecute", added: datetime | None = None) -> Object:
    return {"key": key, "effect": effect, **({"timeAdded": timestamp(added)} if added else {})}


def a_pod(name: str = "p", on: str = "n", *tolerations: Object, **status: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": "x", "creationTimestamp": timestamp(NOW)},
        "spec": {"containers": [{"name": "c", "image": "i"}], "tolerations": list(tolerations), "nodeName": on},
        "status": status,
    }


def tolerating(key: str, seconds: int | None = None) -> Object:
    patience = {"effect": "NoExecute", "tolerationSeconds": seconds} if seconds is not None else {}
    return {"key": key, "operator": "Exists", **patience}


# -- pure


def test_what_was_said_becomes_unknown_and_what_never_was_is_said_so() -> None:
    found = {each["type"]: each for each in unknown_conditions(a_node(), NOW)}
    assert set(found) == {"Ready", "MemoryPressure", "DiskPressure", "PIDPressure"}
    assert found["Ready"]["status"] == "Unknown"
    assert found["Ready"]["reason"] == "NodeStatusUnknown"
    assert found["Ready"]["message"] == "Kubelet stopped posting node status."
    assert (found["Ready"]["lastHeartbeatTime"], found["Ready"]["lastTransitionTime"]) == (THEN, timestamp(NOW))
    assert found["DiskPressure"]["reason"] == "NodeStatusNeverUpdated"
    quiet = {**a_node(), "status": {"conditions": unknown_conditions(a_node(), NOW)}}
    assert unknown_conditions(quiet, NOW + GRACE_PERIOD) == quiet["status"]["conditions"]


@pytest.mark.parametrize(
    ("node", "expelled_by", "taints"),
    [
        (a_node(), None, []),
        (a_node("n", "False"), None, [(NOT_READY, "NoSchedule")]),
        (a_node("n", "Unknown"), UNREACHABLE, [(UNREACHABLE, "NoExecute"), (UNREACHABLE, "NoSchedule")]),
        (
            a_node("n", "Unknown", a_taint("own"), a_taint(NOT_READY)),
            None,
            [("own", "NoExecute"), (UNREACHABLE, "NoSchedule")],
        ),
        (a_node("n", "True", a_taint(UNREACHABLE), a_taint(UNREACHABLE, "NoSchedule")), None, []),
        (a_node("n", "True", unschedulable=True), None, [("node.kubernetes.io/unschedulable", "NoSchedule")]),
        (a_node("n", "True", a_taint("node.kubernetes.io/unschedulable", "NoSchedule")), None, []),
        (
            a_node("n", "True", a_taint("node.kubernetes.io/out-of-service")),
            None,
            [("node.kubernetes.io/out-of-service", "NoExecute")],
        ),
    ],
)
def test_the_taints_of_a_node(node: Object, expelled_by: str | None, taints: list[tuple[str, str]]) -> None:
    found = desired_taints(node, expelled_by, NOW)
    assert [(each["key"], each["effect"]) for each in found] == taints
    assert desired_taints({**node, "spec": {**node["spec"], "taints": found}}, expelled_by, NOW + GRACE_PERIOD) == found


@pytest.mark.parametrize(
    ("tolerations", "taints", "seconds"),
    [
        ([], [], None),
        ([], [a_taint("a", "NoSchedule")], None),
        ([], [a_taint("a")], 0),
        ([], [a_taint("a", added=NOW + timedelta(seconds=5))], 5),
        ([tolerating("a")], [a_taint("a")], None),
        ([tolerating("a", 30)], [a_taint("a")], 30),
        ([tolerating("a", 30)], [a_taint("a", added=NOW + timedelta(seconds=5))], 35),
        ([tolerating("a", 30)], [a_taint("a", added=NOW - timedelta(seconds=500))], 30),
        ([tolerating("a", 30), tolerating("a", 10)], [a_taint("a")], 10),
        ([tolerating("a", 30), tolerating("a")], [a_taint("a")], 30),
        ([tolerating("a", -5)], [a_taint("a")], 0),
        ([tolerating("a", 30)], [a_taint("a"), a_taint("b")], 0),
        ([tolerating("a", 30), tolerating("b")], [a_taint("a"), a_taint("b")], 30),
    ],
)
def test_when_taints_send_a_pod_away(tolerations: list[Object], taints: list[Object], seconds: int | None) -> None:
    due = NOW + timedelta(seconds=seconds) if seconds is not None else None
    assert eviction_time(a_pod("p", "n", *tolerations), taints) == due


def test_who_is_abandoned() -> None:
    gone = {**a_pod(), "metadata": {**a_pod()["metadata"], "deletionTimestamp": timestamp(NOW)}}
    nowhere = {**gone, "spec": {**gone["spec"], "nodeName": None}}
    dead = a_node("n", "Unknown", a_taint("node.kubernetes.io/out-of-service"))
    assert needs_forced_deletion(nowhere, None)
    assert needs_forced_deletion(gone, dead)
    assert not needs_forced_deletion(gone, a_node("n", "Unknown"))
    assert not needs_forced_deletion(gone, a_node("n", "True", a_taint("node.kubernetes.io/out-of-service")))
    assert not needs_forced_deletion(a_pod(), dead)


def test_too_many_that_are_over_go_evicted_and_oldest_first() -> None:
    pods = [a_pod(f"p{number}", phase="Failed") for number in range(4)]
    pods[2]["status"]["reason"] = "Evicted"
    pods[1]["metadata"]["creationTimestamp"] = THEN
    assert [name_of(each) for each in surplus_pods(pods, 2)] == ["p2", "p1"]
    assert surplus_pods(pods, 4) == []


def test_a_heartbeat_is_no_news() -> None:
    later = a_node()
    later["status"]["conditions"][0]["lastHeartbeatTime"] = timestamp(NOW)
    assert not has_relevant_change(a_node(), later)
    assert has_relevant_change(a_node(), a_node("n", "False"))
    assert has_relevant_change(None, a_node())
    assert has_relevant_change(a_node(), a_node(unschedulable=True))


# -- at work


def played(story: Callable[["World"], Awaitable[None]]) -> Callable[[], None]:
    """A test that plays in a cluster whose nodes are watched, on virtual time."""

    def test() -> None:
        async def told() -> None:
            clock = running_clock()
            api = InProcessApi([NODES, PODS, EVENTS, LEASES], now=clock.now)
            manager = Manager(CONFIG, api.connect, identity="nodes", now=clock.now, monotonic=clock.monotonic)
            manager.register("nodes", node_lifecycle.install)
            async with asyncio.TaskGroup() as group:
                working = group.create_task(manager.run())
                await story(World(Client(api.connect())))
                manager.stop()
                await asyncio.wait([working])

        run(told())

    test.__name__ = story.__name__
    return test


class World:
    """Nodes whose kubelets can be stopped."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def come(self, *names: str, zone: str = "") -> None:
        now = timestamp(running_clock().now())
        for name in names:
            made = await self.client.create(NODES, a_node(name, zone=zone))
            conditions = [{**made.get("status", {}).get("conditions", [{}])[0], "type": "Ready", "status": "True"}]
            conditions[0] |= {"lastHeartbeatTime": now, "lastTransitionTime": now}
            await self.client.patch(NODES, made, {"status": {"conditions": conditions}}, subresource="status")

    async def ready(self, name: str) -> None:
        now = timestamp(running_clock().now())
        said = [{"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}]
        await self.client.patch(NODES, object_named(name), {"status": {"conditions": said}}, subresource="status")

    @asynccontextmanager
    async def alive(self, *names: str) -> AsyncIterator[None]:
        """The kubelets of these nodes renew their Leases meanwhile."""
        async with asyncio.TaskGroup() as group:
            beating = group.create_task(self.beat(names))
            yield
            beating.cancel()

    async def beat(self, names: Iterable[str]) -> None:
        while True:
            for name in names:
                spec = {"spec": {"renewTime": micro_timestamp(running_clock().now())}}
                metadata = {"name": name, "namespace": "kube-node-lease"}
                if running_clock().now() and not await self.has_lease(name):
                    await self.client.create(LEASES, {"metadata": metadata, **spec})
                else:
                    await self.client.patch(LEASES, {"metadata": metadata}, spec)
            await asyncio.sleep(10)

    async def has_lease(self, name: str) -> bool:
        return any(name_of(each) == name for each in await self.client.list(LEASES, "kube-node-lease"))

    async def taints(self, name: str) -> set[tuple[str, str]]:
        return {(each["key"], each["effect"]) for each in taints_of(await self.client.get(NODES, name))}

    async def wait_for_taint(self, name: str, key: str, effect: str) -> None:
        def until(node: Object | None) -> bool:
            return any((each["key"], each["effect"]) == (key, effect) for each in taints_of(node or {}))

        await wait_for(self.client, NODES, name, until=until, timeout=AN_HOUR)

    async def pod(self, name: str, on: str, *tolerations: Object) -> None:
        pod = a_pod(name, on, *tolerations)
        made = await self.client.create(PODS, {**pod, "metadata": {"name": name, "namespace": "x"}})
        ready = [{"type": "Ready", "status": "True", "lastTransitionTime": THEN}]
        await self.client.patch(PODS, made, {"status": {"phase": "Running", "conditions": ready}}, subresource="status")

    async def wait_for_end(self, name: str) -> None:
        def until(pod: Object | None) -> bool:
            return pod is None or is_deleting(pod)

        await wait_for(self.client, PODS, name, "x", until=until, timeout=AN_HOUR)


@played
async def test_a_silent_node_loses_its_pods_and_gets_its_name_back(world: World) -> None:
    await world.come("a", "b")
    await world.pod("p", "a", tolerating(UNREACHABLE, 300))
    async with world.alive("b"):
        start = running_clock().now()
        await world.wait_for_taint("a", UNREACHABLE, "NoExecute")
        assert timedelta(seconds=40) <= running_clock().now() - start <= timedelta(seconds=61)
        assert await world.taints("a") == {(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")}
        await wait_for(
            world.client, PODS, "p", "x", until=lambda pod: not is_condition_true(pod or {}, "Ready"), timeout=AN_HOUR
        )
        start = running_clock().now()
        await world.wait_for_end("p")
        assert timedelta(seconds=295) <= running_clock().now() - start <= timedelta(seconds=305)
        await world.ready("a")
        await wait_for(world.client, NODES, "a", until=lambda node: not taints_of(node or {}), timeout=AN_HOUR)
        assert await world.taints("b") == set()


@played
async def test_pods_that_go_say_why(world: World) -> None:
    await world.come("a", "b")
    await world.pod("p", "a")
    await world.client.patch(PODS, object_named("p", "x"), {"metadata": {"finalizers": ["example.com/kept"]}})
    async with world.alive("b"):
        await world.wait_for_end("p")
        pod = await world.client.get(PODS, "p", "x")
        target = find_condition(value_at(pod, "status", "conditions"), "DisruptionTarget") or {}
        assert target["reason"] == "DeletionByTaintManager"
        assert target["message"] == "Taint manager: deleting due to NoExecute taint"


@played
async def test_where_all_are_silent_nobody_has_to_go(world: World) -> None:
    await world.come("a", "b", "c")
    await world.pod("p", "a", tolerating(UNREACHABLE, 30))
    await asyncio.sleep(1200)
    for name in ("a", "b", "c"):
        assert await world.taints(name) == {(UNREACHABLE, "NoSchedule")}
    pod = await world.client.get(PODS, "p", "x")
    assert not is_deleting(pod)
    assert not is_condition_true(pod, "Ready")


@played
async def test_where_most_of_a_small_zone_is_silent_nobody_has_to_go(world: World) -> None:
    await world.come("a", "b", "c", "d", zone="z")
    async with world.alive("d"):
        await asyncio.sleep(1200)
        expelled = [name for name in ("a", "b", "c") if (UNREACHABLE, "NoExecute") in await world.taints(name)]
        assert len(expelled) <= 2  # those whose turn came before it was seen how many there are


@played
async def test_a_node_that_says_it_is_not_ready_is_tainted_for_that(world: World) -> None:
    await world.come("a", "b")
    async with world.alive("a", "b"):
        said = [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}]
        await world.client.patch(NODES, object_named("a"), {"status": {"conditions": said}}, subresource="status")
        await world.wait_for_taint("a", NOT_READY, "NoExecute")
        assert await world.taints("a") == {(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")}


@played
async def test_pods_of_a_node_that_is_gone_are_ended(world: World) -> None:
    await world.come("a", "b")
    await world.pod("p", "a")
    await world.client.patch(PODS, object_named("p", "x"), {"metadata": {"finalizers": ["example.com/kept"]}})
    async with world.alive("b"):
        await world.client.delete(NODES, object_named("a"))
        start = running_clock().now()
        await world.wait_for_end("p")
        assert running_clock().now() - start >= timedelta(seconds=40)
        pod = await world.client.get(PODS, "p", "x")
        assert pod["status"]["phase"] == "Failed"
        target = find_condition(pod["status"]["conditions"], "DisruptionTarget") or {}
        assert (target["reason"], target["message"]) == ("DeletionByPodGC", "PodGC: node no longer exists")


@played
async def test_a_node_that_comes_back_in_time_keeps_its_pods(world: World) -> None:
    await world.come("a", "b")
    await world.pod("p", "a", tolerating(UNREACHABLE, 300), tolerating(NOT_READY, 300))
    await world.client.delete(NODES, object_named("a"))
    async with world.alive("a", "b"):
        await asyncio.sleep(20)
        await world.come("a")
        await asyncio.sleep(600)
        assert not is_deleting(await world.client.get(PODS, "p", "x"))


@played
async def test_a_pod_that_is_deleted_before_it_has_a_node_is_ended(world: World) -> None:
    pod = a_pod("p")
    pod["spec"] = {"containers": [{"name": "c", "image": "i"}], "terminationGracePeriodSeconds": 30}
    await world.client.create(PODS, pod)
    await world.client.delete(PODS, object_named("p", "x"))
    await wait_for(world.client, PODS, "p", "x", until=lambda pod: pod is None, timeout=AN_HOUR)
