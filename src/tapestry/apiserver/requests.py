"""Requests: what a path names, and what the query of a list or a watch chooses."""

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

import msgspec

from tapestry.apiserver import api_errors
from tapestry.apiserver.resource_registry import SELECTABLE_FIELDS, ResourceInfo, ResourceRegistry
from tapestry.apiserver.storage.log import Key
from tapestry.apiserver.storage.store import ObjectVersion
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import Resource
from tapestry.kube.selectors import (
    FieldSelector,
    LabelSelector,
    SelectorError,
    parse_field_selector,
    parse_label_selector,
)

Query = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class User:
    """Who asks."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class BodyReader(Protocol):
    """A body that is still arriving."""

    async def read(self) -> bytes:
        """All of it.  Raises TooLarge, Timeout or TooManyRequests where it is not taken."""
        ...


@dataclass(slots=True)
class AuditedBody:
    """What an audit log wants to know of a body: nothing but what the server itself has decoded."""

    is_filled: bool = False
    body: Any = None
    size: int = 0
    """In bytes, as it came."""

    def fill(self, body: Any, size: int) -> None:
        if not self.is_filled:
            self.is_filled, self.body, self.size = True, body, size


class Call(msgspec.Struct, frozen=True):
    """One request, as far as the API is concerned.  Names of headers are in lower case."""

    method: str
    path: str
    query: Query
    headers: Mapping[str, str]
    body: bytes
    user: User
    impersonation_headers: tuple[tuple[str, str], ...] = ()
    """The headers that say in whose name it is made, some perhaps more than once."""
    uri: str = ""
    """The path and the query as they were sent."""
    source_ip: str = ""
    """The address that it came from."""
    audit_annotations: dict[str, str] = msgspec.field(default_factory=dict)
    """What an audit log is to say of it beside all this; whoever has a say in it may add to that."""
    body_reader: BodyReader | None = None
    """Where the body comes from, until it is received: not before the call is authorized."""
    decoded_body: Any = msgspec.UNSET
    """The body as data, once it is decoded."""
    duplicate_keys: tuple[str, ...] = ()
    """Keys that a body in YAML has twice, in the words of Kubernetes."""
    audited_body: AuditedBody | None = None
    """Where there is an audit log."""


class Target(NamedTuple):
    """What a path names: a collection where `name` is empty."""

    info: ResourceInfo
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> Key:
        return Key(self.info.storage, self.namespace, self.name)


def target_of(path: str, registry: ResourceRegistry) -> Target:
    """What `path` names; raises NotFound where nothing is served."""
    group, version, namespace, rest = split_path(path)
    if len(rest) > 3 and rest[2] == "proxy":
        rest = rest[:3]  # what follows is for whoever is behind it
    row = registry.get(group, version, rest[0]) if rest else None
    if row is None or len(rest) > 3 or not is_valid_target(row, namespace, rest[1:]):
        raise api_errors.path_not_found()
    return Target(row, namespace, *rest[1:])


def unserved_target(path: str) -> Target | None:
    """What `path` would name if it were served, for rights come before the news that it is not; None if no resource."""
    group, version, namespace, rest = split_path(path)
    if not rest:
        return None
    return Target(ResourceInfo(Resource(group, version, rest[0], rest[0]), rest[0], ()), namespace, *rest[1:3])


def split_path(path: str) -> tuple[str, str, str, list[str]]:
    """Group, version and namespace of a path, and what follows; nothing does where it is no path of a resource."""
    segments = path.strip("/").split("/")
    if "%" in path:
        segments = [unquote(each) for each in segments]
    if not INVALID_SEGMENTS.isdisjoint(segments):
        return "", "", "", []
    if segments[0] == "api" and len(segments) > 1:
        group, version, rest = "", segments[1], segments[2:]
    elif segments[0] == "apis" and len(segments) > 2:
        group, version, rest = segments[1], segments[2], segments[3:]
    else:
        return "", "", "", []
    if len(rest) > 2 and rest[0] == "namespaces" and (group, rest[2]) not in NAMESPACE_SUBRESOURCES:
        return group, version, rest[1], rest[2:]
    return group, version, "", rest


INVALID_SEGMENTS = frozenset({"", ".", ".."})
NAMESPACE_SUBRESOURCES = {("", "status"), ("", "finalize")}


def is_valid_target(info: ResourceInfo, namespace: str, rest: list[str]) -> bool:
    if namespace and not info.resource.namespaced:
        return False
    if rest and info.resource.namespaced and not namespace:
        return False
    return len(rest) < 2 or rest[1] in info.subresources


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a resource a request is about."""

    labels: LabelSelector
    fields: FieldSelector
    name: str = ""
    """The one name that can match, where the fields say so."""
    storage_fields: Query = field(default_factory=dict)
    """What fields are called in the store, where that is something else."""
    _field_requirements: dict[str, tuple[set[str], set[str]]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """The values that a field must have, of which there can be one, and those that it must not have."""

    def __post_init__(self) -> None:
        for term in self.fields.terms:
            path = self.storage_fields.get(term.field, term.field)
            wanted, refused = self._field_requirements.setdefault(path, (set(), set()))
            (wanted if term.equal else refused).add(term.value)

    @property
    def matches(self) -> Callable[[ObjectVersion], bool] | None:
        """Whether a version of that name is chosen; None where every one is."""
        if any(term.field != NAME_FIELD or not term.equal or term.value != self.name for term in self.fields.terms):
            return self.matches_labels_and_fields
        return self.matches_labels if self.labels.requirements else None

    def matches_labels(self, version: ObjectVersion) -> bool:
        return self.labels.matches(version.labels)

    def matches_labels_and_fields(self, version: ObjectVersion) -> bool:
        if not self.labels.matches(version.labels):
            return False
        texts = version.field_values
        for path, (wanted, refused) in self._field_requirements.items():
            if path not in texts:
                cache_field_values(version, path)
            text = texts[path]
            if text in refused or (wanted and wanted != {text}):
                return False
        return True


def cache_field_values(version: ObjectVersion, path: str) -> None:
    """Note the text of a field, and of those that are mostly asked for with it, for whoever selects by them next."""
    obj: Object = msgspec.json.decode(version.raw)
    for each in (path, *SELECTABLE_FIELDS.get(version.key.resource, ())):
        version.field_values[each] = field_text(obj, each)


def selection_of(info: ResourceInfo, query: Query) -> Selection:
    """What the selectors of a query choose; raises BadRequest for a field that the kind cannot be selected by."""
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


def unknown_field(info: ResourceInfo, name: str) -> str:
    if info.storage in SELECTABLE_FIELDS:
        return f"field label not supported: {name}"
    return f'"{name}" is not a known field selector: only "metadata.name", "metadata.namespace"'


NAME_FIELD = "metadata.name"
LONGEST_NUMBER = 19
"""Digits of a number of 64 bits."""
BOOLEAN_FIELDS = ("spec.hostNetwork", "spec.unschedulable")


def field_text(obj: Object, path: str) -> str:
    """A field as field selectors compare it: absent is empty, booleans are `true` and `false`."""
    if path == "source":
        return str(value_at(obj, "source", "component") or obj.get("reportingComponent", ""))
    value = value_at(obj, *path.split("."), default="")
    if path in BOOLEAN_FIELDS or isinstance(value, bool):
        return str(bool(value)).lower()
    return str(value)


def parse_number(text: str, field: str) -> int:
    """A parameter that is a 64-bit integer and not negative; raises BadRequest for any other text."""
    if not DIGITS.fullmatch(text):
        raise api_errors.bad_request(f'{field}: Invalid value: "{text[:40]}": it is not a number')
    if int(text) > MAX_INT64:
        raise api_errors.bad_request(f'{field}: Invalid value: "{text}": it is out of range')
    return int(text)


DIGITS = re.compile("[0-9]{1,19}")
MAX_INT64 = 2**63 - 1


class ContinueToken(NamedTuple):
    """Where a list goes on: after this object, at that revision."""

    revision: int
    namespace: str
    name: str

    def encode(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")


def decode_continue_token(token: str) -> ContinueToken:
    try:
        padded = token + "=" * (-len(token) % 4)
        return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=ContinueToken)
    except ValueError as error:  # of the alphabet, or of what is written in it
        raise api_errors.bad_request(f"continue key is not valid: {error}") from error
