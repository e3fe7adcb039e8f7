"""Test world of tenants: a management API, a host cluster and planes in process, and the process of their tenants.

Time is virtual. The process is the real one without its planes: the controllers of host clusters and of tenants, and
the syncer of each tenant with all of its controllers. Tests act as users, and as the scheduler and the kubelets of the
host cluster.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.apis.names import physical_name, virtual_cluster_label
from tapestry.apis.planes import PLANES, plane_id
from tapestry.apis.policies import POLICIES
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.host_access import HostAccess
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.options import PatchType
from tapestry.client.transport import Transport
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controller.informer_views import PartViews, WholeViews
from tapestry.controller.testing import InProcessApi, Scenario, running_clock
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, annotations_of, is_deleting, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import NAMESPACES, NODES, PODS, SECRETS, Resource
from tapestry.kube.times import timestamp
from tapestry.syncer.cache_transforms import with_changed_at
from tapestry.tenants import host_clusters, leftovers, reclaim_controller, tenant_controller
from tapestry.tenants.host_clusters import HOSTS_NAMESPACE, HostClusters
from tapestry.tenants.syncer_liveness import planes_by_id
from tapestry.tenants.tenant_controller import plane_of
from tapestry.tenants.tenant_preparation import Preparation
from tapestry.tenants.tenant_runner import TenantRunner
from tapestry.tenants.tenant_set import TenantSet, TenantSlot
from tapestry.tenants.tenant_syncer import ManagementCaches, TenantSyncer
from tapestry.tenants.tenant_wiring import wire

from ..syncer.world import A_DAY, Link, ca_certificate
from ..syncer.world import SERVED as KINDS_OF_SYNCERS
from .sync.twin_world import SyncerLink

SERVED = [*KINDS_OF_SYNCERS, HOST_CLUSTERS, PLANES]
CONFIG = ManagerConfig(name="tenants", metrics=Metrics(address=""), probes=Probes(address=""))
HOST = "east"
HOST_SERVER = "https://127.0.0.1:6443"
Until = Callable[[Object], bool]


@dataclass(frozen=True)
class Plane:
    """What the work beside an open plane uses of it."""

    id: str
    connect: Callable[[], Transport]
    """Return a transport of the syncer."""
    host_access: HostAccess = field(default_factory=HostAccess)
    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of objects that the plane reports, by the name of their resource."""
    hold: Any = None
    """Right of the process to the plane, with a fence."""

    def syncer_transport(self) -> Transport:
        return self.connect()

    @property
    def opened(self) -> Any:
        store = SimpleNamespace(list_objects=lambda name: [None] * self.counts.get(name, 0))
        server = SimpleNamespace(host_access=self.host_access)
        return SimpleNamespace(server=server, store=store, config=ApiServerConfig())


