"""Leased nodes in a host cluster."""

import asyncio

from tapestry.apis import keys
from tapestry.controller import ObjectCache
from tapestry.controller.informer_views import InformerView
from tapestry.controller.store import Store
from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import NODES
from tapestry.tenants.leased_nodes import LeasedNodes, network_conditions, services_condition


def node(name: str, *, is_leased: bool) -> Object:
    obj = object_named(name)
    obj["metadata"]["labels"] = {keys.NODE_TYPE: keys.NODE_TYPE_VIRTUAL} if is_leased else {}
    return obj


def new_cache() -> InformerView:
    return InformerView(ObjectCache(NODES, Store(), asyncio.Event()), Store())


def test_first_and_last_leased_node_are_reported() -> None:
    nodes, changes = new_cache(), list[bool]()
    leased = LeasedNodes(nodes)
    leased.on_change(lambda: changes.append(bool(leased)))
    nodes.report_change(None, node("plain", is_leased=False))
    nodes.report_change(None, node("a", is_leased=True))
    nodes.report_change(None, node("b", is_leased=True))
    nodes.report_change(node("a", is_leased=True), None)
    nodes.report_change(node("b", is_leased=True), node("b", is_leased=False))
    assert changes == [True, False]


def test_condition_says_whether_tenant_has_services() -> None:
    nodes = new_cache()
    leased = LeasedNodes(nodes)
    assert services_condition(leased)["status"] == "True"
    nodes.report_change(None, node("a", is_leased=True))
    condition = services_condition(leased)
    assert (condition["status"], condition["reason"]) == ("False", "HostHasLeasedNodes")


def test_leased_nodes_do_not_reach_the_api() -> None:
    nodes = new_cache()
    leased = LeasedNodes(nodes)
    assert [each["type"] for each in network_conditions(leased)] == ["ServicesSynced"]
    nodes.report_change(None, node("a", is_leased=True))
    assert [(each["type"], each["status"]) for each in network_conditions(leased)] == [
        ("ServicesSynced", "False"),
        ("ApiAvailable", "False"),
        ("DNSAvailable", "False"),
    ]
