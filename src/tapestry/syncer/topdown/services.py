"""Services of the namespaces that the binding names are known below, and pods from there find them by name.

For each Service there is a twin without a selector, and for each of its EndpointSlices one of ours.  Pods of the
namespaces that the binding names get its names as aliases of the twin's address.  A pod is told when its own twin is
made: of a Service that comes later it does not learn.

Namespaces do not trust each other.  A pod waits for the Services of its own namespace, and only for a moment for those
of others; and other namespaces share the aliases that its own leaves.

What goes below goes by a live read: where the caches want something removed, everything is decided once more by what
the virtual API server has now.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.controller import Informer, Terminal
from tapestry.controller.controller import KeyMapper, own_key
from tapestry.kube.errors import AlreadyExists, BadRequest, Forbidden, Invalid
from tapestry.kube.names import dns_label_error
from tapestry.kube.objects import Object, key_of, labels_of, name_of, namespace_of, value_at
from tapestry.kube.resources import ENDPOINT_SLICES, SERVICES, Resource
from tapestry.kube.times import parse_time
from tapestry.syncer.context import SyncContext
from tapestry.syncer.topdown.dependencies import DependencyNotReady
from tapestry.syncer.topdown.namespace_informers import NamespaceInformers, owned_informer
from tapestry.syncer.translate.pods import HostAlias
from tapestry.syncer.translate.services import (
    SERVICE_NAME,
    host_aliases,
    is_syncable,
    service_key,
    service_needs_recreate,
    twin_service,
    twin_slice,
)

MAX_ALIASES = 1000
"""Addresses that a pod knows by name; with many more an API server would not take its twin."""
OTHER_NAMESPACES_TIMEOUT = 10.0
"""Seconds of a pod's life in which it waits for Services of other namespaces."""
ServiceObjects = dict[tuple[Resource, str], Object]
"""What stands for one Service, by kind and name."""


