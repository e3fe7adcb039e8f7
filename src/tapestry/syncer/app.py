"""Assembly of a syncer process: its controllers, and the watch events that requeue their keys."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from msgspec import structs

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.mount_labels import enforced_level
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import default_access
from tapestry.client.transport import Transport
from tapestry.controller import App, Controller, Informer, Manager
from tapestry.controller.app import new_identity
from tapestry.controller.controller import KeyMapper, own_namespace
from tapestry.kube.conditions import is_condition_false
from tapestry.kube.objects import Object, annotations_of, name_of, uid_of
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.resources import (
    ENDPOINT_SLICES,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    SECRETS,
    SERVICES,
)
from tapestry.syncer.bindings import BindingReconciler, Connector
from tapestry.syncer.bottomup.csinodes import CsiNodeReconciler
from tapestry.syncer.bottomup.events import TwinEventForwarder
from tapestry.syncer.bottomup.hostports import HostPortReconciler
from tapestry.syncer.bottomup.node_leases import NodeLeaseReconciler
from tapestry.syncer.bottomup.nodes import NodeReconciler, propagates_deletion
from tapestry.syncer.bottomup.pod_status import PodStatusReconciler
from tapestry.syncer.bottomup.policy_status import PolicyStatusReconciler, policy_names
from tapestry.syncer.cache_transforms import (
    digest_only,
    foreign_pod_node,
    physical_node_of,
    pod_key_of_twin,
    pod_node_name,
    source_namespace,
)
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.consistency_check import ConsistencyCheck
from tapestry.syncer.context import SyncContext, build_context
from tapestry.syncer.credentials import CredentialsReconciler
from tapestry.syncer.lease_cache import LeaseCache
from tapestry.syncer.leasing import PolicySide
from tapestry.syncer.offline_reclaim import OfflineReclaim
from tapestry.syncer.partition import PartitionDetector
from tapestry.syncer.predicates import (
    changed_beyond_own_status,
    changed_beyond_twin_status,
    cordon_changed,
    hold_changed,
    involves_foreign_pod,
    is_creation,
    is_mapped_to,
    lifecycle_changed,
    nodes_with_changed_holds,
    ports_changed,
    spec_changed,
    twin_changed_beyond_status,
    twin_ended,
    twin_status_changed,
)
from tapestry.syncer.snapshots import SnapshotCaches
from tapestry.syncer.switchable_transport import SwitchableTransport
from tapestry.syncer.topdown.admitter import Admitter
from tapestry.syncer.topdown.copies import CopyReconciler, copy_dependencies, dependencies_changed, source_keys_of
from tapestry.syncer.topdown.namespace_informers import owned_informer
from tapestry.syncer.topdown.pods import PodReconciler
from tapestry.syncer.topdown.services import ServiceReconciler
from tapestry.syncer.topdown.source_cache import COPIED_RESOURCES, SourceCache
from tapestry.syncer.topdown.tokens import TokenReconciler
from tapestry.syncer.topdown.volumes import VolumeReconciler, claim_keys, pod_lifetime_changed
from tapestry.syncer.translate.metadata import source_key, virtual_key, virtual_uid
from tapestry.syncer.translate.pod_status import mapped_uid
from tapestry.syncer.translate.references import projected_tokens as tokens_of
from tapestry.syncer.views import PhysicalPod, Twin, VirtualPod

SUMMARY_SECONDS = 1.0
"""Minimum seconds between two computations of sums over all nodes and pods."""
NODE_WORKERS = 16
POD_WORKERS = 32

Connect = Callable[[Access], Transport]
BackgroundServices = Callable[[SyncContext], AbstractAsyncContextManager[None]]
"""Services that the process runs for a context beside its reconcilers, and stops with them."""


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
        context = await build_syncer(config, manager)
        try:
            async with background(context):
                await App(manager).run()
        finally:
            for transport in (context.read_transport, context.write_transport):
                await transport.close()
        if not context.outdated.is_set():
            return


async def build_syncer(
    config: SyncerConfig,
    manager: Manager,
    *,
    connect: Connect = HttpTransport,
    monotonic: Callable[[], float] = time.monotonic,
) -> SyncContext:
    """Register all controllers and informers of one binding's syncer with `manager`."""
    if not config.binding:
        raise BindingNotFound("binding: no ClusterBinding given; pass its name with --binding")
    binding = await manager.reads.find(CLUSTER_BINDINGS, config.binding)
    if binding is None:
        raise BindingNotFound(f"there is no ClusterBinding {config.binding!r}; create it or name another")
    if manager.elector is not None:
        manager.elector.owner = binding
    system = await manager.reads.get(NAMESPACES, "kube-system")
    transports = SwitchableTransport(connect, monotonic), SwitchableTransport(connect, monotonic)
    context = build_context(config, manager, binding, uid_of(system), transports)
    manager.register("syncer", lambda _: wire(context, connect))
    return context


