"""Status and explanation of pods."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import structs

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, Binding, binding_of
from tapestry.inspect.pods import (
    ADVICE,
    BindingBranch,
    NodeBranch,
    PlacedPod,
    PodExplanation,
    PodLeaf,
    Tree,
    TwinLookup,
    pod_diagnosis,
    pod_explanation,
    pod_status,
)
from tapestry.inspect.tables import tree_text
from tapestry.kube.objects import Object, with_type_meta
from tapestry.syncer.translate.pod_status import DISRUPTIONS

CREATED = "2026-03-02T12:00:00Z"
LATER = "2026-03-02T12:01:00Z"
NODE: Object = {
    "metadata": {"name": "vnode-e1-n1", "annotations": {keys.PHYSICAL_NODE_NAME: "n1"}},
    "status": {"allocatable": {"cpu": "2", "pods": "10"}},
}


def new_binding() -> Binding:
    reference = {"name": "east", "namespace": "s"}
    spec = {"clusterID": "e1", "secretRef": reference, "mountNamespace": "leased"}
    return binding_of(with_type_meta(CLUSTER_BINDINGS, {"metadata": {"name": "east", "uid": "u"}, "spec": spec}), "v")


def new_pod(*conditions: Object, phase: str = "Pending", node: str = "vnode-e1-n1", **status: Any) -> Object:
    metadata = {"name": "web", "namespace": "shop", "uid": "uid-web", "creationTimestamp": CREATED}
    spec = {"containers": [{"name": "c"}], **({"nodeName": node} if node else {})}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase, "conditions": list(conditions), **status}}


def condition(type: str, status: str, reason: str = "", message: str = "", at: str = CREATED) -> Object:
    return {"type": type, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


MAPPED = condition(keys.MAPPED_CONDITION, "True", "Mapped", "uid-twin")


def diagnosis(pod: Object) -> tuple[str, str, str]:
    found = pod_diagnosis(PlacedPod(pod, NODE, new_binding()))
    return found.state, found.reason, found.why


def with_metadata(pod: Object, **metadata: Any) -> Object:
    return {**pod, "metadata": {**pod["metadata"], **metadata}}


def test_running_pod_shows_node_and_twin() -> None:
    result = pod_status(PlacedPod(new_pod(MAPPED, phase="Running"), NODE, new_binding()))
    assert (result.state, result.phase, result.reason) == ("Running", "Running", "")
    assert (result.node, result.physical_node, result.binding) == ("vnode-e1-n1", "n1", "east")
    namespace, name = result.twin.split("/")
    assert namespace == "leased"
    assert name.startswith("web-")


def test_unmapped_pod_has_no_twin() -> None:
    forged = with_metadata(new_pod(), annotations={keys.PHYSICAL_POD_NAME: "somebody-elses"})
    assert pod_status(PlacedPod(forged, NODE, new_binding())).twin == ""


def test_waiting_reason_is_from_condition() -> None:
    rejected = condition(keys.ACCEPTED_CONDITION, "False", "PodSecurity", "spec.hostNetwork: not allowed")
    missing = condition(keys.MAPPED_CONDITION, "False", "ConfigMapMissing", "configmaps shop/settings does not exist")
    assert diagnosis(new_pod(rejected)) == ("Waiting", "PodSecurity", "spec.hostNetwork: not allowed")
    assert diagnosis(new_pod(missing)) == ("Waiting", "ConfigMapMissing", "configmaps shop/settings does not exist")
    assert diagnosis(new_pod())[:2] == ("Waiting", "NotSeen")


def test_unscheduled_pod_shows_scheduler_message() -> None:
    unscheduled = condition("PodScheduled", "False", "Unschedulable", "0/1 nodes are available")
    assert diagnosis(new_pod(unscheduled, node="")) == ("Waiting", "Unscheduled", "0/1 nodes are available")
    assert "no scheduler" in diagnosis(new_pod(node=""))[2]


def test_excluded_pods_are_reported() -> None:
    owner = {"kind": "DaemonSet", "name": "d", "controller": True}
    assert diagnosis(with_metadata(new_pod(), ownerReferences=[owner]))[1] == "DaemonSet"
    assert diagnosis(with_metadata(new_pod(), namespace="kube-system"))[1] == "SystemNamespace"


def test_pod_without_virtual_node_is_reported() -> None:
    assert pod_diagnosis(PlacedPod(new_pod())).reason == "NodeGone"
    assert pod_diagnosis(PlacedPod(new_pod(phase="Running", node="n7"), is_on_unleased_node=True)).reason == "NotLeased"


def test_twin_that_cannot_start_shows_reason() -> None:
    unscheduled = condition("PodScheduled", "False", "Unschedulable", "Insufficient cpu")
    assert diagnosis(new_pod(MAPPED, unscheduled)) == ("Waiting", "UnschedulableBelow", "Insufficient cpu")
    waiting = {"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    assert diagnosis(new_pod(MAPPED, containerStatuses=[waiting])) == ("Waiting", "ImagePullBackOff", "no such image")
    assert diagnosis(new_pod(MAPPED))[1] == "Starting"


def test_running_pod_shows_rejected_change() -> None:
    rejected = condition(keys.ACCEPTED_CONDITION, "False", "PodSecurity", "spec.ephemeralContainers[0]: not allowed")
    assert diagnosis(new_pod(MAPPED, rejected, phase="Running"))[:2] == ("Running", "PodSecurity")


def test_ended_pod_shows_reason_and_cause() -> None:
    disrupted = condition("DisruptionTarget", "True", "Reclaimed", "OutOfTimeWindows: reclaimed by owner/nights")
    lost = new_pod(MAPPED, disrupted, phase="Failed", reason="Reclaimed", message="the pod below is gone")
    assert diagnosis(lost)[:2] == ("Failed", "Reclaimed")
    assert diagnosis(lost)[2].endswith("reclaimed by owner/nights")
    assert diagnosis(new_pod(MAPPED, phase="Succeeded")) == ("Succeeded", "", "")
    done = {"name": "c", "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}
    failed = new_pod(MAPPED, phase="Failed", containerStatuses=[done])
    assert diagnosis(failed) == ("Failed", "Error", "container c ended with 3 (Error)")


def test_terminating_pod_shows_whether_it_was_reclaimed() -> None:
    going = with_metadata(new_pod(MAPPED, phase="Running"), deletionTimestamp=LATER)
    assert diagnosis(going)[:2] == ("Leaving", "Deleted")
    assert pod_status(PlacedPod(going, NODE, new_binding())).phase == "Terminating"
    disrupted = condition("DisruptionTarget", "True", "Reclaimed", "Unbound: reclaimed by unbinding")
    taken = with_metadata(new_pod(MAPPED, disrupted, phase="Running"), deletionTimestamp=LATER)
    assert diagnosis(taken) == ("Leaving", "Reclaimed", "Unbound: reclaimed by unbinding")


# -- explanations


def explain(pod: Object, lookup: TwinLookup = TwinLookup(), nodes: list[Object] | None = None) -> PodExplanation:  # noqa: B008
    placed = PlacedPod(pod, NODE, new_binding()) if pod["spec"].get("nodeName") else PlacedPod(pod)
    return pod_explanation(placed, lookup, [NODE] if nodes is None else nodes, {}, None)


def test_explanation_shows_node_and_phase_of_twin() -> None:
    twin = {"metadata": {"uid": "uid-twin"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}
    explanation = explain(new_pod(MAPPED, phase="Running"), TwinLookup(twin, succeeded=True))
    assert (explanation.twin_phase, explanation.twin_node, explanation.todo) == ("Running", "n1", "")


@pytest.mark.parametrize("uid", [None, "another"])
def test_lost_twin_is_reported_before_pod_changes(uid: str | None) -> None:
    twin = {"metadata": {"uid": uid}, "spec": {}} if uid else None
    explanation = explain(new_pod(MAPPED, phase="Running"), TwinLookup(twin, succeeded=True))
    assert (explanation.pod.state, explanation.pod.reason) == ("Waiting", "TwinLost")
    unreadable = explain(new_pod(MAPPED, phase="Running"), TwinLookup(error="no answer"))
    assert (unreadable.pod.state, unreadable.unseen) == ("Running", "no answer")


def test_pod_waiting_for_capacity_shows_deadline() -> None:
    rejected = new_pod(condition(keys.MAPPED_CONDITION, "False", "RefusedBelow", "exceeded quota", LATER))
    assert explain(rejected).deadline == datetime(2026, 3, 2, 12, 6, tzinfo=UTC)
    unscheduled = new_pod(MAPPED, condition("PodScheduled", "False", "Unschedulable", "Insufficient cpu", LATER))
    assert explain(unscheduled).deadline == datetime(2026, 3, 2, 12, 6, tzinfo=UTC)
    missing = new_pod(
        condition(keys.MAPPED_CONDITION, "False", "SecretMissing", "secrets shop/p does not exist", LATER)
    )
    assert explain(missing).deadline is None


def test_gated_twin_is_reported() -> None:
    gated = condition("PodScheduled", "False", "SchedulingGatedBelow", "a gate below holds it back", LATER)
    explanation = explain(new_pod(MAPPED, gated))
    assert (explanation.pod.state, explanation.pod.reason) == ("Waiting", "SchedulingGatedBelow")
    assert explanation.deadline == datetime(2026, 3, 2, 12, 6, tzinfo=UTC)
    failed = explain(new_pod(MAPPED, phase="Failed", reason="SchedulingGatedBelow"))
    for todo in (explanation.todo, failed.todo):
        assert "scheduling gates" in todo
        assert "room" not in todo


def test_uncopied_keys_and_missing_dns_are_noted() -> None:
    pod = with_metadata(new_pod(MAPPED), labels={"kueue.x-k8s.io/queue-name": "q", "app": "web"})
    [note] = explain(pod).notes
    assert note.endswith(": kueue.x-k8s.io/queue-name")
    spec = structs.replace(new_binding().spec, service_namespaces=("shop",))
    placed = PlacedPod(new_pod(MAPPED), NODE, replace(new_binding(), spec=spec))
    [note] = pod_explanation(placed, TwinLookup(), [NODE], {}, None).notes
    assert "headless and later Services need DNS" in note


def test_pod_without_node_shows_obstacles() -> None:
    tainted = {**NODE, "spec": {"taints": [{"key": keys.VNODE_TAINT, "effect": "NoSchedule"}]}}
    explanation = explain(new_pod(node=""), nodes=[tainted, NODE])
    assert [each.what for each in explanation.obstacles] == ["taint tapestry.io/vnode:NoSchedule"]
    assert (explanation.nodes, explanation.free_nodes) == (2, 1)
    assert explain(new_pod(node=""), nodes=[]).pod.reason == "NoNodes"


@pytest.mark.parametrize("reason", sorted({*DISRUPTIONS.values(), "PhysicalPodLost", "RefusedBelow"}))
def test_every_end_reason_has_advice(reason: str) -> None:
    explanation = explain(new_pod(MAPPED, phase="Failed", reason=reason))
    assert (explanation.pod.state, explanation.todo) == ("Failed", ADVICE[reason])


def test_tree_draws_connected_branches() -> None:
    pods = [PodLeaf("shop/a", "Running", "leased/a-1", ""), PodLeaf("shop/b", "Pending", "", "SecretMissing")]
    nodes = [NodeBranch("vnode-e1-n1", "n1", "Open", pods), NodeBranch("vnode-e1-n2", "n2", "Closed", [])]
    tree = Tree("v", [BindingBranch("east", "e1", "Ready", "Leasing", nodes), BindingBranch("west", "w1", "", "", [])])
    assert tree_text(tree).splitlines() == [
        "virtual cluster v",
        "├─ east (e1): Ready, Leasing; 2 nodes, 2 pods",
        "│  ├─ vnode-e1-n1 -> n1: Open",
        "│  │  ├─ shop/a -> leased/a-1: Running",
        "│  │  └─ shop/b: Pending, SecretMissing",
        "│  └─ vnode-e1-n2 -> n2: Closed",
        "└─ west (w1): -; 0 nodes, 0 pods",
    ]


def test_tree_without_bindings_shows_hint() -> None:
    assert "tapestry join" in tree_text(Tree("v", []))
