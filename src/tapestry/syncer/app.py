"""Assembly of a syncer process."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from msgspec import structs

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import default_access
from tapestry.client.transport import Transport
from tapestry.controller import App, Controller, Manager
from tapestry.controller.app import new_identity
from tapestry.kube.errors import Forbidden
from tapestry.kube.objects import Object, uid_of
from tapestry.kube.resources import NAMESPACES
from tapestry.syncer.bindings import BindingReconciler, ClusterIdentity, Connector
from tapestry.syncer.bottomup.policy_status import PolicyStatusReconciler, policy_names
from tapestry.syncer.components import SUMMARY_SECONDS, Syncer, build_components
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.credentials import CredentialsReconciler
from tapestry.syncer.grants import GrantWaits
from tapestry.syncer.lease_cache import LeaseCache
from tapestry.syncer.leasing import PolicySide
from tapestry.syncer.node_wiring import wire_nodes
from tapestry.syncer.offline_reclaim import OfflineReclaim
from tapestry.syncer.partition import PartitionDetector
from tapestry.syncer.pod_wiring import wire_consistency_check, wire_pods, wire_services, wire_volumes
from tapestry.syncer.predicates import changed_beyond_own_status, spec_changed, twin_ended
from tapestry.syncer.switchable_transport import SwitchableTransport

Connect = Callable[[Access], Transport]
BackgroundServices = Callable[[Syncer], AbstractAsyncContextManager[None]]
"""Services that the process runs beside the reconcilers of a syncer, and stops with them."""


class BindingNotFound(ValueError):
    """No ClusterBinding has the configured name."""


def with_election(config: SyncerConfig) -> SyncerConfig:
    """Return the configuration with the process and its election Lease named after the binding."""
    name = f"tapestry-syncer-{config.binding}"
    election = config.leader_election
    if not election.name:
        election = structs.replace(election, name=name)
    return structs.replace(config, name=name, leader_election=election)


async def run_syncer(
    config: SyncerConfig, environ: Mapping[str, str], home: Path, background: BackgroundServices
) -> None:
    """Run the syncer of one binding until the process is stopped or the binding is deleted."""
    config = with_election(config)
    access = default_access(
        Path(config.kubeconfig) if config.kubeconfig else None, config.context or None, environ=environ, home=home
    )
    while True:
        manager = Manager(config, lambda: HttpTransport(access), identity=new_identity())
        syncer = await build_syncer(config, manager)
        try:
            async with background(syncer):
                await App(manager).run()
        finally:
            for transport in syncer.transports:
                await transport.close()
        if not syncer.outdated.is_set():
            return


async def build_syncer(
    config: SyncerConfig,
    manager: Manager,
    *,
    connect: Connect = HttpTransport,
    monotonic: Callable[[], float] = time.monotonic,
) -> Syncer:
    """Register all controllers and informers of one binding's syncer with `manager`."""
    if not config.binding:
        raise BindingNotFound("binding: no ClusterBinding given; pass its name with --binding")
    binding = await find_binding(manager, config.binding)
    if binding is None:
        raise BindingNotFound(f"there is no ClusterBinding {config.binding!r}; create it or name another")
    if manager.elector is not None:
        manager.elector.owner = binding
    system = await manager.reads.get(NAMESPACES, "kube-system")
    transports = SwitchableTransport(connect, monotonic), SwitchableTransport(connect, monotonic)
    syncer = build_components(config, manager, binding, uid_of(system), transports)
    manager.register("syncer", lambda _: wire(syncer, connect))
    return syncer


async def find_binding(manager: Manager, name: str) -> Object | None:
    """Read the binding.  A syncer that starts with its account may have to wait for its rights."""
    waits = GrantWaits(manager.now)
    while True:
        try:
            return await manager.reads.find(CLUSTER_BINDINGS, name)
        except Forbidden:
            pause = waits.pause(name)
            if waits.is_overdue(name):
                raise
            await asyncio.sleep(pause)


