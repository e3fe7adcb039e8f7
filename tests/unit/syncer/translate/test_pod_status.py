"""Patches that write a twin's status to its pod, and that none is needed afterwards."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis import keys
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, annotations_of, labels_of
from tapestry.kube.pods import CONTAINER_FIELDS
from tapestry.kube.strategic_merge import PatchSchemas, apply_strategic_merge_patch
from tapestry.syncer.cache_transforms import virtual_pod
from tapestry.syncer.translate.pod_status import (
    CONTAINER_LISTS,
    TWIN_CONDITIONS,
    failed_status_patch,
    false_condition_patch,
    is_pod_terminal,
    loss_reason,
    mapped_uid,
    sanitized_pod_status,
    virtual_status_patch,
)
from tapestry.syncer.translate.sanitize import MAX_TEXT_BYTES

NOW = datetime(2026, 1, 2, tzinfo=UTC)
EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"
TWIN: Object = {
    "metadata": {
        "name": "web-x",
        "namespace": "leased",
        "uid": "twin",
        "labels": {"app": "relabelled", "team": "mallory"},
        "annotations": {"note": "forged", keys.PHYSICAL_NODE_NAME: "forged"},
    }
}


def merged_by(key: str) -> Object:
    return {"x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": key, "items": {"type": "object"}}


STATUS = {
    **{field: {"items": {"type": "object"}} for field in CONTAINER_LISTS},
    "conditions": merged_by("type"),
    "hostIPs": merged_by("ip"),
    "podIPs": merged_by("ip"),
}
POD = {"metadata": {"properties": {"annotations": {}}}, "status": {"properties": STATUS}}
SCHEMA = PatchSchemas({"Pod": {"properties": POD}}).of("Pod")


def new_pod(*conditions: Object, spec: Object | None = None, **status: Any) -> Object:
    """Return a running virtual pod as its API server returns it."""
    return {
        "metadata": {"name": "web", "namespace": "team-a", "uid": "pod", "labels": {"app": "web"}},
        "spec": {"nodeName": "vnode-east-n1", "containers": [{"name": "app"}], **(spec or {})},
        "status": {"phase": "Running", "conditions": [MAPPED, *conditions], **status},
    }


def new_condition(type: str, status: str = "True", since: str = EARLY, **fields: Any) -> Object:
    return {"type": type, "status": status, "lastProbeTime": None, "lastTransitionTime": since, **fields}


MAPPED = new_condition(keys.MAPPED_CONDITION, message="twin", reason="Mapped")
NOT_READY = new_condition(
    "Ready", "False", reason="ContainersNotReady", message="containers with unready status: [app]"
)
UNPLACED = new_condition("PodScheduled", "False", reason="Unschedulable", message="no room")


def new_status(*conditions: Object, **status: Any) -> Object:
    """Return the status of a twin."""
    return {"phase": "Running", "conditions": list(conditions), **status}


def new_container(name: str = "app", **fields: Any) -> Object:
    return {"name": name, "ready": True, "restartCount": 0, "image": "i", "imageID": "d", **fields}


def patch_for(pod: Object, status: Object) -> Object | None:
    return virtual_status_patch(virtual_pod({**pod}), TWIN, sanitized_pod_status(status), NOW)


def after(pod: Object, status: Object) -> Object:
    """Return the pod after that status was written; writing it again must change nothing."""
    patch = patch_for(pod, status)
    assert patch is not None
    patched = apply_strategic_merge_patch(pod, patch, SCHEMA)
    assert patch_for(patched, status) is None
    return patched


def condition(pod: Object, type: str) -> Object | None:
    """Return a condition without null fields."""
    found = find_condition(pod["status"]["conditions"], type)
    return found and {field: value for field, value in found.items() if value is not None}


# -- the first patch


def test_first_patch_records_the_twin() -> None:
    pod = new_pod()
    pod["status"] = {"phase": "Pending"}
    patched = after(pod, new_status(phase="Pending"))
    assert mapped_uid(patched) == "twin"
    assert annotations_of(patched) == {
        keys.PHYSICAL_POD_NAMESPACE: "leased",
        keys.PHYSICAL_POD_NAME: "web-x",
        keys.PHYSICAL_POD_UID: "twin",
        keys.LAST_SYNC_TIME: "2026-01-02T00:00:00Z",
    }


def test_unmapped_pod_becomes_mapped() -> None:
    pod = new_pod()
    pod["status"]["conditions"] = false_condition_patch(keys.MAPPED_CONDITION, "RefusedBelow", "no quota", NOW)[
        "status"
    ]["conditions"]
    assert mapped_uid(after(pod, new_status())) == "twin"


def test_twin_metadata_is_not_copied() -> None:
    patched = after(new_pod(), new_status(podIP="10.0.0.1"))
    assert labels_of(patched) == {"app": "web"}
    assert annotations_of(patched).keys() == {
        keys.PHYSICAL_POD_NAMESPACE,
        keys.PHYSICAL_POD_NAME,
        keys.PHYSICAL_POD_UID,
        keys.LAST_SYNC_TIME,
    }


def test_written_status_is_not_written_again() -> None:
    assert patch_for(new_pod(), new_status()) is None


# -- fields


def test_everything_a_kubelet_reports_is_copied() -> None:
    containers = [new_container(started=True, containerID="c://1", state={"running": {"startedAt": EARLY}})]
    running = new_status(
        new_condition("Ready"),
        new_condition("Initialized"),
        startTime=EARLY,
        hostIP="10.1.0.1",
        hostIPs=[{"ip": "10.1.0.1"}],
        podIP="10.0.0.1",
        podIPs=[{"ip": "10.0.0.1"}, {"ip": "2001:db8::1"}],
        containerStatuses=containers,
        qosClass="Guaranteed",
    )
    status = after(new_pod(phase="Pending"), running)["status"]
    assert status["phase"] == "Running"
    assert status["startTime"] == EARLY
    assert (status["hostIP"], status["podIP"]) == ("10.1.0.1", "10.0.0.1")
    assert status["podIPs"] == [{"ip": "10.0.0.1"}, {"ip": "2001:db8::1"}]
    assert status["containerStatuses"] == containers
    assert "qosClass" not in status  # the virtual API server set it at creation and rejects changes


@pytest.mark.parametrize(
    "fields",
    [("reason",), ("message",), ("startTime",), ("hostIP", "hostIPs"), ("podIP", "podIPs"), *zip(CONTAINER_LISTS)],
    ids=lambda fields: fields[0],
)
def test_removed_fields_are_removed(fields: tuple[str, ...]) -> None:
    had = {
        "reason": "r",
        "message": "m",
        "startTime": EARLY,
        "hostIP": "10.1.0.1",
        "hostIPs": [{"ip": "10.1.0.1"}],
        "podIP": "10.0.0.1",
        "podIPs": [{"ip": "10.0.0.1"}],
        **{field: [new_container()] for field in CONTAINER_LISTS},
    }
    left = {field: value for field, value in had.items() if field not in fields}
    pod = new_pod(spec={field: [{"name": "app"}] for field in CONTAINER_FIELDS}, **had)
    assert after(pod, new_status(**left))["status"].keys() == {"phase", "conditions", *left}


def test_changed_address_replaces_the_old_one() -> None:
    before = new_pod(podIP="10.0.0.1", podIPs=[{"ip": "10.0.0.1"}, {"ip": "2001:db8::1"}])
    status = after(before, new_status(podIP="10.0.0.2", podIPs=[{"ip": "10.0.0.2"}]))["status"]
    assert (status["podIP"], status["podIPs"]) == ("10.0.0.2", [{"ip": "10.0.0.2"}])


def test_unknown_containers_are_not_copied() -> None:
    listed = [new_container(), new_container("injected")]
    spec = {"initContainers": [{"name": "init"}]}
    status = after(new_pod(spec=spec), new_status(containerStatuses=listed, initContainerStatuses=listed))["status"]
    assert [each["name"] for each in status["containerStatuses"]] == ["app"]
    assert "initContainerStatuses" not in status


# -- conditions


def test_true_condition_loses_its_reason() -> None:
    patched = after(new_pod(NOT_READY), new_status(new_condition("Ready", since=LATE)))
    assert condition(patched, "Ready") == {"type": "Ready", "status": "True", "lastTransitionTime": LATE}


def test_condition_without_time_stays_without() -> None:
    ready = {"type": "Ready", "status": "True"}
    assert condition(after(new_pod(NOT_READY), new_status(ready)), "Ready") == ready


def test_finished_resize_condition_is_removed() -> None:
    before = new_pod(new_condition("PodResizeInProgress"), new_condition("Ready"))
    patched = after(before, new_status(new_condition("Ready")))
    assert condition(patched, "PodResizeInProgress") is None
    assert condition(patched, "Ready") is not None


def test_virtual_only_conditions_stay() -> None:
    others = [
        new_condition("example.com/gate"),
        new_condition("AccountedFor", "Unknown"),
        new_condition(keys.ACCEPTED_CONDITION, "False"),
    ]
    patched = after(new_pod(*others), new_status(new_condition("Ready"), new_condition("example.com/gate", "False")))
    assert [each for each in patched["status"]["conditions"] if each["type"] not in TWIN_CONDITIONS] == [
        MAPPED,
        *others,
    ]


def test_removed_condition_is_restored() -> None:
    status = new_status(new_condition("Ready"))
    assert condition(after(new_pod(), status), "Ready") is not None


def test_node_controllers_unready_is_overruled() -> None:
    virtual = new_condition("Ready", "False", since=LATE, reason="NodeNotReady")
    assert (condition(after(new_pod(virtual), new_status(new_condition("Ready"))), "Ready") or {})["status"] == "True"


def test_pod_scheduled_true_is_not_copied() -> None:
    virtual = new_condition("PodScheduled", since=LATE)
    assert patch_for(new_pod(virtual), new_status()) is None
    assert patch_for(new_pod(virtual), new_status(new_condition("PodScheduled", since=EARLY))) is None


def test_pod_created_with_node_becomes_scheduled() -> None:
    pod = new_pod()
    pod["status"] = {"phase": "Pending"}
    patched = after(pod, new_status(phase="Pending"))
    assert condition(patched, "PodScheduled") == {"type": "PodScheduled", "status": "True"}


def test_first_patch_keeps_the_schedulers_time() -> None:
    pod = new_pod()
    pod["status"] = {"phase": "Pending", "conditions": [new_condition("PodScheduled", since=EARLY)]}
    assert (condition(after(pod, new_status(phase="Pending")), "PodScheduled") or {})["lastTransitionTime"] == EARLY


def test_unschedulable_condition_is_copied_and_removed() -> None:
    pod = after(new_pod(new_condition("PodScheduled")), new_status(UNPLACED))
    assert condition(pod, "PodScheduled") == {key: value for key, value in UNPLACED.items() if value is not None}
    pod = after(pod, new_status(new_condition("PodScheduled", since=LATE)))
    assert condition(pod, "PodScheduled") == {
        "type": "PodScheduled",
        "status": "True",
        "lastTransitionTime": "2026-01-02T00:00:00Z",
    }


def test_first_patch_may_be_unschedulable() -> None:
    pod = new_pod()
    pod["status"] = {"phase": "Pending", "conditions": [new_condition("PodScheduled")]}
    assert (condition(after(pod, new_status(UNPLACED, phase="Pending")), "PodScheduled") or {})["status"] == "False"


def test_physical_gate_is_not_the_pods_gate() -> None:
    gated = new_condition("PodScheduled", "False", reason="SchedulingGated", message="non-empty scheduling gates")
    pod = after(new_pod(new_condition("PodScheduled")), new_status(gated, phase="Pending"))
    found = condition(pod, "PodScheduled") or {}
    assert (found["status"], found["reason"]) == ("False", "SchedulingGatedBelow")
    assert "physical cluster" in found["message"]
    misled = new_pod(gated)  # as an earlier version wrote it
    assert (condition(after(misled, new_status(gated)), "PodScheduled") or {})["reason"] == "SchedulingGatedBelow"
    assert (condition(after(pod, new_status()), "PodScheduled") or {})["status"] == "True"


# -- disruptions

RECLAIMED = new_condition("DisruptionTarget", reason="Reclaimed", message="the window closed")
PREEMPTED = new_condition("DisruptionTarget", since=LATE, reason="PreemptionByScheduler")


def test_physical_disruption_is_copied() -> None:
    assert (condition(after(new_pod(), new_status(PREEMPTED)), "DisruptionTarget") or {})[
        "reason"
    ] == "PreemptionByScheduler"


def test_virtual_disruption_stays() -> None:
    patched = after(new_pod(RECLAIMED), new_status(podIP="10.0.0.1"))
    assert (condition(patched, "DisruptionTarget") or {})["reason"] == "Reclaimed"
    assert patch_for(new_pod(RECLAIMED), new_status()) is None


def test_physical_disruption_takes_precedence() -> None:
    patched = after(new_pod(RECLAIMED), new_status(PREEMPTED))
    assert condition(patched, "DisruptionTarget") == {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "lastTransitionTime": LATE,
    }


@pytest.mark.parametrize(
    ("disruption", "reason"),
    [
        ("PreemptionByScheduler", "Preempted"),
        ("EvictionByEvictionAPI", "Evicted"),
        ("DeletionByTaintManager", "Evicted"),
        ("TerminationByKubelet", "Evicted"),
        ("Reclaimed", "Reclaimed"),
        ("DeletionByPodGC", "PhysicalPodLost"),
        (None, "PhysicalPodLost"),
    ],
)
def test_disruption_explains_a_lost_twin(disruption: str | None, reason: str) -> None:
    conditions = [new_condition("DisruptionTarget", reason=disruption)] if disruption else []
    assert loss_reason(new_pod(*conditions)) == reason


# -- phases


@pytest.mark.parametrize(
    ("pod_phase", "twin_phase", "phase"),
    [
        ("Pending", "Pending", "Pending"),
        ("Pending", "Running", "Running"),
        ("Pending", "Failed", "Failed"),
        ("Running", "Pending", "Running"),
        ("Running", "Unknown", "Running"),
        ("Running", "Succeeded", "Succeeded"),
        ("Unknown", "Running", "Running"),
    ],
)
def test_safety_rule_9_phase_never_goes_backwards(pod_phase: str, twin_phase: str, phase: str) -> None:
    patched = after(new_pod(phase=pod_phase), new_status(phase=twin_phase, message="m"))
    assert (patched["status"]["phase"], patched["status"]["message"]) == (phase, "m")


@pytest.mark.parametrize("pod_phase", ["Succeeded", "Failed"])
@pytest.mark.parametrize("twin_phase", ["Pending", "Running", "Succeeded", "Failed"])
def test_ended_pod_is_never_changed(pod_phase: str, twin_phase: str) -> None:
    pod = new_pod(phase=pod_phase)
    assert is_pod_terminal(pod)
    assert patch_for(pod, new_status(phase=twin_phase, message="m")) is None
    pod["status"]["conditions"] = []  # not even mapped
    assert patch_for(pod, new_status(phase=twin_phase, message="m")) is None


# -- readiness gates

GATED = {"readinessGates": [{"conditionType": "example.com/a"}, {"conditionType": "example.com/b"}]}


def test_pod_is_unready_until_all_gates_are_true() -> None:
    patched = after(new_pod(new_condition("example.com/a"), spec=GATED), new_status(new_condition("Ready")))
    assert condition(patched, "Ready") == {
        "type": "Ready",
        "status": "False",
        "reason": "ReadinessGatesNotReady",
        "message": "not true yet: example.com/b",
        "lastTransitionTime": EARLY,
    }


def test_false_gate_blocks_readiness() -> None:
    gates = [new_condition("example.com/a"), new_condition("example.com/b", "False")]
    patched = after(new_pod(*gates, spec=GATED), new_status(new_condition("Ready")))
    assert (condition(patched, "Ready") or {})["status"] == "False"


def test_pod_is_ready_since_its_last_gate() -> None:
    gates = [new_condition("example.com/a", since=LATE), new_condition("example.com/b")]
    patched = after(new_pod(*gates, spec=GATED), new_status(new_condition("Ready")))
    assert condition(patched, "Ready") == {"type": "Ready", "status": "True", "lastTransitionTime": LATE}


def test_gates_alone_do_not_make_ready() -> None:
    gates = [new_condition("example.com/a"), new_condition("example.com/b")]
    patched = after(new_pod(*gates, spec=GATED), new_status(NOT_READY))
    assert (condition(patched, "Ready") or {})["reason"] == "ContainersNotReady"


def test_twin_cannot_open_gates() -> None:
    physical = [new_condition("Ready"), new_condition("example.com/a"), new_condition("example.com/b")]
    assert (condition(after(new_pod(spec=GATED), new_status(*physical)), "Ready") or {})["status"] == "False"


def test_gate_may_be_a_twin_condition() -> None:
    spec = {"readinessGates": [{"conditionType": "ContainersReady"}]}
    physical = [new_condition("Ready"), new_condition("ContainersReady")]
    assert (condition(after(new_pod(spec=spec), new_status(*physical)), "Ready") or {})["status"] == "True"


def test_many_gates_make_a_bounded_message() -> None:
    spec = {"readinessGates": [{"conditionType": f"example.com/{number:04}"} for number in range(1000)]}
    patched = after(new_pod(spec=spec), new_status(new_condition("Ready")))
    assert len((condition(patched, "Ready") or {})["message"]) <= MAX_TEXT_BYTES


# -- conditions of the syncer


def test_own_condition_is_recognized_in_the_cache() -> None:
    condition_of_ours = false_condition_patch(keys.ACCEPTED_CONDITION, "PodSecurity", "hostPath", NOW)["status"][
        "conditions"
    ][0]
    served = {**condition_of_ours, "lastProbeTime": None}  # as a kube-apiserver returns it
    cached = virtual_pod({**new_pod(), "status": {"conditions": [served]}}).object
    assert find_condition(cached["status"]["conditions"], keys.ACCEPTED_CONDITION) == condition_of_ours


def test_own_texts_are_truncated() -> None:
    assert (
        len(false_condition_patch("t", "r", "x" * 10_000, NOW)["status"]["conditions"][0]["message"]) == MAX_TEXT_BYTES
    )
    assert failed_status_patch("r", "x" * 10_000)["status"] == {
        "phase": "Failed",
        "reason": "r",
        "message": "x" * MAX_TEXT_BYTES,
    }


# -- properties

TYPES = st.sampled_from(sorted(TWIN_CONDITIONS | {"DisruptionTarget", "example.com/gate"}))
STATUSES = st.fixed_dictionaries(
    {
        "phase": st.sampled_from(["Pending", "Running"]),
        "conditions": st.lists(
            st.builds(
                new_condition,
                TYPES,
                st.sampled_from(["True", "False"]),
                st.sampled_from([EARLY, LATE]),
                reason=st.sampled_from([None, "", "r"]),
            ),
            max_size=4,
        ),
    },
    optional={
        "message": st.sampled_from(["", "m"]),
        "podIP": st.sampled_from(["10.0.0.1", "10.0.0.2", "127.0.0.1"]),
        "podIPs": st.lists(st.sampled_from([{"ip": "10.0.0.1"}, {"ip": "2001:db8::1"}]), max_size=2),
        "containerStatuses": st.lists(st.sampled_from([new_container(), new_container("other")]), max_size=2),
    },
)


@given(statuses=st.lists(STATUSES, min_size=1, max_size=5), gated=st.booleans())
def test_each_status_needs_at_most_one_patch(statuses: list[Object], gated: bool) -> None:
    pod = new_pod(spec={"readinessGates": [{"conditionType": "example.com/gate"}]} if gated else {})
    for status in statuses:
        if patch_for(pod, status) is not None:
            pod = after(pod, status)
        assert patch_for(pod, status) is None
