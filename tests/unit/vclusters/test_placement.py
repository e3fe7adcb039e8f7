"""Placement: the host cluster with the fewest tenants among those that can take one."""

from collections.abc import Sequence
from typing import Any

import pytest

from tapestry.kube.objects import Object
from tapestry.vclusters.errors import ServiceError
from tapestry.vclusters.placement import choose_host, demand_of, ingress_url


def host(name: str, tenants: int = 0, reachable: str = "True", **status: Any) -> Object:
    conditions = [{"type": "Reachable", "status": reachable}]
    spec = {"secretRef": {"name": name, "namespace": "tapestry-hosts"}}
    status = {"conditions": conditions, "tenants": tenants, **status}
    return {"metadata": {"name": name}, "spec": spec, "status": status}


def placed(requested: str, hosts: list[Object], allowed: Sequence[str], **spec: Any) -> str:
    return choose_host({"hostCluster": requested, **spec}, hosts, allowed, ())


def test_fewest_tenants_win_then_the_name() -> None:
    assert placed("", [host("b", 2), host("c", 1), host("a", 1)], ()) == "a"


def test_requested_host_wins() -> None:
    assert placed("b", [host("a"), host("b", 9)], ()) == "b"


def test_no_hosts_at_all_are_no_error() -> None:
    assert placed("", [], ()) == ""


def test_only_hosts_of_the_project_are_used() -> None:
    assert placed("", [host("a"), host("b", 5)], ["b"]) == "b"


REJECTED = [
    ("", [host("a", reachable="False"), host("b", openNodes=0)], (), "a is not reachable; b has no open nodes"),
    ("", [host("a", nodes=0)], (), "a has no open nodes"),
    ("x", [host("a")], (), "there is no host cluster x for this project"),
    ("a", [host("a")], ["b"], "there is no host cluster a for this project"),
    ("a", [{**host("a"), "metadata": {"name": "a", "deletionTimestamp": "t"}}], (), "a is being deleted"),
    ("", [host("a")], ["b"], "the host clusters of the project do not exist"),
]


@pytest.mark.parametrize(("requested", "hosts", "allowed", "message"), REJECTED)
def test_rejection_says_why(requested: str, hosts: list[Object], allowed: list[str], message: str) -> None:
    with pytest.raises(ServiceError, match=message) as raised:
        placed(requested, hosts, allowed)
    assert raised.value.reason == "NO_HOST_CAPACITY"


INGRESS = {"enabled": True, "hostname": "blue.api.example.com"}
PASSTHROUGH, SNIPPET = (f"nginx.ingress.kubernetes.io/{name}" for name in ("ssl-passthrough", "server-snippet"))
OFFER = {
    "ingressClass": "nginx",
    "apiIngressDomain": "api.example.com",
    "apiAddress": "192.0.2.10",
    "apiIngressAnnotations": {PASSTHROUGH: "true"},
}


def offering(name: str, **offer: Any) -> Object:
    found = host(name)
    return {**found, "spec": {**found["spec"], **OFFER, **offer}}


def test_host_that_allows_the_ingress_wins() -> None:
    assert placed("", [host("a"), offering("b")], (), ingress=INGRESS) == "b"
    assert placed("", [host("a"), offering("b")], (), ingress={**INGRESS, "enabled": False}) == "a"


REJECTED_FIELDS = [
    ([], {}, "spec.ingress.enabled"),
    ([host("a")], {}, "spec.ingress.enabled"),
    ([offering("a", apiIngressAnnotations={SNIPPET: "x"})], {}, "spec.ingress.enabled"),
    ([offering("a")], {"hostname": "blue.other.example.com"}, "spec.ingress.hostname"),
    ([offering("a")], {"hostname": "x.blue.api.example.com"}, "spec.ingress.hostname"),
    ([offering("a")], {"hostname": "*.api.example.com"}, "spec.ingress.hostname"),
    ([offering("a")], {"hostname": "taken.api.example.com"}, "spec.ingress.hostname"),
    ([offering("a")], {"ingressClass": "internal"}, "spec.ingress.ingressClass"),
    ([offering("a")], {"annotations": {SNIPPET: "x"}}, "spec.ingress.annotations"),
    ([offering("a")], {"annotations": {PASSTHROUGH: "false"}}, "spec.ingress.annotations"),
]


@pytest.mark.parametrize(("hosts", "ingress", "field"), REJECTED_FIELDS)
def test_field_that_no_host_allows_is_rejected_by_name(hosts: list[Object], ingress: Object, field: str) -> None:
    taken = demand_of({"spec": {"ingress": {**INGRESS, "hostname": "taken.api.example.com"}}})
    with pytest.raises(ServiceError) as raised:
        choose_host({"ingress": {**INGRESS, **ingress}}, hosts, (), [taken])
    assert (raised.value.reason, raised.value.metadata["fields"]) == ("FIELD_UNSUPPORTED", field)


def test_annotation_of_the_host_is_allowed() -> None:
    ingress = {**INGRESS, "ingressClass": "nginx", "annotations": OFFER["apiIngressAnnotations"]}
    assert placed("", [offering("a")], (), ingress=ingress) == "a"


@pytest.mark.parametrize("account", ["tapestry-tenant", "other"])
@pytest.mark.parametrize("hosts", [[], [offering("a", serviceAccounts=["builder", "tapestry-tenant", "default"])]])
def test_account_that_no_host_allows_is_rejected_by_name(hosts: list[Object], account: str) -> None:
    with pytest.raises(ServiceError) as raised:
        placed("", hosts, (), serviceAccount={"name": account})
    assert raised.value.metadata["fields"] == "spec.serviceAccount.name"


def test_account_of_the_host_is_allowed() -> None:
    hosts = [host("a"), offering("b", serviceAccounts=["builder"])]
    assert placed("", hosts, (), serviceAccount={"name": "builder"}) == "b"
    assert placed("", hosts, (), serviceAccount={"name": "default"}) == "a"
    assert placed("", [], (), serviceAccount={"name": "default"}) == ""


def test_url_of_an_ingress_needs_it_to_be_enabled() -> None:
    assert ingress_url({"ingress": INGRESS}) == "https://blue.api.example.com"
    assert ingress_url({"ingress": {**INGRESS, "enabled": False}}) == ""
