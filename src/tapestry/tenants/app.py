"""Tenants in a process of planes: connections to host clusters, and a syncer beside the plane of each tenant."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from tapestry.apis.clusterbindings import CLUSTER_BINDING, CLUSTER_BINDINGS, is_tenant
from tapestry.apis.hostclusters import HOST_CLUSTER, HOST_CLUSTERS
from tapestry.apis.planes import PLANES, plane_id
from tapestry.apis.policies import POLICIES, POLICY
from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.controller import Informer, Manager
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controller.informer_views import PartViews, WholeViews
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.dns.resolver_config import read_resolver_config
from tapestry.kube.objects import Object, name_of, uid_of, value_at
from tapestry.planes import plane_ports
from tapestry.planes.app import PlaneProcess, client_of
from tapestry.planes.management import apply_definition, create_namespace, process_identity
from tapestry.planes.open_plane import OpenPlane, SyncerRule
from tapestry.planes.plane_ports import PlanePorts
from tapestry.planes.plane_set import PlaneEntry
from tapestry.process.metrics import served_metrics
from tapestry.syncer.cache_transforms import with_changed_at
from tapestry.tenants import host_clusters, leftovers, reclaim_controller, tenant_controller
from tapestry.tenants.host_clusters import HOSTS_NAMESPACE, HostClusters
from tapestry.tenants.host_connection import Connect
from tapestry.tenants.plane_deletion import obstacle_to_deletion
from tapestry.tenants.syncer_liveness import SyncerLiveness, plane_state, planes_by_id
from tapestry.tenants.tenant_controller import oldest, plane_of
from tapestry.tenants.tenant_dns import DNS_PORTS, TenantDns
from tapestry.tenants.tenant_metrics import TenantCollector
from tapestry.tenants.tenant_preparation import Preparation
from tapestry.tenants.tenant_runner import TenantRunner
from tapestry.tenants.tenant_set import TenantSet
from tapestry.tenants.tenant_syncer import ManagementCaches
from tapestry.tenants.tenant_wiring import wire


@dataclass(frozen=True)
class Tenants:
    """The tenants of a process and their host clusters."""

    clusters: HostClusters
    tenants: TenantSet


@asynccontextmanager
async def run_tenants(process: PlaneProcess, connect: Connect = HttpTransport) -> AsyncIterator[None]:
    """Run the syncers of tenants beside the planes of a process. An extension of `run_planes`."""
    await prepare_management_api(client_of(process.management))
    manager, tenants = tenants_manager(process), TenantSet()
    async with asyncio.TaskGroup() as group:
        clusters = HostClusters(group, connect)
        dns = tenant_dns(manager, process, clusters, group)
        ports = PlanePorts(dns.listen, process.endpoints.ports.host, process.config.dns_ports, DNS_PORTS)
        synced = asyncio.Event()
        manager.after_sync(synced.set)
        manager.register(
            "tenants",
            partial(install, process=process, clusters=clusters, tenants=tenants, dns=dns, dns_ports=ports),
        )
        policies = operator_policies(manager)
        collector = TenantCollector(clusters, tenants, manager.informer(HOST_CLUSTERS), policies, process.now)
        running = group.create_task(manager.run(), name="tenants")
        try:
            await synced.wait()
            with served_metrics(collector):
                yield
        finally:
            manager.stop()
            await asyncio.wait([running])
            await ports.close_all()
            await clusters.close()


async def prepare_management_api(client: Client) -> None:
    """Create the kinds of tenants in the management API, and the namespace with the kubeconfigs of host clusters."""
    for kind in (HOST_CLUSTER, CLUSTER_BINDING, POLICY):
        await apply_definition(client, kind)
    await create_namespace(client, HOSTS_NAMESPACE)


def tenants_manager(process: PlaneProcess) -> Manager:
    """Return a manager of the management API, which works in each process for the planes that it holds."""
    handler = process.management.request_handler
    config = ManagerConfig(name="tenants", metrics=Metrics(address=""), probes=Probes(address=""))
    return Manager(
        config,
        lambda: InProcessTransport(handler, APISERVER_USER),
        identity=process_identity(process.config),
        now=process.now,
    )


def operator_policies(manager: Manager) -> Informer:
    return manager.informer(POLICIES, transform=with_changed_at).with_managed_fields()


def tenant_dns(manager: Manager, process: PlaneProcess, clusters: HostClusters, group: asyncio.TaskGroup) -> TenantDns:
    """Return the resolvers of planes, with the settings of the management API and of this machine."""
    bindings = manager.informer(CLUSTER_BINDINGS)

    def tenants_at(host: str, address: str) -> set[str]:
        connected = clusters.get(host)
        return connected.connection.tenants_at(address) if connected is not None else set()

    return TenantDns(
        process.plane_set,
        manager.informer(HOST_CLUSTERS),
        lambda id: oldest(bindings.store.by("plane", id)),
        tenants_at,
        read_resolver_config(),
        group,
    )


def install(
    manager: Manager,
    process: PlaneProcess,
    clusters: HostClusters,
    tenants: TenantSet,
    dns: TenantDns,
    dns_ports: PlanePorts,
) -> None:
    """Add the controllers of host clusters and of tenants, and run syncers beside planes from now on."""
    plane_set, endpoints = process.plane_set, process.endpoints
    bindings, planes = manager.informer(CLUSTER_BINDINGS), manager.informer(PLANES, indexers={"id": planes_by_id})

    liveness = SyncerLiveness(planes, plane_set, tenants, process.processes)
    preparation = Preparation(
        endpoints.ports.port_of, endpoints.ports.host, dns_ports.port_of, process.tls.set_extra_names
    )
    host_clusters.install(manager, clusters, process.processes.is_candidate)
    leftovers.install(manager, clusters, process.processes.is_candidate)
    recheck = tenant_controller.install(
        *(manager, clusters, tenants, preparation, liveness.is_responsible, plane_set.syncer_transport)
    )
    recheck_reclaim = reclaim_controller.install(manager, clusters, liveness.is_syncer_live)
    management = ManagementCaches(
        bindings=PartViews(bindings, uid_of, name_of),
        hosts=WholeViews(manager.informer(HOST_CLUSTERS)),
        policies=WholeViews(operator_policies(manager)),
    )

    def restrict_plane(old: Object | None, new: Object | None) -> None:
        """Let only the syncer write the nodes of a plane while the plane has a binding."""
        binding = new or old
        if binding is None or not is_tenant(binding):
            return
        current = oldest(bindings.store.by("plane", plane_of(binding)))
        rule = SyncerRule(schedules_pods=placement_of(current) == "host") if current is not None else None
        plane_set.restrict_to_syncer(plane_of(binding), rule)

    bindings.on_change(restrict_plane)
    runner = TenantRunner(tenants, management, partial(wire, tenants), manager.now)

    async def run_beside(entry: PlaneEntry, plane: OpenPlane) -> None:
        try:
            await runner.run_beside(entry, plane)
        finally:
            if dns_ports.port_of(entry.id) is not None:
                dns.keep_names(plane)

    plane_set.run_with_planes(run_beside)
    plane_set.on_change(lambda entry: recheck(entry.id))
    plane_set.obstacle_to_deletion = partial(obstacle_to_deletion, manager.client)
    install_dns_ports(manager, process, dns_ports, dns)
    tenants.on_run(recheck_reclaim)
    planes.on_change(partial(recheck_if_moved, recheck_reclaim))

    def recheck_all() -> None:
        recheck_reclaim("")
        for entry in plane_set:
            recheck(entry.id)

    manager.run_always("liveness", lambda: liveness.watch_processes(recheck_all))


def recheck_if_moved(recheck: Callable[[str], None], old: Object | None, new: Object | None) -> None:
    """Check the tenant of a plane again that another process holds now, or that was opened or closed."""
    if plane_state(old) != plane_state(new) and (plane := new or old) is not None:
        recheck(plane_id(plane))


def install_dns_ports(manager: Manager, process: PlaneProcess, ports: PlanePorts, dns: TenantDns) -> None:
    """Give each plane with a tenant a port of the DNS resolver."""
    bindings, planes = manager.informer(CLUSTER_BINDINGS), manager.informer(PLANES)

    def is_needed(id: str) -> bool:
        return dns.tenant_of(id) is not None

    def planes_of(binding: Object) -> Iterator[str]:
        wanted = plane_of(binding) if is_tenant(binding) else ""
        return (name_of(each) for each in planes.store.list() if plane_id(each) == wanted)

    controller = plane_ports.install(manager, "dns-ports", process.config.name, ports, is_needed=is_needed)
    controller.watch(bindings, planes_of)


def placement_of(binding: Object) -> str:
    placement: str = value_at(binding, "spec", "placement", default="host")
    return placement
