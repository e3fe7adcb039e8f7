"""Reconciler of the twins of claims and volumes that pods mount.

    needed       A pod that mounts the claim needs a twin: the volume and then the claim are created, or the pod
                 reports why not. Later the twin volume is expanded with the virtual one.
    not needed   The last such pod is deleted or has ended, as a live list confirms: delete the claim and then
                 the volume. The data stays.

Claims and volumes of the virtual cluster are watched for changes, and then read live: this is rare, and much depends on
it. What their twins report is synced to the virtual claim, except for its phase, which the virtual cluster decides. A
twin that is lost or stays pending is reported on the claim and on the pods that mount it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import physical_name
from tapestry.controller import Informer, ObjectCache, Result
from tapestry.controller.informer import Handler
from tapestry.controller.store import Indexer
from tapestry.controller.transforms import Transform
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, is_denied_by_policy
from tapestry.kube.names import dns_subdomain_error
from tapestry.kube.objects import (
    EMPTY_MAPPING,
    Object,
    is_deleting,
    is_owned_by,
    key_of,
    name_of,
    namespace_of,
    uid_of,
    value_at,
)
from tapestry.kube.pod_references import ReferenceKind, claim_name, is_ephemeral, references, secrets_of
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, SECRETS, Resource
from tapestry.syncer.cache_transforms import source_namespace
from tapestry.syncer.caches import CACHE_LAG_SECONDS, Caches
from tapestry.syncer.clients import Clients
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.syncer.identity import Identity
from tapestry.syncer.topdown.copies import CopyReconciler, source_keys_of
from tapestry.syncer.topdown.dependencies import DependencyNotReady, NotGranted
from tapestry.syncer.topdown.namespace_informers import NamespaceInformers, owned_informer
from tapestry.syncer.topdown.pod_status_writer import PodStatusWriter
from tapestry.syncer.translate.metadata import source_key
from tapestry.syncer.translate.pod_status import mapped_uid
from tapestry.syncer.translate.volumes import (
    claim_problem,
    is_bound,
    is_twin_of,
    release_patch,
    resize_patch,
    twin_claim,
    twin_volume,
    volume_errors,
)
from tapestry.syncer.views import VirtualPod

REFUSED_BY_OWNER = "VolumeRefusedBelow"
CLUSTER_SCOPE = ""
"""The namespace of cluster-scoped objects in `NamespaceInformers`."""
PENDING_SECONDS = 30.0
"""Seconds after which a twin claim that is still pending is reported."""


@dataclass
class VolumeReconciler:
    """Keep the twins of claims and their volumes; keyed by the virtual claim."""

    identity: Identity
    current_binding: CurrentBinding
    caches: Caches
    clients: Clients
    copies: CopyReconciler
    writer: PodStatusWriter
    now: Callable[[], datetime]
    requeue_claim: Callable[[str], None]
    """Requeue a claim."""
    requeue_pod: Callable[[str], None]
    """Requeue a pod."""
    expected_secrets: dict[str, set[str]] = field(default_factory=dict)
    """Keys of Secrets that volumes need and that may not be copied yet, by claim."""
    deleting: set[str] = field(default_factory=set)
    """UIDs of physical objects that are being deleted, which the cache may not show yet."""
    pending_since: dict[str, datetime] = field(default_factory=dict)
    """Times since when twin claims are seen pending, by the key of the virtual claim."""
    reported: dict[str, str] = field(default_factory=dict)
    """Reasons of the last events about claims whose twin is not bound, by the key of the virtual claim."""
    followed_claims: dict[str, set[str]] = field(default_factory=dict)
    """Keys of the claims that pods mount, by namespace."""
    claims: NamespaceInformers = field(init=False)
    """Virtual claims, reduced by `identity_only`."""
    volumes: NamespaceInformers = field(init=False)
    """Virtual volumes, reduced by `binding_only`."""
    twin_claims: NamespaceInformers = field(init=False)
    twin_volumes: NamespaceInformers = field(init=False)
    """Our physical objects."""

    def __post_init__(self) -> None:
        self.claims = NamespaceInformers(
            lambda each: self._virtual_informer(PERSISTENT_VOLUME_CLAIMS, identity_only, self.on_claim_change, each)
        )
        self.volumes = NamespaceInformers(
            lambda _: self._virtual_informer(PERSISTENT_VOLUMES, binding_only, self.on_volume_change)
        )
        self.twin_claims = NamespaceInformers(lambda _: self._physical_informer(PERSISTENT_VOLUME_CLAIMS))
        self.twin_volumes = NamespaceInformers(
            lambda _: self._physical_informer(PERSISTENT_VOLUMES, {"secrets": secrets_of})
        )

    # -- caches

    def follow_drivers(self, binding: Object | None) -> None:
        """Start the informers once a binding allows a driver.

        They stay when the driver is no longer allowed, because existing twins are deleted with their pods.
        """
        if value_at(binding, "spec", "allowedVolumes", "drivers"):
            self.volumes.set_namespaces([CLUSTER_SCOPE])
            self.twin_claims.set_namespaces([self.identity.mount_namespace])
            self.twin_volumes.set_namespaces([CLUSTER_SCOPE])

    def follow_claim(self, key: str) -> None:
        """Watch the claims of a namespace from the first that a pod mounts."""
        namespace = key.split("/")[0]
        self.followed_claims.setdefault(namespace, set()).add(key)
        self.claims.add(namespace)

    def forget_claim(self, key: str) -> None:
        """Stop the watch of a namespace with its last claim."""
        namespace = key.split("/")[0]
        followed = self.followed_claims.get(namespace, set())
        followed.discard(key)
        if not followed:
            self.followed_claims.pop(namespace, None)
            self.claims.discard(namespace)

    def _virtual_informer(
        self, resource: Resource, transform: Transform, on_change: Handler, namespace: str | None = None
    ) -> Informer:
        informer = Informer(self.clients.virtual_reads, resource, namespace=namespace, transform=transform)
        informer.with_name(f"virtual_{resource.plural}")
        informer.on_change(on_change)
        return informer

    def _physical_informer(self, resource: Resource, indexers: Mapping[str, Indexer] = EMPTY_MAPPING) -> Informer:
        informer = owned_informer(self.identity, self.clients.physical_reads, resource, indexers=indexers)
        informer.on_change(self.on_physical_change)
        informer.after_sync(self.requeue_all)
        return informer

    def requeue_all(self) -> None:
        """Requeue every claim that has a twin claim or volume."""
        informers = (
            self.twin_claims.synced_informer(self.identity.mount_namespace),
            self.twin_volumes.synced_informer(CLUSTER_SCOPE),
        )
        for key in {key for informer in informers if informer for key in informer.store.index_values("source")}:
            self.requeue_claim(key)

    def on_claim_change(self, old: Object | None, new: Object | None) -> None:
        for claim in (old, new):
            if claim is not None:
                self.requeue_claim(key_of(claim))
                self.requeue_users([key_of(claim)])

    def on_volume_change(self, old: Object | None, new: Object | None) -> None:
        """Handle a change of a virtual volume: it was bound, expanded or deleted."""
        if value_at(old, "spec") != value_at(new, "spec"):
            for key in {key for volume in (old, new) if volume is not None for key in bound_claim_key(volume)}:
                self.requeue_claim(key)
                self.requeue_users([key])

    def on_physical_change(self, old: Object | None, new: Object | None) -> None:
        """Handle a change of a twin: pods may wait for its deletion, and a Secret may become unused."""
        for key in {key for obj in (old, new) if obj is not None for key in source_key(obj)}:
            self.requeue_claim(key)
        if old is not None and (new is None or is_deleting(new)):
            self.deleting.discard(uid_of(old))
        if old is not None and new is None:
            self.requeue_users(source_key(old))
            for namespace in source_namespace(old):
                self.copies.schedule_sweep(namespace)

    def on_copy_change(self, old: Object | None, new: Object | None) -> None:
        """Handle a change of a Secret's copy: claims may wait for its creation."""
        for key in source_keys_of(new) if old is None and new is not None else ():
            self.requeue_users([claim for claim, secrets in self.expected_secrets.items() if key in secrets])

    # -- dependencies of pods

    async def ensure(self, pod: VirtualPod, binding: Binding) -> None:
        for key in claim_keys(pod.object):
            claim, _, _ = await self.ensure_claim(key, binding)
            check_owner(claim, pod.object)

    def with_claims(self, twin: Object, _pod: VirtualPod, _binding: Binding) -> Object:
        """Return the twin as it is: its claims are named after those of the pod."""
        return twin

    def users(self, key: str) -> Iterator[VirtualPod]:
        """Yield our active pods that mount the claim."""
        pods = self.caches.virtual_pods.store.iter_by("refers", f"{ReferenceKind.CLAIM}/{key}")
        return (pod for pod in pods if self.caches.is_our_pod(pod.object))

    def requeue_users(self, claims: Iterable[str]) -> None:
        """Requeue the pods that may wait for these claims."""
        for pod in [pod for key in claims for pod in self.users(key) if mapped_uid(pod.object) is None]:
            self.requeue_pod(pod.key)

    # -- dependencies of volumes

    def needs_secret(self, key: str) -> bool:
        """Return whether a twin volume needs the copy of `secrets/team-a/password`."""
        if any(key in secrets for secrets in self.expected_secrets.values()):
            return True
        kind, namespace, name = key.split("/", 2)
        volumes = self.twin_volumes.synced_informer(CLUSTER_SCOPE)
        if volumes is None or kind != SECRETS.plural:
            return False
        copy = physical_name(self.identity.virtual_cluster, self.identity.binding_uid, namespace, name)
        return any(volumes.store.iter_by("secrets", copy))

    # -- reconciling

    async def reconcile(self, key: str) -> Result | None:
        binding = self.current_binding.get()
        claims, volumes = (
            self.twin_claims.synced_informer(self.identity.mount_namespace),
            self.twin_volumes.synced_informer(CLUSTER_SCOPE),
        )
        if binding is None or claims is None or volumes is None:
            return None
        if next(self.users(key), None) is None:
            return await self.remove(key, claims, volumes)
        if not claims.store.by("source", key):
            return None  # its pod may still be rejected; otherwise it ensures the claim itself
        try:
            claim, volume, twin = await self.ensure_claim(key, binding)
        except DependencyNotReady:
            return None
        if patch := resize_patch(claim, volume, twin):
            await self.clients.virtual.patch(PERSISTENT_VOLUME_CLAIMS, claim, patch, subresource="status")
        return await self.report_problem(key, claim, twin)

    async def report_problem(self, key: str, claim: Object, twin: Object) -> Result | None:
        """Report a twin claim that is not bound by an event and a condition of its pods, and withdraw that later."""
        problem = claim_problem(key, twin)
        if problem is None:
            self.pending_since.pop(key, None)
            self.reported.pop(key, None)
            for pod in list(self.users(key)):
                await self.clear_problem(pod, key)
            return None
        waited = (self.now() - self.pending_since.setdefault(key, self.now())).total_seconds()
        if value_at(twin, "status", "phase") == "Pending" and waited < PENDING_SECONDS:
            return Result(requeue_after=PENDING_SECONDS - waited)
        reason, message = problem
        for pod in list(self.users(key)):
            if reported_claim(pod) in (None, key) and await self.writer.set_condition_false(
                pod, keys.VOLUMES_CONDITION, reason, message
            ):
                self.clients.events.warning(pod.object, reason, message)
        if self.reported.get(key) != reason:
            self.reported[key] = reason
            self.clients.events.warning(claim, reason, message)
        return None

    async def clear_problem(self, pod: VirtualPod, key: str) -> None:
        """Remove the condition about this claim. Other claims of the pod may have a problem, too."""
        if reported_claim(pod) == key:
            await self.writer.remove_condition(pod, keys.VOLUMES_CONDITION)
            for other in claim_keys(pod.object):
                self.requeue_claim(other)

    def source_claim(self, name: str, uid: str) -> Object | None:
        """Return the identity of the virtual claim of a twin that pods mount, or None if it is not provably ours."""
        twin = self.twin_claims.get(f"{self.identity.mount_namespace}/{name}")
        if twin is None or uid_of(twin) != uid:
            return None
        found = (self.claims.get(key) for key in source_key(twin) if next(self.users(key), None))
        return next((claim for claim in found if claim is not None and is_twin_of(twin, claim)), None)

    async def ensure_claim(self, key: str, binding: Binding) -> tuple[Object, Object, Object]:
        """Ensure the twins or raise DependencyNotReady; return the virtual claim and volume, and the twin claim."""
        claim, volume = await self.bound_claim(key, binding)
        secrets = [f"{SECRETS.plural}/{namespace_of(claim)}/{name}" for name in secrets_of(volume)]
        if secrets:
            self.expected_secrets[key] = set(secrets)
        for secret in secrets:
            if not self.copies.source_cache.is_up_to_date(secret):
                self.copies.source_cache.requeue(secret)
            if not self.copies.has_current_copy(secret, binding):
                await self.copies.ensure_copy(secret, binding)
        desired = twin_volume(claim, volume, binding)
        volume_twin = await self.ensure_object(self.twin_volumes, PERSISTENT_VOLUMES, desired, volume, binding)
        twin = await self.ensure_object(
            self.twin_claims, PERSISTENT_VOLUME_CLAIMS, twin_claim(claim, volume, binding), claim, binding
        )
        volume_twin = await self.clients.physical.converge(PERSISTENT_VOLUMES, volume_twin, desired)
        if patch := release_patch(volume_twin, twin):
            await self.clients.physical.patch(PERSISTENT_VOLUMES, volume_twin, patch)
        return claim, volume, twin

    async def bound_claim(self, key: str, binding: Binding) -> tuple[Object, Object]:
        """Return the virtual claim and its volume if they may be synced."""
        namespace, name = key.split("/", 1)
        allowed = binding.spec.allowed_volumes
        if not allowed.drivers:
            raise DependencyNotReady("VolumeNotAllowed", f"claim {key}: the binding's allowedVolumes names no driver")
        could_exist = dns_subdomain_error(name) is None  # a pod may use an invalid name
        try:
            claim = await self.clients.virtual.find(PERSISTENT_VOLUME_CLAIMS, name, namespace) if could_exist else None
            self.follow_claim(key)
            if claim is None:
                raise DependencyNotReady("ClaimMissing", f"there is no claim {key}")
            volume_name = claim["spec"].get("volumeName")
            volume = await self.clients.virtual.find(PERSISTENT_VOLUMES, volume_name) if volume_name else None
        except Forbidden as error:
            raise NotGranted(error.message) from error
        if volume is None or not is_bound(claim, volume):
            raise DependencyNotReady("ClaimNotBound", f"claim {key} is not bound to a volume yet")
        if errors := list(volume_errors(claim, volume, allowed)):
            raise DependencyNotReady("VolumeNotAllowed", "; ".join(errors))
        return claim, volume

    async def ensure_object(
        self, informers: NamespaceInformers, resource: Resource, wanted: Object, source: Object, binding: Binding
    ) -> Object:
        """Create or find the twin of `source`; raise DependencyNotReady if it is foreign or being deleted."""
        existing = informers.get(key_of(wanted)) or await self.create_or_find(resource, wanted)
        description = f"{resource.kind} {key_of(existing)} in the physical cluster"
        if not binding.owns(existing):
            raise DependencyNotReady("NameTaken", f"{description} is not ours; delete it there and the pod can run")
        if not is_twin_of(existing, source) and not is_deleting(existing):
            await self.delete(resource, existing)
        if is_deleting(existing) or uid_of(existing) in self.deleting:
            raise DependencyNotReady("VolumeGoing", f"{description} of an earlier object is still being deleted")
        return existing

    async def create_or_find(self, resource: Resource, wanted: Object) -> Object:
        try:
            return await self.clients.physical.converge(resource, None, wanted)
        except AlreadyExists:
            existing = await self.clients.physical.find(resource, name_of(wanted), namespace_of(wanted))
            if existing is None:
                raise Conflict(409, "Conflict", f"{resource.kind} {key_of(wanted)} has just been deleted") from None
            return existing
        except ApiError as error:
            if not is_denied_by_policy(error):
                raise
            advice = "`tapestry join` updates the owner's policies to the binding"
            raise DependencyNotReady(REFUSED_BY_OWNER, f"{error.message}; {advice}") from error

    async def remove(self, key: str, claims: ObjectCache, volumes: ObjectCache) -> Result | None:
        """Delete the twin of an unused claim, and the twin volume after it."""
        informer = claims if claims.store.by("source", key) else volumes
        remaining = [obj for obj in informer.store.by("source", key) if not is_deleting(obj)]
        if not remaining:
            for secret in self.expected_secrets.pop(key, ()):
                self.copies.source_cache.requeue(secret)
            for each in (self.pending_since, self.reported):
                each.pop(key, None)
            self.forget_claim(key)
            return None
        if await self.is_mounted(key) or next(self.users(key), None) is not None:
            return Result(requeue_after=CACHE_LAG_SECONDS)
        for obj in remaining:
            await self.delete(informer.resource, obj)
        return None

    async def is_mounted(self, key: str) -> bool:
        """Return whether a pod mounts the claim, according to a live list."""
        fields = self.identity.active_pods
        pages = self.clients.virtual.pages(PODS, key.split("/")[0], fields=fields, without_managed_fields=True)
        on_our_nodes = (pod async for page in pages for pod in page.items if self.caches.is_our_pod(pod))
        return key in {each async for pod in on_our_nodes for each in claim_keys(pod)}

    async def delete(self, resource: Resource, obj: Object) -> None:
        """Delete an object that is provably ours, and record that for later reads."""
        self.deleting.add(uid_of(obj))
        try:
            await self.clients.physical.delete_if_exists(resource, obj)
        except BaseException:
            self.deleting.discard(uid_of(obj))
            raise


