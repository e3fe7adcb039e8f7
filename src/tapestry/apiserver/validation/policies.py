"""Validation of namespaces, nodes, quotas, limit ranges, PDBs, priorities, leases and autoscalers."""

from collections.abc import Iterator
from typing import Any

from tapestry.apiserver.core import names
from tapestry.apiserver.core.faults import (
    IMMUTABLE_MESSAGE,
    Fault,
    Validator,
    at_least,
    duplicate_value,
    duplicates,
    forbidden_field,
    format_validator,
    invalid_value,
    item_validator,
    one_of,
    required_fields,
    required_value,
    struct_validator,
    unsupported_value,
    validate_immutable_field,
    validate_nonnegative,
)
from tapestry.apiserver.core.metadata import (
    STANDARD_FINALIZERS,
    UNQUALIFIED_FINALIZER_MESSAGE,
    validate_label_selector,
    validate_labels,
)
from tapestry.apiserver.validation.resources import (
    QUOTA_RESOURCES,
    is_overcommit_allowed,
    validate_container_resource_name,
    validate_nonnegative_quantity,
    validate_resource_list,
    validate_resource_name,
    validate_resource_quantity,
)
from tapestry.apiserver.validation.scheduling import validate_taints, validate_tolerations
from tapestry.apiserver.validation.workloads import validate_at_most_100_percent, validate_int_or_percent
from tapestry.kube.objects import Object, is_deleting, value_at
from tapestry.kube.quantity import ONE, parse_quantity

MAX_USER_PRIORITY = 1_000_000_000
SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}

validate_path_segment = format_validator(names.path_segment_errors)


# -- namespaces and nodes


def validate_namespace_finalizers(value: Any, path: str) -> Iterator[Fault]:
    for each in value:
        yield from format_validator(names.qualified_name_errors)(each, path)
        if "/" not in each and each not in STANDARD_FINALIZERS:
            yield invalid_value(path, each, UNQUALIFIED_FINALIZER_MESSAGE)


def validate_namespace_status_update(_: Object, new: Object) -> Iterator[Fault]:
    phase, expected = value_at(new, "status", "phase", default=""), "Terminating" if is_deleting(new) else "Active"
    if phase != expected:
        state = "not empty" if is_deleting(new) else "empty"
        yield invalid_value("status.Phase", phase, f"may only be '{expected}' if `deletionTimestamp` is {state}")


def validate_node(obj: Object, _: str = "") -> Iterator[Fault]:
    spec = obj.get("spec") or {}
    if spec.get("taints"):
        yield from validate_taints(spec["taints"], "metadata.taints")
    yield from validate_node_resources(obj)
    yield from item_validator(format_validator(names.cidr_errors))(spec.get("podCIDRs") or (), "spec.podCIDRs")


def validate_node_resources(obj: Object) -> Iterator[Fault]:
    for field in ("capacity", "allocatable"):
        for name, text in value_at(obj, "status", field, default={}).items():
            yield from validate_resource_quantity(name, text, f"status.{field}.{name}")


def validate_node_update(old: Object, new: Object) -> Iterator[Fault]:
    before, after = old.get("spec") or {}, new.get("spec") or {}
    yield from validate_node_resources(new)
    for number, each in duplicates(value_at(new, "status", "addresses", default=[])):
        yield duplicate_value(f"status.addresses[{number}]", each)
    if before.get("podCIDRs") and before["podCIDRs"] != after.get("podCIDRs"):
        yield forbidden_field("spec.podCIDRs", 'node updates may not change podCIDR except from "" to valid')
    if before.get("providerID") and before["providerID"] != after.get("providerID"):
        yield forbidden_field("spec.providerID", 'node updates may not change providerID except from "" to valid')
    if after.get("taints"):
        yield from validate_taints(after["taints"], "metadata.taints")


# -- quotas

