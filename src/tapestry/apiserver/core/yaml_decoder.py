"""Decoder for YAML request bodies, with limits on the work.

Parser events are processed in one pass, in linear time. An alias costs as much as its expansion, so a body never
grows beyond what could have been sent as JSON. Only JSON types are supported. Sexagesimal numbers and dates stay
strings, as in Kubernetes.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_DEPTH = 200
"""Maximum nesting depth of a body: more than any real object needs, less than the recursion limit."""
MAX_CHARACTERS = 3 << 20
"""Maximum number of characters of all texts, plus one per value, after alias expansion."""
MAX_NODES = 200_000
"""Maximum number of values, including aliases; each takes Python some microseconds."""
MAX_DUPLICATE_KEYS = 100
"""Maximum number of duplicate keys that are reported."""

DIRECTIVE = re.compile(r"(?:\A|[\r\n\x85\u2028\u2029])\ufeff?%")
"""A directive line. The parser needs quadratic time for directives."""
INTEGER = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|[1-9][0-9_]*|0)")
FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
MAX_NUMBER_LENGTH = 400
"""Maximum length of a number: slightly more digits than the largest float has."""
NON_FINITE_NUMBER = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
}
TAG_PREFIX = "tag:yaml.org,2002:"
JSON_TAGS = frozenset({"!", *(TAG_PREFIX + name for name in ("str", "map", "seq", "null", "bool", "int", "float"))})
MERGE_KEY = "<<"


YamlEvent = Any
"""A parser event. The type stubs lack the fields of each event type."""


class YamlError(ValueError):
    """The body is malformed YAML, or uses an unsupported feature."""


@dataclass(frozen=True, slots=True)
class YamlDocument:
    value: Any
    duplicate_keys: tuple[str, ...] = ()
    """Messages about keys that are set twice, as Go's YAML decoder words them."""


@dataclass(slots=True)
class AnchoredValue:
    value: Any
    cost: int


