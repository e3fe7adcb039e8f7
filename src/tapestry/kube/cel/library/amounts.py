"""Quantities, versions, and the formats that have a name."""

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from tapestry.kube import names, quantity
from tapestry.kube.cel.errors import EvaluationError
from tapestry.kube.cel.functions import declared
from tapestry.kube.cel.library.moments import day, moment
from tapestry.kube.cel.library.network import url_in
from tapestry.kube.cel.values import INT_RANGE, NOTHING, Maybe
from tapestry.kube.quantity import NANOS, QuantityError


@dataclass(frozen=True, slots=True)
class Amount:
    kind: ClassVar[str] = "kubernetes.Quantity"
    value: quantity.Quantity


@dataclass(frozen=True, slots=True)
class Semver:
    kind: ClassVar[str] = "kubernetes.Semver"
    numbers: tuple[int, int, int]
    prerelease: tuple[str, ...] = ()

    @property
    def rank(self) -> tuple[tuple[int, int, int], bool, tuple[tuple[bool, int, str], ...]]:
        """What versions are ordered by: one without a prerelease comes after those with."""
        parts = tuple((not each.isdecimal(), int(each) if each.isdecimal() else 0, each) for each in self.prerelease)
        return self.numbers, not self.prerelease, parts


@dataclass(frozen=True, slots=True)
class NamedFormat:
    kind: ClassVar[str] = "kubernetes.NamedFormat"
    name: str


# -- quantities


@declared("quantity(string) -> kubernetes.Quantity")
def amount(text: str) -> Amount:
    try:
        return Amount(quantity.parse(text))
    except QuantityError:
        why = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        raise EvaluationError(why) from None


@declared("isQuantity(string) -> bool")
def is_amount(text: str) -> bool:
    try:
        quantity.parse(text)
    except QuantityError:
        return False
    return True


@declared("sign(kubernetes.Quantity) -> int", "kubernetes.Quantity.sign() -> int")
def sign(value: Amount) -> int:
    return (value.value.nano > 0) - (value.value.nano < 0)


@declared("kubernetes.Quantity.isGreaterThan(kubernetes.Quantity) -> bool")
def is_more(value: Amount, other: Amount) -> bool:
    return value.value > other.value


@declared("kubernetes.Quantity.isLessThan(kubernetes.Quantity) -> bool")
def is_less(value: Amount, other: Amount) -> bool:
    return value.value < other.value


@declared("kubernetes.Quantity.compareTo(kubernetes.Quantity) -> int")
def compared(value: Amount, other: Amount) -> int:
    return (value.value > other.value) - (value.value < other.value)


@declared("kubernetes.Quantity.asApproximateFloat() -> double")
def approximately(value: Amount) -> float:
    return value.value.nano / NANOS


@declared("kubernetes.Quantity.isInteger() -> bool")
def is_integer(value: Amount) -> bool:
    return not value.value.nano % NANOS and value.value.nano // NANOS in INT_RANGE


@declared("kubernetes.Quantity.asInteger() -> int")
def integer(value: Amount) -> int:
    if is_integer(value):
        return value.value.nano // NANOS
    raise EvaluationError("cannot convert value to integer")


@declared("kubernetes.Quantity.add(kubernetes.Quantity) -> kubernetes.Quantity")
def add(value: Amount, other: Amount) -> Amount:
    return Amount(value.value + other.value)


@declared("kubernetes.Quantity.sub(kubernetes.Quantity) -> kubernetes.Quantity")
def subtract(value: Amount, other: Amount) -> Amount:
    return Amount(value.value - other.value)


@declared("kubernetes.Quantity.add(int) -> kubernetes.Quantity")
def add_int(value: Amount, other: int) -> Amount:
    return Amount(value.value + quantity.Quantity(other * NANOS))


@declared("kubernetes.Quantity.sub(int) -> kubernetes.Quantity")
def subtract_int(value: Amount, other: int) -> Amount:
    return Amount(value.value - quantity.Quantity(other * NANOS))


# -- versions

