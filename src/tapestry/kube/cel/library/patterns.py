"""Regular expressions in expressions."""

from tapestry.kube.cel.errors import EvaluationError, Meter
from tapestry.kube.cel.functions import declared
from tapestry.kube.cel.regexes import Regex, RegexError, regex

LARGE = 100
"""From how many instructions on a pattern is charged by them."""


def pattern(meter: Meter, text: str, expression: str) -> Regex:
    try:
        found = regex(expression)
    except RegexError as error:
        raise EvaluationError(f"error parsing regexp: {error}") from None
    unrolled = found.size if found.size > LARGE else 0  # of a{1000} there is more than meets the eye
    meter.charge(1 + len(text) * (len(expression) / 40 + unrolled / 4))
    return found


@declared("string.matches(string) -> bool", "matches(string, string) -> bool", metered=True)
def matches(meter: Meter, text: str, expression: str) -> bool:
    return pattern(meter, text, expression).is_in(text)


@declared("string.find(string) -> string", metered=True)
def find(meter: Meter, text: str, expression: str) -> str:
    found = pattern(meter, text, expression).search(text)
    return text[found[0] : found[1]] if found is not None else ""


@declared("string.findAll(string) -> list(string)", metered=True)
def find_all(meter: Meter, text: str, expression: str) -> list[str]:
    return find_some(meter, text, expression, -1)


@declared("string.findAll(string, int) -> list(string)", metered=True)
def find_some(meter: Meter, text: str, expression: str, most: int) -> list[str]:
    compiled = pattern(meter, text, expression)
    found: list[str] = []
    at, last = 0, -1
    while at <= len(text) and len(found) != most:
        place = compiled.search(text, at)
        if place is None:
            break
        start, end = place
        if end > start or end != last:
            found.append(text[start:end])
        last, at = end, end if end > start else end + 1
        meter.charge(1 + len(compiled.text) / 10)
    return found
