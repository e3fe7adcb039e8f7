"""What bounds others: quotas, limit ranges, disruption budgets, priorities, autoscalers, leases; and nodes."""

from collections.abc import Iterator
from typing import Any

from tapestry.apiserver.customs.structural import Fault, repetitions
from tapestry.apiserver.validation import names
from tapestry.apiserver.validation.faults import (
    IMMUTABLE,
    at_least,
    duplicate,
    every,
    forbidden,
    invalid,
    matching,
    needs,
    nonnegative,
    one_of,
    required,
    struct,
    unchanged,
    unsupported,
)
from tapestry.apiserver.validation.metadata import STANDARD_FINALIZERS, UNQUALIFIED, label_selector, labels
from tapestry.apiserver.validation.resources import (
    QUOTAS,
    amount,
    amounts,
    container_resource,
    may_be_overcommitted,
    resource_name,
)
from tapestry.apiserver.validation.scheduling import taints, tolerations
from tapestry.apiserver.validation.workloads import at_most_all, int_or_percent
from tapestry.kube.objects import Object, is_deleting, value_at
from tapestry.kube.quantity import ONE, parse

HIGHEST_PRIORITY = 1_000_000_000
SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}

segment = matching(names.path_segment)


# -- namespaces and nodes


def namespace_finalizers(value: Any, path: str) -> Iterator[Fault]:
    for each in value:
        yield from matching(names.qualified)(each, path)
        if "/" not in each and each not in STANDARD_FINALIZERS:
            yield invalid(path, each, UNQUALIFIED)


def changed_phase(_: Object, new: Object) -> Iterator[Fault]:
    """Faults of a namespace's status."""
    phase, wanted = value_at(new, "status", "phase", default=""), "Terminating" if is_deleting(new) else "Active"
    if phase != wanted:
        word = "not empty" if is_deleting(new) else "empty"
        yield invalid("status.Phase", phase, f"may only be '{wanted}' if `deletionTimestamp` is {word}")


def node(obj: Object, _: str = "") -> Iterator[Fault]:
    spec = obj.get("spec") or {}
    if spec.get("taints"):
        yield from taints(spec["taints"], "metadata.taints")
    yield from node_resources(obj)
    yield from every(matching(names.cidr))(spec.get("podCIDRs") or (), "spec.podCIDRs")


def node_resources(obj: Object) -> Iterator[Fault]:
    for field in ("capacity", "allocatable"):
        for name, text in value_at(obj, "status", field, default={}).items():
            yield from amount(name, text, f"status.{field}.{name}")


def changed_node(old: Object, new: Object) -> Iterator[Fault]:
    before, after = old.get("spec") or {}, new.get("spec") or {}
    yield from node_resources(new)
    for number, each in repetitions(value_at(new, "status", "addresses", default=[])):
        yield duplicate(f"status.addresses[{number}]", each)
    if before.get("podCIDRs") and before["podCIDRs"] != after.get("podCIDRs"):
        yield forbidden("spec.podCIDRs", 'node updates may not change podCIDR except from "" to valid')
    if before.get("providerID") and before["providerID"] != after.get("providerID"):
        yield forbidden("spec.providerID", 'node updates may not change providerID except from "" to valid')
    if after.get("taints"):
        yield from taints(after["taints"], "metadata.taints")


# -- quotas

POD_SCOPES = ("Terminating", "NotTerminating", "NotBestEffort", "PriorityClass", "CrossNamespacePodAffinity")
SCOPES = (*POD_SCOPES, "BestEffort", "VolumeAttributesClass")
POD_RESOURCES = frozenset({"pods", "cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"})
CONFLICTS = ({"BestEffort", "NotBestEffort"}, {"Terminating", "NotTerminating"})


def is_counted_in(scope: str, resource: str) -> bool:
    if scope in POD_SCOPES:
        return resource in POD_RESOURCES
    if scope == "VolumeAttributesClass":
        return resource in ("persistentvolumeclaims", "requests.storage")
    return scope != "BestEffort" or resource == "pods"


def scopes(spec: Any, path: str) -> Iterator[Fault]:
    found, hard = spec.get("scopes") or [], sorted(spec.get("hard") or ())
    at = f"{path}.scopes"
    for each in found:
        if each not in SCOPES:
            yield invalid(at, found, "unsupported scope")
        for name in hard:
            if name in QUOTAS and not is_counted_in(each, name):
                yield invalid(at, found, "unsupported scope applied to resource")
    for pair in CONFLICTS:
        if pair <= set(found):
            yield invalid(at, found, "conflicting scopes")


