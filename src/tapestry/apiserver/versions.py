"""Built-in kinds that are served in two shapes and stored in one of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tapestry.apiserver import refusals
from tapestry.kube.objects import Object, annotations_of, value_at, without

Shape = Callable[[Object], Object]


@dataclass(frozen=True, slots=True)
class Guise:
    """What objects look like that are not served as they are stored; `apiVersion` is its callers' business."""

    stored_as: str
    stored: Shape
    served: Shape
    fields: Mapping[str, str] = field(default_factory=dict)
    """What field selectors call the fields of what is stored."""


def renamed(obj: Object, names: Mapping[str, str]) -> Object:
    return {names.get(key, key): value for key, value in obj.items()}


# -- events

EVENT = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
"""Fields of events.k8s.io, and what they are called in the core group."""
NEW_EVENT = {old: new for new, old in EVENT.items()}
REFERENCE = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")

# -- autoscalers

ANNOTATION = "autoscaling.alpha.kubernetes.io/"
SPEC, STATUS = {"behavior": "behavior"}, {"conditions": "conditions", "currentMetrics": "current-metrics"}
"""Fields that v1 has no place for but an annotation."""


def autoscaler_v2(obj: Object) -> Object:
    """An autoscaler of v1, which knows of no metric but CPU, as v2."""
    spec, status, kept = dict(obj.get("spec") or {}), dict(obj.get("status") or {}), dict(annotations_of(obj))
    for part, fields in ((spec, SPEC), (status, STATUS)):
        for name, suffix in fields.items():
            wanted = dict[str, Any] if name == "behavior" else list[dict[str, Any]]
            if (value := annotated(kept, suffix, wanted)) is not None:
                part[name] = value
    metrics = [utilization(cpu)] if (cpu := spec.pop("targetCPUUtilizationPercentage", None)) is not None else []
    metrics += annotated(kept, "metrics", list[dict[str, Any]]) or []
    status.pop("currentCPUUtilizationPercentage", None)
    return parts(obj, kept, spec | ({"metrics": metrics} if metrics else {}), status)


def annotated(annotations: dict[str, str], suffix: str, wanted: Any) -> Any:
    """What an annotation says, which is taken out; None where there is none.  Raises BadRequest for any other type."""
    try:
        return msgspec.json.decode(annotations.pop(ANNOTATION + suffix, "null"), type=wanted | None)
    except (ValueError, RecursionError) as error:
        raise refusals.bad_request(f"metadata.annotations[{ANNOTATION}{suffix}]: {str(error)[:200]}") from error


def autoscaler_v1(obj: Object) -> Object:
    """An autoscaler of v2 as v1: what that has no field for is in annotations."""
    spec, status, kept = dict(obj.get("spec") or {}), dict(obj.get("status") or {}), dict(annotations_of(obj))
    metrics = spec.pop("metrics", [])
    cpu = next((each for each in metrics if of_cpu(each) is not None), None)
    if cpu is not None:
        spec["targetCPUUtilizationPercentage"] = of_cpu(cpu)
    if others := [each for each in metrics if each is not cpu]:
        kept[f"{ANNOTATION}metrics"] = text(others)
    current = next((each for each in status.get("currentMetrics") or () if is_cpu(each)), None)
    if (share := value_at(current or {}, "resource", "current", "averageUtilization")) is not None:
        status["currentCPUUtilizationPercentage"] = share
    for part, fields in ((spec, SPEC), (status, STATUS)):
        for name, suffix in fields.items():
            if name in part:
                kept[ANNOTATION + suffix] = text(part.pop(name))
    return parts(obj, kept, spec, status)


def parts(obj: Object, annotations: Object, spec: Object, status: Object) -> Object:
    metadata = without(obj["metadata"], "annotations") | ({"annotations": annotations} if annotations else {})
    return {**obj, "metadata": metadata, "spec": spec} | ({"status": status} if status else {})


def utilization(percent: int) -> Object:
    target = {"type": "Utilization", "averageUtilization": percent}
    return {"type": "Resource", "resource": {"name": "cpu", "target": target}}


def is_cpu(metric: Object) -> bool:
    return metric.get("type") == "Resource" and value_at(metric, "resource", "name") == "cpu"


def of_cpu(metric: Object) -> Any:
    """The utilization of CPU that a metric wants; None where it wants something else."""
    return value_at(metric, "resource", "target", "averageUtilization") if is_cpu(metric) else None


def text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


GUISES = {
    "events.k8s.io/v1": Guise(
        "v1",
        lambda obj: renamed(obj, EVENT),
        lambda obj: renamed(obj, NEW_EVENT),
        {
            **{f"regarding.{name}": f"involvedObject.{name}" for name in REFERENCE},
            "reportingController": "reportingComponent",
            "reason": "reason",
            "type": "type",
        },
    ),
    "autoscaling/v1": Guise("autoscaling/v2", autoscaler_v2, autoscaler_v1),
}
"""By the version that is served; scales, which autoscaling/v1 has too, are no resources."""
