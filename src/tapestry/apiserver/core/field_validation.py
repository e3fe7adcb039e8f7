"""Unknown and duplicate fields in a body, rejected or reported as `fieldValidation` demands."""

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.faults import child_path
from tapestry.apiserver.core.requests import WriteRequest
from tapestry.apiserver.core.spec_cache import Interned, memoize

MAX_REPORTED_FIELDS = 100
"""Maximum number of fields that an error or a warning lists, as in Kubernetes."""
encode = msgspec.json.Encoder().encode


def may_have_duplicate_fields(request: WriteRequest, spec: Any = None) -> bool:
    """Return whether the body may set a field twice: its text has more keys than the decoded data.

    `spec` is the decoded spec. If it is interned, its keys are counted only once.
    """
    if request.verb not in ("create", "update"):
        return False
    body, count = request.decoded_body, 0
    if type(spec) is Interned and isinstance(body, dict):
        count = memoize(spec, count_keys, lambda: count_keys(body["spec"])) + 1
        body = {key: value for key, value in body.items() if key != "spec"}
    return request.body.count(b'":') > count + count_keys(body)


def count_keys(value: Any) -> int:
    """Return the number of keys in the text of a value; quotes in strings may count, too."""
    return encode(value).count(b'":')


def report_duplicate_keys(request: WriteRequest) -> None:
    """Reject or warn about keys that a YAML body sets twice."""
    mode = request.query.get("fieldValidation") or "Warn"
    if mode == "Ignore" or not request.duplicate_keys:
        return
    why = "error strict decoding YAML: yaml: unmarshal errors:\n  " + "\n  ".join(request.duplicate_keys)
    if mode == "Strict":
        raise api_errors.bad_request(why)
    request.warnings.append(why.replace("\n", ""))


def report_field_errors(request: WriteRequest, unknown: Sequence[str], duplicates: Sequence[str]) -> None:
    """Reject, warn about, or ignore unknown and duplicate fields, as `fieldValidation` demands; the default is Warn."""
    if not unknown and not duplicates:
        return
    messages = [f'unknown field "{path}"' for path in unknown[:MAX_REPORTED_FIELDS]]
    messages += [f'duplicate field "{path}"' for path in duplicates[:MAX_REPORTED_FIELDS]]
    mode = request.query.get("fieldValidation") or "Warn"
    if mode == "Strict":
        listed = ", ".join(messages)
        raise api_errors.bad_request(f"{decode_error_prefix(request)}strict decoding error: {listed}")
    if mode == "Warn":
        request.warnings.extend(messages)


def decode_error_prefix(request: WriteRequest) -> str:
    """Return the prefix of decoding errors; empty for patches."""
    if request.verb not in ("create", "update"):
        return ""
    resource = request.target.info.resource
    return f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '


class JsonPairs(list[tuple[str, Any]]):
    """A JSON object as key-value pairs, in order and with duplicates."""


def duplicate_fields(body: bytes) -> list[str]:
    """Return the first paths that a JSON text sets more than once; empty if it is not JSON."""
    try:
        decoded = json.loads(body, object_pairs_hook=JsonPairs)
    except (ValueError, RecursionError):
        return []
    return list(dict.fromkeys(islice(duplicate_fields_in(decoded, ""), MAX_REPORTED_FIELDS)))


def duplicate_fields_in(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, JsonPairs):
        seen: set[str] = set()
        for key, each in value:
            child = child_path(path, key)
            if key in seen:
                yield child
            seen.add(key)
            yield from duplicate_fields_in(each, child)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from duplicate_fields_in(each, f"{path}[{number}]")
