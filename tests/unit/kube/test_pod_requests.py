"""Tests of pod requests against the rules of Kubernetes (PodRequests in k8s.io/component-helpers/resource, 1.34).

The upstream function expects a pod whose requests the server has set from its limits. Ours does this itself.
"""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.objects import Object
from tapestry.kube.pod_requests import compute_requests, effective_requests, occupies_node, pod_allocation
from tapestry.kube.quantity import ResourceList, parse_quantity


def new_container(name: str = "main", limits: Object | None = None, **requests: Any) -> Object:
    resources = {"requests": requests} if requests else {}
    return {"name": name, "resources": {**resources, "limits": limits} if limits else resources}


def new_sidecar(name: str, **requests: Any) -> Object:
    return {**new_container(name, **requests), "restartPolicy": "Always"}


def new_pod(*containers: Object, init: tuple[Object, ...] = (), status: Object | None = None, **spec: Any) -> Object:
    metadata = {"name": "p", "namespace": "default", "creationTimestamp": "2026-03-02T08:00:00Z"}
    return {
        "metadata": metadata,
        "spec": {"nodeName": "n1", "containers": list(containers), "initContainers": list(init), **spec},
        "status": status or {"phase": "Running"},
    }


def amounts(**texts: Any) -> ResourceList:
    return ResourceList.parse({**texts, "pods": 1})


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(new_pod(new_container()), amounts(), id="a pod without requests counts as a pod"),
        pytest.param(
            new_pod(new_container("a", cpu="500m", memory="1Gi"), new_container("b", cpu="1")),
            amounts(cpu="1500m", memory="1Gi"),
            id="containers run side by side",
        ),
        pytest.param(
            new_pod(new_container(cpu="1"), init=(new_container("i", cpu="3"), new_container("j", cpu="2"))),
            amounts(cpu=3),
            id="init containers run one after another, before the rest",
        ),
        pytest.param(
            new_pod(new_container(cpu="1", memory="4Gi"), init=(new_container("i", cpu="2", memory="1Gi"),)),
            amounts(cpu=2, memory="4Gi"),
            id="the maximum of the phases counts for each resource",
        ),
        pytest.param(
            new_pod(new_container(cpu="1"), init=(new_sidecar("s", cpu="2"),)),
            amounts(cpu=3),
            id="a sidecar runs beside the containers",
        ),
        pytest.param(
            new_pod(new_container(cpu="1"), init=(new_sidecar("s", cpu="2"), new_container("i", cpu="3"))),
            amounts(cpu=5),
            id="a sidecar before an init container runs beside it",
        ),
        pytest.param(
            new_pod(new_container(cpu="1"), init=(new_container("i", cpu="3"), new_sidecar("s", cpu="2"))),
            amounts(cpu=3),
            id="a sidecar after an init container does not run beside it",
        ),
        pytest.param(
            new_pod(
                new_container(cpu="1"),
                init=(new_sidecar("s", cpu="1"), new_container("i", cpu="5"), new_sidecar("t", cpu="2")),
            ),
            amounts(cpu=6),
            id="each init container runs beside earlier sidecars",
        ),
        pytest.param(
            new_pod(new_container(cpu="1"), overhead={"cpu": "250m", "memory": "100Mi"}),
            amounts(cpu="1250m", memory="100Mi"),
            id="overhead is added",
        ),
        pytest.param(
            new_pod(new_container(cpu="1"), init=(new_container("i", cpu="2"),), overhead={"cpu": "1"}),
            amounts(cpu=3),
            id="overhead is added to the larger phase",
        ),
        pytest.param(
            new_pod(new_container(limits={"cpu": "2"})), amounts(cpu=2), id="a limit without a request is a request"
        ),
        pytest.param(
            new_pod(new_container(limits={"cpu": "2", "memory": "1Gi"}, cpu="1")),
            amounts(cpu=1, memory="1Gi"),
            id="a limit with a request is ignored",
        ),
        pytest.param(
            new_pod(new_container(limits={"cpu": "2"}, cpu="0")), amounts(cpu=0), id="a request of zero is a request"
        ),
        pytest.param(
            new_pod(new_container(limits={"nvidia.com/gpu": 2})),
            amounts(**{"nvidia.com/gpu": 2}),
            id="extended resources count",
        ),
        pytest.param(
            new_pod(new_container(cpu="1", memory="1Gi"), resources={"requests": {"cpu": "4"}}),
            amounts(cpu=4, memory="1Gi"),
            id="pod-level requests replace the sum",
        ),
        pytest.param(
            new_pod(new_container(cpu="3"), resources={"requests": {"cpu": "2"}}, overhead={"cpu": "1"}),
            amounts(cpu=3),
            id="overhead is added to pod-level requests",
        ),
        pytest.param(
            new_pod(new_container(cpu="1"), resources={"limits": {"cpu": "4", "memory": "1Gi"}}),
            amounts(cpu=1, memory="1Gi"),
            id="a pod-level limit counts without container requests",
        ),
    ],
)
def test_pod_requests_match_the_scheduler(pod: Object, expected: ResourceList) -> None:
    assert effective_requests(pod) == expected


