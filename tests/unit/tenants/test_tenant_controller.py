"""Bindings of tenants: why one cannot run, what its status says, and its removal."""

import asyncio

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.apis.planes import PLANES
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.objects import Object, is_deleting, object_named, value_at
from tapestry.kube.resources import NAMESPACES, NODES, RESOURCE_QUOTAS, ROLE_BINDINGS, SERVICE_ACCOUNTS
from tapestry.tenants.host_objects import ACCOUNT
from tapestry.tenants.tenant_controller import older_rival, oldest

from .tenant_world import HOST, TenantProcess, condition, has_condition, message, new_world

MINUTE = 60.0


def binding(name: str, plane: str, created: str) -> Object:
    return {"metadata": {"name": name, "uid": name, "creationTimestamp": created}, "spec": {"virtualCluster": plane}}


def test_oldest_binding_of_a_plane_counts() -> None:
    first, second = binding("b", "p", "2024-01-01T00:00:00Z"), binding("a", "p", "2024-01-02T00:00:00Z")
    other = binding("c", "q", "2023-01-01T00:00:00Z")
    assert oldest([second, first]) is first
    assert oldest([]) is None
    assert older_rival(second, [first, second, other]) == "b"
    assert older_rival(first, [first, second, other]) is None


# -- tenants that run


@in_virtual_time
async def test_ready_tenant_has_its_objects_in_the_host() -> None:
    world = await new_world("blue", quota={"pods": "5"})
    async with world.process():
        await world.wait_until_ready()
        namespace = await world.namespace()
        await world.host.get(SERVICE_ACCOUNTS, ACCOUNT, namespace)
        await world.host.get(ROLE_BINDINGS, ACCOUNT, namespace)
        [quota] = await world.host.list(RESOURCE_QUOTAS, namespace)
        assert quota["spec"]["hard"]["pods"] == "5"
        assert keys.TENANT_FINALIZER in (await world.binding())["metadata"]["finalizers"]


@in_virtual_time
async def test_changed_quota_reaches_the_host() -> None:
    world = await new_world("blue", quota={"pods": "5", "requests.cpu": "1"})
    async with world.process():
        await world.wait_until_ready()
        await world.set_binding(quota={"pods": "7", "requests.cpu": None})
        await world.wait_for_binding(
            lambda each: each["status"]["observedGeneration"] == each["metadata"]["generation"], timeout=60
        )
        [quota] = await world.host.list(RESOURCE_QUOTAS, await world.namespace())
        assert quota["spec"]["hard"]["pods"] == "7"
        assert "requests.cpu" not in quota["spec"]["hard"]


@in_virtual_time
async def test_deleted_setup_object_comes_back() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        namespace = await world.namespace()
        await world.host.delete(ROLE_BINDINGS, object_named(ACCOUNT, namespace))
        await asyncio.sleep(15 * MINUTE)
        await world.host.get(ROLE_BINDINGS, ACCOUNT, namespace)


# -- tenants that cannot run


@in_virtual_time
async def test_binding_without_plane_says_so_until_there_is_one() -> None:
    world = await new_world("blue")
    plane = await world.management.get(PLANES, "blue")
    await world.management.delete(PLANES, plane)
    async with world.process(TenantProcess(holds_planes=False)):
        await world.wait_for_binding(has_condition("Ready", "False", "PlaneMissing"), timeout=60)
        assert (await world.binding())["status"]["phase"] == "Failed"


@in_virtual_time
async def test_second_binding_of_a_plane_waits_for_the_first() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        await asyncio.sleep(5)
        await world.add_binding("blue", "second")
        await world.wait_for_binding(has_condition("Ready", "False", "DuplicateTenant"), "second", timeout=60)
        assert condition(await world.binding(), "Ready") == ("True", "Ready")
        await world.management.delete(CLUSTER_BINDINGS, object_named("blue"))
        await world.finalize_namespace()
        await world.wait_until_binding_is_gone()
        await world.wait_until_ready("second")


@in_virtual_time
async def test_missing_host_is_named_until_it_is_added() -> None:
    world = await new_world("blue", hostCluster="west")
    async with world.process():
        await world.wait_for_binding(has_condition("Ready", "False", "HostMissing"), timeout=60)
        assert "tapestry host add west" in message(await world.binding(), "Ready")
        await world.set_binding(hostCluster=HOST)
        await world.wait_until_ready()


