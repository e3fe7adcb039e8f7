"""Which node a pod goes to: the rules against a plain answer, the words, and which of several is best."""

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

from .places import HOST, PREFERRED, REQUIRED, ZONE, a_node, a_pod, fits, rooms_of

APPS = st.sampled_from(["", "a", "b"])
SPACES = st.sampled_from(["x", "y"])


@st.composite
def nodes(draw: st.DrawFn) -> list[Object]:
    made = []
    for number in range(draw(st.integers(1, 5))):
        labels = {key: value for key in (ZONE, "disk") if (value := draw(st.sampled_from(["", "a", "b"])))}
        taints = [
            {"key": key, "effect": draw(st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"]))}
            for key in draw(st.sets(st.sampled_from(["t", "u"]), max_size=1))
        ]
        cpu, pods = str(draw(st.integers(1, 4))), str(draw(st.integers(1, 4)))
        is_cordoned = draw(st.integers(0, 9)) == 0
        made.append(a_node(f"n{number}", cpu=cpu, pods=pods, labels=labels, taints=taints, unschedulable=is_cordoned))
    return made


@st.composite
def terms(draw: st.DrawFn) -> list[Object]:
    made = []
    for _ in range(draw(st.integers(1, 2))):
        term: Object = {
            "topologyKey": draw(st.sampled_from([HOST, ZONE])),
            "labelSelector": {"matchLabels": {"app": draw(st.sampled_from(["a", "b"]))}},
        }
        if where := draw(st.sampled_from([None, {"namespaces": ["y"]}, {"namespaceSelector": {}}])):
            term |= where
        elif draw(st.booleans()):
            term["namespaceSelector"] = {"matchLabels": {"team": "blue"}}
        made.append(term)
    return made


@st.composite
def spreads(draw: st.DrawFn) -> list[Object]:
    made = []
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
        made.append(rule)
    return made


@st.composite
def wishes(draw: st.DrawFn, name: str, on: str = "") -> Object:
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
        spec["going"] = True
    return a_pod(name, on, cpu=str(draw(st.integers(0, 2))), space=draw(SPACES), app=draw(APPS), **spec)


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Object], list[Object], Object]:
    made = draw(nodes())
    names = [*map(name_of, made), "gone"]
    pods = [draw(wishes(f"p{number}", draw(st.sampled_from(names)))) for number in range(draw(st.integers(0, 5)))]
    return made, pods, draw(wishes("probe"))


@settings(max_examples=400, deadline=None)
@given(situations())
def test_a_pod_goes_where_every_rule_lets_it_and_nowhere_else(
    situation: tuple[list[Object], list[Object], Object],
) -> None:
    nodes, pods, probe = situation
    rooms, wished = rooms_of(nodes, pods), SchedulingContext(pod_info_of(probe))
    able = {name_of(node) for node in nodes if fits(probe, node, nodes, pods)}
    assert {room.name for room in rooms if rejection_with_nominated(wished, room, rooms) is None} == able
    choice = select_node(wished, rooms, NodeFitCache())
    assert choice.node in able if able else choice.node is None
    assert choice.rejections.keys() == {room.name for room in rooms} - able


@settings(max_examples=100, deadline=None)
@given(nodes(), st.data())
def test_what_is_remembered_is_never_out_of_date(made: list[Object], data: st.DataObject) -> None:
    """Pods come and go, nodes change, and each time the plain answer is the same."""
    rooms, verdicts = rooms_of(made), NodeFitCache()
    current, placed = {name_of(node): node for node in made}, dict[str, Object]()
    templates = [data.draw(wishes(f"t{number}")) for number in range(2)]
    for number in range(10):
        match data.draw(st.sampled_from(["place", "place", "place", "remove", "node"])):
            case "remove" if placed:
                gone = placed.pop(data.draw(st.sampled_from(sorted(placed))))
                rooms.remove_pod(f"{gone['metadata']['namespace']}/{name_of(gone)}")
            case "node":
                changed = data.draw(nodes())[0]
                current["n0"] = changed
                rooms.set_node(changed)
            case _:
                pod = named(data.draw(st.sampled_from(templates)), f"p{number}")
                able = {
                    name for name, node in current.items() if fits(pod, node, [*current.values()], [*placed.values()])
                }
                choice = select_node(SchedulingContext(pod_info_of(pod)), rooms, verdicts, number)
                assert choice.node in able if able else choice.node is None
                if choice.node is not None:
                    rooms.add_pod(pod_info_of(pod), choice.node)
                    placed[name_of(pod)] = {**pod, "spec": {**pod["spec"], "nodeName": choice.node}}


def named(pod: Object, name: str) -> Object:
    return {**pod, "metadata": {**pod["metadata"], "name": name}}


