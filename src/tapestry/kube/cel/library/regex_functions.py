"""CEL functions on regular expressions."""

from tapestry.kube.cel.errors import EvaluationError, Meter
from tapestry.kube.cel.functions import cel_function
from tapestry.kube.cel.regexes import Regex, RegexError, compile_regex

LARGE_PATTERN_SIZE = 100
"""Number of instructions above which the cost of a pattern includes them."""


def metered_regex(meter: Meter, text: str, expression: str) -> Regex:
    try:
        regex = compile_regex(expression)
    except RegexError as error:
        raise EvaluationError(f"error parsing regexp: {error}") from None
    unrolled = regex.size if regex.size > LARGE_PATTERN_SIZE else 0  # a{1000} is larger than its text
    meter.charge(1 + len(text) * (len(expression) / 40 + unrolled / 4))
    return regex


@cel_function("string.matches(string) -> bool", "matches(string, string) -> bool", metered=True)
def matches(meter: Meter, text: str, expression: str) -> bool:
    return metered_regex(meter, text, expression).matches(text)


@cel_function("string.find(string) -> string", metered=True)
def find(meter: Meter, text: str, expression: str) -> str:
    span = metered_regex(meter, text, expression).search(text)
    return text[span[0] : span[1]] if span is not None else ""


@cel_function("string.findAll(string) -> list(string)", metered=True)
def find_all(meter: Meter, text: str, expression: str) -> list[str]:
    return find_limited(meter, text, expression, -1)


@cel_function("string.findAll(string, int) -> list(string)", metered=True)
def find_limited(meter: Meter, text: str, expression: str, limit: int) -> list[str]:
    compiled = metered_regex(meter, text, expression)
    result: list[str] = []
    at, last = 0, -1
    while at <= len(text) and len(result) != limit:
        span = compiled.search(text, at)
        if span is None:
            break
        start, end = span
        if end > start or end != last:
            result.append(text[start:end])
        last, at = end, end if end > start else end + 1
        meter.charge(1 + len(compiled.text) / 10)
    return result
