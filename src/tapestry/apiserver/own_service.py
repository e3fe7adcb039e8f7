"""The Service `kubernetes`, by which pods find the server, with what is behind it, and the range it comes from."""

import ipaddress
import socket

from tapestry.apiserver.bootstrap import STARTING, have, keep, row_of
from tapestry.apiserver.requests import Target
from tapestry.apiserver.server import Server
from tapestry.apiserver.service_addresses import Network, first_address
from tapestry.apiserver.verbs import Request
from tapestry.kube.conditions import condition, with_condition
from tapestry.kube.objects import Object, with_value

NAME, NAMESPACE = "kubernetes", "default"
DISCOVERY, NETWORKING = "discovery.k8s.io", "networking.k8s.io"
SOMEWHERE = ("192.0.2.1", 9)
"""An address that nobody has; asked for the way to it, the system names its own."""


async def publish(server: Server, network: Network, host: str, port: int) -> None:
    """Have the Service, and its endpoint at `host`, or at the machine's own address where that is loopback."""
    await have(server, NETWORKING, "servicecidrs", {"metadata": {"name": NAME}, "spec": {"cidrs": [str(network)]}})
    await ready(server)
    await have(server, "", "services", service(first_address(network), port))
    address = reachable(host)
    if address is not None:
        await keep(server, "", "endpoints", endpoints(address, port))
        await keep(server, DISCOVERY, "endpointslices", endpoint_slice(address, port))


async def ready(server: Server) -> None:
    target = Target(row_of(server, NETWORKING, "servicecidrs"), "", NAME)

    def with_status(current: Object) -> Object:
        mark = condition("Ready", True, "", "Kubernetes Service CIDR is ready")
        conditions = with_condition((current.get("status") or {}).get("conditions"), mark, server.verbs.now())
        return with_value(current, ("status", "conditions"), conditions)

    await server.verbs.update(Request("update", target, STARTING, {}), with_status, free=True)


def service(address: str, port: int) -> Object:
    ports = [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}]
    labels = {"component": "apiserver", "provider": "kubernetes"}
    return {"metadata": metadata(labels), "spec": {"clusterIP": address, "clusterIPs": [address], "ports": ports}}


def endpoints(address: str, port: int) -> Object:
    subset = {"addresses": [{"ip": address}], "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}
    return {"metadata": metadata({"endpointslice.kubernetes.io/skip-mirror": "true"}), "subsets": [subset]}


def endpoint_slice(address: str, port: int) -> Object:
    return {
        "metadata": metadata({"kubernetes.io/service-name": NAME}),
        "addressType": "IPv6" if ":" in address else "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }


def metadata(labels: Object) -> Object:
    return {"name": NAME, "namespace": NAMESPACE, "labels": labels}


def reachable(host: str) -> str | None:
    """The address under which others find a server that listens at `host`; None where the machine has none."""
    try:
        given = ipaddress.ip_address(host)
    except ValueError:
        given = None
    if given is not None and not given.is_loopback and not given.is_unspecified:
        return str(given)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(SOMEWHERE)  # of a datagram socket: nothing is sent
        except OSError:
            return None
        found: str = probe.getsockname()[0]
    return None if ipaddress.ip_address(found).is_loopback else found
