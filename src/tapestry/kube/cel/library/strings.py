"""CEL functions on strings."""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from tapestry.kube.cel.errors import EvaluationError, Meter
from tapestry.kube.cel.functions import cel_function, register_functions
from tapestry.kube.cel.library.conversions import double_text
from tapestry.kube.cel.library.timestamps import duration_text, timestamp_text
from tapestry.kube.cel.values import type_name_of

WHITESPACE = (
    "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005"
    "\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
UPPER = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
CLAUSE = re.compile(r"%(?:%|(?:\.(\d+))?(.)|)", re.DOTALL)
MAX_PRECISION = 100


@cel_function("string.contains(string) -> bool", metered=True)
def contains(meter: Meter, text: str, part: str) -> bool:
    meter.charge(len(text) / 10)
    return part in text


@cel_function("string.charAt(int) -> string")
def char_at(text: str, at: int) -> str:
    if 0 <= at <= len(text):
        return text[at : at + 1]
    raise EvaluationError(f"index out of range: {at}")


@cel_function("string.indexOf(string) -> int", metered=True)
def index_of(meter: Meter, text: str, part: str) -> int:
    meter.charge(len(text) / 10)
    return text.find(part)


@cel_function("string.indexOf(string, int) -> int", metered=True)
def index_of_from(meter: Meter, text: str, part: str, start: int) -> int:
    meter.charge(len(text) / 10)
    if start < 0:
        raise EvaluationError(f"index out of range: {start}")
    return text.find(part, start) if part else start


@cel_function("string.lastIndexOf(string) -> int", metered=True)
def last_index_of(meter: Meter, text: str, part: str) -> int:
    meter.charge(len(text) / 10)
    return text.rfind(part)


@cel_function("string.lastIndexOf(string, int) -> int", metered=True)
def last_index_of_before(meter: Meter, text: str, part: str, last: int) -> int:
    meter.charge(len(text) / 10)
    if last < 0:
        raise EvaluationError(f"index out of range: {last}")
    if not part:
        return last
    return text.rfind(part, 0, last + len(part)) if last < len(text) else -1


def check_index(text: str, at: int) -> None:
    if not 0 <= at <= len(text):
        raise EvaluationError(f"index out of range: {at}")


@cel_function("string.lowerAscii() -> string", metered=True)
def lower(meter: Meter, text: str) -> str:
    meter.charge(len(text) / 10)
    return text.translate(LOWER)


@cel_function("string.upperAscii() -> string", metered=True)
def upper(meter: Meter, text: str) -> str:
    meter.charge(len(text) / 10)
    return text.translate(UPPER)


@cel_function("string.replace(string, string) -> string", metered=True)
def replace(meter: Meter, text: str, old: str, new: str) -> str:
    return replace_limited(meter, text, old, new, -1)


@cel_function("string.replace(string, string, int) -> string", metered=True)
def replace_limited(meter: Meter, text: str, old: str, new: str, limit: int) -> str:
    meter.charge(len(text) / 10)
    meter.charge((text.count(old) if limit < 0 else min(limit, text.count(old))) * len(new) / 10)
    return text.replace(old, new, limit)


@cel_function("string.split(string) -> list(string)", metered=True)
def split(meter: Meter, text: str, by: str) -> list[str]:
    meter.charge(len(text) / 10)
    return text.split(by) if by else list(text)


@cel_function("string.split(string, int) -> list(string)", metered=True)
def split_limited(meter: Meter, text: str, by: str, limit: int) -> list[str]:
    meter.charge(len(text) / 10)
    if limit < 0 or not by:
        return split(meter, text, by) if limit else []
    return text.split(by, limit - 1) if limit > 1 else [text] * limit


@cel_function("string.substring(int) -> string")
def substring_from(text: str, start: int) -> str:
    check_index(text, start)
    return text[start:]


@cel_function("string.substring(int, int) -> string")
def substring(text: str, start: int, end: int) -> str:
    if start > end:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {end}")
    check_index(text, start)
    check_index(text, end)
    return text[start:end]


@cel_function("list(string).join() -> string", metered=True)
def join(meter: Meter, texts: list[str]) -> str:
    return join_by(meter, texts, "")


@cel_function("list(string).join(string) -> string", metered=True)
def join_by(meter: Meter, texts: list[str], by: str) -> str:
    meter.charge((sum(map(len, texts)) + len(by) * len(texts)) / 10)
    return by.join(texts)


QUOTE_ESCAPES = {
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


@cel_function("strings.quote(string) -> string", metered=True)
def quote(meter: Meter, text: str) -> str:
    meter.charge(len(text) / 5)
    return quoted(text)


def quoted(text: str) -> str:
    return '"' + "".join(QUOTE_ESCAPES.get(each, each) for each in text) + '"'


# -- format


@cel_function("string.format(list(dyn)) -> string", metered=True)
def format_string(meter: Meter, text: str, values: list[Any]) -> str:
    """Format a string with the clauses `%s %d %f %e %x %X %o %b`."""
    remaining = enumerate(values)

    def replace(match: re.Match[str]) -> str:
        if match.group() == "%%":
            return "%"
        precision, clause = parse_clause(match)
        index, value = next(remaining, (len(values), UNKNOWN))
        if value is UNKNOWN:
            raise EvaluationError(f"index {index} out of range")
        charge_for_text(meter, value)
        return clause(value, precision)

    meter.charge(len(text) / 10)
    return CLAUSE.sub(replace, text)


def charge_for_text(meter: Meter, value: Any) -> None:
    match type_name_of(value):
        case "string" | "bytes":
            meter.charge(1 + len(value) / 10)
        case "list":
            for each in value:
                charge_for_text(meter, each)
        case "map":
            for key, each in value.items():
                charge_for_text(meter, key)
                charge_for_text(meter, each)
        case _:
            meter.charge(1)


def parse_clause(match: re.Match[str]) -> tuple[int | None, "Clause"]:
    precision, letter = match.groups()
    if not letter:
        raise EvaluationError("unexpected end of string")
    if letter not in CLAUSES:
        raise EvaluationError(f'could not parse formatting clause: unrecognized formatting clause "{letter}"')
    return min(int(precision), MAX_PRECISION) if precision else None, CLAUSES[letter]


def format_errors(text: str, values: list[Any]) -> Iterator[tuple[int | None, str]]:
    """Yield errors of a format that do not depend on UNKNOWN values: the index of a value or None, and the message."""
    index = 0
    for match in CLAUSE.finditer(text):
        if match.group() == "%%":
            continue
        try:
            precision, clause = parse_clause(match)
        except EvaluationError as error:
            yield None, str(error)
            return
        if index >= len(values):
            yield None, f"index {index} out of range"
            return
        try:
            if values[index] is not UNKNOWN:
                clause(values[index], precision)
        except EvaluationError as error:
            yield index, str(error)
        index += 1


UNKNOWN = object()


def clause_type_error(value: Any, allowed_types: str, clause_name: str) -> EvaluationError:
    return EvaluationError(
        f"error during formatting: {clause_name} clause can only be used on {allowed_types},"
        f" was given {type_name_of(value)}"
    )


def as_text(value: Any, _: int | None) -> str:
    match type_name_of(value):
        case "string":
            return str(value)
        case "bool":
            return str(value).lower()
        case "null_type":
            return "null"
        case "double":
            return double_text(value)
        case "bytes":
            return str(value.decode("utf-8", "replace"))
        case "timestamp":
            return timestamp_text(value)
        case "duration":
            return duration_text(value)
        case "list":
            return "[" + ", ".join(map(as_nested_text, value)) + "]"
        case "map":
            return (
                "{"
                + ", ".join(sorted(f"{as_nested_text(key)}:{as_nested_text(each)}" for key, each in value.items()))
                + "}"
            )
        case "type":
            return str(value.name)
    return str(value)


def as_nested_text(value: Any) -> str:
    """Return a value nested in another one as text. Strings are quoted."""
    text = as_text(value, None)
    return (
        quoted(text)
        if type_name_of(value) == "string"
        else f"b{quoted(text)}"
        if type_name_of(value) == "bytes"
        else text
    )


def as_decimal(value: Any, _: int | None) -> str:
    if type_name_of(value) not in ("int", "uint") and not isinstance(value, float):
        raise clause_type_error(value, "integers", "decimal")
    if isinstance(value, float) and math.isfinite(value):
        raise clause_type_error(value, "integers", "decimal")
    return double_text(value) if isinstance(value, float) else str(int(value))


def as_fixed(value: Any, precision: int | None) -> str:
    """Format with English thousands separators."""
    if type_name_of(value) != "double":
        raise clause_type_error(value, "doubles", "fixed-point")
    return f"{value:,.{6 if precision is None else precision}f}" if math.isfinite(value) else double_text(value)


def as_scientific(value: Any, _: int | None) -> str:
    if type_name_of(value) != "double":
        raise clause_type_error(value, "doubles", "scientific")
    if not math.isfinite(value):
        return double_text(value)
    digits, power = f"{value:.6e}".split("e")
    return f"{digits} × 10{power.lstrip('+').translate(SUPERSCRIPTS)}"


SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def as_binary(value: Any, _: int | None) -> str:
    if type_name_of(value) not in ("int", "uint", "bool"):
        raise clause_type_error(value, "integers and bools", "binary")
    return f"{int(value):b}"


def as_octal(value: Any, _: int | None) -> str:
    if type_name_of(value) not in ("int", "uint"):
        raise clause_type_error(value, "integers", "octal")
    return f"{int(value):o}"


def as_hex(value: Any, _: int | None) -> str:
    match type_name_of(value):
        case "int" | "uint":
            return f"{int(value):x}"
        case "string":
            return str(value).encode().hex()
        case "bytes":
            return str(value.hex())
    raise clause_type_error(value, "integers, byte buffers, and strings", "hex")


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


register_functions(
    {
        "string.startsWith(string) -> bool": lambda text, part: text.startswith(part),
        "string.endsWith(string) -> bool": lambda text, part: text.endswith(part),
        "string.trim() -> string": lambda text: text.strip(WHITESPACE),
    }
)
