"""Addresses and node ports of Services: given from a range, carried along by updates, free again after a deletion.

Which are in use, the Services in the store say; what was just given and is not stored yet is spoken for, for a moment.
As it is stored, the store has the last word: another server may have given the same to somebody else.
"""

import ipaddress
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import msgspec

from tapestry.apiserver.customresources.definitions import invalid_object
from tapestry.apiserver.customresources.structural_schema import Fault
from tapestry.apiserver.storage.store import Store, WatchEvent
from tapestry.apiserver.validation.faults import invalid_value
from tapestry.apiserver.validation.services import EXTERNAL_SERVICE_TYPES, ip_family_of, is_headless, needs_health_check
from tapestry.apiserver.verbs import WriteRequest
from tapestry.kube.errors import ServerError
from tapestry.kube.objects import Object, name_of, without_field
from tapestry.kube.resources import SERVICES

NODE_PORTS = range(30000, 32768)
RESERVATION_SECONDS = 5.0
"""Seconds for which an address is kept for a Service that is about to be stored."""
FAMILY_FIELDS = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")
LOAD_BALANCER_FIELDS = ("allocateLoadBalancerNodePorts", "loadBalancerClass", "healthCheckNodePort")


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass
class ServiceAllocator:
    """A step: Services get what they need of both."""

    store: Store
    network: Network
    random: Random
    allocated: dict[str | int, int] = field(default_factory=dict)
    """How many Services have an address or a port; more than one is somebody else's mistake."""
    reservations: dict[str | int, tuple[str, float]] = field(default_factory=dict)
    """By which Service, and until when."""

    def load(self) -> None:
        for version in self.store.list_objects(SERVICES.name):
            self._count(version.raw, 1)
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

    async def __call__(self, request: WriteRequest, old: Object | None, new: Object | None) -> Object:
        if new is None or request.target.subresource:
            return new if new is not None else old or {}
        before: Object = (old or {}).get("spec") or {}
        spec: Object = new.get("spec") or {}
        found = (
            drop_type_dependent_fields(before, patch_allocated_values(before, spec))
            if old is not None
            else normalize_cluster_ips(spec)
        )
        owner = f"{request.target.namespace}/{name_of(new)}"
        is_settled = bool(before.get("clusterIPs"))  # what became of that is for validation to say
        faults = [] if is_settled else list(family_faults(found, self.family))
        if not faults and found.get("type") != "ExternalName":
            had = set(allocated_values(old)) if old is not None else set()
            found = self.with_families(found)
            faults += () if is_settled else self.address_faults(found, had, owner)
            if not faults:
                found = self.with_address(found, owner, reserve=not request.is_dry_run)
                found, wrong = self.with_ports(found, had, owner, is_dry_run=request.is_dry_run)
                faults += wrong
        if faults:
            raise invalid_object(SERVICES, name_of(new), faults)
        made = {**new, "spec": found}
        taken = frozenset(allocated_values(made)).difference(allocated_values(old or {}))
        request.claim = (lambda: self.reserve_all(taken, owner)) if taken else None
        if before.get("type") == "LoadBalancer" and found.get("type") != "LoadBalancer":
            made = {**made, "status": {**(new.get("status") or {}), "loadBalancer": {}}}
        return made

    # -- addresses

    @property
    def family(self) -> str:
        return "IPv6" if self.network.version == 6 else "IPv4"

    def with_families(self, spec: Object) -> Object:
        if is_headless(spec) and not spec.get("selector"):  # its endpoints are whatever somebody writes
            return {
                "ipFamilyPolicy": "RequireDualStack",
                "ipFamilies": [self.family, other_family(self.family)],
                **spec,
            }
        return {"ipFamilyPolicy": "SingleStack", "ipFamilies": [self.family], **spec}

    def address_faults(self, spec: Object, allocated_before: set[str | int], owner: str) -> Iterator[Fault]:
        """What is wrong with an address that was asked for."""
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
        """Whether nobody has it, nor is about to; but perhaps the owner."""
        speaker, until = self.reservations.get(value, ("", 0.0))
        return value not in self.allocated and (speaker == owner or until < time.monotonic())

    def reserve(self, value: str | int, owner: str) -> None:
        self.reservations[value] = owner, time.monotonic() + RESERVATION_SECONDS

    def reserve_all(self, values: frozenset[str | int], owner: str) -> bool:
        """Whether a Service may have all of these, which are spoken for then."""
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
                if asked := port.get("nodePort"):
                    if asked not in allocated_before and not is_dry_run:
                        faults += self.port_faults(asked, f"spec.ports[{number}].nodePort", owner)
                    ports.append(port)
                else:
                    ports.append({**port, "nodePort": next(free)})
            spec = {**spec, "ports": ports}
        if needs_health_check(spec):
            asked = spec.get("healthCheckNodePort")
            if not asked:
                spec = {**spec, "healthCheckNodePort": next(free)}
            elif asked not in allocated_before and not is_dry_run:
                faults += self.port_faults(asked, "spec.healthCheckNodePort", owner)
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
        """Ports that nobody has, each once; raises an error where there are no more."""
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


