"""Pod statuses computed from container states."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object
from tapestry.kube.times import timestamp
from tapestry.local.statuses import (
    ContainerStatuses,
    PodAddresses,
    container_status,
    pod_status,
    running_state,
    terminated_state,
    waiting_state,
)

from .pods import new_pod

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ADDRESSES = PodAddresses("127.64.0.1", "127.96.0.1")
CREATING, BACK_OFF = waiting_state("ContainerCreating"), waiting_state("CrashLoopBackOff")
RUNS, WELL, BADLY = running_state(NOW), terminated_state(0, NOW, NOW), terminated_state(1, NOW, NOW)
INIT = {"initContainers": [{"name": "i", "image": "i"}]}
SIDECAR = {"initContainers": [{"name": "i", "image": "i", "restartPolicy": "Always"}]}


def container(state: Object, last: Object | None = None, name: str = "c") -> Object:
    return container_status({"name": name}, state, "x", last=last, ready="running" in state)


def status(main: list[Object], init: list[Object] | None = None, **spec: Any) -> Object:
    containers = [{"name": f"c{number}", "image": "i"} for number in range(len(main))]
    return pod_status(
        new_pod(**{"containers": containers, **spec}), ContainerStatuses(main, init or []), ADDRESSES, NOW
    )


@pytest.mark.parametrize(
    ("states", "policy", "phase"),
    [
        ([CREATING], "Always", "Pending"),
        ([RUNS, CREATING], "Always", "Pending"),
        ([RUNS], "Always", "Running"),
        ([RUNS, BADLY], "Never", "Running"),
        ([WELL], "Always", "Running"),
        ([BADLY], "Always", "Running"),
        ([BADLY], "OnFailure", "Running"),
        ([WELL, WELL], "OnFailure", "Succeeded"),
        ([WELL, WELL], "Never", "Succeeded"),
        ([WELL, BADLY], "Never", "Failed"),
    ],
)
def test_phase_follows_containers(states: list[Object], policy: str, phase: str) -> None:
    assert status([container(each) for each in states], restartPolicy=policy)["phase"] == phase


def test_backing_off_container_counts_as_run() -> None:
    assert status([container(BACK_OFF, BADLY)])["phase"] == "Running"


@pytest.mark.parametrize(
    ("state", "policy", "phase"),
    [
        (RUNS, "Never", "Pending"),
        (BADLY, "Never", "Failed"),
        (BADLY, "OnFailure", "Pending"),
        (WELL, "Never", "Running"),
    ],
)
def test_init_containers_are_first(state: Object, policy: str, phase: str) -> None:
    main = [container(RUNS if state is WELL else CREATING)]
    found = status(main, [container(state, name="i")], restartPolicy=policy, **INIT)
    assert found["phase"] == phase
    assert find_condition(found["conditions"], "Initialized")["status"] == str(state is WELL)


def test_sidecar_only_has_to_start_and_delays_end() -> None:
    assert status([container(RUNS)], [container(CREATING, name="i")], **SIDECAR)["phase"] == "Pending"
    assert status([container(RUNS)], [container(RUNS, name="i")], **SIDECAR)["phase"] == "Running"
    spec = {**SIDECAR, "restartPolicy": "Never"}
    assert status([container(WELL)], [container(RUNS, name="i")], **spec)["phase"] == "Running"
    assert status([container(WELL)], [container(BADLY, name="i")], **spec)["phase"] == "Succeeded"


def test_deleted_pod_ends_with_its_containers() -> None:
    pod = new_pod()
    pod["metadata"]["deletionTimestamp"] = timestamp(NOW)
    assert pod_status(pod, ContainerStatuses([container(RUNS)]), ADDRESSES, NOW)["phase"] == "Running"
    assert pod_status(pod, ContainerStatuses([container(WELL)]), ADDRESSES, NOW)["phase"] == "Succeeded"
    assert pod_status(pod, ContainerStatuses([container(BADLY)]), ADDRESSES, NOW)["phase"] == "Failed"


def test_unready_containers_are_named_and_times_remain() -> None:
    pod = new_pod()
    first = pod_status(pod, ContainerStatuses([container(CREATING)]), PodAddresses(ADDRESSES.host_ip), NOW)
    assert find_condition(first["conditions"], "Ready")["message"] == "containers with unready status: [c]"
    assert find_condition(first["conditions"], "PodReadyToStartContainers")["status"] == "False"
    later = NOW + timedelta(seconds=9)
    second = pod_status({**pod, "status": first}, ContainerStatuses([container(RUNS)]), ADDRESSES, later)
    moments = {each["type"]: each["lastTransitionTime"] for each in second["conditions"]}
    assert moments == {
        "PodReadyToStartContainers": timestamp(later),
        "Initialized": timestamp(NOW),
        "Ready": timestamp(later),
        "ContainersReady": timestamp(later),
        "PodScheduled": timestamp(NOW),
    }
    assert second["startTime"] == first["startTime"]


def test_foreign_conditions_remain() -> None:
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    pod = {**new_pod(), "status": {"conditions": [target]}}
    assert (
        target["reason"]
        == find_condition(
            pod_status(pod, ContainerStatuses([container(RUNS)]), ADDRESSES, NOW)["conditions"], "DisruptionTarget"
        )["reason"]
    )


def test_observed_generation_is_reported() -> None:
    assert status([container(RUNS)])["observedGeneration"] == 1
