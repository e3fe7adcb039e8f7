"""Tests of the replica count for one metric."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.controlplane.autoscaling.replica_calculator import (
    AutoscalerSettings,
    MetricError,
    ResourceMetric,
    Tolerances,
)
from tapestry.kube.objects import Object
from tapestry.kube.times import parse_time, timestamp

NOW = parse_time("2030-01-01T12:00:00Z")
SETTINGS, TOLERANCES = AutoscalerSettings(), Tolerances(0.1, 0.1)


def ago(seconds: float) -> str:
    return timestamp(NOW - timedelta(seconds=seconds))


def new_pod(
    name: str, phase: str = "Running", ready: bool = True, started: float = 3600, changed: float = 3500, **requests: str
) -> Object:
    resources = {"requests": requests or {"cpu": "1", "memory": "1Gi"}}
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": ago(changed)}
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "app", "resources": resources}]},
        "status": {"phase": phase, "startTime": ago(started), "conditions": [condition]},
    }


def metrics(**usage: str) -> list[Object]:
    """CPU usage by pod name."""
    return [metrics_item(name, app={"cpu": cpu, "memory": "1Gi"}) for name, cpu in usage.items()]


def metrics_item(name: str, **containers: Any) -> Object:
    items = [{"name": container, "usage": usage} for container, usage in containers.items()]
    return {"metadata": {"name": name}, "timestamp": ago(10), "window": "30s", "containers": items}


def cpu(percent: int | None = None, average: str | None = None, container: str | None = None) -> ResourceMetric:
    target = {"averageUtilization": percent} if average is None else {"averageValue": average}
    return ResourceMetric("cpu", container, target)


def required(metric: ResourceMetric, pods: Sequence[Object], items: list[Object], current: int | None = None) -> int:
    return metric.required_replicas(pods, items, current or len(pods), TOLERANCES, SETTINGS, NOW)[0]


TWO = [new_pod("a"), new_pod("b")]
PHASES = st.sampled_from(["Running", "Pending", "Failed"])


@pytest.mark.parametrize(
    ("usage", "expected"),
    [("500m", 2), ("549m", 2), ("550m", 2), ("560m", 3), ("1", 4), ("451m", 2), ("440m", 2), ("250m", 1), ("0", 0)],
)
def test_usage_is_brought_to_target(usage: str, expected: int) -> None:
    assert required(cpu(50), TWO, metrics(a=usage, b=usage)) == expected
    assert required(cpu(average="500m"), TWO, metrics(a=usage, b=usage)) == expected


@pytest.mark.parametrize(
    ("usage", "third", "expected"),
    [
        ("1", new_pod("c"), 4),  # missing: idle when scaling up
        ("600m", new_pod("c"), 3),  # the change would turn around
        ("100m", new_pod("c"), 3),  # missing: fully used when scaling down
        ("1", new_pod("c", "Pending"), 4),
        ("100m", new_pod("c", "Pending"), 1),  # pending pods are ignored when scaling down
        ("1", new_pod("c", "Failed"), 4),
        ("1", new_pod("c") | {"metadata": {"name": "c", "deletionTimestamp": ago(1)}}, 4),
    ],
)
def test_pods_without_metrics_limit_changes(usage: str, third: Object, expected: int) -> None:
    assert required(cpu(50), [*TWO, third], metrics(a=usage, b=usage)) == expected


def test_pending_pods_count_as_idle_when_scaling_up() -> None:
    pods = [new_pod(f"p{number}") for number in range(10)]
    items = metrics(**{f"p{number}": "560m" for number in range(10)})
    assert required(cpu(50), pods, items) == 12
    assert required(cpu(50), [*pods, new_pod("q", "Pending")], items) == 11


def test_missing_pods_count_with_target_above_requests() -> None:
    assert required(cpu(150), [*TWO, new_pod("c")], metrics(a="100m", b="100m")) == 2


@pytest.mark.parametrize(
    ("pod", "counts"),
    [
        (new_pod("b", started=60, changed=50), True),
        (new_pod("b", started=60, changed=30), False),  # the window of the metric began before it was ready
        (new_pod("b", ready=False, started=60), False),
        (new_pod("b", ready=False, started=600, changed=595), False),  # never ready
        (new_pod("b", ready=False, started=600, changed=100), True),  # was ready once
        (new_pod("b") | {"status": {"phase": "Running"}}, False),
    ],
)
def test_cpu_of_starting_pods_is_ignored(pod: Object, counts: bool) -> None:
    pods, items = [new_pod("a"), pod], metrics(a="100m", b="900m")
    assert required(cpu(50), pods, items) == (2 if counts else 1)
    memory = ResourceMetric("memory", None, {"averageValue": "512Mi"})
    assert required(memory, pods, items) == 4


def test_container_metric_uses_one_container() -> None:
    pod = new_pod("a")
    pod["spec"]["containers"] = [
        {"name": "app", "resources": {"requests": {"cpu": "100m"}}},
        {"name": "proxy", "resources": {"requests": {"cpu": "1"}}},
    ]
    items = [metrics_item("a", app={"cpu": "100m"}, proxy={"cpu": "100m"})]
    assert required(cpu(50, container="app"), [pod], items) == 2
    assert required(cpu(50, container="proxy"), [pod], items) == 1
    assert required(cpu(50), [pod], items) == 1


def test_sidecars_and_pod_level_requests_count() -> None:
    pod = new_pod("a", cpu="100m")
    sidecar = {"name": "log", "restartPolicy": "Always", "resources": {"requests": {"cpu": "300m"}}}
    pod["spec"]["initContainers"] = [{"name": "init"}, sidecar]
    assert required(cpu(50), [pod], metrics(a="400m")) == 2
    pod["spec"]["resources"] = {"requests": {"cpu": "200m"}}
    assert required(cpu(50), [pod], metrics(a="400m")) == 4


def test_status_has_average_and_utilization() -> None:
    _, usage = cpu(50).required_replicas(TWO, metrics(a="300m", b="200m"), 2, TOLERANCES, SETTINGS, NOW)
    current = {"averageUtilization": 25, "averageValue": "250m"}
    assert cpu(50).status(usage) == {"type": "Resource", "resource": {"name": "cpu", "current": current}}
    memory = ResourceMetric("memory", "app", {"averageValue": "1Gi"})
    _, usage = memory.required_replicas(TWO, metrics(a="1", b="1"), 2, TOLERANCES, SETTINGS, NOW)
    source = {"name": "memory", "container": "app", "current": {"averageValue": "1Gi"}}
    assert memory.status(usage) == {"type": "ContainerResource", "containerResource": source}


@pytest.mark.parametrize(
    ("metric", "pods", "items", "message"),
    [
        (cpu(50), TWO, [], "no metrics returned from resource metrics API"),
        (cpu(50), [], metrics(a="1"), "no pods returned by selector"),
        (cpu(50), [new_pod("a", "Pending")], metrics(a="1"), "pods might be unready"),
        (cpu(50), [new_pod("a", memory="1")], metrics(a="1"), "missing request for cpu in container app of Pod a"),
        (cpu(50), [new_pod("a")], metrics(other="1"), "no metrics returned matched known pods"),
        (cpu(0), TWO, metrics(a="1"), "invalid metric source"),
        (cpu(), TWO, metrics(a="1"), "neither an average utilization target"),
        (cpu(50), TWO, metrics(a="odd"), "unable to decode metrics"),
        (cpu(50), TWO, [{"metadata": {"name": "a"}, "containers": 5}], "unable to decode metrics"),
        (cpu(50), TWO, [{**metrics(a="1")[0], "timestamp": "today"}], "unable to decode metrics"),
    ],
)
def test_unusable_metrics_are_errors(
    metric: ResourceMetric, pods: list[Object], items: list[Object], message: str
) -> None:
    with pytest.raises(MetricError, match=message):
        required(metric, pods, items, current=1)


def test_huge_amounts_are_limited() -> None:
    assert required(cpu(1), TWO, metrics(a="9e99", b="9e99")) == 2**31 - 1
    assert required(cpu(average="1n"), TWO, metrics(a="9e99", b="9e99")) == 2**31 - 1


@given(
    st.lists(st.tuples(PHASES, st.none() | st.integers(0, 3000)), min_size=1),
    st.integers(1, 200),
    st.integers(1, 50),
)
def test_missing_metrics_never_reverse_change(states: list[tuple[str, int | None]], percent: int, current: int) -> None:
    pods = [new_pod(f"p{number}", phase) for number, (phase, _) in enumerate(states)]
    usage = {f"p{number}": f"{value}m" for number, (_, value) in enumerate(states) if value is not None}
    try:
        replicas, seen = cpu(percent).required_replicas(pods, metrics(**usage), current, TOLERANCES, SETTINGS, NOW)
    except MetricError:
        return
    assert replicas >= 0
    if len(usage) < len(pods) and replicas != current and all(phase == "Running" for phase, _ in states):
        assert (replicas > current) == (seen.ratio > 1.0)
