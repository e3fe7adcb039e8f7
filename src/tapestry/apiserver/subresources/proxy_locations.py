"""Servers to which the proxy subresources of pods, services and nodes connect.

The addresses come from the status of pods, which their nodes write. They must not lead to a node, or to an address that
the rule of the server excludes (`core.egress`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import msgspec

from tapestry.apiserver.core import api_errors, egress
from tapestry.apiserver.core.outgoing_http import ServiceResolver
from tapestry.apiserver.core.requests import Target
from tapestry.apiserver.core.store import Store
from tapestry.apiserver.subresources.connect_options import MAX_PORT, PORT
from tapestry.kube.errors import Unavailable
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import PODS, SERVICES, Resource

DEFAULT_PORTS = {"http": 80, "https": 443}


class ProxyLocation(NamedTuple):
    """Server of a pod."""

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
        if not port:
            ports = (each for container in pod["spec"]["containers"] for each in container.get("ports") or ())
            first = next(ports, None)
            port = str(first["containerPort"] if first is not None else DEFAULT_PORTS[scheme])
        if not PORT.fullmatch(port) or not 0 < int(port) <= MAX_PORT:
            raise api_errors.bad_request(f'invalid pod request "{target.name}"')
        address = pod_address(pod)
        self.check_address(address)
        return ProxyLocation(scheme, address, int(port))

    def service(self, target: Target) -> ProxyLocation:
        """Return a ready endpoint of a service. Only endpoints that are pods of the namespace are used."""
        scheme, name, port = split_name(target.name, "service")
        service = self.object(SERVICES, target.namespace, name)
        if port.isdecimal():
            ports = value_at(service, "spec", "ports", default=()) or ()
            found = next((each for each in ports if str(each["port"]) == port), None)
            if found is None:
                raise unavailable(f'no service port {port} found for service "{name}"')
            port = found.get("name") or ""
        endpoints = list(ServiceResolver(self.store, self.random).ready_endpoints(target.namespace, name, port))
        self.random.shuffle(endpoints)
        for endpoint in endpoints:
            if self.is_address_of_pod(target.namespace, endpoint.pod, endpoint.address):
                self.check_address(endpoint.address)
                return ProxyLocation(scheme, endpoint.address, endpoint.port)
        raise unavailable(f'no endpoints available for service "{target.name}"')

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
