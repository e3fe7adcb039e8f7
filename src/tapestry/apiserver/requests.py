"""Requests: what a path names, and what the query of a list or a watch chooses."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote

import msgspec

from tapestry.apiserver import refusals
from tapestry.apiserver.rows import FIELDS, Row, Rows
from tapestry.apiserver.storage.log import Key
from tapestry.apiserver.storage.store import Version
from tapestry.kube.objects import Object, value_at
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


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as far as the API is concerned.  Names of headers are in lower case."""

    method: str
    path: str
    query: Query
    headers: Mapping[str, str]
    body: bytes
    user: User


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
    segments = [unquote(each) for each in path.strip("/").split("/")]
    if any(each in ("", ".", "..") for each in segments):
        raise refusals.no_such_path()
    match segments:
        case ["api", version, *rest]:
            group = ""
        case ["apis", group, version, *rest]:
            pass
        case _:
            raise refusals.no_such_path()
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2 and (group, rest[2]) not in OF_NAMESPACES:
        namespace, rest = rest[1], rest[2:]
    row = rows.get(group, version, rest[0]) if rest else None
    if row is None or len(rest) > 3 or not fits(row, namespace, rest[1:]):
        raise refusals.no_such_path()
    return Target(row, namespace, *rest[1:])


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

    @property
    def matches(self) -> Callable[[Version], bool] | None:
        """Whether a version is chosen; None where every one is."""
        if self.fields.terms:
            return self.both
        return self.by_labels if self.labels.requirements else None

    def by_labels(self, version: Version) -> bool:
        return self.labels.matches(version.labels)

    def both(self, version: Version) -> bool:
        if not self.labels.matches(version.labels):
            return False
        obj: Object = msgspec.json.decode(version.raw)
        return self.fields.matches({term.field: field_text(obj, term.field) for term in self.fields.terms})


def selection_of(row: Row, query: Query) -> Selection:
    """What the selectors of a query choose; raises BadRequest for a field that the kind cannot be selected by."""
    try:
        labels = parse_label_selector(query.get("labelSelector", ""))
        fields = parse_field_selector(query.get("fieldSelector", ""))
    except SelectorError as error:
        raise refusals.bad_request(f"unable to parse requirement: {error}") from error
    known = {"metadata.name", "metadata.namespace", *FIELDS.get(row.storage, ()), *row.selectable}
    for term in fields.terms:
        if term.field not in known:
            raise refusals.bad_request(unknown_field(row, term.field))
    named = [term.value for term in fields.terms if term.field == "metadata.name" and term.equal]
    return Selection(labels, fields, named[0] if named else "")


def unknown_field(row: Row, name: str) -> str:
    if row.storage in FIELDS:
        return f"field label not supported: {name}"
    return f'"{name}" is not a known field selector: only "metadata.name", "metadata.namespace"'


def field_text(obj: Object, path: str) -> str:
    """A field as field selectors compare it: absent is empty, booleans are `true` and `false`."""
    if path == "source":
        return str(value_at(obj, "source", "component", default=""))
    value = value_at(obj, *path.split("."), default="")
    if path == "spec.hostNetwork" or isinstance(value, bool):
        return str(bool(value)).lower()
    return str(value)


def number(text: str, field: str) -> int:
    if not text.isdecimal():
        raise refusals.bad_request(f'{field}: Invalid value: "{text}": it is not a number')
    return int(text)


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
