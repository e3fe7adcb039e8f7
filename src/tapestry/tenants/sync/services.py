"""Controllers of the Services of a tenant: their twins, and those of the EndpointSlices that users wrote.

Pods need no host aliases for Services, because tenants have DNS, and they wait for no Service.
"""

from dataclasses import dataclass

from tapestry.apis.clusterbindings import Binding
from tapestry.controller import Controller, ObjectCache
from tapestry.kube.objects import Object, key_of
from tapestry.kube.resources import ENDPOINT_SLICES, SERVICES
from tapestry.syncer.components import Syncer
from tapestry.syncer.translate.pods import HostAlias
from tapestry.syncer.translate.services import SLICE_MANAGER
from tapestry.syncer.views import PhysicalPod, Twin, VirtualPod
from tapestry.tenants.leased_nodes import HOST_HAS_LEASED_NODES, MESSAGE, LeasedNodes
from tapestry.tenants.sync.service_translation import (
    api_addresses,
    desired_service,
    desired_slice,
    is_api_service,
    needs_recreate,
    reported_service,
    service_limitation,
    service_of_slice,
    slice_limitation,
    slice_needs_recreate,
    with_allocated_values,
)
from tapestry.tenants.sync.twin_objects import NotSynced, TwinKind, wire_twin_kind
from tapestry.tenants.tenant_binding import TenantAddresses
from tapestry.tenants.twin_addresses import addresses_of

NOT_OF_CONTROLLERS = f"{SLICE_MANAGER}!=endpointslice-controller.k8s.io"
"""Selector of the slices that users wrote, themselves or as Endpoints."""
SLICE_DELAY = 1.0
"""Seconds that changes of pods' addresses wait for others before slices are compared with them."""


class OwnAddresses:
    """Addresses of the tenant's pods, without those that are also addresses of nodes."""

    def __init__(self, physical_pods: ObjectCache[PhysicalPod]) -> None:
        self._pods = physical_pods
        self._known: frozenset[str] | None = None
        physical_pods.on_change(self._on_change)

    def _on_change(self, old: PhysicalPod | None, new: PhysicalPod | None) -> None:
        if may_have_other_address(old, new):
            self._known = None

    def get(self) -> frozenset[str]:
        if self._known is None:
            self._known = frozenset(address for pod in self._pods.store.list() for address in addresses_of(pod))
        return self._known


def may_have_other_address(old: PhysicalPod | None, new: PhysicalPod | None) -> bool:
    """Return whether the addresses of a twin may have changed. Its other status changes rarely, too."""
    before, after = (each.status_json if isinstance(each, Twin) else b"" for each in (old, new))
    return before != after


@dataclass(frozen=True)
class TenantServices:
    """The Services of a tenant as a dependency of its pods."""

    leased_nodes: LeasedNodes

    async def ensure(self, pod: VirtualPod, binding: Binding) -> None:
        """Return at once: pods need no Service to start."""

    def aliases(self, _: str) -> list[HostAlias]:
        return []


def wire_tenant_services(syncer: Syncer, addresses: TenantAddresses) -> TenantServices:
    """Add the controllers of Services and of EndpointSlices to the syncer of a tenant."""
    leased_nodes = LeasedNodes(syncer.caches.physical_nodes)
    services = wire_services(syncer, addresses, leased_nodes)
    slices = wire_slices(syncer)
    leased_nodes.on_change(services.resync)
    leased_nodes.on_change(slices.resync)
    return TenantServices(leased_nodes)


def wire_services(syncer: Syncer, addresses: TenantAddresses, leased_nodes: LeasedNodes) -> Controller:
    def desired(service: Object, binding: Binding) -> Object:
        if leased_nodes and not is_api_service(service):
            raise NotSynced(HOST_HAS_LEASED_NODES, MESSAGE)
        return desired_service(service, binding)

    def reported(service: Object, twin: Object | None) -> Object:
        return api_addresses(addresses.api) if is_api_service(service) else reported_service(service, twin)

    kind = TwinKind(
        SERVICES,
        desired,
        reported,
        needs_recreate=needs_recreate,
        with_allocated=with_allocated_values,
        limitation=service_limitation,
        has_conditions=True,
    )
    return wire_twin_kind(syncer, "services", kind)


def wire_slices(syncer: Syncer) -> Controller:
    manager, pods = syncer.manager, syncer.caches.physical_pods
    services, own_addresses = manager.informer(SERVICES), OwnAddresses(pods)

    def desired(slice: Object, binding: Binding) -> Object:
        return desired_slice(slice, services.store.get(service_of_slice(slice)), own_addresses.get(), binding)

    def limitation(slice: Object, _: Binding) -> NotSynced | None:
        return slice_limitation(slice, own_addresses.get())

    kind = TwinKind(
        ENDPOINT_SLICES,
        desired,
        needs_recreate=slice_needs_recreate,
        limitation=limitation,
        labels=NOT_OF_CONTROLLERS,
    )
    controller = wire_twin_kind(syncer, "endpoint-slices", kind)
    slices = manager.informer(ENDPOINT_SLICES, labels=NOT_OF_CONTROLLERS, indexers={"service": slice_services})
    controller.watch(services, lambda service: map(key_of, slices.store.by("service", key_of(service))))
    controller.watch(pods, lambda _: slices.store, when=may_have_other_address, after=SLICE_DELAY)
    return controller


def slice_services(slice: Object) -> list[str]:
    key = service_of_slice(slice)
    return [key] if key else []
