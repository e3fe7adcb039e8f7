"""Resource quantities: exact arithmetic, parsing and formatting as in Kubernetes.

An amount is an integer of nano-units, the smallest unit of Kubernetes. Sums and comparisons are therefore exact. The
notation (`1Gi`, `1G`, `1e9`) is stored for formatting only: quantities with the same amount are equal.

Parsing and formatting follow Kubernetes with three exceptions. A suffix without a digit (`Gi`) is an error, not zero.
The number of digits and the exponent are limited because the input is untrusted: `1e999999999` must not allocate a
gigabyte. Above `E` and `Ei` the number grows, whereas Kubernetes loses the suffix.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import Any, Self

NANOS = 10**9
BINARY_CEILING = (2**63 - 1) * NANOS  # Kubernetes caps only quantities with a binary suffix

DECIMAL_SUFFIXES = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
BINARY_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
EXPONENTS = tuple(f"e{power}" if power else "" for power in range(-9, 200, 3))

GRAMMAR = re.compile(
    r"([+-]?)(?=\.?[0-9])([0-9]{0,99})(?:\.([0-9]{0,99}))?([KMGTPE]i|[numkMGTPE]?|[eE][+-]?0*[0-9]{1,2})"
)


class QuantityError(ValueError):
    """The text is not a quantity."""


class Format(Enum):
    """Family of suffixes used to format a quantity."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