POD_SCOPES = ("Terminating", "NotTerminating", "NotBestEffort", "PriorityClass", "CrossNamespacePodAffinity")
QUOTA_SCOPES = (*POD_SCOPES, "BestEffort", "VolumeAttributesClass")
POD_RESOURCES = frozenset({"pods", "cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"})
CONFLICTING_SCOPES = ({"BestEffort", "NotBestEffort"}, {"Terminating", "NotTerminating"})


def is_resource_in_scope(scope: str, resource: str) -> bool:
    if scope in POD_SCOPES:
        return resource in POD_RESOURCES
    if scope == "VolumeAttributesClass":
        return resource in ("persistentvolumeclaims", "requests.storage")
    return scope != "BestEffort" or resource == "pods"


def validate_quota_scopes(spec: Any, path: str) -> Iterator[Fault]:
    scopes, hard = spec.get("scopes") or [], sorted(spec.get("hard") or ())
    at = f"{path}.scopes"
    for each in scopes:
        if each not in QUOTA_SCOPES:
            yield invalid_value(at, scopes, "unsupported scope")
        for name in hard:
            if name in QUOTA_RESOURCES and not is_resource_in_scope(each, name):
                yield invalid_value(at, scopes, "unsupported scope applied to resource")
    for pair in CONFLICTING_SCOPES:
        if pair <= set(scopes):
            yield invalid_value(at, scopes, "conflicting scopes")


def validate_scope_selector(value: Any, path: str) -> Iterator[Fault]:
    at = f"{path}.matchExpressions"
    for each in value.get("matchExpressions") or ():
        scope, operator, values = each.get("scopeName", ""), each.get("operator", ""), each.get("values") or []
        if scope not in QUOTA_SCOPES:
            yield invalid_value(f"{at}.scopeName", scope, "unsupported scope")
        if operator in ("In", "NotIn"):
            if not values:
                msg = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
                yield required_value(f"{at}.values", msg)
        elif operator not in ("Exists", "DoesNotExist"):
            yield invalid_value(f"{at}.operator", operator, "not a valid selector operator")
        elif values:
            msg = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
            yield invalid_value(f"{at}.values", values, msg)


validate_quota_spec = struct_validator(
    ("hard", validate_resource_list), ("", validate_quota_scopes), ("scopeSelector", validate_scope_selector)
)
validate_quota_status = struct_validator(("hard", validate_resource_list), ("used", validate_resource_list))


def validate_quota_update(old: Object, new: Object) -> Iterator[Fault]:
    before, after = old.get("spec") or {}, new.get("spec") or {}
    yield from validate_quota_spec(after, "spec")
    if set(before.get("scopes") or ()) != set(after.get("scopes") or ()):
        yield invalid_value("spec.scopes", after.get("scopes"), IMMUTABLE_MESSAGE)


# -- limit ranges

LIMIT_FIELDS = ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")


def validate_limit_range_items(value: Any, path: str) -> Iterator[Fault]:
    seen: set[str] = set()
    for number, each in enumerate(value):
        at, kind = f"{path}[{number}]", each.get("type", "")
        if errors := names.qualified_name_errors(kind):
            yield from (invalid_value(f"{at}.type", kind, msg) for msg in errors)
        elif "/" not in kind and kind not in ("Pod", "Container", "PersistentVolumeClaim"):
            yield invalid_value(f"{at}.type", kind, "must be a standard limit type or fully qualified")
        if kind in seen:
            yield duplicate_value(f"{at}.type", kind)
        seen.add(kind)
        yield from validate_limit_range_item(each, at, kind)


def validate_limit_range_item(value: Object, path: str, kind: str) -> Iterator[Fault]:
    name_rule = validate_container_resource_name if kind in ("Pod", "Container") else validate_resource_name
    for field in LIMIT_FIELDS:
        amounts = value.get(field) or {}
        if kind == "Pod" and field.startswith("default") and amounts:
            yield forbidden_field(f"{path}.{field}", "may not be specified when `type` is 'Pod'")
            continue
        for name in amounts:
            yield from name_rule(name, f"{path}.{field}[{name}]")
    if kind == "PersistentVolumeClaim" and not any("storage" in (value.get(field) or {}) for field in ("min", "max")):
        msg = "either minimum or maximum storage value is required, but neither was provided"
        yield required_value(f"{path}.limits", msg)
    resource_names = dict.fromkeys(name for field in LIMIT_FIELDS for name in value.get(field) or ())
    for name in resource_names:
        yield from validate_limit_order(value, path, name)


