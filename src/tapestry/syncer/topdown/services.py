"""Reconciler of the twins of Services and EndpointSlices in the namespaces that the binding names.

Each Service has a twin without a selector, and each of its EndpointSlices has a twin. Pods of these namespaces get the
names of a Service as host aliases of the twin's address. Aliases are set when a pod's twin is created: a Service that
is created later is not visible to it.

Namespaces do not trust each other. A pod waits for the Services of its own namespace, and only a short time for those
of others; other namespaces share the aliases that its own leaves.

Physical objects are deleted only after a live read: if the caches demand a deletion, everything is decided again from
what the virtual API server has.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.controller import Informer, ObjectCache, Terminal
from tapestry.controller.controller import KeyMapper, own_key
from tapestry.kube.errors import AlreadyExists, BadRequest, Forbidden, Invalid
from tapestry.kube.names import dns_label_error
from tapestry.kube.objects import Object, key_of, labels_of, name_of, namespace_of, value_at
from tapestry.kube.resources import ENDPOINT_SLICES, SERVICES, Resource
from tapestry.kube.times import parse_time
from tapestry.syncer.clients import Clients
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.syncer.topdown.dependencies import DependencyNotReady
from tapestry.syncer.topdown.namespace_informers import NamespaceInformers
from tapestry.syncer.translate.pods import HostAlias
from tapestry.syncer.translate.services import (
    SERVICE_NAME,
    ServiceObjects,
    desired_objects,
    host_aliases,
    is_syncable,
    service_key,
    stale_objects,
)
from tapestry.syncer.views import VirtualPod

MAX_ALIASES = 1000
"""Maximum number of host aliases of a pod; with many more an API server would reject its twin."""
OTHER_NAMESPACES_TIMEOUT = 10.0
"""Age of a pod in seconds up to which it waits for Services of other namespaces."""


@dataclass
class ServiceReconciler:
    """Keep the twins of each Service and its slices; keyed by the virtual Service."""

    current_binding: CurrentBinding
    clients: Clients
    now: Callable[[], datetime]
    twins: ObjectCache
    twin_slices: ObjectCache
    """Our physical objects, with an index by source."""
    requeue_service: Callable[[str], None]
    """Requeue a Service."""
    requeue_pod: Callable[[str], None]
    """Requeue a pod."""
    waiting: dict[str, set[str]] = field(default_factory=dict)
    """Keys of the pods that wait for Services, by namespace."""
    rejected: set[str] = field(default_factory=set)
    """Keys of the Services that the physical API server rejects; no pod waits for these."""
    virtual_services: NamespaceInformers = field(init=False)
    virtual_slices: NamespaceInformers = field(init=False)

    def __post_init__(self) -> None:
        self.virtual_services = NamespaceInformers(partial(self._virtual_informer, SERVICES, own_key))
        self.virtual_slices = NamespaceInformers(partial(self._virtual_informer, ENDPOINT_SLICES, service_key))
        self.twins.on_change(self.on_twin_change)
        for informer in (self.twins, self.twin_slices):
            informer.after_sync(self.requeue_all)

    # -- dependencies of pods

    def aliases(self, namespace: str) -> list[HostAlias]:
        """Return the host aliases of Services for pods of a namespace."""
        others = self.other_namespaces(namespace)
        result = self.aliases_of(self.syncable_services(namespace), namespace)[:MAX_ALIASES]
        share = (MAX_ALIASES - len(result)) // max(len(others), 1)
        for other in others:
            result += self.aliases_of(self.syncable_services(other)[:share], namespace)[:share]
        return result

    def aliases_of(self, services: Iterable[Object], namespace: str) -> list[HostAlias]:
        return [
            alias
            for service in services
            for twin in self.twins.store.by("source", key_of(service))
            for alias in host_aliases(twin, service, namespace)
        ]

    def other_namespaces(self, namespace: str) -> list[str]:
        """Return the other namespaces whose Services pods of a namespace know: those listed with it in the binding."""
        binding = self.current_binding.get()
        listed = binding.spec.service_namespaces if binding is not None else ()
        return [each for each in listed if each != namespace] if namespace in listed else []

    async def ensure(self, pod: VirtualPod, binding: Binding) -> None:
        """Make a pod wait until the Services of its namespace have addresses.

        If this returns, aliases that were read just before are complete.
        """
        namespace = namespace_of(pod.object) or ""
        if namespace not in binding.spec.service_namespaces:
            return
        self.require_addresses(namespace, pod)
        for other in self.other_namespaces(namespace):
            age = self.now() - parse_time(pod.object["metadata"]["creationTimestamp"])
            self.require_addresses(other, pod, OTHER_NAMESPACES_TIMEOUT - age.total_seconds())

    def require_addresses(self, namespace: str, pod: VirtualPod, seconds: float | None = None) -> None:
        """Raise DependencyNotReady until the Services of a namespace are known and, for `seconds`, have addresses."""
        missing: list[str] = []
        if seconds is None or seconds > 0:
            syncable = {key_of(service) for service in self.syncable_services(namespace)}
            missing = sorted(key for key in syncable - self.rejected if not self.has_address(key))
        if missing or not self.is_synced(namespace):
            self.waiting.setdefault(namespace, set()).add(pod.key)
            subject = f"Service {missing[0]} has" if missing else f"the Services of {namespace} have"
            raise DependencyNotReady("ServiceNotMapped", f"{subject} no twin address yet", seconds if missing else None)

    def has_address(self, key: str) -> bool:
        return any(twin["spec"].get("clusterIP") for twin in self.twins.store.iter_by("source", key))

    def on_twin_change(self, _: Object | None, twin: Object | None) -> None:
        """Handle a change of a twin: pods may wait for its address."""
        if twin is not None:
            self.requeue_waiting(labels_of(twin).get(keys.VIRTUAL_NAMESPACE, ""))

    def requeue_waiting(self, *namespaces: str) -> None:
        """Requeue the pods that wait for the Services of these namespaces."""
        for namespace in namespaces:
            for key in self.waiting.pop(namespace, ()):
                self.requeue_pod(key)

    # -- caches

    def follow_namespaces(self, binding: Object | None) -> None:
        """Watch the Services of exactly the namespaces that a binding names."""
        for informers in (self.virtual_services, self.virtual_slices):
            informers.set_namespaces(value_at(binding, "spec", "serviceNamespaces", default=[]))
        self.requeue_all()

    def _virtual_informer(self, resource: Resource, services: KeyMapper, namespace: str) -> Informer:
        informer = Informer(self.clients.virtual_reads, resource, namespace=namespace, indexers={"service": services})
        informer.with_name(f"virtual_{resource.plural}")
        informer.on_change(partial(self._on_virtual_change, services))
        informer.after_sync(self.requeue_all)
        return informer

    def _on_virtual_change(self, services: KeyMapper, old: Object | None, new: Object | None) -> None:
        for key in {key for obj in (old, new) if obj is not None for key in services(obj)}:
            self.requeue_service(key)

    def requeue_all(self) -> None:
        """Requeue every Service that exists or has a twin, and every pod that waits for one."""
        synced = (key for informer in (self.twins, self.twin_slices) for key in informer.store.index_values("source"))
        for key in {*synced, *self.virtual_services.keys()}:
            self.requeue_service(key)
        self.requeue_waiting(*self.waiting)

    def is_synced(self, namespace: str) -> bool:
        """Return whether the caches of both clusters are filled for the namespace."""
        is_physical_synced = self.twins.synced.is_set() and self.twin_slices.synced.is_set()
        return is_physical_synced and None not in (
            self.virtual_services.synced_informer(namespace),
            self.virtual_slices.synced_informer(namespace),
        )

    def syncable_services(self, namespace: str) -> list[Object]:
        """Return the known Services of a namespace that have twins."""
        informer = self.virtual_services.synced_informer(namespace)
        if informer is None:
            return []
        return sorted(filter(is_syncable, informer.store.list()), key=name_of)

    def cached_service(self, key: str) -> tuple[Object | None, Iterable[Object]]:
        """Return the Service and its slices from the caches."""
        informer = self.virtual_slices.synced_informer(key.split("/")[0])
        return self.virtual_services.get(key), informer.store.by("service", key) if informer is not None else ()

    async def live_service(self, key: str) -> tuple[Object | None, Iterable[Object]]:
        """Return the Service and its slices from the virtual API server."""
        namespace, name = key.split("/", 1)
        if dns_label_error(name):  # the source name of a twin may be forged
            return None, ()
        service = await self.clients.virtual.find(SERVICES, name, namespace)
        if service is None:
            return None, ()
        return service, await self.clients.virtual.list(ENDPOINT_SLICES, namespace, labels=f"{SERVICE_NAME}={name}")

    def existing_objects(self, key: str) -> ServiceObjects:
        return {
            (informer.resource, name_of(obj)): obj
            for informer in (self.twins, self.twin_slices)
            for obj in informer.store.by("source", key)
        }

    # -- reconciling

    async def reconcile(self, key: str) -> None:
        binding = self.current_binding.get()
        namespace = key.split("/")[0]
        if binding is None or self.current_binding.is_unbinding:
            return
        is_listed = namespace in binding.spec.service_namespaces
        if not (self.is_synced(namespace) if is_listed else self.twins.synced.is_set()):
            return
        existing = self.existing_objects(key)
        desired = desired_objects(*self.cached_service(key), binding) if is_listed else {}
        if is_listed and stale_objects(existing, desired):
            desired = desired_objects(*await self.live_service(key), binding)
        stale = stale_objects(existing, desired)
        for resource, name in stale:
            await self.clients.physical.delete_if_exists(resource, existing[resource, name])
        try:
            for ref, obj in desired.items():
                if ref not in stale:  # its replacement is created after its deletion is observed
                    await self.apply(ref[0], existing.get(ref), obj, binding)
        except (Forbidden, Invalid, BadRequest):
            self.rejected.add(key)
            self.requeue_waiting(namespace)
            raise
        self.rejected.discard(key)

    async def apply(self, resource: Resource, existing: Object | None, wanted: Object, binding: Binding) -> None:
        try:
            await self.clients.physical.converge(resource, existing, wanted)
        except AlreadyExists:
            await self.apply_existing(resource, wanted, binding)

    async def apply_existing(self, resource: Resource, wanted: Object, binding: Binding) -> None:
        """Handle a taken name: the cache lags, or a foreign object has it."""
        existing = await self.clients.physical.get(resource, name_of(wanted), namespace_of(wanted))
        if not binding.owns(existing):
            message = f"{resource.kind} {key_of(existing)} in the physical cluster is not ours; delete it there"
            raise Terminal("NameTaken", message)
        await self.clients.physical.converge(resource, existing, wanted)