@dataclass
class TenantProcess:
    """A process that takes care of tenants, and what a test may observe or change of it."""

    planes: list[Plane] = field(default_factory=list)
    holds_planes: bool = True
    down: Link | None = None
    """Link of its own to the host cluster."""
    is_responsible: Callable[[str], bool] = lambda _: True
    """Return whether the process has a plane. It does not have one that is suspended."""
    writes_status: Callable[[str], bool] = lambda _: True
    tenants: TenantSet = field(default_factory=TenantSet)
    recheck: Callable[[str], None] = lambda _: None
    """Check the tenant of a plane again, as when the process takes or loses the plane."""
    recheck_reclaim: Callable[[str], None] = lambda _: None
    """Check whether the tenant of a plane has a syncer again."""
    runs_elsewhere: Callable[[str], bool] = lambda _: False
    """Return whether the syncer of a plane's tenant runs in another process."""
    clusters: HostClusters | None = None
    managers: list[Manager] = field(default_factory=list)

    async def run(self, management: Callable[[], Transport], connect: Callable[[Access], Transport]) -> None:
        """Run until cancelled."""
        clock = running_clock()
        manager = Manager(CONFIG, management, identity="process", now=clock.now, monotonic=clock.monotonic)
        async with asyncio.TaskGroup() as group:
            clusters = self.clusters = HostClusters(group, connect, clock.monotonic)
            runner = self.install(manager, clusters)
            for plane in self.planes:
                group.create_task(runner.run_beside(plane, plane), name=f"plane-{plane.id}")
            await manager.run()

    def syncer_transport(self, id: str) -> Transport | None:
        return next((each.syncer_transport() for each in self.planes if each.id == id), None)

    def is_syncer_live(self, binding: Object) -> bool:
        return self.tenants.is_running(plane_of(binding)) or self.runs_elsewhere(plane_of(binding))

    def install(self, manager: Manager, clusters: HostClusters) -> TenantRunner:
        clock = running_clock()
        preparation = Preparation(lambda _: None, "", lambda _: None, lambda _plane, _names: None, clock.monotonic)

        def install_controllers(manager: Manager) -> None:
            planes = manager.informer(PLANES, indexers={"id": planes_by_id})

            def has_plane(id: str) -> bool:
                states = [value_at(each, "spec", "state") for each in planes.store.by("id", id)]
                return self.is_responsible(id) and "Suspended" not in states

            host_clusters.install(manager, clusters, self.writes_status)
            leftovers.install(manager, clusters, self.writes_status)
            self.recheck = tenant_controller.install(
                *(manager, clusters, self.tenants, preparation, has_plane, self.syncer_transport)
            )
            self.recheck_reclaim = reclaim_controller.install(manager, clusters, self.is_syncer_live)
            self.tenants.on_run(self.recheck_reclaim)
            planes.on_change(lambda old, new: self.recheck(plane_id(new or old or {})))

        def wire_syncer(running: TenantSyncer, plane: Plane, slot: TenantSlot) -> None:
            self.managers.append(running.syncer.manager)
            wire(self.tenants, running, plane, slot)

        self.managers.append(manager)
        manager.register("tenants", install_controllers)
        bindings = manager.informer(CLUSTER_BINDINGS)
        policies = manager.informer(POLICIES, transform=with_changed_at).with_managed_fields()
        management = ManagementCaches(
            PartViews(bindings, uid_of, name_of), WholeViews(manager.informer(HOST_CLUSTERS)), WholeViews(policies)
        )
        return TenantRunner(self.tenants, management, wire_syncer, clock.now)


@dataclass(frozen=True)
class ProcessController:
    """A process of tenants in the place of a controller, for the perturbation driver."""

    process: TenantProcess
    management: Transport
    host: Transport
    name: str = "process"

    async def run(self) -> None:
        await self.process.run(lambda: self.management, lambda _: self.host)

    def resync(self) -> None:
        for manager in self.process.managers:
            for each in manager.controllers:
                each.resync()


async def run_perturbed_process(manager: Manager, host: Transport, management: Transport) -> None:
    created = await wait_for(Client(management), PLANES, "blue", until=bool, timeout=A_DAY)
    assert created is not None
    transport = manager.client.transport

    process = TenantProcess([Plane(plane_id(created), lambda: transport)])
    controller = ProcessController(process, management, host)
    manager.register("process", lambda each: each.controllers.append(controller))


def tenant_scenario(story: "Story", counts: Callable[[str], bool]) -> Scenario:
    """Return a scenario for the perturbation driver: a process, its host cluster and a tenant that is ready."""

    async def world(plane: Client, host: Client, management: Client) -> None:
        tenants = Tenants(management, host, {"blue": plane})
        await tenants.add_host()
        await tenants.add_tenant()
        await tenants.wait_until_ready()
        await story(tenants)
        await asyncio.sleep(200)  # a node that no pod needs goes after a minute

    name = story.__name__.replace("_", " ")
    others = [SERVED, SERVED]
    return Scenario(name, SERVED, run_perturbed_process, world, CONFIG, others=others, counts=counts, is_plane=True)


