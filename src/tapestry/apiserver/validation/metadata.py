"""The metadata of every object: its name, by the rule of its kind, labels, annotations, owners and finalizers."""

from collections.abc import Iterator
from typing import Any

from tapestry.apiserver.customresources.structural_schema import Fault
from tapestry.apiserver.validation import names
from tapestry.apiserver.validation.faults import FormatCheck, forbidden_field, invalid_value, required_value, too_long
from tapestry.kube.objects import Object

ANNOTATIONS_LIMIT = 256 * 1024
STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")
UNQUALIFIED_FINALIZER_MESSAGE = "name is neither a standard finalizer name nor is it fully qualified"


def validate_new_metadata(metadata: Object, name_check: FormatCheck, *, is_core: bool) -> Iterator[Fault]:
    """Faults of a new object; `is_core` tells Kubernetes' own kinds from custom resources."""
    if base := metadata.get("generateName"):
        for why in name_check(names.mask_trailing_dash(base)):
            yield invalid_value("metadata.generateName", base, why)
    for why in name_check(metadata["name"]):
        yield invalid_value("metadata.name", metadata["name"], why)
    yield from validate_metadata(metadata, is_core=is_core)


def validate_metadata(metadata: Object, *, is_core: bool) -> Iterator[Fault]:
    """Faults of what an update may change, too."""
    if found := metadata.get("labels"):
        yield from validate_labels(found, "metadata.labels")
    if found := metadata.get("annotations"):
        yield from validate_annotations(found, "metadata.annotations")
    if found := metadata.get("ownerReferences"):
        yield from validate_owner_references(found, "metadata.ownerReferences")
    if found := metadata.get("finalizers"):
        yield from validate_finalizers(found, "metadata.finalizers", is_core=is_core)


def validate_labels(value: Any, path: str) -> Iterator[Fault]:
    for key, text in value.items():
        for why in names.qualified_name_errors(key):
            yield invalid_value(path, key, why)
        for why in names.label_value_errors(text):
            yield invalid_value(path, text, why)


def validate_annotations(value: Any, path: str) -> Iterator[Fault]:
    size = 0
    for key, text in value.items():
        size += len(key) + len(text)
        for why in names.annotation_key_errors(key):
            yield invalid_value(path, key, why)
    if size > ANNOTATIONS_LIMIT:
        yield too_long(path, ANNOTATIONS_LIMIT)


def validate_owner_references(value: Any, path: str) -> Iterator[Fault]:
    first = ""
    for each in value:
        if not each.get("apiVersion", "").rpartition("/")[2]:
            yield invalid_value(f"{path}.apiVersion", each.get("apiVersion", ""), "version must not be empty")
        for field in ("kind", "name", "uid"):
            if not each.get(field):
                yield invalid_value(f"{path}.{field}", each.get(field, ""), "must not be empty")
        if (each.get("apiVersion"), each.get("kind")) == ("v1", "Event"):
            yield invalid_value(path, each, "/v1, Kind=Event is disallowed from being an owner")
        if each.get("controller"):
            current = f"{each.get('kind', '')}/{each.get('name', '')}"
            if first:
                why = 'Only one reference can have Controller set to true. Found "true" in references for '
                yield invalid_value(path, value, f"{why}{first} and {current}")
            first = first or current


def validate_finalizers(value: Any, path: str, *, is_core: bool) -> Iterator[Fault]:
    for each in value:
        for why in names.qualified_name_errors(each):
            yield invalid_value(path, each, why)
    if {"orphan", "foregroundDeletion"} <= set(value):
        yield invalid_value(path, value, "finalizer orphan and foregroundDeletion cannot be both set")
    for number, each in enumerate(value):
        if is_core and "/" not in each and each not in STANDARD_FINALIZERS:
            yield invalid_value(f"{path}[{number}]", each, UNQUALIFIED_FINALIZER_MESSAGE)


def finalizer_warnings(old: Object | None, new: Object) -> Iterator[str]:
    """Warnings of new finalizers of custom resources that others may have thought of, too."""
    why = "prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers"
    had = old["metadata"].get("finalizers", ()) if old is not None else ()
    for each in new["metadata"]["finalizers"]:
        if each not in had and "/" not in each and each not in STANDARD_FINALIZERS:
            yield f'metadata.finalizers: "{each}": {why}'


def validate_label_selector(value: Any, path: str) -> Iterator[Fault]:
    if pairs := value.get("matchLabels"):
        yield from validate_labels(pairs, f"{path}.matchLabels")
    for number, each in enumerate(value.get("matchExpressions") or ()):
        yield from validate_selector_requirement(each, f"{path}.matchExpressions[{number}]")


def validate_selector_requirement(value: Any, path: str) -> Iterator[Fault]:
    operator, values = value.get("operator", ""), value.get("values") or ()
    if operator in ("In", "NotIn"):
        if not values:
            yield required_value(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            yield forbidden_field(
                f"{path}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            )
    else:
        yield invalid_value(f"{path}.operator", operator, "not a valid selector operator")
    for why in names.qualified_name_errors(value.get("key", "")):
        yield invalid_value(f"{path}.key", value.get("key", ""), why)
    for number, each in enumerate(values):
        for why in names.label_value_errors(each):
            yield invalid_value(f"{path}.values[{number}]", each, why)
