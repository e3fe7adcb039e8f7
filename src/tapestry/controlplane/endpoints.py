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

from tapestry.controlplane.workloads.owned_pods import MAX_BASE_LENGTH, is_ready, name_suffix
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
from tapestry.kube.pods import is_pod_terminal, is_sidecar

SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
ENDPOINT_SLICE_MANAGER = "endpointslice-controller.k8s.io"
MIRRORING_MANAGER = "endpointslicemirroring-controller.k8s.io"
ENDPOINTS_MANAGED_BY = "endpoints.kubernetes.io/managed-by"
ENDPOINTS_MANAGER = "endpoint-controller"
HEADLESS = "service.kubernetes.io/headless"
SKIP_MIRROR_LABEL = "endpointslice.kubernetes.io/skip-mirror"
LEADER_ANNOTATION = "control-plane.alpha.kubernetes.io/leader"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
OVER_CAPACITY = "endpoints.kubernetes.io/over-capacity"
MAX_ENDPOINTS_PER_SLICE = 100
MAX_ENDPOINTS = 1000
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
    is_terminating: bool
    attributes: Object
    """Its node, host name and pod, where it has any: said in either form alike."""
    zone: str = ""

    @property
    def family(self) -> str:
        return family_of(self.address)


def family_of(address: str) -> str:
    return f"IPv{ipaddress.ip_address(address).version}"


def selects_pods(service: Object) -> bool:
    """Whether the Service says which pods are behind it."""
    spec = service["spec"]
    return spec.get("selector") is not None and spec.get("type") != "ExternalName"


# -- backends


def backends_from_pods(service: Object, pods: Iterable[Object], zone_of: Callable[[str], str]) -> list[Backend]:
    """The backends among pods that the Service selects; `zone_of` tells the zone of a node, where it has one."""
    found = [each for pod in pods if not is_pod_terminal(pod) for each in pod_backends(service, pod, zone_of)]
    return sorted(found, key=lambda each: (each.attributes["targetRef"]["name"], each.address))


def pod_backends(service: Object, pod: Object, zone_of: Callable[[str], str]) -> Iterator[Backend]:
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
                hashable_ports(resolved_port(pod, each) for each in service["spec"].get("ports") or ()),
                is_ready=anyway or (is_ready(pod) and not is_deleting(pod)),
                is_serving=is_ready(pod),
                is_terminating=is_deleting(pod),
                attributes=about,
                zone=zone_of(node) if node else "",
            )


def resolved_port(pod: Object, port: Object) -> Object | None:
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


def hashable_ports(ports: Iterable[Object | None]) -> Ports:
    return tuple(tuple(sorted(each.items())) for each in ports if each is not None)


def should_mirror(endpoints: Object) -> bool:
    """Whether slices are to say what somebody wrote into Endpoints; what we wrote, they say already."""
    is_held_back = labels_of(endpoints).get(SKIP_MIRROR_LABEL) == "true" or LEADER_ANNOTATION in annotations_of(
        endpoints
    )
    return not is_held_back and not is_managed_endpoints(endpoints)


def is_managed_endpoints(endpoints: Object) -> bool:
    """Whether Endpoints say which pods there are, and not what somebody wrote."""
    return labels_of(endpoints).get(ENDPOINTS_MANAGED_BY) == ENDPOINTS_MANAGER


def backends_from_endpoints(endpoints: Object) -> list[Backend]:
    """What somebody wrote into Endpoints."""
    found = []
    for subset in endpoints.get("subsets") or ():
        ports = hashable_ports(
            {"name": "", "protocol": "TCP", **{key: value for key, value in each.items() if value is not None}}
            for each in subset.get("ports") or ()
        )
        for field, ready in (("addresses", True), ("notReadyAddresses", False)):
            for each in subset.get(field) or ():
                about = {key: each[key] for key in ("targetRef", "nodeName", "hostname") if each.get(key)}
                found.append(Backend(each["ip"], ports, ready, ready, False, about))
    return found[:MAX_ENDPOINTS]


# -- one object


