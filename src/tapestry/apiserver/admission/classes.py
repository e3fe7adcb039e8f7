"""Classes: what objects get from the class that they name, or that is the default of all that name none.

A pod's RuntimeClass adds what the runtime itself needs, and where it runs; claims and ingresses without a class get
the default one.  What is mounted somewhere gets a finalizer, so that it outlasts its users
(`tapestry.controlplane.protection` takes it away again).
"""

from dataclasses import dataclass

import msgspec

from tapestry.apiserver.admission.plain import refused
from tapestry.apiserver.storage.store import Store
from tapestry.apiserver.verbs import Request
from tapestry.kube.objects import Object, annotations_of, name_of
from tapestry.kube.quantity import Amounts

STORAGE_DEFAULTS = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
INGRESS_DEFAULTS = ("ingressclass.kubernetes.io/is-default-class",)
STORAGE_CLASS, INGRESS_CLASS = "volume.beta.kubernetes.io/storage-class", "kubernetes.io/ingress.class"
"""Annotations that named the class before there were fields for it."""
CLASSED = ("pods", "persistentvolumeclaims", "ingresses.networking.k8s.io", "persistentvolumes")
PROTECTIONS = {
    "persistentvolumeclaims": "kubernetes.io/pvc-protection",
    "persistentvolumes": "kubernetes.io/pv-protection",
}


@dataclass(frozen=True)
class Classes:
    """A step: new objects get what their class has for them."""

    store: Store

    async def __call__(self, request: Request, old: Object | None, new: Object | None) -> Object:
        if new is None or request.verb != "create" or request.target.subresource:
            return new if new is not None else old or {}
        match request.target.row.storage:
            case "pods":
                return self.pod(request, new)
            case "persistentvolumeclaims":
                return protected(self.claim(new), "persistentvolumeclaims")
            case "ingresses.networking.k8s.io":
                return self.ingress(new)
        return protected(new, "persistentvolumes")

    def pod(self, request: Request, pod: Object) -> Object:
        spec = pod["spec"]
        name = spec.get("runtimeClassName")
        if name is None and not spec.get("overhead"):
            return pod
        runtime: Object = {}
        if name is not None:
            version = self.store.get("runtimeclasses.node.k8s.io", "", name)
            if version is None:
                raise refused(request, f'pod rejected: RuntimeClass "{name}" not found')
            runtime = msgspec.json.decode(version.raw)
        return {**pod, "spec": {**spec, **overhead(request, spec, runtime), **scheduling(request, spec, runtime)}}

    def claim(self, claim: Object) -> Object:
        if (claim.get("spec") or {}).get("storageClassName") is not None or STORAGE_CLASS in annotations_of(claim):
            return claim
        return self.with_default(claim, "storageClassName", "storageclasses.storage.k8s.io", STORAGE_DEFAULTS)

    def ingress(self, ingress: Object) -> Object:
        named = (ingress.get("spec") or {}).get("ingressClassName") is not None
        if named or INGRESS_CLASS in annotations_of(ingress):
            return ingress
        return self.with_default(ingress, "ingressClassName", "ingressclasses.networking.k8s.io", INGRESS_DEFAULTS)

    def with_default(self, obj: Object, field: str, classes: str, marks: tuple[str, ...]) -> Object:
        """The object with the newest of the classes that say they are the default."""
        every: list[Object] = [msgspec.json.decode(version.raw) for version in self.store.every(classes)]
        marked = [each for each in every if any(annotations_of(each).get(mark) == "true" for mark in marks)]
        if not marked:
            return obj
        newest = max(each["metadata"]["creationTimestamp"] for each in marked)
        name = min(name_of(each) for each in marked if each["metadata"]["creationTimestamp"] == newest)
        return {**obj, "spec": {**(obj.get("spec") or {}), field: name}}


def overhead(request: Request, spec: Object, runtime: Object) -> Object:
    fixed = (runtime.get("overhead") or {}).get("podFixed")
    own = spec.get("overhead")
    if fixed is None:
        if own:
            raise refused(request, "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
        return {}
    if own and Amounts.parse(own) != Amounts.parse(fixed):
        raise refused(request, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
    return {"overhead": fixed}


def scheduling(request: Request, spec: Object, runtime: Object) -> Object:
    wanted = runtime.get("scheduling") or {}
    selector, own = wanted.get("nodeSelector") or {}, spec.get("nodeSelector") or {}
    for key, value in selector.items():
        if own.get(key, value) != value:
            why = f"conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; "
            raise refused(request, why + f"pod.spec.nodeSelector[{key}] = {own[key]}")
    found: Object = {"nodeSelector": {**own, **selector}} if selector else {}
    tolerations: list[Object] = list(spec.get("tolerations") or ())
    if missing := [each for each in wanted.get("tolerations") or () if each not in tolerations]:
        found["tolerations"] = [*tolerations, *missing]
    return found


def protected(obj: Object, resource: str) -> Object:
    finalizers = obj["metadata"].get("finalizers") or []
    mark = PROTECTIONS[resource]
    if mark in finalizers:
        return obj
    return {**obj, "metadata": {**obj["metadata"], "finalizers": [*finalizers, mark]}}
