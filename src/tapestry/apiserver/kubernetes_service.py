"""The Service `kubernetes`, its endpoints, and the ServiceCIDR of its cluster IP."""

import ipaddress
import socket

from tapestry.apiserver.bootstrap import create_if_missing, create_or_replace, served_resource
from tapestry.apiserver.core.requests import BOOTSTRAP_USER, Target, WriteRequest
from tapestry.apiserver.handlers.server import Server
from tapestry.apiserver.service_allocator import Network, first_service_ip
from tapestry.kube.conditions import new_condition, with_condition
from tapestry.kube.objects import Object, with_value

SERVICE_NAME, SERVICE_NAMESPACE = "kubernetes", "default"
DISCOVERY, NETWORKING = "discovery.k8s.io", "networking.k8s.io"
UNROUTED_ADDRESS = ("192.0.2.1", 9)
"""A documentation address that is never assigned; its route reveals the address of this machine."""


async def publish_service(server: Server, network: Network, host: str, port: int) -> None:
    """Create the Service and its endpoint. If `host` is loopback, the endpoint is the address of this machine.

    If a syncer owns the addresses of Services, it writes that of this one, too.
    """
    await create_if_missing(
        server, NETWORKING, "servicecidrs", {"metadata": {"name": SERVICE_NAME}, "spec": {"cidrs": [str(network)]}}
    )
    await mark_service_cidr_ready(server)
    cluster_ip = "" if server.syncer_restriction.is_enabled else first_service_ip(network)
    await create_if_missing(server, "", "services", service_object(cluster_ip, port))
    address = advertise_address(host)
    if address is not None:
        await create_or_replace(server, "", "endpoints", endpoints_object(address, port))
        await create_or_replace(server, DISCOVERY, "endpointslices", endpoint_slice_object(address, port))


async def mark_service_cidr_ready(server: Server) -> None:
    target = Target(served_resource(server, NETWORKING, "servicecidrs"), "", SERVICE_NAME)

    def with_status(current: Object) -> Object:
        condition = new_condition("Ready", True, "", "Kubernetes Service CIDR is ready")
        conditions = with_condition((current.get("status") or {}).get("conditions"), condition, server.verbs.now())
        return with_value(current, ("status", "conditions"), conditions)

    await server.verbs.update(WriteRequest("update", target, BOOTSTRAP_USER, {}), with_status, unrestricted=True)


def service_object(cluster_ip: str, port: int) -> Object:
    ports = [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}]
    labels = {"component": "apiserver", "provider": "kubernetes"}
    return {
        "metadata": object_metadata(labels),
        "spec": {"ports": ports, **({"clusterIP": cluster_ip, "clusterIPs": [cluster_ip]} if cluster_ip else {})},
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
    """Return the address at which others reach a server that listens at `host`, or None if there is none."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if address is not None and not address.is_loopback and not address.is_unspecified:
        return str(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(UNROUTED_ADDRESS)  # a datagram socket sends nothing on connect
        except OSError:
            return None
        local_address: str = probe.getsockname()[0]
    return None if ipaddress.ip_address(local_address).is_loopback else local_address
