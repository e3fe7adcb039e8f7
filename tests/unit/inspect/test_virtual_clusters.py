"""Faults of virtual clusters: why pods do not run, and what to do."""

from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.inspect.virtual_clusters import (
    MAX_GROUPS,
    POD_SECURITY_ADVICE,
    QUOTA_ADVICE,
    Fault,
    cluster_faults,
    host_faults,
    operation_faults,
    pod_faults,
)
from tapestry.kube.objects import Object

RESTRICTED = 'pods "work" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'
OVER_QUOTA = "exceeded quota: tenant, requested: pods=1, used: pods=1, limited: pods=1"


def new_pod(name: str = "work", phase: str = "Pending", *conditions: Object, **status: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {},
        "status": {"phase": phase, "conditions": list(conditions), **status},
    }


def condition(type: str, reason: str, message: str = "", status: str = "False") -> Object:
    return {"type": type, "status": status, "reason": reason, "message": message}


MAPPED = condition(keys.MAPPED_CONDITION, "Mapped", status="True")


@pytest.mark.parametrize(
    ("given", "reason", "message", "advice"),
    [
        (
            condition(keys.ACCEPTED_CONDITION, "PodSecurity", "hostNetwork: true"),
            *("PodSecurity", "hostNetwork: true"),
            POD_SECURITY_ADVICE,
        ),
        (condition(keys.MAPPED_CONDITION, "RefusedBelow", RESTRICTED), "RefusedBelow", RESTRICTED, POD_SECURITY_ADVICE),
        (condition(keys.ACCEPTED_CONDITION, "QuotaExceeded", OVER_QUOTA), "QuotaExceeded", OVER_QUOTA, QUOTA_ADVICE),
        (condition(keys.MAPPED_CONDITION, "RefusedBelow", OVER_QUOTA), "RefusedBelow", OVER_QUOTA, QUOTA_ADVICE),
    ],
)
def test_rejection_by_host_has_its_message_and_advice(given: Object, reason: str, message: str, advice: str) -> None:
    assert list(pod_faults([new_pod("work", "Pending", given)])) == [
        Fault(f"pod shop/work: {reason}: {message}", advice)
    ]


def test_pending_pod_has_the_message_of_the_scheduler() -> None:
    scheduled = condition("PodScheduled", "Unschedulable", "0/2 nodes are available: 2 Insufficient cpu.")
    [fault] = pod_faults([new_pod("work", "Pending", MAPPED, scheduled)])
    assert fault.text == "pod shop/work: UnschedulableBelow: 0/2 nodes are available: 2 Insufficient cpu."
    [fault] = pod_faults([new_pod("work", "Pending", scheduled)])
    assert fault.text == "pod shop/work: Unschedulable: 0/2 nodes are available: 2 Insufficient cpu."


def test_waiting_container_is_a_fault() -> None:
    waiting = [{"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]
    [fault] = pod_faults([new_pod("work", "Running", MAPPED, containerStatuses=waiting)])
    assert fault.text == "pod shop/work: ImagePullBackOff: no such image"
    assert "name of the image" in fault.advice


@pytest.mark.parametrize(
    "pod",
    [
        new_pod("ok", "Running", MAPPED),
        new_pod("starts", "Pending", MAPPED),
        new_pod("done", "Succeeded"),
        new_pod("bad-program", "Failed", reason="Error", message="exit code 1"),
    ],
)
def test_other_pods_are_no_faults(pod: Object) -> None:
    assert list(pod_faults([pod])) == []


def test_equal_reasons_are_one_fault() -> None:
    rejected = condition(keys.ACCEPTED_CONDITION, "QuotaExceeded", OVER_QUOTA)
    [fault] = pod_faults([new_pod(f"p{number}", "Pending", rejected) for number in range(5)])
    assert fault.text == f"5 pods (shop/p0, shop/p1, shop/p2, ...): QuotaExceeded: {OVER_QUOTA}"
    many = [
        new_pod(f"p{number}", "Pending", condition(keys.ACCEPTED_CONDITION, "R", str(number))) for number in range(20)
    ]
    faults = list(pod_faults(many))
    assert len(faults) == MAX_GROUPS + 1
    assert faults[-1].text == "12 more pods have other problems"


def test_conditions_are_judged_by_their_type() -> None:
    conditions = [
        condition("Healthy", "Healthy", status="True"),
        condition("FieldsMapped", "AllHonored"),
        condition("HostUnreachable", "Reachable"),
        condition("CertificatesExpiring", "Soon", "the certificate of the plane expires in 5 days", "True"),
        condition("SomethingNew", "Broken", "it is broken"),
    ]
    faults = list(cluster_faults({"status": {"phase": "PHASE_RUNNING", "conditions": conditions}}))
    assert [each.text for each in faults] == [
        "condition CertificatesExpiring is True: the certificate of the plane expires in 5 days",
        "condition SomethingNew is False: it is broken",
    ]
    assert all(each.advice for each in faults)


def test_message_of_a_phase_is_a_fault() -> None:
    status = {"phase": "PHASE_CREATING", "message": "the host cluster is not ready", "reason": "Waiting"}
    assert [each.text for each in cluster_faults({"status": status})] == ["Waiting: the host cluster is not ready"]
    assert list(cluster_faults({"status": {**status, "phase": "PHASE_RUNNING"}})) == []


def test_step_that_is_tried_again_is_a_fault() -> None:
    step = {"name": "Install", "attempt": 3, "error": "no answer"}
    ended = {"id": "op-1", "verb": "Scale", "done": True, "error": {"message": "too large"}}
    running = {"id": "op-2", "verb": "Update", "steps": [{"name": "Check"}, step]}
    assert [each.text for each in operation_faults([running, ended, ended])] == [
        "operation op-2 (Update) tries step Install again, attempt 3: no answer",
        "operation op-1 (Scale) failed: too large",
    ]


def test_host_without_nodes_is_a_fault() -> None:
    reachable = [condition("Reachable", "Reachable", status="True")]
    assert list(host_faults({"name": "east", "nodes": 2, "conditions": reachable})) == []
    [fault] = host_faults({"name": "east", "nodes": 0, "conditions": reachable})
    assert fault.text == "host cluster east has no nodes"
