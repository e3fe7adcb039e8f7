"""Names of a cluster, by version 1.1 of the Kubernetes DNS specification. It is pure.

Objects are kept as they are stored, and only read for a query. The index by addresses is made by the first reverse
query, and follows changes from then on.
"""

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tapestry.dns.cluster_objects import Port, ServiceSpec, Slice, decoded_service, decoded_slice, packed_address
from tapestry.dns.messages import MAX_LABEL, Answer, Code, Record, Type, joined, labels_of_name, wire_name

TTL = 5
"""Seconds for which clients may keep an answer about the cluster, and that a name does not exist."""
VERSION = b"1.1.0"
MAX_ADDRESSES = 1000
"""Addresses in one answer."""
MAX_ANSWERS = 256
"""Answers that are kept until an object changes."""
SOA_NUMBERS = (1, 7200, 1800, 86400, TTL)
SRV_PRIORITY = 0
TOTAL_WEIGHT = 100
IN_ADDR, IP6 = wire_name("in-addr.arpa"), wire_name("ip6.arpa")

ObjectKey = tuple[str, str]
"""Namespace and name."""


class Named(NamedTuple):
    """A ready address with the label of its endpoint and the ports of its slice."""

    label: bytes
    address: bytes
    ports: list[Port]


class ClusterNames:
    """Names of the Services, endpoints and pods of one cluster."""

    def __init__(self, domain: str, *, allows_external_names: bool = True) -> None:
        self.domain, self.allows_external_names = wire_name(domain), allows_external_names
        self._depth = len(labels_of_name(self.domain))
        self._services: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
        """Services in JSON, by namespace and name."""
        self._slices: defaultdict[ObjectKey, dict[str, bytes]] = defaultdict(dict)
        """EndpointSlices in JSON, by their Service, and by their name."""
        self._service_of_slice: dict[ObjectKey, ObjectKey] = {}
        self._answers: dict[tuple[bytes, int], Answer] = {}
        self._reverse: ReverseIndex | None = None
        self.version = 0
        """Number of changes."""

    # -- objects

    def put_service(self, namespace: str, name: str, raw: bytes | None) -> None:
        """Add or replace a Service; None removes it."""
        self._changed()
        if raw is not None:
            self._services[namespace][name] = raw
        else:
            self._services[namespace].pop(name, None)
            if not self._services[namespace]:
                del self._services[namespace]
        if self._reverse is not None:
            self._reverse.put(("Service", namespace, name), self._names_of_service(namespace, name))

    def put_slice(self, namespace: str, name: str, service: str, raw: bytes | None) -> None:
        """Add or replace an EndpointSlice of a Service; None removes it."""
        self._changed()
        former = self._service_of_slice.pop((namespace, name), None)
        if former is not None:
            self._slices[former].pop(name, None)
            if not self._slices[former]:
                del self._slices[former]
        if raw is not None and service:
            self._service_of_slice[namespace, name] = namespace, service
            self._slices[namespace, service][name] = raw
        if self._reverse is not None:
            self._reverse.put(("EndpointSlice", namespace, name), self._names_of_slice(namespace, name))

    def allow_external_names(self, allowed: bool) -> None:
        self.allows_external_names = allowed
        self._changed()

    def _changed(self) -> None:
        self._answers.clear()
        self.version += 1

    # -- answers

    def answer(self, name: bytes, type: int) -> Answer:
        """Return the answer about a name within the domain. It may be an alias only, whose target is not resolved."""
        found = self._answers.get((name, type))
        if found is None:
            found = self._answer(name, type)
            if len(self._answers) >= MAX_ANSWERS:
                self._answers.clear()
            self._answers[name, type] = found
        return found

    def _answer(self, name: bytes, type: int) -> Answer:
        try:
            labels = [each.decode("ascii") for each in labels_of_name(name)[: -self._depth]]
        except UnicodeDecodeError:
            return self.negative(Code.NXDOMAIN)
        sets = self._records(labels, name, type)
        if sets is None:
            return self.negative(Code.NXDOMAIN)
        records, additional = sets
        return Answer(records=records, additional=additional, is_authoritative=True) if records else self.negative()

    def negative(self, code: Code = Code.NOERROR, owner: bytes = b"") -> Answer:
        """Return the answer that there are no records of a type, or that a name does not exist."""
        return Answer(code, authority=(self._soa(owner or self.domain),), is_authoritative=True)

    def _soa(self, owner: bytes) -> Record:
        server, mailbox = wire_name("ns.dns")[:-1] + self.domain, wire_name("hostmaster")[:-1] + self.domain
        numbers = b"".join(each.to_bytes(4, "big") for each in SOA_NUMBERS)
        return Record(owner, Type.SOA, TTL, server + mailbox + numbers)

    def _records(self, labels: list[str], name: bytes, type: int) -> tuple[list[Record], list[Record]] | None:
        """Return the records of a name, and additional ones. None if the name does not exist."""
        match labels:
            case []:
                return ([self._soa(self.domain)] if type == Type.SOA else []), []
            case ["dns-version"]:
                text = bytes((len(VERSION),)) + VERSION
                return ([Record(name, Type.TXT, TTL, text)] if type == Type.TXT else []), []
            case ["svc"] | ["pod"]:
                return [], []
            case [address, _, "pod"]:
                packed = pod_address(address)
                return (address_records(name, [packed], type), []) if packed is not None else None
            case [namespace, "svc"]:
                return ([], []) if namespace in self._services else None
            case [service, namespace, "svc"]:
                return self._service_records(namespace, service, name, type)
            case [hostname, service, namespace, "svc"] if not hostname.startswith("_"):
                found = [each for each in self._endpoints(namespace, service) if each.label.decode() == hostname]
                return (address_records(name, (each.address for each in found), type), []) if found else None
            case [port, protocol, service, namespace, "svc"] if port[:1] == protocol[:1] == "_":
                return self._port_records(namespace, service, port[1:], protocol[1:], name, type)
        return None

    def _service(self, namespace: str, name: str) -> ServiceSpec | None:
        raw = self._services[namespace].get(name) if namespace in self._services else None
        return decoded_service(raw) if raw is not None else None

    def _service_records(
        self, namespace: str, service: str, name: bytes, type: int
    ) -> tuple[list[Record], list[Record]] | None:
        spec = self._service(namespace, service)
        if spec is None:
            return None
        if spec.type == "ExternalName":
            target = self._external_name(spec)
            return ([Record(name, Type.CNAME, TTL, target)], []) if target is not None else None
        if addresses := spec.addresses:
            return address_records(name, packed_addresses(addresses), type), []
        endpoints = list(self._endpoints(namespace, service))
        if not endpoints:
            return ([], []) if spec.cluster_ip != "None" else None
        return address_records(name, (each.address for each in endpoints), type), []

    def _external_name(self, spec: ServiceSpec) -> bytes | None:
        """Return the target of an alias; None if it is not allowed or no name."""
        if not self.allows_external_names:
            return None
        try:
            return wire_name(spec.external_name or "")
        except ValueError:
            return None

    def _endpoints(self, namespace: str, service: str) -> Iterator[Named]:
        """Yield the published addresses of a Service, each once."""
        seen: set[tuple[bytes, bytes]] = set()
        for _, raw in sorted(self._slices.get((namespace, service), {}).items()):
            for each in named_addresses(decoded_slice(raw)):
                if (each.label, each.address) not in seen:
                    seen.add((each.label, each.address))
                    yield each
                if len(seen) >= MAX_ADDRESSES:
                    return

    def _port_records(
        self, namespace: str, service: str, port: str, protocol: str, name: bytes, type: int
    ) -> tuple[list[Record], list[Record]] | None:
        """Return the records of a named port, with the addresses of their targets."""
        spec = self._service(namespace, service)
        if spec is None or spec.type == "ExternalName":
            return None
        domain = self._service_domain(namespace, service)
        if addresses := spec.addresses:
            numbers = port_numbers(spec.ports or (), port, protocol)
            targets = [(domain, each, numbers) for each in packed_addresses(addresses)]
        else:
            targets = [
                (joined([each.label])[:-1] + domain, each.address, port_numbers(each.ports, port, protocol))
                for each in self._endpoints(namespace, service)
            ]
        services = list(dict.fromkeys((target, number) for target, _, numbers in targets for number in numbers))
        if not services:
            return None
        if type != Type.SRV:
            return [], []
        weight = max(TOTAL_WEIGHT // len(services), 1)
        records = [service_record(name, weight, number, target) for target, number in services]
        return records, [address_record(target, address) for target, address, numbers in targets if numbers]

    def _service_domain(self, namespace: str, service: str) -> bytes:
        return joined([service.encode(), namespace.encode(), b"svc"])[:-1] + self.domain

    # -- reverse names

    def pointer(self, name: bytes, address: str) -> Answer | None:
        """Return the names of an address of a Service or an endpoint; None if it has none."""
        if self._reverse is None:
            self._reverse = ReverseIndex()
            for namespace, services in self._services.items():
                for service in services:
                    key = "Service", namespace, service
                    self._reverse.put(key, self._names_of_service(namespace, service))
            for namespace, slice in self._service_of_slice:
                self._reverse.put(("EndpointSlice", namespace, slice), self._names_of_slice(namespace, slice))
        names = self._reverse.names_of(address)
        records = [Record(name, Type.PTR, TTL, each) for each in names]
        return Answer(records=records, is_authoritative=True) if records else None

    def _names_of_service(self, namespace: str, service: str) -> list[tuple[str, bytes]]:
        """Return the addresses of a Service, each with its name."""
        spec = self._service(namespace, service)
        if spec is None or spec.type == "ExternalName":
            return []
        return [(each, self._service_domain(namespace, service)) for each in spec.addresses]

    def _names_of_slice(self, namespace: str, slice: str) -> list[tuple[str, bytes]]:
        """Return the addresses of the endpoints with host names in a slice, each with its name."""
        key = self._service_of_slice.get((namespace, slice))
        if key is None:
            return []
        domain = self._service_domain(*key)
        endpoints = decoded_slice(self._slices[key][slice]).endpoints or ()
        return [
            (address, joined([each.hostname.encode()])[:-1] + domain)
            for each in endpoints
            if each.hostname and len(each.hostname) <= MAX_LABEL and each.is_ready
            for address in each.addresses
        ]


class ReverseIndex:
    """Names by address, of objects that change."""

    def __init__(self) -> None:
        self._names: defaultdict[str, dict[tuple[str, str, str], bytes]] = defaultdict(dict)
        """By address, and by the object that has it."""
        self._addresses: dict[tuple[str, str, str], list[str]] = {}

    def put(self, key: tuple[str, str, str], names: Iterable[tuple[str, bytes]]) -> None:
        """Replace the addresses of an object."""
        for address in self._addresses.pop(key, ()):
            self._names[address].pop(key, None)
            if not self._names[address]:
                del self._names[address]
        addresses = []
        for address, name in names:
            self._names[address][key] = name
            addresses.append(address)
        if addresses:
            self._addresses[key] = addresses

    def names_of(self, address: str) -> list[bytes]:
        return sorted(set(self._names.get(address, {}).values()))[:MAX_ADDRESSES]


# -- records


def named_addresses(slice: Slice) -> Iterator[Named]:
    if slice.address_type not in ("IPv4", "IPv6"):
        return
    for endpoint in slice.endpoints or ():
        if not endpoint.is_ready:
            continue
        for address in endpoint.addresses:
            label, packed = (endpoint.hostname or dashed(address)).encode(), packed_address(address)
            if packed is not None and len(label) <= MAX_LABEL:
                yield Named(label, packed, slice.ports or [])


def dashed(address: str) -> str:
    """Return the label of an endpoint without a host name, which is also that of a pod."""
    text = address.replace(".", "-").replace(":", "-")
    return f"0{text}" if text.startswith("-") else text


def pod_address(label: str) -> bytes | None:
    """Return the address in the name of a pod; None if it has none."""
    text = label.replace("-", ".") if label.count("-") == 3 and label.replace("-", "").isdigit() else label
    try:
        return ipaddress.ip_address(text if "." in text else text.replace("-", ":")).packed
    except ValueError:
        return None


def packed_addresses(addresses: Iterable[str]) -> list[bytes]:
    return [packed for each in addresses if (packed := packed_address(each)) is not None]


def address_records(name: bytes, addresses: Iterable[bytes], type: int) -> list[Record]:
    """Return the records of those addresses that have the family of the type."""
    size = {Type.A: 4, Type.AAAA: 16}.get(type)  # type: ignore[call-overload]  # any number may be asked for
    return [address_record(name, each) for each in dict.fromkeys(addresses) if len(each) == size]


def address_record(name: bytes, address: bytes) -> Record:
    return Record(name, Type.A if len(address) == 4 else Type.AAAA, TTL, address)


def service_record(name: bytes, weight: int, port: int, target: bytes) -> Record:
    numbers = (SRV_PRIORITY, weight, port)
    return Record(name, Type.SRV, TTL, b"".join(each.to_bytes(2, "big") for each in numbers) + target)


def port_numbers(ports: Iterable[Port], name: str, protocol: str) -> list[int]:
    wanted = name, protocol.upper()
    return [each.port for each in ports if each.port and (each.name or "", each.protocol or "TCP") == wanted]


def reverse_address(name: bytes) -> str | None:
    """Return the address in a name within in-addr.arpa or ip6.arpa; None if it is not a whole address."""
    labels = [each.decode("ascii", "replace") for each in labels_of_name(name)[:-2]][::-1]
    try:
        if name.endswith(IP6) and len(labels) == 32 and all(len(each) == 1 for each in labels):
            text = "".join(labels)
            return str(ipaddress.IPv6Address(bytes.fromhex(text)))
        if name.endswith(IN_ADDR) and len(labels) == 4:
            return str(ipaddress.IPv4Address(".".join(labels)))
    except ValueError:
        return None
    return None
