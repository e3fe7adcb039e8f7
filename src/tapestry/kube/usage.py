"""Usage: what objects count for in a ResourceQuota, under the names that quotas limit.

    totals      what a pod asks for as a whole
    usage       what an object uses: `{"pods": 1, "requests.cpu": 500m, ...}`
    counted     those names of a quota that the objects of a resource count towards
    in_scopes   whether a quota is about an object at all

Resources are named as rights name them: `pods`, `deployments.apps`.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from tapestry.kube.objects import Object, value_at
from tapestry.kube.pods import ENDED, is_sidecar
from tapestry.kube.quantity import ONE, Amounts, Quantity, parse
from tapestry.kube.times import parse_time

POD_NAMES = frozenset(
    {
        *("count/pods", "pods", "cpu", "memory", "ephemeral-storage"),
        *(f"{prefix}.{each}" for prefix in ("requests", "limits") for each in ("cpu", "memory", "ephemeral-storage")),
    }
)
SERVICE_NAMES = frozenset({"count/services", "services", "services.nodeports", "services.loadbalancers"})
CLAIM_NAMES = frozenset({"count/persistentvolumeclaims", "persistentvolumeclaims", "requests.storage"})
OF_CLASS = ".storageclass.storage.k8s.io/"
PLAIN = frozenset({"configmaps", "secrets", "replicationcontrollers", "resourcequotas"})
"""Resources that quotas counted under their own name before there was `count/`."""
UNCOUNTED = frozenset({"events", "events.events.k8s.io"})
SHARED_BY_ALL = ("cpu", "memory")
"""What a pod can ask for as a whole, in the place of its containers."""


def totals(spec: Object, field: str) -> Amounts:
    """The `requests` or `limits` of a pod's containers: the larger of its init phase and its running phase.

    Init containers run one after the other; those that restart for ever are sidecars and go on beside everything later.
    """
    sidecars, highest = Amounts(), Amounts()
    for container in spec.get("initContainers") or ():
        if is_sidecar(container):
            sidecars = sidecars + stated(container, field)
            highest = highest.larger(sidecars)
        else:
            highest = highest.larger(sidecars + stated(container, field))
    running = sidecars
    for container in spec.get("containers") or ():
        running = running + stated(container, field)
    of_the_pod = {name: amount for name, amount in stated(spec, field).items() if name in SHARED_BY_ALL}
    return Amounts({**highest.larger(running), **of_the_pod})


def stated(container: Object, field: str) -> Amounts:
    return Amounts.parse(value_at(container, "resources", field))


# -- usage


def usage(resource: str, obj: Object, now: datetime) -> Amounts:
    """What the object uses now."""
    special = {"pods": pod_usage, "services": service_usage, "persistentvolumeclaims": claim_usage}.get(resource)
    count = Amounts({f"count/{resource}": ONE})
    if special is not None:
        return count + special(obj, now)
    return count + Amounts({resource: ONE}) if resource in PLAIN else count


def pod_usage(pod: Object, now: datetime) -> Amounts:
    if should_be_over(pod, now):
        return Amounts()
    spec = pod["spec"]
    overhead = Amounts.parse(spec.get("overhead"))
    limits = totals(spec, "limits")
    return computed(
        totals(spec, "requests") + overhead,
        limits + Amounts({name: amount for name, amount in overhead.items() if limits[name]}),
    )


def computed(requests: Amounts, limits: Amounts) -> Amounts:
    """Requests and limits under the names of a quota, and the pod itself."""
    found = {"pods": ONE}
    for name, amount in requests.items():
        if name in ("cpu", "memory", "ephemeral-storage") or name.startswith("hugepages-"):
            found |= {name: amount, f"requests.{name}": amount}
        elif is_extended(name):
            found[f"requests.{name}"] = amount
    for name in ("cpu", "memory", "ephemeral-storage"):
        if name in limits:
            found[f"limits.{name}"] = limits[name]
    return Amounts(found)


def should_be_over(pod: Object, now: datetime) -> bool:
    """Whether the pod has ended, or should have by now."""
    if value_at(pod, "status", "phase") in ENDED:
        return True
    metadata = pod["metadata"]
    if metadata.get("deletionTimestamp") is None or metadata.get("deletionGracePeriodSeconds") is None:
        return False
    grace = timedelta(seconds=metadata["deletionGracePeriodSeconds"])
    return now > parse_time(metadata["deletionTimestamp"]) + grace


def is_extended(name: str) -> bool:
    """Whether it is a resource that somebody else than Kubernetes defined: `example.com/gpu`."""
    return "/" in name and "kubernetes.io/" not in name


def service_usage(service: Object, _: datetime) -> Amounts:
    spec = service.get("spec") or {}
    ports, kind = spec.get("ports") or (), spec.get("type")
    on_nodes = len(ports) if kind in ("NodePort", "LoadBalancer") else 0
    if kind == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is False:
        on_nodes = sum(1 for port in ports if port.get("nodePort"))
    return Amounts(
        {
            "services": ONE,
            "services.nodeports": parse(on_nodes),
            "services.loadbalancers": parse(int(kind == "LoadBalancer")),
        }
    )


def claim_usage(claim: Object, _: datetime) -> Amounts:
    found = {"persistentvolumeclaims": ONE}
    asked = value_at(claim, "spec", "resources", "requests", "storage")
    if asked is not None:
        given = value_at(claim, "status", "allocatedResources", "storage", default=0)
        found["requests.storage"] = whole(max(parse(asked), parse(given)))
    storage_class = value_at(claim, "spec", "storageClassName")
    of_class = {f"{storage_class}{OF_CLASS}{name}": amount for name, amount in found.items()} if storage_class else {}
    return Amounts({**found, **of_class})


def whole(amount: Quantity) -> Quantity:
    """In whole bytes, rounded up."""
    return Quantity(amount.value() * ONE.nano, amount.format)


# -- quotas


def counted(resource: str, names: Iterable[str]) -> list[str]:
    """Which of a quota's names the objects of a resource count towards."""
    match resource:
        case "pods":
            claims: Callable[[str], bool] = is_of_pods
        case "services":
            claims = SERVICE_NAMES.__contains__
        case "persistentvolumeclaims":
            claims = is_of_claims
        case _:
            own = {f"count/{resource}", *([resource] if resource in PLAIN else [])}
            claims = own.__contains__
    return [name for name in names if claims(name)]


