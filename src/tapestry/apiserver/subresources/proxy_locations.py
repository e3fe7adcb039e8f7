"""Servers to which the proxy subresources of pods, services and nodes connect.

The addresses come from the status of pods, which their nodes write. They must not lead to a node, or to an address that
the rule of the server excludes (`core.egress`). Servers with a host cluster use names instead (`core.pod_sessions`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import msgspec

from tapestry.apiserver.core import api_errors, egress
from tapestry.apiserver.core.outgoing_http import ServiceResolver
from tapestry.apiserver.core.pod_sessions import pod_host, service_host
from tapestry.apiserver.core.requests import Target
from tapestry.apiserver.core.store import Store
from tapestry.apiserver.subresources.connect_options import MAX_PORT, PORT
from tapestry.kube.errors import Unavailable
from tapestry.kube.objects import Object, name_of, value_at
from tapestry.kube.resources import PODS, SERVICES, Resource

DEFAULT_PORTS = {"http": "80", "https": "443"}


class ProxyLocation(NamedTuple):
    """Server of a pod, by its address or by a name for the syncer."""

    scheme: str
    host: str
    port: int


def split_name(text: str, kind: str) -> tuple[str, str, str]:
    """Split `name`, `name:port` or `scheme:name:port` into scheme, name and port. Raises BadRequest."""
    parts = text.split(":")
    if len(parts) < 3:
        parts = ["", *parts, ""][:3]
    if len(parts) > 3 or not parts[1] or parts[0] not in ("", *DEFAULT_PORTS):
        raise api_errors.bad_request(f'invalid {kind} request "{text}"')
    return parts[0] or "http", parts[1], parts[2]


@dataclass(frozen=True)
class ProxyLocations:
    """Find the servers of pods and services."""

    store: Store
    random: Random
    check: egress.AddressCheck

    def pod(self, target: Target) -> ProxyLocation:
        """Return the server of a pod: at the given port, or at the first port of its containers."""
        scheme, name, port = split_name(target.name, "pod")
        pod = self.object(PODS, target.namespace, name)
        number = pod_port(target, pod, port or DEFAULT_PORTS[scheme], is_default=not port)
        address = pod_address(pod)
        self.check_address(address)
        return ProxyLocation(scheme, address, number)

    def service(self, target: Target) -> ProxyLocation:
        """Return a ready endpoint of a service. Only endpoints that are pods of the namespace are used."""
        scheme, name, port = split_name(target.name, "service")
        service = self.object(SERVICES, target.namespace, name)
        if port.isdecimal():
            port = service_port(service, port).get("name") or ""
        endpoints = list(ServiceResolver(self.store, self.random).ready_endpoints(target.namespace, name, port))
        self.random.shuffle(endpoints)
        for endpoint in endpoints:
            if self.is_address_of_pod(target.namespace, endpoint.pod, endpoint.address):
                self.check_address(endpoint.address)
                return ProxyLocation(scheme, endpoint.address, endpoint.port)
        raise unavailable(f'no endpoints available for service "{target.name}"')

    def named(self, target: Target) -> ProxyLocation:
        """Return the server of a pod or a service by its name, for the syncer of a host cluster."""
        if target.info.resource.name == PODS.name:
            scheme, name, port = split_name(target.name, "pod")
            pod = self.object(PODS, target.namespace, name)
            number = pod_port(target, pod, port or DEFAULT_PORTS[scheme], is_default=not port)
            return ProxyLocation(scheme, pod_host(target.namespace, name), number)
        scheme, name, port = split_name(target.name, "service")
        found = service_port(self.object(SERVICES, target.namespace, name), port)
        return ProxyLocation(scheme, service_host(target.namespace, name), found["port"])

    def object(self, resource: Resource, namespace: str, name: str) -> Object:
        version = self.store.get(resource.name, namespace, name)
        if version is None:
            raise api_errors.not_found(resource, name)
        found: Object = msgspec.json.decode(version.raw)
        return found

    def is_address_of_pod(self, namespace: str, name: str, address: str) -> bool:
        version = self.store.get(PODS.name, namespace, name) if name else None
        if version is None:
            return False
        pod: Object = msgspec.json.decode(version.raw)
        return address in pod_addresses(pod) and not pod["spec"].get("hostNetwork")

    def check_address(self, address: str) -> None:
        """Raise BadRequest for an address to which the server must not connect."""
        try:
            self.check(address)
        except egress.AddressNotAllowed as error:
            raise api_errors.bad_request("address not allowed") from error
        if self.is_node_address(address):
            raise api_errors.bad_request("address not allowed")

    def is_node_address(self, address: str) -> bool:
        text = f'"{address}"'.encode()
        return any(text in version.raw for version in self.store.list_objects("nodes", ""))


def pod_port(target: Target, pod: Object, port: str, *, is_default: bool) -> int:
    """Return the number of a port; a default is replaced by the first port of the pod's containers."""
    if is_default:
        ports = (each for container in pod["spec"]["containers"] for each in container.get("ports") or ())
        first = next(ports, None)
        port = str(first["containerPort"]) if first is not None else port
    if not PORT.fullmatch(port) or not 0 < int(port) <= MAX_PORT:
        raise api_errors.bad_request(f'invalid pod request "{target.name}"')
    return int(port)


def service_port(service: Object, port: str) -> Object:
    """Return the port of a service with a number or a name. Raises Unavailable."""
    field = "port" if port.isdecimal() else "name"
    ports: Sequence[Object] = value_at(service, "spec", "ports", default=()) or ()
    found = next((each for each in ports if str(each.get(field) or "") == port), None)
    if found is None:
        raise unavailable(f'no service port {port} found for service "{name_of(service)}"')
    return found


def pod_address(pod: Object) -> str:
    """Return the address of a pod. Raises BadRequest if it has none of its own."""
    addresses = [] if pod["spec"].get("hostNetwork") else list(pod_addresses(pod))
    if not addresses:
        raise api_errors.bad_request("address not allowed")
    return addresses[0]


def pod_addresses(pod: Object) -> Iterator[str]:
    status = pod.get("status") or {}
    listed = [each.get("ip") or "" for each in status.get("podIPs") or ()]
    yield from filter(None, listed or [status.get("podIP") or ""])


def unavailable(why: str) -> Unavailable:
    return Unavailable(503, "ServiceUnavailable", why)
