"""Reconciler of the volumes of a tenant: the host cluster provisions claims of the plane.

Keys are names of volumes of the plane, also of volumes that do not exist yet, see `volume_translation`.

    a claim without volume     create the claim in the host cluster, when a provisioner has to. When it is bound there,
                               create the volume of the plane for it, to which the plane then binds the claim.
    a bound claim              copy a larger request, and what the host cluster reports about the expansion.
    a released volume          with the reclaim policy Delete: delete the claim in the host cluster and then the volume.
    neither claim nor volume   delete the claim in the host cluster, as live reads confirm.

A volume whose claim in the host cluster is lost gets no new one: the plane would mistake an empty volume for its data.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from tapestry.apis.clusterbindings import Binding
from tapestry.controller import ObjectCache, Terminal
from tapestry.controlplane.volume_matching import SELECTED_NODE, storage_class_of
from tapestry.kube.errors import AlreadyExists, BadRequest, Forbidden, Invalid, NotFound
from tapestry.kube.objects import Object, annotations_of, is_deleting, key_of, name_of, namespace_of, uid_of, value_at
from tapestry.kube.pod_references import ReferenceKind
from tapestry.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES
from tapestry.syncer.cache_transforms import physical_node_of
from tapestry.syncer.caches import Caches
from tapestry.syncer.clients import Clients
from tapestry.syncer.components import Syncer
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.syncer.pod_wiring import RequeuePod
from tapestry.syncer.predicates import spec_changed
from tapestry.syncer.topdown.dependencies import DependencyNotReady
from tapestry.syncer.topdown.volumes import check_owner, claim_keys, pod_lifetime_changed
from tapestry.syncer.translate.metadata import source_key
from tapestry.syncer.translate.pod_status import mapped_uid
from tapestry.syncer.translate.references import with_claim_names
from tapestry.syncer.translate.sanitize import truncate_text
from tapestry.syncer.translate.volumes import resize_patch
from tapestry.syncer.views import VirtualPod
from tapestry.tenants.sync.twin_objects import HOST_REJECTED, NAME_TAKEN, RETRIES_PER_DELETION, NotSynced, NoTwin
from tapestry.tenants.sync.volume_translation import (
    capacity_patch,
    changed_claim,
    is_claim_bound,
    is_disposable,
    is_of_host,
    is_provisioned,
    new_claim,
    plane_volume,
    provisioned_volume,
    twin_claim_name,
    volume_affinity,
    volume_of,
    volume_of_twin,
    with_selected_node,
)

BY_VOLUME = "volume"
"""Index of claims of both clusters by the name of the volume of the plane."""


@dataclass(frozen=True)
class TenantVolumes:
    """Keep one claim in the host cluster for each volume that it has provisioned for the plane."""

    current_binding: CurrentBinding
    caches: Caches
    clients: Clients
    claims: ObjectCache
    """Claims of the plane, with an index by volume."""
    volumes: ObjectCache
    storage_classes: ObjectCache
    twins: ObjectCache
    """The tenant's claims in the host cluster, with an index by volume."""
    requeue_volume: Callable[[str], None]
    requeue_pod: RequeuePod
    failures: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Reason and message of the last event about the claim of each volume, by the name of the volume."""

    # -- watch events

    def on_claim_change(self, old: Object | None, new: Object | None) -> None:
        for claim in (old, new):
            if claim is not None:
                self.requeue_volume(volume_of(claim))
                self.requeue_users(claim)

    def on_twin_change(self, old: Object | None, new: Object | None) -> None:
        twin = new or old
        assert twin is not None
        name = volume_of_twin(twin)
        self.requeue_volume(name)
        if old is None or new is None or is_deleting(old) != is_deleting(new):
            for claim in self.claims.store.by(BY_VOLUME, name):
                self.requeue_users(claim)
        if new is None:  # that may have freed an amount of the quota
            rejected = (each for each, (reason, _) in self.failures.items() if reason == HOST_REJECTED)
            for each in islice(rejected, RETRIES_PER_DELETION):
                self.requeue_volume(each)

    def on_class_change(self, old: Object | None, new: Object | None) -> None:
        name = name_of(new or old or {})
        for claim in self.claims.store.list():
            if storage_class_of(claim) == name and not value_at(claim, "spec", "volumeName"):
                self.requeue_volume(volume_of(claim))

    def requeue_all(self) -> None:
        known = *map(volume_of, self.claims.store.list()), *map(volume_of_twin, self.twins.store.list())
        for name in {*known, *self.volumes.store}:
            self.requeue_volume(name)

    def users(self, claim: Object) -> Iterator[VirtualPod]:
        return self.caches.virtual_pods.store.iter_by("refers", f"{ReferenceKind.CLAIM}/{key_of(claim)}")

    def requeue_users(self, claim: Object) -> None:
        """Requeue the pods that may wait for a claim."""
        for pod in [each for each in self.users(claim) if mapped_uid(each.object) is None]:
            self.requeue_pod(pod.key)

    # -- dependencies of pods

    async def ensure(self, pod: VirtualPod, binding: Binding) -> None:
        """Return if all claims of the pod exist in the host cluster, whether or not they are bound there."""
        for key in claim_keys(pod.object):
            self.mounted_claim(key, pod, binding)

    def with_claims(self, twin: Object, pod: VirtualPod, binding: Binding) -> Object:
        """Return the twin of a pod with the names of its claims in the host cluster. Raises DependencyNotReady."""
        namespace = namespace_of(pod.object)
        return with_claim_names(twin, pod.object, lambda name: self.mounted_claim(f"{namespace}/{name}", pod, binding))

    def mounted_claim(self, key: str, pod: VirtualPod, binding: Binding) -> str:
        """Return the name in the host cluster of a claim that a pod mounts. Raises DependencyNotReady."""
        claim = self.claims.store.get(key)
        if claim is None:
            raise DependencyNotReady("ClaimMissing", f"there is no claim {key}")
        if is_deleting(claim):
            raise DependencyNotReady("ClaimGoing", f"claim {key} is being deleted")
        check_owner(claim, pod.object)
        name = volume_of(claim)
        volume = self.volumes.store.get(name)
        if volume is not None and not is_of_host(volume):
            message = f"claim {key} is bound to volume {name}, which is not one of the host cluster"
            raise DependencyNotReady("VolumeNotAllowed", f"{message}; use a storage class that it offers")
        twin = self.twin_of(name, binding)
        if twin is not None and not is_deleting(twin):
            return twin_claim_name(name, binding)
        reason, message = self.failures.get(name, ("ClaimNotSynced", "it waits for its volume"))
        raise DependencyNotReady(reason, f"claim {key} does not exist in the host cluster yet: {message}")

    # -- lookup

    def twin_of(self, name: str, binding: Binding) -> Object | None:
        found = (each for each in self.twins.store.iter_by(BY_VOLUME, name) if binding.owns(each))
        return next((each for each in found if name_of(each) == twin_claim_name(name, binding)), None)

    def claim_of(self, name: str, volume: Object | None) -> Object | None:
        """Return the claim of the plane that a volume is bound to, or that it is to be provisioned for."""
        claims = self.claims.store.by(BY_VOLUME, name)
        if uid := value_at(volume, "spec", "claimRef", "uid"):
            return next((each for each in claims if uid_of(each) == uid), None)
        return min(claims, key=lambda each: name != provisioned_volume(each), default=None)

    def source_claim(self, name: str, uid: str) -> Object | None:
        """Return the claim of the plane by the name and UID of its twin, or None if it is not provably ours."""
        binding = self.current_binding.get()
        twin = self.twins.store.get(f"{binding.spec.mount_namespace}/{name}") if binding is not None else None
        if binding is None or twin is None or uid_of(twin) != uid or not binding.owns(twin):
            return None
        volume = volume_of_twin(twin)
        return self.claim_of(volume, self.volumes.store.get(volume))

    # -- reconciling

    async def reconcile(self, name: str) -> None:
        binding = self.current_binding.get()
        if binding is None or self.current_binding.is_unbinding:
            return
        caches = self.claims, self.volumes, self.twins, self.storage_classes
        if not all(each.synced.is_set() for each in caches):
            return  # all keys are queued when the caches are filled
        volume, twin = self.volumes.store.get(name), self.twin_of(name, binding)
        claim = self.claim_of(name, volume)
        if claim is None:
            self.failures.pop(name, None)
            await self.without_claim(name, volume, twin)
        elif volume is None or is_of_host(volume):
            await self.with_claim(claim, volume, twin, binding)

    async def without_claim(self, name: str, volume: Object | None, twin: Object | None) -> None:
        """Remove what is left of a claim, unless its volume is retained."""
        if volume is not None and not is_disposable(volume):
            return
        live = await self.clients.virtual.find(PERSISTENT_VOLUMES, name)
        if live is not None and not is_disposable(live):
            return  # the cache lags behind
        if twin is not None:
            if live is not None or await self.is_unused(name, twin):
                await self.delete_twin(twin)
        elif live is not None and not is_deleting(live):
            await self.clients.virtual.delete_if_exists(PERSISTENT_VOLUMES, live)

    async def is_unused(self, name: str, twin: Object) -> bool:
        """Return whether the claim that a twin was made for does not exist any more, according to a live read."""
        for key in source_key(twin):
            namespace, _, claim_name = key.partition("/")
            claim = await self.clients.virtual.find(PERSISTENT_VOLUME_CLAIMS, claim_name, namespace)
            if claim is not None and volume_of(claim) == name:
                return False
        return True

    async def delete_twin(self, twin: Object) -> None:
        if not is_deleting(twin):
            await self.clients.physical.delete_if_exists(PERSISTENT_VOLUME_CLAIMS, twin)

    async def with_claim(self, claim: Object, volume: Object | None, twin: Object | None, binding: Binding) -> None:
        name = volume_of(claim)
        try:
            twin = await self.converged_twin(claim, volume, twin, binding)
            self.check_twin(claim, twin)
        except NoTwin as error:
            self.report(name, claim, error)
            return
        except (Forbidden, Invalid, BadRequest) as error:
            self.report(name, claim, NotSynced(HOST_REJECTED, truncate_text(error.message)))
            raise
        except Terminal as error:
            self.report(name, claim, NotSynced(error.reason, error.message))
            raise
        self.report(name, claim, None)
        if twin is not None and not is_deleting(twin):
            await self.write_back(claim, volume, twin)

    def check_twin(self, claim: Object, twin: Object | None) -> None:
        """Raise NotSynced if a bound claim has lost its volume in the host cluster."""
        if twin is not None and value_at(twin, "status", "phase") == "Lost":
            message = f"the host cluster has lost the volume of claim {key_of(claim)}"
            raise NotSynced("VolumeLost", f"{message}; delete the claim to get a new one")

    async def converged_twin(
        self, claim: Object, volume: Object | None, twin: Object | None, binding: Binding
    ) -> Object | None:
        """Create or update the twin of a claim, and return it; None if there is to be none yet. Raises NoTwin."""
        physical, storage_class = self.clients.physical, self.storage_classes.store.get(storage_class_of(claim))
        node = self.selected_node(claim)
        if twin is not None:
            if is_deleting(twin):
                return twin
            if node is not None and not is_claim_bound(twin) and SELECTED_NODE not in annotations_of(twin):
                await self.reject_node(claim, twin)
                return twin
            desired = with_selected_node(changed_claim(claim, twin, binding), None if is_claim_bound(twin) else node)
            return await physical.converge(PERSISTENT_VOLUME_CLAIMS, twin, desired)
        if volume is not None:
            message = f"the host cluster has no volume for {name_of(volume)} any more"
            raise NotSynced("VolumeLost", f"{message}; delete claim {key_of(claim)} to get a new one")
        has_node = next(self.users(claim), None) is not None if binding.spec.schedules_on_host else node is not None
        if not is_provisioned(claim, storage_class, has_node=has_node):
            raise NoTwin
        desired = with_selected_node(new_claim(claim, storage_class, binding), node)
        try:
            return await physical.converge(PERSISTENT_VOLUME_CLAIMS, None, desired)
        except AlreadyExists:
            found = await physical.get(PERSISTENT_VOLUME_CLAIMS, name_of(desired), namespace_of(desired))
        if not binding.owns(found):
            message = f"claim {key_of(found)} in the host cluster belongs to somebody else"
            raise Terminal(NAME_TAKEN, f"{message}; ask the operator of the host cluster to delete it")
        return found

    def selected_node(self, claim: Object) -> str | None:
        """Return the node of the host cluster that the plane's scheduler has selected for the volume of a claim."""
        if self.caches.identity.schedules_on_host:
            return None
        node = self.caches.virtual_nodes.store.get(annotations_of(claim).get(SELECTED_NODE, ""))
        return next(iter(physical_node_of(node)), None) if node is not None else None

    async def reject_node(self, claim: Object, twin: Object) -> None:
        """Let the scheduler of the plane select another node: the provisioner of the host cluster cannot use this one.

        A provisioner reports that by removing the annotation. The next claim in the host cluster has the next node.
        """
        await self.delete_twin(twin)
        patch = {"metadata": {"annotations": {SELECTED_NODE: None}}}
        with suppress(NotFound):
            await self.clients.virtual.patch(PERSISTENT_VOLUME_CLAIMS, claim, patch)

    async def write_back(self, claim: Object, volume: Object | None, twin: Object) -> None:
        """Create the volume of a claim that the host cluster has bound, and follow the expansion of an existing one."""
        virtual = self.clients.virtual
        try:
            if volume is not None:
                if (patch := capacity_patch(volume, twin)) is not None:
                    volume = await virtual.patch(PERSISTENT_VOLUMES, volume, patch)
                if patch := resize_patch(claim, volume, twin):
                    await virtual.patch(PERSISTENT_VOLUME_CLAIMS, claim, patch, subresource="status")
            elif is_claim_bound(twin) and not is_deleting(claim):
                storage_class = self.storage_classes.store.get(storage_class_of(claim))
                affinity = await self.affinity(twin)
                desired = plane_volume(claim, twin, storage_class, affinity)
                await virtual.converge(PERSISTENT_VOLUMES, None, desired)
        except (AlreadyExists, NotFound):
            return  # a change follows

    async def affinity(self, twin: Object) -> Object | None:
        """Return the node affinity of the volume that the host cluster has bound to a claim."""
        host_volume = await self.clients.physical_reads.find(PERSISTENT_VOLUMES, twin["spec"]["volumeName"])
        if self.caches.identity.schedules_on_host:
            return volume_affinity(host_volume, twin, None)
        nodes = self.caches.virtual_nodes.store.list()
        return volume_affinity(
            host_volume, twin, {each: name_of(node) for node in nodes for each in physical_node_of(node)}
        )

    def report(self, name: str, claim: Object, error: NoTwin | None) -> None:
        """Record an event about a claim, unless the last one was the same. Pods that wait for it get the message."""
        failure = (error.reason, str(error)) if isinstance(error, NotSynced) else None
        if self.failures.get(name) == failure:
            return
        if failure is None:
            del self.failures[name]
            return
        self.failures[name] = failure
        self.clients.events.warning(claim, *failure)
        self.requeue_users(claim)