@settings(max_examples=100, deadline=None)
@given(situations(), wishes("kept"))
def test_room_that_is_kept_is_left_and_is_not_relied_on(
    situation: tuple[list[Object], list[Object], Object], kept: Object
) -> None:
    nodes, pods, probe = situation
    rooms = rooms_of(nodes, pods)
    choice = select_node(
        SchedulingContext(pod_info_of(probe), nominated_pods={"n0": [pod_info_of(kept)]}), rooms, NodeFitCache()
    )
    assert rooms.node_name_of("x/kept") is None
    assert rooms.node_name_of("y/kept") is None
    if choice.node is not None:
        node = next(node for node in nodes if name_of(node) == choice.node)
        assert fits(probe, node, nodes, pods)
        coming = {**kept, "spec": {**kept["spec"], "nodeName": "n0"}}
        assert choice.node != "n0" or fits(probe, node, nodes, [*pods, coming])


# -- the words


@pytest.mark.parametrize(
    ("nodes", "pod", "message"),
    [
        ([], a_pod("p"), "no nodes available to schedule pods"),
        ([a_node("n", cpu="1")], a_pod("p", cpu="2"), "0/1 nodes are available: 1 Insufficient cpu."),
        (
            [a_node("n", unschedulable=True), a_node("m", taints=[{"key": "t", "effect": "NoSchedule"}])],
            a_pod("p"),
            "0/2 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable.",
        ),
        (
            [a_node("n", pods="0", cpu="1")],
            a_pod("p", cpu="2"),
            "0/1 nodes are available: 1 Insufficient cpu, 1 Too many pods.",
        ),
    ],
)
def test_what_is_said_of_a_pod_that_fits_nowhere(nodes: list[Object], pod: Object, message: str) -> None:
    rooms = rooms_of(nodes)
    assert select_node(SchedulingContext(pod_info_of(pod)), rooms, NodeFitCache()).message(len(rooms)) == message


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
def test_a_pod_that_cannot_be_read_says_so(spec: Object) -> None:
    with pytest.raises(InvalidPod, match="x/p"):
        pod_info_of(a_pod("p", **spec))


@pytest.mark.parametrize(
    ("pod", "is_ours"),
    [
        (a_pod("p"), True),
        (a_pod("p", "n"), False),
        (a_pod("p", going=True), False),
        (a_pod("p", schedulerName="other"), False),
        (a_pod("p", schedulingGates=[{"name": "g"}]), False),
        ({**a_pod("p"), "status": {"phase": "Failed"}}, False),
    ],
)
def test_whose_pod_it_is(pod: Object, is_ours: bool) -> None:
    assert awaits_scheduling(pod) is is_ours


# -- which is best


def chosen(nodes: list[Object], pods: list[Object], pod: Object) -> str | None:
    return select_node(SchedulingContext(pod_info_of(pod)), rooms_of(nodes, pods), NodeFitCache()).node


TWO = [a_node("n1", labels={ZONE: "a"}), a_node("n2", labels={ZONE: "b"})]


