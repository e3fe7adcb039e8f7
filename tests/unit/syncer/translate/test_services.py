"""Twins of Services and EndpointSlices, and host aliases."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding, ClusterBindingSpec
from tapestry.apis.field_types import SecretReference
from tapestry.kube.names import dns_1035_label_error
from tapestry.kube.objects import Object, annotations_of, labels_of, name_of
from tapestry.syncer.translate.metadata import source_key
from tapestry.syncer.translate.pods import HostAlias
from tapestry.syncer.translate.sanitize import is_routable
from tapestry.syncer.translate.services import (
    SERVICE_NAME,
    SLICE_MANAGER,
    host_aliases,
    is_syncable,
    service_key,
    service_needs_recreate,
    twin_service,
    twin_service_name,
    twin_slice,
)

SPEC = ClusterBindingSpec(cluster_id="east", secret_ref=SecretReference("east", "tapestry-system"), mount_namespace="m")
EAST, WEST = Binding("east", "uid-east", "cluster", SPEC), Binding("west", "uid-west", "cluster", SPEC)
HTTP = {"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}


def new_service(name: str = "shop", namespace: str = "team-a", **spec: Any) -> Object:
    metadata = {"name": name, "namespace": namespace, "uid": "u"}
    return {"metadata": metadata, "spec": {"type": "ClusterIP", "clusterIP": "10.0.0.9", "ports": [HTTP], **spec}}


def new_slice(*addresses: str, service: str = "shop", type: str = "IPv4", **endpoint: Any) -> Object:
    return {
        "metadata": {"name": f"{service}-x7", "namespace": "team-a", "labels": {SERVICE_NAME: service}},
        "addressType": type,
        "endpoints": [{"addresses": [each], "conditions": {"ready": True}, **endpoint} for each in addresses],
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    }


# -- Services


def test_twin_has_ports_but_no_selector_or_ingress() -> None:
    service = new_service(
        type="LoadBalancer",
        selector={"app": "shop"},
        ports=[{**HTTP, "nodePort": 30080}],
        externalIPs=["192.0.2.1"],
        externalTrafficPolicy="Local",
        internalTrafficPolicy="Local",
        loadBalancerIP="192.0.2.2",
        loadBalancerClass="c",
        loadBalancerSourceRanges=["0.0.0.0/0"],
        healthCheckNodePort=30001,
        allocateLoadBalancerNodePorts=True,
        sessionAffinity="ClientIP",
    )
    assert twin_service(service, EAST)["spec"] == {
        "type": "ClusterIP",
        "selector": None,
        "ports": [HTTP],
        "ipFamilyPolicy": "PreferDualStack",
        "sessionAffinity": "ClientIP",
    }


def test_headless_service_stays_headless() -> None:
    assert twin_service(new_service(clusterIP="None"), EAST)["spec"]["clusterIP"] == "None"
    assert "clusterIP" not in twin_service(new_service(), EAST)["spec"]


def test_external_name_is_not_synced() -> None:
    assert not is_syncable(new_service(type="ExternalName", externalName="example.com"))
    assert all(is_syncable(new_service(type=type)) for type in ("ClusterIP", "NodePort", "LoadBalancer"))


def test_twin_is_provably_ours_and_names_its_source() -> None:
    twin = twin_service(new_service(), EAST)
    assert EAST.owns(twin)
    assert source_key(twin) == ["team-a/shop"]
    assert twin["metadata"]["namespace"] == "m"


def test_tenant_metadata_is_not_copied() -> None:
    forged = {
        "labels": {keys.CLUSTER_BINDING_UID: "uid-west", "app": "shop", SERVICE_NAME: "the-owners"},
        "annotations": {keys.VIRTUAL_NAME: "other", "external-dns.alpha.kubernetes.io/hostname": "bank.example"},
    }
    service, slice = new_service(), new_slice("10.1.0.1")
    service["metadata"] |= forged
    slice["metadata"] |= forged
    twins = [twin_service(service, EAST), twin_slice(slice, service, EAST)]
    assert [labels_of(twin).get(SERVICE_NAME) for twin in twins if twin] == [None, twin_service_name(service, EAST)]
    for twin in twins:
        assert twin is not None
        assert EAST.owns(twin)
        assert annotations_of(twin) == {keys.VIRTUAL_NAME: "shop"}
        known = {*EAST.owner_labels(), keys.CLUSTER_BINDING, keys.VIRTUAL_NAMESPACE, SERVICE_NAME, SLICE_MANAGER}
        assert labels_of(twin).keys() <= known


NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,60}[a-z0-9])?", fullmatch=True)


@given(st.sets(st.tuples(NAMES, NAMES), min_size=2, max_size=5))
def test_every_twin_has_a_unique_valid_name(services: set[tuple[str, str]]) -> None:
    names = [
        twin_service_name(new_service(name, namespace), binding)
        for namespace, name in services
        for binding in (EAST, WEST)
    ]
    assert len(set(names)) == 2 * len(services)
    assert [dns_1035_label_error(name) for name in names] == [None] * len(names)


# -- slices


def test_slice_has_no_node_zone_or_pod() -> None:
    slice = new_slice(
        "10.1.0.1",
        nodeName="vnode-east-n1",
        zone="a",
        hints={"forZones": [{"name": "a"}]},
        targetRef={"kind": "Pod", "name": "shop-1"},
        deprecatedTopology={"x": "y"},
        hostname="shop-1",
    )
    twin = twin_slice(slice, new_service(), EAST)
    assert twin is not None
    assert twin["addressType"] == "IPv4"
    assert twin["endpoints"] == [{"addresses": ["10.1.0.1"], "conditions": {"ready": True}, "hostname": "shop-1"}]
    assert twin["ports"] == slice["ports"]
    assert labels_of(twin)[SERVICE_NAME] == twin_service_name(new_service(), EAST)
    assert labels_of(twin)[SLICE_MANAGER] == keys.TAPESTRY
    assert source_key(twin) == ["team-a/shop"]


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "169.254.169.254", "224.0.0.1", "0.0.0.0", "::1", "fe80::1", "::ffff:127.0.0.1", "metadata", ""],
)
def test_safety_rule_9_unroutable_address_is_dropped(address: str) -> None:
    twin = twin_slice(new_slice(address, "10.1.0.1"), new_service(), EAST)
    assert twin is not None
    assert [each["addresses"] for each in twin["endpoints"]] == [["10.1.0.1"]]


@given(st.lists(st.one_of(st.ip_addresses().map(str), st.text(max_size=8)), max_size=6))
def test_any_copied_address_is_routable(addresses: list[str]) -> None:
    twin = twin_slice(new_slice(*addresses), new_service(), EAST)
    assert twin is not None
    found = [address for endpoint in twin["endpoints"] or () for address in endpoint["addresses"]]
    assert found == [address for address in addresses if is_routable(address)]
    assert all(endpoint["addresses"] for endpoint in twin["endpoints"] or ())


def test_empty_list_is_null() -> None:
    twin = twin_slice({**new_slice(), "endpoints": None, "ports": None}, new_service(), EAST)
    assert twin is not None
    assert (twin["endpoints"], twin["ports"]) == (None, None)
    assert twin_service(new_service(ports=[]), EAST)["spec"]["ports"] is None


def test_slice_of_host_names_is_not_synced() -> None:
    assert twin_slice(new_slice("example.com", type="FQDN"), new_service(), EAST) is None


def test_slice_belongs_to_the_labelled_service() -> None:
    assert service_key(new_slice()) == ["team-a/shop"]
    assert service_key({"metadata": {"name": "x", "namespace": "team-a"}}) == []


def test_immutable_difference_needs_recreation() -> None:
    plain, headless = twin_service(new_service(), EAST), twin_service(new_service(clusterIP="None"), EAST)
    given = {**plain, "spec": {**plain["spec"], "clusterIP": "10.0.0.7"}}
    assert service_needs_recreate(given, headless)
    assert not service_needs_recreate(given, plain)
    assert service_needs_recreate(new_slice(type="IPv4"), new_slice(type="IPv6"))
    assert not service_needs_recreate(new_slice("10.1.0.1"), new_slice())


# -- aliases


def test_service_has_all_names_in_its_namespace() -> None:
    twin = {"spec": {"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"]}}
    names = ("shop", "shop.team-a", "shop.team-a.svc", "shop.team-a.svc.cluster.local")
    assert host_aliases(twin, new_service(), "team-a") == [HostAlias("10.96.0.7", names)]
    assert host_aliases({"spec": {"clusterIP": "10.96.0.7"}}, new_service(), "team-a") == [
        HostAlias("10.96.0.7", names)
    ]


def test_other_namespaces_use_qualified_names() -> None:
    twin = {"spec": {"clusterIP": "10.96.0.7"}}
    names = ("shop.team-a", "shop.team-a.svc", "shop.team-a.svc.cluster.local")
    assert host_aliases(twin, new_service(), "team-b") == [HostAlias("10.96.0.7", names)]


@pytest.mark.parametrize("namespace", ["com", "io", "internal", "local"])
def test_alias_is_never_an_external_host_name(namespace: str) -> None:
    [alias] = host_aliases({"spec": {"clusterIP": "10.96.0.7"}}, new_service("github", namespace), "team-a")
    assert alias.names == (f"github.{namespace}.svc", f"github.{namespace}.svc.cluster.local")


def test_no_address_means_no_alias() -> None:
    assert host_aliases({"spec": {"clusterIP": "None", "clusterIPs": ["None"]}}, new_service(), "team-a") == []
    assert host_aliases({"spec": {}}, new_service(), "team-a") == []


@pytest.mark.parametrize("address", ["", "None", "here", "10.0.0.1/8", 5, None, {}])
def test_invalid_address_is_no_alias(address: Any) -> None:
    assert host_aliases({"spec": {"clusterIPs": [address]}}, new_service(ipFamilies=["IPv4"]), "team-a") == []


def test_aliases_are_limited_to_service_families() -> None:
    twin = {"spec": {"clusterIPs": ["10.96.0.7", "fd00::7"]}}
    found = {
        families: [alias.ip for alias in host_aliases(twin, new_service(ipFamilies=list(families)), "team-a")]
        for families in (("IPv4",), ("IPv6",), ("IPv4", "IPv6"))
    }
    assert found == {("IPv4",): ["10.96.0.7"], ("IPv6",): ["fd00::7"], ("IPv4", "IPv6"): ["10.96.0.7", "fd00::7"]}


def test_slice_names_differ_between_bindings() -> None:
    twins = [twin_slice(new_slice("10.1.0.1"), new_service(), binding) for binding in (EAST, WEST)]
    assert len({name_of(twin) for twin in twins if twin is not None}) == 2
