"""Controller that writes the Endpoints and EndpointSlices of each Service.

The endpoints of a Service with a selector are its pods. For a Service without one, users write Endpoints, and the
slices mirror these. Slices are owned by their source and garbage collected with it. Endpoints have no owner: a label
marks those of this controller, so that it can delete them with their Service and leave those of users alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tapestry.client.client import Client
from tapestry.controller import Manager
from tapestry.controller.controller import own_namespace
from tapestry.controller.store import Indexer, Store
from tapestry.controlplane.endpoints import (
    ENDPOINT_SLICE_MANAGER,
    MANAGED_BY,
    MIRRORING_MANAGER,
    SERVICE_NAME,
    ZONE,
    Backend,
    SliceSource,
    backends_from_endpoints,
    backends_from_pods,
    desired_slices,
    endpoints_of,
    is_managed_endpoints,
    selects_pods,
    should_mirror,
)
from tapestry.controlplane.workloads import owned_pods
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import AlreadyExists, Forbidden, NotFound
from tapestry.kube.objects import Object, is_deleting, key_of, labels_of, name_of, namespace_of, value_at
from tapestry.kube.resources import ENDPOINT_SLICES, ENDPOINTS, NODES, PODS, SERVICES, Resource

WORKERS = 4
SERVICE_INDEX = "service"
NAMESPACE_INDEX = "namespace"


@dataclass(frozen=True)
class EndpointsReconciler:
    """Update the Endpoints and EndpointSlices of each Service. Keys are those of Services."""

    client: Client
    services: Store
    endpoints: Store
    slices: Store
    pods: Store
    nodes: Store

    async def reconcile(self, key: str) -> None:
        service, endpoints = self.services.get(key), self.endpoints.get(key)
        if service is None:
            if endpoints is not None and is_managed_endpoints(endpoints):
                await self.client.delete_if_exists(ENDPOINTS, endpoints)
        elif is_deleting(service):
            return
        elif selects_pods(service):
            await self.update_endpoints(service, endpoints)
        await self.mirror_endpoints(service, endpoints, key)

    async def update_endpoints(self, service: Object, endpoints: Object | None) -> None:
        backends = backends_from_pods(service, self.selected_pods(service), self.zone_of)
        await self.ensure(ENDPOINTS, endpoints, endpoints_of(service, backends))
        await self.update_slices(
            SliceSource(service, ENDPOINT_SLICE_MANAGER),
            backends,
            self.existing_slices(key_of(service), ENDPOINT_SLICE_MANAGER),
        )

    async def mirror_endpoints(self, service: Object | None, endpoints: Object | None, key: str) -> None:
        """Copy Endpoints written by users to slices."""
        existing = self.existing_slices(key, MIRRORING_MANAGER)
        is_user_managed = service is not None and service["spec"].get("selector") is None
        if is_user_managed and endpoints is not None and should_mirror(endpoints):
            await self.update_slices(
                SliceSource(endpoints, MIRRORING_MANAGER), backends_from_endpoints(endpoints), existing
            )
        else:
            for each in existing:
                await self.client.delete_if_exists(ENDPOINT_SLICES, each)

    async def update_slices(self, source: SliceSource, backends: Sequence[Backend], existing: Sequence[Object]) -> None:
        desired = desired_slices(source, backends, existing)
        remaining = {name_of(each): each for each in existing}
        for each in desired:
            await self.ensure(ENDPOINT_SLICES, remaining.pop(name_of(each), None), each)
        for each in remaining.values():
            await self.client.delete_if_exists(ENDPOINT_SLICES, each)

    async def ensure(self, resource: Resource, existing: Object | None, desired: Object) -> None:
        """Create or update an object that this controller owns. Labels that are not desired are removed."""
        if existing is not None:
            labels = {**dict.fromkeys(labels_of(existing)), **labels_of(desired)}
            desired = {**desired, "metadata": {**desired["metadata"], "labels": labels}}
        try:
            await self.client.converge(resource, existing, desired)
        except (AlreadyExists, NotFound):
            return  # the cache lags: the event triggers another reconcile
        except Forbidden as error:
            if not is_namespace_terminating(error):
                raise

    def selected_pods(self, service: Object) -> list[Object]:
        selector = service["spec"]["selector"].items()
        pods = self.pods.by(NAMESPACE_INDEX, namespace_of(service) or "")
        return [pod for pod in pods if selector <= labels_of(pod).items()]

    def zone_of(self, node: str) -> str:
        cached = self.nodes.get(node)
        return labels_of(cached).get(ZONE, "") if cached is not None else ""

    def existing_slices(self, key: str, manager: str) -> list[Object]:
        return [each for each in self.slices.by(SERVICE_INDEX, key) if labels_of(each).get(MANAGED_BY) == manager]

    def services_selecting(self, pod: Object) -> Iterable[str]:
        labels = labels_of(pod).items()
        for service in self.services.by(NAMESPACE_INDEX, namespace_of(pod) or ""):
            if selects_pods(service) and service["spec"]["selector"].items() <= labels:
                yield key_of(service)


def is_namespace_terminating(error: Forbidden) -> bool:
    """Return whether creation was refused because the namespace is terminating."""
    return any(each.get("reason") == "NamespaceTerminating" for each in error.details.get("causes") or ())


def service_key(obj: Object) -> list[str]:
    name = labels_of(obj).get(SERVICE_NAME)
    return [f"{namespace_of(obj)}/{name}"] if name else []


def has_endpoint_change(old: Object | None, new: Object | None) -> bool:
    """Return whether a pod changed in a field that endpoints depend on."""
    return old is None or new is None or endpoint_fields(old) != endpoint_fields(new)


def endpoint_fields(pod: Object) -> tuple[object, ...]:
    ready = find_condition(value_at(pod, "status", "conditions"), "Ready")
    status = pod.get("status") or {}
    return labels_of(pod), status.get("podIPs"), status.get("phase"), ready and ready["status"], is_deleting(pod)


def install(manager: Manager) -> None:
    by_namespace: dict[str, Indexer] = {NAMESPACE_INDEX: own_namespace}
    services, endpoints = manager.informer(SERVICES, indexers=by_namespace), manager.informer(ENDPOINTS)
    slices = manager.informer(ENDPOINT_SLICES, indexers={SERVICE_INDEX: service_key})
    pods, nodes = manager.informer(PODS, indexers=by_namespace), manager.informer(NODES)
    reconciler = EndpointsReconciler(
        manager.client, services.store, endpoints.store, slices.store, pods.store, nodes.store
    )
    controller = manager.controller("services", reconciler.reconcile, workers=WORKERS)
    controller.watch(services)
    controller.watch(endpoints)
    controller.watch(slices, service_key)
    controller.watch(pods, reconciler.services_selecting, when=has_endpoint_change, after=owned_pods.BATCH_INTERVAL)
