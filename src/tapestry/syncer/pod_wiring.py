"""Wiring of the controllers of pods and their dependencies: the watch events that requeue their keys."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.mount_labels import enforced_level
from tapestry.controller import Controller, ObjectCache
from tapestry.controller.controller import KeyMapper, own_namespace
from tapestry.kube.conditions import is_condition_false
from tapestry.kube.objects import Object, name_of
from tapestry.kube.pod_references import projected_tokens as tokens_of
from tapestry.kube.resources import ENDPOINT_SLICES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, SECRETS, SERVICES
from tapestry.syncer.bottomup.events import TwinEventForwarder
from tapestry.syncer.bottomup.pod_status import PodStatusReconciler
from tapestry.syncer.cache_transforms import digest_only, pod_key_of_twin, source_namespace
from tapestry.syncer.caches import Caches
from tapestry.syncer.components import SUMMARY_SECONDS, Syncer
from tapestry.syncer.consistency_check import ConsistencyCheck
from tapestry.syncer.grants import GrantWaits, waiting_for_grants
from tapestry.syncer.lease_cache import LeaseCache
from tapestry.syncer.open_nodes import is_relevant_change
from tapestry.syncer.predicates import (
    changed_beyond_twin_status,
    cordon_changed,
    is_mapped_to,
    lifecycle_changed,
    spec_changed,
    twin_changed_beyond_status,
    twin_status_changed,
)
from tapestry.syncer.snapshots import SnapshotCaches
from tapestry.syncer.topdown.admission_timeout import AdmissionTimeout
from tapestry.syncer.topdown.admitter import Admitter
from tapestry.syncer.topdown.copies import (
    CopyReconciler,
    copy_dependencies,
    dependencies_changed,
    source_keys_of,
    source_scopes,
)
from tapestry.syncer.topdown.dependencies import Dependency
from tapestry.syncer.topdown.draining import DrainingReconciler
from tapestry.syncer.topdown.host_scheduling import HostScheduling
from tapestry.syncer.topdown.lost_twins import LostTwins
from tapestry.syncer.topdown.pod_status_writer import PodStatusWriter
from tapestry.syncer.topdown.pods import PodReconciler
from tapestry.syncer.topdown.priority_class import PriorityClassGuard
from tapestry.syncer.topdown.services import ServiceReconciler
from tapestry.syncer.topdown.source_cache import COPIED_RESOURCES, SourceCache
from tapestry.syncer.topdown.tokens import TokenReconciler
from tapestry.syncer.topdown.volumes import VolumeReconciler, claim_keys, pod_lifetime_changed
from tapestry.syncer.translate.metadata import source_key, virtual_key
from tapestry.syncer.translate.pod_status import mapped_uid
from tapestry.syncer.translate.pods import DEFAULT_SETTINGS, HostAlias, TwinSettings
from tapestry.syncer.views import PhysicalPod, Twin, VirtualPod

POD_WORKERS = 32
UNSCHEDULED_INTERVAL_SECONDS = 0.2
"""Minimum seconds between two checks of all pods that the scheduler of a host cluster has not placed."""

RequeuePod = Callable[[str], None]


class ServicesOfPods(Dependency, Protocol):
    def aliases(self, namespace: str) -> Sequence[HostAlias]:
        """Return the host aliases for pods of a namespace."""


class VolumesOfPods(Dependency, Protocol):
    def source_claim(self, name: str, uid: str) -> Object | None:
        """Return the virtual claim of a twin by its name and UID."""

    def with_claims(self, twin: Object, pod: VirtualPod, binding: Binding) -> Object:
        """Return the twin of a pod with the names of its claims, once `ensure` has returned.

        Raises DependencyNotReady if that is no longer so.
        """


S = TypeVar("S", bound=ServicesOfPods)
V = TypeVar("V", bound=VolumesOfPods)


@dataclass(frozen=True)
class PodWiring(Generic[S, V]):
    """Parts of the controllers of pods that others use."""

    copies: CopyReconciler
    services: S
    volumes: V
    requeue_pod: RequeuePod
    requeue_every_pod: Callable[[], None]


HostSchedulingFactory = Callable[[PodStatusWriter, Admitter, RequeuePod], HostScheduling]


def wire_pods(
    syncer: Syncer,
    leases: LeaseCache,
    wire_services: Callable[[Syncer, RequeuePod], S],
    wire_volumes: Callable[[Syncer, CopyReconciler, PodStatusWriter, RequeuePod], V],
    host_scheduling: HostSchedulingFactory | None = None,
    twin_settings: Callable[[Object], TwinSettings] = lambda _: DEFAULT_SETTINGS,
) -> PodWiring[S, V]:
    """Wire the pod and pod status controllers, and those of what pods depend on."""
    caches, manager = syncer.caches, syncer.manager
    identity, binding, clients, now = syncer.identity, syncer.current_binding, syncer.clients, manager.now
    ledger, disruptions, state = syncer.ledger, syncer.pending_disruptions, syncer.priority_class_state

    def requeue_pod(key: str) -> None:
        down.queue.add(key)

    services = wire_services(syncer, requeue_pod)
    copy_reconciler, copies = wire_copies(syncer, requeue_pod)
    tokens, minting = wire_tokens(syncer, copy_reconciler.copy_informers[SECRETS.plural])
    writer = PodStatusWriter(identity, clients, now)
    volumes = wire_volumes(syncer, copy_reconciler, writer, requeue_pod)
    admitter = Admitter(identity, caches, ledger, now, leases, requeue_pod, lambda key: up.queue.add(key))
    lost_twins = LostTwins(identity, caches.virtual_pods, clients, now, disruptions, writer)
    timeout = AdmissionTimeout(clients, syncer.shortages, now, syncer.config, writer, requeue_pod)
    guard = PriorityClassGuard(binding, clients, now, state, writer, requeue_pod)
    # Services first: a pod must not read their addresses before they report that all of them exist.
    dependencies: tuple[Dependency, ...] = services, copy_reconciler, volumes, tokens
    scheduling = host_scheduling(writer, admitter, requeue_pod) if host_scheduling is not None else None
    virtual = PodReconciler(
        *(identity, binding, caches, clients, ledger, now, writer, lost_twins, timeout, guard),
        *(admitter, dependencies, services.aliases, volumes.with_claims, GrantWaits(now), scheduling),
        twin_settings=twin_settings,
    )
    draining = DrainingReconciler(virtual)
    down = manager.controller("pods", waiting_for_grants(draining.reconcile, now), workers=POD_WORKERS)
    physical = PodStatusReconciler(
        *(identity, caches, syncer.partition, clients.virtual, now, admitter.pending_resizes, disruptions),
        is_drained=draining.is_active,
    )
    up = manager.controller("pod-status", waiting_for_grants(physical.reconcile, now), workers=POD_WORKERS)
    forwarder = TwinEventForwarder(identity, caches, clients, volumes.source_claim)
    manager.run_while_leading("twin-events", forwarder.run)
    caches.virtual_pods.on_change(virtual.on_virtual_pod_change)
    caches.virtual_pods.on_change(physical.on_virtual_pod_change)
    caches.physical_pods.on_change(virtual.on_physical_pod_change)
    caches.physical_pods.on_change(admitter.on_physical_pod_change)
    caches.virtual_nodes.on_change(admitter.on_virtual_node_change)
    caches.physical_pods.on_deletion(virtual.lost_twins.on_pod_deleted)
    down.watch(
        caches.virtual_pods,
        pod_key,
        when=lambda old, new: changed_beyond_twin_status(old, new) or has_other_twin(caches, new),
    )
    down.watch(
        caches.physical_pods,
        pod_key_of_twin,
        when=lambda old, new: (
            (twin_changed_beyond_status(old, new) and not is_expected_creation(caches, old, new))
            or (scheduling is not None and is_scheduled_now(old, new))
        ),
    )
    if scheduling is not None:
        wire_host_scheduling(syncer, scheduling)
    down.watch(
        caches.virtual_nodes, lambda node: (pod.key for pod in caches.pods_on(name_of(node))), when=lifecycle_changed
    )
    down.watch(caches.physical_nodes, lambda node: pods_on_physical_node(caches, node), when=cordon_changed)
    for informer in copy_reconciler.copy_informers.values():
        down.watch(informer, lambda copy: pods_waiting_for(caches, copy), when=lifecycle_changed)
    up.watch(caches.physical_pods, pod_key_of_twin, when=twin_status_changed)
    up.watch(caches.virtual_pods, pod_key, when=physical.is_affected)

    def every_pod() -> None:
        physical_keys = (key for pod in caches.physical_pods.store.list() for key in pod_key_of_twin(pod))
        for key in {*caches.virtual_pods.store, *physical_keys}:
            down.queue.add(key)
            up.queue.add(key)
        for controller in (copies, minting):
            controller.resync()

    for informer in (*caches.lease_informers, caches.virtual_nodes):
        informer.after_sync(every_pod)
    caches.bindings.on_change(lambda old, new: every_pod() if spec_changed(old, new) else None)
    caches.mount_namespaces.on_change(
        lambda old, new: every_pod() if enforced_level(old) != enforced_level(new) else None
    )
    return PodWiring(copy_reconciler, services, volumes, requeue_pod, every_pod)


def wire_host_scheduling(syncer: Syncer, scheduling: HostScheduling) -> None:
    """Requeue pods without a node when the nodes of the host cluster on which they may start have changed."""
    caches, manager, name = syncer.caches, syncer.manager, syncer.identity.binding_name

    async def requeue_unscheduled(_: str) -> None:
        scheduling.requeue_unscheduled()

    caches.physical_nodes.on_change(scheduling.on_physical_node_change)
    caches.virtual_nodes.on_change(scheduling.on_virtual_node_change)
    unscheduled = manager.controller("unscheduled-pods", requeue_unscheduled, workers=1)
    unscheduled.watch(
        caches.physical_nodes, lambda _: [name], when=is_relevant_change, after=UNSCHEDULED_INTERVAL_SECONDS
    )
    for informer in (caches.bindings, caches.operator_policies, caches.owner_policies, caches.mount_namespaces):
        unscheduled.watch(informer, lambda _: [name], when=spec_changed, after=UNSCHEDULED_INTERVAL_SECONDS)


def wire_copies(syncer: Syncer, requeue_pod: Callable[[str], None]) -> tuple[CopyReconciler, Controller]:
    """Wire the controllers that copy ConfigMaps and Secrets; `requeue_pod` gets keys of pods that wait for a copy."""
    caches, manager, clients = syncer.caches, syncer.manager, syncer.clients
    identity, binding = syncer.identity, syncer.current_binding

    def source_changed(key: str, old: Object | None, new: Object | None) -> None:
        if copy_reconciler.is_relevant(key):
            copies.queue.add(key)
        for pod in caches.virtual_pods.store.by("refers", key) if old is None or new is None else ():
            if is_waiting(pod):
                requeue_pod(pod.key)

    def on_pods_of(names: KeyMapper) -> KeyMapper:
        return lambda node: {name for pod in caches.pods_on(name_of(node)) for name in names(pod.object)}

    def outdated(pod: Object) -> Iterable[str]:
        return [scope for scope in source_scopes(pod) if not sources.is_up_to_date(scope)]

    def schedule_sweep(namespace: str) -> None:
        unused.queue.add_after(namespace, SUMMARY_SECONDS)

    def on_scope_synced(scope: str) -> None:
        """Queue the sources in a scope: until now, a source that was not found may have existed."""
        for key in copy_reconciler.sources_in(scope):
            copies.queue.add(key)

    copy_informers = {
        kind: syncer.owned_cache(resource, digest_only, {"namespace": source_namespace})
        for kind, resource in COPIED_RESOURCES.items()
    }
    sources = SourceCache(
        lambda scope: copy_reconciler.is_scope_used(scope),
        *(clients.virtual_reads, manager.now, source_changed, on_scope_synced),
        lambda scope: scopes.queue.add(scope),
    )
    copy_reconciler = CopyReconciler(
        identity, binding, caches, clients, manager.now, sources, copy_informers, schedule_sweep
    )
    copies = manager.controller("copies", copy_reconciler.reconcile)
    unused = manager.controller("unused-copies", copy_reconciler.sweep, workers=1)
    scopes = manager.controller("copy-sources", sources.reconcile)
    copies.watch(caches.virtual_pods, lambda pod: copy_dependencies(pod.object), when=dependencies_changed)
    scopes.watch(caches.virtual_pods, lambda pod: outdated(pod.object), when=dependencies_changed)
    scopes.watch(caches.virtual_nodes, on_pods_of(outdated), when=lifecycle_changed)
    unused.watch(
        caches.virtual_pods, lambda pod: own_namespace(pod.object), when=dependencies_changed, after=SUMMARY_SECONDS
    )
    copies.watch(caches.virtual_nodes, on_pods_of(copy_dependencies), when=lifecycle_changed)
    unused.watch(caches.virtual_nodes, on_pods_of(own_namespace), when=lifecycle_changed, after=SUMMARY_SECONDS)
    for informer in copy_informers.values():
        informer.on_change(copy_reconciler.on_copy_change)
        copies.watch(informer, source_keys_of)
        unused.watch(informer, source_namespace, when=lifecycle_changed, after=SUMMARY_SECONDS)
        informer.after_sync(copies.resync)
    for kind, informer_set in sources.informers.items():
        manager.run_always(f"sources-{kind}", informer_set.run)
    return copy_reconciler, copies


def wire_tokens(syncer: Syncer, secrets: ObjectCache) -> tuple[TokenReconciler, Controller]:
    """Wire the controller that issues and renews the service account tokens of pods."""
    caches, manager = syncer.caches, syncer.manager
    tokens = TokenReconciler(
        syncer.identity, syncer.current_binding, caches, syncer.clients, syncer.partition, manager.now, secrets
    )
    controller = manager.controller("tokens", tokens.reconcile)
    controller.watch(caches.virtual_pods, keys_with_tokens, when=dependencies_changed)
    controller.watch(secrets, virtual_key)
    secrets.after_sync(controller.resync)
    return tokens, controller


def wire_services(syncer: Syncer, requeue_pod: Callable[[str], None]) -> ServiceReconciler:
    """Wire the controller of Services in the binding's namespaces; `requeue_pod` gets keys of waiting pods."""
    caches, manager = syncer.caches, syncer.manager

    def requeue(key: str) -> None:
        controller.queue.add(key)

    services = ServiceReconciler(
        syncer.current_binding,
        syncer.clients,
        manager.now,
        twins=syncer.owned_cache(SERVICES),
        twin_slices=syncer.owned_cache(ENDPOINT_SLICES),
        requeue_service=requeue,
        requeue_pod=requeue_pod,
    )
    controller = manager.controller("services", services.reconcile)
    caches.bindings.on_change(lambda old, new: services.follow_namespaces(new) if spec_changed(old, new) else None)
    for informer in (services.twins, services.twin_slices):
        controller.watch(informer, source_key)
    for name, informers in {"services": services.virtual_services, "endpoint-slices": services.virtual_slices}.items():
        manager.run_always(name, informers.run)
    return services