@dataclass
class Tenants:
    """The clusters of tenants, and the actions of users and of the components of the host cluster."""

    management: Client
    host: Client
    planes: dict[str, Client] = field(default_factory=dict)
    """Clients of tenants, by the name of the plane."""

    # -- the management API

    async def add_host(self, name: str = HOST, *, policy: Object | None = None, nodes: int = 2, **spec: Any) -> None:
        """Add the host cluster with some nodes, and a policy for all of them."""
        await self.host.create(NAMESPACES, object_named("kube-system"))
        for number in range(1, nodes + 1):
            await self.add_node(f"n{number}")
        await self.management.create(POLICIES, {**object_named(name), "spec": {"cluster": name, **(policy or {})}})
        await self.add_kubeconfig(name)
        await self.management.create(HOST_CLUSTERS, new_host(name, **spec))

    async def add_kubeconfig(self, name: str = HOST, server: str = HOST_SERVER) -> None:
        data = {"kubeconfig": kubeconfig(server)}
        await self.management.create(SECRETS, {**object_named(name, HOSTS_NAMESPACE), "data": data})

    async def set_kubeconfig(self, name: str = HOST, server: str = HOST_SERVER) -> None:
        data = {"kubeconfig": kubeconfig(server)}
        await self.management.patch(SECRETS, object_named(name, HOSTS_NAMESPACE), {"data": data})

    async def add_binding(self, plane: str = "blue", name: str = "", **spec: Any) -> None:
        """Create a tenant of a plane that exists."""
        id = plane_id(await self.management.get(PLANES, plane))
        content = {"clusterID": plane, "virtualCluster": id, "hostCluster": HOST, "isolation": {"mode": "lite"}, **spec}
        await self.management.create(CLUSTER_BINDINGS, {**object_named(name or plane), "spec": content})

    async def add_tenant(self, plane: str = "blue", **spec: Any) -> None:
        await self.management.create(PLANES, {**object_named(plane), "spec": {}})
        await self.add_binding(plane, **spec)

    async def binding(self, name: str = "blue") -> Object:
        return await self.management.get(CLUSTER_BINDINGS, name)

    async def set_binding(self, name: str = "blue", **spec: Any) -> None:
        await self.management.patch(CLUSTER_BINDINGS, object_named(name), {"spec": spec})

    async def set_policy(self, name: str = HOST, **spec: Any) -> None:
        await self.management.patch(POLICIES, object_named(name), {"spec": spec})

    async def wait_for_binding(self, until: Until, name: str = "blue", *, timeout: float = A_DAY) -> None:
        await wait_for(
            *(self.management, CLUSTER_BINDINGS, name),
            until=lambda each: each is not None and until(each),
            timeout=timeout,
        )

    async def host_cluster(self, name: str = HOST) -> Object:
        return await self.management.get(HOST_CLUSTERS, name)

    async def wait_for_host(self, until: Until, name: str = HOST, *, timeout: float = A_DAY) -> Object:
        found = await wait_for(
            *(self.management, HOST_CLUSTERS, name),
            until=lambda each: each is not None and until(each),
            timeout=timeout,
        )
        assert found is not None
        return found

    async def wait_until_binding_is_gone(self, name: str = "blue") -> None:
        await wait_for(self.management, CLUSTER_BINDINGS, name, until=lambda each: each is None, timeout=A_DAY)

    async def wait_until_host_is_gone(self, name: str = HOST) -> None:
        await wait_for(self.management, HOST_CLUSTERS, name, until=lambda each: each is None, timeout=A_DAY)

    async def wait_until_ready(self, name: str = "blue") -> None:
        await self.wait_for_binding(lambda each: condition(each, "Ready") == ("True", "Ready"), name)

    # -- the plane

    async def suspend_plane(self, name: str = "blue", *, state: str = "Suspended") -> None:
        await self.management.patch(PLANES, object_named(name), {"spec": {"state": state}})

    async def add_pod(self, name: str = "work", plane: str = "blue", **spec: Any) -> Object:
        content = {"containers": [{"name": "c", "image": "busybox:1"}], "serviceAccountName": "default", **spec}
        return await self.planes[plane].create(PODS, {**object_named(name, "default"), "spec": content})

    async def pod(self, name: str = "work", plane: str = "blue") -> Object:
        return await self.planes[plane].get(PODS, name, "default")

    async def delete_pod(self, name: str = "work", plane: str = "blue", *, grace: int | None = None) -> None:
        await self.planes[plane].delete(PODS, object_named(name, "default"), grace_seconds=grace)

    async def wait_for_pod(
        self, until: Until, name: str = "work", plane: str = "blue", *, timeout: float = A_DAY
    ) -> Object:
        found = await wait_for(
            *(self.planes[plane], PODS, name, "default"),
            until=lambda each: each is not None and until(each),
            timeout=timeout,
        )
        assert found is not None
        return found

    async def wait_for_node(self, physical: str = "n1", plane: str = "blue") -> str:
        """Wait until the plane has a Node for a node of the host cluster, and return its name."""
        async with asyncio.timeout(A_DAY):
            while True:
                for each in await self.planes[plane].list(NODES):
                    if annotations_of(each).get(keys.PHYSICAL_NODE_NAME) == physical:
                        return name_of(each)
                await asyncio.sleep(0.1)

    async def wait_until_pod_is_gone(self, name: str = "work", plane: str = "blue") -> None:
        client = self.planes[plane]
        await wait_for(client, PODS, name, "default", until=lambda each: each is None, timeout=A_DAY)

    # -- the host cluster

    async def add_node(self, name: str, **labels: str) -> None:
        amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
        found = {"kubernetes.io/hostname": name, **labels}
        status = {"capacity": amounts, "allocatable": amounts}
        await self.host.create(NODES, {"metadata": {"name": name, "labels": found}, "status": status})

    async def change_node(self, name: str, patch: Object) -> None:
        await self.host.patch(NODES, object_named(name), patch)

    async def namespace(self, plane: str = "blue") -> str:
        """Return the name of the namespace of a tenant in the host cluster."""
        uid = uid_of(await self.binding(plane))
        [found] = [
            each
            for each in await self.host.list(NAMESPACES)
            if value_at(each, "metadata", "labels", "tapestry.io/cluster-binding-uid") == uid
        ]
        return name_of(found)

    async def finalize_namespace(self, plane: str = "blue") -> None:
        """Let the namespace of a tenant go once it is deleted, with what it contains."""
        name = await self.namespace(plane)
        found = await wait_for(
            self.host, NAMESPACES, name, until=lambda each: each is None or is_deleting(each), timeout=A_DAY
        )
        for each in await self.host.list(PODS, name):
            await self.host.delete(PODS, each, grace_seconds=0)
        if found is not None:
            await self.host.replace(NAMESPACES, {**found, "spec": {"finalizers": []}}, subresource="finalize")

    async def twin_ref(self, name: str = "work", plane: str = "blue") -> Object:
        id = plane_id(await self.management.get(PLANES, plane))
        uid = uid_of(await self.binding(plane))
        return object_named(physical_name(virtual_cluster_label(id), uid, "default", name), await self.namespace(plane))

    async def twin(self, name: str = "work", plane: str = "blue") -> Object:
        ref = (await self.twin_ref(name, plane))["metadata"]
        return await self.host.get(PODS, ref["name"], ref["namespace"])

    async def twins(self, plane: str = "blue") -> list[Object]:
        return await self.host.list(PODS, await self.namespace(plane))

    async def wait_for_twin(
        self, until: Until = bool, name: str = "work", plane: str = "blue", *, timeout: float = A_DAY
    ) -> Object:
        ref = (await self.twin_ref(name, plane))["metadata"]
        found = await wait_for(
            *(self.host, PODS, ref["name"], ref["namespace"]),
            until=lambda each: each is not None and until(each),
            timeout=timeout,
        )
        assert found is not None
        return found

    async def wait_until_twin_is_gone(self, name: str = "work", plane: str = "blue") -> None:
        ref = (await self.twin_ref(name, plane))["metadata"]
        await wait_for(self.host, PODS, ref["name"], ref["namespace"], until=lambda each: each is None, timeout=A_DAY)

    async def place(self, node: str, name: str = "work", plane: str = "blue") -> None:
        """Bind the twin to a node, like the scheduler of the host cluster."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        ref = await self.twin_ref(name, plane)
        binding = {"apiVersion": "v1", "kind": "Binding", **ref, "target": target}
        await self.host.create(PODS, binding, subresource="binding")

    async def set_twin_status(self, name: str = "work", plane: str = "blue", **status: Any) -> None:
        ref = await self.twin_ref(name, plane)
        await self.host.patch(PODS, ref, {"status": status}, type=PatchType.STRATEGIC, subresource="status")

    async def start(self, name: str = "work", plane: str = "blue") -> None:
        """Report that the twin runs."""
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": timestamp(running_clock().now())}
        await self.set_twin_status(name, plane, phase="Running", podIP="10.1.0.1", conditions=[ready])

    async def stop(self, name: str = "work", plane: str = "blue") -> None:
        """Remove the twin at once, like a kubelet."""
        await self.host.delete(PODS, await self.twin_ref(name, plane), grace_seconds=0)

    async def run_pod(self, name: str = "work", node: str = "n1", plane: str = "blue", **spec: Any) -> None:
        """Create a pod and wait until it runs on a node."""
        await self.add_pod(name, plane, **spec)
        await self.wait_for_twin(name=name, plane=plane)
        await self.place(node, name, plane)
        await self.wait_for_pod(is_on(node), name, plane)
        await self.start(name, plane)
        await self.wait_for_pod(has_phase("Running"), name, plane)


Story = Callable[[Tenants], Coroutine[Any, Any, None]]
"""What users and the components of a host cluster do."""


@dataclass
class TenantWorld(Tenants):
    """Clusters of tenants, with links that tests can cut, and processes of tenants."""

    up: Link = field(default_factory=lambda: Link(new_api(0)))
    """Link of processes to the management API."""
    down: Link = field(default_factory=lambda: Link(new_api(1)))
    """Link of processes to the host cluster."""
    plane_links: dict[str, SyncerLink] = field(default_factory=dict)
    accesses: list[Access] = field(default_factory=list)
    """Accesses with which processes connected to host clusters."""

    def connect(self, process: TenantProcess, access: Access) -> Transport:
        self.accesses.append(access)
        return (process.down or self.down).connect()

    async def add_plane(self, name: str) -> None:
        """Create a plane without a tenant."""
        api = InProcessApi(SERVED, now=running_clock().now, seed=10 + len(self.planes), is_plane=True)
        self.planes[name], self.plane_links[name] = Client(api.connect()), SyncerLink(api)
        await self.management.create(PLANES, {**object_named(name), "spec": {}})

    async def open_planes(self) -> list[Plane]:
        return [
            Plane(plane_id(await self.management.get(PLANES, name)), link.connect)
            for name, link in self.plane_links.items()
        ]

    @asynccontextmanager
    async def process(self, process: TenantProcess | None = None) -> AsyncIterator[TenantProcess]:
        """Run a process that holds all planes, and enter after a second."""
        running = process or TenantProcess()
        if running.holds_planes:
            running.planes = running.planes or await self.open_planes()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(running.run(self.up.connect, partial(self.connect, running)))
            await asyncio.sleep(1)
            yield running
            task.cancel()


async def new_world(*planes: str, policy: Object | None = None, nodes: int = 2, **spec: Any) -> TenantWorld:
    """Create a host cluster and planes with tenants; `spec` is part of each binding."""
    up, down = Link(new_api(0)), Link(new_api(1))
    world = TenantWorld(Client(up.api.connect()), Client(down.api.connect()), up=up, down=down)
    await world.add_host(policy=policy, nodes=nodes)
    for name in planes:
        await world.add_plane(name)
        await world.add_binding(name, **spec)
    return world


def new_api(seed: int) -> InProcessApi:
    return InProcessApi(SERVED, now=running_clock().now, seed=seed)


def new_host(name: str = HOST, **spec: Any) -> Object:
    reference = {"name": name, "namespace": HOSTS_NAMESPACE}
    return {**object_named(name), "spec": {"secretRef": reference, "allowLoopback": True, **spec}}


def kubeconfig(server: str) -> str:
    """Return a kubeconfig in base64."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [
            {"name": "c", "cluster": {"server": server, "certificate-authority-data": ca_certificate()}},
        ],
        "users": [{"name": "c", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    }
    return base64.b64encode(json.dumps(document).encode()).decode()


def condition(obj: Object, type: str) -> tuple[str, str] | None:
    """Return the status and the reason of a condition."""
    found = find_condition(value_at(obj, "status", "conditions"), type)
    return (found["status"], found.get("reason", "")) if found else None


def message(obj: Object, type: str) -> str:
    found = find_condition(value_at(obj, "status", "conditions"), type)
    assert found is not None
    text: str = found.get("message", "")
    return text


def has_condition(type: str, status: str, reason: str) -> Until:
    return lambda obj: condition(obj, type) == (status, reason)


def has_phase(expected: str) -> Until:
    return lambda obj: bool(value_at(obj, "status", "phase") == expected)


def is_on(node: str) -> Until:
    """Return a predicate for pods that are bound to a node."""
    return lambda pod: pod["spec"].get("nodeName") == node


def candidates(twin: Object) -> list[str]:
    """Return the nodes from which the scheduler of the host cluster may choose."""
    required = value_at(
        twin, "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"
    )
    found: list[str] = required[0]["matchExpressions"][0]["values"]
    return found


def has_candidates(*nodes: str) -> Until:
    return lambda twin: not is_deleting(twin) and candidates(twin) == list(nodes)


def is_about(*resources: Resource) -> Callable[[str], bool]:
    """Select the calls to disturb: requests about some resources."""
    return lambda call: not call.startswith("watch") and any(f"/{each.plural}" in call for each in resources)