NUMBER = "(0|[1-9][0-9]{0,17})"
SEMVER = re.compile(
    rf"{NUMBER}\.{NUMBER}\.{NUMBER}(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)


def semver_in(text: str) -> Semver | None:
    found = SEMVER.fullmatch(text)
    if found is None:
        return None
    prerelease = tuple((found[4] or "").split(".")) if found[4] else ()
    if any(each.isdecimal() and len(each) > 1 and each[0] == "0" for each in prerelease):
        return None
    return Semver((int(found[1]), int(found[2]), int(found[3])), prerelease)


def normalized(text: str) -> str:
    """With all three numbers, without a leading v or zeros."""
    parts = text.removeprefix("v").split(".", 2)
    for number, each in enumerate(parts):
        if len(each) > 1:
            bare = each.lstrip("0")
            parts[number] = bare if bare[:1].isdecimal() else f"0{bare}"
    if len(parts) < 3 and re.search("[-+]", parts[-1]):
        return ""
    return ".".join([*parts, *["0"] * (3 - len(parts))])


@declared("semver(string) -> kubernetes.Semver")
def semver(text: str) -> Semver:
    found = semver_in(text)
    if found is None:
        raise EvaluationError(
            "No Major.Minor.Patch elements found" if text.count(".") < 2 else f'Invalid character(s) found in "{text}"'
        )
    return found


@declared("semver(string, bool) -> kubernetes.Semver")
def semver_normalized(text: str, normalize: bool) -> Semver:
    return semver(normalized(text) if normalize else text)


@declared("isSemver(string) -> bool")
def is_semver(text: str) -> bool:
    return semver_in(text) is not None


@declared("isSemver(string, bool) -> bool")
def is_semver_normalized(text: str, normalize: bool) -> bool:
    return is_semver(normalized(text) if normalize else text)


@declared("kubernetes.Semver.isGreaterThan(kubernetes.Semver) -> bool")
def is_later(value: Semver, other: Semver) -> bool:
    return value.rank > other.rank


@declared("kubernetes.Semver.isLessThan(kubernetes.Semver) -> bool")
def is_earlier(value: Semver, other: Semver) -> bool:
    return value.rank < other.rank


@declared("kubernetes.Semver.compareTo(kubernetes.Semver) -> int")
def compared_version(value: Semver, other: Semver) -> int:
    return (value.rank > other.rank) - (value.rank < other.rank)


for _number, _name in enumerate(("major", "minor", "patch")):
    declared(f"kubernetes.Semver.{_name}() -> int")(lambda value, number=_number: value.numbers[number])


# -- formats


def is_uri(text: str) -> str | None:
    try:
        url_in(text)
    except ValueError as error:
        return str(error)
    return None


def parses(parse: Callable[[str], object], complaint: str) -> Callable[[str], str | None]:
    def check(text: str) -> str | None:
        try:
            parse(text)
        except ValueError:
            return complaint
        return None

    return check


def prefix(check: Callable[[str], str | None]) -> Callable[[str], str | None]:
    """For what a server is still to add to: it may end in a dash."""
    return lambda text: check(text[:-1] + "a" if text.endswith("-") else text)


FORMATS: dict[str, Callable[[str], str | None]] = {
    "dns1123Label": names.dns_label_complaint,
    "dns1123Subdomain": names.dns_subdomain_complaint,
    "dns1035Label": names.dns_1035_label_complaint,
    "qualifiedName": names.label_key_complaint,
    "dns1123LabelPrefix": prefix(names.dns_label_complaint),
    "dns1123SubdomainPrefix": prefix(names.dns_subdomain_complaint),
    "dns1035LabelPrefix": prefix(names.dns_1035_label_complaint),
    "labelValue": names.label_value_complaint,
    "uri": is_uri,
    "uuid": parses(UUID, "does not match the UUID format"),
    "byte": parses(lambda text: base64.b64decode(text, validate=True), "invalid base64"),
    "date": parses(day, "invalid date"),
    "datetime": parses(moment, "invalid datetime"),
}


@declared("format.named(string) -> optional_type(kubernetes.NamedFormat)")
def named(name: str) -> Maybe:
    return Maybe(NamedFormat(name)) if name in FORMATS else NOTHING


def declare_format(name: str) -> None:
    declared(f"format.{name}() -> kubernetes.NamedFormat")(lambda: NamedFormat(name))


for _format in FORMATS:
    declare_format(_format)


@declared("kubernetes.NamedFormat.validate(string) -> optional_type(list(string))")
def complaints(value: NamedFormat, text: str) -> Maybe:
    """What is wrong with the text; nothing where it has the format."""
    found = FORMATS[value.name](text)
    return NOTHING if found is None else Maybe([found])