LIMIT_ORDER_RULES = (
    ("min", "max", "min", "min value {} is greater than max value {}"),
    ("min", "defaultRequest", "defaultRequest", "min value {} is greater than default request value {}"),
    ("defaultRequest", "max", "defaultRequest", "default request value {} is greater than max value {}"),
    ("defaultRequest", "default", "defaultRequest", "default request value {} is greater than default limit value {}"),
    ("min", "default", "default", "min value {} is greater than default value {}"),
    ("default", "max", "default", "default value {} is greater than max value {}"),
)
"""Fields that must not exceed other fields: smaller field, larger field, reported field, message."""
REPORTED_LIMIT_FIELDS = {"default": {"min": "min", "default": "max"}}


def validate_limit_order(value: Object, path: str, name: str) -> Iterator[Fault]:
    amounts = {field: parse_quantity(value[field][name]) for field in LIMIT_FIELDS if name in (value.get(field) or {})}
    for small, large, field, text in LIMIT_ORDER_RULES:
        if small in amounts and large in amounts and amounts[small] > amounts[large]:
            reported = amounts[REPORTED_LIMIT_FIELDS.get(field, {}).get(small, field)]
            yield invalid_value(f"{path}.{field}[{name}]", str(reported), text.format(amounts[small], amounts[large]))
    ratio = amounts.get("maxLimitRequestRatio")
    if ratio is not None and ratio < ONE:
        yield invalid_value(f"{path}.maxLimitRequestRatio[{name}]", str(ratio), f"ratio {ratio} is less than 1")
    default, request = amounts.get("default"), amounts.get("defaultRequest")
    if not is_overcommit_allowed(name) and default is not None and request is not None and default != request:
        msg = f"default value {default} must equal to defaultRequest value {request} in {name}"
        yield invalid_value(f"{path}.defaultRequest[{name}]", str(request), msg)


validate_limit_range_spec = struct_validator(("limits", validate_limit_range_items))


# -- disruption budgets


def validate_int_or_share(value: Any, path: str) -> Iterator[Fault]:
    yield from validate_int_or_percent(value, path)
    yield from validate_at_most_100_percent(value, path)


def validate_single_budget_field(spec: Any, path: str) -> Iterator[Fault]:
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        reported = {
            "MinAvailable": spec["minAvailable"],
            "Selector": spec.get("selector"),
            "MaxUnavailable": spec["maxUnavailable"],
            "UnhealthyPodEvictionPolicy": spec.get("unhealthyPodEvictionPolicy"),
        }
        yield invalid_value(path, reported, "minAvailable and maxUnavailable cannot be both set")


validate_disruption_budget_spec = struct_validator(
    ("", validate_single_budget_field),
    ("minAvailable", validate_int_or_share),
    ("maxUnavailable", validate_int_or_share),
    ("selector", validate_label_selector),
    ("unhealthyPodEvictionPolicy", one_of("AlwaysAllow", "IfHealthyBudget")),
)


# -- priorities


def validate_priority_class(obj: Object, _: str = "") -> Iterator[Fault]:
    name, value = obj["metadata"]["name"], obj.get("value", 0)
    if name.startswith("system-"):
        if msg := system_priority_error(name, value, obj.get("globalDefault", False)):
            reserved = "priority class names with 'system-' prefix are reserved for system use only. error: "
            yield forbidden_field("metadata.name", reserved + msg)
    elif value > MAX_USER_PRIORITY:
        yield forbidden_field("value", f"maximum allowed value of a user defined priority is {MAX_USER_PRIORITY}")
    yield from struct_validator(("preemptionPolicy", one_of("PreemptLowerPriority", "Never")))(obj, "")


