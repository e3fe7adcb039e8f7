"""Fields of twins that leave the choice of their node to the host cluster: candidates, affinity and spread."""

from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding, binding_of
from tapestry.kube.objects import Object
from tapestry.kube.selectors import label_selector
from tapestry.syncer.translate.host_placement import (
    PREFERRED,
    REQUIRED,
    HostPlacement,
    host_placement,
    node_matcher,
    placement_errors,
    placement_fields,
    unique_hostnames,
)
from tapestry.syncer.translate.metadata import twin_labels
from tapestry.syncer.translate.nodes import HOSTNAME

ZONE = "topology.kubernetes.io/zone"
PLACEMENT = HostPlacement(("n1", "n2"))


def new_binding(plane: str = "plane-a", uid: str = "uid-of-a") -> Binding:
    spec = {"clusterID": "c", "virtualCluster": plane, "hostCluster": "host", "mountNamespace": "tenant"}
    return binding_of({"metadata": {"name": "t", "uid": uid}, "spec": spec}, plane, manager_namespace="")


TENANT, OTHER = new_binding(), new_binding("plane-b", "uid-of-b")


def new_pod(namespace: str = "default", labels: Object | None = None, **spec: Any) -> Object:
    metadata = {"name": "p", "namespace": namespace, "uid": "u", "labels": labels or {}}
    return {"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


def new_node(name: str, *, hostname: str | None = None, taints: tuple[Object, ...] = (), **labels: str) -> Object:
    found = {HOSTNAME: hostname if hostname is not None else name, **labels}
    return {"metadata": {"name": name, "labels": found}, "spec": {"taints": list(taints)}}


def required(*expressions: Object, **term: Any) -> Object:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": list(expressions), **term}]}}}


def expression(key: str, operator: str, *values: str) -> Object:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


# -- candidates


def test_placement_has_hostnames_and_taints_once() -> None:
    taint, other = {"key": "gpu", "effect": "NoSchedule"}, {"key": "gpu", "value": "x", "effect": "NoSchedule"}
    nodes = [new_node("n2", taints=(taint, other)), new_node("n1", taints=(taint,)), new_node("n3", hostname="a.x")]
    placement = host_placement(nodes)
    assert placement.hostnames == ("a.x", "n1", "n2")
    assert placement.taints == (taint, other)
    assert placement.digest == host_placement(reversed(nodes)).digest
    assert placement.digest != host_placement(nodes[:2]).digest


def test_shared_or_missing_hostname_identifies_no_node() -> None:
    nodes = [new_node("a", hostname="same"), new_node("b", hostname="same"), new_node("c", hostname=""), new_node("d")]
    assert unique_hostnames([*nodes, {"metadata": {"name": "e"}}]) == {"d"}


NODES = {
    "a": new_node("a", **{ZONE: "east", "cores": "8", "node-role.kubernetes.io/db": ""}),
    "b": new_node("b", **{ZONE: "west", "cores": "64", f"{keys.PREFIX}secret": "x"}),
}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"nodeSelector": {ZONE: "east"}}, ["a"]),
        ({"nodeSelector": {ZONE: "east", "cores": "64"}}, []),
        ({"nodeSelector": {"missing": ""}}, []),
        ({"nodeSelector": {HOSTNAME: "b"}}, ["b"]),
        ({"affinity": required(expression(ZONE, "In", "west", "north"))}, ["b"]),
        ({"affinity": required(expression(ZONE, "NotIn", "west"))}, ["a"]),
        ({"affinity": required(expression("cores", "Gt", "16"))}, ["b"]),
        ({"affinity": required(expression("cores", "Lt", "16"), expression(ZONE, "Exists"))}, ["a"]),
        ({"affinity": required(matchFields=[expression("metadata.name", "In", "b")])}, ["b"]),
        ({"affinity": required(expression(ZONE, "In", "east")), "nodeSelector": {"cores": "64"}}, []),
        ({"affinity": required()}, []),
        ({"affinity": required(expression("cores", "DoesNotExist"))}, []),
        # What the tenant does not see on the Nodes of its plane, it cannot select.
        ({"nodeSelector": {"node-role.kubernetes.io/db": ""}}, []),
        ({"nodeSelector": {f"{keys.PREFIX}secret": "x"}}, []),
        ({"affinity": required(expression("node-role.kubernetes.io/db", "DoesNotExist"))}, ["a", "b"]),
        # Values that an API server would reject match nothing.
        ({"affinity": required(expression(ZONE, "Near", "east"))}, []),
        ({"affinity": required(expression(ZONE, "In"))}, []),
        ({"affinity": required(expression("cores", "Gt", "many"))}, []),
        ({"affinity": required(expression("", "Exists"))}, []),
        ({"affinity": required(surprise=True)}, []),
    ],
)
def test_required_nodes_are_those_that_tenant_sees(spec: Object, expected: list[str]) -> None:
    matches = node_matcher(new_pod(**spec))
    assert matches is not None
    assert [name for name, node in NODES.items() if matches(node)] == expected


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"nodeSelector": {}},
        {"affinity": {}},
        {"affinity": None},
        {"affinity": {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": {}}]}}},
    ],
)
def test_pod_without_requirement_has_no_matcher(spec: Object) -> None:
    assert node_matcher(new_pod(**spec)) is None


