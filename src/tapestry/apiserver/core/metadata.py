"""Validation of object metadata: name, labels, annotations, owner references and finalizers."""

from collections.abc import Iterator
from typing import Any

from tapestry.apiserver.core import names
from tapestry.apiserver.core.faults import Fault, FormatCheck, forbidden_field, invalid_value, required_value, too_long
from tapestry.kube.objects import Object

ANNOTATIONS_LIMIT = 256 * 1024
STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")
UNQUALIFIED_FINALIZER_MESSAGE = "name is neither a standard finalizer name nor is it fully qualified"


def validate_new_metadata(metadata: Object, name_check: FormatCheck, *, is_core: bool) -> Iterator[Fault]:
    """Validate the metadata of a new object. `is_core` is False for custom resources."""
    if base := metadata.get("generateName"):
        for msg in name_check(names.mask_trailing_dash(base)):
            yield invalid_value("metadata.generateName", base, msg)
    for msg in name_check(metadata["name"]):
        yield invalid_value("metadata.name", metadata["name"], msg)
    yield from validate_metadata(metadata, is_core=is_core)


def validate_metadata(metadata: Object, *, is_core: bool) -> Iterator[Fault]:
    """Validate the metadata fields that updates can change."""
    if value := metadata.get("labels"):
        yield from validate_labels(value, "metadata.labels")
    if value := metadata.get("annotations"):
        yield from validate_annotations(value, "metadata.annotations")
    if value := metadata.get("ownerReferences"):
        yield from validate_owner_references(value, "metadata.ownerReferences")
    if value := metadata.get("finalizers"):
        yield from validate_finalizers(value, "metadata.finalizers", is_core=is_core)


def validate_labels(value: Any, path: str) -> Iterator[Fault]:
    for key, text in value.items():
        for msg in names.qualified_name_errors(key):
            yield invalid_value(path, key, msg)
        for msg in names.label_value_errors(text):
            yield invalid_value(path, text, msg)


def validate_annotations(value: Any, path: str) -> Iterator[Fault]:
    size = 0
    for key, text in value.items():
        size += len(key) + len(text)
        for msg in names.annotation_key_errors(key):
            yield invalid_value(path, key, msg)
    if size > ANNOTATIONS_LIMIT:
        yield too_long(path, ANNOTATIONS_LIMIT)


def validate_owner_references(value: Any, path: str) -> Iterator[Fault]:
    first_owner = ""
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
            if first_owner:
                msg = 'Only one reference can have Controller set to true. Found "true" in references for '
                yield invalid_value(path, value, f"{msg}{first_owner} and {current}")
            first_owner = first_owner or current


def validate_finalizers(value: Any, path: str, *, is_core: bool) -> Iterator[Fault]:
    for each in value:
        for msg in names.qualified_name_errors(each):
            yield invalid_value(path, each, msg)
    if {"orphan", "foregroundDeletion"} <= set(value):
        yield invalid_value(path, value, "finalizer orphan and foregroundDeletion cannot be both set")
    for number, each in enumerate(value):
        if is_core and "/" not in each and each not in STANDARD_FINALIZERS:
            yield invalid_value(f"{path}[{number}]", each, UNQUALIFIED_FINALIZER_MESSAGE)


def finalizer_warnings(old: Object | None, new: Object) -> Iterator[str]:
    """Yield a warning for each new finalizer of a custom resource without a domain prefix."""
    msg = "prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers"
    previous = old["metadata"].get("finalizers", ()) if old is not None else ()
    for each in new["metadata"]["finalizers"]:
        if each not in previous and "/" not in each and each not in STANDARD_FINALIZERS:
            yield f'metadata.finalizers: "{each}": {msg}'


def validate_label_selector(value: Any, path: str) -> Iterator[Fault]:
    if pairs := value.get("matchLabels"):
        yield from validate_labels(pairs, f"{path}.matchLabels")
    for number, each in enumerate(value.get("matchExpressions") or ()):
        yield from validate_selector_requirement(each, f"{path}.matchExpressions[{number}]")


def validate_selector_requirement(value: Any, path: str) -> Iterator[Fault]:
    yield from validate_operator_and_key(value, path)
    for number, each in enumerate(value.get("values") or ()):
        for msg in names.label_value_errors(each):
            yield invalid_value(f"{path}.values[{number}]", each, msg)


def validate_operator_and_key(value: Any, path: str) -> Iterator[Fault]:
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
    for msg in names.qualified_name_errors(value.get("key", "")):
        yield invalid_value(f"{path}.key", value.get("key", ""), msg)
