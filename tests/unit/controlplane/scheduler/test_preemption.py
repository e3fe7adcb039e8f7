"""Tests of the selection of preemption victims."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.controlplane.scheduler.cache import SchedulerCache
from tapestry.controlplane.scheduler.node_fit import NodeFitCache
from tapestry.controlplane.scheduler.placement import SchedulingContext, select_node
from tapestry.controlplane.scheduler.pod_info import pod_info_of
from tapestry.controlplane.scheduler.preemption import (
    DisruptionBudget,
    PreemptionFailed,
    Victims,
    is_preempted,
    victims,
)
from tapestry.kube.objects import Object, name_of
from tapestry.kube.selectors import label_selector

from .scheduling_reference import cache_of, fits, new_node, new_pod

A = label_selector({"matchLabels": {"app": "a"}})


def selected_victims(nodes: list[Object], pods: list[Object], pod: Object, *budgets: DisruptionBudget) -> Victims:
    return victims_in(cache_of(nodes, pods), pod, *budgets)


def victims_in(cache: SchedulerCache, pod: Object, *budgets: DisruptionBudget) -> Victims:
    context = SchedulingContext(pod_info_of(pod))
    result = select_node(context, cache, NodeFitCache())
    assert result.node is None
    return victims(context, result, cache, budgets)


def names(preempted: Victims) -> list[str]:
    return [name_of(each.pod) for each in preempted.pods]


def test_fewest_lowest_priority_pods_are_preempted() -> None:
    pods = [
        new_pod("low", "n", cpu="2", priority=1),
        new_pod("lower", "n", cpu="1", priority=0),
        new_pod("same", "n", priority=5),
    ]
    assert names(selected_victims([new_node("n", cpu="3")], pods, new_pod("p", cpu="1", priority=5))) == ["lower"]
    assert names(selected_victims([new_node("n", cpu="3")], pods, new_pod("p", cpu="2", priority=5))) == ["low"]
    assert names(selected_victims([new_node("n", cpu="3")], pods, new_pod("p", cpu="3", priority=5))) == [
        "low",
        "lower",
    ]


def test_younger_pods_are_preempted_first() -> None:
    pods = [new_pod("a", "n", cpu="1"), new_pod("b", "n", cpu="1")]
    for pod, created in zip(pods, ("2024-01-02T00:00:00Z", "2024-01-01T00:00:00Z"), strict=True):
        pod["metadata"]["creationTimestamp"] = created
    assert names(selected_victims([new_node("n", cpu="2")], pods, new_pod("p", cpu="1", priority=5))) == ["a"]


@pytest.mark.parametrize(
    ("pods", "node"),
    [
        ([new_pod("a", "n", cpu="2", priority=3), new_pod("b", "m", cpu="2", priority=2)], "m"),
        (
            [
                new_pod("a", "n", cpu="1", priority=2),
                new_pod("c", "n", cpu="1", priority=2),
                new_pod("b", "m", cpu="2", priority=2),
            ],
            "m",
        ),
        ([new_pod("a", "n", cpu="2", priority=-5), new_pod("b", "m", cpu="2", priority=-7)], "m"),
    ],
    ids=["lower priority", "fewer pods", "negative priority"],
)
def test_node_with_lowest_cost_is_selected(pods: list[Object], node: str) -> None:
    assert (
        selected_victims([new_node("n", cpu="2"), new_node("m", cpu="2")], pods, new_pod("p", cpu="2", priority=9)).node
        == node
    )


def test_budget_is_violated_only_as_last_resort() -> None:
    nodes = [new_node("n", cpu="2"), new_node("m", cpu="2")]
    exhausted_budget = DisruptionBudget("x", A, 0)
    pods = [new_pod("a", "n", cpu="2", app="a"), new_pod("b", "m", cpu="2", priority=4)]
    assert selected_victims(nodes, pods, new_pod("p", cpu="2", priority=9)).node == "n"
    assert selected_victims(nodes, pods, new_pod("p", cpu="2", priority=9), exhausted_budget).node == "m"
    only = selected_victims(nodes[:1], pods[:1], new_pod("p", cpu="2", priority=9), exhausted_budget)
    assert (names(only), only.pdb_violations) == (["a"], 1)
    already_disrupted = DisruptionBudget("x", A, 0, frozenset({"a"}))
    assert (
        selected_victims(nodes[:1], pods[:1], new_pod("p", cpu="2", priority=9), already_disrupted).pdb_violations == 0
    )
    other_namespace = DisruptionBudget("y", A, 0)
    assert selected_victims(nodes[:1], pods[:1], new_pod("p", cpu="2", priority=9), other_namespace).pdb_violations == 0


def test_pod_without_budget_is_preempted_first() -> None:
    pods = [new_pod("a", "n", cpu="1", app="a"), new_pod("b", "n", cpu="1", priority=4)]
    assert names(
        selected_victims([new_node("n", cpu="2")], pods, new_pod("p", cpu="1", priority=9), DisruptionBudget("x", A, 0))
    ) == ["b"]


@pytest.mark.parametrize(
    ("pods", "pod", "message"),
    [
        (
            [new_pod("a", "n", cpu="2", priority=9)],
            new_pod("p", cpu="2", priority=9),
            "1 No preemption victims found for incoming pod.",
        ),
        (
            [new_pod("a", "n", cpu="2")],
            new_pod("p", cpu="3", priority=9),
            "1 Preemption is not helpful for scheduling.",
        ),
        (
            [new_pod("a", "n", cpu="2")],
            new_pod("p", cpu="2", priority=9, preemptionPolicy="Never"),
            "preemptionPolicy=Never.",
        ),
        (
            [new_pod("a", "n", cpu="1"), new_pod("b", "n", cpu="1", priority=9)],
            new_pod("p", cpu="2", priority=9),
            "preemption: 0/1 nodes are available: 1 Insufficient cpu.",
        ),
    ],
)
def test_failed_preemption_reports_reason(pods: list[Object], pod: Object, message: str) -> None:
    with pytest.raises(PreemptionFailed) as raised:
        selected_victims([new_node("n", cpu="2")], pods, pod)
    assert str(raised.value).endswith(message)


def test_preempted_pod_is_recognized_by_condition() -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    pod = {**new_pod("a", "n", terminating=True), "status": {"conditions": [condition]}}
    assert is_preempted(pod_info_of(pod))
    assert not is_preempted(pod_info_of({**new_pod("a", "n"), "status": {"conditions": [condition]}}))
    assert not is_preempted(pod_info_of(new_pod("a", "n", terminating=True)))


@st.composite
def full_clusters(draw: st.DrawFn) -> tuple[list[Object], list[Object], Object]:
    nodes = [
        new_node(f"n{number}", cpu=str(draw(st.integers(1, 4))), pods="4") for number in range(draw(st.integers(1, 3)))
    ]
    anti = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}}
            ]
        }
    }
    pods = [
        new_pod(
            f"p{number}",
            name_of(draw(st.sampled_from(nodes))),
            cpu=str(draw(st.integers(0, 2))),
            priority=draw(st.integers(0, 3)),
            app=draw(st.sampled_from(["", "a"])),
            affinity=draw(st.sampled_from([{}, {}, anti])),
        )
        for number in range(draw(st.integers(0, 8)))
    ]
    cpu = str(draw(st.integers(1, 4)))
    return (
        nodes,
        pods,
        new_pod(
            "probe",
            cpu=cpu,
            priority=draw(st.integers(0, 4)),
            app=draw(st.sampled_from(["", "a"])),
            affinity=draw(st.sampled_from([{}, anti])),
        ),
    )


@settings(max_examples=200, deadline=None)
@given(full_clusters())
def test_victims_are_necessary_and_sufficient(cluster: tuple[list[Object], list[Object], Object]) -> None:
    nodes, pods, probe = cluster
    cache, context = cache_of(nodes, pods), SchedulingContext(pod_info_of(probe))
    result = select_node(context, cache, NodeFitCache())
    if result.node is not None:
        return
    before = {key: node_name for key, (node_name, _) in cache.assignments.items()}
    try:
        preempted = victims(context, result, cache, ())
    except PreemptionFailed:
        check_no_preemption_helps(nodes, pods, probe)
    else:
        node = next(each for each in nodes if name_of(each) == preempted.node)
        check_necessary_and_sufficient(probe, node, nodes, pods, set(names(preempted)))
    assert {key: node_name for key, (node_name, _) in cache.assignments.items()} == before


def has_lower_priority(pod: Object, probe: Object) -> bool:
    return bool(pod["spec"]["priority"] < probe["spec"]["priority"])


def check_no_preemption_helps(nodes: list[Object], pods: list[Object], probe: Object) -> None:
    for node in nodes:
        remaining = [
            each for each in pods if each["spec"]["nodeName"] != name_of(node) or not has_lower_priority(each, probe)
        ]
        assert len(remaining) == len(pods) or not fits(probe, node, nodes, remaining)


def check_necessary_and_sufficient(
    probe: Object, node: Object, nodes: list[Object], pods: list[Object], deleted: set[str]
) -> None:
    remaining = [each for each in pods if name_of(each) not in deleted]
    assert fits(probe, node, nodes, remaining)
    for each in pods:
        if name_of(each) in deleted:
            assert has_lower_priority(each, probe)
            assert not fits(probe, node, nodes, [*remaining, each])