def test_twin_requires_one_of_the_candidates() -> None:
    pod = new_pod(nodeSelector={ZONE: "east"}, affinity=required(expression(ZONE, "In", "east")))
    assert placement_fields(pod, TENANT, PLACEMENT) == {
        "affinity": required(expression(HOSTNAME, "In", "n1", "n2")),
    }


def test_preferred_nodes_are_copied() -> None:
    preferred = [{"weight": 7, "preference": {"matchExpressions": [expression(ZONE, "In", "east")]}}]
    pod = new_pod(affinity={"nodeAffinity": {PREFERRED: preferred}})
    affinity = placement_fields(pod, TENANT, PLACEMENT)["affinity"]["nodeAffinity"]
    assert affinity[PREFERRED] == preferred
    assert affinity[REQUIRED] == required(expression(HOSTNAME, "In", "n1", "n2"))["nodeAffinity"][REQUIRED]


# -- other pods


def twin_term(term: Object, namespace: str = "default") -> Object:
    """Return the term of a twin whose pod has a required anti-affinity."""
    pod = new_pod(namespace, affinity={"podAntiAffinity": {REQUIRED: [{"topologyKey": ZONE, **term}]}})
    [found] = placement_fields(pod, TENANT, PLACEMENT)["affinity"]["podAntiAffinity"][REQUIRED]
    return found


def is_counted(term: Object, labels: Object, namespace: str, binding: Binding = TENANT) -> bool:
    """Return whether the scheduler of the host cluster counts the twin of a pod."""
    twin = twin_labels(new_pod(namespace, labels), binding)
    return label_selector(term.get("labelSelector")).matches(twin)


WEB = {"matchLabels": {"app": "web"}}


@pytest.mark.parametrize(
    ("term", "counted"),
    [
        ({"labelSelector": WEB}, {("web", "default")}),
        ({"labelSelector": WEB, "namespaces": []}, {("web", "default")}),
        ({"labelSelector": WEB, "namespaces": ["team-a"]}, {("web", "team-a")}),
        ({"labelSelector": WEB, "namespaces": ["team-a", "default"]}, {("web", "team-a"), ("web", "default")}),
        ({"labelSelector": WEB, "namespaceSelector": {}}, {("web", "team-a"), ("web", "default")}),
        ({"labelSelector": WEB, "namespaces": ["x"], "namespaceSelector": {}}, {("web", "team-a"), ("web", "default")}),
        ({"labelSelector": {}}, {("web", "default"), ("db", "default")}),
        ({"labelSelector": {"matchExpressions": [expression("app", "NotIn", "web")]}}, {("db", "default")}),
        ({"labelSelector": None}, set()),
        ({}, set()),
    ],
)
def test_affinity_counts_twins_of_named_namespaces(term: Object, counted: set[tuple[str, str]]) -> None:
    found = twin_term(term)
    pods = [(app, namespace) for app in ("web", "db") for namespace in ("default", "team-a")]
    assert {(app, where) for app, where in pods if is_counted(found, {"app": app}, where)} == counted
    assert not any(is_counted(found, {"app": app}, where, OTHER) for app, where in pods)


def test_twin_terms_name_no_namespaces_of_the_host() -> None:
    hostile = {"labelSelector": WEB, "namespaces": ["kube-system"], "namespaceSelector": {}, "surprise": 1}
    assert set(twin_term(hostile)) == {"topologyKey", "labelSelector"}