@dataclass(slots=True)
class YamlReader:
    """Read the events of one document."""

    loader: Any
    spent: int = 0
    nodes: int = 0
    anchors: dict[str, AnchoredValue] = field(default_factory=dict)
    duplicate_keys: list[str] = field(default_factory=list)

    def charge(self, cost: int) -> None:
        self.spent += cost
        if self.spent > MAX_CHARACTERS:
            raise YamlError("the body is too large after alias expansion")

    def read_value(self, event: YamlEvent, depth: int) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise YamlError(f"the body has more than {MAX_NODES} values; send it as JSON")
        if isinstance(event, yaml.AliasEvent):
            known = self.anchors.get(event.anchor or "")
            if known is None:
                raise YamlError(f"{location(event)}: unknown anchor")
            self.charge(known.cost)
            return known.value
        before = self.spent
        if event.tag is not None and event.tag not in JSON_TAGS:
            raise YamlError(f"{location(event)}: tag is not supported")
        if isinstance(event, yaml.ScalarEvent):
            self.charge(len(event.value) + 1)
            value = scalar_value(event)
        elif depth >= MAX_DEPTH:
            raise YamlError(f"the body is nested more than {MAX_DEPTH} deep")
        else:
            self.charge(1)
            value = (self.read_sequence if isinstance(event, yaml.SequenceStartEvent) else self.read_mapping)(depth + 1)
        if event.anchor is not None:
            self.anchors[event.anchor] = AnchoredValue(value, self.spent - before)
        return value

    def read_sequence(self, depth: int) -> list[Any]:
        result: list[Any] = []
        while not isinstance(event := self.loader.get_event(), yaml.SequenceEndEvent):
            result.append(self.read_value(event, depth))
        return result

    def read_mapping(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: list[dict[str, Any]] = []
        while not isinstance(event := self.loader.get_event(), yaml.MappingEndEvent):
            if is_merge(event):
                merged += merged_mappings(self.read_value(self.loader.get_event(), depth), event)
                continue
            key = key_text(self.read_value(event, depth), event)
            if key in found and len(self.duplicate_keys) < MAX_DUPLICATE_KEYS:
                self.duplicate_keys.append(f'{location(event)}: key "{key}" already set in map')
            found[key] = self.read_value(self.loader.get_event(), depth)
        if not merged:
            return found
        self.charge(sum(map(len, merged)))
        result: dict[str, Any] = {}
        for each in reversed(merged):  # the first merged mapping takes precedence
            result.update(each)
        result.update(found)
        return result


def location(event: YamlEvent) -> str:
    return f"line {event.start_mark.line + 1}"


def parse_document(body: bytes) -> YamlDocument:
    """Return the single document in a body. Raises YamlError."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise YamlError(f"the body is not UTF-8: {error.reason}") from error
    if DIRECTIVE.search(text):
        raise YamlError("directives are not supported")
    loader: Any = yaml.CSafeLoader(text)
    try:
        loader.get_event()  # start of the stream
        if not isinstance(loader.get_event(), yaml.DocumentStartEvent):
            return YamlDocument(None)
        reader = YamlReader(loader)
        result = reader.read_value(loader.get_event(), 0)
        loader.get_event()  # end of the document
        if not isinstance(loader.get_event(), yaml.StreamEndEvent):
            raise YamlError("there is more than one document")
        return YamlDocument(result, tuple(reader.duplicate_keys))
    except yaml.YAMLError as error:
        raise YamlError(str(error)[:500]) from error
    finally:
        loader.dispose()


def scalar_value(event: YamlEvent) -> Any:
    """Return the JSON value of a scalar."""
    text: str = event.value
    if event.tag == TAG_PREFIX + "str" or (event.tag in (None, "!") and not event.implicit[0]):
        return text
    if text in CONSTANTS:
        return CONSTANTS[text]
    if text[0] in "+-.0123456789":
        if INTEGER.fullmatch(text):
            return integer_value(text, event)
        if FLOAT.fullmatch(text):
            return float_value(text, event)
        if NON_FINITE_NUMBER.fullmatch(text):
            raise YamlError(f"{location(event)}: {text} is not a valid JSON number")
    return text


def integer_value(text: str, event: YamlEvent) -> int | float:
    digits = text.replace("_", "")
    if len(digits) > MAX_NUMBER_LENGTH:
        raise YamlError(f"{location(event)}: a number is out of range")
    bare = digits.lstrip("+-")
    try:
        is_octal = bare[0] == "0" and bare[1:].isdigit()
        result = int(digits.replace("0", "0o", 1), 8) if is_octal else int(digits, 0)
    except ValueError:  # only underscores
        raise YamlError(f"{location(event)}: a number is malformed") from None
    return result if -(2**63) <= result < 2**64 else float(result)


def float_value(text: str, event: YamlEvent) -> float:
    result = float(text) if len(text) <= MAX_NUMBER_LENGTH else float("inf")
    if result in (float("inf"), float("-inf")):
        raise YamlError(f"{location(event)}: a number is out of range")
    return result


def is_merge(event: YamlEvent) -> bool:
    return isinstance(event, yaml.ScalarEvent) and event.value == MERGE_KEY and event.tag is None and event.implicit[0]


def merged_mappings(value: Any, event: YamlEvent) -> list[dict[str, Any]]:
    """Return the mappings of a merge key: one or several."""
    result = value if isinstance(value, list) else [value]
    if not all(isinstance(each, dict) for each in result):
        raise YamlError(f"{location(event)}: map merge requires map or sequence of maps as the value")
    return result


def key_text(key: Any, event: YamlEvent) -> str:
    """Return a key as a string, as in JSON."""
    match key:
        case str():
            return key
        case bool():
            return "true" if key else "false"
        case int() | float():
            return str(key)
    raise YamlError(f"{location(event)}: unsupported map key")
