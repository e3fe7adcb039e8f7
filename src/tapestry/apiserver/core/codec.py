"""Decoding of request bodies and negotiation of the response format."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from tapestry.apiserver.core import api_errors, protobuf, yaml_decoder
from tapestry.apiserver.core.yaml_decoder import MAX_DEPTH

JSON, YAML_TYPES = "application/json", frozenset({"application/yaml", "application/apply-patch+yaml"})
MAX_BODY_BYTES = 3 << 20
MAX_ACCEPT_LENGTH = 4096
MAX_COLLECTIONS = 200_000
"""Maximum number of objects and lists in one body."""
JSON_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A JSON string. An unterminated string matches up to the end of the body, so matching stays linear."""


def media_type(header: str) -> str:
    return header.partition(";")[0].strip().lower()


def decode_body(body: bytes, content_type: str) -> Any:
    """Return the body as plain data, or None if it is empty."""
    if not body:
        return None
    match media_type(content_type) or JSON:
        case "application/yaml" | "application/apply-patch+yaml":
            return decode_yaml(body).value
        case "application/json" | "application/json-patch+json" | "application/merge-patch+json":
            return decode_json(body)
        case "application/strategic-merge-patch+json" | "*/*":
            return decode_json(body)
        case "application/vnd.kubernetes.protobuf":
            return decode_protobuf(body)
        case other:
            raise api_errors.unsupported_media_type(other)


def decode_json(body: bytes) -> Any:
    brackets = body.count(b"{") + body.count(b"[")
    if brackets > MAX_COLLECTIONS:  # some may be within strings
        bare = JSON_STRING.sub(b"", body)
        if bare.count(b"{") + bare.count(b"[") > MAX_COLLECTIONS:
            raise api_errors.bad_request(f"the body has more than {MAX_COLLECTIONS} objects and lists")
    try:
        result = msgspec.json.decode(body)
    except RecursionError as error:
        raise api_errors.bad_request("the body is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise api_errors.bad_request(
            f"the object provided is unrecognized: couldn't get version/kind; {error}"
        ) from error
    if brackets > MAX_DEPTH:  # fewer brackets cannot nest too deeply
        check_size(result)
    return result


def check_size(value: Any) -> None:
    """Raise BadRequest for data that is nested too deeply or has too many objects and lists."""
    level, remaining = [value], MAX_COLLECTIONS
    for _ in range(MAX_DEPTH):
        level = [each for outer in level for each in child_values(outer) if isinstance(each, dict | list)]
        remaining -= len(level)
        if not level:
            return
        if remaining < 0:
            raise api_errors.bad_request(f"the body has more than {MAX_COLLECTIONS} objects and lists")
    raise api_errors.bad_request(f"the body is nested more than {MAX_DEPTH} deep")


def child_values(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def decode_yaml(body: bytes) -> yaml_decoder.YamlDocument:
    if body[:1] == b"{":
        return yaml_decoder.YamlDocument(decode_json(body))
    try:
        return yaml_decoder.parse_document(body)
    except yaml_decoder.YamlError as error:
        raise api_errors.bad_request(f"error decoding YAML: {error}") from error


def decode_protobuf(body: bytes) -> Any:
    try:
        result = protobuf.decode_object(body)
    except RecursionError as error:
        raise api_errors.bad_request("the body is nested too deeply") from error
    except protobuf.MalformedMessage as error:
        raise api_errors.bad_request(f"the object provided is unrecognized: {error}") from error
    check_size(result)
    return result


@dataclass(frozen=True, slots=True)
class AcceptedType:
    """One entry of an Accept header."""

    type: str
    parameters: dict[str, str]

    @property
    def form(self) -> str:
        """`Table`, `PartialObjectMetadata`, or empty for the full object."""
        return self.parameters.get("as", "")


@lru_cache(maxsize=256)  # clients repeat the same header
def accepted_types(header: str) -> Sequence[AcceptedType]:
    """Return the entries of an Accept header, best first. Raises NotAcceptable for an oversized header."""
    if len(header) > MAX_ACCEPT_LENGTH:
        raise api_errors.not_acceptable(f"{header[:100]}...")
    result = []
    for each in header.split(",") if header else ("application/json",):
        name, *rest = (part.strip() for part in each.split(";"))
        parameters = dict(part.partition("=")[::2] for part in rest)
        result.append((-quality_value(parameters.pop("q", "1")), AcceptedType(name, parameters)))
    return [each for _, each in sorted(result, key=lambda pair: pair[0])]


def quality_value(text: str) -> float:
    """Return the q value of an Accept entry; 1.0 if it is not a number."""
    try:
        return float(text or 0)
    except ValueError:
        return 1.0


def negotiated_form(header: str, supported: frozenset[str]) -> str:
    """Return the first acceptable response form. Raises NotAcceptable if none is supported."""
    for each in accepted_types(header):
        if each.type in ("*/*", "application/*", JSON) and (not each.form or each.form in supported):
            return each.form
    raise api_errors.not_acceptable(header)