def test_labels_that_are_not_copied_are_selected() -> None:
    labels = {"team.example.com/role": "cache"}
    term = twin_term({"labelSelector": {"matchLabels": labels}, "matchLabelKeys": ["team.example.com/role", "app"]})
    assert is_counted(term, labels, "default")
    assert not is_counted(term, {"team.example.com/role": "other"}, "default")
    twin = twin_labels(new_pod("default", {**labels, "app": "web"}), TENANT)
    assert [twin[key] for key in term["matchLabelKeys"]] == ["cache", "web"]


def test_hostile_selector_stays_within_tenant() -> None:
    others = OTHER.owner_labels()
    term = twin_term({"labelSelector": {"matchLabels": others}, "mismatchLabelKeys": list(others)})
    assert not is_counted(term, {}, "default", OTHER)
    assert term["labelSelector"]["matchLabels"].items() >= TENANT.owner_labels().items()
    assert not set(term["mismatchLabelKeys"]) & set(others)


def test_preferred_affinity_keeps_its_weight() -> None:
    weighted = {"weight": 50, "podAffinityTerm": {"topologyKey": HOSTNAME, "labelSelector": WEB}}
    pod = new_pod(affinity={"podAffinity": {PREFERRED: [weighted]}})
    affinity = placement_fields(pod, TENANT, PLACEMENT)["affinity"]
    assert set(affinity) == {"nodeAffinity", "podAffinity"}
    [found] = affinity["podAffinity"][PREFERRED]
    assert (found["weight"], found["podAffinityTerm"]["topologyKey"]) == (50, HOSTNAME)
    assert is_counted(found["podAffinityTerm"], {"app": "web"}, "default")
    assert not is_counted(found["podAffinityTerm"], {"app": "web"}, "default", OTHER)


def test_spread_counts_pods_of_own_namespace() -> None:
    constraint = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "nodeTaintsPolicy": "Honor",
        "labelSelector": WEB,
        "matchLabelKeys": ["pod-template-hash"],
    }
    pod = new_pod("team-a", topologySpreadConstraints=[constraint])
    [found] = placement_fields(pod, TENANT, PLACEMENT)["topologySpreadConstraints"]
    for field in ("maxSkew", "topologyKey", "whenUnsatisfiable", "nodeTaintsPolicy"):
        assert found[field] == constraint[field]
    assert is_counted(found, {"app": "web"}, "team-a")
    assert not is_counted(found, {"app": "web"}, "default")
    assert not is_counted(found, {"app": "web"}, "team-a", OTHER)
    [key] = found["matchLabelKeys"]
    assert twin_labels(new_pod(labels={"pod-template-hash": "abc"}), TENANT)[key] == "abc"


def test_pod_without_terms_gets_no_empty_ones() -> None:
    pod = new_pod(affinity={"podAffinity": {}, "podAntiAffinity": None}, topologySpreadConstraints=[])
    assert set(placement_fields(pod, TENANT, PLACEMENT)) == {"affinity"}
    assert set(placement_fields(pod, TENANT, PLACEMENT)["affinity"]) == {"nodeAffinity"}


# -- errors


@pytest.mark.parametrize("field", ["podAffinity", "podAntiAffinity"])
def test_selector_of_namespaces_is_rejected_by_path(field: str) -> None:
    by_labels = {"topologyKey": ZONE, "namespaceSelector": {"matchLabels": {"team": "a"}}}
    terms = {REQUIRED: [{"topologyKey": ZONE}, by_labels], PREFERRED: [{"weight": 1, "podAffinityTerm": by_labels}]}
    errors = placement_errors(new_pod(affinity={field: terms}))
    assert [each.split(": ")[0] for each in errors] == [
        f"spec.affinity.{field}.{REQUIRED}[1].namespaceSelector",
        f"spec.affinity.{field}.{PREFERRED}[0].podAffinityTerm.namespaceSelector",
    ]


@pytest.mark.parametrize(
    "affinity",
    [
        None,
        {},
        "text",
        {"podAffinity": []},
        {"podAffinity": {REQUIRED: {}}},
        {"podAffinity": {REQUIRED: ["text"], PREFERRED: [{"podAffinityTerm": 5}]}},
        {"podAntiAffinity": {REQUIRED: [{"topologyKey": ZONE, "namespaceSelector": {}}]}},
        {"podAntiAffinity": {REQUIRED: [{"topologyKey": ZONE, "namespaces": ["a"]}]}},
    ],
)
def test_other_affinities_have_no_errors(affinity: Any) -> None:
    assert placement_errors(new_pod(affinity=affinity)) == []