def system_priority_error(name: str, value: int, is_default: bool) -> str:
    if name not in SYSTEM_PRIORITIES:
        return f"{name} is not a known system priority class"
    if value != SYSTEM_PRIORITIES[name]:
        return f"value of {name} PriorityClass must be {SYSTEM_PRIORITIES[name]}"
    return f"globalDefault of {name} PriorityClass must be false" if is_default else ""


def validate_priority_class_update(old: Object, new: Object) -> Iterator[Fault]:
    if old.get("value", 0) != new.get("value", 0):
        yield forbidden_field("value", "may not be changed in an update.")
    yield from validate_immutable_field(old.get("preemptionPolicy"), new.get("preemptionPolicy"), "preemptionPolicy")


# -- leases


validate_lease_spec = struct_validator(
    ("leaseDurationSeconds", at_least(1, "must be greater than 0")),
    ("leaseTransitions", validate_nonnegative),
)


# -- runtime classes


def validate_runtime_handler(obj: Any, _: str) -> Iterator[Fault]:
    return format_validator(names.dns_label_errors)(obj.get("handler", ""), "handler")


validate_runtime_class = struct_validator(
    ("", validate_runtime_handler),
    (
        "overhead",
        struct_validator(
            (
                "podFixed",
                lambda value, _: validate_resource_list(value, "overhead.limits", validate_container_resource_name),
            )
        ),
    ),
    (
        "scheduling",
        struct_validator(
            ("nodeSelector", validate_labels),
            ("tolerations", lambda v, at: validate_tolerations(v, f"{at}.tolerations")),
        ),
    ),
)


def validate_runtime_class_update(old: Object, new: Object) -> Iterator[Fault]:
    return validate_immutable_field(old.get("handler"), new.get("handler"), "handler")


# -- autoscalers

METRIC_TYPES = ("ContainerResource", "External", "Object", "Pods", "Resource")
TARGET_TYPES = ("Utilization", "Value", "AverageValue")
MAX_STABILIZATION_SECONDS, MAX_PERIOD_SECONDS = 3600, 1800


def validate_replica_bounds(spec: Any, path: str) -> Iterator[Fault]:
    minimum, maximum = spec.get("minReplicas"), spec.get("maxReplicas", 0)
    if minimum is not None and minimum < 1:
        yield invalid_value(f"{path}.minReplicas", minimum, "must be greater than or equal to 1")
    if maximum < 1:
        yield invalid_value(f"{path}.maxReplicas", maximum, "must be greater than 0")
    if minimum is not None and maximum < minimum:
        yield invalid_value(f"{path}.maxReplicas", maximum, "must be greater than or equal to `minReplicas`")


def validate_metric(value: Any, path: str) -> Iterator[Fault]:
    kind = value.get("type", "")
    if not kind:
        yield required_value(f"{path}.type", "must specify a metric source type")
    if kind not in METRIC_TYPES:
        yield unsupported_value(f"{path}.type", kind, METRIC_TYPES)
        return
    field = f"{kind[0].lower()}{kind[1:]}"
    if value.get(field) is None:
        yield required_value(f"{path}.{field}", "must populate information for the given metric source")
    elif field in ("resource", "containerResource"):
        yield from validate_resource_metric(value[field], f"{path}.{field}")
    for other in METRIC_TYPES:
        name = f"{other[0].lower()}{other[1:]}"
        if name != field and value.get(name) is not None:
            yield forbidden_field(f"{path}.{name}", "must populate the given metric source only")


