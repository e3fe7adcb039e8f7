"""CEL functions on quantities, semantic versions and named formats."""

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from tapestry.kube import names, quantity
from tapestry.kube.cel.errors import EvaluationError
from tapestry.kube.cel.functions import cel_function, is_valid, register_functions
from tapestry.kube.cel.library.network import url_in
from tapestry.kube.cel.library.timestamps import parse_date, parse_timestamp
from tapestry.kube.cel.values import INT_RANGE, OPTIONAL_NONE, OptionalValue
from tapestry.kube.quantity import NANOS, QuantityError


@dataclass(frozen=True, slots=True)
class QuantityValue:
    kind: ClassVar[str] = "kubernetes.Quantity"
    value: quantity.Quantity


@dataclass(frozen=True, slots=True)
class Semver:
    kind: ClassVar[str] = "kubernetes.Semver"
    numbers: tuple[int, int, int]
    prerelease: tuple[str, ...] = ()

    @property
    def rank(self) -> tuple[tuple[int, int, int], bool, tuple[tuple[bool, int, str], ...]]:
        """Sort key of a version. A version without a prerelease follows those with one."""
        parts = tuple((not each.isdecimal(), int(each) if each.isdecimal() else 0, each) for each in self.prerelease)
        return self.numbers, not self.prerelease, parts


@dataclass(frozen=True, slots=True)
class NamedFormat:
    kind: ClassVar[str] = "kubernetes.NamedFormat"
    name: str


# -- quantities


@cel_function("quantity(string) -> kubernetes.Quantity")
def quantity_value(text: str) -> QuantityValue:
    try:
        return QuantityValue(quantity.parse_quantity(text))
    except QuantityError:
        message = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        raise EvaluationError(message) from None


@cel_function("kubernetes.Quantity.compareTo(kubernetes.Quantity) -> int")
def compare_quantities(value: QuantityValue, other: QuantityValue) -> int:
    return (value.value > other.value) - (value.value < other.value)


@cel_function("kubernetes.Quantity.isInteger() -> bool")
def is_quantity_integer(value: QuantityValue) -> bool:
    return not value.value.nano % NANOS and value.value.nano // NANOS in INT_RANGE


@cel_function("kubernetes.Quantity.asInteger() -> int")
def quantity_as_integer(value: QuantityValue) -> int:
    if is_quantity_integer(value):
        return value.value.nano // NANOS
    raise EvaluationError("cannot convert value to integer")


@cel_function("kubernetes.Quantity.add(kubernetes.Quantity) -> kubernetes.Quantity")
def add_quantities(value: QuantityValue, other: QuantityValue) -> QuantityValue:
    return QuantityValue(value.value + other.value)


@cel_function("kubernetes.Quantity.sub(kubernetes.Quantity) -> kubernetes.Quantity")
def subtract_quantities(value: QuantityValue, other: QuantityValue) -> QuantityValue:
    return QuantityValue(value.value - other.value)


@cel_function("kubernetes.Quantity.add(int) -> kubernetes.Quantity")
def add_int(value: QuantityValue, other: int) -> QuantityValue:
    return QuantityValue(value.value + quantity.Quantity(other * NANOS))


@cel_function("kubernetes.Quantity.sub(int) -> kubernetes.Quantity")
def subtract_int(value: QuantityValue, other: int) -> QuantityValue:
    return QuantityValue(value.value - quantity.Quantity(other * NANOS))


# -- versions

