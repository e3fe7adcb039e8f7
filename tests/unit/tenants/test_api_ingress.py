"""Ingresses to the APIs of planes: what a HostCluster allows in them."""

import pytest

from tapestry.apis.field_types import SecretReference
from tapestry.apis.hostclusters import HostClusterSpec
from tapestry.tenants.api_ingress import api_ingress_faults

ALLOWED = {"nginx.ingress.kubernetes.io/ssl-passthrough": "true"}


def host(annotations: dict[str, str] | None = None, domain: str = "api.example.com") -> HostClusterSpec:
    return HostClusterSpec(
        SecretReference("east", "tapestry-hosts"),
        ingress_class="nginx",
        api_address="192.0.2.10",
        api_ingress_domain=domain,
        api_ingress_annotations=ALLOWED if annotations is None else annotations,
    )


def test_name_below_the_domain_is_allowed() -> None:
    assert [*api_ingress_faults(host(), "blue.api.example.com", "nginx", ALLOWED)] == []


@pytest.mark.parametrize(
    "name",
    ["", "api.example.com", ".api.example.com", "a.b.api.example.com", "BLUE.api.example.com", "a_b.api.example.com"],
)
def test_other_names_are_not_allowed(name: str) -> None:
    assert [each.field for each in api_ingress_faults(host(), name)] == ["hostname"]


@pytest.mark.parametrize(
    "annotations",
    [
        {"nginx.ingress.kubernetes.io/configuration-snippet": "true"},
        {"nginx.ingress.kubernetes.io/backend-protocol": "HTTPS\n"},
        {"nginx.ingress.kubernetes.io/backend-protocol": "a; b"},
    ],
)
def test_host_cannot_set_configuration_of_controllers(annotations: dict[str, str]) -> None:
    assert [each.field for each in api_ingress_faults(host(annotations), "blue.api.example.com")] == ["enabled"]


def test_host_without_domain_has_none() -> None:
    assert [each.field for each in api_ingress_faults(host(domain=""), "blue.")] == ["enabled"]
