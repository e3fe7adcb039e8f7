"""Obstacles that keep a pod off virtual nodes."""

from datetime import UTC, datetime
from typing import Any

from tapestry.apis import keys
from tapestry.inspect.placement import Obstacle, obstacles
from tapestry.kube.objects import Object

OPENS = datetime(2026, 3, 2, 22, 0, tzinfo=UTC)
VNODE = {"key": keys.VNODE_TAINT, "effect": "NoSchedule"}
CLOSED = {"key": keys.OUT_OF_TIME_WINDOWS_TAINT, "effect": "NoSchedule"}


def new_node(name: str = "vnode-e1-n1", *taints: Object, labels: Object | None = None, **spec: Any) -> Object:
    status = {"allocatable": {"cpu": "2", "pods": "10"}}
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": list(taints), **spec},
        "status": status,
    }


def new_pod(*tolerations: Object, cpu: str = "1", **spec: Any) -> Object:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    return {"metadata": {"name": "web"}, "spec": {"tolerations": list(tolerations), "containers": [container], **spec}}


def found_obstacles(pod: Object, *nodes: Object) -> tuple[list[tuple[str, int]], int]:
    found, free = obstacles(pod, nodes, {}, OPENS)
    return [(each.what, each.nodes) for each in found], free


def test_untolerated_taint_is_named_with_toleration() -> None:
    found, free = obstacles(new_pod(), [new_node("a", VNODE), new_node("b", VNODE)], {}, None)
    advice = "add to the pod's spec.tolerations: {key: tapestry.io/vnode, operator: Exists}"
    assert found == (Obstacle(what="taint tapestry.io/vnode:NoSchedule", nodes=2, todo=advice),)
    assert free == 0
    assert found_obstacles(new_pod({"key": keys.VNODE_TAINT, "operator": "Exists"}), new_node("a", VNODE)) == ([], 1)


def test_closed_window_shows_next_change() -> None:
    (found,), _ = obstacles(new_pod(), [new_node("a", CLOSED)], {}, OPENS)
    assert "2026-03-02T22:00:00Z" in found.todo


def test_reclaimed_node_does_not_promise_opening() -> None:
    reclaimed = new_node("a", CLOSED)
    reclaimed["metadata"]["annotations"] = {keys.CLOSED_REASON: "Reclaimed"}
    (found,), _ = obstacles(new_pod(), [reclaimed], {}, OPENS)
    assert found.todo.startswith("the owner reclaimed the node with tapestry.io/reclaim=now")
    assert "window" not in found.todo


def test_obstacles_are_counted_most_frequent_first() -> None:
    nodes = [new_node("a", VNODE), new_node("b", VNODE, CLOSED), new_node("c")]
    assert found_obstacles(new_pod(), *nodes) == (
        [("taint tapestry.io/vnode:NoSchedule", 2), ("taint tapestry.io/out-of-time-windows:NoSchedule", 1)],
        1,
    )


def test_cordon_counts_before_its_taint() -> None:
    assert found_obstacles(new_pod(), new_node(unschedulable=True))[0] == [
        ("taint node.kubernetes.io/unschedulable:NoSchedule", 1)
    ]


def test_preferred_taint_is_no_obstacle() -> None:
    assert found_obstacles(new_pod(), new_node("a", {"key": "x", "effect": "PreferNoSchedule"})) == ([], 1)


def test_free_resources_are_allocatable_minus_used() -> None:
    node, used = new_node(), {"vnode-e1-n1": [new_pod(cpu="1500m", nodeName="vnode-e1-n1")]}
    (found,), free = obstacles(new_pod(), [node], used, None)
    assert (found.what, free) == ("too little cpu", 0)
    ended = {"vnode-e1-n1": [{**new_pod(cpu="1500m", nodeName="vnode-e1-n1"), "status": {"phase": "Succeeded"}}]}
    assert obstacles(new_pod(), [node], ended, None) == ((), 1)


def test_pod_selectors_apply_and_invalid_ones_match_nothing() -> None:
    assert found_obstacles(new_pod(nodeSelector={"zone": "a"}), new_node(labels={"zone": "a"})) == ([], 1)
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    pod_with_affinity = new_pod(affinity={"nodeAffinity": required})
    assert found_obstacles(pod_with_affinity, new_node(labels={"zone": "a"})) == ([], 1)
    for labels, pod in (({"zone": "b"}, pod_with_affinity), ({"zone": "b"}, new_pod(nodeSelector={"zone": "a"}))):
        assert found_obstacles(pod, new_node(labels=labels))[0] == [("nodeSelector or nodeAffinity of the pod", 1)]
    broken = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{}]}]}}
    assert found_obstacles(new_pod(affinity={"nodeAffinity": broken}), new_node())[1] == 0
