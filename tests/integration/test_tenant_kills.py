"""A tenant whose process is killed in the middle of each operation."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.unit.tenants.running_tenants import pod_named, wait_for_pod

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.planes import PLANES, plane_id
from tapestry.client.client import Client
from tapestry.client.discovery import served_resources
from tapestry.client.watch import Changes, ListPage, Watch, wait_for
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES, PODS, ROLE_BINDINGS, Resource
from tapestry.tenants.host_clusters import HOSTS_NAMESPACE
from tapestry.tenants.host_registration import HostPlan
from tapestry.tenants.leftovers import record_name

from .plane_clients import client_of, created_plane, plane_kubeconfig, together
from .servers import ClusterProcess, PlanesProcess
from .tenant_processes import OF_TENANTS, add_host_cluster

TIMEOUT = 30.0
Until = Callable[[Object | None], bool]


@dataclass
class Setting:
    """The processes, and the clients that outlive a kill of the process of planes."""

    planes: PlanesProcess
    cluster: ClusterProcess
    management: Client
    host: Client

    async def kill_when(self, resource: Resource, until: Until) -> None:
        """Kill the process of planes at a state of a tenant's object in the host cluster, and start it again."""
        async with asyncio.timeout(TIMEOUT):
            await first_object(self.host, resource, until)
        await self.restart_planes()

    async def restart_planes(self) -> None:
        self.planes.kill()
        await asyncio.to_thread(self.planes.start)

    async def create_tenant(self) -> None:
        """Create a plane and its binding."""
        id = plane_id(await created_plane(self.management, "blue"))
        spec = {"clusterID": id, "virtualCluster": id, "hostCluster": "east"}
        await self.management.create(CLUSTER_BINDINGS, {**object_named("blue"), "spec": spec})

    async def wait_for_binding(self, until: Until) -> None:
        await wait_for(self.management, CLUSTER_BINDINGS, "blue", until=until, timeout=TIMEOUT)

    async def set_workloads(self, workloads: str) -> None:
        await self.management.patch(CLUSTER_BINDINGS, object_named("blue"), {"spec": {"workloads": workloads}})

    async def twins(self) -> list[Object]:
        return await self.host.list(PODS, labels=OF_TENANTS)

    async def inventory(self) -> list[str]:
        """Return all objects of tenants in the host cluster."""
        served = await served_resources(self.host)
        kinds = [resource for resource, verbs in served.items() if verbs >= {"list", "delete"}]
        return [
            f"{kind.kind} {key_of(each)}" for kind in kinds for each in await self.host.list(kind, labels=OF_TENANTS)
        ]


async def first_object(client: Client, resource: Resource, until: Until) -> Object | None:
    """Return the first object of a tenant for which `until` holds; None stands for one that was deleted."""
    async with aclosing(Watch(client, resource, labels=OF_TENANTS).events()) as events:
        async for event in events:
            match event:
                case ListPage(items):
                    found = list(items)
                case Changes(changes):
                    found = [None if type == "DELETED" else obj for type, obj in changes]
                case _:
                    found = []
            for each in found:
                if until(each):
                    return each
    raise AssertionError("the watch has ended")


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Setting]:
    """Run a host cluster and a process of planes that knows it."""
    planes, cluster = PlanesProcess(folder / "planes"), ClusterProcess(folder / "host", "--nodes", "2")
    try:
        await together(asyncio.to_thread(each.start) for each in (planes, cluster))
        async with client_of(planes.kubeconfig) as management, client_of(cluster.kubeconfig) as host:
            await add_host_cluster(HostPlan("east", {"allowLoopback": True}), management, cluster)
            yield Setting(planes, cluster, management, host)
    finally:
        planes.kill()
        cluster.kill()


def has_condition(type: str) -> Until:
    return lambda each: each is not None and is_condition_true(each, type)


def is_gone_soon(each: Object | None) -> bool:
    return each is None or is_deleting(each)


async def run_pods(plane: Client) -> None:
    for name in ("a", "b"):
        await wait_for_pod(plane, name, lambda each: value_at(each, "status", "phase") == "Running")


@pytest.mark.timeout(300)
async def test_tenant_survives_kills_at_each_step_and_leaves_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as setting:
        await setting.create_tenant()
        file = await plane_kubeconfig(setting.management, "blue", tmp_path / "plane.kubeconfig")
        await setting.kill_when(NAMESPACES, bool)
        await setting.wait_for_binding(has_condition("Ready"))

        async with client_of(file) as plane:
            for name in ("a", "b"):
                await plane.create(PODS, pod_named(name))
            await setting.kill_when(PODS, bool)
            await run_pods(plane)
            assert len(await setting.twins()) == 2

            await setting.set_workloads("Drained")
            await setting.kill_when(PODS, is_gone_soon)
            await setting.wait_for_binding(has_condition("Drained"))
            assert await setting.twins() == []
            assert {each["status"]["phase"] for each in await plane.list(PODS)} == {"Pending"}

            await setting.set_workloads("Run")
            await setting.kill_when(PODS, bool)
            await run_pods(plane)
            assert len(await setting.twins()) == 2

            await setting.management.delete(PLANES, object_named("blue"))
            await setting.restart_planes()
            await wait_for(setting.management, PLANES, "blue", until=waits_for_tenant, timeout=TIMEOUT)
            assert len(await plane.list(PODS)) == 2

        await setting.management.delete(CLUSTER_BINDINGS, object_named("blue"))
        await setting.kill_when(ROLE_BINDINGS, is_gone_soon)
        for resource in (CLUSTER_BINDINGS, PLANES):
            await wait_for(setting.management, resource, "blue", until=lambda each: each is None, timeout=TIMEOUT)
        assert await setting.inventory() == []


def waits_for_tenant(plane: Object | None) -> bool:
    return "`tapestry tenant delete blue`" in value_at(plane, "status", "message", default="")


@pytest.mark.timeout(300)
async def test_forced_deletion_survives_a_kill_and_leaves_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as setting:
        await setting.create_tenant()
        await setting.wait_for_binding(has_condition("Ready"))
        [namespace] = await setting.host.list(NAMESPACES, labels=OF_TENANTS)
        setting.cluster.kill()

        patch = {"metadata": {"annotations": {keys.FORCE_UNBIND: "true"}}}
        binding = await setting.management.patch(CLUSTER_BINDINGS, object_named("blue"), patch)
        await setting.management.delete(CLUSTER_BINDINGS, object_named("blue"))
        record = object_named(record_name(uid_of(binding)), HOSTS_NAMESPACE)["metadata"]
        target = CONFIGMAPS, record["name"], record["namespace"]
        await wait_for(setting.management, *target, until=bool, timeout=TIMEOUT)
        await setting.restart_planes()
        await setting.wait_for_binding(lambda each: each is None)
        assert (await setting.management.get(*target))["data"]["namespace"] == name_of(namespace)

        await asyncio.to_thread(setting.cluster.start)
        await wait_for(setting.management, *target, until=lambda each: each is None, timeout=TIMEOUT)
        assert await setting.inventory() == []