def endpoints_of(service: Object, backends: Sequence[Backend]) -> Object:
    """The Endpoints of a Service: a thousand backends at most, of its first family only."""
    family = (service["spec"].get("ipFamilies") or ["IPv4"])[0]
    anyway = service["spec"].get("publishNotReadyAddresses", False)
    told = [each for each in backends if each.family == family and (anyway or not each.is_terminating)]
    kept = sorted(told, key=lambda each: not each.is_ready)[:MAX_ENDPOINTS]
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
        return [{"ip": each.address, **each.attributes} for each in group if each.is_ready == ready]

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
class SliceSource:
    """What slices are made of, and what is said on each of them."""

    owner: Object
    """A Service, or Endpoints of the same name."""
    manager: str

    def metadata(self, name: str) -> Object:
        kept = {key: value for key, value in annotations_of(self.owner).items() if key != LAST_APPLIED}
        labels = {**labels_of(self.owner), SERVICE_NAME: name_of(self.owner), MANAGED_BY: self.manager}
        return {
            "name": name,
            "namespace": namespace_of(self.owner),
            "labels": labels,
            "ownerReferences": [owner_reference(self.owner)],
            **({"annotations": kept} if kept and self.manager == MIRRORING_MANAGER else {}),
        }


def desired_slices(source: SliceSource, backends: Sequence[Backend], existing: Sequence[Object]) -> list[Object]:
    """The slices that there should be; those that are `held` and not among them are to go.

    A Service has one even if nothing is behind it.  A slice that would go becomes one that would be new: whoever
    watches sees a change of what is behind the Service, and not its end.
    """
    groups: dict[tuple[str, Ports], list[Backend]] = defaultdict(list)
    for each in backends:
        groups[each.family, each.ports].append(each)
    if not groups and source.manager == ENDPOINT_SLICE_MANAGER:
        groups[(source.owner["spec"].get("ipFamilies") or ["IPv4"])[0], ()] = []
    wanted = []
    for (family, ports), group in groups.items():
        same = [each for each in existing if each["addressType"] == family and slice_ports(each) == ports]
        for name, part in slice_contents(source, family, ports, group, same):
            wanted.append(
                {
                    "metadata": source.metadata(name),
                    "addressType": family,
                    "endpoints": [endpoint(each) for each in part],
                    "ports": [dict(port) for port in ports],
                }
            )
    return reuse_slice_names(existing, wanted)


def reuse_slice_names(existing: Sequence[Object], desired: list[Object]) -> list[Object]:
    """The wanted slices, new ones under the names of those that are held and not wanted."""
    names = {name_of(each) for each in desired}
    free: dict[str, list[str]] = defaultdict(list)
    for each in existing:
        if name_of(each) not in names and not is_deleting(each):
            free[each["addressType"]].append(name_of(each))
    known = {name_of(each) for each in existing}
    found = []
    for each in desired:
        if name_of(each) not in known and (spare := free[each["addressType"]]):
            each = {**each, "metadata": {**each["metadata"], "name": spare.pop(0)}}
        found.append(each)
    return found


def slice_ports(endpoint_slice: Object) -> Ports:
    return hashable_ports({"name": "", "protocol": "TCP", **each} for each in endpoint_slice.get("ports") or ())


def slice_contents(
    source: SliceSource, family: str, ports: Ports, group: Sequence[Backend], existing: Sequence[Object]
) -> Iterator[tuple[str, Sequence[Backend]]]:
    """Names of slices, and who is in each: who is in one stays there, others take what room there is."""
    left = {each.address: each for each in group}
    parts: dict[str, list[Backend]] = {}
    for each in existing:
        known = [address for endpoint in each.get("endpoints") or () for address in endpoint["addresses"]]
        parts[name_of(each)] = [left.pop(address) for address in known if address in left]
    for part in parts.values():
        while left and len(part) < MAX_ENDPOINTS_PER_SLICE:
            part.append(left.pop(next(iter(left))))
    number = 0
    while left or not parts:
        name = f"{name_of(source.owner)[:MAX_BASE_LENGTH]}-{name_suffix(uid_of(source.owner), family, ports, number)}"
        number += 1
        if name not in parts:
            parts[name] = [left.pop(address) for address in list(left)[:MAX_ENDPOINTS_PER_SLICE]]
    full = [(name, part) for name, part in parts.items() if part]
    yield from full or list(parts.items())[:1]


def endpoint(backend: Backend) -> Object:
    conditions = {"ready": backend.is_ready, "serving": backend.is_serving, "terminating": backend.is_terminating}
    zone = {"zone": backend.zone} if backend.zone else {}
    return {"addresses": [backend.address], "conditions": conditions, **backend.attributes, **zone}
