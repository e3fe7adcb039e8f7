"""A whole syncer between two in-process clusters: interaction of its parts under faults."""

import asyncio
from typing import Any

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.policies import POLICIES
from tapestry.client.transport import Request
from tapestry.client.watch import wait_for
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import ApiError, Forbidden, NotFound
from tapestry.kube.objects import Object, name_of, object_named, value_at
from tapestry.kube.pods import taint_named
from tapestry.kube.resources import LEASES, NAMESPACES, NODE_LEASE_NAMESPACE, NODES, PODS
from tapestry.syncer.config import SyncerConfig

from .world import MOUNT, World, accept_all, new_world

WEB = [{"containerPort": 80, "hostPort": 80}]


async def placeholders(world: World) -> list[Object]:
    return await world.virtual.list(PODS, keys.HOST_PORTS_NAMESPACE)


def no_host_ports_namespace(request: Request) -> ApiError | None:
    if request.method == "POST" and f"/namespaces/{keys.HOST_PORTS_NAMESPACE}/pods" in request.path:
        return NotFound(404, "NotFound", f'namespaces "{keys.HOST_PORTS_NAMESPACE}" not found')
    return None


@in_virtual_time
async def test_missing_host_port_namespace_blocks_nothing_else(
    caplog: Any,
) -> None:
    world = await new_world("east")
    world.up.rejection = no_host_ports_namespace
    await world.add_foreign_pod("web", "n1", ports=WEB)
    async with world.syncer("east"):
        await asyncio.sleep(60)
        assert await placeholders(world) == []
        assert any("`tapestry manifests` contains it" in str(record.__dict__) for record in caplog.records)
        await world.physical.patch(NODES, object_named("n1"), {"spec": {"unschedulable": True}})
        cordoned = lambda node: taint_named(node, keys.PHYSICAL_NODE_UNSCHEDULABLE_TAINT) is not None  # noqa: E731
        await wait_for(world.virtual, NODES, "vnode-east-n1", until=cordoned, timeout=5)
        world.up.rejection = accept_all  # created later
        await asyncio.sleep(600)
        assert len(await placeholders(world)) == 1


@in_virtual_time
async def test_unbinding_ignores_host_ports_of_other_bindings() -> None:
    world = await new_world("east", "west")
    await world.add_foreign_pod("web", "n1", ports=WEB)
    async with world.syncer("east"), world.syncer("west"):
        await asyncio.sleep(5)
        assert len(await placeholders(world)) == 2
        await world.virtual.delete(CLUSTER_BINDINGS, object_named("east"))
        await wait_for(world.virtual, CLUSTER_BINDINGS, "east", until=lambda obj: obj is None, timeout=60)
        assert [pod["spec"]["nodeName"] for pod in await placeholders(world)] == ["vnode-west-n1"]


