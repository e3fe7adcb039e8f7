"""Decision of a HorizontalPodAutoscaler: the number of replicas, its reason, conditions and events. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import msgspec

from tapestry.controlplane.autoscaling.replica_calculator import AutoscalerSettings, MetricError, ResourceMetric
from tapestry.controlplane.autoscaling.scaling_rules import Behavior, History, limited_replicas, tolerances_of
from tapestry.kube.conditions import new_condition, with_condition
from tapestry.kube.objects import Object, value_at
from tapestry.kube.quantity import QuantityError
from tapestry.kube.times import timestamp

NO_STATUS: Object = {"type": ""}
"""Status of a metric that could not be read. The statuses have the order of the metrics."""
UNSUPPORTED = "this control plane reads only metrics of the types Resource and ContainerResource"


@dataclass(frozen=True, slots=True)
class Decision:
    """Desired number of replicas. None if it cannot be computed: then nothing is scaled."""

    replicas: int | None
    history: History
    reason: str = ""
    """Reason of a change, for its event."""
    conditions: Sequence[Object] = ()
    metrics: Sequence[Object] = ()
    """Statuses of the metrics."""
    warnings: Sequence[tuple[str, str]] = ()
    """Reasons and messages of events."""


class MetricTarget(msgspec.Struct):
    averageUtilization: Annotated[int, msgspec.Meta(gt=0)] | None = None
    averageValue: str | int | float | None = None


class MetricSource(msgspec.Struct):
    name: str
    container: str | None = None
    target: MetricTarget | None = None


class Metric(msgspec.Struct):
    type: str
    resource: MetricSource | None = None
    containerResource: MetricSource | None = None


class AutoscalerSpec(msgspec.Struct):
    """Form of the fields of the spec that this controller reads."""

    metrics: list[Metric]
    behavior: Behavior | None = None


def invalid_spec_decision(autoscaler: Object, history: History) -> Decision | None:
    """Return a decision to do nothing if the metrics or the behavior are malformed.

    Our API server does not validate them in annotations of an autoscaling/v1 object.
    """
    try:
        msgspec.convert(autoscaler["spec"], AutoscalerSpec)
        tolerances_of(autoscaler, AutoscalerSettings())
    except (msgspec.ValidationError, QuantityError) as error:
        message = f"the spec of the HPA is invalid: {error}"
        failed = new_condition("ScalingActive", False, "InvalidSpec", message)
        return Decision(None, history, conditions=[failed], warnings=[("InvalidSpec", message)])
    return None


def decision_by_bounds(autoscaler: Object, current: int, history: History) -> Decision | None:
    """Return the decision for a number of replicas that is zero or out of bounds, or None if metrics must decide."""
    spec = autoscaler["spec"]
    minimum, maximum = spec.get("minReplicas", 1), spec["maxReplicas"]
    if current == 0 and minimum != 0:
        message = "scaling is disabled since the replica count of the target is zero"
        disabled = new_condition("ScalingActive", False, "ScalingDisabled", message)
        return Decision(current, history, conditions=[disabled])
    if current > maximum:
        return Decision(maximum, history, "Current number of replicas above Spec.MaxReplicas")
    if current < minimum:
        return Decision(minimum, history, "Current number of replicas below Spec.MinReplicas")
    return None


def decision_by_metrics(
    autoscaler: Object,
    current: int,
    pods: Sequence[Object],
    items: Sequence[Object] | MetricError,
    history: History,
    settings: AutoscalerSettings,
    now: datetime,
) -> Decision:
    """Return the decision by the metric that requires the most replicas.

    `items` are the PodMetrics of the pods, or the error of their request. If a metric is invalid, the others may only
    scale up.
    """
    desired, description, errors = 0, "", []
    statuses, warnings, tolerances = [], [], tolerances_of(autoscaler, settings)
    for spec in autoscaler["spec"]["metrics"]:
        metric = ResourceMetric.of(spec)
        try:
            if metric is None:
                raise MetricError(UNSUPPORTED)
            required, usage = metric.required_replicas(pods, items, current, tolerances, settings, now)
        except MetricError as error:
            warnings.append((f"FailedGet{spec['type']}Metric", str(error)))
            errors.append(f"failed to get {source_name(spec)} metric value: {error}")
            statuses.append(NO_STATUS)
            continue
        statuses.append(metric.status(usage))
        if desired == 0 or required > desired:
            desired, description = required, metric.description
    if errors and (len(errors) == len(statuses) or desired < current):
        reason, cause = warnings[0]
        message = f"invalid metrics ({len(errors)} invalid out of {len(statuses)}), first error is: {errors[0]}"
        failed = new_condition(
            "ScalingActive", False, reason, f"the HPA was unable to compute the replica count: {cause}"
        )
        warnings.append(("FailedComputeMetricsReplicas", message))
        return Decision(None, history, conditions=[failed], metrics=statuses, warnings=warnings)
    message = f"the HPA was able to successfully calculate a replica count from {description}"
    active = new_condition("ScalingActive", True, "ValidMetricFound", message)
    limited = limited_replicas(autoscaler, current, desired, history, settings, now)
    reason = f"{description} above target" if desired > current else "All metrics below target"
    conditions = [active, *limited.conditions]
    return Decision(limited.replicas, limited.history, reason, conditions, statuses, warnings)


def source_name(spec: Object) -> str:
    if spec["type"] == "ContainerResource":
        return f"{value_at(spec, 'containerResource', 'container')} container"
    if spec["type"] == "Resource":
        return f"{value_at(spec, 'resource', 'name')} resource"
    return str(spec["type"]).lower()


def selector_decision(reason: str, event: str, message: str, condition_message: str, history: History) -> Decision:
    """Return the decision for a target whose pods cannot be selected."""
    failed = new_condition("ScalingActive", False, reason, condition_message)
    warnings = [(event, message), ("FailedComputeMetricsReplicas", message)]
    return Decision(None, history, conditions=[failed], warnings=warnings)


def autoscaler_status(
    before: Object, current: int, decision: Decision, conditions: Sequence[Object], now: datetime
) -> Object:
    """Return the status after a decision. `conditions` are set in their order."""
    is_scaled = decision.replicas is not None and decision.replicas != current
    desired = value_at(before, "desiredReplicas", default=0) if decision.replicas is None else decision.replicas
    last = timestamp(now) if is_scaled else before.get("lastScaleTime")
    return {
        "desiredReplicas": desired,
        **({"currentReplicas": current} if current else {}),
        **({"lastScaleTime": last} if last else {}),
        **({"currentMetrics": list(decision.metrics)} if decision.metrics else {}),
        "conditions": with_conditions(before, conditions, now),
    }


def with_conditions(status: Object, conditions: Sequence[Object], now: datetime) -> list[Object]:
    result: list[Object] = status.get("conditions") or []
    for each in conditions:
        result = with_condition(result, each, now)
    return result
