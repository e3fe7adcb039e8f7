"""Kubernetes quantities: exact amounts with a suffix, as requests, limits and allocatable have them.

An amount is a whole number of nano-units, the finest that Kubernetes keeps, so sums and comparisons are those of
integers.  What a quantity was written in (`1Gi`, `1G`, `1e9`) is remembered for printing and means nothing else: two
quantities of the same amount are equal.

Read and printed as Kubernetes does, but for three oddities of its reader that nobody should depend on: a suffix without
a digit (`Gi`) is an error here and not zero; digits and exponents have a bound, because texts come from strangers and
`1e999999999` must not cost a gigabyte; and above `E` and `Ei` the number grows where Kubernetes loses the suffix.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import Any, Self

NANOS = 10**9
BINARY_CEILING = (2**63 - 1) * NANOS  # Kubernetes caps what is written with a binary suffix, and nothing else

DECIMAL_SUFFIXES = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
BINARY_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
EXPONENTS = tuple(f"e{power}" if power else "" for power in range(-9, 200, 3))

GRAMMAR = re.compile(
    r"([+-]?)(?=\.?[0-9])([0-9]{0,99})(?:\.([0-9]{0,99}))?([KMGTPE]i|[numkMGTPE]?|[eE][+-]?0*[0-9]{1,2})"
)


class QuantityError(ValueError):
    """The text is no quantity."""


class Format(Enum):
    """The family of suffixes that a quantity is printed with."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


