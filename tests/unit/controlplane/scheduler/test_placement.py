"""Tests of node selection against a reference implementation, of its messages and its scores."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.controlplane.scheduler.cache import SchedulerCache
from tapestry.controlplane.scheduler.node_fit import NodeFitCache
from tapestry.controlplane.scheduler.placement import (
    SchedulingContext,
    feasible_nodes_to_find,
    rejection_with_nominated,
    select_node,
)
from tapestry.controlplane.scheduler.pod_info import InvalidPod, awaits_scheduling, pod_info_of
from tapestry.kube.objects import Object, name_of

from .scheduling_reference import HOST, PREFERRED, REQUIRED, ZONE, cache_of, fits, new_node, new_pod

APPS = st.sampled_from(["", "a", "b"])
NAMESPACES = st.sampled_from(["x", "y"])


@st.composite
def nodes(draw: st.DrawFn) -> list[Object]:
    created = []
    for number in range(draw(st.integers(1, 5))):
        labels = {key: value for key in (ZONE, "disk") if (value := draw(st.sampled_from(["", "a", "b"])))}
        taints = [
            {"key": key, "effect": draw(st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"]))}
            for key in draw(st.sets(st.sampled_from(["t", "u"]), max_size=1))
        ]
        cpu, pods = str(draw(st.integers(1, 4))), str(draw(st.integers(1, 4)))
        is_cordoned = draw(st.integers(0, 9)) == 0
        created.append(
            new_node(f"n{number}", cpu=cpu, pods=pods, labels=labels, taints=taints, unschedulable=is_cordoned)
        )
    return created


@st.composite
def terms(draw: st.DrawFn) -> list[Object]:
    created = []
    for _ in range(draw(st.integers(1, 2))):
        term: Object = {
            "topologyKey": draw(st.sampled_from([HOST, ZONE])),
            "labelSelector": {"matchLabels": {"app": draw(st.sampled_from(["a", "b"]))}},
        }
        if where := draw(st.sampled_from([None, {"namespaces": ["y"]}, {"namespaceSelector": {}}])):
            term |= where
        elif draw(st.booleans()):
            term["namespaceSelector"] = {"matchLabels": {"team": "blue"}}
        created.append(term)
    return created


@st.composite
def spreads(draw: st.DrawFn) -> list[Object]:
    created = []
    for key in draw(st.lists(st.sampled_from([HOST, ZONE]), min_size=1, max_size=2, unique=True)):
        rule: Object = {
            "topologyKey": key,
            "maxSkew": draw(st.integers(1, 2)),
            "whenUnsatisfiable": draw(st.sampled_from(["DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"])),
            "labelSelector": {"matchLabels": {"app": "a"}},
            "nodeAffinityPolicy": draw(st.sampled_from(["Honor", "Ignore"])),
            "nodeTaintsPolicy": draw(st.sampled_from(["Honor", "Ignore"])),
        }
        if rule["whenUnsatisfiable"] == "DoNotSchedule" and draw(st.booleans()):
            rule["minDomains"] = draw(st.integers(1, 3))
        created.append(rule)
    return created


@st.composite
def pods_with_constraints(draw: st.DrawFn, name: str, on: str = "") -> Object:
    affinity: Object = {}
    spec: Object = {"affinity": affinity}
    if draw(st.integers(0, 2)) == 0:
        affinity["podAntiAffinity"] = {REQUIRED: draw(terms())}
    if draw(st.integers(0, 2)) == 0:
        affinity["podAffinity"] = {REQUIRED: draw(terms())}
    if draw(st.integers(0, 3)) == 0:
        expressions = [{"key": "disk", "operator": "In", "values": [draw(st.sampled_from(["a", "b"]))]}]
        affinity["nodeAffinity"] = {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}
    if draw(st.integers(0, 3)) == 0:
        spec["nodeSelector"] = {ZONE: draw(st.sampled_from(["a", "b"]))}
    if draw(st.integers(0, 2)) == 0:
        spec["topologySpreadConstraints"] = draw(spreads())
    keys = draw(st.sets(st.sampled_from(["t", "u", "node.kubernetes.io/unschedulable"])))
    spec["tolerations"] = [{"key": key, "operator": "Exists"} for key in sorted(keys)]
    if draw(st.integers(0, 2)) == 0:
        spec["port"] = draw(st.sampled_from([80, 81]))
    if on and draw(st.integers(0, 4)) == 0:
        spec["terminating"] = True
    return new_pod(name, on, cpu=str(draw(st.integers(0, 2))), namespace=draw(NAMESPACES), app=draw(APPS), **spec)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Object], list[Object], Object]:
    created = draw(nodes())
    names = [*map(name_of, created), "missing"]
    pods = [
        draw(pods_with_constraints(f"p{number}", draw(st.sampled_from(names))))
        for number in range(draw(st.integers(0, 5)))
    ]
    return created, pods, draw(pods_with_constraints("probe"))


@settings(max_examples=400, deadline=None)
@given(clusters())
def test_feasible_nodes_match_reference(
    cluster: tuple[list[Object], list[Object], Object],
) -> None:
    nodes, pods, probe = cluster
    cache, context = cache_of(nodes, pods), SchedulingContext(pod_info_of(probe))
    feasible = {name_of(node) for node in nodes if fits(probe, node, nodes, pods)}
    assert {info.name for info in cache if rejection_with_nominated(context, info, cache) is None} == feasible
    result = select_node(context, cache, NodeFitCache())
    assert result.node in feasible if feasible else result.node is None
    assert result.rejections.keys() == {info.name for info in cache} - feasible


@settings(max_examples=100, deadline=None)
@given(nodes(), st.data())
def test_caches_are_never_stale(created: list[Object], data: st.DataObject) -> None:
    """After any change of pods and nodes, the result equals that of the reference implementation."""
    cache, node_fits = cache_of(created), NodeFitCache()
    current, placed = {name_of(node): node for node in created}, dict[str, Object]()
    templates = [data.draw(pods_with_constraints(f"t{number}")) for number in range(2)]
    for number in range(10):
        match data.draw(st.sampled_from(["place", "place", "place", "remove", "node"])):
            case "remove" if placed:
                removed = placed.pop(data.draw(st.sampled_from(sorted(placed))))
                cache.remove_pod(f"{removed['metadata']['namespace']}/{name_of(removed)}")
            case "node":
                changed = data.draw(nodes())[0]
                current["n0"] = changed
                cache.set_node(changed)
            case _:
                pod = named(data.draw(st.sampled_from(templates)), f"p{number}")
                feasible = {
                    name for name, node in current.items() if fits(pod, node, [*current.values()], [*placed.values()])
                }
                result = select_node(SchedulingContext(pod_info_of(pod)), cache, node_fits, number)
                assert result.node in feasible if feasible else result.node is None
                if result.node is not None:
                    cache.add_pod(pod_info_of(pod), result.node)
                    placed[name_of(pod)] = {**pod, "spec": {**pod["spec"], "nodeName": result.node}}


def named(pod: Object, name: str) -> Object:
    return {**pod, "metadata": {**pod["metadata"], "name": name}}


@settings(max_examples=100, deadline=None)
@given(clusters(), pods_with_constraints("nominated"))
def test_nominated_pods_reserve_capacity(cluster: tuple[list[Object], list[Object], Object], nominated: Object) -> None:
    nodes, pods, probe = cluster
    cache = cache_of(nodes, pods)
    result = select_node(
        SchedulingContext(pod_info_of(probe), nominated_pods={"n0": [pod_info_of(nominated)]}), cache, NodeFitCache()
    )
    assert cache.node_name_of("x/nominated") is None
    assert cache.node_name_of("y/nominated") is None
    if result.node is not None:
        node = next(node for node in nodes if name_of(node) == result.node)
        assert fits(probe, node, nodes, pods)
        nominated_on_node = {**nominated, "spec": {**nominated["spec"], "nodeName": "n0"}}
        assert result.node != "n0" or fits(probe, node, nodes, [*pods, nominated_on_node])


# -- messages


@pytest.mark.parametrize(
    ("nodes", "pod", "message"),
    [
        ([], new_pod("p"), "no nodes available to schedule pods"),
        ([new_node("n", cpu="1")], new_pod("p", cpu="2"), "0/1 nodes are available: 1 Insufficient cpu."),
        (
            [new_node("n", unschedulable=True), new_node("m", taints=[{"key": "t", "effect": "NoSchedule"}])],
            new_pod("p"),
            "0/2 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable.",
        ),
        (
            [new_node("n", pods="0", cpu="1")],
            new_pod("p", cpu="2"),
            "0/1 nodes are available: 1 Insufficient cpu, 1 Too many pods.",
        ),
    ],
)
def test_message_lists_rejection_reasons(nodes: list[Object], pod: Object, message: str) -> None:
    cache = cache_of(nodes)
    assert select_node(SchedulingContext(pod_info_of(pod)), cache, NodeFitCache()).message(len(cache)) == message


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": {"podAffinity": {REQUIRED: [{"labelSelector": {}}]}}},
        {
            "topologySpreadConstraints": [
                {"topologyKey": ZONE, "maxSkew": 1, "labelSelector": {"matchLabels": {"a": "!"}}}
            ]
        },
        {"overhead": {"cpu": "much"}},
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a"}]}]}}}},
    ],
)
def test_invalid_pod_raises_error(spec: Object) -> None:
    with pytest.raises(InvalidPod, match="x/p"):
        pod_info_of(new_pod("p", **spec))


@pytest.mark.parametrize(
    ("pod", "awaits"),
    [
        (new_pod("p"), True),
        (new_pod("p", "n"), False),
        (new_pod("p", terminating=True), False),
        (new_pod("p", schedulerName="other"), False),
        (new_pod("p", schedulingGates=[{"name": "g"}]), False),
        ({**new_pod("p"), "status": {"phase": "Failed"}}, False),
    ],
)
def test_only_pending_pods_of_this_scheduler_await(pod: Object, awaits: bool) -> None:
    assert awaits_scheduling(pod) is awaits


# -- scores


def selected_node(nodes: list[Object], pods: list[Object], pod: Object) -> str | None:
    return select_node(SchedulingContext(pod_info_of(pod)), cache_of(nodes, pods), NodeFitCache()).node


TWO = [new_node("n1", labels={ZONE: "a"}), new_node("n2", labels={ZONE: "b"})]


def preferring(kind: str, app: str, topology: str = HOST) -> Mapping[str, Any]:
    term = {"topologyKey": topology, "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {kind: {PREFERRED: [{"weight": 10, "podAffinityTerm": term}]}}}


@pytest.mark.parametrize(
    ("pods", "pod"),
    [
        ([new_pod("a", "n1", cpu="2")], new_pod("p", cpu="1")),
        ([new_pod("a", "n1")], new_pod("p")),
        ([new_pod("a", "n1", app="a")], new_pod("p", cpu="1", **preferring("podAntiAffinity", "a"))),
        ([new_pod("a", "n2", app="a", cpu="2")], new_pod("p", cpu="1", **preferring("podAffinity", "a"))),
        ([new_pod("a", "n2", cpu="2", **preferring("podAffinity", "a"))], new_pod("p", cpu="1", app="a")),
        ([new_pod("a", "n1", **preferring("podAntiAffinity", "a"))], new_pod("p", cpu="1", app="a")),
        ([new_pod("a", "n1", owner="r", cpu="1"), new_pod("b", "n2", cpu="1")], new_pod("p", cpu="1", owner="r")),
    ],
    ids=[
        "more free cpu",
        "fewer pods",
        "anti-affinity",
        "affinity",
        "existing affinity",
        "existing anti-affinity",
        "default spread",
    ],
)
def test_better_node_is_selected(pods: list[Object], pod: Object) -> None:
    assert selected_node(TWO, pods, pod) == "n2"


def test_prefer_no_schedule_taint_lowers_score() -> None:
    tainted = new_node("n1", taints=[{"key": "t", "effect": "PreferNoSchedule"}])
    assert selected_node([tainted, new_node("n2")], [new_pod("a", "n2", cpu="2")], new_pod("p", cpu="1")) == "n2"


def test_preferred_node_affinity_raises_score() -> None:
    preference = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b"]}]}
    affinity = {"nodeAffinity": {PREFERRED: [{"weight": 5, "preference": preference}]}}
    assert selected_node(TWO, [new_pod("a", "n2", cpu="2")], new_pod("p", cpu="1", affinity=affinity)) == "n2"


EVENLY = {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
EVENLY |= {"labelSelector": {"matchLabels": {"app": "a"}}}


def test_terminating_pods_do_not_count_for_spread() -> None:
    full, probe = new_pod("c", "n2", cpu="4"), new_pod("p", app="a", cpu="1", topologySpreadConstraints=[EVENLY])
    assert selected_node(TWO, [new_pod("a", "n1", app="a", terminating=True), full], probe) == "n1"
    assert selected_node(TWO, [new_pod("a", "n1", app="a"), full], probe) is None


def test_zone_change_updates_spread_counts() -> None:
    cache, node_fits = cache_of(TWO, [new_pod("a", "n1", app="a"), new_pod("b", "n2", cpu="4")]), NodeFitCache()
    context = SchedulingContext(pod_info_of(new_pod("p", app="a", cpu="1", topologySpreadConstraints=[EVENLY])))
    assert select_node(context, cache, node_fits).node is None
    cache.set_node(new_node("n2", labels={ZONE: "a"}))  # now there is only one zone
    assert select_node(context, cache, node_fits).node == "n1"


def test_soft_spread_distributes_pods() -> None:
    rule = {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
    spreads = [{**rule, "labelSelector": {"matchLabels": {"app": "a"}}}]
    pods = [new_pod("a", "n1", app="a"), new_pod("b", "n2", cpu="1")]
    assert selected_node(TWO, pods, new_pod("p", app="a", cpu="1", topologySpreadConstraints=spreads)) == "n2"


def test_default_spread_distributes_replicas() -> None:
    cache, node_fits = (
        cache_of([new_node(f"n{number}", labels={ZONE: f"z{number % 2}"}) for number in range(6)]),
        NodeFitCache(),
    )
    for number in range(6):
        pod = pod_info_of(new_pod(f"p{number}", owner="r"))
        result = select_node(SchedulingContext(pod), cache, node_fits)
        assert result.node is not None
        cache.add_pod(pod, result.node)
    assert all(len(info.pods) == 1 for info in cache)


def test_large_cluster_evaluates_some_nodes_in_turn() -> None:
    cache, node_fits = cache_of(new_node(f"n{number}") for number in range(400)), NodeFitCache()
    assert (
        feasible_nodes_to_find(99),
        feasible_nodes_to_find(100),
        feasible_nodes_to_find(400),
        feasible_nodes_to_find(1000),
        feasible_nodes_to_find(10_000),
    ) == (99, 100, 188, 420, 500)
    first = select_node(SchedulingContext(pod_info_of(new_pod("p"))), cache, node_fits)
    second = select_node(SchedulingContext(pod_info_of(new_pod("q"))), cache, node_fits, first.evaluated_nodes)
    assert first.evaluated_nodes == 188
    assert (first.node, second.node) == ("n0", "n188")


def test_node_fit_is_recomputed_only_after_change() -> None:
    cache, node_fits = cache_of(new_node(f"n{number}") for number in range(5)), NodeFitCache()
    first, second = (pod_info_of(new_pod(name, cpu="1")) for name in ("p", "q"))
    assert first.requirements is second.requirements
    select_node(SchedulingContext(first), cache, node_fits)
    before = dict(node_fits.by_node(first.requirements))
    cache.add_pod(first, "n3")
    select_node(SchedulingContext(second), cache, node_fits)
    after = node_fits.by_node(second.requirements)
    assert [name for name in after if after[name] is not before[name]] == ["n3"]


def test_pods_of_a_template_share_requirements() -> None:
    one, other = new_pod("p", cpu="1"), new_pod("q", cpu="1")
    other["spec"]["containers"][0]["volumeMounts"] = [{"name": "kube-api-access-x7k2q", "mountPath": "/there"}]
    assert pod_info_of(one).requirements is pod_info_of(other).requirements


def test_feasible_nominated_node_is_selected() -> None:
    cache = cache_of(TWO, [new_pod("a", "n1", cpu="3")])
    assert (
        select_node(
            SchedulingContext(pod_info_of(new_pod("p", cpu="1"))), cache, NodeFitCache(), nominated_node="n1"
        ).node
        == "n1"
    )
    assert (
        select_node(
            SchedulingContext(pod_info_of(new_pod("p", cpu="2"))), cache, NodeFitCache(), nominated_node="n1"
        ).node
        == "n2"
    )


def test_pod_may_be_added_before_its_node() -> None:
    cache = SchedulerCache()
    cache.add_pod(pod_info_of(new_pod("a", "n1", cpu="3")), "n1")
    cache.set_node(new_node("n1"))
    assert select_node(SchedulingContext(pod_info_of(new_pod("p", cpu="2"))), cache, NodeFitCache()).node is None
    cache.remove_node("n1")
    cache.set_node(new_node("n1", cpu="8"))
    assert select_node(SchedulingContext(pod_info_of(new_pod("p", cpu="2"))), cache, NodeFitCache()).node == "n1"


def test_overhead_counts_towards_requests() -> None:
    cache = cache_of([new_node("n1")])
    assert (
        select_node(
            SchedulingContext(pod_info_of(new_pod("p", cpu="3", overhead={"cpu": "1"}))), cache, NodeFitCache()
        ).node
        == "n1"
    )
    assert (
        select_node(
            SchedulingContext(pod_info_of(new_pod("p", cpu="3", overhead={"cpu": "2"}))), cache, NodeFitCache()
        ).node
        is None
    )
