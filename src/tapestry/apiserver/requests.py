"""Requests: what a path names, and what the query of a list or a watch chooses."""

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

import msgspec

from tapestry.apiserver import refusals
from tapestry.apiserver.rows import FIELDS, Row, Rows
from tapestry.apiserver.storage.log import Key
from tapestry.apiserver.storage.store import Version
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


class Incoming(Protocol):
    """A body that is still arriving."""

    async def read(self) -> bytes:
        """All of it.  Raises TooLarge, Timeout or TooManyRequests where it is not taken."""
        ...


@dataclass(slots=True)
class Record:
    """What an audit log wants to know of a body: nothing but what the server itself has decoded."""

    is_filled: bool = False
    sent: Any = None
    size: int = 0
    """In bytes, as it came."""

    def fill(self, sent: Any, size: int) -> None:
        if not self.is_filled:
            self.is_filled, self.sent, self.size = True, sent, size


class Call(msgspec.Struct, frozen=True):
    """One request, as far as the API is concerned.  Names of headers are in lower case."""

    method: str
    path: str
    query: Query
    headers: Mapping[str, str]
    body: bytes
    user: User
    impersonates: tuple[tuple[str, str], ...] = ()
    """The headers that say in whose name it is made, some perhaps more than once."""
    uri: str = ""
    """The path and the query as they were sent."""
    source: str = ""
    """The address that it came from."""
    notes: dict[str, str] = msgspec.field(default_factory=dict)
    """What an audit log is to say of it beside all this; whoever has a say in it may add to that."""
    incoming: Incoming | None = None
    """Where the body comes from, until it is received: not before the call is authorized."""
    sent: Any = msgspec.UNSET
    """The body as data, once it is decoded."""
    repeated: tuple[str, ...] = ()
    """Keys that a body in YAML has twice, in the words of Kubernetes."""
    record: Record | None = None
    """Where there is an audit log."""


class Target(NamedTuple):
    """What a path names: a collection where `name` is empty."""

    row: Row
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> Key:
        return Key(self.row.storage, self.namespace, self.name)


def target_of(path: str, rows: Rows) -> Target:
    """What `path` names; raises NotFound where nothing is served."""
    group, version, namespace, rest = parts(path)
    if len(rest) > 3 and rest[2] == "proxy":
        rest = rest[:3]  # what follows is for whoever is behind it
    row = rows.get(group, version, rest[0]) if rest else None
    if row is None or len(rest) > 3 or not fits(row, namespace, rest[1:]):
        raise refusals.no_such_path()
    return Target(row, namespace, *rest[1:])


def unserved(path: str) -> Target | None:
    """What `path` would name if it were served, for rights come before the news that it is not; None if no resource."""
    group, version, namespace, rest = parts(path)
    if not rest:
        return None
    return Target(Row(Resource(group, version, rest[0], rest[0]), rest[0], ()), namespace, *rest[1:3])


def parts(path: str) -> tuple[str, str, str, list[str]]:
    """Group, version and namespace of a path, and what follows; nothing does where it is no path of a resource."""
    segments = path.strip("/").split("/")
    if "%" in path:
        segments = [unquote(each) for each in segments]
    if not NO_SEGMENTS.isdisjoint(segments):
        return "", "", "", []
    if segments[0] == "api" and len(segments) > 1:
        group, version, rest = "", segments[1], segments[2:]
    elif segments[0] == "apis" and len(segments) > 2:
        group, version, rest = segments[1], segments[2], segments[3:]
    else:
        return "", "", "", []
    if len(rest) > 2 and rest[0] == "namespaces" and (group, rest[2]) not in OF_NAMESPACES:
        return group, version, rest[1], rest[2:]
    return group, version, "", rest


NO_SEGMENTS = frozenset({"", ".", ".."})
OF_NAMESPACES = {("", "status"), ("", "finalize")}


