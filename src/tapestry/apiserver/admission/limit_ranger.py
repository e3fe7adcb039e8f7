"""Limit ranges: what the containers, pods and claims of a namespace ask for where they do not say, and may ask for."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from tapestry.apiserver.admission.core_plugins import admission_forbidden
from tapestry.apiserver.storage.store import Store
from tapestry.apiserver.verbs import WriteRequest
from tapestry.kube.objects import Object, annotations_of, value_at
from tapestry.kube.quantity import ResourceList
from tapestry.kube.quota_usage import container_resources, pod_resource_totals

LIMIT_RANGER_ANNOTATION = "kubernetes.io/limit-ranger"
"""The annotation that tells a pod's owner what was filled in."""
CONTAINERS = {"containers": "container", "initContainers": "init container"}


@dataclass(frozen=True)
class LimitRanger:
    """The ranges of a namespace, as two steps: first what is missing is filled in, last what is there is checked."""

    store: Store

    async def default(self, request: WriteRequest, old: Object | None, new: Object | None) -> Object:
        if new is None or request.verb != "create":
            return new if new is not None else old or {}
        found = new
        for limit_range in self.ranges_in(request.target.namespace):
            found = with_default_resources(found, limit_range)
        return found

    async def check(self, request: WriteRequest, old: Object | None, new: Object | None) -> Object:
        if new is None or not is_limited(request):
            return new if new is not None else old or {}
        judge = pod_faults if request.target.info.storage == "pods" else claim_faults
        for limit_range in self.ranges_in(request.target.namespace):
            found = list(dict.fromkeys(fault for limit in limits_of(limit_range) for fault in judge(new, limit)))
            if found:
                raise admission_forbidden(request, found[0] if len(found) == 1 else f"[{', '.join(found)}]")
        return new

    def ranges_in(self, namespace: str) -> Iterator[Object]:
        if not self.store.count("limitranges"):
            return
        for version in self.store.list_objects("limitranges", namespace):
            yield msgspec.json.decode(version.raw)


def limits_of(limit_range: Object) -> list[Object]:
    found: list[Object] = value_at(limit_range, "spec", "limits", default=[])
    return found


def is_limited(request: WriteRequest) -> bool:
    """Pods say what they need when they are made or resized, claims whenever they are written."""
    subresource = request.target.subresource
    if request.target.info.storage == "pods":
        return request.verb == "create" if not subresource else subresource == "resize"
    return not subresource and request.verb != "delete"


# -- what is filled in


def with_default_resources(pod: Object, limit_range: Object) -> Object:
    limits = [each for each in limits_of(limit_range) if each.get("type") == "Container"]
    wanted = {
        "limits": {name: amount for each in limits for name, amount in (each.get("default") or {}).items()},
        "requests": {name: amount for each in limits for name, amount in (each.get("defaultRequest") or {}).items()},
    }
    spec, notes = dict(pod["spec"]), []
    for field, word in CONTAINERS.items():
        if spec.get(field):
            notes += [note for each in spec[field] for note in defaulting_notes(each, wanted, word)]
            spec[field] = [container_with_defaults(each, wanted) for each in spec[field]]
    if not notes:
        return pod
    annotations = {**annotations_of(pod), LIMIT_RANGER_ANNOTATION: f"LimitRanger plugin set: {'; '.join(notes)}"}
    return {**pod, "metadata": {**pod["metadata"], "annotations": annotations}, "spec": spec}


def container_with_defaults(container: Object, defaults: dict[str, Object]) -> Object:
    resources = container.get("resources") or {}
    found = {field: {**amounts, **(resources.get(field) or {})} for field, amounts in defaults.items()}
    return {**container, "resources": {**resources, **{field: each for field, each in found.items() if each}}}


def defaulting_notes(container: Object, defaults: dict[str, Object], word: str) -> Iterator[str]:
    for field in ("requests", "limits"):
        missing = sorted(defaults[field].keys() - value_at(container, "resources", field, default={}).keys())
        if missing:
            yield f"{', '.join(missing)} {field[:-1]} for {word} {container.get('name')}"


# -- what is checked


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
    for name, most in sorted(ResourceList.parse(limit.get("max")).items()):
        said = f"maximum {name} usage per {limit['type']} is {most}"
        if name not in requests:
            yield f"{said}.  No request is specified"
        elif requests[name] > most:
            yield f"{said}, but request is {requests[name]}"


def limit_faults(limit: Object, requests: ResourceList, limits: ResourceList) -> Iterator[str]:
    yield from minimum_faults(limit, requests, limits)
    yield from maximum_faults(limit, requests, limits)
    yield from ratio_faults(limit, requests, limits)


def minimum_faults(limit: Object, requests: ResourceList, limits: ResourceList) -> Iterator[str]:
    for name, least in sorted(ResourceList.parse(limit.get("min")).items()):
        said = f"minimum {name} usage per {limit['type']} is {least}"
        if name not in requests:
            yield f"{said}.  No request is specified"
        elif requests[name] < least:
            yield f"{said}, but request is {requests[name]}"
        elif name in limits and limits[name] < least:
            yield f"{said}, but limit is {limits[name]}"


def maximum_faults(limit: Object, requests: ResourceList, limits: ResourceList) -> Iterator[str]:
    for name, most in sorted(ResourceList.parse(limit.get("max")).items()):
        said = f"maximum {name} usage per {limit['type']} is {most}"
        if name not in limits:
            yield f"{said}.  No limit is specified"
        elif limits[name] > most:
            yield f"{said}, but limit is {limits[name]}"
        elif requests[name] > most:
            yield f"{said}, but request is {requests[name]}"


def ratio_faults(limit: Object, requests: ResourceList, limits: ResourceList) -> Iterator[str]:
    for name, most in sorted(ResourceList.parse(limit.get("maxLimitRequestRatio")).items()):
        said = f"{name} max limit to request ratio per {limit['type']} is {most}"
        if not requests[name]:
            yield f"{said}, but no request is specified or request is 0"
        elif not limits[name]:
            yield f"{said}, but no limit is specified or limit is 0"
        elif (ratio := limits[name].nano / requests[name].nano) > most.milli_value() / 1000:
            yield f"{said}, but provided ratio is {ratio:f}"
