"""API requests: the target that a path names, and the selection of a list or a watch."""

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
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class BodyReader(Protocol):
    """A request body that is still arriving."""

    async def read(self) -> bytes:
        """Return the complete body. Raises TooLarge, Timeout or TooManyRequests if it is rejected."""
        ...


@dataclass(slots=True)
class AuditedBody:
    """The decoded body for the audit log; filled only when the server decodes it."""

    is_filled: bool = False
    body: Any = None
    size: int = 0
    """Size of the encoded body in bytes."""

    def fill(self, body: Any, size: int) -> None:
        if not self.is_filled:
            self.is_filled, self.body, self.size = True, body, size


class Call(msgspec.Struct, frozen=True):
    """One API request. Header names are in lower case."""

    method: str
    path: str
    query: Query
    headers: Mapping[str, str]
    body: bytes
    user: User
    impersonation_headers: tuple[tuple[str, str], ...] = ()
    """Impersonation headers, including repeated ones."""
    uri: str = ""
    """Path and query as sent by the client."""
    source_ip: str = ""
    """IP address of the client."""
    audit_annotations: dict[str, str] = msgspec.field(default_factory=dict)
    """Additional annotations for the audit event; handlers and admission steps may add some."""
    body_reader: BodyReader | None = None
    """Source of the body until it is received, which happens after authorization."""
    decoded_body: Any = msgspec.UNSET
    """Decoded body, once it is decoded."""
    duplicate_keys: tuple[str, ...] = ()
    """Messages about keys that a YAML body sets twice, as in Kubernetes."""
    audited_body: AuditedBody | None = None
    """Set if the request is audited."""


class Target(NamedTuple):
    """Object or collection that a path names: a collection if `name` is empty."""

    info: ResourceInfo
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> Key:
        return Key(self.info.storage, self.namespace, self.name)


def target_of(path: str, registry: ResourceRegistry) -> Target:
    """Return the target of `path`. Raises NotFound if no resource is served there."""
    group, version, namespace, rest = split_path(path)
    if len(rest) > 3 and rest[2] == "proxy":
        rest = rest[:3]  # the proxied server gets the rest of the path
    info = registry.get(group, version, rest[0]) if rest else None
    if info is None or len(rest) > 3 or not is_valid_target(info, namespace, rest[1:]):
        raise api_errors.path_not_found()
    return Target(info, namespace, *rest[1:])


def unserved_target(path: str) -> Target | None:
    """Return the target of a path that is not served, or None if it is no resource path.

    The caller authorizes it before it reports NotFound.
    """
    group, version, namespace, rest = split_path(path)
    if not rest:
        return None
    return Target(ResourceInfo(Resource(group, version, rest[0], rest[0]), rest[0], ()), namespace, *rest[1:3])


def split_path(path: str) -> tuple[str, str, str, list[str]]:
    """Return group, version, namespace and remaining segments; all are empty for other paths."""
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


def parse_number(text: str, field: str) -> int:
    """Parse a non-negative 64-bit integer parameter. Raises BadRequest for any other text."""
    if not DIGITS.fullmatch(text):
        raise api_errors.bad_request(f'{field}: Invalid value: "{text[:40]}": it is not a number')
    if int(text) > MAX_INT64:
        raise api_errors.bad_request(f'{field}: Invalid value: "{text}": it is out of range')
    return int(text)


DIGITS = re.compile("[0-9]{1,19}")
MAX_INT64 = 2**63 - 1


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