def fits(row: Row, namespace: str, rest: list[str]) -> bool:
    if namespace and not row.resource.namespaced:
        return False
    if rest and row.resource.namespaced and not namespace:
        return False
    return len(rest) < 2 or rest[1] in row.subresources


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a resource a request is about."""

    labels: LabelSelector
    fields: FieldSelector
    name: str = ""
    """The one name that can match, where the fields say so."""
    stored: Query = field(default_factory=dict)
    """What fields are called in the store, where that is something else."""
    _values: dict[str, tuple[set[str], set[str]]] = field(default_factory=dict, init=False, compare=False, repr=False)
    """The values that a field must have, of which there can be one, and those that it must not have."""

    def __post_init__(self) -> None:
        for term in self.fields.terms:
            path = self.stored.get(term.field, term.field)
            wanted, refused = self._values.setdefault(path, (set(), set()))
            (wanted if term.equal else refused).add(term.value)

    @property
    def matches(self) -> Callable[[Version], bool] | None:
        """Whether a version of that name is chosen; None where every one is."""
        if any(term.field != NAME or not term.equal or term.value != self.name for term in self.fields.terms):
            return self.both
        return self.by_labels if self.labels.requirements else None

    def by_labels(self, version: Version) -> bool:
        return self.labels.matches(version.labels)

    def both(self, version: Version) -> bool:
        if not self.labels.matches(version.labels):
            return False
        texts = version.texts
        for path, (wanted, refused) in self._values.items():
            if path not in texts:
                remember(version, path)
            text = texts[path]
            if text in refused or (wanted and wanted != {text}):
                return False
        return True


def remember(version: Version, path: str) -> None:
    """Note the text of a field, and of those that are mostly asked for with it, for whoever selects by them next."""
    obj: Object = msgspec.json.decode(version.raw)
    for each in (path, *FIELDS.get(version.key.resource, ())):
        version.texts[each] = field_text(obj, each)


def selection_of(row: Row, query: Query) -> Selection:
    """What the selectors of a query choose; raises BadRequest for a field that the kind cannot be selected by."""
    try:
        labels = parse_label_selector(query.get("labelSelector", ""))
        fields = parse_field_selector(query.get("fieldSelector", ""))
    except SelectorError as error:
        raise refusals.bad_request(f"unable to parse requirement: {error}") from error
    stored = row.guise.fields if row.guise is not None else {}
    known = {"metadata.name", "metadata.namespace", *(stored or FIELDS.get(row.storage, ())), *row.selectable}
    for term in fields.terms:
        if term.field not in known:
            raise refusals.bad_request(unknown_field(row, term.field))
    named = [term.value for term in fields.terms if term.field == NAME and term.equal]
    return Selection(labels, fields, named[0] if named else "", stored)


def unknown_field(row: Row, name: str) -> str:
    if row.storage in FIELDS:
        return f"field label not supported: {name}"
    return f'"{name}" is not a known field selector: only "metadata.name", "metadata.namespace"'


NAME = "metadata.name"
LONGEST_NUMBER = 19
"""Digits of a number of 64 bits."""
BOOLEANS = ("spec.hostNetwork", "spec.unschedulable")


def field_text(obj: Object, path: str) -> str:
    """A field as field selectors compare it: absent is empty, booleans are `true` and `false`."""
    if path == "source":
        return str(value_at(obj, "source", "component") or obj.get("reportingComponent", ""))
    value = value_at(obj, *path.split("."), default="")
    if path in BOOLEANS or isinstance(value, bool):
        return str(bool(value)).lower()
    return str(value)


def number(text: str, field: str) -> int:
    """A parameter that is a 64-bit integer and not negative; raises BadRequest for any other text."""
    if not DIGITS.fullmatch(text):
        raise refusals.bad_request(f'{field}: Invalid value: "{text[:40]}": it is not a number')
    if int(text) > LARGEST_NUMBER:
        raise refusals.bad_request(f'{field}: Invalid value: "{text}": it is out of range')
    return int(text)


DIGITS = re.compile("[0-9]{1,19}")
LARGEST_NUMBER = 2**63 - 1


class Continue(NamedTuple):
    """Where a list goes on: after this object, at that revision."""

    revision: int
    namespace: str
    name: str

    def sealed(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")


def opened(token: str) -> Continue:
    try:
        padded = token + "=" * (-len(token) % 4)
        return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=Continue)
    except ValueError as error:  # of the alphabet, or of what is written in it
        raise refusals.bad_request(f"continue key is not valid: {error}") from error