@in_virtual_time
async def test_rejected_deletion_does_not_block_other_pods() -> None:
    world = await new_world("east")
    async with world.syncer("east"):
        for name in ("a", "b", "c"):
            await world.add_pod(name)
        await asyncio.sleep(5)
        assert len(await world.twins()) == 3
        world.up.rejection = lambda request: (
            Forbidden(403, "Forbidden", "a webhook says no")
            if (request.method, request.path) == ("DELETE", "/api/v1/namespaces/default/pods/a")
            else None
        )
        await world.physical.patch(
            NODES, object_named("n1"), {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
        )
        await asyncio.sleep(2)
        assert await world.remaining_pods() == ["a"]
        world.up.rejection = accept_all
        await asyncio.sleep(300)
        assert await world.remaining_pods() == []


@in_virtual_time
async def test_node_lease_without_node_is_deleted_after_two_checks() -> None:
    world = await new_world("east")
    await world.virtual.create(NODES, {"metadata": {"name": "vnode-east-2-n1"}})  # belongs to the binding east-2
    async with world.syncer("east"):
        for name in ("vnode-east-gone", "vnode-east-2-n1", "vnode-west-gone"):
            owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": f"uid of {name}"}
            await world.virtual.create(
                LEASES, {"metadata": {"name": name, "namespace": NODE_LEASE_NAMESPACE, "ownerReferences": [owner]}}
            )
        between = SyncerConfig().check_seconds
        await asyncio.sleep(1.5 * between)
        assert "vnode-east-gone" in [name_of(each) for each in await world.virtual.list(LEASES, NODE_LEASE_NAMESPACE)]
        await asyncio.sleep(between)
        found = [name_of(each) for each in await world.virtual.list(LEASES, NODE_LEASE_NAMESPACE)]
        assert found == ["vnode-east-2-n1", "vnode-east-n1", "vnode-west-gone"]


@in_virtual_time
async def test_pods_of_unforced_policy_survive_a_forced_one() -> None:
    world = await new_world("east")
    window = {"start": "03:00", "end": "03:01"}
    spec = {"cluster": "east", "timeWindows": [window], "forceReclaim": True}
    await world.virtual.create(POLICIES, {**object_named("night"), "spec": spec})
    async with world.syncer("east"):
        await world.add_pod("work")
        await world.wait_for_twin()
        await world.place()
        await world.start()
        await asyncio.sleep(3600)
        await world.virtual.delete(POLICIES, object_named("east-all"))
        await asyncio.sleep(3600)
        node = await world.virtual.get(NODES, "vnode-east-n1")
        assert taint_named(node, keys.OUT_OF_TIME_WINDOWS_TAINT) is not None
        assert await world.remaining_pods() == ["work"]
        await asyncio.sleep(2 * 3600)  # the forced window opens and closes
        assert await world.remaining_pods() == []


async def leasing(world: World) -> str:
    """Return status and reason of the binding's Leasing condition."""
    binding = await world.virtual.get(CLUSTER_BINDINGS, "east")
    found = find_condition(value_at(binding, "status", "conditions"), "Leasing")
    return f"{found['reason']}: {found['message']}" if found else ""


@in_virtual_time
async def test_binding_reports_kill_switch_and_unreachable_cluster() -> None:
    world = await new_world("east")
    async with world.syncer("east", silence_seconds=20):
        await asyncio.sleep(5)
        assert (await leasing(world)).startswith("Leasing:")
        await set_switch(world, keys.RECLAIM_NOW)
        assert await leasing(world) == (
            "Reclaimed: the owner's kill switch is on: tapestry.io/reclaim=now on the mount namespace"
        )
        await set_switch(world, None)
        assert (await leasing(world)).startswith("Leasing:")
        world.down.cut()
        await asyncio.sleep(60)
        assert (await leasing(world)).startswith("PhysicalClusterUnreachable: the physical cluster has not answered")
        world.down.restore()
        await asyncio.sleep(60)
        assert (await leasing(world)).startswith("Leasing:")


async def set_switch(world: World, value: str | None) -> None:
    await world.physical.patch(NAMESPACES, object_named(MOUNT), {"metadata": {"annotations": {keys.RECLAIM: value}}})
    await asyncio.sleep(10)


@in_virtual_time
async def test_safety_rule_1_only_the_pods_own_twin_sets_its_status() -> None:
    world = await new_world("east")
    async with world.syncer("east") as parts:
        await world.add_pod()
        await world.add_pod("lost", node="vnode-east-ghost")
        twin = await world.wait_for_twin()
        await asyncio.sleep(1)
        assert parts.caches.pod_on_our_nodes("default/lost") is None
        pod = parts.caches.pod_on_our_nodes("default/work")
        assert pod is not None
        found = parts.caches.twin_of_pod(pod)
        assert found is not None
        assert name_of(found) == name_of(twin)
        assert parts.caches.twin_of_pod({**pod, "metadata": {**pod["metadata"], "uid": "of a namesake"}}) is None
        await world.set_twin({"metadata": {"labels": {keys.CLUSTER_BINDING_UID: "another"}}})
        await asyncio.sleep(1)
        assert parts.caches.twin_of_pod(pod) is None
