"""Twins of Ingresses: no tenant takes over requests to another tenant or to the owner."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tapestry.apis.clusterbindings import Binding, TenantSync
from tapestry.apis.names import physical_name, physical_service_name
from tapestry.kube.objects import Object, annotations_of, object_named
from tapestry.tenants.sync.ingress_translation import desired_ingress, named_certificates, reported_status
from tapestry.tenants.sync.twin_objects import NotSynced, NoTwin
from tapestry.tenants.tenant_binding import ingress_suffix

from ..effective_bindings import HOST as OFFER
from ..effective_bindings import PLANE, tenant

BINDING = tenant(sync=TenantSync(ingresses=True))
HOST = f"shop.{PLANE}.apps.example.com"


def path(path: str | None = "/", **backend: Any) -> Object:
    target = backend or {"service": {"name": "shop", "port": {"number": 80}}}
    return {"pathType": "Prefix", "backend": target, **({"path": path} if path is not None else {})}


def rule(host: str | None = HOST, *paths: Object) -> Object:
    return {"http": {"paths": list(paths or [path()])}, **({"host": host} if host is not None else {})}


def ingress(*rules: Object, annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    obj = object_named("shop", "team-a")
    obj["metadata"]["annotations"] = annotations or {}
    return {**obj, "spec": {"rules": list(rules or [rule()]), **spec}}


def spec_of(obj: Object, binding: Binding = BINDING) -> Object:
    spec: Object = desired_ingress(obj, binding)["spec"]
    return spec


def reason_of(obj: Object, binding: Binding = BINDING) -> str:
    with pytest.raises(NotSynced) as caught:
        desired_ingress(obj, binding)
    return caught.value.reason


def test_twin_leads_to_twins_of_services_and_secrets() -> None:
    spec = spec_of(ingress(tls=[{"hosts": [HOST], "secretName": "certificate"}]))
    ids = BINDING.virtual_cluster, BINDING.uid, "team-a"
    backend = spec["rules"][0]["http"]["paths"][0]["backend"]
    assert backend == {"service": {"name": physical_service_name(*ids, "shop"), "port": {"number": 80}}}
    assert spec["tls"] == [{"hosts": [HOST], "secretName": physical_name(*ids, "certificate")}]
    assert spec["ingressClassName"] == "public"


def test_no_settings_of_controllers_are_copied() -> None:
    twin = desired_ingress(
        ingress(annotations={"nginx.ingress.kubernetes.io/server-alias": "shop.example.com"}), BINDING
    )
    assert all(key.startswith("tapestry.io/") for key in annotations_of(twin))


@pytest.mark.parametrize(
    "host",
    [
        *(None, "", "*", "shop.example.com", "*.example.com", "apps.example.com", "*.apps.example.com"),
        *("shop.other.apps.example.com", f"{PLANE}.apps.example.com", f"x{PLANE}.apps.example.com"),
        *(f"{HOST}.example.com", f"{HOST}.", f"{PLANE}.apps.example.com.shop.example.com"),
    ],
)
def test_hosts_of_others_are_refused(host: str | None) -> None:
    assert reason_of(ingress(rule(), rule(host))) == "HostNotAllowed"
    if host:
        assert reason_of(ingress(tls=[{"hosts": [HOST, host]}])) == "HostNotAllowed"


@given(
    st.text(alphabet="abc-.*", max_size=30), st.sampled_from(["", PLANE, "other", f"other.{PLANE}", f"{PLANE}.other"])
)
def test_every_host_of_a_twin_is_below_the_tenant(prefix: str, id: str) -> None:
    host = f"{prefix}{id}.apps.example.com"
    try:
        spec = spec_of(ingress(rule(host)))
    except NoTwin:
        return
    labels = spec["rules"][0]["host"].split(".")
    assert labels[-4:] == [PLANE, "apps", "example", "com"]


def test_own_wildcard_is_allowed() -> None:
    assert spec_of(ingress(rule(f"*{ingress_suffix(BINDING)}")))["rules"][0]["host"].startswith("*.")


def test_certificates_without_hosts_are_for_those_of_rules() -> None:
    assert spec_of(ingress(tls=[{"secretName": "a"}]))["tls"][0]["hosts"] == [HOST]


@pytest.mark.parametrize("text", ["/a{}", "/a;b", '/"', "/a b", "/a\nb", "/$uri", "/a#", "/(.*)", "/\\", "/ä"])
def test_paths_that_mean_something_to_a_controller_are_refused(text: str) -> None:
    assert reason_of(ingress(rule(HOST, path(text)))) == "PathNotAllowed"


@pytest.mark.parametrize("text", [None, "", "/", "/a-b/c_d.html", "/%20/~x:1"])
def test_plain_paths_are_synced(text: str | None) -> None:
    [found] = spec_of(ingress(rule(HOST, path(text))))["rules"][0]["http"]["paths"]
    assert found.get("path") == text


def test_many_paths_are_refused() -> None:
    assert len(spec_of(ingress(*[rule()] * 100))["rules"]) == 100
    assert reason_of(ingress(*[rule()] * 101)) == "TooManyPaths"
    assert reason_of(ingress(rule(HOST, *[path()] * 101))) == "TooManyPaths"
    assert reason_of(ingress(tls=[{"hosts": [HOST]}] * 101)) == "TooManyPaths"


def test_default_backends_and_other_backends_are_refused() -> None:
    backend = {"service": {"name": "a", "port": {"number": 1}}}
    assert reason_of(ingress(defaultBackend=backend)) == "DefaultBackendNotAllowed"
    assert reason_of(ingress(rule(HOST, path("/", resource={"kind": "A", "name": "b"})))) == "BackendNotAllowed"


def test_other_classes_are_left_to_controllers_of_the_plane() -> None:
    assert reason_of(ingress(ingressClassName="own")) == "ClassNotOffered"
    assert reason_of(ingress(annotations={"kubernetes.io/ingress.class": "own"})) == "ClassNotOffered"
    assert reported_status(ingress(ingressClassName="own"), None, BINDING) == {}


def test_nothing_is_synced_without_switch_or_offer() -> None:
    with pytest.raises(NoTwin):
        desired_ingress(ingress(), tenant())
    assert (
        reason_of(ingress(), tenant(sync=TenantSync(ingresses=True), host=structs.replace(OFFER, ingress_domain="")))
        == "IngressesNotOffered"
    )
    assert ingress_suffix(tenant()) == ""


def test_reported_addresses_are_sanitized() -> None:
    addresses = [{"ip": "203.0.113.9"}, {"ip": "127.0.0.1"}, {"hostname": "lb.example.com"}, "x", {"hostname": "-"}]
    found = reported_status(ingress(), {"status": {"loadBalancer": {"ingress": addresses}}}, BINDING)
    assert found["status"]["loadBalancer"]["ingress"] == [{"ip": "203.0.113.9"}, {"hostname": "lb.example.com"}]
    assert reported_status(ingress(), None, BINDING)["status"]["loadBalancer"]["ingress"] is None


def test_certificates_are_named_by_key() -> None:
    entries = [{"secretName": "a"}, {"hosts": [HOST]}, {"secretName": "a"}]
    assert named_certificates(ingress(tls=entries)) == ["secrets/team-a/a"]