def wire(context: SyncContext, connect: Connect) -> None:
    """Connect every controller to the watch events that requeue its keys."""
    current = wire_leases(context, lambda names: add_all(nodes, names))
    physical = NodeReconciler(context, current)
    nodes = context.manager.controller("nodes", physical.reconcile, workers=NODE_WORKERS)
    leases = context.manager.controller("node-leases", NodeLeaseReconciler(context).reconcile, workers=NODE_WORKERS)
    node_objects = wire_node_objects(context)

    def every_node(_: Object | None = None) -> Iterable[str]:
        virtual = (name for node in context.virtual_nodes.store.list() for name in physical_node_of(node))
        return {*context.physical_nodes.store, *virtual}

    def nodes_to_recompute(pod: VirtualPod) -> Iterable[str]:
        return (name for name in physical_node_under(context, pod.node) if physical.depends_on_pods(name))

    def nodes_reclaiming(pod: PhysicalPod) -> Iterable[str]:
        return (name for name in node_of_unattended_twin(context, pod) if physical.depends_on_pods(name))

    def requeue_every_node() -> None:
        for name in every_node():
            nodes.queue.add(name)
        for controller in (leases, *node_objects):
            for name in context.virtual_nodes.store:
                controller.queue.add(name)

    nodes.watch(context.physical_nodes)
    nodes.watch(context.physical_pods, foreign_pod_node, when=involves_foreign_pod)
    nodes.watch(context.physical_pods, lambda pod: node_of_ended_twin(context, pod), when=twin_ended)
    nodes.watch(context.physical_pods, lambda pod: nodes_reclaiming(pod), when=is_creation)
    nodes.watch(context.virtual_nodes, physical_node_of)
    nodes.watch(context.virtual_pods, lambda pod: nodes_to_recompute(pod), when=hold_changed)
    nodes.watch(context.virtual_pods, lambda pod: nodes_to_recompute(pod), when=is_creation, after=SUMMARY_SECONDS)
    for informer in (context.bindings, context.operator_policies, context.owner_policies, context.mount_namespaces):
        nodes.watch(informer, every_node, when=spec_changed)
    for informer in (*context.lease_informers, context.csi_nodes):
        informer.after_sync(requeue_every_node)
    leases.watch(context.virtual_nodes, when=lifecycle_changed)
    context.physical_pods.on_change(lambda old, new: forget_shortage(context, old, new))
    bindings = wire_summaries(context, connect)
    pods = wire_pods(context, current)

    def requeue_everything() -> None:
        requeue_every_node()
        pods()
        bindings.queue.add(context.binding_name)

    watch = PartitionDetector(context, requeue_everything)
    context.manager.run_while_leading("partition", watch.run)
    unfenced = Client(context.read_transport, audit=context.manager.audit, identity=context.manager.identity)
    context.manager.run_always("offline-reclaim", OfflineReclaim(context, physical, unfenced).run)


def add_all(controller: Controller, names: Iterable[str]) -> None:
    for name in names:
        controller.queue.add(name)


