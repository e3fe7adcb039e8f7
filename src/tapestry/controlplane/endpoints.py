"""What is behind a Service, in the two forms in which Kubernetes tells it.  Pure.

    from_pods        the backends of a Service with a selector: its pods
    from_endpoints   those of one without: what somebody wrote into its Endpoints
    endpoints_of     backends as one Endpoints object, the old form
    slices_of        backends as EndpointSlices of a hundred each at most

A backend with other ports than its neighbours' (a pod may call another port by the same name) is told apart from them.
A backend stays in the slice in which it is: of a thousand pods one that goes changes one slice.
"""

import ipaddress
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tapestry.controlplane.workloads.members import LONGEST_BASE, is_ready, suffix_of
from tapestry.kube.objects import (
    Object,
    annotations_of,
    is_deleting,
    labels_of,
    name_of,
    namespace_of,
    owner_reference,
    uid_of,
    value_at,
)
from tapestry.kube.pods import is_over, is_sidecar

SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
FROM_PODS = "endpointslice-controller.k8s.io"
FROM_ENDPOINTS = "endpointslicemirroring-controller.k8s.io"
ENDPOINTS_MANAGED_BY = "endpoints.kubernetes.io/managed-by"
ENDPOINTS_MANAGER = "endpoint-controller"
HEADLESS = "service.kubernetes.io/headless"
NOT_TO_MIRROR = "endpointslice.kubernetes.io/skip-mirror"
OF_A_LEADER = "control-plane.alpha.kubernetes.io/leader"
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
OVER_CAPACITY = "endpoints.kubernetes.io/over-capacity"
LARGEST_SLICE = 100
LARGEST_ENDPOINTS = 1000
ZONE = "topology.kubernetes.io/zone"

Ports = tuple[tuple[tuple[str, object], ...], ...]
"""Ports as something to tell backends apart by."""


@dataclass(frozen=True)
class Backend:
    """Somebody who answers for a Service."""

    address: str
    ports: Ports
    is_ready: bool
    is_serving: bool
    is_leaving: bool
    about: Object
    """Its node, host name and pod, where it has any: said in either form alike."""
    zone: str = ""

    @property
    def family(self) -> str:
        return family_of(self.address)


def family_of(address: str) -> str:
    return f"IPv{ipaddress.ip_address(address).version}"


def has_backends_of_its_own(service: Object) -> bool:
    """Whether the Service says which pods are behind it."""
    spec = service["spec"]
    return spec.get("selector") is not None and spec.get("type") != "ExternalName"


# -- backends


def from_pods(service: Object, pods: Iterable[Object], zone_of: Callable[[str], str]) -> list[Backend]:
    """The backends among pods that the Service selects; `zone_of` tells the zone of a node, where it has one."""
    found = [each for pod in pods if not is_over(pod) for each in backends(service, pod, zone_of)]
    return sorted(found, key=lambda each: (each.about["targetRef"]["name"], each.address))


def backends(service: Object, pod: Object, zone_of: Callable[[str], str]) -> Iterator[Backend]:
    spec, node = pod["spec"], pod["spec"].get("nodeName")
    anyway = service["spec"].get("publishNotReadyAddresses", False)
    reference = {"kind": "Pod", "namespace": namespace_of(pod), "name": name_of(pod), "uid": uid_of(pod)}
    known_by_name = spec.get("hostname") and spec.get("subdomain") == name_of(service)
    about = {
        "targetRef": reference,
        **({"nodeName": node} if node else {}),
        **({"hostname": spec["hostname"]} if known_by_name else {}),
    }
    for address in (each["ip"] for each in value_at(pod, "status", "podIPs", default=())):
        if family_of(address) in (service["spec"].get("ipFamilies") or ["IPv4"]):
            yield Backend(
                address,
                as_ports(target(pod, each) for each in service["spec"].get("ports") or ()),
                is_ready=anyway or (is_ready(pod) and not is_deleting(pod)),
                is_serving=is_ready(pod),
                is_leaving=is_deleting(pod),
                about=about,
                zone=zone_of(node) if node else "",
            )


