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

from tapestry.apiserver.customs.definitions import invalid_object
from tapestry.apiserver.customs.structural import Fault
from tapestry.apiserver.storage.store import Event, Store
from tapestry.apiserver.validation.faults import invalid
from tapestry.apiserver.validation.services import EXTERNAL, family_of, is_headless, needs_health_check
from tapestry.apiserver.verbs import Request
from tapestry.kube.errors import ServerError
from tapestry.kube.objects import Object, name_of, without
from tapestry.kube.resources import SERVICES

NODE_PORTS = range(30000, 32768)
SPOKEN_FOR = 5.0
"""Seconds for which an address is kept for a Service that is about to be stored."""
FAMILY_FIELDS = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")
BALANCER_FIELDS = ("allocateLoadBalancerNodePorts", "loadBalancerClass", "healthCheckNodePort")


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass
class Addresses:
    """A step: Services get what they need of both."""

    store: Store
    network: Network
    random: Random
    held: dict[str | int, int] = field(default_factory=dict)
    """How many Services have an address or a port; more than one is somebody else's mistake."""
    spoken_for: dict[str | int, tuple[str, float]] = field(default_factory=dict)
    """By which Service, and until when."""

    def load(self) -> None:
        for version in self.store.every(SERVICES.name):
            self._count(version.raw, 1)
        self.store.on_change(SERVICES.name, self._changed)

    def _changed(self, event: Event) -> None:
        if event.old is not None:
            self._count(event.old.raw, -1)
        if event.new is not None:
            self._count(event.new.raw, 1)

    def _count(self, raw: bytes, by: int) -> None:
        for value in holdings(msgspec.json.decode(raw)):
            self.held[value] = self.held.get(value, 0) + by
            self.spoken_for.pop(value, None)
            if self.held[value] <= 0:
                del self.held[value]

    async def __call__(self, request: Request, old: Object | None, new: Object | None) -> Object:
        if new is None or request.target.subresource:
            return new if new is not None else old or {}
        before: Object = (old or {}).get("spec") or {}
        spec: Object = new.get("spec") or {}
        found = without_what_is_past(before, carried(before, spec)) if old is not None else synchronized(spec)
        owner = f"{request.target.namespace}/{name_of(new)}"
        is_settled = bool(before.get("clusterIPs"))  # what became of that is for validation to say
        faults = [] if is_settled else list(family_faults(found, self.family))
        if not faults and found.get("type") != "ExternalName":
            had = set(holdings(old)) if old is not None else set()
            found = self.with_families(found)
            faults += () if is_settled else self.address_faults(found, had, owner)
            if not faults:
                found = self.with_address(found, owner, keep=not request.is_dry)
                found, wrong = self.with_ports(found, had, owner, is_dry=request.is_dry)
                faults += wrong
        if faults:
            raise invalid_object(SERVICES, name_of(new), faults)
        made = {**new, "spec": found}
        taken = frozenset(holdings(made)).difference(holdings(old or {}))
        request.claim = (lambda: self.claimed(taken, owner)) if taken else None
        if before.get("type") == "LoadBalancer" and found.get("type") != "LoadBalancer":
            made = {**made, "status": {**(new.get("status") or {}), "loadBalancer": {}}}
        return made

    # -- addresses

    @property
    def family(self) -> str:
        return "IPv6" if self.network.version == 6 else "IPv4"

    def with_families(self, spec: Object) -> Object:
        if is_headless(spec) and not spec.get("selector"):  # its endpoints are whatever somebody writes
            return {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": [self.family, other(self.family)], **spec}
        return {"ipFamilyPolicy": "SingleStack", "ipFamilies": [self.family], **spec}

    def address_faults(self, spec: Object, had: set[str | int], owner: str) -> Iterator[Fault]:
        """What is wrong with an address that was asked for."""
        for each in spec.get("clusterIPs") or ():
            address = None if each == "None" or each in had else parsed(each)
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
            yield invalid("spec.clusterIPs", spec["clusterIPs"], why)

    def with_address(self, spec: Object, owner: str, *, keep: bool) -> Object:
        if spec.get("clusterIPs") or spec.get("clusterIP"):
            return spec
        address = self.free_address()
        if keep:
            self.speak_for(address, owner)
        return {**spec, "clusterIP": address, "clusterIPs": [address]}

    def free_address(self) -> str:
        hosts = self.network.num_addresses - 2
        start = self.random.randrange(hosts)
        for offset in range(min(hosts, 65536)):
            address = str(self.network[1 + (start + offset) % hosts])
            if self.is_free(address) and address != first_address(self.network):
                return address
        raise exhausted(f"failed to allocate a serviceIP: range is full: {self.network}")

    def is_free(self, value: str | int, owner: str = "") -> bool:
        """Whether nobody has it, nor is about to; but perhaps the owner."""
        speaker, until = self.spoken_for.get(value, ("", 0.0))
        return value not in self.held and (speaker == owner or until < time.monotonic())

    def speak_for(self, value: str | int, owner: str) -> None:
        self.spoken_for[value] = owner, time.monotonic() + SPOKEN_FOR

    def claimed(self, values: frozenset[str | int], owner: str) -> bool:
        """Whether a Service may have all of these, which are spoken for then."""
        if not all(self.is_free(each, owner) for each in values):
            return False
        for each in values:
            self.speak_for(each, owner)
        return True

    # -- ports

    def with_ports(self, spec: Object, had: set[str | int], owner: str, *, is_dry: bool) -> tuple[Object, list[Fault]]:
        faults: list[Fault] = []
        free = self.free_ports(owner, keep=not is_dry)
        if needs_node_ports(spec):
            ports = []
            for number, port in enumerate(spec.get("ports") or ()):
                if asked := port.get("nodePort"):
                    if asked not in had and not is_dry:
                        faults += self.port_faults(asked, f"spec.ports[{number}].nodePort", owner)
                    ports.append(port)
                else:
                    ports.append({**port, "nodePort": next(free)})
            spec = {**spec, "ports": ports}
        if needs_health_check(spec):
            asked = spec.get("healthCheckNodePort")
            if not asked:
                spec = {**spec, "healthCheckNodePort": next(free)}
            elif asked not in had and not is_dry:
                faults += self.port_faults(asked, "spec.healthCheckNodePort", owner)
        return spec, faults

    def port_faults(self, port: int, path: str, owner: str) -> Iterator[Fault]:
        if port not in NODE_PORTS:
            allowed = f"{NODE_PORTS[0]}-{NODE_PORTS[-1]}"
            yield invalid(path, port, f"provided port is not in the valid range. The range of valid ports is {allowed}")
        elif not self.is_free(port, owner):
            yield invalid(path, port, "provided port is already allocated")

    def free_ports(self, owner: str, *, keep: bool) -> Iterator[int]:
        """Ports that nobody has, each once; raises an error where there are no more."""
        start = self.random.randrange(len(NODE_PORTS))
        for offset in range(len(NODE_PORTS)):
            port = NODE_PORTS[(start + offset) % len(NODE_PORTS)]
            if self.is_free(port):
                if keep:
                    self.speak_for(port, owner)
                yield port
        raise exhausted("failed to allocate a nodePort: range is full")


def exhausted(why: str) -> ServerError:
    return ServerError(500, "InternalError", f"Internal error occurred: {why}")


# -- pure


def first_address(network: Network) -> str:
    """That of the API server itself."""
    return str(network[1])


def parsed(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def other(family: str) -> str:
    return "IPv4" if family == "IPv6" else "IPv6"


def holdings(service: Object) -> Iterator[str | int]:
    """The addresses and ports of a Service."""
    spec = service.get("spec") or {}
    yield from (each for each in spec.get("clusterIPs") or () if each != "None")
    ports = [each.get("nodePort") for each in spec.get("ports") or ()]
    yield from dict.fromkeys(each for each in (*ports, spec.get("healthCheckNodePort")) if each)


def needs_node_ports(spec: Object) -> bool:
    if spec.get("type") == "LoadBalancer":
        return bool(spec.get("allocateLoadBalancerNodePorts", True))
    return spec.get("type") == "NodePort"


def synchronized(spec: Object) -> Object:
    """The one address is the first of several."""
    if spec.get("clusterIP") and not spec.get("clusterIPs"):
        return {**spec, "clusterIPs": [spec["clusterIP"]]}
    return spec


def carried(before: Object, spec: Object) -> Object:
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
        found = {**found, "ports": [with_port_of(each, had) for each in found.get("ports") or ()]}
    if needs_health_check(before) and needs_health_check(found) and not found.get("healthCheckNodePort"):
        found = {**found, "healthCheckNodePort": before.get("healthCheckNodePort")}
    return {key: value for key, value in found.items() if key not in FAMILY_FIELDS or value}


def with_port_of(port: Object, had: dict[tuple[str | None, int | None], int | None]) -> Object:
    node_port = port.get("nodePort") or had.get((port.get("protocol"), port.get("port")))
    return {**port, "nodePort": node_port} if node_port else port


def without_what_is_past(before: Object, spec: Object) -> Object:
    """A new spec without what only a Service of its old type has, where the writer left that as it was."""
    found, type = spec, spec.get("type")
    gone: list[str] = []
    if type == "ExternalName" != before.get("type"):
        gone += [*FAMILY_FIELDS, "internalTrafficPolicy"]
    if before.get("type") == "LoadBalancer" != type:
        gone += BALANCER_FIELDS
    if before.get("type") in EXTERNAL and type not in EXTERNAL and not spec.get("externalIPs"):
        gone.append("externalTrafficPolicy")
    for name in gone:
        if found.get(name) == before.get(name):
            found = without(found, name)
    if needs_node_ports(before) and type not in EXTERNAL and found.get("ports") == before.get("ports"):
        found = {**found, "ports": [without(each, "nodePort") for each in found.get("ports") or ()]}
    return found


def family_faults(spec: Object, family: str) -> Iterator[Fault]:
    """What a cluster of one family cannot give."""
    if spec.get("type") == "ExternalName" or is_headless(spec):
        return
    for number, each in enumerate(spec.get("ipFamilies") or ()):
        if each == other(family) and family_of_first(spec, family) == family:
            yield invalid(f"spec.ipFamilies[{number}]", each, "not configured on this cluster")
    if spec.get("ipFamilyPolicy") == "RequireDualStack":
        why = "this cluster is not configured for dual-stack services"
        yield invalid("spec.ipFamilyPolicy", "RequireDualStack", why)


def family_of_first(spec: Object, family: str) -> str:
    addresses = spec.get("clusterIPs") or ()
    return family_of(addresses[0]) if addresses else family