def wire_leases(context: SyncContext, on_shares_changed: Callable[[Iterable[str]], None]) -> LeaseCache:
    """Return the lease cache. Its handlers, and those of the ledger, run before any controller sees a change."""

    async def divide_totals(_: str) -> None:
        leases.refresh_shares(context.now())

    totals = context.manager.controller("totals", divide_totals, workers=1)
    leases = LeaseCache(
        context, on_shares_changed, lambda _: totals.queue.add_after(context.binding_name, SUMMARY_SECONDS)
    )
    context.physical_pods.on_change(leases.on_physical_pod_change)
    context.physical_pods.on_change(context.ledger.on_physical_pod_change)
    context.physical_nodes.on_change(leases.on_physical_node_change)
    return leases


def wire_pods(context: SyncContext, leases: LeaseCache) -> Callable[[], None]:
    """Wire the pod and pod status controllers; return a function that requeues every pod."""
    services = wire_services(context, lambda key: down.queue.add(key))
    copy_reconciler, copies = wire_copies(context, lambda key: down.queue.add(key))
    tokens, minting = wire_tokens(context, copy_reconciler.copy_informers[SECRETS.plural])
    volumes = wire_volumes(context, copy_reconciler, lambda key: down.queue.add(key))
    wire_consistency_check(context, copy_reconciler, services, volumes)
    admitter = Admitter(
        context, leases, requeue_pod=lambda key: down.queue.add(key), requeue_status=lambda key: up.queue.add(key)
    )
    # Services first: a pod must not read their addresses before they report that all of them exist.
    virtual = PodReconciler(context, admitter, (services, copy_reconciler, volumes, tokens), services.aliases)
    down = context.manager.controller("pods", virtual.reconcile, workers=POD_WORKERS)
    physical = PodStatusReconciler(context)
    up = context.manager.controller("pod-status", physical.reconcile, workers=POD_WORKERS)
    context.manager.run_while_leading("twin-events", TwinEventForwarder(context).run)
    context.virtual_pods.on_change(virtual.on_virtual_pod_change)
    context.virtual_pods.on_change(physical.on_virtual_pod_change)
    context.physical_pods.on_change(virtual.on_physical_pod_change)
    context.physical_pods.on_change(admitter.on_physical_pod_change)
    context.virtual_nodes.on_change(admitter.on_virtual_node_change)
    context.physical_pods.on_deletion(virtual.lost_twins.on_pod_deleted)
    down.watch(
        context.virtual_pods,
        pod_key,
        when=lambda old, new: changed_beyond_twin_status(old, new) or has_other_twin(context, new),
    )
    down.watch(
        context.physical_pods,
        pod_key_of_twin,
        when=lambda old, new: twin_changed_beyond_status(old, new) and not is_expected_creation(context, old, new),
    )
    down.watch(
        context.virtual_nodes, lambda node: (pod.key for pod in context.pods_on(name_of(node))), when=lifecycle_changed
    )
    down.watch(context.physical_nodes, lambda node: pods_on_physical_node(context, node), when=cordon_changed)
    for informer in copy_reconciler.copy_informers.values():
        down.watch(informer, lambda copy: pods_waiting_for(context, copy), when=lifecycle_changed)
    up.watch(context.physical_pods, pod_key_of_twin, when=twin_status_changed)
    up.watch(context.virtual_pods, pod_key, when=physical.is_affected)

    def every_pod() -> None:
        physical_keys = (key for pod in context.physical_pods.store.list() for key in pod_key_of_twin(pod))
        for key in {*context.virtual_pods.store, *physical_keys}:
            down.queue.add(key)
            up.queue.add(key)
        for controller in (copies, minting):
            controller.resync()

    for informer in (*context.lease_informers, context.virtual_nodes):
        informer.after_sync(every_pod)
    context.bindings.on_change(lambda old, new: every_pod() if spec_changed(old, new) else None)
    context.mount_namespaces.on_change(
        lambda old, new: every_pod() if enforced_level(old) != enforced_level(new) else None
    )
    return every_pod


