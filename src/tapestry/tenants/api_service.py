"""The Service `kubernetes` of a tenant, through which its pods reach the API of the plane.

It leads to the plane's own port: a client in a pod sends no server name by which a shared port could select the plane.
"""

import ipaddress

from tapestry.kube.conditions import new_condition
from tapestry.kube.objects import Object
from tapestry.syncer.translate.pods import service_names
from tapestry.tenants.host_objects import API_SERVICE

API_CONDITION = "ApiAvailable"
"""Condition of a tenant's binding: its pods have an address of the API of the plane."""


def is_address(text: str) -> bool:
    """Return whether the host cluster has allocated an address, and not something else such as `None`."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text  # a zone belongs to one machine


def certificate_names(address: str, ingress_host: str = "") -> tuple[str, ...]:
    """Return the names by which pods, and clients of its Ingress, call the API of a plane with a Service address."""
    hosts = (ingress_host,) if ingress_host else ()
    return (*service_names(API_SERVICE, "default"), address, *hosts) if address else ()


def is_loopback(host: str) -> bool:
    """Return whether only the machine itself reaches a listener on this host."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def api_condition(host: str, host_address: str, port: int | None, listener: str, service_address: str) -> Object:
    """Return the condition that says whether pods reach the API of their plane, and what to do if they do not.

    `host_address` is `apiAddress` of the HostCluster `host`, `port` the plane's own port, `listener` the host on which
    the process listens, and `service_address` that of the Service.
    """
    set_address = f"set spec.apiAddress of HostCluster {host}, for example by `tapestry host add {host} --api-address`"
    set_range = "start `tapestry planes run` with --port-range; status.portMessage of the plane says why it has no port"
    if not host_address and port is None:
        reason, message = "NotConfigured", f"pods have no address of the API of their plane; {set_address}; {set_range}"
    elif not host_address:
        reason, message = "HostHasNoApiAddress", f"the plane has port {port} for its pods; {set_address}"
    elif port is None:
        reason, message = (
            "PlaneHasNoPort",
            f"HostCluster {host} has apiAddress {host_address}, but the plane has no port of its own; {set_range}",
        )
    elif not service_address:
        reason, message = "NoClusterIP", f"the host cluster has given no address to Service {API_SERVICE} of the tenant"
    elif is_loopback(listener):
        reason, message = (
            "ListensOnLoopback",
            f"the process listens on {listener}, so pods reach port {port} only if {host_address} forwards it there; "
            "otherwise start `tapestry planes run` with --bind-address",
        )
        return new_condition(API_CONDITION, None, reason, message)
    else:
        return new_condition(
            API_CONDITION, True, "Available", f"https://{API_SERVICE}.default.svc is {service_address}"
        )
    return new_condition(API_CONDITION, False, reason, message)
