"""Twins of Services, and what a host cluster reports about them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding, binding_of
from tapestry.apiserver.validation.services import validate_service_status_update
from tapestry.kube.objects import Object, annotations_of, labels_of, object_named
from tapestry.kube.patches import apply_merge_patch
from tapestry.syncer.translate.services import SERVICE_NAME
from tapestry.tenants.sync.service_translation import (
    api_addresses,
    desired_service,
    desired_slice,
    needs_recreate,
    reported_addresses,
    reported_ingress,
    reported_service,
    service_limitation,
    slice_limitation,
    with_allocated_values,
)
from tapestry.tenants.sync.twin_objects import NotSynced, NoTwin

HTTP = {"name": "http", "protocol": "TCP", "port": 80, "targetPort": "web"}


def binding(mode: str = "full", uid: str = "uid-green", **isolation: bool) -> Binding:
    spec = {
        "clusterID": "green",
        "virtualCluster": "plane-green",
        "hostCluster": "host",
        "mountNamespace": "tenant-green",
        "isolation": {"mode": mode, **isolation},
    }
    return binding_of({"metadata": {"name": "green", "uid": uid}, "spec": spec}, "plane-green")


def service(name: str = "shop", namespace: str = "team-a", **spec: Any) -> Object:
    given_spec = {"type": "ClusterIP", "selector": {"app": "shop"}, "ports": [HTTP], **spec}
    return {**object_named(name, namespace), "spec": given_spec}


def spec_of(obj: Object, given_binding: Binding | None = None) -> Object:
    """Return the spec of the twin without absent fields."""
    twin = desired_service(obj, given_binding or binding())
    return {key: value for key, value in twin["spec"].items() if value is not None}


# -- twins


def test_selector_always_includes_tenant_and_namespace() -> None:
    green = binding()
    for selector in ({"app": "shop"}, {keys.VIRTUAL_CLUSTER: "other"}, {keys.VIRTUAL_NAMESPACE: "kube-system"}):
        found = spec_of(service(selector=selector), green)["selector"]
        assert found.items() >= green.owner_labels().items()
        assert found[keys.VIRTUAL_NAMESPACE] == "team-a"
    assert "app" in spec_of(service())["selector"]


@pytest.mark.parametrize("selector", [None, {}])
def test_service_without_selector_selects_nothing(selector: Object | None) -> None:
    assert "selector" not in spec_of(service(selector=selector))


def test_labels_and_annotations_of_tenant_are_not_copied() -> None:
    labelled = service()
    labelled["metadata"] |= {
        "labels": {"app": "shop", "k8s-app": "kube-dns"},
        "annotations": {"service.beta.kubernetes.io/aws-load-balancer-type": "nlb", keys.EXTERNAL_NAME: "evil"},
    }
    twin = desired_service(labelled, binding())
    assert {each.split("/")[0] for each in labels_of(twin)} == {"tapestry.io"}
    assert annotations_of(twin) == {keys.VIRTUAL_NAME: "shop", keys.EXTERNAL_NAME: None}


def test_names_of_tenants_and_namespaces_differ() -> None:
    names = {
        desired_service(service(namespace=namespace), binding(uid=uid))["metadata"]["name"]
        for namespace in ("team-a", "team-b")
        for uid in ("uid-green", "uid-blue")
    }
    assert len(names) == 4


def test_behaviour_of_service_is_copied() -> None:
    given_spec = {
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10}},
        "internalTrafficPolicy": "Local",
        "publishNotReadyAddresses": True,
        "ipFamilyPolicy": "PreferDualStack",
        "trafficDistribution": "PreferClose",
    }
    found = spec_of(service(**given_spec))
    assert found.items() >= given_spec.items()
    assert found["ports"] == [HTTP]
    assert "clusterIP" not in found


def test_allocated_addresses_of_plane_are_not_requested() -> None:
    found = spec_of(service(clusterIP="10.0.0.9", clusterIPs=["10.0.0.9"], ipFamilies=["IPv4"]))
    assert not {"clusterIP", "clusterIPs", "ipFamilies"} & found.keys()


def test_headless_service_stays_headless() -> None:
    assert spec_of(service(clusterIP="None", clusterIPs=["None"]))["clusterIP"] == "None"


# -- access from outside


def test_node_ports_need_permission() -> None:
    ports = [{**HTTP, "nodePort": 30080}]
    closed = service(type="NodePort", ports=ports, externalTrafficPolicy="Cluster")
    found = spec_of(closed)
    assert found["type"] == "ClusterIP"
    assert "externalTrafficPolicy" not in found
    limitation = service_limitation(closed, binding())
    assert limitation is not None
    assert limitation.reason == "NodePortsNotAllowed"
    allowed = binding("lite")
    assert spec_of(closed, allowed)["type"] == "NodePort"
    assert spec_of(closed, allowed)["ports"] == [HTTP], "the host cluster chooses the number"
    assert service_limitation(closed, allowed) is None


def test_load_balancer_without_node_ports_allocates_none() -> None:
    balanced = service(type="LoadBalancer", externalTrafficPolicy="Local", allocateLoadBalancerNodePorts=True)
    found = spec_of(balanced)
    assert (found["type"], found["allocateLoadBalancerNodePorts"]) == ("LoadBalancer", False)
    assert found["externalTrafficPolicy"] == "Cluster"
    found = spec_of(balanced, binding("full", nodePorts=True))
    assert (found["allocateLoadBalancerNodePorts"], found["externalTrafficPolicy"]) == (True, "Local")


def test_owner_chooses_load_balancer() -> None:
    balanced = service(type="LoadBalancer", loadBalancerClass="example.com/other", loadBalancerIP="203.0.113.1")
    found = spec_of(balanced, binding("lite"))
    assert not {"loadBalancerClass", "loadBalancerIP"} & found.keys()
    limitation = service_limitation(balanced, binding("lite"))
    assert limitation is not None
    assert limitation.reason == "LoadBalancerClassIgnored"


def test_external_addresses_need_permission() -> None:
    external = service(externalIPs=["198.51.100.7"], externalTrafficPolicy="Cluster")
    assert "externalIPs" not in spec_of(external)
    limitation = service_limitation(external, binding())
    assert limitation is not None
    assert limitation.reason == "ExternalIPsNotAllowed"
    assert spec_of(external, binding(externalIps=True))["externalIPs"] == ["198.51.100.7"]


def test_external_name_needs_permission() -> None:
    named = service(type="ExternalName", externalName="db.example.com", selector=None, ports=[])
    with pytest.raises(NotSynced):
        desired_service(named, binding())
    twin = desired_service(named, binding("lite"))
    assert twin["spec"] == {"type": "ClusterIP", "clusterIP": "None", "selector": None, "ports": None}
    assert annotations_of(twin)[keys.EXTERNAL_NAME] == "db.example.com"


def test_service_of_plane_itself_has_no_twin() -> None:
    with pytest.raises(NoTwin) as raised:
        desired_service(service("kubernetes", "default"), binding())
    assert not isinstance(raised.value, NotSynced)
    desired_service(service("kubernetes", "other"), binding())


# -- values of the host cluster


def test_node_ports_of_twin_stay() -> None:
    desired = desired_service(service(type="NodePort"), binding("lite"))
    existing = apply_merge_patch(desired, {"spec": {"ports": [{**HTTP, "nodePort": 31000}]}})
    assert with_allocated_values(desired, existing)["spec"]["ports"] == [{**HTTP, "nodePort": 31000}]
    closed = desired_service(service(type="NodePort"), binding())
    assert with_allocated_values(closed, existing)["spec"]["ports"] == [HTTP]


def test_former_labels_leave_selector() -> None:
    existing = desired_service(service(selector={"app": "shop", "tier": "old"}), binding())
    desired = with_allocated_values(desired_service(service(selector={"app": "new"}), binding()), existing)
    assert (
        apply_merge_patch(existing, desired)["spec"]["selector"]
        == spec_of(service(selector={"app": "new"}))["selector"]
    )


def test_headless_twin_must_be_recreated() -> None:
    plain, headless = desired_service(service(), binding()), desired_service(service(clusterIP="None"), binding())
    assert needs_recreate(plain, headless)
    assert not needs_recreate(plain, plain)


def test_addresses_of_host_are_reported() -> None:
    twin = {"spec": {"clusterIP": "10.1.1.1", "clusterIPs": ["10.1.1.1", "fd00::1"], "ipFamilyPolicy": "SingleStack"}}
    assert reported_addresses(twin) == {
        "clusterIP": "10.1.1.1",
        "clusterIPs": ["10.1.1.1", "fd00::1"],
        "ipFamilies": ["IPv4", "IPv6"],
        "ipFamilyPolicy": "PreferDualStack",
    }


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["169.254.169.254"], ["None"], ["10.0.0.1", "10.0.0.2"], [7], "10.0.0.1", None]
)
def test_misleading_addresses_are_removed(addresses: object) -> None:
    assert reported_addresses({"spec": {"clusterIPs": addresses}}) == {"clusterIP": None, "clusterIPs": None}


def test_service_without_twin_loses_its_addresses() -> None:
    fields = reported_service(service(type="LoadBalancer"), None)
    assert fields["spec"] == {"clusterIP": None, "clusterIPs": None}
    assert fields["status"] == {"loadBalancer": {"ingress": None}}
    assert reported_service(service(clusterIP="None"), None) == {}


def test_numbers_of_node_ports_are_reported() -> None:
    nodes = service(type="NodePort", ports=[{**HTTP, "nodePort": 30001}])
    twin = desired_service(nodes, binding("lite"))
    twin["spec"]["ports"] = [{**HTTP, "nodePort": 31000}]
    assert reported_service(nodes, twin)["spec"]["ports"] == [{**HTTP, "nodePort": 31000}]
    twin["spec"]["ports"] = [{**HTTP, "nodePort": "31000"}]
    assert reported_service(nodes, twin)["spec"]["ports"] == [HTTP]


def test_addresses_of_load_balancer_are_sanitized() -> None:
    entries = [
        {"ip": "203.0.113.1", "ports": [{"port": 80, "protocol": "TCP", "error": "x"}]},
        {"hostname": "lb.example.com"},
        {"ip": "127.0.0.1"},
        {"ip": "203.0.113.2", "hostname": "not a name"},
        {"hostname": "10.0.0.1"},
        "text",
    ]
    twin = {"spec": {}, "status": {"loadBalancer": {"ingress": entries}}}
    assert reported_ingress(twin) == [
        {"ip": "203.0.113.1", "ipMode": "VIP", "ports": [{"port": 80, "protocol": "TCP"}]},
        {"hostname": "lb.example.com"},
        {"ip": "203.0.113.2", "ipMode": "VIP"},
    ]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["10.0.0.1", "fd00::1", "None"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["ip", "hostname", "ipMode", "ports", "port", "protocol", "ingress", "nodePort"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(ANYTHING, ANYTHING, ANYTHING, ANYTHING)
def test_any_twin_gives_a_valid_status(ingress: object, addresses: object, policy: object, ports: object) -> None:
    twin = {
        "spec": {"clusterIPs": addresses, "ipFamilyPolicy": policy, "ports": ports},
        "status": {"loadBalancer": {"ingress": ingress}},
    }
    balanced = service(type="LoadBalancer")
    result = apply_merge_patch(balanced, reported_service(balanced, twin))
    assert not list(validate_service_status_update(balanced, result))


def test_address_of_plane_is_that_of_host() -> None:
    assert api_addresses("10.1.0.5")["spec"]["clusterIPs"] == ["10.1.0.5"]
    assert api_addresses("") == {}


# -- slices


def slice_with(*addresses: str, **fields: Any) -> Object:
    endpoints = [{"addresses": [each], "conditions": {"ready": True}, "nodeName": "n1"} for each in addresses]
    labels = {SERVICE_NAME: "shop", "other": "label"}
    metadata = {"name": "shop-1", "namespace": "team-a", "labels": labels}
    return {"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints, "ports": [{"port": 80}], **fields}


OWN = frozenset({"10.2.0.1", "10.2.0.2"})


def test_slice_has_only_addresses_of_own_pods() -> None:
    bare, given_slice = service(selector=None), slice_with("10.2.0.1", "10.9.9.9", "169.254.169.254")
    twin = desired_slice(given_slice, bare, OWN, binding())
    assert twin["endpoints"] == [{"addresses": ["10.2.0.1"], "conditions": {"ready": True}}]
    assert labels_of(twin)[SERVICE_NAME] == desired_service(bare, binding())["metadata"]["name"]
    assert "other" not in labels_of(twin)
    limitation = slice_limitation(given_slice, OWN)
    assert limitation is not None
    assert "10.9.9.9" in str(limitation)


def test_slice_with_only_foreign_addresses_is_reported() -> None:
    with pytest.raises(NotSynced, match=r"10\.9\.9\.9"):
        desired_slice(slice_with("10.9.9.9"), service(selector=None), OWN, binding())


@pytest.mark.parametrize(
    ("slice", "owner"),
    [
        (slice_with("10.2.0.1"), None),
        (slice_with("10.2.0.1"), service()),
        (slice_with("10.2.0.1"), service("kubernetes", "default", selector=None)),
        (slice_with("10.2.0.1"), service(type="ExternalName", selector=None)),
        (slice_with("example.com", addressType="FQDN"), service(selector=None)),
    ],
)
def test_other_slices_have_no_twin(slice: Object, owner: Object | None) -> None:
    with pytest.raises(NoTwin) as raised:
        desired_slice(slice, owner, OWN, binding())
    assert not isinstance(raised.value, NotSynced)
