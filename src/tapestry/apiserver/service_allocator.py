"""Allocation of cluster IPs and node ports for Services.

The Services in the store define which values are in use. A new value is reserved until its Service is stored. The
check is repeated then, because another server may have allocated the same value.

In a plane whose pods run in a host cluster, the host cluster allocates them: Services are stored without an address
until the syncer writes it.
"""

import ipaddress
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import msgspec

from tapestry.apiserver.admission.syncer_restriction import SyncerRestriction
from tapestry.apiserver.core.faults import Fault, invalid_object, invalid_value
from tapestry.apiserver.core.requests import CallOrigin, WriteRequest
from tapestry.apiserver.core.store import Store, WatchEvent
from tapestry.apiserver.validation.services import (
    ADDRESS_FIELDS,
    EXTERNAL_SERVICE_TYPES,
    ip_family_of,
    is_headless,
    needs_health_check,
)
from tapestry.kube.errors import ServerError
from tapestry.kube.objects import Object, name_of, without_field
from tapestry.kube.resources import SERVICES

NODE_PORTS = range(30000, 32768)
RESERVATION_SECONDS = 5.0
"""Seconds for which a value stays reserved for a Service that is about to be stored."""
LOAD_BALANCER_FIELDS = ("allocateLoadBalancerNodePorts", "loadBalancerClass", "healthCheckNodePort")


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass
class ServiceAllocator:
    """A step that allocates cluster IPs and node ports for Services."""

    store: Store
    network: Network
    random: Random
    syncer_restriction: SyncerRestriction = field(default_factory=SyncerRestriction)
    """While it is enabled, nothing is allocated."""
    allocated: dict[str | int, int] = field(default_factory=dict)
    """Number of Services that use an address or a port; more than one is a conflict."""
    reservations: dict[str | int, tuple[str, float]] = field(default_factory=dict)
    """Owner and expiry of each reservation."""

    def __post_init__(self) -> None:
        self.store.on_change(SERVICES.name, self._on_change)

    def _on_change(self, event: WatchEvent) -> None:
        if event.old is not None:
            self._count(event.old.raw, -1)
        if event.new is not None:
            self._count(event.new.raw, 1)

    def _count(self, raw: bytes, by: int) -> None:
        for value in allocated_values(msgspec.json.decode(raw)):
            self.allocated[value] = self.allocated.get(value, 0) + by
            self.reservations.pop(value, None)
            if self.allocated[value] <= 0:
                del self.allocated[value]

    async def __call__(self, request: WriteRequest, old: Object | None, new: Object) -> Object:
        if request.target.subresource:
            return new
        before: Object = (old or {}).get("spec") or {}
        spec: Object = new.get("spec") or {}
        if request.origin is CallOrigin.SYNCER:  # it also removes addresses that the host cluster took back
            return with_ended_load_balancer(before, new)
        result = (
            drop_type_dependent_fields(before, patch_allocated_values(before, spec))
            if old is not None
            else normalize_cluster_ips(spec)
        )
        if self.syncer_restriction.is_enabled:
            if result.get("type") != "ExternalName":
                result = self.with_families(result)
            return with_ended_load_balancer(before, {**new, "spec": result})
        owner = f"{request.target.namespace}/{name_of(new)}"
        has_address = bool(before.get("clusterIPs"))  # validation checks changes of existing addresses
        faults = [] if has_address else list(family_faults(result, self.family))
        if not faults and result.get("type") != "ExternalName":
            allocated_before = set(allocated_values(old)) if old is not None else set()
            result = self.with_families(result)
            faults += () if has_address else self.address_faults(result, allocated_before, owner)
            if not faults:
                result = self.with_address(result, owner, reserve=not request.is_dry_run)
                result, port_faults = self.with_ports(result, allocated_before, owner, is_dry_run=request.is_dry_run)
                faults += port_faults
        if faults:
            raise invalid_object(SERVICES, name_of(new), faults)
        service = {**new, "spec": result}
        new_values = frozenset(allocated_values(service)).difference(allocated_values(old or {}))
        request.claim = (lambda: self.reserve_all(new_values, owner)) if new_values else None
        return with_ended_load_balancer(before, service)

    # -- addresses

    @property
    def family(self) -> str:
        return "IPv6" if self.network.version == 6 else "IPv4"

    def with_families(self, spec: Object) -> Object:
        if is_headless(spec) and not spec.get("selector"):  # its endpoints are created by users
            return {
                "ipFamilyPolicy": "RequireDualStack",
                "ipFamilies": [self.family, other_family(self.family)],
                **spec,
            }
        return {"ipFamilyPolicy": "SingleStack", "ipFamilies": [self.family], **spec}

    def address_faults(self, spec: Object, allocated_before: set[str | int], owner: str) -> Iterator[Fault]:
        """Yield faults of the requested addresses."""
        for each in spec.get("clusterIPs") or ():
            address = None if each == "None" or each in allocated_before else parse_ip(each)
            if address is None:
                continue
            why = f"failed to allocate IP {each}: "
            if address not in self.network:
                allowed = f"The range of valid IPs is {self.network}"
                why += f"the provided IP ({each}) is not in the valid range. {allowed}"
            elif self.is_free(each, owner):
                continue
            else:
                why += "provided IP is already allocated"
            yield invalid_value("spec.clusterIPs", spec["clusterIPs"], why)

    def with_address(self, spec: Object, owner: str, *, reserve: bool) -> Object:
        if spec.get("clusterIPs") or spec.get("clusterIP"):
            return spec
        address = self.free_address()
        if reserve:
            self.reserve(address, owner)
        return {**spec, "clusterIP": address, "clusterIPs": [address]}

    def free_address(self) -> str:
        hosts = self.network.num_addresses - 2
        start = self.random.randrange(hosts)
        for offset in range(min(hosts, 65536)):
            address = str(self.network[1 + (start + offset) % hosts])
            if self.is_free(address) and address != first_service_ip(self.network):
                return address
        raise range_full_error(f"failed to allocate a serviceIP: range is full: {self.network}")

    def is_free(self, value: str | int, owner: str = "") -> bool:
        """Return whether a value is neither allocated nor reserved by another owner."""
        reserved_by, until = self.reservations.get(value, ("", 0.0))
        return value not in self.allocated and (reserved_by == owner or until < time.monotonic())

    def reserve(self, value: str | int, owner: str) -> None:
        self.reservations[value] = owner, time.monotonic() + RESERVATION_SECONDS

    def reserve_all(self, values: frozenset[str | int], owner: str) -> bool:
        """Reserve all values for a Service; return False if one of them is taken."""
        if not all(self.is_free(each, owner) for each in values):
            return False
        for each in values:
            self.reserve(each, owner)
        return True

    # -- ports

    def with_ports(
        self, spec: Object, allocated_before: set[str | int], owner: str, *, is_dry_run: bool
    ) -> tuple[Object, list[Fault]]:
        faults: list[Fault] = []
        free = self.free_ports(owner, reserve=not is_dry_run)
        if needs_node_ports(spec):
            ports = []
            for number, port in enumerate(spec.get("ports") or ()):
                if requested := port.get("nodePort"):
                    if requested not in allocated_before and not is_dry_run:
                        faults += self.port_faults(requested, f"spec.ports[{number}].nodePort", owner)
                    ports.append(port)
                else:
                    ports.append({**port, "nodePort": next(free)})
            spec = {**spec, "ports": ports}
        if needs_health_check(spec):
            requested = spec.get("healthCheckNodePort")
            if not requested:
                spec = {**spec, "healthCheckNodePort": next(free)}
            elif requested not in allocated_before and not is_dry_run:
                faults += self.port_faults(requested, "spec.healthCheckNodePort", owner)
        return spec, faults

    def port_faults(self, port: int, path: str, owner: str) -> Iterator[Fault]:
        if port not in NODE_PORTS:
            allowed = f"{NODE_PORTS[0]}-{NODE_PORTS[-1]}"
            yield invalid_value(
                path, port, f"provided port is not in the valid range. The range of valid ports is {allowed}"
            )
        elif not self.is_free(port, owner):
            yield invalid_value(path, port, "provided port is already allocated")

    def free_ports(self, owner: str, *, reserve: bool) -> Iterator[int]:
        """Yield each free port once. Raises ServerError when none is left."""
        start = self.random.randrange(len(NODE_PORTS))
        for offset in range(len(NODE_PORTS)):
            port = NODE_PORTS[(start + offset) % len(NODE_PORTS)]
            if self.is_free(port):
                if reserve:
                    self.reserve(port, owner)
                yield port
        raise range_full_error("failed to allocate a nodePort: range is full")


