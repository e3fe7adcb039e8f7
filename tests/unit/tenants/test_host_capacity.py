"""Capacity of host clusters: what policies lease of their nodes."""

from datetime import UTC, datetime
from typing import Any

from tapestry.kube.objects import Object
from tapestry.tenants.host_capacity import host_offer, host_rules

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def host(**spec: Any) -> Object:
    reference = {"name": "east", "namespace": "tapestry-hosts"}
    return {"metadata": {"name": "east"}, "spec": {"secretRef": reference, **spec}}


def node(name: str, cpu: str = "4", **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": {"cpu": cpu, "memory": "8Gi"}}}


def policy(name: str = "p", cluster: str = "east", **spec: Any) -> Object:
    metadata = {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": metadata, "spec": {"cluster": cluster, **spec}}


def offer(nodes: list[Object], operator: list[Object], owner: list[Object], **spec: Any) -> tuple[int, dict[str, str]]:
    found = host_offer(nodes, host_rules(host(**spec), operator, owner), NOON)
    return found.open_nodes, found.capacity.texts()


def test_nodes_without_policy_offer_nothing() -> None:
    assert offer([node("a")], [], []) == (0, {"cpu": "0", "memory": "0"})
    assert offer([node("a")], [policy(cluster="west")], []) == (0, {"cpu": "0", "memory": "0"})


def test_selected_nodes_offer_what_both_sides_lease() -> None:
    half = {"resourceLimits": [{"resource": "cpu", "percent": 50}]}
    nodes = [node("a", pool="one"), node("b", cpu="8")]
    assert offer(nodes, [policy()], []) == (2, {"cpu": "12", "memory": "16Gi"})
    assert offer(nodes, [policy()], [policy(**half)]) == (2, {"cpu": "6", "memory": "16Gi"})
    terms = [{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}]
    assert offer(nodes, [policy()], [], nodeSelector={"nodeSelectorTerms": terms}) == (1, {"cpu": "4", "memory": "8Gi"})


def test_closed_windows_keep_the_capacity() -> None:
    night = {"timeWindows": [{"start": "22:00", "end": "06:00"}]}
    assert offer([node("a")], [policy(**night)], []) == (0, {"cpu": "4", "memory": "8Gi"})


def test_total_limits_bound_the_capacity() -> None:
    totals = {"totalLimits": [{"resource": "cpu", "quantity": "5"}]}
    assert offer([node("a"), node("b")], [policy(**totals)], []) == (2, {"cpu": "5", "memory": "16Gi"})
