"""The DNS Service of a tenant in its host cluster, and the condition about it."""

import pytest

from tapestry.controller.testing import in_virtual_time
from tapestry.kube.resources import SERVICES
from tapestry.tenants.dns_service import dns_condition
from tapestry.tenants.host_objects import DNS_SERVICE, HostFacts
from tapestry.tenants.host_setup import apply_tenant

from .tenant_bindings import tenant_binding
from .test_host_setup import FACTS, host_cluster

WANTED, OTHER = "10.96.0.53", "10.96.0.54"


@pytest.mark.parametrize(
    ("port", "address", "service_address", "wanted", "reason", "remedy"),
    [
        (5300, "192.0.2.10", WANTED, "", "Available", WANTED),
        (5300, "192.0.2.10", WANTED, WANTED, "Available", WANTED),
        (5300, "192.0.2.10", OTHER, WANTED, "ServiceIPNotAvailable", "delete Service tapestry-dns"),
        (None, "192.0.2.10", "", "", "NoPort", "--dns-port-range"),
        (5300, "", "", "", "HostHasNoDnsAddress", "spec.dnsAddress of HostCluster east"),
        (5300, "192.0.2.10", "", "", "NoClusterIP", "Service tapestry-dns"),
    ],
)
def test_condition_says_what_is_missing(
    port: int | None, address: str, service_address: str, wanted: str, reason: str, remedy: str
) -> None:
    binding = tenant_binding(address=address, dns={"serviceIp": wanted})
    condition = dns_condition(binding, "east", port, service_address)
    assert condition["type"] == "DNSAvailable"
    assert (condition["status"], condition["reason"]) == (str(reason == "Available"), reason)
    assert remedy in condition["message"]


@in_virtual_time
async def test_service_has_the_wanted_address_and_keeps_it() -> None:
    _, client = host_cluster()
    for address in (WANTED, OTHER):  # pods that run have the first one
        namespace = await apply_tenant(client, tenant_binding(dns={"serviceIp": address}), FACTS)
        service = await client.get(SERVICES, DNS_SERVICE, namespace)
        assert service["spec"]["clusterIP"] == WANTED


@in_virtual_time
async def test_service_goes_with_the_port() -> None:
    _, client = host_cluster()
    namespace = await apply_tenant(client, tenant_binding(), FACTS)
    await apply_tenant(client, tenant_binding(), HostFacts(api_servers=FACTS.api_servers))
    assert await client.find(SERVICES, DNS_SERVICE, namespace) is None
