"""The metadata of every object: its name, by the rule of its kind, labels, annotations, owners and finalizers."""

from collections.abc import Iterator
from typing import Any

from tapestry.apiserver.customs.structural import Fault
from tapestry.apiserver.validation import names
from tapestry.apiserver.validation.faults import Complaints, forbidden, invalid, required, too_long
from tapestry.kube.objects import Object

ANNOTATIONS_LIMIT = 256 * 1024
STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")
UNQUALIFIED = "name is neither a standard finalizer name nor is it fully qualified"


def made(metadata: Object, complaints: Complaints, *, is_core: bool) -> Iterator[Fault]:
    """Faults of a new object; `is_core` tells Kubernetes' own kinds from custom resources."""
    if base := metadata.get("generateName"):
        for why in complaints(names.prefix_of_name(base)):
            yield invalid("metadata.generateName", base, why)
    for why in complaints(metadata["name"]):
        yield invalid("metadata.name", metadata["name"], why)
    yield from kept(metadata, is_core=is_core)


def kept(metadata: Object, *, is_core: bool) -> Iterator[Fault]:
    """Faults of what an update may change, too."""
    if found := metadata.get("labels"):
        yield from labels(found, "metadata.labels")
    if found := metadata.get("annotations"):
        yield from annotations(found, "metadata.annotations")
    if found := metadata.get("ownerReferences"):
        yield from owners(found, "metadata.ownerReferences")
    if found := metadata.get("finalizers"):
        yield from finalizers(found, "metadata.finalizers", is_core=is_core)


def labels(value: Any, path: str) -> Iterator[Fault]:
    for key, text in value.items():
        for why in names.qualified(key):
            yield invalid(path, key, why)
        for why in names.label_value(text):
            yield invalid(path, text, why)


def annotations(value: Any, path: str) -> Iterator[Fault]:
    size = 0
    for key, text in value.items():
        size += len(key) + len(text)
        for why in names.annotation_key(key):
            yield invalid(path, key, why)
    if size > ANNOTATIONS_LIMIT:
        yield too_long(path, ANNOTATIONS_LIMIT)


def owners(value: Any, path: str) -> Iterator[Fault]:
    first = ""
    for each in value:
        if not each.get("apiVersion", "").rpartition("/")[2]:
            yield invalid(f"{path}.apiVersion", each.get("apiVersion", ""), "version must not be empty")
        for field in ("kind", "name", "uid"):
            if not each.get(field):
                yield invalid(f"{path}.{field}", each.get(field, ""), "must not be empty")
        if (each.get("apiVersion"), each.get("kind")) == ("v1", "Event"):
            yield invalid(path, each, "/v1, Kind=Event is disallowed from being an owner")
        if each.get("controller"):
            current = f"{each.get('kind', '')}/{each.get('name', '')}"
            if first:
                why = 'Only one reference can have Controller set to true. Found "true" in references for '
                yield invalid(path, value, f"{why}{first} and {current}")
            first = first or current


def finalizers(value: Any, path: str, *, is_core: bool) -> Iterator[Fault]:
    for each in value:
        for why in names.qualified(each):
            yield invalid(path, each, why)
    if {"orphan", "foregroundDeletion"} <= set(value):
        yield invalid(path, value, "finalizer orphan and foregroundDeletion cannot be both set")
    for number, each in enumerate(value):
        if is_core and "/" not in each and each not in STANDARD_FINALIZERS:
            yield invalid(f"{path}[{number}]", each, UNQUALIFIED)


def doubtful_finalizers(old: Object | None, new: Object) -> Iterator[str]:
    """Warnings of new finalizers of custom resources that others may have thought of, too."""
    why = "prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers"
    had = old["metadata"].get("finalizers", ()) if old is not None else ()
    for each in new["metadata"]["finalizers"]:
        if each not in had and "/" not in each and each not in STANDARD_FINALIZERS:
            yield f'metadata.finalizers: "{each}": {why}'


def label_selector(value: Any, path: str) -> Iterator[Fault]:
    if pairs := value.get("matchLabels"):
        yield from labels(pairs, f"{path}.matchLabels")
    for number, each in enumerate(value.get("matchExpressions") or ()):
        yield from requirement(each, f"{path}.matchExpressions[{number}]")


def requirement(value: Any, path: str) -> Iterator[Fault]:
    operator, values = value.get("operator", ""), value.get("values") or ()
    if operator in ("In", "NotIn"):
        if not values:
            yield required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            yield forbidden(f"{path}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
    else:
        yield invalid(f"{path}.operator", operator, "not a valid selector operator")
    for why in names.qualified(value.get("key", "")):
        yield invalid(f"{path}.key", value.get("key", ""), why)
    for number, each in enumerate(values):
        for why in names.label_value(each):
            yield invalid(f"{path}.values[{number}]", each, why)
