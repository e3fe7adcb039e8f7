"""LimitRanger admission: default and allowed resources of containers, pods and claims."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from tapestry.apiserver.core.requests import WriteRequest, admission_forbidden
from tapestry.apiserver.core.store import Store
from tapestry.kube.objects import Object, annotations_of, value_at
from tapestry.kube.quantity import ResourceList
from tapestry.kube.quota_usage import container_resources, pod_resource_totals

LIMIT_RANGER_ANNOTATION = "kubernetes.io/limit-ranger"
"""Annotation that lists the defaults that were set."""
CONTAINERS = {"containers": "container", "initContainers": "init container"}


@dataclass(frozen=True)
class LimitRanger:
    """The LimitRanges of a namespace as two steps: `default` sets missing resources, `check` enforces the limits."""

    store: Store

    async def default(self, request: WriteRequest, _: Object | None, new: Object) -> Object:
        if request.verb != "create":
            return new
        pod = new
        for limit_range in self.ranges_in(request.target.namespace):
            pod = with_default_resources(pod, limit_range)
        return pod

    async def check(self, request: WriteRequest, _: Object | None, new: Object) -> Object:
        if not is_limited(request):
            return new
        check_limit = pod_faults if request.target.info.storage == "pods" else claim_faults
        for limit_range in self.ranges_in(request.target.namespace):
            faults = list(dict.fromkeys(fault for limit in limits_of(limit_range) for fault in check_limit(new, limit)))
            if faults:
                raise admission_forbidden(request, faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]")
        return new

    def ranges_in(self, namespace: str) -> Iterator[Object]:
        if not self.store.count("limitranges"):
            return
        for version in self.store.list_objects("limitranges", namespace):
            yield msgspec.json.decode(version.raw)


def limits_of(limit_range: Object) -> list[Object]:
    limits: list[Object] = value_at(limit_range, "spec", "limits", default=[])
    return limits


def is_limited(request: WriteRequest) -> bool:
    """Pods are checked when they are created or resized, claims on every write."""
    subresource = request.target.subresource
    if request.target.info.storage == "pods":
        return request.verb == "create" if not subresource else subresource == "resize"
    return not subresource and request.verb != "delete"


# -- defaults


def with_default_resources(pod: Object, limit_range: Object) -> Object:
    limits = [each for each in limits_of(limit_range) if each.get("type") == "Container"]
    defaults = {
        "limits": {name: amount for each in limits for name, amount in (each.get("default") or {}).items()},
        "requests": {name: amount for each in limits for name, amount in (each.get("defaultRequest") or {}).items()},
    }
    spec, notes = dict(pod["spec"]), []
    for field, word in CONTAINERS.items():
        if spec.get(field):
            notes += [note for each in spec[field] for note in defaulting_notes(each, defaults, word)]
            spec[field] = [container_with_defaults(each, defaults) for each in spec[field]]
    if not notes:
        return pod
    annotations = {**annotations_of(pod), LIMIT_RANGER_ANNOTATION: f"LimitRanger plugin set: {'; '.join(notes)}"}
    return {**pod, "metadata": {**pod["metadata"], "annotations": annotations}, "spec": spec}


def container_with_defaults(container: Object, defaults: dict[str, Object]) -> Object:
    resources = container.get("resources") or {}
    merged = {field: {**amounts, **(resources.get(field) or {})} for field, amounts in defaults.items()}
    return {**container, "resources": {**resources, **{field: each for field, each in merged.items() if each}}}


def defaulting_notes(container: Object, defaults: dict[str, Object], word: str) -> Iterator[str]:
    for field in ("requests", "limits"):
        missing = sorted(defaults[field].keys() - value_at(container, "resources", field, default={}).keys())
        if missing:
            yield f"{', '.join(missing)} {field[:-1]} for {word} {container.get('name')}"


# -- checks


def pod_faults(pod: Object, limit: Object) -> Iterator[str]:
    spec = pod["spec"]
    if limit.get("type") == "Container":
        for field in CONTAINERS:
            for container in spec.get(field) or ():
                yield from limit_faults(
                    limit, container_resources(container, "requests"), container_resources(container, "limits")
                )
    elif limit.get("type") == "Pod":
        yield from limit_faults(limit, pod_resource_totals(spec, "requests"), pod_resource_totals(spec, "limits"))


def claim_faults(claim: Object, limit: Object) -> Iterator[str]:
    if limit.get("type") != "PersistentVolumeClaim":
        return
    requests = ResourceList.parse(value_at(claim, "spec", "resources", "requests"))
    yield from minimum_faults({"type": limit["type"], "min": limit.get("min")}, requests, ResourceList())
    for name, maximum in sorted(ResourceList.parse(limit.get("max")).items()):
        limit_text = f"maximum {name} usage per {limit['type']} is {maximum}"
        if name not in requests:
            yield f"{limit_text}.  No request is specified"
        elif requests[name] > maximum:
            yield f"{limit_text}, but request is {requests[name]}"


def limit_faults(limit: Object, requests: ResourceList, limits: ResourceList) -> Iterator[str]:
    yield from minimum_faults(limit, requests, limits)
    yield from maximum_faults(limit, requests, limits)
    yield from ratio_faults(limit, requests, limits)


def minimum_faults(limit: Object, requests: ResourceList, limits: ResourceList) -> Iterator[str]:
    for name, minimum in sorted(ResourceList.parse(limit.get("min")).items()):
        limit_text = f"minimum {name} usage per {limit['type']} is {minimum}"
        if name not in requests:
            yield f"{limit_text}.  No request is specified"
        elif requests[name] < minimum:
            yield f"{limit_text}, but request is {requests[name]}"
        elif name in limits and limits[name] < minimum:
            yield f"{limit_text}, but limit is {limits[name]}"


def maximum_faults(limit: Object, requests: ResourceList, limits: ResourceList) -> Iterator[str]:
    for name, maximum in sorted(ResourceList.parse(limit.get("max")).items()):
        limit_text = f"maximum {name} usage per {limit['type']} is {maximum}"
        if name not in limits:
            yield f"{limit_text}.  No limit is specified"
        elif limits[name] > maximum:
            yield f"{limit_text}, but limit is {limits[name]}"
        elif requests[name] > maximum:
            yield f"{limit_text}, but request is {requests[name]}"


def ratio_faults(limit: Object, requests: ResourceList, limits: ResourceList) -> Iterator[str]:
    for name, max_ratio in sorted(ResourceList.parse(limit.get("maxLimitRequestRatio")).items()):
        limit_text = f"{name} max limit to request ratio per {limit['type']} is {max_ratio}"
        if not requests[name]:
            yield f"{limit_text}, but no request is specified or request is 0"
        elif not limits[name]:
            yield f"{limit_text}, but no limit is specified or limit is 0"
        elif (ratio := limits[name].nano / requests[name].nano) > max_ratio.milli_value() / 1000:
            yield f"{limit_text}, but provided ratio is {ratio:f}"
