"""Number of replicas that one resource metric of a HorizontalPodAutoscaler requires. Pure.

Rules and messages are those of Kubernetes. Usage is in thousandths of a unit. Pods that are pending or still starting
do not count, except as idle pods when others need more replicas. Pods without metrics count as idle when scaling up,
and as fully used when scaling down, so that missing data never causes a large change.

The responses of a metrics API are untrusted. Malformed ones raise MetricError, and amounts are limited to 64 bits.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, is_deleting, name_of, value_at
from tapestry.kube.pod_requests import effective_requests
from tapestry.kube.pods import is_sidecar
from tapestry.kube.quantity import NANOS, Format, Quantity, parse_quantity
from tapestry.kube.times import parse_duration, parse_time

MAX_AMOUNT, MAX_REPLICAS = 2**63 - 1, 2**31 - 1
NEVER = datetime.min.replace(tzinfo=UTC)


class MetricError(Exception):
    """No number of replicas can be computed from a metric."""


@dataclass(frozen=True, slots=True)
class AutoscalerSettings:
    """Settings of the controller. The defaults are those of kube-controller-manager."""

    sync_period: float = 15.0
    """Seconds between two reconciles of an autoscaler."""
    tolerance: float = 0.1
    """Difference between usage and target that changes nothing, as a fraction of the target."""
    downscale_stabilization: timedelta = timedelta(minutes=5)
    cpu_initialization_period: timedelta = timedelta(minutes=5)
    """Time after its start in which the CPU usage of a pod counts only while it is ready."""
    initial_readiness_delay: timedelta = timedelta(seconds=30)
    """Time after its start in which a pod that becomes unready counts as never ready."""


@dataclass(frozen=True, slots=True)
class Tolerances:
    scale_down: float
    scale_up: float

    def include(self, ratio: float) -> bool:
        return 1.0 - self.scale_down <= ratio <= 1.0 + self.scale_up


@dataclass(frozen=True, slots=True)
class PodMetric:
    """Usage of one pod, averaged over the `window` before `timestamp`."""

    value: int
    timestamp: datetime
    window: timedelta


@dataclass(frozen=True, slots=True)
class Usage:
    """Average usage of the pods: relative to the target, absolute, and as a percentage of the requests."""

    ratio: float
    average: int
    utilization: int | None = None


@dataclass(frozen=True, slots=True)
class PodGroups:
    ready_count: int
    unready: frozenset[str]
    missing: frozenset[str]
    ignored: frozenset[str]


class ContainerMetricsItem(msgspec.Struct):
    name: str
    usage: dict[str, str | int | float] = {}


class MetadataItem(msgspec.Struct):
    name: str


class PodMetricsItem(msgspec.Struct):
    """Item of a PodMetricsList."""

    metadata: MetadataItem
    timestamp: str
    window: str
    containers: list[ContainerMetricsItem] | None = None


def pod_metrics(items: Sequence[Object], resource: str, container: str | None) -> dict[str, PodMetric]:
    """Return the usage by pod name, of one container or of all. Pods with incomplete metrics are left out."""
    result = {}
    try:
        for item in msgspec.convert(items, list[PodMetricsItem]):
            parts = [each for each in item.containers or () if container in (None, each.name)]
            if parts and all(resource in each.usage for each in parts):
                total = sum(milli_value(each.usage[resource]) for each in parts)
                result[item.metadata.name] = PodMetric(total, parse_time(item.timestamp), parse_duration(item.window))
    except (msgspec.ValidationError, ValueError) as error:
        raise MetricError(f"unable to decode metrics from resource metrics API: {error}") from error
    return result


def milli_value(amount: str | int | float) -> int:
    return max(-MAX_AMOUNT, min(MAX_AMOUNT, parse_quantity(amount).milli_value()))


def pod_groups(
    pods: Sequence[Object], metrics: Mapping[str, PodMetric], resource: str, settings: AutoscalerSettings, now: datetime
) -> PodGroups:
    ready_count, unready, missing, ignored = 0, set(), set(), set()
    for pod in pods:
        phase, name = value_at(pod, "status", "phase"), name_of(pod)
        if is_deleting(pod) or phase == "Failed":
            ignored.add(name)
        elif phase == "Pending":
            unready.add(name)
        elif name not in metrics:
            missing.add(name)
        elif resource == "cpu" and is_starting(pod, metrics[name], settings, now):
            unready.add(name)
        else:
            ready_count += 1
    return PodGroups(ready_count, frozenset(unready), frozenset(missing), frozenset(ignored))


def is_starting(pod: Object, metric: PodMetric, settings: AutoscalerSettings, now: datetime) -> bool:
    """Return whether the CPU usage of a pod may still be that of its start."""
    ready = find_condition(value_at(pod, "status", "conditions"), "Ready")
    started = value_at(pod, "status", "startTime")
    if ready is None or started is None:
        return True
    start, is_ready = parse_time(started), ready.get("status") != "False"
    changed = parse_time(ready["lastTransitionTime"]) if ready.get("lastTransitionTime") else NEVER
    if now - start < settings.cpu_initialization_period:
        return not is_ready or metric.timestamp - changed < metric.window
    return not is_ready and changed - start < settings.initial_readiness_delay


def pod_requests(pods: Sequence[Object], resource: str, container: str | None) -> dict[str, int]:
    """Return the requests by pod name, of one container or of the whole pod."""
    return {name_of(pod): pod_request(pod, resource, container) for pod in pods}


def pod_request(pod: Object, resource: str, container: str | None) -> int:
    spec = pod["spec"]
    pod_level = value_at(spec, "resources", "requests", default={})
    if container is None and any(each in ("cpu", "memory") or each.startswith("hugepages-") for each in pod_level):
        amount = effective_requests(pod).get(resource)
        if amount is None:
            raise MetricError(f"missing pod-level request for {resource} in Pod {name_of(pod)}")
        return min(MAX_AMOUNT, amount.milli_value())
    total = 0
    for each in (*spec["containers"], *filter(is_sidecar, spec.get("initContainers") or ())):
        if container in (None, each["name"]):
            request = value_at(each, "resources", "requests", resource)
            if request is None:
                raise MetricError(f"missing request for {resource} in container {each['name']} of Pod {name_of(pod)}")
            total += milli_value(request)
    return total


@dataclass(frozen=True, slots=True)
class UtilizationTarget:
    """Target in percent of the requests."""

    percent: int
    requests: Mapping[str, int]

    def usage(self, values: Mapping[str, int]) -> Usage:
        known = [name for name in values if name in self.requests]
        total, requested = sum(values[name] for name in known), sum(self.requests[name] for name in known)
        if requested == 0:
            raise MetricError("no metrics returned matched known pods")
        utilization = min(total * 100 // requested, MAX_REPLICAS)
        return Usage(utilization / self.percent, total // len(known), utilization)

    def full_usage(self, pod: str) -> int:
        """Return the usage that a pod without metrics may have at most: its requests, or the target if it is higher."""
        return self.requests[pod] * max(100, self.percent) // 100


@dataclass(frozen=True, slots=True)
class AverageTarget:
    """Target in thousandths of a unit per pod."""

    value: int

    def usage(self, values: Mapping[str, int]) -> Usage:
        average = sum(values.values()) // len(values)
        return Usage(average / self.value, average)

    def full_usage(self, _: str) -> int:
        return self.value


@dataclass(frozen=True, slots=True)
class ResourceMetric:
    """Metric of the type Resource, or ContainerResource if it names a container."""

    resource: str
    container: str | None
    target: Object

    @classmethod
    def of(cls, metric: Object) -> "ResourceMetric | None":
        """Return the resource metric of a MetricSpec, or None for other types."""
        fields = {"Resource": "resource", "ContainerResource": "containerResource"}
        source = metric.get(fields.get(metric["type"], "")) or None
        return source and cls(source["name"], source.get("container"), source.get("target") or {})

    @property
    def description(self) -> str:
        if self.target.get("averageValue") is not None:
            return f"{self.resource} resource"
        kind = "resource" if self.container is None else "container resource"
        return f"{self.resource} {kind} utilization (percentage of request)"

    def status(self, usage: Usage) -> Object:
        """Return the MetricStatus."""
        format = Format.BINARY_SI if self.resource == "memory" else Format.DECIMAL_SI
        current: dict[str, Any] = {"averageValue": str(Quantity(usage.average * (NANOS // 1000), format))}
        if usage.utilization is not None:
            current["averageUtilization"] = usage.utilization
        if self.container is None:
            return {"type": "Resource", "resource": {"name": self.resource, "current": current}}
        source = {"name": self.resource, "container": self.container, "current": current}
        return {"type": "ContainerResource", "containerResource": source}

    def required_replicas(
        self,
        pods: Sequence[Object],
        items: Sequence[Object] | MetricError,
        current: int,
        tolerances: Tolerances,
        settings: AutoscalerSettings,
        now: datetime,
    ) -> tuple[int, Usage]:
        """Return the number of replicas that `items`, the PodMetrics of the `pods`, require, and the usage.

        `items` may be the error of their request. `current` is the present number of replicas, which is returned if it
        is good enough. Raise MetricError if the number cannot be computed.
        """
        average, percent = self.target.get("averageValue"), self.target.get("averageUtilization")
        kind = "utilization" if average is None else "usage"
        try:
            if average is None and percent is None:
                raise MetricError("neither an average utilization target nor an average value (usage) target was set")
            if isinstance(items, MetricError) or not items:
                cause = items or "no metrics returned from resource metrics API"
                raise MetricError(f"unable to get metrics for resource {self.resource}: {cause}")
            metrics = pod_metrics(items, self.resource, self.container)
            if not pods:
                raise MetricError("no pods returned by selector while calculating replica count")
            groups = pod_groups(pods, metrics, self.resource, settings, now)
            excluded = groups.ignored | groups.unready
            values = {name: metric.value for name, metric in metrics.items() if name not in excluded}
            if not values:
                raise MetricError("did not receive metrics for targeted pods (pods might be unready)")
            target: UtilizationTarget | AverageTarget = (
                AverageTarget(milli_value(average))
                if average is not None
                else UtilizationTarget(percent or 0, pod_requests(pods, self.resource, self.container))
            )
            return balanced_replicas(values, groups, target.usage, target.full_usage, current, tolerances)
        except MetricError as error:
            raise MetricError(f"failed to get {self.resource} {kind}: {error}") from error
        except (ZeroDivisionError, ValueError) as error:  # our API server stored a target or a time that is invalid
            raise MetricError(f"failed to get {self.resource} {kind}: invalid metric source or pod: {error}") from error


def balanced_replicas(
    values: dict[str, int],
    groups: PodGroups,
    usage_of: Callable[[Mapping[str, int]], Usage],
    full_usage: Callable[[str], int],
    current: int,
    tolerances: Tolerances,
) -> tuple[int, Usage]:
    """Return the number of replicas that brings the usage to its target, and the usage."""
    usage = usage_of(values)
    is_rising, is_falling = usage.ratio > 1.0, usage.ratio < 1.0
    idle = {*(groups.unready if is_rising else ()), *(groups.missing if is_rising else ())}
    if not idle and not groups.missing:
        return current if tolerances.include(usage.ratio) else replicas(usage.ratio, groups.ready_count), usage
    values = values | dict.fromkeys(idle, 0)
    if is_falling:
        values |= {name: full_usage(name) for name in groups.missing}
    ratio = usage_of(values).ratio
    if tolerances.include(ratio) or (is_falling and ratio > 1.0) or (is_rising and ratio < 1.0):
        return current, usage
    desired = replicas(ratio, len(values))
    is_reversed = desired > current if ratio < 1.0 else desired < current
    return current if is_reversed else desired, usage


def replicas(ratio: float, pods: int) -> int:
    return min(math.ceil(ratio * pods), MAX_REPLICAS)
