"""Twins of NetworkPolicies, as a plugin of the host cluster reads them together with those of the isolation."""

from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Isolation, TenantSync
from tapestry.kube.names import safe_label_value
from tapestry.kube.objects import Object, object_named
from tapestry.kube.selectors import label_selector
from tapestry.syncer.translate.metadata import twin_labels
from tapestry.tenants.host_networks import named_policies
from tapestry.tenants.network_rules import DECIDED, Destination, Destinations
from tapestry.tenants.sync.network_policy_translation import (
    Surroundings,
    decided_labels,
    desired_policy,
    policy_limitation,
    selection_of,
    uses_namespaces,
)
from tapestry.tenants.sync.twin_objects import NotSynced, NoTwin
from tapestry.tenants.tenant_binding import TenantAddresses

from ..effective_bindings import tenant

SYNC = TenantSync(network_policies=True)
BINDING, OTHER = tenant(sync=SYNC), tenant("plane-two", uid="uid-2", sync=SYNC)
DESTINATIONS = Destinations(Destination("10.1.1.1", 6444), Destination("10.1.1.1", 6053), ("203.0.113.10", "10.1.1.1"))
NAMESPACES = {
    "team-a": {"kubernetes.io/metadata.name": "team-a", "env": "prod"},
    "team-b": {"kubernetes.io/metadata.name": "team-b", "env": "test"},
    "kube-system": {"kubernetes.io/metadata.name": "kube-system"},
}
AROUND = Surroundings(DESTINATIONS, TenantAddresses("10.96.0.11", "10.96.0.12"), NAMESPACES)
FORBIDDEN = ("169.254.169.254", "203.0.113.10", "10.1.1.1", "10.96.0.1", "192.168.0.7", "127.0.0.1", "fd00:ec2::254")


def policy(namespace: str = "team-a", **spec: Any) -> Object:
    return {**object_named("rules", namespace), "spec": {"podSelector": {}, **spec}}


def spec_of(obj: Object, binding: Any = BINDING) -> Object:
    spec: Object = desired_policy(obj, binding, AROUND)["spec"]
    return spec


def pod_labels(namespace: str, binding: Any = BINDING, **labels: str) -> dict[str, str]:
    """Return the labels of the twin of a pod."""
    pod = object_named("p", namespace)
    pod["metadata"]["labels"] = labels
    return twin_labels(pod, binding)


def allows(
    spec: Object, direction: str, *, labels: Any = None, address: str = "", port: Any = 80, protocol: str = "TCP"
) -> bool:
    """Return whether a twin allows traffic with a pod of the same namespace in the host, or with an address."""
    side = {"ingress": "from", "egress": "to"}[direction]
    for rule in spec.get(direction) or ():
        assert rule[side], "a rule without peers allows everything"
        ports = rule.get("ports")
        is_port = ports is None or any((each["protocol"], each.get("port", port)) == (protocol, port) for each in ports)
        if is_port and any(is_peer(each, labels, address) for each in rule[side]):
            return True
    return False


def is_peer(peer: Object, labels: Any, address: str) -> bool:
    assert "namespaceSelector" not in peer
    if "podSelector" in peer:
        return labels is not None and label_selector(peer["podSelector"]).matches(labels)
    if not address:
        return False
    ip, block = ip_address(address), peer["ipBlock"]
    return ip in ip_network(block["cidr"]) and not any(ip in ip_network(each) for each in block.get("except", ()))


# -- selectors


@pytest.mark.parametrize("selector", [{}, {"matchLabels": {"app": "web"}}, {"matchLabels": BINDING.owner_labels()}])
def test_selector_always_includes_tenant_and_namespace(selector: Object) -> None:
    found = label_selector(spec_of(policy(podSelector=selector))["podSelector"])
    labels = selector.get("matchLabels", {})
    assert found.matches(pod_labels("team-a", **labels))
    assert not found.matches(pod_labels("team-b", **labels))
    assert not found.matches(pod_labels("team-a", OTHER, **labels))