def range_full_error(why: str) -> ServerError:
    return ServerError(500, "InternalError", f"Internal error occurred: {why}")


# -- pure functions


def first_service_ip(network: Network) -> str:
    """Return the address of the Service of the API server."""
    return str(network[1])


def parse_ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def other_family(family: str) -> str:
    return "IPv4" if family == "IPv6" else "IPv6"


def allocated_values(service: Object) -> Iterator[str | int]:
    """Yield the addresses and ports of a Service."""
    spec = service.get("spec") or {}
    yield from (each for each in spec.get("clusterIPs") or () if each != "None")
    ports = [each.get("nodePort") for each in spec.get("ports") or ()]
    yield from dict.fromkeys(each for each in (*ports, spec.get("healthCheckNodePort")) if each)


def needs_node_ports(spec: Object) -> bool:
    if spec.get("type") == "LoadBalancer":
        return bool(spec.get("allocateLoadBalancerNodePorts", True))
    return spec.get("type") == "NodePort"


def normalize_cluster_ips(spec: Object) -> Object:
    """Set clusterIPs from clusterIP if only the latter is set."""
    if spec.get("clusterIP") and not spec.get("clusterIPs"):
        return {**spec, "clusterIPs": [spec["clusterIP"]]}
    return spec


def patch_allocated_values(before: Object, spec: Object) -> Object:
    """Return the new spec with the allocated values of the old one where the writer left them out."""
    result = spec
    if "ExternalName" not in (before.get("type"), spec.get("type")):
        if not result.get("clusterIP"):
            result = {**result, "clusterIP": before.get("clusterIP", "")}
        if not result.get("clusterIPs") and result["clusterIP"] == before.get("clusterIP"):
            result = {**result, "clusterIPs": before.get("clusterIPs") or []}
        for name in ("ipFamilies", "ipFamilyPolicy"):
            if not result.get(name) and before.get(name):
                result = {**result, name: before[name]}
    if result.get("clusterIP") != before.get("clusterIP") and result.get("clusterIPs") == before.get("clusterIPs"):
        rest = (result.get("clusterIPs") or [])[1:]
        result = {**result, "clusterIPs": [result["clusterIP"], *rest] if result.get("clusterIP") else []}
    if needs_node_ports(before) and needs_node_ports(result):
        node_ports = {
            (each.get("protocol"), each.get("port")): each.get("nodePort") for each in before.get("ports") or ()
        }
        result = {**result, "ports": [with_node_port(each, node_ports) for each in result.get("ports") or ()]}
    if needs_health_check(before) and needs_health_check(result) and not result.get("healthCheckNodePort"):
        result = {**result, "healthCheckNodePort": before.get("healthCheckNodePort")}
    return {key: value for key, value in result.items() if key not in ADDRESS_FIELDS or value}


