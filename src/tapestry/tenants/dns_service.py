"""The DNS Service of a tenant, through which its pods reach the resolver of their plane, and its condition."""

import ipaddress

from tapestry.apis.clusterbindings import Binding
from tapestry.kube.conditions import new_condition
from tapestry.kube.objects import Object
from tapestry.tenants.host_objects import DNS_SERVICE, dns_address

DNS_CONDITION = "DNSAvailable"
"""Condition of a tenant's binding: its pods resolve the names of the plane."""


def dns_condition(binding: Binding, host: str, port: int | None, service_address: str) -> Object:
    """Return the condition that says whether pods have DNS, and what to do if they do not.

    `host` is the name of the HostCluster, `port` that of the resolver, and `service_address` that of the Service.
    """
    wanted = binding.spec.dns.service_ip
    if port is None:
        remedy = "start `tapestry planes run` with --dns-port-range; status.dnsPortMessage of the plane says more"
        return new_condition(DNS_CONDITION, False, "NoPort", f"the plane has no port of the DNS resolver; {remedy}")
    if not dns_address(binding):
        remedy = f"set spec.apiAddress or spec.dnsAddress of HostCluster {host}"
        message = f"the DNS resolver has port {port} for the pods of the plane; {remedy}"
        return new_condition(DNS_CONDITION, False, "HostHasNoDnsAddress", message)
    if not service_address:
        message = f"the host cluster has given no address to Service {DNS_SERVICE} of the tenant"
        return new_condition(DNS_CONDITION, False, "NoClusterIP", message)
    if wanted and ipaddress.ip_address(wanted) != ipaddress.ip_address(service_address):
        message = (
            f"spec.dns.serviceIp: the host cluster did not give {wanted}; the DNS of the pods is {service_address}. "
            f"If {wanted} is in its range and free now, delete Service {DNS_SERVICE} in the namespace of the tenant"
        )
        return new_condition(DNS_CONDITION, False, "ServiceIPNotAvailable", message)
    return new_condition(DNS_CONDITION, True, "Available", f"the DNS of the pods is {service_address}")
