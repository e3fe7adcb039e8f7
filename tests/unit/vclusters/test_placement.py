"""Placement: the host cluster with the fewest tenants among those that can take one."""

from collections.abc import Sequence
from typing import Any

import pytest

from tapestry.kube.objects import Object
from tapestry.vclusters.errors import ServiceError
from tapestry.vclusters.placement import Demand, check_growth, choose_host, demand_of, ingress_url, loads_of


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
    taken = demand_of({"metadata": {}, "spec": {"ingress": {**INGRESS, "hostname": "taken.api.example.com"}}})
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


def taking(host: str = "", created: str = "1", requested: str = "", **resources: str) -> Demand:
    """Return the demand of a virtual cluster; without a host cluster, it waits to be placed."""
    spec = {"resources": resources, **({"hostCluster": requested} if requested else {})}
    status = {"hostCluster": host, "plane": "p"} if host else {}
    return demand_of({"metadata": {"creationTimestamp": created, "uid": created}, "spec": spec, "status": status})


def sized(name: str, cpu: str = "4", memory: str = "8Gi", **status: Any) -> Object:
    return host(name, capacity={"cpu": cpu, "memory": memory}, **status)


def chosen(hosts: list[Object], others: list[Demand], **resources: str) -> str:
    return choose_host({"resources": resources}, hosts, (), others)


def test_host_with_the_smallest_requested_share_wins() -> None:
    hosts = [sized("a"), sized("b", cpu="16")]
    assert chosen(hosts, [], cpuRequest="1") == "a"
    assert chosen(hosts, [taking("a", cpuRequest="1"), taking("b", cpuRequest="2")], cpuRequest="1") == "b"
    assert chosen(hosts, [taking("a", cpuRequest="1"), taking("b", memoryRequest="4Gi")], cpuRequest="1") == "a"
    assert chosen(hosts, [taking("a")], cpuRequest="1") == "b"


def test_limit_counts_without_a_request() -> None:
    hosts = [sized("a", cpu="2")]
    assert chosen(hosts, [taking("a", cpuRequest="1", cpuLimit="9")], cpuRequest="1", cpuLimit="9") == "a"
    with pytest.raises(ServiceError, match="a has no capacity for cpu 1500m"):
        chosen(hosts, [taking("a", cpuRequest="1", cpuLimit="9")], cpuLimit="1500m")


def test_host_without_capacity_is_passed_over() -> None:
    hosts, others = [sized("a"), sized("b", cpu="3", tenants=9)], [taking("a", cpuRequest="1", memoryRequest="5Gi")]
    assert chosen(hosts, others, memoryRequest="4Gi") == "b"
    message = "a has no capacity for cpu 4 and memory 9Gi; b has no capacity for cpu 4 and memory 9Gi"
    with pytest.raises(ServiceError, match=message):
        chosen(hosts, others, cpuRequest="4", memoryRequest="9Gi")


def test_capacity_does_not_matter_without_request_or_report() -> None:
    assert chosen([sized("a", cpu="0", memory="0")], []) == "a"
    assert chosen([host("a")], [taking("a", cpuRequest="99")], cpuRequest="99") == "a"


def test_waiting_clusters_count_where_they_will_be() -> None:
    hosts = {"a": sized("a"), "b": sized("b")}
    waiting = [taking(created=str(number), cpuRequest="2") for number in range(3)]
    loads = loads_of(hosts, [*waiting, taking("b", cpuRequest="1"), taking(created="9", requested="b")])
    assert {name: (load.number, str(load.amounts["cpu"])) for name, load in loads.items()} == {
        "a": (2, "4"),
        "b": (3, "3"),
    }


def test_failed_clusters_and_those_without_host_count_nowhere() -> None:
    metadata, spec = {"creationTimestamp": "1", "uid": "u"}, {"hostCluster": "a", "resources": {"cpuRequest": "1"}}
    for status in ({"phase": "Error"}, {"phase": "Running", "plane": "p"}):
        demand = demand_of({"metadata": metadata, "spec": spec, "status": status})
        assert loads_of({"a": sized("a")}, [demand])["a"].number == 0


def test_only_growth_needs_capacity() -> None:
    loads = loads_of({"a": sized("a", cpu="1")}, [taking("a", cpuRequest="2")])
    before, less, more = ({"resources": {"cpuRequest": each}} for each in ("2", "1", "3"))
    check_growth(before, less, sized("a", cpu="1"), loads)
    with pytest.raises(ServiceError, match="a has no capacity for cpu 3"):
        check_growth(before, more, sized("a", cpu="1"), loads)