def scope_selector(value: Any, path: str) -> Iterator[Fault]:
    at = f"{path}.matchExpressions"
    for each in value.get("matchExpressions") or ():
        scope, operator, values = each.get("scopeName", ""), each.get("operator", ""), each.get("values") or []
        if scope not in SCOPES:
            yield invalid(f"{at}.scopeName", scope, "unsupported scope")
        if operator in ("In", "NotIn"):
            if not values:
                why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
                yield required(f"{at}.values", why)
        elif operator not in ("Exists", "DoesNotExist"):
            yield invalid(f"{at}.operator", operator, "not a valid selector operator")
        elif values:
            why = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
            yield invalid(f"{at}.values", values, why)


quota = struct(("hard", amounts), ("", scopes), ("scopeSelector", scope_selector))
quota_status = struct(("hard", amounts), ("used", amounts))


def changed_quota(old: Object, new: Object) -> Iterator[Fault]:
    before, after = old.get("spec") or {}, new.get("spec") or {}
    yield from quota(after, "spec")
    if set(before.get("scopes") or ()) != set(after.get("scopes") or ()):
        yield invalid("spec.scopes", after.get("scopes"), IMMUTABLE)


# -- limit ranges

LIMITS = ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")


def limits(value: Any, path: str) -> Iterator[Fault]:
    seen: set[str] = set()
    for number, each in enumerate(value):
        at, kind = f"{path}[{number}]", each.get("type", "")
        if complaints := names.qualified(kind):
            yield from (invalid(f"{at}.type", kind, why) for why in complaints)
        elif "/" not in kind and kind not in ("Pod", "Container", "PersistentVolumeClaim"):
            yield invalid(f"{at}.type", kind, "must be a standard limit type or fully qualified")
        if kind in seen:
            yield duplicate(f"{at}.type", kind)
        seen.add(kind)
        yield from limit(each, at, kind)


def limit(value: Object, path: str, kind: str) -> Iterator[Fault]:
    name_rule = container_resource if kind in ("Pod", "Container") else resource_name
    for field in LIMITS:
        found = value.get(field) or {}
        if kind == "Pod" and field.startswith("default") and found:
            yield forbidden(f"{path}.{field}", "may not be specified when `type` is 'Pod'")
            continue
        for name in found:
            yield from name_rule(name, f"{path}.{field}[{name}]")
    if kind == "PersistentVolumeClaim" and not any("storage" in (value.get(field) or {}) for field in ("min", "max")):
        why = "either minimum or maximum storage value is required, but neither was provided"
        yield required(f"{path}.limits", why)
    names_here = dict.fromkeys(name for field in LIMITS for name in value.get(field) or ())
    for name in names_here:
        yield from ordered(value, path, name)


ORDERS = (
    ("min", "max", "min", "min value {} is greater than max value {}"),
    ("min", "defaultRequest", "defaultRequest", "min value {} is greater than default request value {}"),
    ("defaultRequest", "max", "defaultRequest", "default request value {} is greater than max value {}"),
    ("defaultRequest", "default", "defaultRequest", "default request value {} is greater than default limit value {}"),
    ("min", "default", "default", "min value {} is greater than default value {}"),
    ("default", "max", "default", "default value {} is greater than max value {}"),
)
"""What may not be greater than what, where that is said, and in which words."""
QUOTED = {"default": {"min": "min", "default": "max"}}


def ordered(value: Object, path: str, name: str) -> Iterator[Fault]:
    found = {field: parse(value[field][name]) for field in LIMITS if name in (value.get(field) or {})}
    for small, large, field, words in ORDERS:
        if small in found and large in found and found[small] > found[large]:
            quoted = found[QUOTED.get(field, {}).get(small, field)]
            yield invalid(f"{path}.{field}[{name}]", str(quoted), words.format(found[small], found[large]))
    ratio = found.get("maxLimitRequestRatio")
    if ratio is not None and ratio < ONE:
        yield invalid(f"{path}.maxLimitRequestRatio[{name}]", str(ratio), f"ratio {ratio} is less than 1")
    usual, request = found.get("default"), found.get("defaultRequest")
    if not may_be_overcommitted(name) and usual is not None and request is not None and usual != request:
        why = f"default value {usual} must equal to defaultRequest value {request} in {name}"
        yield invalid(f"{path}.defaultRequest[{name}]", str(request), why)


limit_range = struct(("limits", limits))


# -- disruption budgets


def share(value: Any, path: str) -> Iterator[Fault]:
    yield from int_or_percent(value, path)
    yield from at_most_all(value, path)


def either(spec: Any, path: str) -> Iterator[Fault]:
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        shown = {
            "MinAvailable": spec["minAvailable"],
            "Selector": spec.get("selector"),
            "MaxUnavailable": spec["maxUnavailable"],
            "UnhealthyPodEvictionPolicy": spec.get("unhealthyPodEvictionPolicy"),
        }
        yield invalid(path, shown, "minAvailable and maxUnavailable cannot be both set")


