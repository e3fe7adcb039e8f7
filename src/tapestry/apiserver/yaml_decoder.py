"""YAML that callers send, read with a budget.

The parser's events are read in one pass, in linear time.  An alias costs what it would cost written out, so a body
never grows beyond what could have been sent as JSON.  Only what JSON has is read: mappings, lists, texts, numbers,
booleans and nulls.  Sexagesimal numbers and dates stay texts, as in Kubernetes.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_DEPTH = 200
"""How deep collections may be nested."""
MAX_CHARACTERS = 3 << 20
"""Characters of all texts, and one more for each value, once aliases are written out."""
MAX_NODES = 200_000
"""Values, each alias being one: each takes Python some microseconds."""
MAX_DUPLICATE_KEYS = 100
"""Repeated keys that are reported."""

DIRECTIVE = re.compile(r"(?:\A|[\r\n\x85\u2028\u2029])\ufeff?%")
"""A line that is a directive; the time that the parser takes for those is quadratic."""
INTEGER = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|[1-9][0-9_]*|0)")
FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
MAX_NUMBER_LENGTH = 400
"""Characters: as many digits as the largest float has, and some."""
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
"""What the parser tells: its stubs do not say which fields each kind of event has."""


class YamlError(ValueError):
    """The body is not YAML, or not YAML that is taken."""


@dataclass(frozen=True, slots=True)
class YamlDocument:
    value: Any
    duplicate_keys: tuple[str, ...] = ()
    """Keys that are set twice, in the words of Go's YAML reader."""


@dataclass(slots=True)
class AnchoredValue:
    value: Any
    cost: int


@dataclass(slots=True)
class YamlReader:
    """Reads the events of one document."""

    loader: Any
    spent: int = 0
    nodes: int = 0
    anchors: dict[str, AnchoredValue] = field(default_factory=dict)
    duplicate_keys: list[str] = field(default_factory=list)

    def charge(self, cost: int) -> None:
        self.spent += cost
        if self.spent > MAX_CHARACTERS:
            raise YamlError("the body is too large once its aliases are written out")

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
            found = scalar_value(event)
        elif depth >= MAX_DEPTH:
            raise YamlError(f"the body is nested more than {MAX_DEPTH} deep")
        else:
            self.charge(1)
            found = (self.read_sequence if isinstance(event, yaml.SequenceStartEvent) else self.read_mapping)(depth + 1)
        if event.anchor is not None:
            self.anchors[event.anchor] = AnchoredValue(found, self.spent - before)
        return found

    def read_sequence(self, depth: int) -> list[Any]:
        found: list[Any] = []
        while not isinstance(event := self.loader.get_event(), yaml.SequenceEndEvent):
            found.append(self.read_value(event, depth))
        return found

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
        whole: dict[str, Any] = {}
        for each in reversed(merged):  # of several, the first counts
            whole.update(each)
        whole.update(found)
        return whole


def location(event: YamlEvent) -> str:
    return f"line {event.start_mark.line + 1}"


def parse_document(body: bytes) -> YamlDocument:
    """The one document in a body.  Raises YamlError."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise YamlError(f"the body is not UTF-8: {error.reason}") from error
    if DIRECTIVE.search(text):
        raise YamlError("directives are not supported")
    loader: Any = yaml.CSafeLoader(text)
    try:
        loader.get_event()  # the stream starts
        if not isinstance(loader.get_event(), yaml.DocumentStartEvent):
            return YamlDocument(None)
        reader = YamlReader(loader)
        found = reader.read_value(loader.get_event(), 0)
        loader.get_event()  # the document ends
        if not isinstance(loader.get_event(), yaml.StreamEndEvent):
            raise YamlError("there is more than one document")
        return YamlDocument(found, tuple(reader.duplicate_keys))
    except yaml.YAMLError as error:
        raise YamlError(str(error)[:500]) from error
    finally:
        loader.dispose()


def scalar_value(event: YamlEvent) -> Any:
    """What a scalar stands for in JSON."""
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
            raise YamlError(f"{location(event)}: {text} is no number that JSON has")
    return text


def integer_value(text: str, event: YamlEvent) -> int | float:
    digits = text.replace("_", "")
    if len(digits) > MAX_NUMBER_LENGTH:
        raise YamlError(f"{location(event)}: a number is out of range")
    bare = digits.lstrip("+-")
    try:
        is_octal = bare[0] == "0" and bare[1:].isdigit()
        found = int(digits.replace("0", "0o", 1), 8) if is_octal else int(digits, 0)
    except ValueError:  # of underscores alone
        raise YamlError(f"{location(event)}: a number is malformed") from None
    return found if -(2**63) <= found < 2**64 else float(found)


def float_value(text: str, event: YamlEvent) -> float:
    found = float(text) if len(text) <= MAX_NUMBER_LENGTH else float("inf")
    if found in (float("inf"), float("-inf")):
        raise YamlError(f"{location(event)}: a number is out of range")
    return found


def is_merge(event: YamlEvent) -> bool:
    return isinstance(event, yaml.ScalarEvent) and event.value == MERGE_KEY and event.tag is None and event.implicit[0]


def merged_mappings(value: Any, event: YamlEvent) -> list[dict[str, Any]]:
    """What a merge key merges: one mapping, or several."""
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(each, dict) for each in found):
        raise YamlError(f"{location(event)}: map merge requires map or sequence of maps as the value")
    return found


def key_text(key: Any, event: YamlEvent) -> str:
    """A key as JSON has it: a text."""
    match key:
        case str():
            return key
        case bool():
            return "true" if key else "false"
        case int() | float():
            return str(key)
    raise YamlError(f"{location(event)}: unsupported map key")
