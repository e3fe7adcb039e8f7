"""The Service `kubernetes`, by which pods find the server, with what is behind it, and the range it comes from."""

import ipaddress
import socket

from tapestry.apiserver.bootstrap import BOOTSTRAP_USER, create_if_missing, create_or_replace, served_resource
from tapestry.apiserver.requests import Target
from tapestry.apiserver.server import Server
from tapestry.apiserver.service_allocator import Network, first_service_ip
from tapestry.apiserver.verbs import WriteRequest
from tapestry.kube.conditions import new_condition, with_condition
from tapestry.kube.objects import Object, with_value

SERVICE_NAME, SERVICE_NAMESPACE = "kubernetes", "default"
DISCOVERY, NETWORKING = "discovery.k8s.io", "networking.k8s.io"
UNROUTED_ADDRESS = ("192.0.2.1", 9)
"""An address that nobody has; asked for the way to it, the system names its own."""


async def publish_service(server: Server, network: Network, host: str, port: int) -> None:
    """Have the Service, and its endpoint at `host`, or at the machine's own address where that is loopback."""
    await create_if_missing(
        server, NETWORKING, "servicecidrs", {"metadata": {"name": SERVICE_NAME}, "spec": {"cidrs": [str(network)]}}
    )
    await mark_service_cidr_ready(server)
    await create_if_missing(server, "", "services", service_object(first_service_ip(network), port))
    address = advertise_address(host)
    if address is not None:
        await create_or_replace(server, "", "endpoints", endpoints_object(address, port))
        await create_or_replace(server, DISCOVERY, "endpointslices", endpoint_slice_object(address, port))


async def mark_service_cidr_ready(server: Server) -> None:
    target = Target(served_resource(server, NETWORKING, "servicecidrs"), "", SERVICE_NAME)

    def with_status(current: Object) -> Object:
        mark = new_condition("Ready", True, "", "Kubernetes Service CIDR is ready")
        conditions = with_condition((current.get("status") or {}).get("conditions"), mark, server.verbs.now())
        return with_value(current, ("status", "conditions"), conditions)

    await server.verbs.update(WriteRequest("update", target, BOOTSTRAP_USER, {}), with_status, unrestricted=True)


def service_object(address: str, port: int) -> Object:
    ports = [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}]
    labels = {"component": "apiserver", "provider": "kubernetes"}
    return {
        "metadata": object_metadata(labels),
        "spec": {"clusterIP": address, "clusterIPs": [address], "ports": ports},
    }


def endpoints_object(address: str, port: int) -> Object:
    subset = {"addresses": [{"ip": address}], "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}
    return {"metadata": object_metadata({"endpointslice.kubernetes.io/skip-mirror": "true"}), "subsets": [subset]}


def endpoint_slice_object(address: str, port: int) -> Object:
    return {
        "metadata": object_metadata({"kubernetes.io/service-name": SERVICE_NAME}),
        "addressType": "IPv6" if ":" in address else "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }


def object_metadata(labels: Object) -> Object:
    return {"name": SERVICE_NAME, "namespace": SERVICE_NAMESPACE, "labels": labels}


def advertise_address(host: str) -> str | None:
    """The address under which others find a server that listens at `host`; None where the machine has none."""
    try:
        given = ipaddress.ip_address(host)
    except ValueError:
        given = None
    if given is not None and not given.is_loopback and not given.is_unspecified:
        return str(given)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(UNROUTED_ADDRESS)  # of a datagram socket: nothing is sent
        except OSError:
            return None
        found: str = probe.getsockname()[0]
    return None if ipaddress.ip_address(found).is_loopback else found