def new_container_status(name: str, allocated: str | None = None, **requests: str) -> Object:
    container_status: Object = {"name": name, "resources": {"requests": requests}}
    return {**container_status, "allocatedResources": {"cpu": allocated}} if allocated else container_status


@pytest.mark.parametrize(
    ("desired", "container_status", "expected"),
    [
        ("1", new_container_status("main", cpu="4"), "4"),  # not shrunk yet
        ("4", new_container_status("main", cpu="1"), "4"),  # not grown yet
        ("1", new_container_status("main", allocated="3", cpu="2"), "3"),
        ("1", new_container_status("another", cpu="4"), "1"),
        ("1", {"name": "main"}, "1"),
    ],
)
def test_resized_container_counts_larger_amount(desired: str, container_status: Object, expected: str) -> None:
    running = new_pod(new_container(cpu=desired), status={"containerStatuses": [container_status]})
    assert effective_requests(running) == amounts(cpu=expected)
    sidecar_pod = new_pod(
        init=({**new_sidecar("main", cpu=desired)},), status={"initContainerStatuses": [container_status]}
    )
    assert effective_requests(sidecar_pod) == amounts(cpu=expected)


def test_init_container_is_never_resized() -> None:
    pod = new_pod(
        init=(new_container("i", cpu="1"),), status={"initContainerStatuses": [new_container_status("i", cpu="4")]}
    )
    assert effective_requests(pod) == amounts(cpu=1)


def test_infeasible_resize_is_not_counted() -> None:
    infeasible = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
    deferred = {**infeasible, "reason": "Deferred"}
    statuses = [new_container_status("main", cpu="1")]
    for reason, expected in ((infeasible, "1"), (deferred, "64")):
        pod = new_pod(new_container(cpu="64"), status={"containerStatuses": statuses, "conditions": [reason]})
        assert effective_requests(pod) == amounts(cpu=expected)


cpus = st.integers(0, 8)
inits = st.lists(st.tuples(st.booleans(), cpus), max_size=5)


@given(inits, st.lists(cpus, max_size=4), cpus)
def test_requests_are_the_maximum_over_phases(init: list[tuple[bool, int]], main: list[int], overhead: int) -> None:
    """Compute the expected value from the containers that run at each step of the pod's life."""
    phases = [sum(cpu for is_sidecar, cpu in init[:index] if is_sidecar) + init[index][1] for index in range(len(init))]
    phases.append(sum(cpu for is_sidecar, cpu in init if is_sidecar) + sum(main))
    pod = new_pod(
        *(new_container(f"c{index}", cpu=cpu) for index, cpu in enumerate(main)),
        init=tuple(
            (new_sidecar if is_sidecar else new_container)(f"i{index}", cpu=cpu)
            for index, (is_sidecar, cpu) in enumerate(init)
        ),
        overhead={"cpu": overhead},
    )
    assert effective_requests(pod)["cpu"] == amounts(cpu=max(phases) + overhead)["cpu"]


@pytest.mark.parametrize(
    ("phase", "expected"),
    [("Pending", True), ("Running", True), ("Unknown", True), (None, True), ("Succeeded", False), ("Failed", False)],
)
def test_pod_occupies_node_until_terminated(phase: str | None, expected: bool) -> None:
    assert occupies_node(new_pod(new_container(), status={"phase": phase})) is expected


def test_deleting_pod_still_occupies_its_node() -> None:
    pod = new_pod(new_container())
    assert occupies_node({**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "2026-03-02T09:00:00Z"}})
    assert not occupies_node({**pod, "spec": {**pod["spec"], "nodeName": ""}})
    assert not occupies_node({**pod, "spec": {"containers": []}})


def test_allocation_starts_when_scheduled_or_created() -> None:
    created = new_pod(new_container(cpu="1"))
    assert pod_allocation(created).since == datetime(2026, 3, 2, 8, tzinfo=UTC)
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-03-02T09:30:00Z"}
    bound = new_pod(new_container(cpu="1"), status={"conditions": [scheduled]})
    assert pod_allocation(bound).since == datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
    assert pod_allocation(bound).amounts == amounts(cpu=1)


def test_cached_requests_equal_computed_requests() -> None:
    resources = {"requests": {"cpu": "100m"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    pod = {"spec": {"containers": [{"name": "c", "resources": resources}]}}
    assert effective_requests(pod) == compute_requests(pod)
    assert effective_requests(pod).texts() == {"cpu": "100m", "memory": "1Gi", "pods": "1"}
    container_status = {"name": "c", "resources": {"requests": {"cpu": "2"}}}
    resized = {**pod, "status": {"containerStatuses": [container_status]}}
    assert effective_requests(resized)["cpu"] == parse_quantity("2")
