"""Bodies: what a client sent, as an object; and in which form it wants the answer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from tapestry.apiserver import protobuf, refusals, yaml_bodies

JSON, YAML, PROTOBUF = "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"
YAML_TYPES = frozenset({YAML, "application/apply-patch+yaml"})
LONGEST_BODY = 3 << 20
LONGEST_ACCEPT = 4096
DEEPEST = 200
"""How deep JSON may be nested: deeper than any object, shallower than any stack."""
LARGEST = 200_000
"""Objects and lists in one body."""
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A string in JSON; one that does not end reaches to the end, so that no part of a body is looked at twice."""


def media_type(header: str) -> str:
    return header.partition(";")[0].strip().lower()


def decoded(body: bytes, content_type: str) -> Any:
    """The body as plain data; None where there is none."""
    if not body:
        return None
    match media_type(content_type) or JSON:
        case "application/yaml" | "application/apply-patch+yaml":
            return from_yaml(body).value
        case "application/json" | "application/json-patch+json" | "application/merge-patch+json":
            return from_json(body)
        case "application/strategic-merge-patch+json" | "*/*":
            return from_json(body)
        case "application/vnd.kubernetes.protobuf":
            return from_protobuf(body)
        case other:
            raise refusals.unknown_format(other)


def from_json(body: bytes) -> Any:
    brackets = body.count(b"{") + body.count(b"[")
    if brackets > LARGEST:  # perhaps within strings
        bare = STRING.sub(b"", body)
        if bare.count(b"{") + bare.count(b"[") > LARGEST:
            raise refusals.bad_request(f"the body has more than {LARGEST} objects and lists")
    try:
        found = msgspec.json.decode(body)
    except RecursionError as error:
        raise refusals.bad_request("the body is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise refusals.bad_request(
            f"the object provided is unrecognized: couldn't get version/kind; {error}"
        ) from error
    if brackets > DEEPEST:  # with fewer it cannot be too deep
        check_size(found)
    return found


def check_size(value: Any) -> None:
    """Refuse what is nested too deeply or has too many objects and lists."""
    level, left = [value], LARGEST
    for _ in range(DEEPEST):
        level = [each for outer in level for each in inside(outer) if isinstance(each, dict | list)]
        left -= len(level)
        if not level:
            return
        if left < 0:
            raise refusals.bad_request(f"the body has more than {LARGEST} objects and lists")
    raise refusals.bad_request(f"the body is nested more than {DEEPEST} deep")


def inside(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def from_yaml(body: bytes) -> yaml_bodies.Document:
    if body[:1] == b"{":
        return yaml_bodies.Document(from_json(body))
    try:
        return yaml_bodies.document(body)
    except yaml_bodies.YamlError as error:
        raise refusals.bad_request(f"error decoding YAML: {error}") from error


def from_protobuf(body: bytes) -> Any:
    try:
        found = protobuf.decoded(body)
    except RecursionError as error:
        raise refusals.bad_request("the body is nested too deeply") from error
    except protobuf.Malformed as error:
        raise refusals.bad_request(f"the object provided is unrecognized: {error}") from error
    check_size(found)
    return found


@dataclass(frozen=True, slots=True)
class Accepted:
    """One of the forms that a client would take."""

    type: str
    parameters: dict[str, str]

    @property
    def form(self) -> str:
        """`Table`, `PartialObjectMetadata`, or nothing for the object as it is."""
        return self.parameters.get("as", "")


@lru_cache(maxsize=256)  # programs ask for the same over and over
def accepted(header: str) -> Sequence[Accepted]:
    """The forms of an Accept header, best first; raises NotAcceptable for one that nobody writes."""
    if len(header) > LONGEST_ACCEPT:
        raise refusals.not_acceptable(f"{header[:100]}...")
    found = []
    for each in header.split(",") if header else ("application/json",):
        name, *rest = (part.strip() for part in each.split(";"))
        parameters = dict(part.partition("=")[::2] for part in rest)
        found.append((-quality(parameters.pop("q", "1")), Accepted(name, parameters)))
    return [each for _, each in sorted(found, key=lambda pair: pair[0])]


def quality(text: str) -> float:
    """How much a form is wanted: where that is no number, as much as any."""
    try:
        return float(text or 0)
    except ValueError:
        return 1.0


def chosen_form(header: str, known: frozenset[str]) -> str:
    """The form to answer in; raises NotAcceptable where the client takes none that there is."""
    for each in accepted(header):
        if each.type in ("*/*", "application/*", JSON) and (not each.form or each.form in known):
            return each.form
    raise refusals.not_acceptable(header)