def target(pod: Object, port: Object) -> Object | None:
    """Where a port of a Service is found in a pod; None where the pod has no port of that name."""
    wanted: int | str = port.get("targetPort") or port["port"]
    protocol = port.get("protocol", "TCP")
    number = wanted if isinstance(wanted, int) else named_port(pod, wanted, protocol)
    if number is None:
        return None
    said = {"name": port.get("name", ""), "port": number, "protocol": protocol}
    return {**said, **({"appProtocol": port["appProtocol"]} if port.get("appProtocol") else {})}


def named_port(pod: Object, name: str, protocol: str) -> int | None:
    spec = pod["spec"]
    sidecars = (each for each in spec.get("initContainers") or () if is_sidecar(each))
    for container in (*spec["containers"], *sidecars):
        for port in container.get("ports") or ():
            if port.get("name") == name and port.get("protocol", "TCP") == protocol:
                number: int = port["containerPort"]
                return number
    return None


def as_ports(ports: Iterable[Object | None]) -> Ports:
    return tuple(tuple(sorted(each.items())) for each in ports if each is not None)


def is_mirrored(endpoints: Object) -> bool:
    """Whether slices are to say what somebody wrote into Endpoints; what we wrote, they say already."""
    is_held_back = labels_of(endpoints).get(NOT_TO_MIRROR) == "true" or OF_A_LEADER in annotations_of(endpoints)
    return not is_held_back and not is_ours(endpoints)


def is_ours(endpoints: Object) -> bool:
    """Whether Endpoints say which pods there are, and not what somebody wrote."""
    return labels_of(endpoints).get(ENDPOINTS_MANAGED_BY) == ENDPOINTS_MANAGER


def from_endpoints(endpoints: Object) -> list[Backend]:
    """What somebody wrote into Endpoints."""
    found = []
    for subset in endpoints.get("subsets") or ():
        ports = as_ports(
            {"name": "", "protocol": "TCP", **{key: value for key, value in each.items() if value is not None}}
            for each in subset.get("ports") or ()
        )
        for field, ready in (("addresses", True), ("notReadyAddresses", False)):
            for each in subset.get(field) or ():
                about = {key: each[key] for key in ("targetRef", "nodeName", "hostname") if each.get(key)}
                found.append(Backend(each["ip"], ports, ready, ready, False, about))
    return found[:LARGEST_ENDPOINTS]


# -- one object


def endpoints_of(service: Object, found: Sequence[Backend]) -> Object:
    """The Endpoints of a Service: a thousand backends at most, of its first family only."""
    family = (service["spec"].get("ipFamilies") or ["IPv4"])[0]
    anyway = service["spec"].get("publishNotReadyAddresses", False)
    told = [each for each in found if each.family == family and (anyway or not each.is_leaving)]
    kept = sorted(told, key=lambda each: not each.is_ready)[:LARGEST_ENDPOINTS]
    headless = service["spec"].get("clusterIP") in (None, "", "None")
    labels = {**labels_of(service), ENDPOINTS_MANAGED_BY: ENDPOINTS_MANAGER, **({HEADLESS: ""} if headless else {})}
    return {
        "metadata": {
            "name": name_of(service),
            "namespace": namespace_of(service),
            "labels": labels,
            "annotations": {OVER_CAPACITY: "truncated" if len(kept) < len(told) else None},
        },
        "subsets": [subset(ports, group) for ports, group in by_ports(kept).items()] or None,
    }


def subset(ports: Ports, group: Sequence[Backend]) -> Object:
    def addresses(ready: bool) -> list[Object]:
        return [{"ip": each.address, **each.about} for each in group if each.is_ready == ready]

    said = [{key: value for key, value in port if value != ""} for port in ports]
    found = {"addresses": addresses(True), "notReadyAddresses": addresses(False), "ports": said}
    return {key: value for key, value in found.items() if value}


def by_ports(found: Iterable[Backend]) -> dict[Ports, list[Backend]]:
    groups: dict[Ports, list[Backend]] = defaultdict(list)
    for each in found:
        groups[each.ports].append(each)
    return dict(sorted(groups.items()))