def wire(syncer: Syncer, connect: Connect) -> None:
    """Connect every controller to the watch events that requeue its keys."""
    manager, caches, now = syncer.manager, syncer.caches, syncer.manager.now
    nodes = wire_nodes(syncer)
    bindings = wire_summaries(syncer, connect, nodes.leases)
    pods = wire_pods(syncer, nodes.leases, wire_services, wire_volumes)
    wire_consistency_check(syncer, pods.copies, pods.services, pods.volumes)

    def requeue_everything() -> None:
        nodes.requeue_every_node()
        pods.requeue_every_pod()
        bindings.queue.add(syncer.identity.binding_name)

    silence, partition = syncer.config.silence_seconds, syncer.partition
    detector = PartitionDetector(
        syncer.identity, syncer.current_binding, caches, syncer.clients, partition, silence, requeue_everything
    )
    manager.run_while_leading("partition", detector.run)
    unfenced = Client(partition.transport, audit=manager.audit, identity=manager.identity)
    offline = OfflineReclaim(manager.elector, manager.reads, caches.virtual_nodes, now, nodes.reclaimer, unfenced)
    manager.run_always("offline-reclaim", offline.run)


def wire_summaries(syncer: Syncer, connect: Connect, leases: LeaseCache) -> Controller:
    """Wire the controllers that write the status of the binding and of the policies."""
    caches, manager = syncer.caches, syncer.manager
    binding, clients, config = syncer.current_binding, syncer.clients, syncer.config
    cluster_identity, name = ClusterIdentity(), syncer.identity.binding_name
    state, now = syncer.priority_class_state, manager.now
    reconciler = BindingReconciler(
        *(syncer.identity, binding, caches, clients, leases, syncer.partition, cluster_identity, state),
        *(config, now, manager.stop),
    )
    bindings = manager.controller("bindings", reconciler.reconcile, workers=1)
    connector = Connector(
        *(syncer.identity, binding, caches.secrets, syncer.transports, config, cluster_identity),
        *(syncer.connection_key, syncer.stop_outdated, connect, lambda: bindings.queue.add(name)),
    )
    for informer in (caches.bindings, caches.secrets):
        informer.on_change(lambda _old, _new: connector.changed.set())
    caches.mount_namespaces.on_change(connector.on_mount_namespace_change)
    manager.run_always("connector", connector.run)
    bindings.watch(caches.bindings, when=changed_beyond_own_status)
    bindings.watch(caches.secrets, lambda _: [name])
    bindings.watch(caches.virtual_pods, lambda _: [name], after=SUMMARY_SECONDS)
    bindings.watch(caches.physical_pods, lambda _: [name], when=twin_ended, after=SUMMARY_SECONDS)
    for informer in (caches.virtual_nodes, caches.operator_policies, caches.owner_policies):
        bindings.watch(informer, lambda _: [name], after=SUMMARY_SECONDS)
    bindings.watch(caches.mount_namespaces, lambda _: [name], when=spec_changed, after=SUMMARY_SECONDS)
    bindings.watch(caches.placeholders, lambda _: [name], after=SUMMARY_SECONDS)
    renewal = CredentialsReconciler(syncer.identity, binding, clients, caches.secrets, config, now)
    credentials = manager.controller("credentials", renewal.reconcile, workers=1)
    credentials.watch(caches.secrets, lambda _: [name])
    for side, informer, client in (
        (PolicySide.OPERATOR, caches.operator_policies, clients.virtual),
        (PolicySide.OWNER, caches.owner_policies, clients.physical),
    ):
        policy_status = PolicyStatusReconciler(
            binding, caches.virtual_nodes, informer, client, now, config.time_zone, side
        )
        status = manager.controller(f"{side}-policies", policy_status.reconcile, workers=1)
        status.watch(informer, when=changed_beyond_own_status)
        status.watch(caches.virtual_nodes, policy_names, after=SUMMARY_SECONDS)
    return bindings
