"""Wiring of the controllers of virtual nodes: the watch events that requeue their keys."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta

from tapestry.controller import Controller
from tapestry.kube.objects import Object, name_of
from tapestry.kube.pods import is_pod_terminal
from tapestry.syncer.bottomup.csinodes import CsiNodeReconciler
from tapestry.syncer.bottomup.hostports import HostPortReconciler
from tapestry.syncer.bottomup.node_leases import NodeLeaseReconciler
from tapestry.syncer.bottomup.nodes import NodeReconciler
from tapestry.syncer.bottomup.reclaimer import Reclaimer
from tapestry.syncer.cache_transforms import foreign_pod_node, physical_node_of, pod_key_of_twin, pod_node_name
from tapestry.syncer.caches import Caches
from tapestry.syncer.components import SUMMARY_SECONDS, Syncer
from tapestry.syncer.grants import waiting_for_grants
from tapestry.syncer.lease_cache import LeaseCache
from tapestry.syncer.predicates import (
    hold_changed,
    involves_foreign_pod,
    is_creation,
    lifecycle_changed,
    ports_changed,
    spec_changed,
    twin_ended,
)
from tapestry.syncer.reclaim import propagates_deletion
from tapestry.syncer.translate.metadata import virtual_key, virtual_node_name_of, virtual_uid
from tapestry.syncer.views import PhysicalPod, Twin, VirtualPod

NODE_WORKERS = 16


@dataclass(frozen=True)
class NodeWiring:
    """Parts of the controllers of virtual nodes that others use."""

    leases: LeaseCache
    reclaimer: Reclaimer
    requeue_node: Callable[[str], None]
    """Requeue a physical node."""
    requeue_every_node: Callable[[], None]


def is_always_needed(_: str) -> bool:
    return True


def wire_nodes(syncer: Syncer, is_needed: Callable[[str], bool] = is_always_needed) -> NodeWiring:
    """Wire the controllers of virtual nodes, one for each leased node of which `is_needed` is true.

    The virtual nodes of a plane have neither heartbeats nor objects for the scheduler.
    """
    caches, manager = syncer.caches, syncer.manager
    binding, clients, partition = syncer.current_binding, syncer.clients, syncer.partition
    now, warning = manager.now, timedelta(seconds=syncer.config.warning_seconds)
    leases = wire_leases(syncer, lambda names: add_all(nodes, names))
    reclaimer = Reclaimer(syncer.identity, binding, caches, clients, now, syncer.pending_disruptions, leases)
    physical = NodeReconciler(
        *(binding, caches, clients, partition, syncer.kubelet, now, warning, leases, reclaimer), is_needed=is_needed
    )
    nodes = manager.controller("nodes", waiting_for_grants(physical.reconcile, now), workers=NODE_WORKERS)
    node_objects = () if syncer.identity.is_tenant else (wire_heartbeats(syncer), *wire_node_objects(syncer))

    def is_synced(name: str) -> bool:
        return caches.virtual_node_of(name) is not None or is_needed(name)

    def every_node(_: Object | None = None) -> Iterable[str]:
        virtual = (name for node in caches.virtual_nodes.store.list() for name in physical_node_of(node))
        return {*filter(is_synced, caches.physical_nodes.store), *virtual}

    def nodes_to_recompute(pod: VirtualPod) -> Iterable[str]:
        return (name for name in physical_node_under(caches, pod.node) if physical.depends_on_pods(name))

    def nodes_reclaiming(pod: PhysicalPod) -> Iterable[str]:
        return (name for name in node_of_twin_without_pod(caches, pod) if physical.depends_on_pods(name))

    def requeue_every_node() -> None:
        for name in every_node():
            nodes.queue.add(name)
        for controller in node_objects:
            for name in caches.virtual_nodes.store:
                controller.queue.add(name)

    nodes.watch(caches.physical_nodes, lambda node: filter(is_synced, [name_of(node)]))
    nodes.watch(caches.physical_pods, foreign_pod_node, when=involves_foreign_pod)
    nodes.watch(caches.physical_pods, lambda pod: node_of_ended_twin(caches, pod), when=twin_ended)
    nodes.watch(caches.physical_pods, lambda pod: nodes_reclaiming(pod), when=is_creation)
    nodes.watch(caches.virtual_nodes, physical_node_of)
    nodes.watch(caches.virtual_pods, lambda pod: nodes_to_recompute(pod), when=hold_changed)
    nodes.watch(caches.virtual_pods, lambda pod: nodes_to_recompute(pod), when=is_creation, after=SUMMARY_SECONDS)
    for informer in (caches.bindings, caches.operator_policies, caches.owner_policies, caches.mount_namespaces):
        nodes.watch(informer, every_node, when=spec_changed)
    for informer in (*caches.lease_informers, caches.csi_nodes):
        informer.after_sync(requeue_every_node)
    if syncer.identity.schedules_on_host:  # names of nodes are the same in both clusters
        nodes.watch(caches.virtual_pods, lambda pod: [pod.node] if pod.node else (), when=lifecycle_changed_or_bound)
    syncer.kubelet.on_change = requeue_every_node
    caches.physical_pods.on_change(syncer.shortages.on_physical_pod_change)
    return NodeWiring(leases, reclaimer, nodes.queue.add, requeue_every_node)


def lifecycle_changed_or_bound(old: VirtualPod | None, new: VirtualPod | None) -> bool:
    return old is None or new is None or old.node != new.node


def wire_heartbeats(syncer: Syncer) -> Controller:
    """Wire the controller of the node Leases of virtual nodes."""
    caches, manager = syncer.caches, syncer.manager
    renewal = NodeLeaseReconciler(caches.virtual_nodes, syncer.partition, syncer.clients.virtual, manager.now)
    renewals = manager.controller(
        "node-leases", waiting_for_grants(renewal.reconcile, manager.now), workers=NODE_WORKERS
    )
    renewals.watch(caches.virtual_nodes, when=lifecycle_changed)
    return renewals


def add_all(controller: Controller, names: Iterable[str]) -> None:
    for name in names:
        controller.queue.add(name)


def wire_leases(syncer: Syncer, on_shares_changed: Callable[[Iterable[str]], None]) -> LeaseCache:
    """Return the lease cache. Its handlers, and those of the ledger, run before any controller sees a change."""
    caches, manager = syncer.caches, syncer.manager

    def on_shares_stale() -> None:
        totals.queue.add_after(syncer.identity.binding_name, SUMMARY_SECONDS)

    async def divide_totals(_: str) -> None:
        leases.refresh_shares(manager.now())

    totals = manager.controller("totals", divide_totals, workers=1)
    binding, ledger, shortages, config = syncer.current_binding, syncer.ledger, syncer.shortages, syncer.config
    leases = LeaseCache(binding, caches, ledger, shortages, config, on_shares_changed, on_shares_stale)
    caches.physical_pods.on_change(leases.on_physical_pod_change)
    caches.physical_pods.on_change(syncer.ledger.on_physical_pod_change)
    caches.physical_nodes.on_change(leases.on_physical_node_change)
    return leases


def wire_node_objects(syncer: Syncer) -> tuple[Controller, Controller]:
    """Wire the controllers of the CSINode and the host port placeholder of each virtual node."""
    caches, manager = syncer.caches, syncer.manager

    def virtual_names(names: Iterable[str]) -> Iterable[str]:
        return [name_of(node) for name in names if (node := caches.virtual_node_of(name)) is not None]

    csi_nodes = CsiNodeReconciler(syncer.identity, caches, syncer.clients.virtual)
    csi = manager.controller("csinodes", waiting_for_grants(csi_nodes.reconcile, manager.now))
    csi.watch(caches.csi_nodes, lambda csi_node: virtual_names([name_of(csi_node)]))
    csi.watch(caches.virtual_nodes, when=lifecycle_changed)
    csi.watch(caches.virtual_csi_nodes)
    host_ports = HostPortReconciler(syncer.current_binding, caches, syncer.clients.virtual)
    ports = manager.controller("hostports", waiting_for_grants(host_ports.reconcile, manager.now))
    ports.watch(caches.physical_pods, lambda pod: virtual_names(foreign_pod_node(pod)), when=ports_changed)
    ports.watch(caches.virtual_nodes, when=lifecycle_changed)
    ports.watch(caches.placeholders, pod_node_name)
    return csi, ports


def physical_node_under(caches: Caches, virtual_node: str) -> Iterable[str]:
    node = caches.virtual_nodes.store.get(virtual_node)
    return physical_node_of(node) if node is not None else ()


def node_of_ended_twin(caches: Caches, twin: PhysicalPod) -> Iterable[str]:
    """Return the physical node of a twin whose pod has ended or is deleted: no other event releases that node."""
    pods = map(caches.virtual_pods.store.get, pod_key_of_twin(twin))
    if not isinstance(twin, Twin) or any(pod is not None and not is_pod_terminal(pod.object) for pod in pods):
        return ()
    return physical_node_under(caches, virtual_node_name_of(twin.object))


def node_of_twin_without_pod(caches: Caches, twin: PhysicalPod) -> Iterable[str]:
    """Return the physical node of a twin that no pod deletion will end, so that the lease's end must."""
    if not isinstance(twin, Twin):
        return ()
    pods, uid = map(caches.virtual_pods.store.get, virtual_key(twin.object)), virtual_uid(twin.object)
    if any(pod is not None and pod.uid == uid and propagates_deletion(pod.object) for pod in pods):
        return ()
    return physical_node_under(caches, virtual_node_name_of(twin.object))