def claim_keys(pod: Object) -> list[str]:
    names = dict.fromkeys(each.name for each in references(pod) if each.kind is ReferenceKind.CLAIM)
    return [f"{namespace_of(pod)}/{name}" for name in names]


def check_owner(claim: Object, pod: Object) -> None:
    """Raise DependencyNotReady if a claim has the name of one for an ephemeral volume of the pod, and is another."""
    ephemeral = {claim_name(each, pod) for each in pod["spec"].get("volumes") or () if is_ephemeral(each)}
    if name_of(claim) in ephemeral and not is_owned_by(claim, pod):
        raise DependencyNotReady(
            "ClaimNotOwned", f"claim {key_of(claim)} was not created for the ephemeral volume of this pod"
        )


def pod_lifetime_changed(old: VirtualPod | None, new: VirtualPod | None) -> bool:
    """Return whether a pod was created, deleted or ended; its claims never change."""
    return old is None or new is None or is_pod_terminal(old.object) != is_pod_terminal(new.object)


def identity_only(claim: Object) -> Object:
    """Reduce a virtual claim to its identity: it is read live, and only its changes are watched."""
    metadata = {field: claim["metadata"][field] for field in ("name", "namespace", "uid", "resourceVersion")}
    return {"apiVersion": "v1", "kind": PERSISTENT_VOLUME_CLAIMS.kind, "metadata": metadata}


def binding_only(volume: Object) -> Object:
    """Reduce a virtual volume to its identity, claim and capacity, whose changes matter to its twin."""
    metadata, spec = volume["metadata"], volume["spec"]
    return {
        "metadata": {field: metadata[field] for field in ("name", "uid", "resourceVersion")},
        "spec": {"claimRef": spec.get("claimRef"), "capacity": spec.get("capacity")},
    }


def bound_claim_key(volume: Object) -> list[str]:
    reference = value_at(volume, "spec", "claimRef")
    return [f"{reference.get('namespace')}/{reference.get('name')}"] if reference else []


def reported_claim(pod: VirtualPod) -> str | None:
    """Return the key of the claim that a condition of the pod is about."""
    condition = find_condition(pod.object["status"]["conditions"], keys.VOLUMES_CONDITION)
    return str(condition.get("message")).split(" ")[1] if condition is not None else None