UNITS: dict[str, tuple[int, Format]] = {
    **{suffix: (1024**rank * NANOS, Format.BINARY_SI) for rank, suffix in enumerate(BINARY_SUFFIXES)},
    **{suffix: (1000**rank, Format.DECIMAL_SI) for rank, suffix in enumerate(DECIMAL_SUFFIXES)},  # last: "" is decimal
}


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An exact amount.  Equal, ordered and hashed by the amount alone; `str()` is its canonical form."""

    nano: int
    format: Format = field(default=Format.DECIMAL_SI, compare=False)

    def __add__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.nano + other.nano, self.format if self.nano else other.format)

    def __sub__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.nano - other.nano, self.format if self.nano else other.format)

    def __bool__(self) -> bool:
        return self.nano != 0

    def scaled(self, by: int | Fraction) -> "Quantity":
        """`by` times as much, rounded down to a nano-unit: `idle.scaled(Fraction(percent, 100))`."""
        return Quantity(self.nano * by.numerator // by.denominator, self.format)

    def value(self) -> int:
        """The amount in whole units, rounded away from zero."""
        return _quotient(self.nano, NANOS)

    def milli_value(self) -> int:
        """The amount in thousandths, rounded away from zero."""
        return _quotient(self.nano, NANOS // 1000)

    def __str__(self) -> str:
        if self.nano == 0:
            return "0"
        if self.format is Format.DECIMAL_EXPONENT:
            return _with_suffix(self.nano, 1000, EXPONENTS)
        # A small or broken amount keeps its digits in decimal: 1.5 bytes are 1500m, and 512 are not a part of Ki.
        if self.format is Format.BINARY_SI and self.nano % NANOS == 0 and abs(self.nano) >= 1024 * NANOS:
            return _with_suffix(self.nano // NANOS, 1024, BINARY_SUFFIXES)
        return _with_suffix(self.nano, 1000, DECIMAL_SUFFIXES)


ZERO = Quantity(0)
ONE = Quantity(NANOS)
MILLI = Quantity(NANOS // 1000)


def parse_quantity(value: str | int | float, path: str = "") -> Quantity:
    """The quantity that a field holds; `path` is the field, for the QuantityError.

    JSON may carry a plain number: it counts as its text.  Fractions of a nano-unit round away from zero, so that who
    asks for a little does not get nothing.
    """
    try:
        return _parse_text(str(value))
    except QuantityError as error:
        raise QuantityError(f"{path}: {error}" if path else str(error)) from None


@lru_cache(maxsize=4096)  # a cluster writes the same few hundred texts over and over
def _parse_text(text: str) -> Quantity:
    found = GRAMMAR.fullmatch(text)
    if found is None:
        raise QuantityError(f"{text[:60]!r} is not a quantity; write a number and a suffix, as in 500m, 1.5Gi or 2e3")
    sign, whole, fraction, suffix = found.groups("")
    if suffix in UNITS:
        unit, form = UNITS[suffix]
        power = -len(fraction)
    else:
        unit, form = NANOS, Format.DECIMAL_EXPONENT
        power = int(suffix[1:]) - len(fraction)
    digits = int(whole + fraction) * unit
    nano = digits * 10**power if power >= 0 else _quotient(digits, 10**-power)
    if form is Format.BINARY_SI:
        nano = min(nano, BINARY_CEILING)
        if 0 < nano < NANOS:
            form = Format.DECIMAL_SI
    return Quantity(-nano if sign == "-" else nano, form)


def _quotient(number: int, divisor: int) -> int:
    """`number / divisor`, rounded away from zero."""
    return -(-number // divisor) if number > 0 else number // divisor


def _with_suffix(number: int, base: int, suffixes: tuple[str, ...]) -> str:
    """`number` with the largest suffix that leaves no fraction; each suffix is `base` times the one before."""
    rank = 0
    while rank < len(suffixes) - 1 and number % base == 0:
        number //= base
        rank += 1
    return f"{number}{suffixes[rank]}"


def smallest_unit(resource: str) -> Quantity:
    """The least of `resource` that there is: a milli of cpu, a huge page, else one (a byte, a pod, a GPU)."""
    name = resource.removeprefix("requests.").removeprefix("limits.")  # as a quota names them
    if name == "cpu":
        return MILLI
    if name.startswith("hugepages-"):
        try:
            return max(ONE, parse_quantity(name.removeprefix("hugepages-")))
        except QuantityError:
            return ONE  # whatever it counts, it counts in whole ones
    return ONE


def floored(resource: str, amount: Quantity) -> Quantity:
    """As much of `amount` as `resource` can express: half a GPU is none."""
    unit = smallest_unit(resource).nano
    return Quantity(amount.nano // unit * unit, amount.format)


class ResourceList(dict[str, Quantity]):
    """Amounts by resource name, shared and never changed in place.

    `amounts[name]` is zero for a resource that is not there; `get` and `in` tell the two apart.
    """

    def __missing__(self, resource: str) -> Quantity:
        return ZERO

    @classmethod
    def parse(cls, texts: Mapping[str, Any] | None, path: str = "") -> Self:
        """The amounts of a ResourceList; none for a field that is missing."""
        return cls(
            {name: parse_quantity(text, f"{path}[{name}]" if path else name) for name, text in (texts or {}).items()}
        )

    @classmethod
    def total(cls, parts: "Iterable[ResourceList]") -> Self:
        """The sum of many amounts, without a new object for each addition; replicas share theirs, and count at once."""
        nanos: dict[str, int] = {}
        formats: dict[str, Format] = {}
        summands = list(parts)
        distinct = {id(amounts): amounts for amounts in summands}
        for identity, count in Counter(map(id, summands)).items():
            for name, amount in distinct[identity].items():
                if not nanos.get(name):
                    formats[name] = amount.format
                nanos[name] = nanos.get(name, 0) + count * amount.nano
        return cls({name: Quantity(nano, formats[name]) for name, nano in nanos.items()})

    def texts(self) -> dict[str, str]:
        """The ResourceList, in canonical form."""
        return {name: str(amount) for name, amount in self.items()}

    def __add__(self, other: "ResourceList") -> "ResourceList":
        return ResourceList({name: self[name] + other[name] for name in {**self, **other}})

    def __sub__(self, other: "ResourceList") -> "ResourceList":
        """What is left; below zero where `other` has more."""
        return ResourceList({name: self[name] - other[name] for name in {**self, **other}})

    def larger(self, other: "ResourceList") -> "ResourceList":
        """The larger amount of each resource."""
        return ResourceList({name: max(self[name], other[name]) for name in {**self, **other}})

    def at_least_zero(self) -> "ResourceList":
        return ResourceList({name: max(amount, ZERO) for name, amount in self.items()})

    def floored(self) -> "ResourceList":
        """As much of each amount as its resource can express."""
        return ResourceList({name: floored(name, amount) for name, amount in self.items()})