def is_of_pods(name: str) -> bool:
    if name in POD_NAMES or name.startswith(("hugepages-", "requests.hugepages-")):
        return True
    return name.startswith("requests.") and is_extended(name)


def is_of_claims(name: str) -> bool:
    _, at, of_class = name.partition(OF_CLASS)
    return name in CLAIM_NAMES or (bool(at) and of_class in ("persistentvolumeclaims", "requests.storage"))


def in_scopes(resource: str, quota: Object, obj: Object) -> bool:
    """Whether all scopes of a quota are those of the object; only pods and claims have any."""
    spec = quota.get("spec") or {}
    scopes = [{"scopeName": each, "operator": "Exists"} for each in spec.get("scopes") or ()]
    scopes += value_at(spec, "scopeSelector", "matchExpressions", default=[])
    return all(has_scope(resource, obj, each) for each in scopes)


def has_scope(resource: str, obj: Object, scope: Object) -> bool:
    name = scope["scopeName"]
    if resource == "persistentvolumeclaims":
        return name == "VolumeAttributesClass" and is_chosen(attribute_classes(obj), scope)
    if resource != "pods":
        return False
    if name == "PriorityClass":
        return is_chosen({value_at(obj, "spec", "priorityClassName")}, scope)
    holds = POD_SCOPES.get(name)
    return holds is not None and holds(obj)


def is_chosen(values: set[str | None], scope: Object) -> bool:
    """Whether a scope selector chooses an object with one of these values."""
    given, listed = {each for each in values if each}, set(scope.get("values") or ())
    match scope.get("operator"):
        case "Exists":
            return bool(given)
        case "DoesNotExist":
            return not given
        case "In":
            return bool(given & listed)
        case "NotIn":
            return not given or bool(given - listed)
    return False


def attribute_classes(claim: Object) -> set[str | None]:
    return {
        value_at(claim, "spec", "volumeAttributesClassName"),
        value_at(claim, "status", "currentVolumeAttributesClassName"),
        value_at(claim, "status", "modifyVolumeStatus", "targetVolumeAttributesClassName"),
    }


def is_terminating(pod: Object) -> bool:
    """Whether the pod has a deadline: what quotas mean by that word."""
    deadline: int | None = value_at(pod, "spec", "activeDeadlineSeconds")
    return deadline is not None and deadline >= 0


def is_best_effort(pod: Object) -> bool:
    return bool(value_at(pod, "status", "qosClass") == "BestEffort")


def is_near_other_namespaces(pod: Object) -> bool:
    """Whether the pod's affinity is to pods of other namespaces."""
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
    "CrossNamespacePodAffinity": is_near_other_namespaces,
}