NUMBER = "(0|[1-9][0-9]{0,17})"
SEMVER = re.compile(
    rf"{NUMBER}\.{NUMBER}\.{NUMBER}(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)


def parse_semver(text: str) -> Semver | None:
    match = SEMVER.fullmatch(text)
    if match is None:
        return None
    prerelease = tuple((match[4] or "").split(".")) if match[4] else ()
    if any(each.isdecimal() and len(each) > 1 and each[0] == "0" for each in prerelease):
        return None
    return Semver((int(match[1]), int(match[2]), int(match[3])), prerelease)


def normalize_semver(text: str) -> str:
    """Return a version with three numbers and without a leading `v` or leading zeros."""
    parts = text.removeprefix("v").split(".", 2)
    for index, each in enumerate(parts):
        if len(each) > 1:
            stripped = each.lstrip("0")
            parts[index] = stripped if stripped[:1].isdecimal() else f"0{stripped}"
    if len(parts) < 3 and re.search("[-+]", parts[-1]):
        return ""
    return ".".join([*parts, *["0"] * (3 - len(parts))])


@cel_function("semver(string) -> kubernetes.Semver")
def semver(text: str) -> Semver:
    version = parse_semver(text)
    if version is None:
        raise EvaluationError(
            "No Major.Minor.Patch elements found" if text.count(".") < 2 else f'Invalid character(s) found in "{text}"'
        )
    return version


@cel_function("semver(string, bool) -> kubernetes.Semver")
def semver_normalized(text: str, normalize: bool) -> Semver:
    return semver(normalize_semver(text) if normalize else text)


@cel_function("isSemver(string) -> bool")
def is_semver(text: str) -> bool:
    return parse_semver(text) is not None


@cel_function("kubernetes.Semver.compareTo(kubernetes.Semver) -> int")
def compare_semvers(value: Semver, other: Semver) -> int:
    return (value.rank > other.rank) - (value.rank < other.rank)


for _number, _name in enumerate(("major", "minor", "patch")):
    cel_function(f"kubernetes.Semver.{_name}() -> int")(lambda value, number=_number: value.numbers[number])


# -- formats


def uri_error(text: str) -> str | None:
    try:
        url_in(text)
    except ValueError as error:
        return str(error)
    return None


def parse_check(parse: Callable[[str], object], message: str) -> Callable[[str], str | None]:
    def check(text: str) -> str | None:
        try:
            parse(text)
        except ValueError:
            return message
        return None

    return check


def prefix_check(check: Callable[[str], str | None]) -> Callable[[str], str | None]:
    """Return a check for a name prefix, which may end with a dash."""
    return lambda text: check(text[:-1] + "a" if text.endswith("-") else text)


FORMATS: dict[str, Callable[[str], str | None]] = {
    "dns1123Label": names.dns_label_error,
    "dns1123Subdomain": names.dns_subdomain_error,
    "dns1035Label": names.dns_1035_label_error,
    "qualifiedName": names.label_key_error,
    "dns1123LabelPrefix": prefix_check(names.dns_label_error),
    "dns1123SubdomainPrefix": prefix_check(names.dns_subdomain_error),
    "dns1035LabelPrefix": prefix_check(names.dns_1035_label_error),
    "labelValue": names.label_value_error,
    "uri": uri_error,
    "uuid": parse_check(UUID, "does not match the UUID format"),
    "byte": parse_check(lambda text: base64.b64decode(text, validate=True), "invalid base64"),
    "date": parse_check(parse_date, "invalid date"),
    "datetime": parse_check(parse_timestamp, "invalid datetime"),
}


@cel_function("format.named(string) -> optional_type(kubernetes.NamedFormat)")
def named_format(name: str) -> OptionalValue:
    return OptionalValue(NamedFormat(name)) if name in FORMATS else OPTIONAL_NONE


def declare_format(name: str) -> None:
    cel_function(f"format.{name}() -> kubernetes.NamedFormat")(lambda: NamedFormat(name))


for _format in FORMATS:
    declare_format(_format)


@cel_function("kubernetes.NamedFormat.validate(string) -> optional_type(list(string))")
def validate_named_format(value: NamedFormat, text: str) -> OptionalValue:
    """Return the errors of the text, or no value if it has the format."""
    error = FORMATS[value.name](text)
    return OPTIONAL_NONE if error is None else OptionalValue([error])


register_functions(
    {
        "isQuantity(string) -> bool": is_valid(quantity.parse_quantity, QuantityError),
        "sign(kubernetes.Quantity) -> int": lambda value: (value.value.nano > 0) - (value.value.nano < 0),
        "kubernetes.Quantity.sign() -> int": lambda value: (value.value.nano > 0) - (value.value.nano < 0),
        "kubernetes.Quantity.isGreaterThan(kubernetes.Quantity) -> bool": lambda value, other: (
            value.value > other.value
        ),
        "kubernetes.Quantity.isLessThan(kubernetes.Quantity) -> bool": lambda value, other: value.value < other.value,
        "kubernetes.Quantity.asApproximateFloat() -> double": lambda value: value.value.nano / NANOS,
        "isSemver(string, bool) -> bool": lambda text, normalize: is_semver(
            normalize_semver(text) if normalize else text
        ),
        "kubernetes.Semver.isGreaterThan(kubernetes.Semver) -> bool": lambda value, other: value.rank > other.rank,
        "kubernetes.Semver.isLessThan(kubernetes.Semver) -> bool": lambda value, other: value.rank < other.rank,
    }
)