def wire_copies(context: SyncContext, requeue_pod: Callable[[str], None]) -> tuple[CopyReconciler, Controller]:
    """Wire the controllers that copy ConfigMaps and Secrets; `requeue_pod` gets keys of pods that wait for a copy."""

    def source_changed(key: str, old: Object | None, new: Object | None) -> None:
        if copy_reconciler.is_relevant(key):
            copies.queue.add(key)
        for pod in context.virtual_pods.store.by("refers", key) if old is None or new is None else ():
            if is_waiting(pod):
                requeue_pod(pod.key)

    def on_pods_of(names: KeyMapper) -> KeyMapper:
        return lambda node: {name for pod in context.pods_on(name_of(node)) for name in names(pod.object)}

    def outdated(names: Iterable[str]) -> Iterable[str]:
        return [name for name in names if not sources.is_up_to_date(name)]

    def on_namespace_synced(namespace: str) -> None:
        for key in copy_reconciler.copied_from(namespace):
            copies.queue.add(key)

    copy_informers = {
        kind: context.manager.add_optional_informer(
            owned_informer(context, resource, digest_only, {"namespace": source_namespace})
        )
        for kind, resource in COPIED_RESOURCES.items()
    }
    sources = SourceCache(context, source_changed, on_namespace_synced)
    copy_reconciler = CopyReconciler(
        context, sources, copy_informers, lambda namespace: unused.queue.add_after(namespace, SUMMARY_SECONDS)
    )
    copies = context.manager.controller("copies", copy_reconciler.reconcile)
    unused = context.manager.controller("unused-copies", copy_reconciler.sweep, workers=1)
    namespaces = context.manager.controller("copied-namespaces", sources.reconcile, workers=1)
    copies.watch(context.virtual_pods, lambda pod: copy_dependencies(pod.object), when=dependencies_changed)
    namespaces.watch(context.virtual_pods, lambda pod: outdated(own_namespace(pod.object)), when=dependencies_changed)
    unused.watch(
        context.virtual_pods, lambda pod: own_namespace(pod.object), when=dependencies_changed, after=SUMMARY_SECONDS
    )
    copies.watch(context.virtual_nodes, on_pods_of(copy_dependencies), when=lifecycle_changed)
    unused.watch(context.virtual_nodes, on_pods_of(own_namespace), when=lifecycle_changed, after=SUMMARY_SECONDS)
    for informer in copy_informers.values():
        informer.on_change(copy_reconciler.on_copy_change)
        copies.watch(informer, source_keys_of)
        unused.watch(informer, source_namespace, when=lifecycle_changed, after=SUMMARY_SECONDS)
        informer.after_sync(copies.resync)
    for kind, informer_set in sources.informers.items():
        context.manager.run_always(f"sources-{kind}", informer_set.run)
    return copy_reconciler, copies


def wire_tokens(context: SyncContext, secrets: Informer) -> tuple[TokenReconciler, Controller]:
    """Wire the controller that issues and renews the service account tokens of pods."""
    tokens = TokenReconciler(context, secrets)
    controller = context.manager.controller("tokens", tokens.reconcile)
    controller.watch(context.virtual_pods, keys_with_tokens, when=dependencies_changed)
    controller.watch(secrets, virtual_key)
    secrets.after_sync(controller.resync)
    return tokens, controller


def pod_key(pod: VirtualPod) -> Iterable[str]:
    return (pod.key,)


def keys_with_tokens(pod: VirtualPod) -> Iterable[str]:
    """Return the key of the pod if it mounts service account tokens."""
    return [pod.key] if tokens_of(pod.object["spec"]) else []


def has_other_twin(context: SyncContext, pod: VirtualPod | None) -> bool:
    """Return whether the pod is mapped to a twin other than the one in the cache."""
    if pod is None or (mapped := mapped_uid(pod.object)) is None:
        return False
    twin = context.twin_of(pod.key)
    return twin is None or twin.uid != mapped


def is_expected_creation(context: SyncContext, old: PhysicalPod | None, new: PhysicalPod | None) -> bool:
    """Return whether a twin was created with its node while its pod waits for it: there is nothing left to do."""
    if old is not None or not isinstance(new, Twin) or "nodeName" not in new.object["spec"]:
        return False
    return all(is_mapped_to(context.virtual_pods.store.get(key), new) for key in virtual_key(new.object))


def is_waiting(pod: VirtualPod) -> bool:
    """Return whether the pod lacks something in the physical cluster."""
    return is_condition_false(pod.object, keys.MAPPED_CONDITION)