def test_namespaces_are_those_of_the_plane() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"env": "prod"}}, "podSelector": {"matchLabels": {"app": "web"}}}
    spec = spec_of(policy("team-b", ingress=[{"from": [peer]}]))
    assert allows(spec, "ingress", labels=pod_labels("team-a", app="web"))
    for labels in (
        *(pod_labels("team-a", app="db"), pod_labels("team-b", app="web"), pod_labels("team-a", OTHER, app="web")),
        {"app": "web", "env": "prod"},
    ):
        assert not allows(spec, "ingress", labels=labels)
    assert uses_namespaces(policy(ingress=[{"from": [peer]}]))
    assert not uses_namespaces(policy(ingress=[{"from": [{"podSelector": {}}]}]))


def test_all_namespaces_are_those_of_the_tenant() -> None:
    spec = spec_of(policy(ingress=[{"from": [{"namespaceSelector": {}}]}]))
    assert allows(spec, "ingress", labels=pod_labels("any"))
    assert not allows(spec, "ingress", labels=pod_labels("any", OTHER))


def test_no_matching_namespace_allows_nothing() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"env": "none"}}}
    spec = spec_of(policy(ingress=[{"from": [peer]}]))
    assert not any(allows(spec, "ingress", labels=pod_labels(each)) for each in NAMESPACES)


def test_pods_of_the_same_namespace() -> None:
    spec = spec_of(policy(ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}]))
    assert allows(spec, "ingress", labels=pod_labels("team-a", app="web"))
    assert not allows(spec, "ingress", labels=pod_labels("team-b", app="web"))


# -- addresses