UNITS: dict[str, tuple[int, Format]] = {
    **{suffix: (1024**rank * NANOS, Format.BINARY_SI) for rank, suffix in enumerate(BINARY_SUFFIXES)},
    **{suffix: (1000**rank, Format.DECIMAL_SI) for rank, suffix in enumerate(DECIMAL_SUFFIXES)},  # last: "" is decimal
}


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """Exact amount. Comparison and hash use only the amount. `str()` is the canonical form."""

    nano: int
    format: Format = field(default=Format.DECIMAL_SI, compare=False)

    def __add__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.nano + other.nano, self.format if self.nano else other.format)

    def __sub__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.nano - other.nano, self.format if self.nano else other.format)

    def __bool__(self) -> bool:
        return self.nano != 0

    def scaled(self, by: int | Fraction) -> "Quantity":
        """Return `by` times the amount, rounded down to a nano-unit: `idle.scaled(Fraction(percent, 100))`."""
        return Quantity(self.nano * by.numerator // by.denominator, self.format)

    def value(self) -> int:
        """Return the amount in whole units, rounded away from zero."""
        return _quotient(self.nano, NANOS)

    def milli_value(self) -> int:
        """Return the amount in thousandths, rounded away from zero."""
        return _quotient(self.nano, NANOS // 1000)

    def __str__(self) -> str:
        if self.nano == 0:
            return "0"
        if self.format is Format.DECIMAL_EXPONENT:
            return _with_suffix(self.nano, 1000, EXPONENTS)
        # Small and fractional amounts use the decimal format: 1.5 bytes are 1500m, and 512 bytes are not a fraction of
        # Ki.
        if self.format is Format.BINARY_SI and self.nano % NANOS == 0 and abs(self.nano) >= 1024 * NANOS:
            return _with_suffix(self.nano // NANOS, 1024, BINARY_SUFFIXES)
        return _with_suffix(self.nano, 1000, DECIMAL_SUFFIXES)


ZERO = Quantity(0)
ONE = Quantity(NANOS)
MILLI = Quantity(NANOS // 1000)


def parse_quantity(value: str | int | float, path: str = "") -> Quantity:
    """Parse the quantity in a field. A QuantityError names `path`, the field.

    A plain JSON number is parsed like its text. Fractions of a nano-unit round away from zero, so that a tiny amount
    does not become zero.
    """
    try:
        return _parse_text(str(value))
    except QuantityError as error:
        raise QuantityError(f"{path}: {error}" if path else str(error)) from None


@lru_cache(maxsize=4096)  # a cluster writes the same few hundred strings again and again
def _parse_text(text: str) -> Quantity:
    match = GRAMMAR.fullmatch(text)
    if match is None:
        raise QuantityError(f"{text[:60]!r} is not a quantity; write a number and a suffix, as in 500m, 1.5Gi or 2e3")
    sign, integer, fraction, suffix = match.groups("")
    if suffix in UNITS:
        unit, format = UNITS[suffix]
        power = -len(fraction)
    else:
        unit, format = NANOS, Format.DECIMAL_EXPONENT
        power = int(suffix[1:]) - len(fraction)
    digits = int(integer + fraction) * unit
    nano = digits * 10**power if power >= 0 else _quotient(digits, 10**-power)
    if format is Format.BINARY_SI:
        nano = min(nano, BINARY_CEILING)
        if 0 < nano < NANOS:
            format = Format.DECIMAL_SI
    return Quantity(-nano if sign == "-" else nano, format)


def _quotient(number: int, divisor: int) -> int:
    """Return `number / divisor`, rounded away from zero."""
    return -(-number // divisor) if number > 0 else number // divisor


def _with_suffix(number: int, base: int, suffixes: tuple[str, ...]) -> str:
    """Return `number` with the largest suffix that leaves no fraction. Each suffix is `base` times the previous one."""
    rank = 0
    while rank < len(suffixes) - 1 and number % base == 0:
        number //= base
        rank += 1
    return f"{number}{suffixes[rank]}"


def smallest_unit(resource: str) -> Quantity:
    """Return the smallest amount of `resource`: a milli-CPU, a huge page, or one (byte, pod, GPU)."""
    name = resource.removeprefix("requests.").removeprefix("limits.")  # prefixes in quotas
    if name == "cpu":
        return MILLI
    if name.startswith("hugepages-"):
        try:
            return max(ONE, parse_quantity(name.removeprefix("hugepages-")))
        except QuantityError:
            return ONE  # unknown page size: count in whole units
    return ONE


def floored(resource: str, amount: Quantity) -> Quantity:
    """Round `amount` down to a multiple of the smallest unit of `resource`: half a GPU becomes zero."""
    unit = smallest_unit(resource).nano
    return Quantity(amount.nano // unit * unit, amount.format)


class ResourceList(dict[str, Quantity]):
    """Amounts by resource name. Instances are shared and must not be changed.

    `amounts[name]` is zero for a missing resource. Use `get` and `in` to detect missing resources.
    """

    def __missing__(self, resource: str) -> Quantity:
        return ZERO

    @classmethod
    def parse(cls, texts: Mapping[str, Any] | None, path: str = "") -> Self:
        """Parse a Kubernetes ResourceList. A missing field is an empty list."""
        return cls(
            {name: parse_quantity(text, f"{path}[{name}]" if path else name) for name, text in (texts or {}).items()}
        )

    @classmethod
    def total(cls, parts: "Iterable[ResourceList]") -> Self:
        """Return the sum of many lists without a new object per addition. Identical lists are added once with a
        factor.
        """
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
        """Return the amounts in canonical form."""
        return {name: str(amount) for name, amount in self.items()}

    def __add__(self, other: "ResourceList") -> "ResourceList":
        return ResourceList({name: self[name] + other[name] for name in {**self, **other}})

    def __sub__(self, other: "ResourceList") -> "ResourceList":
        """Return the difference, which is negative if `other` has more."""
        return ResourceList({name: self[name] - other[name] for name in {**self, **other}})

    def larger(self, other: "ResourceList") -> "ResourceList":
        return ResourceList({name: max(self[name], other[name]) for name in {**self, **other}})

    def at_least_zero(self) -> "ResourceList":
        return ResourceList({name: max(amount, ZERO) for name, amount in self.items()})

    def floored(self) -> "ResourceList":
        """Round each amount down to a multiple of its smallest unit."""
        return ResourceList({name: floored(name, amount) for name, amount in self.items()})


def scaled_value(amount: int | str, whole: int, rounding: Callable[[float], int]) -> int:
    """Return an absolute number, or a percentage of `whole` such as `25%`."""
    return amount if isinstance(amount, int) else rounding(int(amount.removesuffix("%")) * whole / 100)
