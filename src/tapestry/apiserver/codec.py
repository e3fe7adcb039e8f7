"""Bodies: what a client sent, as an object; and in which form it wants the answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import yaml

from tapestry.apiserver import protobuf, refusals

JSON, YAML, PROTOBUF = "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"
LONGEST_BODY = 3 << 20
DEEPEST = 200
"""How deep JSON may be nested: deeper than any object, shallower than any stack."""
LARGEST = 500_000
"""Objects and lists in one body."""


def media_type(header: str) -> str:
    return header.partition(";")[0].strip().lower()


def decoded(body: bytes, content_type: str) -> Any:
    """The body as plain data; None where there is none."""
    if not body:
        return None
    match media_type(content_type) or JSON:
        case "application/yaml" | "application/apply-patch+yaml":
            return from_yaml(body)
        case "application/json" | "application/json-patch+json" | "application/merge-patch+json":
            return from_json(body)
        case "application/strategic-merge-patch+json" | "*/*":
            return from_json(body)
        case "application/vnd.kubernetes.protobuf":
            return from_protobuf(body)
        case other:
            raise refusals.unknown_format(other)


def from_json(body: bytes) -> Any:
    try:
        found = msgspec.json.decode(body)
    except RecursionError as error:
        raise refusals.bad_request("the body is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise refusals.bad_request(
            f"the object provided is unrecognized: couldn't get version/kind; {error}"
        ) from error
    if body.count(b"{") + body.count(b"[") > DEEPEST:  # with fewer it cannot be too deep
        check_size(found)
    return found


def check_size(value: Any) -> None:
    """Refuse what is nested too deeply or, by references within it, larger than it looks."""
    level, left = [value], LARGEST
    for _ in range(DEEPEST):
        level = [each for outer in level for each in inside(outer) if isinstance(each, dict | list)]
        left -= len(level)
        if not level:
            return
        if left < 0:
            raise refusals.bad_request("the body is too large once its references are followed")
    raise refusals.bad_request(f"the body is nested more than {DEEPEST} deep")


def inside(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def from_yaml(body: bytes) -> Any:
    if body[:1] == b"{":
        return from_json(body)
    try:
        found = yaml.load(body, Loader=PlainLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise refusals.bad_request(f"error decoding YAML: {error}") from error
    check_size(found)
    return found


def from_protobuf(body: bytes) -> Any:
    try:
        found = protobuf.decoded(body)
    except RecursionError as error:
        raise refusals.bad_request("the body is nested too deeply") from error
    except protobuf.Malformed as error:
        raise refusals.bad_request(f"the object provided is unrecognized: {error}") from error
    check_size(found)
    return found


class PlainLoader(yaml.CSafeLoader):
    """YAML that is JSON: a date is the text it was written as."""


PlainLoader.yaml_implicit_resolvers = {
    first: [each for each in resolvers if each[0] != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


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
    """The forms of an Accept header, best first."""
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