# -- pure


def first_service_ip(network: Network) -> str:
    """That of the API server itself."""
    return str(network[1])


def parse_ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def other_family(family: str) -> str:
    return "IPv4" if family == "IPv6" else "IPv6"


def allocated_values(service: Object) -> Iterator[str | int]:
    """The addresses and ports of a Service."""
    spec = service.get("spec") or {}
    yield from (each for each in spec.get("clusterIPs") or () if each != "None")
    ports = [each.get("nodePort") for each in spec.get("ports") or ()]
    yield from dict.fromkeys(each for each in (*ports, spec.get("healthCheckNodePort")) if each)


def needs_node_ports(spec: Object) -> bool:
    if spec.get("type") == "LoadBalancer":
        return bool(spec.get("allocateLoadBalancerNodePorts", True))
    return spec.get("type") == "NodePort"


def normalize_cluster_ips(spec: Object) -> Object:
    """The one address is the first of several."""
    if spec.get("clusterIP") and not spec.get("clusterIPs"):
        return {**spec, "clusterIPs": [spec["clusterIP"]]}
    return spec


def patch_allocated_values(before: Object, spec: Object) -> Object:
    """A new spec with what the server gave to the old one, where the writer is silent about it."""
    found = spec
    if "ExternalName" not in (before.get("type"), spec.get("type")):
        if not found.get("clusterIP"):
            found = {**found, "clusterIP": before.get("clusterIP", "")}
        if not found.get("clusterIPs") and found["clusterIP"] == before.get("clusterIP"):
            found = {**found, "clusterIPs": before.get("clusterIPs") or []}
        for name in ("ipFamilies", "ipFamilyPolicy"):
            if not found.get(name) and before.get(name):
                found = {**found, name: before[name]}
    if found.get("clusterIP") != before.get("clusterIP") and found.get("clusterIPs") == before.get("clusterIPs"):
        rest = (found.get("clusterIPs") or [])[1:]
        found = {**found, "clusterIPs": [found["clusterIP"], *rest] if found.get("clusterIP") else []}
    if needs_node_ports(before) and needs_node_ports(found):
        had = {(each.get("protocol"), each.get("port")): each.get("nodePort") for each in before.get("ports") or ()}
        found = {**found, "ports": [with_node_port(each, had) for each in found.get("ports") or ()]}
    if needs_health_check(before) and needs_health_check(found) and not found.get("healthCheckNodePort"):
        found = {**found, "healthCheckNodePort": before.get("healthCheckNodePort")}
    return {key: value for key, value in found.items() if key not in FAMILY_FIELDS or value}


def with_node_port(port: Object, node_ports: dict[tuple[str | None, int | None], int | None]) -> Object:
    node_port = port.get("nodePort") or node_ports.get((port.get("protocol"), port.get("port")))
    return {**port, "nodePort": node_port} if node_port else port


def drop_type_dependent_fields(before: Object, spec: Object) -> Object:
    """A new spec without what only a Service of its old type has, where the writer left that as it was."""
    found, type = spec, spec.get("type")
    gone: list[str] = []
    if type == "ExternalName" != before.get("type"):
        gone += [*FAMILY_FIELDS, "internalTrafficPolicy"]
    if before.get("type") == "LoadBalancer" != type:
        gone += LOAD_BALANCER_FIELDS
    if (
        before.get("type") in EXTERNAL_SERVICE_TYPES
        and type not in EXTERNAL_SERVICE_TYPES
        and not spec.get("externalIPs")
    ):
        gone.append("externalTrafficPolicy")
    for name in gone:
        if found.get(name) == before.get(name):
            found = without_field(found, name)
    if needs_node_ports(before) and type not in EXTERNAL_SERVICE_TYPES and found.get("ports") == before.get("ports"):
        found = {**found, "ports": [without_field(each, "nodePort") for each in found.get("ports") or ()]}
    return found


def family_faults(spec: Object, family: str) -> Iterator[Fault]:
    """What a cluster of one family cannot give."""
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