def pods_waiting_for(context: SyncContext, copy: Object) -> Iterable[str]:
    """Return the keys of waiting pods that may need the object that was just copied."""
    pods = context.virtual_pods.store
    users = (pod for key in source_keys_of(copy) for pod in pods.by("refers", key))
    owners = (pod for key in virtual_key(copy) if (pod := pods.get(key)) is not None)
    return [pod.key for pod in (*users, *owners) if is_waiting(pod)]


def wire_services(context: SyncContext, requeue_pod: Callable[[str], None]) -> ServiceReconciler:
    """Wire the controller of Services in the binding's namespaces; `requeue_pod` gets keys of waiting pods."""
    services = ServiceReconciler(context, lambda key: controller.queue.add(key), requeue_pod)
    controller = context.manager.controller("services", services.reconcile)
    context.bindings.on_change(lambda old, new: services.follow_namespaces(new) if spec_changed(old, new) else None)
    for informer in (services.twins, services.twin_slices):
        controller.watch(context.manager.add_optional_informer(informer), source_key)
    for name, informers in {"services": services.virtual_services, "endpoint-slices": services.virtual_slices}.items():
        context.manager.run_always(name, informers.run)
    return services


def wire_volumes(context: SyncContext, copies: CopyReconciler, requeue_pod: Callable[[str], None]) -> VolumeReconciler:
    """Wire the controller that syncs claims and volumes; `requeue_pod` receives keys of waiting pods."""
    volumes = VolumeReconciler(context, copies, lambda key: controller.queue.add(key), requeue_pod)
    controller = context.manager.controller("volumes", volumes.reconcile)
    controller.watch(context.virtual_pods, lambda pod: claim_keys(pod.object), when=pod_lifetime_changed)
    context.bindings.on_change(lambda old, new: volumes.follow_drivers(new) if spec_changed(old, new) else None)
    copies.other_users.append(volumes.needs_secret)
    copies.copy_informers[SECRETS.plural].on_change(volumes.on_copy_change)
    informers = {"claims": volumes.claims, "twin-claims": volumes.twin_claims, "twin-volumes": volumes.twin_volumes}
    for name, each in informers.items():
        context.manager.run_always(name, each.run)
    return volumes


def wire_consistency_check(
    context: SyncContext, copies: CopyReconciler, services: ServiceReconciler, volumes: VolumeReconciler
) -> None:
    """Wire the periodic check for inconsistencies that no controller noticed."""
    if not context.config.check_seconds:
        return
    caches = SnapshotCaches(
        virtual_caches={
            **{COPIED_RESOURCES[kind]: informers for kind, informers in copies.source_cache.informers.items()},
            SERVICES: services.virtual_services,
            ENDPOINT_SLICES: services.virtual_slices,
        },
        physical_caches={
            **{COPIED_RESOURCES[kind]: informer for kind, informer in copies.copy_informers.items()},
            SERVICES: services.twins,
            ENDPOINT_SLICES: services.twin_slices,
            PERSISTENT_VOLUME_CLAIMS: volumes.twin_claims,
            PERSISTENT_VOLUMES: volumes.twin_volumes,
        },
    )
    checks = context.manager.controller("checks", ConsistencyCheck(context, caches).reconcile, workers=1)
    context.manager.after_sync(lambda: checks.queue.add_after(context.binding_name, context.config.check_seconds))


def wire_node_objects(context: SyncContext) -> tuple[Controller, Controller]:
    """Wire the controllers of the CSINode and the host port placeholder of each virtual node."""

    def virtual_names(names: Iterable[str]) -> Iterable[str]:
        return [name_of(node) for name in names if (node := context.virtual_node_of(name)) is not None]

    csi = context.manager.controller("csinodes", CsiNodeReconciler(context).reconcile)
    csi.watch(context.csi_nodes, lambda csi_node: virtual_names([name_of(csi_node)]))
    csi.watch(context.virtual_nodes, when=lifecycle_changed)
    csi.watch(context.virtual_csi_nodes)
    ports = context.manager.controller("hostports", HostPortReconciler(context).reconcile)
    ports.watch(context.physical_pods, lambda pod: virtual_names(foreign_pod_node(pod)), when=ports_changed)
    ports.watch(context.virtual_nodes, when=lifecycle_changed)
    ports.watch(context.placeholders, pod_node_name)
    return csi, ports


