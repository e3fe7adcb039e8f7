"""Functions of texts."""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from tapestry.kube.cel.errors import EvaluationError, Meter
from tapestry.kube.cel.functions import declared
from tapestry.kube.cel.library.conversions import real_text
from tapestry.kube.cel.library.moments import spoken, written
from tapestry.kube.cel.values import kind_of

SPACES = (
    "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005"
    "\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
UPPER = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
CLAUSE = re.compile(r"%(?:%|(?:\.(\d+))?(.)|)", re.DOTALL)
MAX_PRECISION = 100


@declared("string.startsWith(string) -> bool")
def starts_with(text: str, part: str) -> bool:
    return text.startswith(part)


@declared("string.endsWith(string) -> bool")
def ends_with(text: str, part: str) -> bool:
    return text.endswith(part)


@declared("string.contains(string) -> bool", metered=True)
def contains(meter: Meter, text: str, part: str) -> bool:
    meter.charge(len(text) / 10)
    return part in text


@declared("string.charAt(int) -> string")
def char_at(text: str, at: int) -> str:
    if 0 <= at <= len(text):
        return text[at : at + 1]
    raise EvaluationError(f"index out of range: {at}")


@declared("string.indexOf(string) -> int", metered=True)
def index_of(meter: Meter, text: str, part: str) -> int:
    meter.charge(len(text) / 10)
    return text.find(part)


@declared("string.indexOf(string, int) -> int", metered=True)
def index_from(meter: Meter, text: str, part: str, start: int) -> int:
    meter.charge(len(text) / 10)
    if start < 0:
        raise EvaluationError(f"index out of range: {start}")
    return text.find(part, start) if part else start


@declared("string.lastIndexOf(string) -> int", metered=True)
def last_index_of(meter: Meter, text: str, part: str) -> int:
    meter.charge(len(text) / 10)
    return text.rfind(part)


@declared("string.lastIndexOf(string, int) -> int", metered=True)
def last_index_until(meter: Meter, text: str, part: str, last: int) -> int:
    meter.charge(len(text) / 10)
    if last < 0:
        raise EvaluationError(f"index out of range: {last}")
    if not part:
        return last
    return text.rfind(part, 0, last + len(part)) if last < len(text) else -1


def check_index(text: str, at: int) -> None:
    if not 0 <= at <= len(text):
        raise EvaluationError(f"index out of range: {at}")


@declared("string.lowerAscii() -> string", metered=True)
def lower(meter: Meter, text: str) -> str:
    meter.charge(len(text) / 10)
    return text.translate(LOWER)


@declared("string.upperAscii() -> string", metered=True)
def upper(meter: Meter, text: str) -> str:
    meter.charge(len(text) / 10)
    return text.translate(UPPER)


@declared("string.trim() -> string")
def trim(text: str) -> str:
    return text.strip(SPACES)


@declared("string.replace(string, string) -> string", metered=True)
def replace(meter: Meter, text: str, old: str, new: str) -> str:
    return replace_some(meter, text, old, new, -1)


@declared("string.replace(string, string, int) -> string", metered=True)
def replace_some(meter: Meter, text: str, old: str, new: str, most: int) -> str:
    meter.charge(len(text) / 10)
    meter.charge((text.count(old) if most < 0 else min(most, text.count(old))) * len(new) / 10)
    return text.replace(old, new, most)


@declared("string.split(string) -> list(string)", metered=True)
def split(meter: Meter, text: str, by: str) -> list[str]:
    meter.charge(len(text) / 10)
    return text.split(by) if by else list(text)


@declared("string.split(string, int) -> list(string)", metered=True)
def split_some(meter: Meter, text: str, by: str, most: int) -> list[str]:
    meter.charge(len(text) / 10)
    if most < 0 or not by:
        return split(meter, text, by) if most else []
    return text.split(by, most - 1) if most > 1 else [text] * most


@declared("string.substring(int) -> string")
def rest(text: str, start: int) -> str:
    check_index(text, start)
    return text[start:]


@declared("string.substring(int, int) -> string")
def substring(text: str, start: int, end: int) -> str:
    if start > end:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {end}")
    check_index(text, start)
    check_index(text, end)
    return text[start:end]


@declared("list(string).join() -> string", metered=True)
def join(meter: Meter, texts: list[str]) -> str:
    return join_by(meter, texts, "")


@declared("list(string).join(string) -> string", metered=True)
def join_by(meter: Meter, texts: list[str], by: str) -> str:
    meter.charge((sum(map(len, texts)) + len(by) * len(texts)) / 10)
    return by.join(texts)


QUOTED = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}


@declared("strings.quote(string) -> string", metered=True)
def quote(meter: Meter, text: str) -> str:
    meter.charge(len(text) / 5)
    return quoted(text)


def quoted(text: str) -> str:
    return '"' + "".join(QUOTED.get(each, each) for each in text) + '"'


# -- format


