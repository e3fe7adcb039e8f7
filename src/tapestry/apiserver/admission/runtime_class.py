"""RuntimeClass admission: the overhead and the scheduling constraints of a pod from its RuntimeClass."""

from dataclasses import dataclass

import msgspec

from tapestry.apiserver.core.requests import WriteRequest, admission_forbidden
from tapestry.apiserver.core.store import Store
from tapestry.kube.objects import Object
from tapestry.kube.quantity import ResourceList


@dataclass(frozen=True)
class RuntimeClassAdmission:
    store: Store

    async def __call__(self, request: WriteRequest, _: Object | None, new: Object) -> Object:
        if request.verb != "create" or request.target.subresource:
            return new
        spec = new["spec"]
        name = spec.get("runtimeClassName")
        if name is None and not spec.get("overhead"):
            return new
        runtime: Object = {}
        if name is not None:
            version = self.store.get("runtimeclasses.node.k8s.io", "", name)
            if version is None:
                raise admission_forbidden(request, f'pod rejected: RuntimeClass "{name}" not found')
            runtime = msgspec.json.decode(version.raw)
        fields = {**overhead_fields(request, spec, runtime), **scheduling_fields(request, spec, runtime)}
        return {**new, "spec": {**spec, **fields}}


def overhead_fields(request: WriteRequest, spec: Object, runtime: Object) -> Object:
    fixed = (runtime.get("overhead") or {}).get("podFixed")
    pod_overhead = spec.get("overhead")
    if fixed is None:
        if pod_overhead:
            raise admission_forbidden(
                request, "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
            )
        return {}
    if pod_overhead and ResourceList.parse(pod_overhead) != ResourceList.parse(fixed):
        raise admission_forbidden(request, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
    return {"overhead": fixed}


def scheduling_fields(request: WriteRequest, spec: Object, runtime: Object) -> Object:
    scheduling = runtime.get("scheduling") or {}
    selector, pod_selector = scheduling.get("nodeSelector") or {}, spec.get("nodeSelector") or {}
    for key, value in selector.items():
        if pod_selector.get(key, value) != value:
            reason = f"conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; "
            raise admission_forbidden(request, reason + f"pod.spec.nodeSelector[{key}] = {pod_selector[key]}")
    fields: Object = {"nodeSelector": {**pod_selector, **selector}} if selector else {}
    tolerations: list[Object] = list(spec.get("tolerations") or ())
    if missing := [each for each in scheduling.get("tolerations") or () if each not in tolerations]:
        fields["tolerations"] = [*tolerations, *missing]
    return fields
