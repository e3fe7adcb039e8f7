"""Who makes room for whom."""

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

from .places import a_node, a_pod, fits, rooms_of

A = label_selector({"matchLabels": {"app": "a"}})


def found(nodes: list[Object], pods: list[Object], pod: Object, *budgets: DisruptionBudget) -> Victims:
    return of_rooms(rooms_of(nodes, pods), pod, *budgets)


def of_rooms(rooms: SchedulerCache, pod: Object, *budgets: DisruptionBudget) -> Victims:
    wishes = SchedulingContext(pod_info_of(pod))
    choice = select_node(wishes, rooms, NodeFitCache())
    assert choice.node is None
    return victims(wishes, choice, rooms, budgets)


def names(leaving: Victims) -> list[str]:
    return [name_of(each.pod) for each in leaving.pods]


def test_the_least_important_go_and_no_more_than_it_takes() -> None:
    pods = [
        a_pod("low", "n", cpu="2", priority=1),
        a_pod("lower", "n", cpu="1", priority=0),
        a_pod("same", "n", priority=5),
    ]
    assert names(found([a_node("n", cpu="3")], pods, a_pod("p", cpu="1", priority=5))) == ["lower"]
    assert names(found([a_node("n", cpu="3")], pods, a_pod("p", cpu="2", priority=5))) == ["low"]
    assert names(found([a_node("n", cpu="3")], pods, a_pod("p", cpu="3", priority=5))) == ["low", "lower"]


def test_the_younger_go_before_the_older() -> None:
    pods = [a_pod("a", "n", cpu="1"), a_pod("b", "n", cpu="1")]
    for pod, moment in zip(pods, ("2024-01-02T00:00:00Z", "2024-01-01T00:00:00Z"), strict=True):
        pod["metadata"]["creationTimestamp"] = moment
    assert names(found([a_node("n", cpu="2")], pods, a_pod("p", cpu="1", priority=5))) == ["a"]


@pytest.mark.parametrize(
    ("pods", "node"),
    [
        ([a_pod("a", "n", cpu="2", priority=3), a_pod("b", "m", cpu="2", priority=2)], "m"),
        (
            [
                a_pod("a", "n", cpu="1", priority=2),
                a_pod("c", "n", cpu="1", priority=2),
                a_pod("b", "m", cpu="2", priority=2),
            ],
            "m",
        ),
        ([a_pod("a", "n", cpu="2", priority=-5), a_pod("b", "m", cpu="2", priority=-7)], "m"),
    ],
    ids=["less important", "fewer", "below zero"],
)
def test_the_node_where_least_is_lost(pods: list[Object], node: str) -> None:
    assert found([a_node("n", cpu="2"), a_node("m", cpu="2")], pods, a_pod("p", cpu="2", priority=9)).node == node


def test_a_budget_is_broken_only_where_nothing_else_helps() -> None:
    nodes = [a_node("n", cpu="2"), a_node("m", cpu="2")]
    kept = DisruptionBudget("x", A, 0)
    pods = [a_pod("a", "n", cpu="2", app="a"), a_pod("b", "m", cpu="2", priority=4)]
    assert found(nodes, pods, a_pod("p", cpu="2", priority=9)).node == "n"
    assert found(nodes, pods, a_pod("p", cpu="2", priority=9), kept).node == "m"
    only = found(nodes[:1], pods[:1], a_pod("p", cpu="2", priority=9), kept)
    assert (names(only), only.pdb_violations) == (["a"], 1)
    gone_already = DisruptionBudget("x", A, 0, frozenset({"a"}))
    assert found(nodes[:1], pods[:1], a_pod("p", cpu="2", priority=9), gone_already).pdb_violations == 0
    elsewhere = DisruptionBudget("y", A, 0)
    assert found(nodes[:1], pods[:1], a_pod("p", cpu="2", priority=9), elsewhere).pdb_violations == 0


def test_of_two_on_a_node_the_one_without_a_budget_goes() -> None:
    pods = [a_pod("a", "n", cpu="1", app="a"), a_pod("b", "n", cpu="1", priority=4)]
    assert names(found([a_node("n", cpu="2")], pods, a_pod("p", cpu="1", priority=9), DisruptionBudget("x", A, 0))) == [
        "b"
    ]


