"""Faults with the messages of kube-apiserver, and combinators that build validators.

A validator takes a value and its path. It yields the faults in the order in which kube-apiserver reports them. A struct
validator is a table of fields and their validators. It skips fields that the object does not have.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tapestry.apiserver.core import api_errors
from tapestry.kube.budget import checkpoint
from tapestry.kube.errors import Invalid
from tapestry.kube.resources import Resource

MAX_PATH_LENGTH = 2_000
"""Maximum length of a path in a message. Longer paths are truncated."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A violation in an object."""

    path: str
    reason: str
    """For example `FieldValueInvalid`."""
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


MAX_FAULTS, MAX_FAULTS_LENGTH = 1_000, 1 << 20
"""Maximum number of reported faults per object, and of their characters."""


def first_faults(faults: Iterable[Fault]) -> list[Fault]:
    """The faults of an object, up to the limits."""
    reported, budget = [], MAX_FAULTS_LENGTH
    for each in faults:
        reported.append(each)
        budget -= len(each.path) + len(each.message)
        if len(reported) >= MAX_FAULTS or budget < 0:
            break
    return reported


def duplicates(values: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Yield each value that occurred before, with its index."""
    seen: set[Any] = set()
    for number, each in enumerate(values):
        key = each if isinstance(each, str) else msgspec.json.encode(each, order="deterministic")
        if key in seen:
            yield number, each
        seen.add(key)


def child_path(path: str, key: str) -> str:
    """The path of a field, truncated because clients choose the length of keys."""
    if len(path) + len(key) > MAX_PATH_LENGTH:
        return f"{path}.{key}"[:MAX_PATH_LENGTH] + "..."
    return f"{path}.{key}" if path else key


Validator = Callable[[Any, str], Iterator[Fault]]
FormatCheck = Callable[[str], Sequence[str]]
"""Function that returns the error messages for a string; none if the string is valid."""

NEGATIVE_MESSAGE = "must be greater than or equal to 0"
NOT_POSITIVE_MESSAGE = "must be greater than zero"
IMMUTABLE_MESSAGE = "field is immutable"


def json_text(value: Any) -> str:
    """Return a value as messages quote it."""
    return msgspec.json.encode(value).decode()


def with_detail(text: str, detail: str) -> str:
    return f"{text}: {detail}" if detail else text


def invalid_value(path: str, value: Any, detail: str = "") -> Fault:
    return Fault(path, "FieldValueInvalid", with_detail(f"Invalid value: {json_text(value)}", detail))


def required_value(path: str, detail: str = "") -> Fault:
    return Fault(path, "FieldValueRequired", with_detail("Required value", detail))


def forbidden_field(path: str, detail: str) -> Fault:
    return Fault(path, "FieldValueForbidden", with_detail("Forbidden", detail))


def unsupported_value(path: str, value: Any, supported: Iterable[str]) -> Fault:
    values = ", ".join(map(json_text, supported))
    return Fault(path, "FieldValueNotSupported", f"Unsupported value: {json_text(value)}: supported values: {values}")


def duplicate_value(path: str, value: Any, detail: str = "") -> Fault:
    return Fault(path, "FieldValueDuplicate", with_detail(f"Duplicate value: {json_text(value)}", detail))


def value_not_found(path: str, value: Any, detail: str = "") -> Fault:
    return Fault(path, "FieldValueNotFound", with_detail(f"Not found: {json_text(value)}", detail))


def too_long(path: str, limit: int) -> Fault:
    return Fault(path, "FieldValueTooLong", f"Too long: may not be more than {limit} bytes")


def too_many(path: str, count: int, limit: int) -> Fault:
    return Fault(path, "FieldValueTooMany", f"Too many: {count}: must have at most {limit} items")


def invalid_object(resource: Resource, name: str, faults: list[Fault]) -> Invalid:
    causes = [{"reason": each.reason, "message": each.message, "field": each.path} for each in faults]
    texts = list(dict.fromkeys(map(str, faults)))
    listed = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    message = f'{api_errors.qualified_kind(resource)} "{name}" is invalid: {listed}'
    details = {**api_errors.status_details(resource, name, resource.kind), "causes": causes}
    return Invalid(422, "Invalid", message, details=details)


# -- validators


def struct_validator(*field_validators: tuple[str, Validator]) -> Validator:
    """Return a validator for objects: one validator per field, in order. An empty name stands for the whole object."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        for name, rule in field_validators:
            if not name:
                yield from rule(value, path)
            elif (each := value.get(name)) is not None and each != "":
                yield from rule(each, f"{path}.{name}" if path else name)

    return faults


def item_validator(validator: Validator) -> Validator:
    def faults(value: Any, path: str) -> Iterator[Fault]:
        for number, each in enumerate(value):
            if number % 64 == 63:
                checkpoint()
            yield from validator(each, f"{path}[{number}]")

    return faults


def format_validator(check: FormatCheck) -> Validator:
    """Return a validator for strings."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        for msg in check(value):
            yield invalid_value(path, value, msg)

    return faults


def one_of(*supported: str) -> Validator:
    """Return a validator for an enum. Messages list the values in the given order, as kube-apiserver does."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        if value not in supported:
            yield unsupported_value(path, value, supported)

    return faults


def between(minimum: int, maximum: int, detail: str = "") -> Validator:
    reason = detail or f"must be between {minimum} and {maximum}, inclusive"

    def faults(value: Any, path: str) -> Iterator[Fault]:
        if not minimum <= value <= maximum:
            yield invalid_value(path, value, reason)

    return faults


def at_least(minimum: int, detail: str) -> Validator:
    def faults(value: Any, path: str) -> Iterator[Fault]:
        if value < minimum:
            yield invalid_value(path, value, detail)

    return faults


def required_fields(*names: str, detail: str = "") -> tuple[str, Validator]:
    """Return an entry of a struct validator that requires these fields to be set and not empty."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        for name in names:
            if value.get(name) in (None, "", [], {}):
                yield required_value(f"{path}.{name}" if path else name, detail)

    return "", faults


def validate_unique_items(name: str, values: Sequence[Any], path: str) -> Iterator[Fault]:
    """Yield a fault for each item whose field `name` repeats the value of an earlier item."""
    seen = set()
    for number, each in enumerate(values):
        if (value := each.get(name)) in seen:
            yield duplicate_value(f"{path}[{number}].{name}", value)
        seen.add(value)


def accept_any(_: Any, __: str) -> Iterator[Fault]:
    return iter(())


def validate_immutable_field(old: Any, new: Any, path: str) -> Iterator[Fault]:
    if (old or None) != (new or None):  # an empty value equals an absent one
        yield invalid_value(path, new, IMMUTABLE_MESSAGE)


validate_nonnegative = at_least(0, NEGATIVE_MESSAGE)
validate_positive = at_least(1, NOT_POSITIVE_MESSAGE)
