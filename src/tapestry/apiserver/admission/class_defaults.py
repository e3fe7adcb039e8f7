"""Defaults from classes: RuntimeClass, default StorageClass, default IngressClass, protection finalizers.

A pod's RuntimeClass sets its overhead and its scheduling constraints. Claims and ingresses without a class get the
default class. Volumes and claims get a finalizer that protects them while they are in use;
`tapestry.controlplane.volume_protection` removes it.
"""

from dataclasses import dataclass

import msgspec

from tapestry.apiserver.admission.core_plugins import admission_forbidden
from tapestry.apiserver.storage.store import Store
from tapestry.apiserver.verbs import WriteRequest
from tapestry.kube.objects import Object, annotations_of, name_of
from tapestry.kube.quantity import ResourceList

DEFAULT_STORAGE_CLASS_ANNOTATIONS = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
DEFAULT_INGRESS_CLASS_ANNOTATIONS = ("ingressclass.kubernetes.io/is-default-class",)
STORAGE_CLASS_ANNOTATION, INGRESS_CLASS_ANNOTATION = (
    "volume.beta.kubernetes.io/storage-class",
    "kubernetes.io/ingress.class",
)
"""Annotations that named the class before the fields existed."""
RESOURCES_WITH_CLASS = ("pods", "persistentvolumeclaims", "ingresses.networking.k8s.io", "persistentvolumes")
PROTECTION_FINALIZERS = {
    "persistentvolumeclaims": "kubernetes.io/pvc-protection",
    "persistentvolumes": "kubernetes.io/pv-protection",
}


@dataclass(frozen=True)
class ClassDefaults:
    """An admission step that sets fields of new objects from their class."""

    store: Store

    async def __call__(self, request: WriteRequest, _: Object | None, new: Object) -> Object:
        if request.verb != "create" or request.target.subresource:
            return new
        match request.target.info.storage:
            case "pods":
                return self.pod_with_runtime_class(request, new)
            case "persistentvolumeclaims":
                return with_protection_finalizer(self.claim_with_storage_class(new), "persistentvolumeclaims")
            case "ingresses.networking.k8s.io":
                return self.ingress_with_class(new)
        return with_protection_finalizer(new, "persistentvolumes")

    def pod_with_runtime_class(self, request: WriteRequest, pod: Object) -> Object:
        spec = pod["spec"]
        name = spec.get("runtimeClassName")
        if name is None and not spec.get("overhead"):
            return pod
        runtime: Object = {}
        if name is not None:
            version = self.store.get("runtimeclasses.node.k8s.io", "", name)
            if version is None:
                raise admission_forbidden(request, f'pod rejected: RuntimeClass "{name}" not found')
            runtime = msgspec.json.decode(version.raw)
        return {
            **pod,
            "spec": {**spec, **overhead_fields(request, spec, runtime), **scheduling_fields(request, spec, runtime)},
        }

    def claim_with_storage_class(self, claim: Object) -> Object:
        if (claim.get("spec") or {}).get("storageClassName") is not None or STORAGE_CLASS_ANNOTATION in annotations_of(
            claim
        ):
            return claim
        return self.with_default_class(
            claim, "storageClassName", "storageclasses.storage.k8s.io", DEFAULT_STORAGE_CLASS_ANNOTATIONS
        )

    def ingress_with_class(self, ingress: Object) -> Object:
        has_class = (ingress.get("spec") or {}).get("ingressClassName") is not None
        if has_class or INGRESS_CLASS_ANNOTATION in annotations_of(ingress):
            return ingress
        return self.with_default_class(
            ingress, "ingressClassName", "ingressclasses.networking.k8s.io", DEFAULT_INGRESS_CLASS_ANNOTATIONS
        )

    def with_default_class(self, obj: Object, field: str, classes: str, default_annotations: tuple[str, ...]) -> Object:
        """Set the newest of the classes that are marked as the default."""
        listed: list[Object] = [msgspec.json.decode(version.raw) for version in self.store.list_objects(classes)]
        defaults = [
            each for each in listed if any(annotations_of(each).get(key) == "true" for key in default_annotations)
        ]
        if not defaults:
            return obj
        newest = max(each["metadata"]["creationTimestamp"] for each in defaults)
        name = min(name_of(each) for each in defaults if each["metadata"]["creationTimestamp"] == newest)
        return {**obj, "spec": {**(obj.get("spec") or {}), field: name}}


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


def with_protection_finalizer(obj: Object, resource: str) -> Object:
    finalizers = obj["metadata"].get("finalizers") or []
    finalizer = PROTECTION_FINALIZERS[resource]
    if finalizer in finalizers:
        return obj
    return {**obj, "metadata": {**obj["metadata"], "finalizers": [*finalizers, finalizer]}}