@pytest.mark.parametrize(
    ("pods", "pod", "words"),
    [
        (
            [a_pod("a", "n", cpu="2", priority=9)],
            a_pod("p", cpu="2", priority=9),
            "1 No preemption victims found for incoming pod.",
        ),
        ([a_pod("a", "n", cpu="2")], a_pod("p", cpu="3", priority=9), "1 Preemption is not helpful for scheduling."),
        (
            [a_pod("a", "n", cpu="2")],
            a_pod("p", cpu="2", priority=9, preemptionPolicy="Never"),
            "preemptionPolicy=Never.",
        ),
        (
            [a_pod("a", "n", cpu="1"), a_pod("b", "n", cpu="1", priority=9)],
            a_pod("p", cpu="2", priority=9),
            "preemption: 0/1 nodes are available: 1 Insufficient cpu.",
        ),
    ],
)
def test_what_is_said_where_nobody_goes(pods: list[Object], pod: Object, words: str) -> None:
    with pytest.raises(PreemptionFailed) as said:
        found([a_node("n", cpu="2")], pods, pod)
    assert str(said.value).endswith(words)


def test_who_is_pushed_aside_is_known_by_what_is_said_of_it() -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    pod = {**a_pod("a", "n", going=True), "status": {"conditions": [condition]}}
    assert is_preempted(pod_info_of(pod))
    assert not is_preempted(pod_info_of({**a_pod("a", "n"), "status": {"conditions": [condition]}}))
    assert not is_preempted(pod_info_of(a_pod("a", "n", going=True)))


@st.composite
def crowded(draw: st.DrawFn) -> tuple[list[Object], list[Object], Object]:
    nodes = [
        a_node(f"n{number}", cpu=str(draw(st.integers(1, 4))), pods="4") for number in range(draw(st.integers(1, 3)))
    ]
    anti = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}}
            ]
        }
    }
    pods = [
        a_pod(
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
        a_pod(
            "probe",
            cpu=cpu,
            priority=draw(st.integers(0, 4)),
            app=draw(st.sampled_from(["", "a"])),
            affinity=draw(st.sampled_from([{}, anti])),
        ),
    )


@settings(max_examples=200, deadline=None)
@given(crowded())
def test_whoever_goes_is_needed_and_enough(situation: tuple[list[Object], list[Object], Object]) -> None:
    nodes, pods, probe = situation
    rooms, wishes = rooms_of(nodes, pods), SchedulingContext(pod_info_of(probe))
    choice = select_node(wishes, rooms, NodeFitCache())
    if choice.node is not None:
        return
    before = {key: place for key, (place, _) in rooms.assignments.items()}
    try:
        leaving = victims(wishes, choice, rooms, ())
    except PreemptionFailed:
        check_that_nobody_could_help(nodes, pods, probe)
    else:
        node = next(each for each in nodes if name_of(each) == leaving.node)
        check_that_they_are_needed_and_enough(probe, node, nodes, pods, set(names(leaving)))
    assert {key: place for key, (place, _) in rooms.assignments.items()} == before


def is_less_important(pod: Object, probe: Object) -> bool:
    return bool(pod["spec"]["priority"] < probe["spec"]["priority"])


def check_that_nobody_could_help(nodes: list[Object], pods: list[Object], probe: Object) -> None:
    for node in nodes:
        stay = [
            each for each in pods if each["spec"]["nodeName"] != name_of(node) or not is_less_important(each, probe)
        ]
        assert len(stay) == len(pods) or not fits(probe, node, nodes, stay)


def check_that_they_are_needed_and_enough(
    probe: Object, node: Object, nodes: list[Object], pods: list[Object], gone: set[str]
) -> None:
    stay = [each for each in pods if name_of(each) not in gone]
    assert fits(probe, node, nodes, stay)
    for each in pods:
        if name_of(each) in gone:
            assert is_less_important(each, probe)
            assert not fits(probe, node, nodes, [*stay, each])