def wire_volumes(
    syncer: Syncer, copies: CopyReconciler, writer: PodStatusWriter, requeue_pod: Callable[[str], None]
) -> VolumeReconciler:
    """Wire the controller that syncs claims and volumes; `requeue_pod` receives keys of waiting pods."""
    caches, manager = syncer.caches, syncer.manager

    def requeue(key: str) -> None:
        controller.queue.add(key)

    volumes = VolumeReconciler(
        *(syncer.identity, syncer.current_binding, caches, syncer.clients, copies, writer, manager.now),
        *(requeue, requeue_pod),
    )
    controller = manager.controller("volumes", volumes.reconcile)
    controller.watch(caches.virtual_pods, lambda pod: claim_keys(pod.object), when=pod_lifetime_changed)
    caches.bindings.on_change(lambda old, new: volumes.follow_drivers(new) if spec_changed(old, new) else None)
    copies.other_users.append(volumes.needs_secret)
    copies.copy_informers[SECRETS.plural].on_change(volumes.on_copy_change)
    informers = {
        "claims": volumes.claims,
        "volumes": volumes.volumes,
        "twin-claims": volumes.twin_claims,
        "twin-volumes": volumes.twin_volumes,
    }
    for name, each in informers.items():
        manager.run_always(name, each.run)
    return volumes


