"""Tests of the decision of an autoscaler."""

from typing import Any

import pytest

from tapestry.controlplane.autoscaling.replica_calculator import AutoscalerSettings, MetricError
from tapestry.controlplane.autoscaling.scaling_decision import (
    NO_STATUS,
    Decision,
    autoscaler_status,
    decision_by_bounds,
    decision_by_metrics,
    invalid_spec_decision,
)
from tapestry.controlplane.autoscaling.scaling_rules import History
from tapestry.kube.objects import Object
from tapestry.kube.times import parse_time, timestamp

from .objects import CPU_50, new_autoscaler, pod_metrics

NOW = parse_time("2030-01-01T12:00:00Z")
PODS_METRIC: Object = {"type": "Pods", "pods": {"metric": {"name": "requests"}}}
MEMORY: Object = {"type": "Resource", "resource": {"name": "memory", "target": {"averageValue": "128Mi"}}}
AT_ONCE: Object = {"scaleDown": {"stabilizationWindowSeconds": 0}}
POD = {
    "metadata": {"name": "web"},
    "spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1"}}}]},
    "status": {
        "phase": "Running",
        "startTime": "2030-01-01T11:00:00Z",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2030-01-01T11:00:00Z"}],
    },
}


def decide(cpu: str | MetricError, current: int = 1, **spec: Any) -> Decision:
    """Decide for one pod with that usage, and 512 Mi of memory."""
    items = cpu if isinstance(cpu, MetricError) else [pod_metrics("web", cpu, NOW)]
    autoscaler = new_autoscaler(**spec)
    return decision_by_metrics(autoscaler, current, [POD], items, History(()), AutoscalerSettings(), NOW)


def reasons(decision: Decision) -> dict[str, str]:
    return {each["type"]: each["reason"] for each in decision.conditions}


@pytest.mark.parametrize(
    ("current", "bounds", "replicas", "reason"),
    [
        (0, (1, 5), 0, ""),
        (6, (1, 5), 5, "Current number of replicas above Spec.MaxReplicas"),
        (1, (2, 5), 2, "Current number of replicas below Spec.MinReplicas"),
    ],
)
def test_bounds_decide_without_metrics(current: int, bounds: tuple[int, int], replicas: int, reason: str) -> None:
    autoscaler = new_autoscaler(minReplicas=bounds[0], maxReplicas=bounds[1])
    decision = decision_by_bounds(autoscaler, current, History(()))
    assert decision is not None
    assert (decision.replicas, decision.reason) == (replicas, reason)
    assert decision_by_bounds(autoscaler, bounds[1], History(())) is None


@pytest.mark.parametrize(
    "spec",
    [
        {"metrics": [{}]},
        {"metrics": [{"type": "Resource", "resource": {"name": 5}}]},
        {"metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": "50"}}}]},
        {"behavior": {"scaleUp": {"policies": "none"}}},
        {"behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 1}]}}},
        {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 10**9}}},
        {"behavior": {"scaleDown": {"tolerance": "much"}}},
    ],
)
def test_malformed_spec_scales_nothing(spec: Object) -> None:
    decision = invalid_spec_decision(new_autoscaler(**spec), History(()))
    assert decision is not None
    assert (decision.replicas, reasons(decision)) == (None, {"ScalingActive": "InvalidSpec"})


def test_metric_without_source_is_invalid() -> None:
    assert invalid_spec_decision(new_autoscaler(), History(())) is None
    assert decide("1", metrics=[{"type": "Resource"}]).replicas is None


def test_metric_with_most_replicas_decides() -> None:
    decision = decide("1", metrics=[CPU_50, MEMORY])
    assert (decision.replicas, decision.reason) == (4, "memory resource above target")
    assert len(decision.metrics) == 2
    assert reasons(decision)["ScalingActive"] == "ValidMetricFound"


def test_invalid_metric_only_prevents_scaling_down() -> None:
    up = decide("1", metrics=[PODS_METRIC, CPU_50])
    assert up.replicas == 2
    assert up.metrics[0] == NO_STATUS
    assert [reason for reason, _ in up.warnings] == ["FailedGetPodsMetric"]
    down = decide("100m", current=3, metrics=[PODS_METRIC, CPU_50], behavior=AT_ONCE)
    assert down.replicas is None
    assert reasons(down) == {"ScalingActive": "FailedGetPodsMetric"}
    assert [reason for reason, _ in down.warnings] == ["FailedGetPodsMetric", "FailedComputeMetricsReplicas"]
    assert decide("100m", current=3, behavior=AT_ONCE).replicas == 1


def test_failed_request_is_explained() -> None:
    decision = decide(MetricError("the server is down"))
    cause = "failed to get cpu utilization: unable to get metrics for resource cpu: the server is down"
    assert decision.replicas is None
    assert decision.conditions[0]["message"] == f"the HPA was unable to compute the replica count: {cause}"
    summary = "invalid metrics (1 invalid out of 1), first error is: failed to get cpu resource metric value"
    assert decision.warnings[-1] == ("FailedComputeMetricsReplicas", f"{summary}: {cause}")


def test_status_keeps_what_is_not_decided() -> None:
    before = {"desiredReplicas": 3, "currentReplicas": 3, "lastScaleTime": "2030-01-01T00:00:00Z"}
    failed = autoscaler_status(before, 2, Decision(None, History(())), [], NOW)
    assert failed == {**before, "currentReplicas": 2, "conditions": []}
    scaled = autoscaler_status(before, 2, Decision(5, History(())), [], NOW)
    assert (scaled["desiredReplicas"], scaled["lastScaleTime"]) == (5, timestamp(NOW))
    assert "currentReplicas" not in autoscaler_status({}, 0, Decision(0, History(())), [], NOW)
