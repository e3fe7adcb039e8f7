"""Usage of objects as ResourceQuotas count it.

    pod_resource_totals    requests or limits of a whole pod
    object_usage           usage of an object: `{"pods": 1, "requests.cpu": 500m, ...}`
    matching_quota_names   names in a quota that objects of a resource count towards
    matches_scopes         True if a quota applies to an object

Resources are named as in RBAC: `pods`, `deployments.apps`.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from tapestry.kube.objects import Object, value_at
from tapestry.kube.pods import TERMINAL_PHASES, is_sidecar
from tapestry.kube.quantity import ONE, Quantity, ResourceList, parse_quantity
from tapestry.kube.times import parse_time

POD_QUOTA_NAMES = frozenset(
    {
        *("count/pods", "pods", "cpu", "memory", "ephemeral-storage"),
        *(f"{prefix}.{each}" for prefix in ("requests", "limits") for each in ("cpu", "memory", "ephemeral-storage")),
    }
)
SERVICE_QUOTA_NAMES = frozenset({"count/services", "services", "services.nodeports", "services.loadbalancers"})
CLAIM_QUOTA_NAMES = frozenset({"count/persistentvolumeclaims", "persistentvolumeclaims", "requests.storage"})
STORAGE_CLASS_INFIX = ".storageclass.storage.k8s.io/"
COUNTED_BY_PLURAL = frozenset({"configmaps", "secrets", "replicationcontrollers", "resourcequotas"})
"""Resources that quotas counted by plural name before `count/` existed."""
UNCOUNTED_RESOURCES = frozenset({"events", "events.events.k8s.io"})
POD_LEVEL_RESOURCES = ("cpu", "memory")
"""Resources that can be requested for the pod as a whole instead of its containers."""


def pod_resource_totals(spec: Object, field: str) -> ResourceList:
    """Return the `requests` or `limits` of a pod: the maximum of its init and running phases.

    Init containers run one after another. Sidecars (init containers that always restart) keep running beside all later
    containers.
    """
    sidecars, highest = ResourceList(), ResourceList()
    for container in spec.get("initContainers") or ():
        if is_sidecar(container):
            sidecars = sidecars + container_resources(container, field)
            highest = highest.larger(sidecars)
        else:
            highest = highest.larger(sidecars + container_resources(container, field))
    running = sidecars
    for container in spec.get("containers") or ():
        running = running + container_resources(container, field)
    pod_level = {
        name: amount for name, amount in container_resources(spec, field).items() if name in POD_LEVEL_RESOURCES
    }
    return ResourceList({**highest.larger(running), **pod_level})


def container_resources(container: Object, field: str) -> ResourceList:
    return ResourceList.parse(value_at(container, "resources", field))


# -- usage


def object_usage(resource: str, obj: Object, now: datetime) -> ResourceList:
    usage = {"pods": pod_usage, "services": service_usage, "persistentvolumeclaims": claim_usage}.get(resource)
    count = ResourceList({f"count/{resource}": ONE})
    if usage is not None:
        return count + usage(obj, now)
    return count + ResourceList({resource: ONE}) if resource in COUNTED_BY_PLURAL else count


def pod_usage(pod: Object, now: datetime) -> ResourceList:
    if is_terminated_or_overdue(pod, now):
        return ResourceList()
    spec = pod["spec"]
    overhead = ResourceList.parse(spec.get("overhead"))
    limits = pod_resource_totals(spec, "limits")
    return pod_quota_usage(
        pod_resource_totals(spec, "requests") + overhead,
        limits + ResourceList({name: amount for name, amount in overhead.items() if limits[name]}),
    )


def pod_quota_usage(requests: ResourceList, limits: ResourceList) -> ResourceList:
    """Return requests, limits and the pod count under the names that quotas use."""
    usage = {"pods": ONE}
    for name, amount in requests.items():
        if name in ("cpu", "memory", "ephemeral-storage") or name.startswith("hugepages-"):
            usage |= {name: amount, f"requests.{name}": amount}
        elif is_extended_resource(name):
            usage[f"requests.{name}"] = amount
    for name in ("cpu", "memory", "ephemeral-storage"):
        if name in limits:
            usage[f"limits.{name}"] = limits[name]
    return ResourceList(usage)


def is_terminated_or_overdue(pod: Object, now: datetime) -> bool:
    """Return True if the pod has terminated or its deletion grace period has passed."""
    if value_at(pod, "status", "phase") in TERMINAL_PHASES:
        return True
    metadata = pod["metadata"]
    if metadata.get("deletionTimestamp") is None or metadata.get("deletionGracePeriodSeconds") is None:
        return False
    grace = timedelta(seconds=metadata["deletionGracePeriodSeconds"])
    return now > parse_time(metadata["deletionTimestamp"]) + grace


def is_extended_resource(name: str) -> bool:
    """Return True for a resource that Kubernetes does not define: `example.com/gpu`."""
    return "/" in name and "kubernetes.io/" not in name


def service_usage(service: Object, _: datetime) -> ResourceList:
    spec = service.get("spec") or {}
    ports, kind = spec.get("ports") or (), spec.get("type")
    node_ports = len(ports) if kind in ("NodePort", "LoadBalancer") else 0
    if kind == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is False:
        node_ports = sum(1 for port in ports if port.get("nodePort"))
    return ResourceList(
        {
            "services": ONE,
            "services.nodeports": parse_quantity(node_ports),
            "services.loadbalancers": parse_quantity(int(kind == "LoadBalancer")),
        }
    )


def claim_usage(claim: Object, _: datetime) -> ResourceList:
    usage = {"persistentvolumeclaims": ONE}
    requested = value_at(claim, "spec", "resources", "requests", "storage")
    if requested is not None:
        allocated = value_at(claim, "status", "allocatedResources", "storage", default=0)
        usage["requests.storage"] = rounded_up_to_bytes(max(parse_quantity(requested), parse_quantity(allocated)))
    storage_class = value_at(claim, "spec", "storageClassName")
    class_usage = (
        {f"{storage_class}{STORAGE_CLASS_INFIX}{name}": amount for name, amount in usage.items()}
        if storage_class
        else {}
    )
    return ResourceList({**usage, **class_usage})


def rounded_up_to_bytes(amount: Quantity) -> Quantity:
    return Quantity(amount.value() * ONE.nano, amount.format)


# -- quotas


def matching_quota_names(resource: str, names: Iterable[str]) -> list[str]:
    """Return the names in a quota that objects of a resource count towards."""
    match resource:
        case "pods":
            matches: Callable[[str], bool] = is_pod_quota_name
        case "services":
            matches = SERVICE_QUOTA_NAMES.__contains__
        case "persistentvolumeclaims":
            matches = is_claim_quota_name
        case _:
            names_of_resource = {f"count/{resource}", *([resource] if resource in COUNTED_BY_PLURAL else [])}
            matches = names_of_resource.__contains__
    return [name for name in names if matches(name)]


def is_pod_quota_name(name: str) -> bool:
    if name in POD_QUOTA_NAMES or name.startswith(("hugepages-", "requests.hugepages-")):
        return True
    return name.startswith("requests.") and is_extended_resource(name)


def is_claim_quota_name(name: str) -> bool:
    _, infix, resource = name.partition(STORAGE_CLASS_INFIX)
    return name in CLAIM_QUOTA_NAMES or (bool(infix) and resource in ("persistentvolumeclaims", "requests.storage"))


def matches_scopes(resource: str, quota: Object, obj: Object) -> bool:
    """Return True if the object matches all scopes of a quota. Only pods and claims have scopes."""
    spec = quota.get("spec") or {}
    scopes = [{"scopeName": each, "operator": "Exists"} for each in spec.get("scopes") or ()]
    scopes += value_at(spec, "scopeSelector", "matchExpressions", default=[])
    return all(matches_scope(resource, obj, each) for each in scopes)


def matches_scope(resource: str, obj: Object, scope: Object) -> bool:
    name = scope["scopeName"]
    if resource == "persistentvolumeclaims":
        return name == "VolumeAttributesClass" and is_selected_by_scope(attribute_classes(obj), scope)
    if resource != "pods":
        return False
    if name == "PriorityClass":
        return is_selected_by_scope({value_at(obj, "spec", "priorityClassName")}, scope)
    applies = POD_SCOPES.get(name)
    return applies is not None and applies(obj)


def is_selected_by_scope(values: set[str | None], scope: Object) -> bool:
    """Return True if a scope selector matches an object with any of these values."""
    present, selected = {each for each in values if each}, set(scope.get("values") or ())
    match scope.get("operator"):
        case "Exists":
            return bool(present)
        case "DoesNotExist":
            return not present
        case "In":
            return bool(present & selected)
        case "NotIn":
            return not present or bool(present - selected)
    return False


def attribute_classes(claim: Object) -> set[str | None]:
    return {
        value_at(claim, "spec", "volumeAttributesClassName"),
        value_at(claim, "status", "currentVolumeAttributesClassName"),
        value_at(claim, "status", "modifyVolumeStatus", "targetVolumeAttributesClassName"),
    }


def is_terminating(pod: Object) -> bool:
    """Return True if the pod has an active deadline, which is what the quota scope Terminating means."""
    deadline: int | None = value_at(pod, "spec", "activeDeadlineSeconds")
    return deadline is not None and deadline >= 0


def is_best_effort(pod: Object) -> bool:
    return bool(value_at(pod, "status", "qosClass") == "BestEffort")


def uses_cross_namespace_affinity(pod: Object) -> bool:
    affinity = value_at(pod, "spec", "affinity", default={})
    for kind in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(kind) or {}
        terms = list(rules.get("requiredDuringSchedulingIgnoredDuringExecution") or ())
        terms += [
            each.get("podAffinityTerm") or {}
            for each in rules.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        ]
        if any(each.get("namespaces") or each.get("namespaceSelector") is not None for each in terms):
            return True
    return False


POD_SCOPES: Mapping[str, Callable[[Object], bool]] = {
    "Terminating": is_terminating,
    "NotTerminating": lambda pod: not is_terminating(pod),
    "BestEffort": is_best_effort,
    "NotBestEffort": lambda pod: not is_best_effort(pod),
    "CrossNamespacePodAffinity": uses_cross_namespace_affinity,
}