@dataclass
class ServiceReconciler:
    """Keeps below what stands for each Service; keyed by the virtual Service."""

    context: SyncContext
    requeue_service: Callable[[str], None]
    """Has a Service looked at."""
    requeue_pod: Callable[[str], None]
    """Has a pod looked at."""
    waiting: dict[str, set[str]] = field(default_factory=dict)
    """Pods that wait for the Services of their namespace."""
    rejected: set[str] = field(default_factory=set)
    """Services that the physical API server does not want; no pod waits for these."""
    virtual_services: NamespaceInformers = field(init=False)
    """The virtual Services."""
    virtual_slices: NamespaceInformers = field(init=False)
    """The virtual EndpointSlices."""
    twins: Informer = field(init=False)
    twin_slices: Informer = field(init=False)
    """What is ours below."""

    def __post_init__(self) -> None:
        self.virtual_services = NamespaceInformers(partial(self._virtual_informer, SERVICES, own_key))
        self.virtual_slices = NamespaceInformers(partial(self._virtual_informer, ENDPOINT_SLICES, service_key))
        self.twins, self.twin_slices = (
            owned_informer(self.context, SERVICES),
            owned_informer(self.context, ENDPOINT_SLICES),
        )
        self.twins.on_change(self.on_twin_change)
        for informer in (self.twins, self.twin_slices):
            informer.after_sync(self.requeue_all)

    # -- for pods

    def aliases(self, namespace: str) -> list[HostAlias]:
        """The names of Services for pods of a namespace, as far as they have an address below."""
        others = self.other_namespaces(namespace)
        found = self.aliases_of(self.syncable_services(namespace), namespace)[:MAX_ALIASES]
        share = (MAX_ALIASES - len(found)) // max(len(others), 1)
        for other in others:
            found += self.aliases_of(self.syncable_services(other)[:share], namespace)[:share]
        return found

    def aliases_of(self, services: Iterable[Object], namespace: str) -> list[HostAlias]:
        return [
            alias
            for service in services
            for twin in self.twins.store.by("source", key_of(service))
            for alias in host_aliases(twin, service, namespace)
        ]

    def other_namespaces(self, namespace: str) -> list[str]:
        """The other namespaces whose Services pods of a namespace know: if the binding names it, all that it names."""
        binding = self.context.binding()
        listed = binding.spec.service_namespaces if binding is not None else ()
        return [each for each in listed if each != namespace] if namespace in listed else []

    async def ensure(self, pod: Object, binding: Binding) -> None:
        """Have a pod wait for the Services of its namespace, whose addresses its twin is to know.

        Whoever looked them up just before has them all, if this lets the pod pass.
        """
        namespace = namespace_of(pod) or ""
        if namespace not in binding.spec.service_namespaces:
            return
        self.require_addresses(namespace, pod)
        for other in self.other_namespaces(namespace):
            age = self.context.now() - parse_time(pod["metadata"]["creationTimestamp"])
            self.require_addresses(other, pod, OTHER_NAMESPACES_TIMEOUT - age.total_seconds())

    def require_addresses(self, namespace: str, pod: Object, seconds: float | None = None) -> None:
        """Raise NotYet until the Services of a namespace are known and have addresses; for these, so many seconds."""
        missing: list[str] = []
        if seconds is None or seconds > 0:
            crossing = {key_of(service) for service in self.syncable_services(namespace)}
            missing = sorted(key for key in crossing - self.rejected if not self.has_address(key))
        if missing or not self.is_synced(namespace):
            self.waiting.setdefault(namespace, set()).add(key_of(pod))
            what = f"Service {missing[0]} has" if missing else f"the Services of {namespace} have"
            raise DependencyNotReady("ServiceNotMapped", f"{what} no address below yet", seconds if missing else None)

    def has_address(self, key: str) -> bool:
        return any(twin["spec"].get("clusterIP") for twin in self.twins.store.iter_by("source", key))

    def on_twin_change(self, _: Object | None, twin: Object | None) -> None:
        """A handler of the twins' changes: one that comes is what pods may wait for."""
        if twin is not None:
            self.requeue_waiting(labels_of(twin).get(keys.VIRTUAL_NAMESPACE, ""))

    def requeue_waiting(self, *namespaces: str) -> None:
        """Have the pods looked at that wait for the Services of these namespaces."""
        for namespace in namespaces:
            for key in self.waiting.pop(namespace, ()):
                self.requeue_pod(key)

    # -- what is known

    def follow_namespaces(self, binding: Object | None) -> None:
        """Know the Services of the namespaces that a binding names, and of no others."""
        for following in (self.virtual_services, self.virtual_slices):
            following.set_namespaces(value_at(binding, "spec", "serviceNamespaces", default=[]))
        self.requeue_all()

    def _virtual_informer(self, resource: Resource, services: KeyMapper, namespace: str) -> Informer:
        informer = Informer(self.context.manager.reads, resource, namespace=namespace, indexers={"service": services})
        informer.with_name(f"virtual_{resource.plural}")
        informer.on_change(partial(self._on_virtual_change, services))
        informer.after_sync(self.requeue_all)
        return informer

    def _on_virtual_change(self, services: KeyMapper, old: Object | None, new: Object | None) -> None:
        for key in {key for obj in (old, new) if obj is not None for key in services(obj)}:
            self.requeue_service(key)

    def requeue_all(self) -> None:
        """Have every Service looked at that there is or that something below stands for, and whoever waits for one."""
        below = (key for informer in (self.twins, self.twin_slices) for key in informer.store.index_values("source"))
        for key in {*below, *self.virtual_services.keys()}:
            self.requeue_service(key)
        self.requeue_waiting(*self.waiting)

    def is_synced(self, namespace: str) -> bool:
        """Whether the caches tell what there is of the namespace, above and below."""
        below = self.twins.synced.is_set() and self.twin_slices.synced.is_set()
        return below and None not in (
            self.virtual_services.synced_informer(namespace),
            self.virtual_slices.synced_informer(namespace),
        )

    def syncable_services(self, namespace: str) -> list[Object]:
        """The Services of a namespace that are to be known below, as far as they are known."""
        informer = self.virtual_services.synced_informer(namespace)
        if informer is None:
            return []
        return sorted(filter(is_syncable, informer.store.list()), key=name_of)

    def cached_service(self, key: str) -> tuple[Object | None, Iterable[Object]]:
        """The Service and its slices, as the caches have them."""
        informer = self.virtual_slices.synced_informer(key.split("/")[0])
        return self.virtual_services.get(key), informer.store.by("service", key) if informer is not None else ()

    async def live_service(self, key: str) -> tuple[Object | None, Iterable[Object]]:
        """The same, as they are."""
        namespace, name = key.split("/", 1)
        if dns_label_error(name):  # what stands below for a Service may say anything of it
            return None, ()
        service = await self.context.virtual_client.find(SERVICES, name, namespace)
        if service is None:
            return None, ()
        return service, await self.context.virtual_client.list(
            ENDPOINT_SLICES, namespace, labels=f"{SERVICE_NAME}={name}"
        )

    def existing_objects(self, key: str) -> ServiceObjects:
        return {
            (informer.resource, name_of(obj)): obj
            for informer in (self.twins, self.twin_slices)
            for obj in informer.store.by("source", key)
        }

    # -- what is done

    async def reconcile(self, key: str) -> None:
        binding = self.context.binding()
        namespace = key.split("/")[0]
        if binding is None or self.context.is_unbinding:
            return
        is_asked_for = namespace in binding.spec.service_namespaces
        if not (self.is_synced(namespace) if is_asked_for else self.twins.synced.is_set()):
            return
        there = self.existing_objects(key)
        wanted = desired_objects(*self.cached_service(key), binding) if is_asked_for else {}
        if is_asked_for and stale_objects(there, wanted):
            wanted = desired_objects(*await self.live_service(key), binding)
        going = stale_objects(there, wanted)
        for resource, name in going:
            await self.context.physical_client.delete_if_exists(resource, there[resource, name])
        try:
            for place, obj in wanted.items():
                if place not in going:  # what takes the place of another comes when that is seen to be gone
                    await self.apply(place[0], there.get(place), obj, binding)
        except (Forbidden, Invalid, BadRequest):
            self.rejected.add(key)
            self.requeue_waiting(namespace)
            raise
        self.rejected.discard(key)

    async def apply(self, resource: Resource, existing: Object | None, wanted: Object, binding: Binding) -> None:
        try:
            await self.context.physical_client.converge(resource, existing, wanted)
        except AlreadyExists:
            await self.apply_existing(resource, wanted, binding)

    async def apply_existing(self, resource: Resource, wanted: Object, binding: Binding) -> None:
        """The name is taken: by what the cache has yet to see, or by a stranger."""
        held = await self.context.physical_client.get(resource, name_of(wanted), namespace_of(wanted))
        if not binding.owns(held):
            raise Terminal("NameTaken", f"{resource.kind} {key_of(held)} below is not ours; delete it there")
        await self.context.physical_client.converge(resource, held, wanted)


def desired_objects(service: Object | None, slices: Iterable[Object], binding: Binding) -> ServiceObjects:
    """What is to stand for a Service, the twin of itself first."""
    if service is None or not is_syncable(service):
        return {}
    twins = (twin_slice(each, service, binding) for each in sorted(slices, key=name_of))
    found = [(SERVICES, twin_service(service, binding)), *((ENDPOINT_SLICES, each) for each in twins if each)]
    return {(resource, name_of(obj)): obj for resource, obj in found}


def stale_objects(existing: ServiceObjects, wanted: ServiceObjects) -> list[tuple[Resource, str]]:
    """What has to go: what is not wanted, and what cannot become what is."""
    return [
        place for place, obj in existing.items() if place not in wanted or service_needs_recreate(obj, wanted[place])
    ]
