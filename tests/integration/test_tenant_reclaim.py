"""The process that holds a tenant is killed, and the owner of the host cluster takes the nodes back at once.

Another process, which shares its etcd, deletes the twins.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.unit.tenants.running_tenants import run_pod

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.ownership import MAX_GRACE_SECONDS, is_ending_in_time
from tapestry.apis.planes import plane_id
from tapestry.apis.policies import POLICIES
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller.config import LeaderElection
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object, name_of, object_named, value_at
from tapestry.kube.resources import EVENTS, NAMESPACES, PODS
from tapestry.tenants.host_connection import SHARED_NAMESPACE
from tapestry.tenants.host_registration import HostPlan

from .etcds import Etcd
from .plane_clients import client_of, created_plane, plane_kubeconfig, together
from .servers import ClusterProcess, PlanesProcess
from .tenant_processes import OF_TENANTS, add_host_cluster

TIMEOUT = 60.0
RECLAIM_SECONDS = LeaderElection().lease_seconds + 5
"""Seconds from a kill until a twin is being deleted: the Lease of the process expires, and 5 s on busy machines."""
OWNERS_POLICY: Object = {"spec": {"forceReclaim": True}}


@dataclass(frozen=True)
class Group:
    """Processes of planes, of which `holder` holds all, and a host cluster."""

    holder: PlanesProcess
    other: PlanesProcess
    host: Client
    folder: Path

    async def create_tenant(self, management: Client, name: str) -> None:
        """Create a tenant, and run a pod there that may take ten minutes to end."""
        id = plane_id(await created_plane(management, name, backend="etcd"))
        spec = {"clusterID": id, "virtualCluster": id, "hostCluster": "east"}
        await management.create(CLUSTER_BINDINGS, {**object_named(name), "spec": spec})
        await wait_for(management, CLUSTER_BINDINGS, name, until=is_ready, timeout=TIMEOUT)
        async with client_of(await plane_kubeconfig(management, name, self.folder / f"{name}.yaml")) as client:
            await run_pod(client, terminationGracePeriodSeconds=600)

    async def set_kill_switch(self) -> None:
        mark = {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
        await self.host.patch(NAMESPACES, object_named(SHARED_NAMESPACE), mark)

    async def close_window(self) -> None:
        start = datetime.now(UTC) + timedelta(hours=11)
        window = {"start": f"{start:%H:%M}", "end": f"{start + timedelta(hours=1):%H:%M}"}
        await self.host.patch(POLICIES, object_named("east"), {"spec": {"timeWindows": [window]}})


def is_ready(binding: Object | None) -> bool:
    return binding is not None and is_condition_true(binding, "Ready")


@asynccontextmanager
async def running_group(assets: Path, folder: Path) -> AsyncIterator[Group]:
    """Run a process with the tenant `blue`, and then another one."""
    async with AsyncExitStack() as stack:
        etcd, cluster = stack.enter_context(Etcd(assets, folder)), ClusterProcess(folder / "host", "--nodes", "2")
        flags = ("--backend", "etcd", "--etcd-servers", etcd.url, "--group-key", str(folder / "group.key"))
        holder, other = (PlanesProcess(folder / name, "--name", name, *flags) for name in ("holder", "other"))
        for each in (holder, other, cluster):
            stack.callback(each.kill)
        await together(asyncio.to_thread(each.start) for each in (holder, cluster))
        host = await stack.enter_async_context(client_of(cluster.kubeconfig))
        group = Group(holder, other, host, folder)
        async with client_of(holder.kubeconfig) as management:
            plan = HostPlan("east", {"allowLoopback": True}, policies=(OWNERS_POLICY,), is_owners_policy=True)
            await add_host_cluster(plan, management, cluster)
            await group.create_tenant(management, "blue")
        await asyncio.to_thread(other.start)
        yield group


def is_gone_soon(twin: Object | None) -> bool:
    return twin is None or is_ending_in_time(twin)


def has_ended(pod: Object | None) -> bool:
    """Return whether a pod is deleted, as by any reclaim, or has failed because its twin was found to be gone."""
    return pod is None or value_at(pod, "status", "reason") == "PhysicalPodLost"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("reclaim", [Group.set_kill_switch, pytest.param(Group.close_window, marks=pytest.mark.long)])
async def test_other_process_reclaims_twins_of_killed_one(
    reclaim: Callable[[Group], Awaitable[None]], kube_assets: Path, tmp_path: Path
) -> None:
    async with running_group(kube_assets, tmp_path) as group, client_of(group.other.kubeconfig) as management:
        [twin] = await group.host.list(PODS, labels=OF_TENANTS)
        assert not is_gone_soon(twin)
        group.holder.kill()
        await reclaim(group)
        where = PODS, name_of(twin), twin["metadata"]["namespace"]
        await wait_for(group.host, *where, until=is_gone_soon, timeout=RECLAIM_SECONDS)
        await wait_for(group.host, *where, until=lambda each: each is None, timeout=MAX_GRACE_SECONDS)
        await asyncio.to_thread(group.holder.start)
        async with client_of(tmp_path / "blue.yaml") as plane:
            await wait_for(plane, PODS, "work", "default", until=has_ended, timeout=TIMEOUT)
        assert await group.host.list(PODS, labels=OF_TENANTS) == []
        events = [each for each in await management.list(EVENTS) if each["reason"] == "Reclaimed"]
        assert [value_at(each, "involvedObject", "name") for each in events] == ["blue"]