@pytest.mark.parametrize(
    "rule", [{}, {"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}, {"to": [{"ipBlock": {"cidr": "::/0"}}]}]
)
def test_no_rule_leads_to_machines_or_others(rule: Object) -> None:
    spec = spec_of(policy(egress=[rule], policyTypes=["Egress"]))
    for address in FORBIDDEN:
        assert not allows(spec, "egress", address=address, port=22)
        assert not allows(spec, "egress", address=address, port=80)
    assert not allows(spec, "egress", labels=pod_labels("team-a", OTHER))
    assert allows(spec, "egress", address="2a00::1" if "::" in str(rule) else "8.8.8.8")


def test_block_without_allowed_addresses_removes_its_rule() -> None:
    obj = policy(egress=[{"to": [{"ipBlock": {"cidr": "169.254.169.254/32"}}]}], policyTypes=["Egress"])
    assert spec_of(obj) | {"podSelector": None} == {
        "podSelector": None, "policyTypes": ["Egress"], "ingress": None, "egress": None
    }  # fmt: skip
    limitation = policy_limitation(obj, BINDING, DESTINATIONS)
    assert limitation is not None
    assert str(limitation).startswith("spec.egress[0].to[0].ipBlock")


BLOCKS = st.one_of(
    st.builds(lambda n, bits: str(ip_network((n, bits), strict=False)), st.integers(0, 2**32 - 1), st.integers(0, 32)),
    st.sampled_from(["10.0.0.0/8", "0.0.0.0/0", "169.254.0.0/15", "203.0.113.0/24", "::/0"]),
)
PEERS = st.builds(lambda cidr: {"ipBlock": {"cidr": cidr}}, BLOCKS)


@settings(max_examples=50)
@given(st.lists(PEERS, max_size=3), st.sampled_from(["full", "lite"]))
def test_no_policy_opens_more_than_the_isolation(peers: list[Object], mode: Any) -> None:
    binding = tenant(sync=SYNC, isolation=Isolation(mode))
    spec = spec_of(policy(egress=[{"to": peers}], policyTypes=["Egress"]), binding)
    for address in ("169.254.169.254", "203.0.113.10", "127.0.0.1", *(("10.96.0.1",) if mode == "full" else ())):
        assert not allows(spec, "egress", address=address, port=22)


def test_many_peers_are_refused_but_decide() -> None:
    peers = [{"podSelector": {}}]
    assert spec_of(policy(ingress=[{"from": peers * 99}]))["ingress"]
    for rules in ([{"from": peers * 100}], [{"from": peers}] * 51):
        with pytest.raises(NotSynced, match="100"):
            desired_policy(policy(ingress=rules), BINDING, AROUND)
    assert decided_labels(object_named("p", "team-a"), [selection_of(policy(ingress=[{"from": peers * 100}]))])


# -- the plane and DNS

DNS_PODS = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
    "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
}
UDP_53 = {"protocol": "UDP", "port": 53}


@pytest.mark.parametrize(
    ("rule", "has_dns", "has_api"),
    [
        ({}, True, True),
        ({"ports": [UDP_53]}, True, False),
        ({"ports": [{"protocol": "UDP", "port": "dns"}]}, True, False),
        ({"ports": [{"protocol": "UDP", "port": 50, "endPort": 60}]}, True, False),
        ({"ports": [{"protocol": "TCP", "port": 443}]}, False, True),
        ({"to": [DNS_PODS], "ports": [UDP_53]}, True, False),
        ({"to": [{"namespaceSelector": {}}]}, True, False),
        ({"to": [{"podSelector": {}}]}, False, False),
        ({"to": [{**DNS_PODS, "podSelector": {"matchLabels": {"app": "web"}}}]}, False, False),
        ({"to": [{"ipBlock": {"cidr": "10.96.0.11/32"}}]}, False, True),
        ({"to": [{"ipBlock": {"cidr": "10.1.1.1/32"}}], "ports": [{"protocol": "TCP", "port": 6444}]}, False, True),
        ({"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}]}, False, False),
    ],
)
def test_rules_lead_to_the_plane_as_in_other_clusters(rule: Object, has_dns: bool, has_api: bool) -> None:
    spec = spec_of(policy(egress=[rule], policyTypes=["Egress"]))
    assert allows(spec, "egress", address="10.1.1.1", port=6053, protocol="UDP") == has_dns
    assert allows(spec, "egress", address="10.1.1.1", port=6444) == has_api


# -- pods about which policies decide


def test_isolation_allows_decided_pods_nothing() -> None:
    pod = object_named("p", "team-a")
    pod["metadata"]["labels"] = {"app": "web"}
    deny = policy(podSelector={"matchLabels": {"app": "web"}}, policyTypes=["Egress"])
    labels = {**twin_labels(pod, BINDING), **decided_labels(pod, [selection_of(deny)])}
    assert decided_labels(pod, [selection_of(deny)]) == {DECIDED["Egress"]: "true"}
    base = dict(named_policies(BINDING, DESTINATIONS, []))
    selecting = [name for name, spec in base.items() if label_selector(spec["podSelector"]).matches(labels)]
    assert selecting == ["tapestry-deny", "tapestry-own-ingress"]
    assert spec_of(deny)["egress"] is None


def test_policies_of_other_pods_decide_nothing() -> None:
    pod = object_named("p", "team-a")
    pod["metadata"]["labels"] = {"app": "web", keys.INGRESS_DECIDED: "true"}
    assert decided_labels(pod, [selection_of(policy(podSelector={"matchLabels": {"app": "db"}}))]) == {}
    assert keys.INGRESS_DECIDED not in twin_labels(pod, BINDING)
    both = policy(ingress=[{}], egress=[{}])
    assert decided_labels(pod, [selection_of(both)]) == dict.fromkeys(DECIDED.values(), "true")


def test_nothing_is_synced_without_switch() -> None:
    with pytest.raises(NoTwin):
        desired_policy(policy(), tenant(), AROUND)


def test_long_namespaces_keep_their_label_value() -> None:
    name = "n" * 63
    spec = spec_of(policy(name))
    assert label_selector(spec["podSelector"]).matches(pod_labels(name))
    assert safe_label_value(name) == name