def wire_summaries(context: SyncContext, connect: Connect) -> Controller:
    """Wire the controllers that write the status of the binding and of the policies."""
    bindings = context.manager.controller("bindings", BindingReconciler(context).reconcile, workers=1)
    connector = Connector(context, connect, on_identity_known=lambda: bindings.queue.add(context.binding_name))
    for informer in (context.bindings, context.secrets):
        informer.on_change(lambda _old, _new: connector.changed.set())
    context.mount_namespaces.on_change(connector.on_mount_namespace_change)
    context.manager.run_always("connector", connector.run)
    bindings.watch(context.bindings, when=changed_beyond_own_status)
    bindings.watch(context.secrets, lambda _: [context.binding_name])
    bindings.watch(context.virtual_pods, lambda _: [context.binding_name], after=SUMMARY_SECONDS)
    for informer in (context.virtual_nodes, context.operator_policies, context.owner_policies):
        bindings.watch(informer, lambda _: [context.binding_name], after=SUMMARY_SECONDS)
    bindings.watch(context.mount_namespaces, lambda _: [context.binding_name], when=spec_changed, after=SUMMARY_SECONDS)
    bindings.watch(context.placeholders, lambda _: [context.binding_name], after=SUMMARY_SECONDS)
    credentials = context.manager.controller("credentials", CredentialsReconciler(context).reconcile, workers=1)
    credentials.watch(context.secrets, lambda _: [context.binding_name])
    for side, informer in (
        (PolicySide.OPERATOR, context.operator_policies),
        (PolicySide.OWNER, context.owner_policies),
    ):
        status = context.manager.controller(
            f"{side}-policies", PolicyStatusReconciler(context, side).reconcile, workers=1
        )
        status.watch(informer, when=changed_beyond_own_status)
        status.watch(context.virtual_nodes, policy_names, after=SUMMARY_SECONDS)
    return bindings


def pods_on_physical_node(context: SyncContext, node: Object) -> Iterable[str]:
    """Return the keys of the pods that are bound to the virtual node of a physical one."""
    virtual_node = context.virtual_node_of(name_of(node))
    return [pod.key for pod in context.pods_on(name_of(virtual_node))] if virtual_node is not None else ()


def physical_node_under(context: SyncContext, virtual_node: str) -> Iterable[str]:
    node = context.virtual_nodes.store.get(virtual_node)
    return physical_node_of(node) if node is not None else ()


def node_of_ended_twin(context: SyncContext, twin: PhysicalPod) -> Iterable[str]:
    """Return the physical node of a twin whose pod has ended or is deleted: no other event releases that node."""
    pods = map(context.virtual_pods.store.get, pod_key_of_twin(twin))
    if not isinstance(twin, Twin) or any(pod is not None and not is_pod_terminal(pod.object) for pod in pods):
        return ()
    return physical_node_under(context, annotations_of(twin.object).get(keys.VIRTUAL_NODE_NAME, ""))


def node_of_unattended_twin(context: SyncContext, twin: PhysicalPod) -> Iterable[str]:
    """Return the physical node of a twin that no pod deletion will end, so that the lease's end must."""
    if not isinstance(twin, Twin):
        return ()
    pods, uid = map(context.virtual_pods.store.get, virtual_key(twin.object)), virtual_uid(twin.object)
    if any(pod is not None and pod.uid == uid and propagates_deletion(pod.object) for pod in pods):
        return ()
    return physical_node_under(context, annotations_of(twin.object).get(keys.VIRTUAL_NODE_NAME, ""))


def forget_shortage(context: SyncContext, old: PhysicalPod | None, new: PhysicalPod | None) -> None:
    """Drop the recorded shortages of a node when the requests of its foreign pods change."""
    for node in nodes_with_changed_holds(old, new):
        context.shortages.pop(node, None)