# -- slices


@dataclass(frozen=True)
class Origin:
    """What slices are made of, and what is said on each of them."""

    owner: Object
    """A Service, or Endpoints of the same name."""
    manager: str

    def metadata(self, name: str) -> Object:
        kept = {key: value for key, value in annotations_of(self.owner).items() if key != APPLIED}
        labels = {**labels_of(self.owner), SERVICE_NAME: name_of(self.owner), MANAGED_BY: self.manager}
        return {
            "name": name,
            "namespace": namespace_of(self.owner),
            "labels": labels,
            "ownerReferences": [owner_reference(self.owner)],
            **({"annotations": kept} if kept and self.manager == FROM_ENDPOINTS else {}),
        }


def slices_of(origin: Origin, found: Sequence[Backend], held: Sequence[Object]) -> list[Object]:
    """The slices that there should be; those that are `held` and not among them are to go.

    A Service has one even if nothing is behind it.  A slice that would go becomes one that would be new: whoever
    watches sees a change of what is behind the Service, and not its end.
    """
    groups: dict[tuple[str, Ports], list[Backend]] = defaultdict(list)
    for each in found:
        groups[each.family, each.ports].append(each)
    if not groups and origin.manager == FROM_PODS:
        groups[(origin.owner["spec"].get("ipFamilies") or ["IPv4"])[0], ()] = []
    wanted = []
    for (family, ports), group in groups.items():
        same = [each for each in held if each["addressType"] == family and ports_of(each) == ports]
        for name, part in packed(origin, family, ports, group, same):
            wanted.append(
                {
                    "metadata": origin.metadata(name),
                    "addressType": family,
                    "endpoints": [endpoint(each) for each in part],
                    "ports": [dict(port) for port in ports],
                }
            )
    return in_place_of(held, wanted)


def in_place_of(held: Sequence[Object], wanted: list[Object]) -> list[Object]:
    """The wanted slices, new ones under the names of those that are held and not wanted."""
    names = {name_of(each) for each in wanted}
    free: dict[str, list[str]] = defaultdict(list)
    for each in held:
        if name_of(each) not in names and not is_deleting(each):
            free[each["addressType"]].append(name_of(each))
    known = {name_of(each) for each in held}
    found = []
    for each in wanted:
        if name_of(each) not in known and (spare := free[each["addressType"]]):
            each = {**each, "metadata": {**each["metadata"], "name": spare.pop(0)}}
        found.append(each)
    return found


def ports_of(held: Object) -> Ports:
    return as_ports({"name": "", "protocol": "TCP", **each} for each in held.get("ports") or ())


def packed(
    origin: Origin, family: str, ports: Ports, group: Sequence[Backend], held: Sequence[Object]
) -> Iterator[tuple[str, Sequence[Backend]]]:
    """Names of slices, and who is in each: who is in one stays there, others take what room there is."""
    left = {each.address: each for each in group}
    parts: dict[str, list[Backend]] = {}
    for each in held:
        known = [address for endpoint in each.get("endpoints") or () for address in endpoint["addresses"]]
        parts[name_of(each)] = [left.pop(address) for address in known if address in left]
    for part in parts.values():
        while left and len(part) < LARGEST_SLICE:
            part.append(left.pop(next(iter(left))))
    number = 0
    while left or not parts:
        name = f"{name_of(origin.owner)[:LONGEST_BASE]}-{suffix_of(uid_of(origin.owner), family, ports, number)}"
        number += 1
        if name not in parts:
            parts[name] = [left.pop(address) for address in list(left)[:LARGEST_SLICE]]
    full = [(name, part) for name, part in parts.items() if part]
    yield from full or list(parts.items())[:1]


def endpoint(backend: Backend) -> Object:
    conditions = {"ready": backend.is_ready, "serving": backend.is_serving, "terminating": backend.is_leaving}
    zone = {"zone": backend.zone} if backend.zone else {}
    return {"addresses": [backend.address], "conditions": conditions, **backend.about, **zone}
