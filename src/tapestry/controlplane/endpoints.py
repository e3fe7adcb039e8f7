"""Pure functions that compute the Endpoints and EndpointSlices of a Service.

    backends_from_pods        backends of a Service with a selector: its pods
    backends_from_endpoints   backends of a Service without one: addresses that users wrote to its Endpoints
    endpoints_of              backends as one Endpoints object, the old API
    desired_slices            backends as EndpointSlices of at most a hundred each

Backends are grouped by ports, because pods may use different numbers for the same port name. A backend stays in its
slice: if one of a thousand pods is deleted, one slice changes.
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
"""Hashable ports, by which backends are grouped."""


@dataclass(frozen=True)
class Backend:
    """One endpoint of a Service."""

    address: str
    ports: Ports
    is_ready: bool
    is_serving: bool
    is_terminating: bool
    attributes: Object
    """Node name, host name and pod reference, if any. They are the same in both APIs."""
    zone: str = ""

    @property
    def family(self) -> str:
        return family_of(self.address)


def family_of(address: str) -> str:
    return f"IPv{ipaddress.ip_address(address).version}"


def selects_pods(service: Object) -> bool:
    spec = service["spec"]
    return spec.get("selector") is not None and spec.get("type") != "ExternalName"


# -- backends


def backends_from_pods(service: Object, pods: Iterable[Object], zone_of: Callable[[str], str]) -> list[Backend]:
    """Return the backends of selected pods. `zone_of` returns the zone of a node, or an empty string."""
    backends = [each for pod in pods if not is_pod_terminal(pod) for each in pod_backends(service, pod, zone_of)]
    return sorted(backends, key=lambda each: (each.attributes["targetRef"]["name"], each.address))


def pod_backends(service: Object, pod: Object, zone_of: Callable[[str], str]) -> Iterator[Backend]:
    spec, node = pod["spec"], pod["spec"].get("nodeName")
    publish_not_ready = service["spec"].get("publishNotReadyAddresses", False)
    reference = {"kind": "Pod", "namespace": namespace_of(pod), "name": name_of(pod), "uid": uid_of(pod)}
    has_dns_name = spec.get("hostname") and spec.get("subdomain") == name_of(service)
    attributes = {
        "targetRef": reference,
        **({"nodeName": node} if node else {}),
        **({"hostname": spec["hostname"]} if has_dns_name else {}),
    }
    for address in (each["ip"] for each in value_at(pod, "status", "podIPs", default=())):
        if family_of(address) in (service["spec"].get("ipFamilies") or ["IPv4"]):
            yield Backend(
                address,
                hashable_ports(resolved_port(pod, each) for each in service["spec"].get("ports") or ()),
                is_ready=publish_not_ready or (is_ready(pod) and not is_deleting(pod)),
                is_serving=is_ready(pod),
                is_terminating=is_deleting(pod),
                attributes=attributes,
                zone=zone_of(node) if node else "",
            )


def resolved_port(pod: Object, port: Object) -> Object | None:
    """Return a port of a Service as the pod has it, or None if the pod has no port of that name."""
    target: int | str = port.get("targetPort") or port["port"]
    protocol = port.get("protocol", "TCP")
    number = target if isinstance(target, int) else named_port(pod, target, protocol)
    if number is None:
        return None
    resolved = {"name": port.get("name", ""), "port": number, "protocol": protocol}
    return {**resolved, **({"appProtocol": port["appProtocol"]} if port.get("appProtocol") else {})}


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
    """Return whether user-written Endpoints must be copied to slices."""
    is_excluded = labels_of(endpoints).get(SKIP_MIRROR_LABEL) == "true" or LEADER_ANNOTATION in annotations_of(
        endpoints
    )
    return not is_excluded and not is_managed_endpoints(endpoints)


def is_managed_endpoints(endpoints: Object) -> bool:
    """Return whether Endpoints are written by this controller and not by users."""
    return labels_of(endpoints).get(ENDPOINTS_MANAGED_BY) == ENDPOINTS_MANAGER


def backends_from_endpoints(endpoints: Object) -> list[Backend]:
    backends = []
    for subset in endpoints.get("subsets") or ():
        ports = hashable_ports(
            {"name": "", "protocol": "TCP", **{key: value for key, value in each.items() if value is not None}}
            for each in subset.get("ports") or ()
        )
        for field, ready in (("addresses", True), ("notReadyAddresses", False)):
            for each in subset.get(field) or ():
                attributes = {key: each[key] for key in ("targetRef", "nodeName", "hostname") if each.get(key)}
                backends.append(Backend(each["ip"], ports, ready, ready, False, attributes))
    return backends[:MAX_ENDPOINTS]


# -- one object


def endpoints_of(service: Object, backends: Sequence[Backend]) -> Object:
    """Return the Endpoints of a Service: at most a thousand backends, of its first IP family only."""
    family = (service["spec"].get("ipFamilies") or ["IPv4"])[0]
    publish_not_ready = service["spec"].get("publishNotReadyAddresses", False)
    eligible = [each for each in backends if each.family == family and (publish_not_ready or not each.is_terminating)]
    listed = sorted(eligible, key=lambda each: not each.is_ready)[:MAX_ENDPOINTS]
    headless = service["spec"].get("clusterIP") in (None, "", "None")
    labels = {**labels_of(service), ENDPOINTS_MANAGED_BY: ENDPOINTS_MANAGER, **({HEADLESS: ""} if headless else {})}
    return {
        "metadata": {
            "name": name_of(service),
            "namespace": namespace_of(service),
            "labels": labels,
            "annotations": {OVER_CAPACITY: "truncated" if len(listed) < len(eligible) else None},
        },
        "subsets": [subset(ports, group) for ports, group in by_ports(listed).items()] or None,
    }


def subset(ports: Ports, group: Sequence[Backend]) -> Object:
    def addresses(ready: bool) -> list[Object]:
        return [{"ip": each.address, **each.attributes} for each in group if each.is_ready == ready]

    port_list = [{key: value for key, value in port if value != ""} for port in ports]
    fields = {"addresses": addresses(True), "notReadyAddresses": addresses(False), "ports": port_list}
    return {key: value for key, value in fields.items() if value}


def by_ports(backends: Iterable[Backend]) -> dict[Ports, list[Backend]]:
    groups: dict[Ports, list[Backend]] = defaultdict(list)
    for each in backends:
        groups[each.ports].append(each)
    return dict(sorted(groups.items()))


# -- slices


@dataclass(frozen=True)
class SliceSource:
    """Object that slices are derived from, and their manager."""

    owner: Object
    """A Service, or Endpoints of the same name."""
    manager: str

    def metadata(self, name: str) -> Object:
        annotations = {key: value for key, value in annotations_of(self.owner).items() if key != LAST_APPLIED}
        labels = {**labels_of(self.owner), SERVICE_NAME: name_of(self.owner), MANAGED_BY: self.manager}
        return {
            "name": name,
            "namespace": namespace_of(self.owner),
            "labels": labels,
            "ownerReferences": [owner_reference(self.owner)],
            **({"annotations": annotations} if annotations and self.manager == MIRRORING_MANAGER else {}),
        }


def desired_slices(source: SliceSource, backends: Sequence[Backend], existing: Sequence[Object]) -> list[Object]:
    """Return the desired slices. Slices in `existing` that are not among them must be deleted.

    A Service has one slice even without endpoints. A new slice takes the name of one that would be deleted, so that
    watchers see changed endpoints instead of none.
    """
    groups: dict[tuple[str, Ports], list[Backend]] = defaultdict(list)
    for each in backends:
        groups[each.family, each.ports].append(each)
    if not groups and source.manager == ENDPOINT_SLICE_MANAGER:
        groups[(source.owner["spec"].get("ipFamilies") or ["IPv4"])[0], ()] = []
    slices = []
    for (family, ports), group in groups.items():
        same = [each for each in existing if each["addressType"] == family and slice_ports(each) == ports]
        for name, part in slice_contents(source, family, ports, group, same):
            slices.append(
                {
                    "metadata": source.metadata(name),
                    "addressType": family,
                    "endpoints": [endpoint(each) for each in part],
                    "ports": [dict(port) for port in ports],
                }
            )
    return reuse_slice_names(existing, slices)


def reuse_slice_names(existing: Sequence[Object], desired: list[Object]) -> list[Object]:
    """Give new slices the names of existing slices that are not desired any more."""
    names = {name_of(each) for each in desired}
    free: dict[str, list[str]] = defaultdict(list)
    for each in existing:
        if name_of(each) not in names and not is_deleting(each):
            free[each["addressType"]].append(name_of(each))
    known = {name_of(each) for each in existing}
    result = []
    for each in desired:
        if name_of(each) not in known and (spare := free[each["addressType"]]):
            each = {**each, "metadata": {**each["metadata"], "name": spare.pop(0)}}
        result.append(each)
    return result


def slice_ports(endpoint_slice: Object) -> Ports:
    return hashable_ports({"name": "", "protocol": "TCP", **each} for each in endpoint_slice.get("ports") or ())


def slice_contents(
    source: SliceSource, family: str, ports: Ports, group: Sequence[Backend], existing: Sequence[Object]
) -> Iterator[tuple[str, Sequence[Backend]]]:
    """Yield slice names with their backends. Backends stay in their slice, others fill free capacity."""
    unassigned = {each.address: each for each in group}
    parts: dict[str, list[Backend]] = {}
    for each in existing:
        known = [address for endpoint in each.get("endpoints") or () for address in endpoint["addresses"]]
        parts[name_of(each)] = [unassigned.pop(address) for address in known if address in unassigned]
    for part in parts.values():
        while unassigned and len(part) < MAX_ENDPOINTS_PER_SLICE:
            part.append(unassigned.pop(next(iter(unassigned))))
    number = 0
    while unassigned or not parts:
        name = f"{name_of(source.owner)[:MAX_BASE_LENGTH]}-{name_suffix(uid_of(source.owner), family, ports, number)}"
        number += 1
        if name not in parts:
            parts[name] = [unassigned.pop(address) for address in list(unassigned)[:MAX_ENDPOINTS_PER_SLICE]]
    non_empty = [(name, part) for name, part in parts.items() if part]
    yield from non_empty or list(parts.items())[:1]


def endpoint(backend: Backend) -> Object:
    conditions = {"ready": backend.is_ready, "serving": backend.is_serving, "terminating": backend.is_terminating}
    zone = {"zone": backend.zone} if backend.zone else {}
    return {"addresses": [backend.address], "conditions": conditions, **backend.attributes, **zone}
