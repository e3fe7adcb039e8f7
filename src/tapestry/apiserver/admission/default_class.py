"""DefaultStorageClass and DefaultIngressClass admission: the class of claims and ingresses that name none."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from tapestry.apiserver.core.requests import WriteRequest
from tapestry.apiserver.core.store import Store
from tapestry.kube.objects import Object, annotations_of, name_of

STORAGE_CLASS_MARKS = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
"""Annotations that mark the default storage class."""


@dataclass(frozen=True)
class DefaultClass:
    """Set the newest of the classes that are marked as the default."""

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
        name = newest_default(listed, self.default_annotations)
        return new if name is None else {**new, "spec": {**spec, self.field: name}}


def newest_default(classes: Iterable[Object], marks: Iterable[str]) -> str | None:
    """Return the name of the newest class with one of the annotations `marks`, the first by name of equals."""
    defaults = [each for each in classes if any(annotations_of(each).get(key) == "true" for key in marks)]
    if not defaults:
        return None
    newest = max(each["metadata"]["creationTimestamp"] for each in defaults)
    return min(name_of(each) for each in defaults if each["metadata"]["creationTimestamp"] == newest)


def default_storage_class(store: Store) -> DefaultClass:
    old = "volume.beta.kubernetes.io/storage-class"
    return DefaultClass(store, "storageClassName", old, "storageclasses.storage.k8s.io", STORAGE_CLASS_MARKS)


def default_ingress_class(store: Store) -> DefaultClass:
    marks = ("ingressclass.kubernetes.io/is-default-class",)
    old = "kubernetes.io/ingress.class"
    return DefaultClass(store, "ingressClassName", old, "ingressclasses.networking.k8s.io", marks)
