"""DefaultStorageClass and DefaultIngressClass admission: the class of claims and ingresses that name none."""

from dataclasses import dataclass

import msgspec

from tapestry.apiserver.core.requests import WriteRequest
from tapestry.apiserver.core.store import Store
from tapestry.kube.objects import Object, annotations_of, name_of


@dataclass(frozen=True)
class DefaultClass:
    """Sets the newest of the classes that are marked as the default."""

    store: Store
    field: str
    """Field of the spec that names the class."""
    old_annotation: str
    """Annotation that named the class before the field existed."""
    classes: str
    """Resource of the classes."""
    default_annotations: tuple[str, ...]
    """Annotations that mark a default class."""

    async def __call__(self, request: WriteRequest, _: Object | None, new: Object) -> Object:
        if request.verb != "create" or request.target.subresource:
            return new
        spec = new.get("spec") or {}
        if spec.get(self.field) is not None or self.old_annotation in annotations_of(new):
            return new
        listed: list[Object] = [msgspec.json.decode(version.raw) for version in self.store.list_objects(self.classes)]
        defaults = [each for each in listed if self.is_default(each)]
        if not defaults:
            return new
        newest = max(each["metadata"]["creationTimestamp"] for each in defaults)
        name = min(name_of(each) for each in defaults if each["metadata"]["creationTimestamp"] == newest)
        return {**new, "spec": {**spec, self.field: name}}

    def is_default(self, obj: Object) -> bool:
        return any(annotations_of(obj).get(key) == "true" for key in self.default_annotations)


def default_storage_class(store: Store) -> DefaultClass:
    marks = "storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"
    old = "volume.beta.kubernetes.io/storage-class"
    return DefaultClass(store, "storageClassName", old, "storageclasses.storage.k8s.io", marks)


def default_ingress_class(store: Store) -> DefaultClass:
    marks = ("ingressclass.kubernetes.io/is-default-class",)
    old = "kubernetes.io/ingress.class"
    return DefaultClass(store, "ingressClassName", old, "ingressclasses.networking.k8s.io", marks)