def with_node_port(port: Object, node_ports: dict[tuple[str | None, int | None], int | None]) -> Object:
    node_port = port.get("nodePort") or node_ports.get((port.get("protocol"), port.get("port")))
    return {**port, "nodePort": node_port} if node_port else port


def drop_type_dependent_fields(before: Object, spec: Object) -> Object:
    """Return the new spec without unchanged fields that apply only to the old type of the Service."""
    result, type = spec, spec.get("type")
    dropped: list[str] = []
    if type == "ExternalName" != before.get("type"):
        dropped += [*ADDRESS_FIELDS, "internalTrafficPolicy"]
    if before.get("type") == "LoadBalancer" != type:
        dropped += LOAD_BALANCER_FIELDS
    if (
        before.get("type") in EXTERNAL_SERVICE_TYPES
        and type not in EXTERNAL_SERVICE_TYPES
        and not spec.get("externalIPs")
    ):
        dropped.append("externalTrafficPolicy")
    for name in dropped:
        if result.get(name) == before.get(name):
            result = without_field(result, name)
    if needs_node_ports(before) and type not in EXTERNAL_SERVICE_TYPES and result.get("ports") == before.get("ports"):
        result = {**result, "ports": [without_field(each, "nodePort") for each in result.get("ports") or ()]}
    return result


def with_ended_load_balancer(before: Object, service: Object) -> Object:
    """Return a Service without the addresses of its load balancer if it no longer has one."""
    if before.get("type") != "LoadBalancer" or service["spec"].get("type") == "LoadBalancer":
        return service
    return {**service, "status": {**(service.get("status") or {}), "loadBalancer": {}}}


def family_faults(spec: Object, family: str) -> Iterator[Fault]:
    """Yield faults of a spec that requires an IP family that the cluster lacks."""
    if spec.get("type") == "ExternalName" or is_headless(spec):
        return
    for number, each in enumerate(spec.get("ipFamilies") or ()):
        if each == other_family(family) and first_ip_family(spec, family) == family:
            yield invalid_value(f"spec.ipFamilies[{number}]", each, "not configured on this cluster")
    if spec.get("ipFamilyPolicy") == "RequireDualStack":
        why = "this cluster is not configured for dual-stack services"
        yield invalid_value("spec.ipFamilyPolicy", "RequireDualStack", why)


def first_ip_family(spec: Object, family: str) -> str:
    addresses = spec.get("clusterIPs") or ()
    return ip_family_of(addresses[0]) if addresses else family
