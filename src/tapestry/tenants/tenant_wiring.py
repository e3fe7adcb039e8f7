"""Wiring of the syncer of a tenant: its controllers, and the watch events that requeue their keys."""

import asyncio

from tapestry.kube.objects import Object
from tapestry.planes.open_plane import OpenPlane
from tapestry.syncer.components import SUMMARY_SECONDS, Syncer
from tapestry.syncer.node_wiring import NodeWiring, is_always_needed, wire_nodes
from tapestry.syncer.open_nodes import OpenNodes
from tapestry.syncer.partition import PartitionDetector
from tapestry.syncer.pod_wiring import RequeuePod, wire_pods
from tapestry.syncer.predicates import spec_changed
from tapestry.syncer.topdown.admitter import Admitter
from tapestry.syncer.topdown.host_scheduling import HostScheduling, NeededNodes
from tapestry.syncer.topdown.pod_status_writer import PodStatusWriter
from tapestry.tenants.host_access import wire_host_access
from tapestry.tenants.leased_nodes import network_conditions
from tapestry.tenants.sync.other_kinds import OtherKinds
from tapestry.tenants.sync.services import TenantServices, wire_tenant_services
from tapestry.tenants.sync.storage_classes import wire_storage_classes
from tapestry.tenants.sync.volumes import TenantVolumes, wire_volumes
from tapestry.tenants.tenant_report import tenant_report
from tapestry.tenants.tenant_set import TenantSet, TenantSlot
from tapestry.tenants.tenant_syncer import TenantSyncer

UPWARD_CONTROLLERS = frozenset(
    {"nodes", "totals", "csinodes", "hostports", "pod-status", "storage-classes", "report", "unscheduled-pods"}
)
"""Controllers that carry nothing from the plane to the host cluster."""


def wire(tenants: TenantSet, running: TenantSyncer, plane: OpenPlane, slot: TenantSlot) -> None:
    """Connect the controllers of a tenant's syncer."""
    syncer = running.syncer
    manager, caches, identity = syncer.manager, syncer.caches, syncer.identity
    needed = NeededNodes(caches)
    is_pseudo = identity.schedules_on_host and not running.tenant.sync.nodes
    nodes = wire_nodes(syncer, needed.is_needed if is_pseudo else is_always_needed)
    services = wire_tenant_services(syncer, running.tenant.addresses)
    kinds = OtherKinds(running.tenant, syncer, services.leased_nodes)

    def host_scheduling(writer: PodStatusWriter, admitter: Admitter, requeue_pod: RequeuePod) -> HostScheduling:
        open_nodes = OpenNodes(caches, nodes.leases, manager.now)
        clients = syncer.clients
        return HostScheduling(
            *(caches, clients, manager.now, open_nodes, writer, admitter.closure, requeue_pod, nodes.requeue_node),
            needed_nodes=needed,
        )

    pods = wire_pods(
        *(
            syncer,
            nodes.leases,
            lambda _syncer, _requeue: services,
            lambda _syncer, _copies, _writer, requeue: wire_volumes(syncer, requeue),
        ),
        host_scheduling if identity.schedules_on_host else None,
        kinds.twin_settings,
    )
    kinds.wire(pods.copies, pods.requeue_pod)

    def requeue_everything() -> None:
        nodes.requeue_every_node()
        pods.requeue_every_pod()
        pods.volumes.requeue_all()
        kinds.resync()

    def requeue_if_changed(old: Object | None, new: Object | None) -> None:
        """Handle a change of what all tenants of a host share: the owner's kill switch, and the HostCluster."""
        if spec_changed(old, new):
            requeue_everything()

    running.views.shared_namespace.on_change(requeue_if_changed)
    running.hosts.on_change(requeue_if_changed)

    detector = PartitionDetector(
        *(identity, syncer.current_binding, caches, syncer.clients, syncer.partition, syncer.config.silence_seconds),
        requeue_everything,
        sends_probes=False,
    )
    manager.run_while_leading("partition", detector.run)
    wire_host_access(running, plane)
    wire_storage_classes(syncer, running.hosts, running.views.storage_classes)
    wire_report(tenants, syncer, nodes, services, pods.volumes, plane, slot)


def wire_report(
    tenants: TenantSet,
    syncer: Syncer,
    nodes: NodeWiring,
    services: TenantServices,
    volumes: TenantVolumes,
    plane: OpenPlane,
    slot: TenantSlot,
) -> None:
    """Report the usage of the tenant, some time after it has changed."""
    caches, name = syncer.caches, syncer.identity.binding_name
    slot.report = lambda: tenant_report(
        syncer, nodes.leases, plane, volumes.twins.store.list(), network_conditions(services.leased_nodes)
    )

    downward = [each for each in syncer.manager.controllers if each.name not in UPWARD_CONTROLLERS]
    loop_time = asyncio.get_running_loop().time
    slot.sync_lag = lambda: max(each.queue.lag(loop_time()) for each in downward)

    async def report(_: str) -> None:
        tenants.reported(plane.id)

    controller = syncer.manager.controller("report", report, workers=1)
    controller.watch(caches.virtual_nodes, lambda _: [name], after=SUMMARY_SECONDS)
    controller.watch(caches.virtual_pods, lambda _: [name], after=SUMMARY_SECONDS)
    controller.watch(caches.physical_pods, lambda _: [name], after=SUMMARY_SECONDS)
    controller.watch(volumes.twins, lambda _: [name], after=SUMMARY_SECONDS)
    services.leased_nodes.on_change(lambda: controller.queue.add(name))