def validate_resource_metric(value: Any, path: str) -> Iterator[Fault]:
    target, target_path = value.get("target") or {}, f"{path}.target"
    name, container = value.get("name"), value.get("container")
    if not name:
        yield required_value(f"{path}.name", "must specify a resource name")
    elif path.endswith(".containerResource"):
        yield from validate_container_resource_name(name, f"{path}.name")
    if path.endswith(".containerResource"):
        if not container:
            yield required_value(f"{path}.container", "must specify a container")
        else:
            yield from format_validator(names.dns_label_errors)(container, f"{path}.container")
    yield from validate_metric_target(target, target_path)
    has_utilization, has_value = (target.get(each) is not None for each in ("averageUtilization", "averageValue"))
    if not has_utilization and not has_value:
        message = "must set either a target raw value or a target utilization"
        yield required_value(f"{target_path}.averageUtilization", message)
    if has_utilization and has_value:
        message = "may not set both a target raw value and a target utilization"
        yield forbidden_field(f"{target_path}.averageValue", message)


def validate_metric_target(value: Any, path: str) -> Iterator[Fault]:
    kind = value.get("type", "")
    if not kind:
        yield required_value(f"{path}.type", "must specify a metric target type")
    if kind not in TARGET_TYPES:
        yield invalid_value(f"{path}.type", kind, "must be either Utilization, Value, or AverageValue")
    for field in ("value", "averageValue"):
        if value.get(field) is not None and (amount := parse_quantity(value[field])).nano <= 0:
            yield invalid_value(f"{path}.{field}", str(amount), "must be positive")
    if (percent := value.get("averageUtilization")) is not None and percent < 1:
        yield invalid_value(f"{path}.averageUtilization", percent, "must be greater than 0")


def at_most(maximum: int) -> Validator:
    def faults(value: Any, path: str) -> Iterator[Fault]:
        if value > maximum:
            yield invalid_value(path, value, f"must be less than or equal to {maximum}")

    return faults


def validate_scaling_policy(value: Any, path: str) -> Iterator[Fault]:
    yield from one_of("Percent", "Pods")(value.get("type", ""), f"{path}.type")
    for field in ("value", "periodSeconds"):
        yield from at_least(1, "must be greater than zero")(value.get(field, 0), f"{path}.{field}")
    yield from at_most(MAX_PERIOD_SECONDS)(value.get("periodSeconds", 0), f"{path}.periodSeconds")


validate_scaling_rules = struct_validator(
    ("stabilizationWindowSeconds", at_least(0, "must be greater than or equal to zero")),
    ("stabilizationWindowSeconds", at_most(MAX_STABILIZATION_SECONDS)),
    ("selectPolicy", one_of("Disabled", "Max", "Min")),
    required_fields("policies", detail="must specify at least one Policy"),
    ("policies", item_validator(validate_scaling_policy)),
    ("tolerance", validate_nonnegative_quantity),
)
validate_behavior = struct_validator(("scaleUp", validate_scaling_rules), ("scaleDown", validate_scaling_rules))


def validate_scale_target_group(value: Any, path: str) -> Iterator[Fault]:
    version = value.get("apiVersion", "")
    if version.count("/") > 1:
        yield invalid_value(f"{path}.apiVersion", version, f"unexpected GroupVersion string: {version}")
    elif "/" not in version and value.get("kind") != "ReplicationController":  # no other core kind can be scaled
        yield invalid_value(f"{path}.apiVersion", version, "apiVersion must specify API group")


def validate_metrics(spec: Any, path: str) -> Iterator[Fault]:
    metrics = spec.get("metrics") or ()
    yield from item_validator(validate_metric)(metrics, f"{path}.metrics")
    if spec.get("minReplicas") == 0 and not any(each.get("type") in ("Object", "External") for each in metrics):
        msg = "must specify at least one Object or External metric to support scaling to zero replicas"
        yield forbidden_field(f"{path}.metrics", msg)


validate_scale_target = struct_validator(
    required_fields("kind"),
    ("kind", validate_path_segment),
    required_fields("name"),
    ("name", validate_path_segment),
    ("", validate_scale_target_group),
)
validate_autoscaler_spec = struct_validator(
    ("", validate_replica_bounds),
    ("scaleTargetRef", validate_scale_target),
    ("", validate_metrics),
    ("behavior", validate_behavior),
)