@declared("string.format(list(dyn)) -> string", metered=True)
def formatted(meter: Meter, text: str, values: list[Any]) -> str:
    """The text with the values in the places of its clauses: `%s %d %f %e %x %X %o %b`."""
    left = enumerate(values)

    def put(found: re.Match[str]) -> str:
        if found.group() == "%%":
            return "%"
        precision, clause = clause_of(found)
        at, value = next(left, (len(values), UNKNOWN))
        if value is UNKNOWN:
            raise EvaluationError(f"index {at} out of range")
        weigh(meter, value)
        return clause(value, precision)

    meter.charge(len(text) / 10)
    return CLAUSE.sub(put, text)


def weigh(meter: Meter, value: Any) -> None:
    """Charge for what a value will be as a text."""
    match kind_of(value):
        case "string" | "bytes":
            meter.charge(1 + len(value) / 10)
        case "list":
            for each in value:
                weigh(meter, each)
        case "map":
            for key, each in value.items():
                weigh(meter, key)
                weigh(meter, each)
        case _:
            meter.charge(1)


def clause_of(found: re.Match[str]) -> tuple[int | None, "Clause"]:
    precision, letter = found.groups()
    if not letter:
        raise EvaluationError("unexpected end of string")
    if letter not in CLAUSES:
        raise EvaluationError(f'could not parse formatting clause: unrecognized formatting clause "{letter}"')
    return min(int(precision), MAX_PRECISION) if precision else None, CLAUSES[letter]


def format_complaints(text: str, values: list[Any]) -> Iterator[tuple[int | None, str]]:
    """What is wrong with a format whatever the UNKNOWN values will be: of which value, or of none in particular."""
    at = 0
    for found in CLAUSE.finditer(text):
        if found.group() == "%%":
            continue
        try:
            precision, clause = clause_of(found)
        except EvaluationError as error:
            yield None, str(error)
            return
        if at >= len(values):
            yield None, f"index {at} out of range"
            return
        try:
            if values[at] is not UNKNOWN:
                clause(values[at], precision)
        except EvaluationError as error:
            yield at, str(error)
        at += 1


UNKNOWN = object()


def wrong(value: Any, letter: str, wanted: str) -> EvaluationError:
    return EvaluationError(
        f"error during formatting: {wanted} clause can only be used on {letter}, was given {kind_of(value)}"
    )


def as_text(value: Any, _: int | None) -> str:
    match kind_of(value):
        case "string":
            return str(value)
        case "bool":
            return str(value).lower()
        case "null_type":
            return "null"
        case "double":
            return real_text(value)
        case "bytes":
            return str(value.decode("utf-8", "replace"))
        case "timestamp":
            return written(value)
        case "duration":
            return spoken(value)
        case "list":
            return "[" + ", ".join(map(as_part, value)) + "]"
        case "map":
            return "{" + ", ".join(sorted(f"{as_part(key)}:{as_part(each)}" for key, each in value.items())) + "}"
        case "type":
            return str(value.name)
    return str(value)


def as_part(value: Any) -> str:
    """A value within another one: texts have quotes there."""
    shown = as_text(value, None)
    return quoted(shown) if kind_of(value) == "string" else f"b{quoted(shown)}" if kind_of(value) == "bytes" else shown


def as_decimal(value: Any, _: int | None) -> str:
    if kind_of(value) not in ("int", "uint") and not isinstance(value, float):
        raise wrong(value, "integers", "decimal")
    if isinstance(value, float) and math.isfinite(value):
        raise wrong(value, "integers", "decimal")
    return real_text(value) if isinstance(value, float) else str(int(value))


def as_fixed(value: Any, precision: int | None) -> str:
    """As one writes it in English."""
    if kind_of(value) != "double":
        raise wrong(value, "doubles", "fixed-point")
    return f"{value:,.{6 if precision is None else precision}f}" if math.isfinite(value) else real_text(value)


def as_scientific(value: Any, _: int | None) -> str:
    if kind_of(value) != "double":
        raise wrong(value, "doubles", "scientific")
    if not math.isfinite(value):
        return real_text(value)
    digits, power = f"{value:.6e}".split("e")
    return f"{digits} × 10{power.lstrip('+').translate(RAISED)}"


RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def as_binary(value: Any, _: int | None) -> str:
    if kind_of(value) not in ("int", "uint", "bool"):
        raise wrong(value, "integers and bools", "binary")
    return f"{int(value):b}"


def as_octal(value: Any, _: int | None) -> str:
    if kind_of(value) not in ("int", "uint"):
        raise wrong(value, "integers", "octal")
    return f"{int(value):o}"


def as_hex(value: Any, _: int | None) -> str:
    match kind_of(value):
        case "int" | "uint":
            return f"{int(value):x}"
        case "string":
            return str(value).encode().hex()
        case "bytes":
            return str(value.hex())
    raise wrong(value, "integers, byte buffers, and strings", "hex")


Clause = Callable[[Any, int | None], str]
CLAUSES: dict[str, Clause] = {
    "s": as_text,
    "d": as_decimal,
    "f": as_fixed,
    "e": as_scientific,
    "b": as_binary,
    "o": as_octal,
    "x": as_hex,
    "X": lambda value, precision: as_hex(value, precision).upper(),
}
