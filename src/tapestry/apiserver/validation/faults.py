"""Faults in Kubernetes' own words, and the pieces that rules are made of.

A rule takes a value and its path, and yields what is wrong with it, in the order in which Kubernetes reports it.  Rules
for objects are tables: a field and the rule for it; what an object does not have, nobody looks at.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from tapestry.apiserver.customresources.structural_schema import Fault
from tapestry.kube.budget import checkpoint

Validator = Callable[[Any, str], Iterator[Fault]]
FormatCheck = Callable[[str], Sequence[str]]
"""What keeps a text from being what it should be, one sentence for each reason."""

NEGATIVE_MESSAGE = "must be greater than or equal to 0"
NOT_POSITIVE_MESSAGE = "must be greater than zero"
IMMUTABLE_MESSAGE = "field is immutable"


def json_text(value: Any) -> str:
    """A value as messages quote it."""
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
    listed = ", ".join(map(json_text, supported))
    return Fault(path, "FieldValueNotSupported", f"Unsupported value: {json_text(value)}: supported values: {listed}")


def duplicate_value(path: str, value: Any, detail: str = "") -> Fault:
    return Fault(path, "FieldValueDuplicate", with_detail(f"Duplicate value: {json_text(value)}", detail))


def value_not_found(path: str, value: Any, detail: str = "") -> Fault:
    return Fault(path, "FieldValueNotFound", with_detail(f"Not found: {json_text(value)}", detail))


def too_long(path: str, limit: int) -> Fault:
    return Fault(path, "FieldValueTooLong", f"Too long: may not be more than {limit} bytes")


def too_many(path: str, count: int, limit: int) -> Fault:
    return Fault(path, "FieldValueTooMany", f"Too many: {count}: must have at most {limit} items")


# -- rules


def struct_validator(*field_validators: tuple[str, Validator]) -> Validator:
    """A rule for objects: one for each field that is there, in order; under no name, one for the object as a whole."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        for name, rule in field_validators:
            if not name:
                yield from rule(value, path)
            elif (each := value.get(name)) is not None and each != "":
                yield from rule(each, f"{path}.{name}" if path else name)

    return faults


def item_validator(validator: Validator) -> Validator:
    """A rule for the items of a list."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        for number, each in enumerate(value):
            if number % 64 == 63:
                checkpoint()
            yield from validator(each, f"{path}[{number}]")

    return faults


def format_validator(check: FormatCheck) -> Validator:
    """A rule for a text."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        for why in check(value):
            yield invalid_value(path, value, why)

    return faults


def one_of(*supported: str) -> Validator:
    """A rule for a text that is one of a few; Kubernetes lists some of them sorted, some as they are."""

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
    """A part of a struct: these fields have to be there, and to be something."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        for name in names:
            if value.get(name) in (None, "", [], {}):
                yield required_value(f"{path}.{name}" if path else name, detail)

    return "", faults


def validate_unique_items(name: str, values: Sequence[Any], path: str) -> Iterator[Fault]:
    """Faults for those of a list whose field `name` one before them has, too."""
    seen = set()
    for number, each in enumerate(values):
        if (value := each.get(name)) in seen:
            yield duplicate_value(f"{path}[{number}].{name}", value)
        seen.add(value)


def accept_any(_: Any, __: str) -> Iterator[Fault]:
    return iter(())


def validate_immutable_field(old: Any, new: Any, path: str) -> Iterator[Fault]:
    if (old or None) != (new or None):  # empty is absent
        yield invalid_value(path, new, IMMUTABLE_MESSAGE)


validate_nonnegative = at_least(0, NEGATIVE_MESSAGE)
validate_positive = at_least(1, NOT_POSITIVE_MESSAGE)