def wire_volumes(syncer: Syncer, requeue_pod: RequeuePod) -> TenantVolumes:
    """Add the controller of volumes to the syncer of a tenant; `requeue_pod` gets keys of waiting pods."""
    manager, caches = syncer.manager, syncer.caches
    claims = manager.informer(PERSISTENT_VOLUME_CLAIMS, indexers={BY_VOLUME: lambda claim: [volume_of(claim)]})
    volumes, storage_classes = manager.informer(PERSISTENT_VOLUMES), manager.informer(STORAGE_CLASSES)
    twins = syncer.owned_cache(PERSISTENT_VOLUME_CLAIMS, indexers={BY_VOLUME: lambda twin: [volume_of_twin(twin)]})

    def requeue(name: str) -> None:
        controller.queue.add(name)

    reconciler = TenantVolumes(
        syncer.current_binding,
        caches,
        syncer.clients,
        claims,
        volumes,
        storage_classes,
        twins,
        requeue_volume=requeue,
        requeue_pod=requeue_pod,
    )
    controller = manager.controller("volumes", reconciler.reconcile)
    claims.on_change(reconciler.on_claim_change)
    twins.on_change(reconciler.on_twin_change)
    storage_classes.on_change(reconciler.on_class_change)
    controller.watch(volumes)

    def claims_of_pod(pod: VirtualPod) -> Iterable[str]:
        found = (claims.store.get(key) for key in claim_keys(pod.object))
        return [volume_of(each) for each in found if each is not None]

    controller.watch(caches.virtual_pods, claims_of_pod, when=pod_lifetime_changed)
    for each in (claims, volumes, twins, storage_classes):
        each.after_sync(reconciler.requeue_all)
    caches.bindings.on_change(lambda old, new: reconciler.requeue_all() if spec_changed(old, new) else None)
    return reconciler
