"""Node lifecycle, disturbed at every call: a silent node is tainted, its pods go, and nobody else's do."""

import asyncio
from collections.abc import Awaitable, Callable

from tapestry.client.client import Client
from tapestry.client.waiting import wait_for
from tapestry.controller.testing import Scenario, perturb, running_clock
from tapestry.controlplane import node_lifecycle
from tapestry.controlplane.node_lifecycle import taints_of
from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import LEASES, NODES, PODS
from tapestry.kube.taints import UNREACHABLE
from tapestry.kube.times import micro_timestamp, timestamp

A_DAY = 24 * 3600.0


async def come(client: Client, name: str) -> None:
    now = timestamp(running_clock().now())
    said = [{"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}]
    made = await client.create(NODES, {"metadata": {"name": name}})
    await client.patch(NODES, made, {"status": {"conditions": said}}, subresource="status")


async def a_pod(client: Client, name: str, node: str) -> None:
    tolerations = [{"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}]
    spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": node, "tolerations": tolerations}
    made = await client.create(PODS, {"metadata": {"name": name, "namespace": "x"}, "spec": spec})
    ready = [{"type": "Ready", "status": "True", "lastTransitionTime": timestamp(running_clock().now())}]
    await client.patch(PODS, made, {"status": {"phase": "Running", "conditions": ready}}, subresource="status")


async def beat(client: Client, name: str) -> None:
    lease = {"metadata": {"name": name, "namespace": "kube-node-lease"}}
    await client.create(LEASES, lease)
    while True:
        await client.patch(LEASES, lease, {"spec": {"renewTime": micro_timestamp(running_clock().now())}})
        await asyncio.sleep(10)


def is_gone(obj: Object | None) -> bool:
    return obj is None or "deletionTimestamp" in obj["metadata"]


async def one_falls_silent(client: Client) -> None:
    for name in ("alive", "silent"):
        await come(client, name)
        await a_pod(client, f"on-{name}", name)
    async with asyncio.TaskGroup() as group:
        beating = group.create_task(beat(client, "alive"))
        await wait_for(client, PODS, "on-silent", "x", until=is_gone, timeout=A_DAY)
        now = timestamp(running_clock().now())
        said = [{"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}]
        await client.patch(NODES, object_named("silent"), {"status": {"conditions": said}}, subresource="status")
        await wait_for(client, NODES, "silent", until=lambda node: not taints_of(node or {}), timeout=A_DAY)
        beating.cancel()
    assert not is_gone(await client.get(PODS, "on-alive", "x"))


async def one_is_removed(client: Client) -> None:
    for name in ("alive", "removed"):
        await come(client, name)
        await a_pod(client, f"on-{name}", name)
    async with asyncio.TaskGroup() as group:
        beating = group.create_task(beat(client, "alive"))
        await client.delete(NODES, object_named("removed"))
        await wait_for(client, PODS, "on-removed", "x", until=is_gone, timeout=A_DAY)
        beating.cancel()
    assert not is_gone(await client.get(PODS, "on-alive", "x"))


def check(world: Callable[[Client], Awaitable[None]]) -> None:
    report = perturb(Scenario("nodes", [NODES, PODS], node_lifecycle.install, world, counts=is_no_event))
    assert report.calls > 0
    assert not report.failures, report


def is_no_event(call: str) -> bool:
    return "/events" not in call


def test_a_silent_node_is_given_up_whatever_happens() -> None:
    check(one_falls_silent)


def test_pods_of_a_removed_node_are_ended_whatever_happens() -> None:
    check(one_is_removed)
