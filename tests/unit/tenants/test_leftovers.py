"""Deletion of tenants while their host cluster does not answer."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.apis.planes import PLANES, plane_id
from tapestry.client.client import Client
from tapestry.client.transport import Request, Transport
from tapestry.client.watch import wait_for
from tapestry.controller import Manager, Terminal
from tapestry.controller.testing import START, Scenario, in_virtual_time, perturb, running_clock
from tapestry.kube.errors import ApiError, Unavailable
from tapestry.kube.objects import Object, is_deleting, name_of, object_named
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES
from tapestry.tenants.host_clusters import HOSTS_NAMESPACE
from tapestry.tenants.host_objects import NAMESPACE_PREFIX
from tapestry.tenants.leftovers import SELECTOR, Leftover, is_in, leftover_in, leftover_of, record_leftover

from ..syncer.world import A_DAY
from .tenant_world import (
    CONFIG,
    HOST,
    SERVED,
    Plane,
    ProcessController,
    TenantProcess,
    Tenants,
    has_condition,
    is_about,
    new_world,
)

PLANE = "tr3iydfgk2xq7gpn"


def tenant(uid: str = "u1", pods: int = 3) -> Object:
    spec = {"virtualCluster": PLANE, "hostCluster": HOST}
    return {"metadata": {"name": "blue", "uid": uid}, "spec": spec, "status": {"pods": pods}}


def host(name: str = HOST, identity: str = "cluster-1") -> Object:
    return {**object_named(name), "status": {"identity": identity}}


def record(leftover: Leftover) -> Object:
    return {**object_named("r", HOSTS_NAMESPACE), "data": msgspec.to_builtins(leftover)}


FIELDS = ("binding", "bindingUid", "virtualCluster", "hostCluster", "identity", "namespace", "pods")


def test_record_has_what_is_needed_later() -> None:
    leftover = leftover_of(tenant(), host())
    assert (leftover.binding, leftover.binding_uid, leftover.virtual_cluster) == ("blue", "u1", PLANE)
    assert (leftover.host_cluster, leftover.identity, leftover.pods) == (HOST, "cluster-1", "3")
    assert leftover.namespace.startswith(NAMESPACE_PREFIX)
    assert leftover.namespace != leftover_of(tenant("u2"), host()).namespace
    assert leftover_in(record(leftover)) == leftover
    assert leftover_of({**tenant(), "status": {}}, None).identity == ""


@pytest.mark.parametrize("data", [None, {}, {"binding": "blue"}, dict.fromkeys(FIELDS, 1)])
def test_changed_record_is_reported(data: Object | None) -> None:
    with pytest.raises(Terminal, match="delete the tenant's namespace"):
        leftover_in({**object_named("r", HOSTS_NAMESPACE), "data": data})


def test_host_is_recognized_by_its_identity() -> None:
    leftover = leftover_of(tenant(), host())
    assert is_in(leftover, host("renamed"))
    assert not is_in(leftover, host(identity="cluster-2"))
    unknown = leftover_of(tenant(), None)
    assert is_in(unknown, host())
    assert not is_in(unknown, host("west"))


# -- in a process


async def force_deletion(world: Tenants, name: str = "blue") -> None:
    patch = {"metadata": {"annotations": {keys.FORCE_UNBIND: "true"}}}
    await world.management.patch(CLUSTER_BINDINGS, object_named(name), patch)
    await world.management.delete(CLUSTER_BINDINGS, object_named(name))
    await wait_for(world.management, CLUSTER_BINDINGS, name, until=is_missing, timeout=A_DAY)


async def records(world: Tenants) -> list[Object]:
    return await world.management.list(CONFIGMAPS, HOSTS_NAMESPACE, labels=SELECTOR)


async def namespaces(world: Tenants) -> list[str]:
    """Return the namespaces of tenants in the host cluster that are not being deleted."""
    found = await world.host.list(NAMESPACES)
    return [name_of(each) for each in found if name_of(each).startswith(NAMESPACE_PREFIX) and not is_deleting(each)]


async def remove_namespaces(world: Tenants) -> None:
    """Act as the namespace controller of the host cluster: remove the namespaces that are being deleted."""
    for each in await world.host.list(NAMESPACES):
        if is_deleting(each):
            await world.host.replace(NAMESPACES, {**each, "spec": {"finalizers": []}}, subresource="finalize")


async def wait_until_removed(world: Tenants, namespace: str) -> None:
    """Act as the namespace controller of the host cluster once a namespace is being deleted."""
    found = await wait_for(world.host, NAMESPACES, namespace, until=is_deleted, timeout=A_DAY)
    if found is not None:
        await world.host.replace(NAMESPACES, {**found, "spec": {"finalizers": []}}, subresource="finalize")


def is_missing(obj: Object | None) -> bool:
    return obj is None


def is_deleted(obj: Object | None) -> bool:
    return obj is None or is_deleting(obj)


async def wait_for_no_record(world: Tenants) -> None:
    """Wait until the records that exist now are gone."""
    for each in await records(world):
        name = name_of(each)
        await wait_for(world.management, CONFIGMAPS, name, HOSTS_NAMESPACE, until=is_missing, timeout=A_DAY)


@in_virtual_time
async def test_leftovers_are_removed_when_the_host_answers() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        [namespace] = await namespaces(world)
        world.down.cut()
        await force_deletion(world)
        [found] = await records(world)
        assert leftover_in(found).namespace == namespace
        await asyncio.sleep(3600)
        assert await records(world)
        world.down.restore()
        await wait_until_removed(world, namespace)
        await wait_for_no_record(world)


@in_virtual_time
async def test_new_tenant_of_the_same_plane_is_spared() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        [former] = await namespaces(world)
        world.down.cut()
        await force_deletion(world)
        await world.add_binding()
        world.down.restore()
        await wait_until_removed(world, former)
        await wait_for_no_record(world)
        await world.wait_until_ready()
        assert await namespaces(world) == [await world.namespace()] != [former]


@in_virtual_time
async def test_leftovers_of_a_removed_host_are_abandoned() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        world.down.cut()
        await force_deletion(world)
        await world.management.delete(HOST_CLUSTERS, object_named(HOST))
        await wait_for_no_record(world)
        assert len(await namespaces(world)) == 1


@in_virtual_time
async def test_tenant_with_a_binding_is_not_removed() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        binding = await world.binding()
        forged = {**binding, "metadata": {**binding["metadata"], "name": "other"}}
        await record_leftover(world.management, leftover_of(forged, await world.management.get(HOST_CLUSTERS, HOST)))
        await wait_for_no_record(world)
        assert await namespaces(world) == [await world.namespace()]


@in_virtual_time
async def test_one_process_of_a_group_removes_leftovers() -> None:
    world = await new_world("blue")
    candidates = {True}
    async with world.process(TenantProcess(writes_status=lambda _: True in candidates)):
        await world.wait_until_ready()
        candidates.clear()
        world.down.cut()
        await force_deletion(world)
        world.down.restore()
        await asyncio.sleep(3600)
        assert len(await records(world)) == 1
        assert len(await namespaces(world)) == 1


@in_virtual_time
async def test_tenant_of_a_missing_host_is_deleted() -> None:
    world = await new_world()
    await world.add_plane("blue")
    await world.add_binding(hostCluster="typo")
    async with world.process():
        await world.wait_for_binding(has_condition("Ready", "False", "HostMissing"))
        await world.management.delete(CLUSTER_BINDINGS, object_named("blue"))
        await wait_for(world.management, CLUSTER_BINDINGS, "blue", until=is_missing, timeout=60)
        assert await records(world) == []


# -- under faults

REJECTED_UNTIL = timedelta(seconds=0.3)


def host_rejects_deletions(cluster: int, request: Request) -> ApiError | None:
    """Reject deletions of namespaces in the host cluster at first."""
    is_deletion = cluster == 1 and request.method == "DELETE" and "/namespaces/" in request.path
    if is_deletion and running_clock().now() < START + REJECTED_UNTIL:
        return Unavailable(503, "ServiceUnavailable", "the host cluster is overloaded")
    return None


def is_about_removal(call: str) -> bool:
    """Select the calls to disturb: those of deletions, and of the record."""
    is_listed = call == f"GET {NAMESPACES.path()}"
    is_status = call.endswith("/status")
    return is_listed or call.startswith("DELETE") or (not is_status and is_about(CONFIGMAPS, CLUSTER_BINDINGS)(call))


async def tenant_is_deleted_by_force(plane: Client, host: Client, management: Client) -> None:
    tenants = Tenants(management, host, {"blue": plane})
    await tenants.add_host()
    await tenants.add_tenant()
    await tenants.wait_until_ready()
    former = await tenants.namespace()
    async with asyncio.TaskGroup() as group:
        group.create_task(wait_until_removed(tenants, former))
        await force_deletion(tenants)
        await tenants.add_binding()
    await tenants.wait_until_ready()
    await wait_for_no_record(tenants)
    await asyncio.sleep(200)


async def setup(manager: Manager, host: Transport, management: Transport) -> None:
    created = await wait_for(Client(management), PLANES, "blue", until=bool, timeout=A_DAY)
    assert created is not None
    transport = manager.client.transport
    process = TenantProcess([Plane(plane_id(created), lambda: transport)])
    controller = ProcessController(process, management, host)
    manager.register("process", lambda each: each.controllers.append(controller))


def test_forced_deletion_reaches_same_state_despite_faults(record_property: Callable[[str, object], None]) -> None:
    scenario = Scenario(
        *("forced deletion of a tenant", SERVED, setup, tenant_is_deleted_by_force, CONFIG),
        others=[SERVED, SERVED],
        counts=is_about_removal,
        rejection=host_rejects_deletions,
        is_plane=True,
    )
    report = perturb(scenario)
    record_property("figure", f"perturbed tenants: {report.cases} replays: {scenario.name}")
    report.check()