def rather(kind: str, app: str, topology: str = HOST) -> Mapping[str, Any]:
    term = {"topologyKey": topology, "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {kind: {PREFERRED: [{"weight": 10, "podAffinityTerm": term}]}}}


@pytest.mark.parametrize(
    ("pods", "pod"),
    [
        ([a_pod("a", "n1", cpu="2")], a_pod("p", cpu="1")),
        ([a_pod("a", "n1")], a_pod("p")),
        ([a_pod("a", "n1", app="a")], a_pod("p", cpu="1", **rather("podAntiAffinity", "a"))),
        ([a_pod("a", "n2", app="a", cpu="2")], a_pod("p", cpu="1", **rather("podAffinity", "a"))),
        ([a_pod("a", "n2", cpu="2", **rather("podAffinity", "a"))], a_pod("p", cpu="1", app="a")),
        ([a_pod("a", "n1", **rather("podAntiAffinity", "a"))], a_pod("p", cpu="1", app="a")),
        ([a_pod("a", "n1", owner="r", cpu="1"), a_pod("b", "n2", cpu="1")], a_pod("p", cpu="1", owner="r")),
    ],
    ids=["emptier", "fewer", "apart", "near", "liked", "disliked", "of its own set"],
)
def test_the_second_is_better(pods: list[Object], pod: Object) -> None:
    assert chosen(TWO, pods, pod) == "n2"


def test_a_node_that_would_rather_not_comes_last() -> None:
    shy = a_node("n1", taints=[{"key": "t", "effect": "PreferNoSchedule"}])
    assert chosen([shy, a_node("n2")], [a_pod("a", "n2", cpu="2")], a_pod("p", cpu="1")) == "n2"


def test_a_preferred_node_comes_first() -> None:
    preference = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b"]}]}
    affinity = {"nodeAffinity": {PREFERRED: [{"weight": 5, "preference": preference}]}}
    assert chosen(TWO, [a_pod("a", "n2", cpu="2")], a_pod("p", cpu="1", affinity=affinity)) == "n2"


EVENLY = {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
EVENLY |= {"labelSelector": {"matchLabels": {"app": "a"}}}


def test_pods_on_their_way_out_do_not_count_for_a_spread() -> None:
    full, probe = a_pod("c", "n2", cpu="4"), a_pod("p", app="a", cpu="1", topologySpreadConstraints=[EVENLY])
    assert chosen(TWO, [a_pod("a", "n1", app="a", going=True), full], probe) == "n1"
    assert chosen(TWO, [a_pod("a", "n1", app="a"), full], probe) is None


def test_a_node_that_moves_to_another_zone_counts_there() -> None:
    rooms, verdicts = rooms_of(TWO, [a_pod("a", "n1", app="a"), a_pod("b", "n2", cpu="4")]), NodeFitCache()
    wished = SchedulingContext(pod_info_of(a_pod("p", app="a", cpu="1", topologySpreadConstraints=[EVENLY])))
    assert select_node(wished, rooms, verdicts).node is None
    rooms.set_node(a_node("n2", labels={ZONE: "a"}))  # now there is but one zone
    assert select_node(wished, rooms, verdicts).node == "n1"


def test_pods_of_a_soft_spread_are_spread() -> None:
    rule = {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
    spreads = [{**rule, "labelSelector": {"matchLabels": {"app": "a"}}}]
    pods = [a_pod("a", "n1", app="a"), a_pod("b", "n2", cpu="1")]
    assert chosen(TWO, pods, a_pod("p", app="a", cpu="1", topologySpreadConstraints=spreads)) == "n2"


def test_pods_of_a_set_go_to_as_many_nodes_as_there_are() -> None:
    rooms, verdicts = (
        rooms_of([a_node(f"n{number}", labels={ZONE: f"z{number % 2}"}) for number in range(6)]),
        NodeFitCache(),
    )
    for number in range(6):
        pod = pod_info_of(a_pod(f"p{number}", owner="r"))
        choice = select_node(SchedulingContext(pod), rooms, verdicts)
        assert choice.node is not None
        rooms.add_pod(pod, choice.node)
    assert all(len(room.pods) == 1 for room in rooms)


def test_in_a_large_cluster_some_nodes_are_enough_and_others_come_next() -> None:
    rooms, verdicts = rooms_of(a_node(f"n{number}") for number in range(400)), NodeFitCache()
    assert (
        feasible_nodes_to_find(99),
        feasible_nodes_to_find(100),
        feasible_nodes_to_find(400),
        feasible_nodes_to_find(1000),
        feasible_nodes_to_find(10_000),
    ) == (99, 100, 188, 420, 500)
    first = select_node(SchedulingContext(pod_info_of(a_pod("p"))), rooms, verdicts)
    second = select_node(SchedulingContext(pod_info_of(a_pod("q"))), rooms, verdicts, first.evaluated_nodes)
    assert first.evaluated_nodes == 188
    assert (first.node, second.node) == ("n0", "n188")


def test_a_node_is_asked_again_only_when_it_has_changed() -> None:
    rooms, verdicts = rooms_of(a_node(f"n{number}") for number in range(5)), NodeFitCache()
    first, second = (pod_info_of(a_pod(name, cpu="1")) for name in ("p", "q"))
    assert first.requirements is second.requirements
    select_node(SchedulingContext(first), rooms, verdicts)
    before = dict(verdicts.by_node(first.requirements))
    rooms.add_pod(first, "n3")
    select_node(SchedulingContext(second), rooms, verdicts)
    after = verdicts.by_node(second.requirements)
    assert [name for name in after if after[name] is not before[name]] == ["n3"]


def test_what_tells_pods_of_a_template_apart_is_no_need() -> None:
    one, other = a_pod("p", cpu="1"), a_pod("q", cpu="1")
    other["spec"]["containers"][0]["volumeMounts"] = [{"name": "kube-api-access-x7k2q", "mountPath": "/there"}]
    assert pod_info_of(one).requirements is pod_info_of(other).requirements


def test_a_nominated_node_is_taken_if_it_will_do() -> None:
    rooms = rooms_of(TWO, [a_pod("a", "n1", cpu="3")])
    assert (
        select_node(
            SchedulingContext(pod_info_of(a_pod("p", cpu="1"))), rooms, NodeFitCache(), nominated_node="n1"
        ).node
        == "n1"
    )
    assert (
        select_node(
            SchedulingContext(pod_info_of(a_pod("p", cpu="2"))), rooms, NodeFitCache(), nominated_node="n1"
        ).node
        == "n2"
    )


def test_a_pod_may_be_known_before_its_node() -> None:
    rooms = SchedulerCache()
    rooms.add_pod(pod_info_of(a_pod("a", "n1", cpu="3")), "n1")
    rooms.set_node(a_node("n1"))
    assert select_node(SchedulingContext(pod_info_of(a_pod("p", cpu="2"))), rooms, NodeFitCache()).node is None
    rooms.remove_node("n1")
    rooms.set_node(a_node("n1", cpu="8"))
    assert select_node(SchedulingContext(pod_info_of(a_pod("p", cpu="2"))), rooms, NodeFitCache()).node == "n1"


def test_overhead_counts() -> None:
    rooms = rooms_of([a_node("n1")])
    assert (
        select_node(
            SchedulingContext(pod_info_of(a_pod("p", cpu="3", overhead={"cpu": "1"}))), rooms, NodeFitCache()
        ).node
        == "n1"
    )
    assert (
        select_node(
            SchedulingContext(pod_info_of(a_pod("p", cpu="3", overhead={"cpu": "2"}))), rooms, NodeFitCache()
        ).node
        is None
    )