disruption_budget = struct(
    ("", either),
    ("minAvailable", share),
    ("maxUnavailable", share),
    ("selector", label_selector),
    ("unhealthyPodEvictionPolicy", one_of("AlwaysAllow", "IfHealthyBudget")),
)


# -- priorities


def priority_class(obj: Object, _: str = "") -> Iterator[Fault]:
    name, value = obj["metadata"]["name"], obj.get("value", 0)
    if name.startswith("system-"):
        if why := system_complaint(name, value, obj.get("globalDefault", False)):
            reserved = "priority class names with 'system-' prefix are reserved for system use only. error: "
            yield forbidden("metadata.name", reserved + why)
    elif value > HIGHEST_PRIORITY:
        yield forbidden("value", f"maximum allowed value of a user defined priority is {HIGHEST_PRIORITY}")
    yield from struct(("preemptionPolicy", one_of("PreemptLowerPriority", "Never")))(obj, "")


def system_complaint(name: str, value: int, is_default: bool) -> str:
    if name not in SYSTEM_PRIORITIES:
        return f"{name} is not a known system priority class"
    if value != SYSTEM_PRIORITIES[name]:
        return f"value of {name} PriorityClass must be {SYSTEM_PRIORITIES[name]}"
    return f"globalDefault of {name} PriorityClass must be false" if is_default else ""


def changed_priority_class(old: Object, new: Object) -> Iterator[Fault]:
    if old.get("value", 0) != new.get("value", 0):
        yield forbidden("value", "may not be changed in an update.")
    yield from unchanged(old.get("preemptionPolicy"), new.get("preemptionPolicy"), "preemptionPolicy")


# -- leases


lease = struct(
    ("leaseDurationSeconds", at_least(1, "must be greater than 0")),
    ("leaseTransitions", nonnegative),
)


# -- runtime classes


def handler(obj: Any, _: str) -> Iterator[Fault]:
    return matching(names.label)(obj.get("handler", ""), "handler")


runtime_class = struct(
    ("", handler),
    ("overhead", struct(("podFixed", lambda value, _: amounts(value, "overhead.limits", container_resource)))),
    (
        "scheduling",
        struct(("nodeSelector", labels), ("tolerations", lambda v, at: tolerations(v, f"{at}.tolerations"))),
    ),
)


def changed_runtime_class(old: Object, new: Object) -> Iterator[Fault]:
    return unchanged(old.get("handler"), new.get("handler"), "handler")


# -- autoscalers

METRICS = ("ContainerResource", "External", "Object", "Pods", "Resource")


def replicas(spec: Any, path: str) -> Iterator[Fault]:
    least, most = spec.get("minReplicas"), spec.get("maxReplicas", 0)
    if least is not None and least < 1:
        yield invalid(f"{path}.minReplicas", least, "must be greater than or equal to 1")
    if most < 1:
        yield invalid(f"{path}.maxReplicas", most, "must be greater than 0")
    if least is not None and most < least:
        yield invalid(f"{path}.maxReplicas", most, "must be greater than or equal to `minReplicas`")


def metric(value: Any, path: str) -> Iterator[Fault]:
    kind = value.get("type", "")
    if not kind:
        yield required(f"{path}.type", "must specify a metric source type")
    if kind not in METRICS:
        yield unsupported(f"{path}.type", kind, METRICS)
        return
    field = f"{kind[0].lower()}{kind[1:]}"
    if value.get(field) is None:
        yield required(f"{path}.{field}", "must populate information for the given metric source")
    for other in METRICS:
        name = f"{other[0].lower()}{other[1:]}"
        if name != field and value.get(name) is not None:
            yield forbidden(f"{path}.{name}", "must populate the given metric source only")


def group_of_target(value: Any, path: str) -> Iterator[Fault]:
    version = value.get("apiVersion", "")
    if version.count("/") > 1:
        yield invalid(f"{path}.apiVersion", version, f"unexpected GroupVersion string: {version}")
    elif "/" not in version and value.get("kind") != "ReplicationController":  # nothing else without a group scales
        yield invalid(f"{path}.apiVersion", version, "apiVersion must specify API group")


def metrics(spec: Any, path: str) -> Iterator[Fault]:
    found = spec.get("metrics") or ()
    yield from every(metric)(found, f"{path}.metrics")
    if spec.get("minReplicas") == 0 and not any(each.get("type") in ("Object", "External") for each in found):
        why = "must specify at least one Object or External metric to support scaling to zero replicas"
        yield forbidden(f"{path}.metrics", why)


target = struct(needs("kind"), ("kind", segment), needs("name"), ("name", segment), ("", group_of_target))
autoscaler = struct(("", replicas), ("scaleTargetRef", target), ("", metrics))
