"""Conversion of built-in kinds that are served in two versions but stored in one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tapestry.apiserver.core import api_errors
from tapestry.kube.autoscalers import DEFAULT_UTILIZATION, cpu_metric
from tapestry.kube.objects import Object, annotations_of, value_at, without_field

Conversion = Callable[[Object], Object]


@dataclass(frozen=True, slots=True)
class StorageVersion:
    """Conversion between the served and the stored form of an object. Callers set `apiVersion`."""

    api_version: str
    to_storage: Conversion
    from_storage: Conversion
    selector_fields: Mapping[str, str] = field(default_factory=dict)
    """Stored field paths by the paths that field selectors use."""


def rename_fields(obj: Object, names: Mapping[str, str]) -> Object:
    return {names.get(key, key): value for key, value in obj.items()}


# -- events

EVENT_FIELDS = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
"""Fields of events.k8s.io and their names in the core group."""
EVENT_FIELDS_REVERSED = {old: new for new, old in EVENT_FIELDS.items()}
REFERENCE_FIELDS = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")

# -- autoscalers

AUTOSCALING_PREFIX = "autoscaling.alpha.kubernetes.io/"
ANNOTATED_SPEC_FIELDS, ANNOTATED_STATUS_FIELDS = (
    {"behavior": "behavior"},
    {"conditions": "conditions", "currentMetrics": "current-metrics"},
)
"""Fields that v1 stores in annotations."""


def autoscaler_v2(obj: Object) -> Object:
    """Convert an autoscaler from v1, which only supports CPU metrics, to v2."""
    spec, status, annotations = dict(obj.get("spec") or {}), dict(obj.get("status") or {}), dict(annotations_of(obj))
    for part, fields in ((spec, ANNOTATED_SPEC_FIELDS), (status, ANNOTATED_STATUS_FIELDS)):
        for name, suffix in fields.items():
            expected_type = dict[str, Any] if name == "behavior" else list[dict[str, Any]]
            if (value := pop_annotation(annotations, suffix, expected_type)) is not None:
                part[name] = value
    metrics = [cpu_metric(cpu)] if (cpu := spec.pop("targetCPUUtilizationPercentage", None)) is not None else []
    metrics += pop_annotation(annotations, "metrics", list[dict[str, Any]]) or []
    status.pop("currentCPUUtilizationPercentage", None)
    return with_parts(obj, annotations, spec | {"metrics": metrics or [cpu_metric(DEFAULT_UTILIZATION)]}, status)


def pop_annotation(annotations: dict[str, str], suffix: str, expected_type: Any) -> Any:
    """Pop an annotation and return its decoded value, or None if missing. Raises BadRequest for a wrong type."""
    try:
        return msgspec.json.decode(annotations.pop(AUTOSCALING_PREFIX + suffix, "null"), type=expected_type | None)
    except (ValueError, RecursionError) as error:
        raise api_errors.bad_request(
            f"metadata.annotations[{AUTOSCALING_PREFIX}{suffix}]: {str(error)[:200]}"
        ) from error


def autoscaler_v1(obj: Object) -> Object:
    """Convert an autoscaler from v2 to v1. Fields that v1 lacks become annotations."""
    spec, status, annotations = dict(obj.get("spec") or {}), dict(obj.get("status") or {}), dict(annotations_of(obj))
    metrics = spec.pop("metrics", [])
    cpu = next((each for each in metrics if cpu_utilization(each) is not None), None)
    if cpu is not None:
        spec["targetCPUUtilizationPercentage"] = cpu_utilization(cpu)
    if others := [each for each in metrics if each is not cpu]:
        annotations[f"{AUTOSCALING_PREFIX}metrics"] = json_text(others)
    current = next((each for each in status.get("currentMetrics") or () if is_cpu_metric(each)), None)
    if (utilization := value_at(current or {}, "resource", "current", "averageUtilization")) is not None:
        status["currentCPUUtilizationPercentage"] = utilization
    for part, fields in ((spec, ANNOTATED_SPEC_FIELDS), (status, ANNOTATED_STATUS_FIELDS)):
        for name, suffix in fields.items():
            if name in part:
                annotations[AUTOSCALING_PREFIX + suffix] = json_text(part.pop(name))
    return with_parts(obj, annotations, spec, status)


def with_parts(obj: Object, annotations: Object, spec: Object, status: Object) -> Object:
    metadata = without_field(obj["metadata"], "annotations") | ({"annotations": annotations} if annotations else {})
    return {**obj, "metadata": metadata, "spec": spec} | ({"status": status} if status else {})


def is_cpu_metric(metric: Object) -> bool:
    return metric.get("type") == "Resource" and value_at(metric, "resource", "name") == "cpu"


def cpu_utilization(metric: Object) -> Any:
    """Return the CPU utilization that a metric targets, or None for other metrics."""
    return value_at(metric, "resource", "target", "averageUtilization") if is_cpu_metric(metric) else None


def json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


STORAGE_VERSIONS = {
    "events.k8s.io/v1": StorageVersion(
        "v1",
        lambda obj: rename_fields(obj, EVENT_FIELDS),
        lambda obj: rename_fields(obj, EVENT_FIELDS_REVERSED),
        {
            **{f"regarding.{name}": f"involvedObject.{name}" for name in REFERENCE_FIELDS},
            "reportingController": "reportingComponent",
            "reason": "reason",
            "type": "type",
        },
    ),
    "autoscaling/v1": StorageVersion("autoscaling/v2", autoscaler_v2, autoscaler_v1),
}
"""Conversions by served version. The scales of autoscaling/v1 are not resources."""