@in_virtual_time
async def test_host_that_is_not_connected_leaves_the_tenant_pending() -> None:
    world = await new_world("blue")
    world.down.cut()
    async with world.process():
        await world.wait_for_binding(has_condition("Ready", "False", "HostNotConnected"), timeout=60)
        assert (await world.binding())["status"]["phase"] == "Pending"
        world.down.restore()
        await world.wait_until_ready()


@in_virtual_time
async def test_foreign_namespace_is_never_used() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        name = await world.namespace()
    patch = {"metadata": {"labels": {keys.CLUSTER_BINDING_UID: "another"}}}
    await world.host.patch(NAMESPACES, object_named(name), patch)
    async with world.process():
        await world.wait_for_binding(has_condition("Ready", "False", "HostSetupFailed"), timeout=60)
        assert name in message(await world.binding(), "Ready")


@pytest.mark.parametrize("is_connected", [True, False])
@in_virtual_time
async def test_other_process_leaves_the_tenant_alone(is_connected: bool) -> None:
    world = await new_world("blue")
    if not is_connected:
        world.down.cut()
    async with world.process(TenantProcess(is_responsible=lambda _: False)):
        await asyncio.sleep(10 * MINUTE)
        assert "status" not in await world.binding() or condition(await world.binding(), "Ready") is None
        assert await world.host.list(NAMESPACES, labels=f"{keys.MANAGED_BY}={keys.TAPESTRY}") == []


# -- removal


@in_virtual_time
async def test_deleted_tenant_leaves_nothing_and_keeps_its_plane() -> None:
    world = await new_world("blue")
    async with world.process() as process:
        await world.wait_until_ready()
        await world.run_pod()
        await world.management.delete(CLUSTER_BINDINGS, object_named("blue"))
        await world.finalize_namespace()
        await world.wait_until_binding_is_gone()
        assert await world.host.list(NAMESPACES, labels=f"{keys.MANAGED_BY}={keys.TAPESTRY}") == []
        pod = await world.pod()
        assert not is_deleting(pod)
        assert (pod["status"]["phase"], condition(pod, keys.MAPPED_CONDITION)) == ("Pending", ("False", "Suspended"))
        assert await world.planes["blue"].list(NODES) == []
        assert not any(process.tenants.is_running(each.id) for each in process.planes)


@in_virtual_time
async def test_rights_of_deleted_tenant_end_before_its_namespace() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        namespace = await world.namespace()
        await world.management.delete(CLUSTER_BINDINGS, object_named("blue"))
        await world.wait_for_binding(has_condition("Ready", "False", "Deleting"), timeout=60)
        assert await world.host.find(ROLE_BINDINGS, ACCOUNT, namespace) is None


@in_virtual_time
async def test_deletion_waits_for_a_silent_host_unless_forced() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        world.down.cut()
        await world.management.delete(CLUSTER_BINDINGS, object_named("blue"))
        await asyncio.sleep(10 * MINUTE)
        found = await world.binding()
        assert condition(found, "Ready") == ("False", "HostUnreachable")
        assert "--force" in message(found, "Ready")
        patch = {"metadata": {"annotations": {keys.FORCE_UNBIND: "true"}}}
        await world.management.patch(CLUSTER_BINDINGS, object_named("blue"), patch)
        await world.wait_until_binding_is_gone()


# -- the report


@in_virtual_time
async def test_status_counts_pods_nodes_and_requests() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        requests = {"requests": {"cpu": "250m", "memory": "64Mi"}}
        await world.run_pod(containers=[{"name": "c", "image": "i", "resources": requests}])
        await world.wait_for_binding(lambda each: each["status"].get("pods") == 1, timeout=60)
        status = (await world.binding())["status"]
        assert status["nodes"] == 1
        assert (status["used"]["cpu"], status["used"]["memory"]) == ("250m", "64Mi")
        assert status["usage"]["requests.cpu"] == "250m"
        await world.delete_pod(grace=0)
        await world.stop()
        await world.wait_for_binding(lambda each: each["status"].get("pods") == 0, timeout=60)
        assert value_at(await world.binding(), "status", "used", "cpu") in (None, "0")


@in_virtual_time
async def test_last_report_stays_while_no_syncer_runs() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        await world.run_pod()
        await world.wait_for_binding(lambda each: each["status"].get("pods") == 1, timeout=60)
        await world.management.delete(HOST_CLUSTERS, object_named(HOST))
        await world.wait_for_binding(has_condition("Ready", "False", "HostMissing"), timeout=60)
        assert (await world.binding())["status"]["pods"] == 1
