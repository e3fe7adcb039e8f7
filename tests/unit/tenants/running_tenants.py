"""Host clusters with simulated kubelets, and processes of planes whose tenants run there."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.planes import PLANES, plane_id
from tapestry.apiserver.core.requests import MASTERS_GROUP, User
from tapestry.cli.planes import mounted_routes
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.watch import wait_for
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object, object_named, value_at
from tapestry.kube.resources import PODS
from tapestry.local.cluster import ClusterPlan, run_kubelets
from tapestry.local.control_planes import RunningCluster, tapestry_control_plane
from tapestry.manager.join_steps import Cluster
from tapestry.planes.app import BuildAdmission, PlaneProcess, client_of, run_planes
from tapestry.planes.config import PlanesConfig
from tapestry.planes.open_plane import OpenPlane
from tapestry.tenants.app import run_tenants
from tapestry.tenants.host_registration import AddedHost, HostPlan, add_host

from .host_requests import HostRequests, described

TIMEOUT = 30.0
TENANT_ADMIN = User("admin", (MASTERS_GROUP,))


@dataclass(frozen=True)
class HostWorld:
    """A host cluster and a process of planes."""

    host: RunningCluster
    process: PlaneProcess
    management: Client
    requests: HostRequests

    async def add_host(self, kubeconfig: Path, name: str = "east", policy: Object | None = None, **spec: Any) -> None:
        """Add the host cluster as `tapestry host add` does: with limited rights, and a policy for all of its nodes."""
        access = load_access([kubeconfig], None, environ={})
        async with Client(HttpTransport(access)) as host:
            clusters = AddedHost(
                Cluster("management", self.management, print), Cluster("host", host, print), access, HttpTransport
            )
            policies = ({"spec": policy},) if policy is not None else ()
            plan = HostPlan(name, {"allowLoopback": True, **spec}, policies=policies)
            await add_host(plan, clusters, datetime.now(UTC))

    async def add_tenant(
        self,
        plane: str,
        host: str = "east",
        controllers: Sequence[str] = ("volumes",),
        in_plane: Object | None = None,
        **spec: Any,
    ) -> str:
        """Create a plane with a tenant, wait until it runs, and return the id of the plane.

        The plane has these controllers besides the default ones, and the other fields of `in_plane`.
        """
        content = {"backend": "memory", "controllers": ["*", *controllers], **(in_plane or {})}
        created = await self.management.create(PLANES, {**object_named(plane), "spec": content})
        found = await wait_for(
            self.management,
            PLANES,
            plane,
            until=lambda each: value_at(each, "status", "id") is not None,
            timeout=TIMEOUT,
        )
        assert created
        assert found is not None
        id = plane_id(found)
        binding = {"clusterID": plane, "virtualCluster": id, "hostCluster": host, **spec}
        await self.management.create(CLUSTER_BINDINGS, {**object_named(plane), "spec": binding})
        await self.wait_for_binding(plane, lambda each: each is not None and is_condition_true(each, "Ready"))
        return id

    async def wait_for_binding(self, name: str, until: Callable[[Object | None], bool]) -> Object | None:
        return await wait_for(self.management, CLUSTER_BINDINGS, name, until=until, timeout=TIMEOUT)

    def plane(self, id: str) -> OpenPlane:
        entry = self.process.plane_set.get(id)
        assert entry is not None
        assert entry.plane is not None
        return entry.plane

    def tenant_client(self, id: str, user: User = TENANT_ADMIN) -> Client:
        """Return a client of a plane with the rights of its administrator."""
        return Client(InProcessTransport(self.plane(id).opened.request_handler, user))


@asynccontextmanager
async def host_world(folder: Path, nodes: int = 2, **options: Any) -> AsyncIterator[HostWorld]:
    """Run a host cluster with simulated nodes, added as `east`, and a process of planes.

    Fail if the process lacked a right in the host cluster.
    """
    async with bare_world(folder, nodes, **options) as world:
        await world.add_host(folder / "host" / "kubeconfig")
        yield world
    assert list(described(world.requests.denied)) == []


@asynccontextmanager
async def bare_world(
    folder: Path, nodes: int = 1, admission: BuildAdmission | None = None, **options: Any
) -> AsyncIterator[HostWorld]:
    """Run a host cluster with simulated nodes, and a process of planes that does not know it."""
    requests = HostRequests()
    plan = ClusterPlan(folder / "host", nodes=nodes)
    config = PlanesConfig(**{"data": str(folder / "planes"), "name": "here", "address": "127.0.0.1:0", **options})
    async with (
        tapestry_control_plane(plan.folder) as host,
        run_kubelets(plan, host),
        run_planes(
            config, mounted_routes, extension=partial(run_tenants, connect=requests.connect), admission=admission
        ) as process,
    ):
        yield HostWorld(host, process, client_of(process.management), requests)


async def run_pod(client: Client, name: str = "work", **spec: Any) -> Object:
    """Create a pod and wait until it runs."""
    await client.create(PODS, pod_named(name, **spec))
    return await wait_for_pod(client, name, lambda each: value_at(each, "status", "phase") == "Running")


def pod_named(name: str, namespace: str = "default", **spec: Any) -> Object:
    container = {
        "name": "c",
        "image": "busybox:1",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    return {**object_named(name, namespace), "spec": {"containers": [container], "securityContext": security, **spec}}


async def wait_for_pod(
    client: Client, name: str, until: Callable[[Object | None], bool], namespace: str = "default"
) -> Object:
    found = await wait_for(client, PODS, name, namespace, until=until, timeout=TIMEOUT)
    assert found is not None
    return found
