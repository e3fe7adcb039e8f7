"""The network policies of the isolation of a tenant, as a plugin of the host cluster reads them."""

from ipaddress import ip_address, ip_network

import pytest
from msgspec import structs

from tapestry.apis.clusterbindings import TenantSync
from tapestry.kube.objects import Object
from tapestry.kube.selectors import label_selector
from tapestry.tenants.host_networks import named_policies
from tapestry.tenants.network_rules import DECIDED, Destination, Destinations

from .effective_bindings import HOST, tenant

BINDING = tenant()
API, DNS = Destination("10.1.1.1", 6444), Destination("10.1.1.1", 6053)
DESTINATIONS = Destinations(API, DNS, ("203.0.113.10", "10.1.1.1"))
POLICIES = dict(named_policies(BINDING, DESTINATIONS, ["203.0.113.10"]))
POD = {**BINDING.owner_labels(), "app": "web"}


def reaches(labels: dict[str, str], address: str, port: int, protocol: str = "TCP") -> bool:
    """Return whether a pod with these labels may connect to an address that is not a pod."""
    selecting = [each for each in POLICIES.values() if label_selector(each["podSelector"]).matches(labels)]
    rules = [rule for each in selecting for rule in each.get("egress", ())]
    return any(allows(rule, address, port, protocol) for rule in rules)


def allows(rule: Object, address: str, port: int, protocol: str) -> bool:
    ip, blocks = ip_address(address), [peer["ipBlock"] for peer in rule["to"] if "ipBlock" in peer]
    is_peer = any(
        ip in ip_network(each["cidr"]) and not any(ip in ip_network(left) for left in each.get("except", ()))
        for each in blocks
    )
    ports = rule.get("ports")
    return is_peer and (ports is None or {"protocol": protocol, "port": port} in ports)


def test_pods_reach_plane_resolver_and_internet() -> None:
    assert reaches(POD, "10.1.1.1", 6444)
    assert reaches(POD, "10.1.1.1", 6053, "UDP")
    assert reaches(POD, "8.8.8.8", 443)


@pytest.mark.parametrize(
    ("address", "port"),
    [("169.254.169.254", 80), ("203.0.113.10", 443), ("10.1.1.1", 22), ("10.96.0.1", 443), ("192.168.0.7", 10250)],
)
def test_pods_reach_nothing_of_machine_or_owner(address: str, port: int) -> None:
    assert not reaches(POD, address, port)


def test_isolation_allows_nothing_that_tenant_decides() -> None:
    decided = {**POD, DECIDED["Egress"]: "true"}
    assert not reaches(decided, "8.8.8.8", 443)
    assert not reaches(decided, "10.1.1.1", 6444)
    assert reaches({**POD, DECIDED["Ingress"]: "true"}, "8.8.8.8", 443)


def test_denial_selects_every_pod() -> None:
    assert POLICIES["tapestry-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def test_ingress_controller_reaches_pods_of_tenants_with_ingresses() -> None:
    host = structs.replace(HOST, ingress_namespace="ingress")
    off, on = (tenant(host=host, sync=TenantSync(ingresses=each)) for each in (False, True))
    assert "tapestry-ingresses" not in dict(named_policies(off, DESTINATIONS, []))
    assert "tapestry-ingresses" not in dict(named_policies(tenant(sync=TenantSync(ingresses=True)), DESTINATIONS, []))
    spec = dict(named_policies(on, DESTINATIONS, []))["tapestry-ingresses"]
    assert spec["podSelector"] == {}
    assert spec["ingress"] == [
        {"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}]}
    ]


def test_policies_are_fewer_without_process_addresses() -> None:
    names = [name for name, _ in named_policies(BINDING, Destinations(), [])]
    assert names == ["tapestry-deny", "tapestry-own-ingress", "tapestry-own-egress", "tapestry-internet"]