def wire_consistency_check(
    syncer: Syncer, copies: CopyReconciler, services: ServiceReconciler, volumes: VolumeReconciler
) -> None:
    """Wire the periodic check for inconsistencies that no controller noticed."""
    manager = syncer.manager
    if not syncer.config.check_seconds:
        return
    snapshot_caches = SnapshotCaches(
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
    binding, partition, interval = syncer.current_binding, syncer.partition, syncer.config.check_seconds
    rest = partition, manager.now, manager.controllers, interval, snapshot_caches
    check = ConsistencyCheck(syncer.identity, binding, syncer.caches, syncer.clients, *rest)
    checks = manager.controller("checks", check.reconcile, workers=1)
    manager.after_sync(lambda: checks.queue.add_after(syncer.identity.binding_name, syncer.config.check_seconds))


def pod_key(pod: VirtualPod) -> Iterable[str]:
    return (pod.key,)


def keys_with_tokens(pod: VirtualPod) -> Iterable[str]:
    """Return the key of the pod if it mounts service account tokens."""
    return [pod.key] if tokens_of(pod.object["spec"]) else []


def has_other_twin(caches: Caches, pod: VirtualPod | None) -> bool:
    """Return whether the pod is mapped to a twin other than the one in the cache."""
    if pod is None or (mapped := mapped_uid(pod.object)) is None:
        return False
    twin = caches.twin_of(pod.key)
    return twin is None or twin.uid != mapped


def is_expected_creation(caches: Caches, old: PhysicalPod | None, new: PhysicalPod | None) -> bool:
    """Return whether a twin was created with its node while its pod waits for it: there is nothing left to do."""
    if old is not None or not isinstance(new, Twin) or "nodeName" not in new.object["spec"]:
        return False
    return all(is_mapped_to(caches.virtual_pods.store.get(key), new) for key in virtual_key(new.object))


def is_scheduled_now(old: PhysicalPod | None, new: PhysicalPod | None) -> bool:
    """Return whether a twin got a node."""
    if not isinstance(old, Twin) or not isinstance(new, Twin):
        return False
    return "nodeName" in new.object["spec"] and "nodeName" not in old.object["spec"]


def is_waiting(pod: VirtualPod) -> bool:
    """Return whether the pod lacks something in the physical cluster."""
    return is_condition_false(pod.object, keys.MAPPED_CONDITION)


def pods_waiting_for(caches: Caches, copy: Object) -> Iterable[str]:
    """Return the keys of waiting pods that may need the object that was just copied."""
    pods = caches.virtual_pods.store
    users = (pod for key in source_keys_of(copy) for pod in pods.by("refers", key))
    owners = (pod for key in virtual_key(copy) if (pod := pods.get(key)) is not None)
    return [pod.key for pod in (*users, *owners) if is_waiting(pod)]


def pods_on_physical_node(caches: Caches, node: Object) -> Iterable[str]:
    """Return the keys of the pods that are bound to the virtual node of a physical one."""
    virtual_node = caches.virtual_node_of(name_of(node))
    return [pod.key for pod in caches.pods_on(name_of(virtual_node))] if virtual_node is not None else ()
