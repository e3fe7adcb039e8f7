"""Tests of node lifecycle and of pod deletion."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.client.watch import wait_for
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
from tapestry.kube.pods import NOT_READY, UNREACHABLE
from tapestry.kube.resources import EVENTS, LEASES, NODES, PODS
from tapestry.kube.times import micro_timestamp, timestamp

NOW = datetime(2024, 1, 1, tzinfo=UTC)
THEN = timestamp(NOW - timedelta(hours=1))
CONFIG = ManagerConfig(name="nodes", metrics=Metrics(address=""), probes=Probes(address=""))
AN_HOUR = 3600.0


def new_node(name: str = "n", ready: str = "True", *taints: Object, zone: str = "", **spec: Any) -> Object:
    condition = {"type": "Ready", "status": ready, "reason": "KubeletReady", "lastHeartbeatTime": THEN}
    return {
        "metadata": {"name": name, "creationTimestamp": THEN, "labels": {"topology.kubernetes.io/zone": zone}},
        "spec": {**spec, **({"taints": list(taints)} if taints else {})},
        "status": {"conditions": [{**condition, "lastTransitionTime": THEN}]} if ready else {},
    }


def new_taint(key: str, effect: str = "NoExecute", added: datetime | None = None) -> Object:
    return {"key": key, "effect": effect, **({"timeAdded": timestamp(added)} if added else {})}


def new_pod(name: str = "p", on: str = "n", *tolerations: Object, **status: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": "x", "creationTimestamp": timestamp(NOW)},
        "spec": {"containers": [{"name": "c", "image": "i"}], "tolerations": list(tolerations), "nodeName": on},
        "status": status,
    }


def tolerating(key: str, seconds: int | None = None) -> Object:
    limit = {"effect": "NoExecute", "tolerationSeconds": seconds} if seconds is not None else {}
    return {"key": key, "operator": "Exists", **limit}


# -- pure


def test_missed_heartbeats_make_conditions_unknown() -> None:
    found = {each["type"]: each for each in unknown_conditions(new_node(), NOW)}
    assert set(found) == {"Ready", "MemoryPressure", "DiskPressure", "PIDPressure"}
    assert found["Ready"]["status"] == "Unknown"
    assert found["Ready"]["reason"] == "NodeStatusUnknown"
    assert found["Ready"]["message"] == "Kubelet stopped posting node status."
    assert (found["Ready"]["lastHeartbeatTime"], found["Ready"]["lastTransitionTime"]) == (THEN, timestamp(NOW))
    assert found["DiskPressure"]["reason"] == "NodeStatusNeverUpdated"
    unknown = {**new_node(), "status": {"conditions": unknown_conditions(new_node(), NOW)}}
    assert unknown_conditions(unknown, NOW + GRACE_PERIOD) == unknown["status"]["conditions"]


@pytest.mark.parametrize(
    ("node", "eviction_taint", "taints"),
    [
        (new_node(), None, []),
        (new_node("n", "False"), None, [(NOT_READY, "NoSchedule")]),
        (new_node("n", "Unknown"), UNREACHABLE, [(UNREACHABLE, "NoExecute"), (UNREACHABLE, "NoSchedule")]),
        (
            new_node("n", "Unknown", new_taint("own"), new_taint(NOT_READY)),
            None,
            [("own", "NoExecute"), (UNREACHABLE, "NoSchedule")],
        ),
        (new_node("n", "True", new_taint(UNREACHABLE), new_taint(UNREACHABLE, "NoSchedule")), None, []),
        (new_node("n", "True", unschedulable=True), None, [("node.kubernetes.io/unschedulable", "NoSchedule")]),
        (new_node("n", "True", new_taint("node.kubernetes.io/unschedulable", "NoSchedule")), None, []),
        (
            new_node("n", "True", new_taint("node.kubernetes.io/out-of-service")),
            None,
            [("node.kubernetes.io/out-of-service", "NoExecute")],
        ),
    ],
)
def test_taints_follow_conditions(node: Object, eviction_taint: str | None, taints: list[tuple[str, str]]) -> None:
    found = desired_taints(node, eviction_taint, NOW)
    assert [(each["key"], each["effect"]) for each in found] == taints
    assert (
        desired_taints({**node, "spec": {**node["spec"], "taints": found}}, eviction_taint, NOW + GRACE_PERIOD) == found
    )


@pytest.mark.parametrize(
    ("tolerations", "taints", "seconds"),
    [
        ([], [], None),
        ([], [new_taint("a", "NoSchedule")], None),
        ([], [new_taint("a")], 0),
        ([], [new_taint("a", added=NOW + timedelta(seconds=5))], 5),
        ([tolerating("a")], [new_taint("a")], None),
        ([tolerating("a", 30)], [new_taint("a")], 30),
        ([tolerating("a", 30)], [new_taint("a", added=NOW + timedelta(seconds=5))], 35),
        ([tolerating("a", 30)], [new_taint("a", added=NOW - timedelta(seconds=500))], 30),
        ([tolerating("a", 30), tolerating("a", 10)], [new_taint("a")], 10),
        ([tolerating("a", 30), tolerating("a")], [new_taint("a")], 30),
        ([tolerating("a", -5)], [new_taint("a")], 0),
        ([tolerating("a", 30)], [new_taint("a"), new_taint("b")], 0),
        ([tolerating("a", 30), tolerating("b")], [new_taint("a"), new_taint("b")], 30),
    ],
)
def test_eviction_time_follows_tolerations(
    tolerations: list[Object], taints: list[Object], seconds: int | None
) -> None:
    due = NOW + timedelta(seconds=seconds) if seconds is not None else None
    assert eviction_time(new_pod("p", "n", *tolerations), taints) == due


def test_forced_deletion_without_kubelet() -> None:
    deleted = {**new_pod(), "metadata": {**new_pod()["metadata"], "deletionTimestamp": timestamp(NOW)}}
    unbound = {**deleted, "spec": {**deleted["spec"], "nodeName": None}}
    out_of_service = new_node("n", "Unknown", new_taint("node.kubernetes.io/out-of-service"))
    assert needs_forced_deletion(unbound, None)
    assert needs_forced_deletion(deleted, out_of_service)
    assert not needs_forced_deletion(deleted, new_node("n", "Unknown"))
    assert not needs_forced_deletion(deleted, new_node("n", "True", new_taint("node.kubernetes.io/out-of-service")))
    assert not needs_forced_deletion(new_pod(), out_of_service)


def test_surplus_pods_are_evicted_ones_then_oldest() -> None:
    pods = [new_pod(f"p{number}", phase="Failed") for number in range(4)]
    pods[2]["status"]["reason"] = "Evicted"
    pods[1]["metadata"]["creationTimestamp"] = THEN
    assert [name_of(each) for each in surplus_pods(pods, 2)] == ["p2", "p1"]
    assert surplus_pods(pods, 4) == []


def test_heartbeat_is_not_a_relevant_change() -> None:
    later = new_node()
    later["status"]["conditions"][0]["lastHeartbeatTime"] = timestamp(NOW)
    assert not has_relevant_change(new_node(), later)
    assert has_relevant_change(new_node(), new_node("n", "False"))
    assert has_relevant_change(None, new_node())
    assert has_relevant_change(new_node(), new_node(unschedulable=True))


# -- in a cluster


def in_cluster(test_body: Callable[["Cluster"], Awaitable[None]]) -> Callable[[], None]:
    """Run a test on virtual time in a cluster with the node lifecycle controller."""

    def test() -> None:
        async def run_test() -> None:
            clock = running_clock()
            api = InProcessApi([NODES, PODS, EVENTS, LEASES], now=clock.now)
            manager = Manager(CONFIG, api.connect, identity="nodes", now=clock.now, monotonic=clock.monotonic)
            cluster = Cluster(Client(api.connect()))
            manager.register("nodes", lambda each: node_lifecycle.install(each, lambda: cluster.has_heartbeats))
            async with asyncio.TaskGroup() as group:
                running = group.create_task(manager.run())
                await test_body(cluster)
                manager.stop()
                await asyncio.wait([running])

        run(run_test())

    test.__name__ = test_body.__name__
    return test


class Cluster:
    """Nodes with kubelets that can be stopped."""

    def __init__(self, client: Client) -> None:
        self.client, self.has_heartbeats = client, True

    async def add_nodes(self, *names: str, zone: str = "") -> None:
        now = timestamp(running_clock().now())
        for name in names:
            created = await self.client.create(NODES, new_node(name, zone=zone))
            conditions = [{**created.get("status", {}).get("conditions", [{}])[0], "type": "Ready", "status": "True"}]
            conditions[0] |= {"lastHeartbeatTime": now, "lastTransitionTime": now}
            await self.client.patch(NODES, created, {"status": {"conditions": conditions}}, subresource="status")

    async def mark_ready(self, name: str) -> None:
        now = timestamp(running_clock().now())
        conditions = [{"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}]
        await self.client.patch(NODES, object_named(name), {"status": {"conditions": conditions}}, subresource="status")

    @asynccontextmanager
    async def with_heartbeats(self, *names: str) -> AsyncIterator[None]:
        """Renew the Leases of these nodes within the context."""
        async with asyncio.TaskGroup() as group:
            heartbeats = group.create_task(self.renew_leases(names))
            yield
            heartbeats.cancel()

    async def renew_leases(self, names: Iterable[str]) -> None:
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

    async def add_pod(self, name: str, on: str, *tolerations: Object) -> None:
        pod = new_pod(name, on, *tolerations)
        created = await self.client.create(PODS, {**pod, "metadata": {"name": name, "namespace": "x"}})
        ready = [{"type": "Ready", "status": "True", "lastTransitionTime": THEN}]
        await self.client.patch(
            PODS, created, {"status": {"phase": "Running", "conditions": ready}}, subresource="status"
        )

    async def wait_for_deletion(self, name: str) -> None:
        def until(pod: Object | None) -> bool:
            return pod is None or is_deleting(pod)

        await wait_for(self.client, PODS, name, "x", until=until, timeout=AN_HOUR)


@in_cluster
async def test_unreachable_node_is_tainted_evicted_and_recovers(cluster: Cluster) -> None:
    await cluster.add_nodes("a", "b")
    await cluster.add_pod("p", "a", tolerating(UNREACHABLE, 300))
    async with cluster.with_heartbeats("b"):
        start = running_clock().now()
        await cluster.wait_for_taint("a", UNREACHABLE, "NoExecute")
        assert timedelta(seconds=40) <= running_clock().now() - start <= timedelta(seconds=61)
        assert await cluster.taints("a") == {(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")}
        await wait_for(
            cluster.client, PODS, "p", "x", until=lambda pod: not is_condition_true(pod or {}, "Ready"), timeout=AN_HOUR
        )
        start = running_clock().now()
        await cluster.wait_for_deletion("p")
        assert timedelta(seconds=295) <= running_clock().now() - start <= timedelta(seconds=305)
        await cluster.mark_ready("a")
        await wait_for(cluster.client, NODES, "a", until=lambda node: not taints_of(node or {}), timeout=AN_HOUR)
        assert await cluster.taints("b") == set()


@in_cluster
async def test_evicted_pod_has_disruption_condition(cluster: Cluster) -> None:
    await cluster.add_nodes("a", "b")
    await cluster.add_pod("p", "a")
    await cluster.client.patch(PODS, object_named("p", "x"), {"metadata": {"finalizers": ["example.com/test"]}})
    async with cluster.with_heartbeats("b"):
        await cluster.wait_for_deletion("p")
        pod = await cluster.client.get(PODS, "p", "x")
        target = find_condition(value_at(pod, "status", "conditions"), "DisruptionTarget") or {}
        assert target["reason"] == "DeletionByTaintManager"
        assert target["message"] == "Taint manager: deleting due to NoExecute taint"


@in_cluster
async def test_no_eviction_if_all_nodes_are_unreachable(cluster: Cluster) -> None:
    await cluster.add_nodes("a", "b", "c")
    await cluster.add_pod("p", "a", tolerating(UNREACHABLE, 30))
    await asyncio.sleep(1200)
    for name in ("a", "b", "c"):
        assert await cluster.taints(name) == {(UNREACHABLE, "NoSchedule")}
    pod = await cluster.client.get(PODS, "p", "x")
    assert not is_deleting(pod)
    assert not is_condition_true(pod, "Ready")


@in_cluster
async def test_no_eviction_if_small_zone_is_disrupted(cluster: Cluster) -> None:
    await cluster.add_nodes("a", "b", "c", "d", zone="z")
    async with cluster.with_heartbeats("d"):
        await asyncio.sleep(1200)
        evicted = [name for name in ("a", "b", "c") if (UNREACHABLE, "NoExecute") in await cluster.taints(name)]
        assert len(evicted) <= 2  # evicted before the others became unready


@in_cluster
async def test_not_ready_node_gets_not_ready_taint(cluster: Cluster) -> None:
    await cluster.add_nodes("a", "b")
    async with cluster.with_heartbeats("a", "b"):
        conditions = [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}]
        await cluster.client.patch(
            NODES, object_named("a"), {"status": {"conditions": conditions}}, subresource="status"
        )
        await cluster.wait_for_taint("a", NOT_READY, "NoExecute")
        assert await cluster.taints("a") == {(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")}


@in_cluster
async def test_pods_of_deleted_node_are_deleted(cluster: Cluster) -> None:
    await cluster.add_nodes("a", "b")
    await cluster.add_pod("p", "a")
    await cluster.client.patch(PODS, object_named("p", "x"), {"metadata": {"finalizers": ["example.com/test"]}})
    async with cluster.with_heartbeats("b"):
        await cluster.client.delete(NODES, object_named("a"))
        start = running_clock().now()
        await cluster.wait_for_deletion("p")
        assert running_clock().now() - start >= timedelta(seconds=40)
        pod = await cluster.client.get(PODS, "p", "x")
        assert pod["status"]["phase"] == "Failed"
        target = find_condition(pod["status"]["conditions"], "DisruptionTarget") or {}
        assert (target["reason"], target["message"]) == ("DeletionByPodGC", "PodGC: node no longer exists")


@in_cluster
async def test_node_recreated_in_time_keeps_pods(cluster: Cluster) -> None:
    await cluster.add_nodes("a", "b")
    await cluster.add_pod("p", "a", tolerating(UNREACHABLE, 300), tolerating(NOT_READY, 300))
    await cluster.client.delete(NODES, object_named("a"))
    async with cluster.with_heartbeats("a", "b"):
        await asyncio.sleep(20)
        await cluster.add_nodes("a")
        await asyncio.sleep(600)
        assert not is_deleting(await cluster.client.get(PODS, "p", "x"))


@in_cluster
async def test_pod_deleted_before_binding_is_removed(cluster: Cluster) -> None:
    pod = new_pod("p")
    pod["spec"] = {"containers": [{"name": "c", "image": "i"}], "terminationGracePeriodSeconds": 30}
    await cluster.client.create(PODS, pod)
    await cluster.client.delete(PODS, object_named("p", "x"))
    await wait_for(cluster.client, PODS, "p", "x", until=lambda pod: pod is None, timeout=AN_HOUR)


# -- nodes whose conditions a syncer writes


@in_cluster
async def test_without_heartbeats_old_conditions_stay(cluster: Cluster) -> None:
    cluster.has_heartbeats = False
    await cluster.add_nodes("a", "b")
    await cluster.add_pod("p", "a", tolerating(UNREACHABLE, 30))
    await asyncio.sleep(24 * AN_HOUR)
    assert is_condition_true(await cluster.client.get(NODES, "a"), "Ready")
    assert await cluster.taints("a") == set()
    assert not is_deleting(await cluster.client.get(PODS, "p", "x"))


@in_cluster
async def test_without_heartbeats_written_conditions_have_effect(cluster: Cluster) -> None:
    cluster.has_heartbeats = False
    await cluster.add_nodes("a", "b")
    await cluster.add_pod("p", "a", tolerating(UNREACHABLE, 30))
    now = timestamp(running_clock().now())
    unknown = {"type": "Ready", "status": "Unknown", "reason": "PhysicalClusterUnreachable", "lastTransitionTime": now}
    await cluster.client.patch(NODES, object_named("a"), {"status": {"conditions": [unknown]}}, subresource="status")
    await cluster.wait_for_taint("a", UNREACHABLE, "NoExecute")
    await cluster.wait_for_deletion("p")
    await cluster.mark_ready("a")
    await wait_for(cluster.client, NODES, "a", until=lambda node: not taints_of(node or {}), timeout=AN_HOUR)
    assert await cluster.taints("b") == set()


@in_cluster
async def test_node_that_gets_heartbeats_must_send_them(cluster: Cluster) -> None:
    cluster.has_heartbeats = False
    await cluster.add_nodes("a", "b")
    await asyncio.sleep(AN_HOUR)
    cluster.has_heartbeats = True  # the plane has no tenant any more
    async with cluster.with_heartbeats("b"):
        await cluster.client.patch(NODES, object_named("a"), {"spec": {"unschedulable": True}})
        await cluster.wait_for_taint("a", UNREACHABLE, "NoSchedule")
        assert (UNREACHABLE, "NoSchedule") not in await cluster.taints("b")
