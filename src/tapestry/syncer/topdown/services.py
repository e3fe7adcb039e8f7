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
from tapestry.controller.controller import Keys, own_key
from tapestry.kube.errors import AlreadyExists, BadRequest, Forbidden, Invalid
from tapestry.kube.names import dns_label_complaint
from tapestry.kube.objects import Object, key_of, labels_of, name_of, namespace_of, value_at
from tapestry.kube.resources import ENDPOINT_SLICES, SERVICES, Resource
from tapestry.kube.times import parse_time
from tapestry.syncer.site import Site
from tapestry.syncer.topdown.companions import NotYet
from tapestry.syncer.topdown.following import Following, ours_below
from tapestry.syncer.translate.pods import HostAlias
from tapestry.syncer.translate.services import (
    SERVICE_NAME,
    crosses,
    host_aliases,
    is_another,
    service_key,
    twin_service,
    twin_slice,
)

MOST_ALIASES = 1000
"""Addresses that a pod knows by name; with many more an API server would not take its twin."""
OTHERS_WAIT = 10.0
"""Seconds of a pod's life in which it waits for Services of other namespaces."""
Below = dict[tuple[Resource, str], Object]
"""What stands for one Service, by kind and name."""


@dataclass
class Services:
    """Keeps below what stands for each Service; keyed by the virtual Service."""

    site: Site
    look: Callable[[str], None]
    """Has a Service looked at."""
    wake: Callable[[str], None]
    """Has a pod looked at."""
    waiting: dict[str, set[str]] = field(default_factory=dict)
    """Pods that wait for the Services of their namespace."""
    refused: set[str] = field(default_factory=set)
    """Services that the physical API server does not want; no pod waits for these."""
    above: Following = field(init=False)
    """The virtual Services."""
    slices: Following = field(init=False)
    """The virtual EndpointSlices."""
    twins: Informer = field(init=False)
    twin_slices: Informer = field(init=False)
    """What is ours below."""

    def __post_init__(self) -> None:
        self.above = Following(partial(self._above, SERVICES, own_key))
        self.slices = Following(partial(self._above, ENDPOINT_SLICES, service_key))
        self.twins, self.twin_slices = ours_below(self.site, SERVICES), ours_below(self.site, ENDPOINT_SLICES)
        self.twins.on_change(self.saw_twin)
        for informer in (self.twins, self.twin_slices):
            informer.after_sync(self.look_at_all)

    # -- for pods

    def aliases(self, namespace: str) -> list[HostAlias]:
        """The names of Services for pods of a namespace, as far as they have an address below."""
        others = self.others(namespace)
        found = self.aliases_of(self.crossing(namespace), namespace)[:MOST_ALIASES]
        share = (MOST_ALIASES - len(found)) // max(len(others), 1)
        for other in others:
            found += self.aliases_of(self.crossing(other)[:share], namespace)[:share]
        return found

    def aliases_of(self, services: Iterable[Object], namespace: str) -> list[HostAlias]:
        return [
            alias
            for service in services
            for twin in self.twins.store.by("source", key_of(service))
            for alias in host_aliases(twin, service, namespace)
        ]

    def others(self, namespace: str) -> list[str]:
        """The other namespaces whose Services pods of a namespace know: if the binding names it, all that it names."""
        binding = self.site.binding()
        listed = binding.spec.service_namespaces if binding is not None else ()
        return [each for each in listed if each != namespace] if namespace in listed else []

    async def precede(self, pod: Object, binding: Binding) -> None:
        """Have a pod wait for the Services of its namespace, whose addresses its twin is to know.

        Whoever looked them up just before has them all, if this lets the pod pass.
        """
        namespace = namespace_of(pod) or ""
        if namespace not in binding.spec.service_namespaces:
            return
        self.wait_for(namespace, pod)
        for other in self.others(namespace):
            age = self.site.now() - parse_time(pod["metadata"]["creationTimestamp"])
            self.wait_for(other, pod, OTHERS_WAIT - age.total_seconds())

    def wait_for(self, namespace: str, pod: Object, seconds: float | None = None) -> None:
        """Raise NotYet until the Services of a namespace are known and have addresses; for these, so many seconds."""
        missing: list[str] = []
        if seconds is None or seconds > 0:
            crossing = {key_of(service) for service in self.crossing(namespace)}
            missing = sorted(key for key in crossing - self.refused if not self.has_address(key))
        if missing or not self.is_known(namespace):
            self.waiting.setdefault(namespace, set()).add(key_of(pod))
            what = f"Service {missing[0]} has" if missing else f"the Services of {namespace} have"
            raise NotYet("ServiceNotMapped", f"{what} no address below yet", seconds if missing else None)

    def has_address(self, key: str) -> bool:
        return any(twin["spec"].get("clusterIP") for twin in self.twins.store.each("source", key))

    def saw_twin(self, _: Object | None, twin: Object | None) -> None:
        """A handler of the twins' changes: one that comes is what pods may wait for."""
        if twin is not None:
            self.release(labels_of(twin).get(keys.VIRTUAL_NAMESPACE, ""))

    def release(self, *namespaces: str) -> None:
        """Have the pods looked at that wait for the Services of these namespaces."""
        for namespace in namespaces:
            for key in self.waiting.pop(namespace, ()):
                self.wake(key)

    # -- what is known

    def follow(self, binding: Object | None) -> None:
        """Know the Services of the namespaces that a binding names, and of no others."""
        for following in (self.above, self.slices):
            following.follow(value_at(binding, "spec", "serviceNamespaces", default=[]))
        self.look_at_all()

    def _above(self, resource: Resource, services: Keys, namespace: str) -> Informer:
        informer = Informer(self.site.manager.reads, resource, namespace=namespace, indexers={"service": services})
        informer.called(f"virtual_{resource.plural}")
        informer.on_change(partial(self._saw_above, services))
        informer.after_sync(self.look_at_all)
        return informer

    def _saw_above(self, services: Keys, old: Object | None, new: Object | None) -> None:
        for key in {key for obj in (old, new) if obj is not None for key in services(obj)}:
            self.look(key)

    def look_at_all(self) -> None:
        """Have every Service looked at that there is or that something below stands for, and whoever waits for one."""
        below = (key for informer in (self.twins, self.twin_slices) for key in informer.store.values("source"))
        for key in {*below, *self.above.keys()}:
            self.look(key)
        self.release(*self.waiting)

    def is_known(self, namespace: str) -> bool:
        """Whether the caches tell what there is of the namespace, above and below."""
        below = self.twins.synced.is_set() and self.twin_slices.synced.is_set()
        return below and None not in (self.above.known(namespace), self.slices.known(namespace))

    def crossing(self, namespace: str) -> list[Object]:
        """The Services of a namespace that are to be known below, as far as they are known."""
        informer = self.above.known(namespace)
        if informer is None:
            return []
        return sorted(filter(crosses, informer.store.list()), key=name_of)

    def seen(self, key: str) -> tuple[Object | None, Iterable[Object]]:
        """The Service and its slices, as the caches have them."""
        informer = self.slices.known(key.split("/")[0])
        return self.above.get(key), informer.store.by("service", key) if informer is not None else ()

    async def live(self, key: str) -> tuple[Object | None, Iterable[Object]]:
        """The same, as they are."""
        namespace, name = key.split("/", 1)
        if dns_label_complaint(name):  # what stands below for a Service may say anything of it
            return None, ()
        service = await self.site.virtual.find(SERVICES, name, namespace)
        if service is None:
            return None, ()
        return service, await self.site.virtual.list(ENDPOINT_SLICES, namespace, labels=f"{SERVICE_NAME}={name}")

    def there(self, key: str) -> Below:
        return {
            (informer.resource, name_of(obj)): obj
            for informer in (self.twins, self.twin_slices)
            for obj in informer.store.by("source", key)
        }

    # -- what is done

    async def reconcile(self, key: str) -> None:
        binding = self.site.binding()
        namespace = key.split("/")[0]
        if binding is None or self.site.is_unbinding:
            return
        is_asked_for = namespace in binding.spec.service_namespaces
        if not (self.is_known(namespace) if is_asked_for else self.twins.synced.is_set()):
            return
        there = self.there(key)
        wanted = wanted_below(*self.seen(key), binding) if is_asked_for else {}
        if is_asked_for and surplus(there, wanted):
            wanted = wanted_below(*await self.live(key), binding)
        going = surplus(there, wanted)
        for resource, name in going:
            await self.site.physical.remove(resource, there[resource, name])
        try:
            for place, obj in wanted.items():
                if place not in going:  # what takes the place of another comes when that is seen to be gone
                    await self.have(place[0], there.get(place), obj, binding)
        except (Forbidden, Invalid, BadRequest):
            self.refused.add(key)
            self.release(namespace)
            raise
        self.refused.discard(key)

    async def have(self, resource: Resource, existing: Object | None, wanted: Object, binding: Binding) -> None:
        try:
            await self.site.physical.converge(resource, existing, wanted)
        except AlreadyExists:
            await self.adopt(resource, wanted, binding)

    async def adopt(self, resource: Resource, wanted: Object, binding: Binding) -> None:
        """The name is taken: by what the cache has yet to see, or by a stranger."""
        held = await self.site.physical.get(resource, name_of(wanted), namespace_of(wanted))
        if not binding.owns(held):
            raise Terminal("NameTaken", f"{resource.kind} {key_of(held)} below is not ours; delete it there")
        await self.site.physical.converge(resource, held, wanted)


def wanted_below(service: Object | None, slices: Iterable[Object], binding: Binding) -> Below:
    """What is to stand for a Service, the twin of itself first."""
    if service is None or not crosses(service):
        return {}
    twins = (twin_slice(each, service, binding) for each in sorted(slices, key=name_of))
    found = [(SERVICES, twin_service(service, binding)), *((ENDPOINT_SLICES, each) for each in twins if each)]
    return {(resource, name_of(obj)): obj for resource, obj in found}


def surplus(there: Below, wanted: Below) -> list[tuple[Resource, str]]:
    """What has to go: what is not wanted, and what cannot become what is."""
    return [place for place, obj in there.items() if place not in wanted or is_another(obj, wanted[place])]
