"""Selections of lists and watches: selectors, field values and continue tokens."""

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.requests import Query
from tapestry.apiserver.core.resource_registry import SELECTABLE_FIELDS, ResourceInfo
from tapestry.apiserver.core.store import ObjectVersion
from tapestry.apiserver.core.workers import LARGE_BYTES, LARGE_SELECTION, run_if_large
from tapestry.kube.budget import charge, checkpoint
from tapestry.kube.objects import Object, value_at
from tapestry.kube.selectors import (
    FieldSelector,
    LabelSelector,
    SelectorError,
    parse_field_selector,
    parse_label_selector,
)


@dataclass(frozen=True, slots=True)
class Selection:
    """Label and field selectors of a request."""

    labels: LabelSelector
    fields: FieldSelector
    name: str = ""
    """The only name that can match, if the field selector gives one."""
    storage_fields: Query = field(default_factory=dict)
    """Names of fields in the store, where they differ."""
    _field_requirements: dict[str, tuple[set[str], set[str]]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """The required values (at most one can match) and the excluded values of each field."""

    def __post_init__(self) -> None:
        for term in self.fields.terms:
            path = self.storage_fields.get(term.field, term.field)
            required, excluded = self._field_requirements.setdefault(path, (set(), set()))
            (required if term.equal else excluded).add(term.value)

    @property
    def matches(self) -> Callable[[ObjectVersion], bool] | None:
        """Predicate for object versions that have the selected name, or None if all of them match."""
        if any(term.field != NAME_FIELD or not term.equal or term.value != self.name for term in self.fields.terms):
            return self.matches_labels_and_fields
        return self.matches_labels if self.labels.requirements else None

    def matches_labels(self, version: ObjectVersion) -> bool:
        return self.labels.matches(version.labels)

    def matches_labels_and_fields(self, version: ObjectVersion) -> bool:
        if not self.labels.matches(version.labels):
            return False
        texts = version.field_values
        for path, (required, excluded) in self._field_requirements.items():
            if path not in texts:
                cache_field_values(version, path)
            text = texts[path]
            if text in excluded or (required and required != {text}):
                return False
        return True


def cache_field_values(version: ObjectVersion, path: str) -> None:
    """Cache the text of a field, and of the fields that are usually selected together with it."""
    charge(len(version.raw) // 32)
    obj: Object = msgspec.json.decode(version.raw)
    for each in (path, *SELECTABLE_FIELDS.get(version.key.resource, ())):
        version.field_values[each] = field_text(obj, each)


def selection_of(info: ResourceInfo, query: Query) -> Selection:
    """Return the selection of a query. Raises BadRequest for an unsupported field."""
    try:
        labels = parse_label_selector(query.get("labelSelector", ""))
        fields = parse_field_selector(query.get("fieldSelector", ""))
    except SelectorError as error:
        raise api_errors.bad_request(f"unable to parse requirement: {error}") from error
    stored = info.storage_version.selector_fields if info.storage_version is not None else {}
    known = {
        "metadata.name",
        "metadata.namespace",
        *(stored or SELECTABLE_FIELDS.get(info.storage, ())),
        *info.selectable_fields,
    }
    for term in fields.terms:
        if term.field not in known:
            raise api_errors.bad_request(unknown_field(info, term.field))
    named = [term.value for term in fields.terms if term.field == NAME_FIELD and term.equal]
    return Selection(labels, fields, named[0] if named else "", stored)


async def parse_selection(info: ResourceInfo, query: Query) -> Selection:
    """Return the selection of a query; a long one is parsed in the worker thread."""
    size = len(query.get("labelSelector", "")) + len(query.get("fieldSelector", ""))
    return selection_of(info, query) if size < LARGE_BYTES else await run_if_large(size, selection_of, info, query)


async def matching_versions(versions: Sequence[ObjectVersion], selection: Selection) -> Sequence[ObjectVersion]:
    if selection.name:
        versions = [version for version in versions if version.key.name == selection.name]
    matches = selection.matches
    if matches is None:
        return versions
    return await run_if_large(LARGE_BYTES if len(versions) > LARGE_SELECTION else 0, filter_versions, versions, matches)


def filter_versions(versions: Iterable[ObjectVersion], matches: Callable[[ObjectVersion], bool]) -> list[ObjectVersion]:
    result = []
    for number, version in enumerate(versions):
        if not number % 256:
            checkpoint()
        if matches(version):
            result.append(version)
    return result


def unknown_field(info: ResourceInfo, name: str) -> str:
    if info.storage in SELECTABLE_FIELDS:
        return f"field label not supported: {name}"
    return f'"{name}" is not a known field selector: only "metadata.name", "metadata.namespace"'


NAME_FIELD = "metadata.name"
BOOLEAN_FIELDS = ("spec.hostNetwork", "spec.unschedulable")


def field_text(obj: Object, path: str) -> str:
    """Return a field in the form that field selectors compare: absent is empty, booleans are `true` and `false`."""
    if path == "source":
        return str(value_at(obj, "source", "component") or obj.get("reportingComponent", ""))
    value = value_at(obj, *path.split("."), default="")
    if path in BOOLEAN_FIELDS or isinstance(value, bool):
        return str(bool(value)).lower()
    return str(value)


class ContinueToken(NamedTuple):
    """Position in a paginated list: after this object, at this revision."""

    revision: int
    namespace: str
    name: str

    def encode(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")


def decode_continue_token(token: str) -> ContinueToken:
    try:
        padded = token + "=" * (-len(token) % 4)
        return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=ContinueToken)
    except ValueError as error:  # invalid base64, or invalid JSON within
        raise api_errors.bad_request(f"continue key is not valid: {error}") from error
