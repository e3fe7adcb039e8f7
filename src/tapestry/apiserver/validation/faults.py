"""Faults in Kubernetes' own words, and the pieces that rules are made of.

A rule takes a value and its path, and yields what is wrong with it, in the order in which Kubernetes reports it.  Rules
for objects are tables: a field and the rule for it; what an object does not have, nobody looks at.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from tapestry.apiserver.customs.structural import Fault
from tapestry.kube.budget import checkpoint

Rule = Callable[[Any, str], Iterator[Fault]]
Complaints = Callable[[str], Sequence[str]]
"""What keeps a text from being what it should be, one sentence for each reason."""

NEGATIVE = "must be greater than or equal to 0"
NOT_POSITIVE = "must be greater than zero"
IMMUTABLE = "field is immutable"


def shown(value: Any) -> str:
    """A value as messages quote it."""
    return msgspec.json.encode(value).decode()


def with_reason(text: str, why: str) -> str:
    return f"{text}: {why}" if why else text


def invalid(path: str, value: Any, why: str = "") -> Fault:
    return Fault(path, "FieldValueInvalid", with_reason(f"Invalid value: {shown(value)}", why))


def required(path: str, why: str = "") -> Fault:
    return Fault(path, "FieldValueRequired", with_reason("Required value", why))


def forbidden(path: str, why: str) -> Fault:
    return Fault(path, "FieldValueForbidden", with_reason("Forbidden", why))


def unsupported(path: str, value: Any, supported: Iterable[str]) -> Fault:
    listed = ", ".join(map(shown, supported))
    return Fault(path, "FieldValueNotSupported", f"Unsupported value: {shown(value)}: supported values: {listed}")


def duplicate(path: str, value: Any, why: str = "") -> Fault:
    return Fault(path, "FieldValueDuplicate", with_reason(f"Duplicate value: {shown(value)}", why))


def not_found(path: str, value: Any, why: str = "") -> Fault:
    return Fault(path, "FieldValueNotFound", with_reason(f"Not found: {shown(value)}", why))


def too_long(path: str, limit: int) -> Fault:
    return Fault(path, "FieldValueTooLong", f"Too long: may not be more than {limit} bytes")


def too_many(path: str, count: int, limit: int) -> Fault:
    return Fault(path, "FieldValueTooMany", f"Too many: {count}: must have at most {limit} items")


# -- rules


def struct(*parts: tuple[str, Rule]) -> Rule:
    """A rule for objects: one for each field that is there, in order; under no name, one for the object as a whole."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        for name, rule in parts:
            if not name:
                yield from rule(value, path)
            elif (each := value.get(name)) is not None and each != "":
                yield from rule(each, f"{path}.{name}" if path else name)

    return faults


def every(rule: Rule) -> Rule:
    """A rule for the items of a list."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        for number, each in enumerate(value):
            if number % 64 == 63:
                checkpoint()
            yield from rule(each, f"{path}[{number}]")

    return faults


def matching(complaints: Complaints) -> Rule:
    """A rule for a text."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        for why in complaints(value):
            yield invalid(path, value, why)

    return faults


def one_of(*supported: str) -> Rule:
    """A rule for a text that is one of a few; Kubernetes lists some of them sorted, some as they are."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        if value not in supported:
            yield unsupported(path, value, supported)

    return faults


def between(least: int, most: int, why: str = "") -> Rule:
    reason = why or f"must be between {least} and {most}, inclusive"

    def faults(value: Any, path: str) -> Iterator[Fault]:
        if not least <= value <= most:
            yield invalid(path, value, reason)

    return faults


def at_least(least: int, why: str) -> Rule:
    def faults(value: Any, path: str) -> Iterator[Fault]:
        if value < least:
            yield invalid(path, value, why)

    return faults


def needs(*names: str, why: str = "") -> tuple[str, Rule]:
    """A part of a struct: these fields have to be there, and to be something."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        for name in names:
            if value.get(name) in (None, "", [], {}):
                yield required(f"{path}.{name}" if path else name, why)

    return "", faults


def distinct(name: str, values: Sequence[Any], path: str) -> Iterator[Fault]:
    """Faults for those of a list whose field `name` one before them has, too."""
    seen = set()
    for number, each in enumerate(values):
        if (value := each.get(name)) in seen:
            yield duplicate(f"{path}[{number}].{name}", value)
        seen.add(value)


def nothing_wrong(_: Any, __: str) -> Iterator[Fault]:
    return iter(())


def unchanged(old: Any, new: Any, path: str) -> Iterator[Fault]:
    if (old or None) != (new or None):  # empty is absent
        yield invalid(path, new, IMMUTABLE)


nonnegative = at_least(0, NEGATIVE)
positive = at_least(1, NOT_POSITIVE)
