"""Perturbation tests of node lifecycle: only pods of the unreachable node are evicted."""

import asyncio
from collections.abc import Awaitable, Callable

from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller.testing import Scenario, perturb, running_clock
from tapestry.controlplane import node_lifecycle
from tapestry.controlplane.node_lifecycle import taints_of
from tapestry.kube.objects import Object, object_named
from tapestry.kube.pods import UNREACHABLE
from tapestry.kube.resources import LEASES, NODES, PODS
from tapestry.kube.times import micro_timestamp, timestamp

A_DAY = 24 * 3600.0


async def add_node(client: Client, name: str) -> None:
    now = timestamp(running_clock().now())
    conditions = [{"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}]
    created = await client.create(NODES, {"metadata": {"name": name}})
    await client.patch(NODES, created, {"status": {"conditions": conditions}}, subresource="status")


async def add_pod(client: Client, name: str, node: str) -> None:
    tolerations = [{"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}]
    spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": node, "tolerations": tolerations}
    created = await client.create(PODS, {"metadata": {"name": name, "namespace": "x"}, "spec": spec})
    ready = [{"type": "Ready", "status": "True", "lastTransitionTime": timestamp(running_clock().now())}]
    await client.patch(PODS, created, {"status": {"phase": "Running", "conditions": ready}}, subresource="status")


async def renew_lease(client: Client, name: str) -> None:
    lease = {"metadata": {"name": name, "namespace": "kube-node-lease"}}
    await client.create(LEASES, lease)
    while True:
        await client.patch(LEASES, lease, {"spec": {"renewTime": micro_timestamp(running_clock().now())}})
        await asyncio.sleep(10)


def is_deleted(obj: Object | None) -> bool:
    return obj is None or "deletionTimestamp" in obj["metadata"]


async def one_becomes_unreachable(client: Client) -> None:
    for name in ("alive", "unreachable"):
        await add_node(client, name)
        await add_pod(client, f"on-{name}", name)
    async with asyncio.TaskGroup() as group:
        heartbeats = group.create_task(renew_lease(client, "alive"))
        await wait_for(client, PODS, "on-unreachable", "x", until=is_deleted, timeout=A_DAY)
        now = timestamp(running_clock().now())
        conditions = [{"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}]
        await client.patch(
            NODES, object_named("unreachable"), {"status": {"conditions": conditions}}, subresource="status"
        )
        await wait_for(client, NODES, "unreachable", until=lambda node: not taints_of(node or {}), timeout=A_DAY)
        heartbeats.cancel()
    assert not is_deleted(await client.get(PODS, "on-alive", "x"))


async def one_is_removed(client: Client) -> None:
    for name in ("alive", "removed"):
        await add_node(client, name)
        await add_pod(client, f"on-{name}", name)
    async with asyncio.TaskGroup() as group:
        heartbeats = group.create_task(renew_lease(client, "alive"))
        await client.delete(NODES, object_named("removed"))
        await wait_for(client, PODS, "on-removed", "x", until=is_deleted, timeout=A_DAY)
        heartbeats.cancel()
    assert not is_deleted(await client.get(PODS, "on-alive", "x"))


def check(scenario: Callable[[Client], Awaitable[None]]) -> None:
    report = perturb(Scenario("nodes", [NODES, PODS], node_lifecycle.install, scenario, counts=is_no_event))
    assert report.calls > 0
    assert not report.failures, report


def is_no_event(call: str) -> bool:
    return "/events" not in call


def test_perturbed_unreachable_node_is_evicted() -> None:
    check(one_becomes_unreachable)


def test_perturbed_pods_of_removed_node_are_deleted() -> None:
    check(one_is_removed)
