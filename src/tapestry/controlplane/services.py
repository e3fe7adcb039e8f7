"""Services: what is behind each of them is told, in Endpoints and in EndpointSlices.

A Service with a selector has pods behind it; for one without, somebody writes Endpoints, and the slices follow these.
Slices belong to what they are made of and are collected with it.  Endpoints belong to nobody: ours carry a label by
which they are known when their Service is gone; those of others stay.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tapestry.client.client import Client
from tapestry.controller import Manager
from tapestry.controller.controller import own_namespace
from tapestry.controller.store import Indexer, Store
from tapestry.controlplane.endpoints import (
    FROM_ENDPOINTS,
    FROM_PODS,
    MANAGED_BY,
    SERVICE_NAME,
    ZONE,
    Backend,
    Origin,
    endpoints_of,
    from_endpoints,
    from_pods,
    has_backends_of_its_own,
    is_mirrored,
    is_ours,
    slices_of,
)
from tapestry.controlplane.workloads import members
from tapestry.kube.conditions import find
from tapestry.kube.errors import AlreadyExists, Forbidden, NotFound
from tapestry.kube.objects import Object, is_deleting, key_of, labels_of, name_of, namespace_of, value_at
from tapestry.kube.resources import ENDPOINT_SLICES, ENDPOINTS, NODES, PODS, SERVICES, Resource

WORKERS = 4
SERVICE = "service"
NAMESPACE = "namespace"


@dataclass(frozen=True)
class Services:
    """Keeps the Endpoints and EndpointSlices of each Service; keyed as the Service is."""

    client: Client
    services: Store
    endpoints: Store
    slices: Store
    pods: Store
    nodes: Store

    async def reconcile(self, key: str) -> None:
        service, endpoints = self.services.get(key), self.endpoints.get(key)
        if service is None:
            if endpoints is not None and is_ours(endpoints):
                await self.client.remove(ENDPOINTS, endpoints)
        elif is_deleting(service):
            return
        elif has_backends_of_its_own(service):
            await self.tell(service, endpoints)
        await self.mirror(service, endpoints, key)

    async def tell(self, service: Object, endpoints: Object | None) -> None:
        """Say which pods are behind a Service."""
        found = from_pods(service, self.selected(service), self.zone_of)
        await self.have(ENDPOINTS, endpoints, endpoints_of(service, found))
        await self.slice(Origin(service, FROM_PODS), found, self.held(key_of(service), FROM_PODS))

    async def mirror(self, service: Object | None, endpoints: Object | None, key: str) -> None:
        """Say in slices what somebody else's Endpoints say."""
        held = self.held(key, FROM_ENDPOINTS)
        is_theirs = service is not None and service["spec"].get("selector") is None
        if is_theirs and endpoints is not None and is_mirrored(endpoints):
            await self.slice(Origin(endpoints, FROM_ENDPOINTS), from_endpoints(endpoints), held)
        else:
            for each in held:
                await self.client.remove(ENDPOINT_SLICES, each)

    async def slice(self, origin: Origin, found: Sequence[Backend], held: Sequence[Object]) -> None:
        wanted = slices_of(origin, found, held)
        known = {name_of(each): each for each in held}
        for each in wanted:
            await self.have(ENDPOINT_SLICES, known.pop(name_of(each), None), each)
        for each in known.values():
            await self.client.remove(ENDPOINT_SLICES, each)

    async def have(self, resource: Resource, held: Object | None, wanted: Object) -> None:
        """Have an object that is ours alone: labels that are not wanted go."""
        if held is not None:
            labels = {**dict.fromkeys(labels_of(held)), **labels_of(wanted)}
            wanted = {**wanted, "metadata": {**wanted["metadata"], "labels": labels}}
        try:
            await self.client.converge(resource, held, wanted)
        except (AlreadyExists, NotFound):
            return  # the cache is about to tell of it, or of the end of the namespace
        except Forbidden as error:
            if not is_about_to_go(error):
                raise

    def selected(self, service: Object) -> list[Object]:
        wanted = service["spec"]["selector"].items()
        pods = self.pods.by(NAMESPACE, namespace_of(service) or "")
        return [pod for pod in pods if wanted <= labels_of(pod).items()]

    def zone_of(self, node: str) -> str:
        found = self.nodes.get(node)
        return labels_of(found).get(ZONE, "") if found is not None else ""

    def held(self, key: str, manager: str) -> list[Object]:
        return [each for each in self.slices.by(SERVICE, key) if labels_of(each).get(MANAGED_BY) == manager]

    def before(self, pod: Object) -> Iterable[str]:
        """The Services that a pod is behind."""
        labels = labels_of(pod).items()
        for service in self.services.by(NAMESPACE, namespace_of(pod) or ""):
            if has_backends_of_its_own(service) and service["spec"]["selector"].items() <= labels:
                yield key_of(service)


def is_about_to_go(error: Forbidden) -> bool:
    """Whether the namespace takes nothing new because it is deleted."""
    return any(each.get("reason") == "NamespaceTerminating" for each in error.details.get("causes") or ())


def service_key(obj: Object) -> list[str]:
    name = labels_of(obj).get(SERVICE_NAME)
    return [f"{namespace_of(obj)}/{name}"] if name else []


def is_another(old: Object | None, new: Object | None) -> bool:
    """Whether a pod has changed in a way that Services care for."""
    return old is None or new is None or outline(old) != outline(new)


def outline(pod: Object) -> tuple[object, ...]:
    ready = find(value_at(pod, "status", "conditions"), "Ready")
    status = pod.get("status") or {}
    return labels_of(pod), status.get("podIPs"), status.get("phase"), ready and ready["status"], is_deleting(pod)


def install(manager: Manager) -> None:
    by_namespace: dict[str, Indexer] = {NAMESPACE: own_namespace}
    services, endpoints = manager.informer(SERVICES, indexers=by_namespace), manager.informer(ENDPOINTS)
    slices = manager.informer(ENDPOINT_SLICES, indexers={SERVICE: service_key})
    pods, nodes = manager.informer(PODS, indexers=by_namespace), manager.informer(NODES)
    reconciler = Services(manager.client, services.store, endpoints.store, slices.store, pods.store, nodes.store)
    controller = manager.controller("services", reconciler.reconcile, workers=WORKERS)
    controller.watch(services)
    controller.watch(endpoints)
    controller.watch(slices, service_key)
    controller.watch(pods, reconciler.before, when=is_another, after=members.PAUSE)
