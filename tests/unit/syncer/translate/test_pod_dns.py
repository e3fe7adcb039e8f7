"""DNS settings of twins, by the policy of the pod and the settings of the tenant."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from tests.unit.tenants.effective_bindings import ADDRESSES, tenant

from tapestry.apis.clusterbindings import TenantDns, VirtualEndpoints
from tapestry.kube.objects import Object
from tapestry.syncer.translate.pod_dns import dns_settings, searches_within_limit

SEARCHES = ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local"]
NDOTS = {"name": "ndots", "value": "5"}
SETTINGS = TenantDns(nameservers=("192.0.2.53",), searches=("example.com",), options=("ndots:2", "rotate"))


def pod(**spec: Any) -> Object:
    return {"metadata": {"name": "web", "namespace": "shop"}, "spec": spec}


@pytest.mark.parametrize("policy", ["ClusterFirst", "ClusterFirstWithHostNet", None])
def test_cluster_dns_is_that_of_the_tenant(policy: str | None) -> None:
    assert dns_settings(pod(dnsPolicy=policy), tenant()) == {
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": [ADDRESSES.dns], "searches": SEARCHES, "options": [NDOTS]},
    }


def test_settings_of_tenant_and_pod_are_added() -> None:
    own = {"nameservers": ["192.0.2.54"], "searches": ["example.org"], "options": [{"name": "rotate", "value": "x"}]}
    assert dns_settings(pod(dnsConfig=own), tenant(dns=SETTINGS))["dnsConfig"] == {
        "nameservers": [ADDRESSES.dns, "192.0.2.53", "192.0.2.54"],
        "searches": [*SEARCHES, "example.com", "example.org"],
        "options": [{"name": "ndots", "value": "2"}, {"name": "rotate", "value": "x"}],
    }


def test_resolver_of_the_node_is_replaced() -> None:
    assert dns_settings(pod(dnsPolicy="Default"), tenant()) == {
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": [ADDRESSES.dns]},
    }
    assert dns_settings(pod(dnsPolicy="Default", hostNetwork=True), tenant()) == {}


def test_pod_with_own_settings_has_only_these() -> None:
    assert dns_settings(pod(dnsPolicy="None", dnsConfig={"nameservers": ["192.0.2.1"]}), tenant(dns=SETTINGS)) == {}


def test_dns_of_the_host_cluster_is_never_used() -> None:
    binding = tenant()
    spec = structs.replace(binding.spec, virtual_endpoints=VirtualEndpoints())
    assert dns_settings(pod(), replace(binding, spec=spec)) == {"dnsPolicy": "Default"}


def test_too_long_search_domains_are_dropped() -> None:
    domains = [f"{letter * 200}.example.com" for letter in "abcdefghijkl"]
    assert searches_within_limit(domains) == domains[:9]
    assert len(" ".join(searches_within_limit(domains))) <= 2048
    assert searches_within_limit(["x" * 2048]) == ["x" * 2048]
    assert searches_within_limit(["x" * 2049]) == []
