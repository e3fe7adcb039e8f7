"""YAML that callers send, read with a budget.

The parser's events are read in one pass, in linear time.  An alias costs what it would cost written out, so a body
never grows beyond what could have been sent as JSON.  Only what JSON has is read: mappings, lists, texts, numbers,
booleans and nulls.  Sexagesimal numbers and dates stay texts, as in Kubernetes.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

DEEPEST = 200
"""How deep collections may be nested."""
LARGEST = 3 << 20
"""Characters of all texts, and one more for each value, once aliases are written out."""
MOST_NODES = 200_000
"""Values, each alias being one: each takes Python some microseconds."""
MOST_REPEATED = 100
"""Repeated keys that are reported."""

DIRECTIVE = re.compile(r"(?:\A|[\r\n\x85\u2028\u2029])\ufeff?%")
"""A line that is a directive; the time that the parser takes for those is quadratic."""
INTEGER = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|[1-9][0-9_]*|0)")
FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
LONGEST_NUMBER = 400
"""Characters: as many digits as the largest float has, and some."""
NO_NUMBER = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
}
PREFIX = "tag:yaml.org,2002:"
PLAIN_TAGS = frozenset({"!", *(PREFIX + name for name in ("str", "map", "seq", "null", "bool", "int", "float"))})
MERGE = "<<"


Event = Any
"""What the parser tells: its stubs do not say which fields each kind of event has."""


class YamlError(ValueError):
    """The body is not YAML, or not YAML that is taken."""


@dataclass(frozen=True, slots=True)
class Document:
    value: Any
    repeated: tuple[str, ...] = ()
    """Keys that are set twice, in the words of Go's YAML reader."""


@dataclass(slots=True)
class Anchored:
    value: Any
    cost: int


@dataclass(slots=True)
class Reader:
    """Reads the events of one document."""

    loader: Any
    spent: int = 0
    nodes: int = 0
    anchors: dict[str, Anchored] = field(default_factory=dict)
    repeated: list[str] = field(default_factory=list)

    def spend(self, cost: int) -> None:
        self.spent += cost
        if self.spent > LARGEST:
            raise YamlError("the body is too large once its aliases are written out")

    def value(self, event: Event, depth: int) -> Any:
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise YamlError(f"the body has more than {MOST_NODES} values; send it as JSON")
        if isinstance(event, yaml.AliasEvent):
            known = self.anchors.get(event.anchor or "")
            if known is None:
                raise YamlError(f"{place(event)}: unknown anchor")
            self.spend(known.cost)
            return known.value
        before = self.spent
        if event.tag is not None and event.tag not in PLAIN_TAGS:
            raise YamlError(f"{place(event)}: tag is not supported")
        if isinstance(event, yaml.ScalarEvent):
            self.spend(len(event.value) + 1)
            found = scalar(event)
        elif depth >= DEEPEST:
            raise YamlError(f"the body is nested more than {DEEPEST} deep")
        else:
            self.spend(1)
            found = (self.items if isinstance(event, yaml.SequenceStartEvent) else self.fields)(depth + 1)
        if event.anchor is not None:
            self.anchors[event.anchor] = Anchored(found, self.spent - before)
        return found

    def items(self, depth: int) -> list[Any]:
        found: list[Any] = []
        while not isinstance(event := self.loader.get_event(), yaml.SequenceEndEvent):
            found.append(self.value(event, depth))
        return found

    def fields(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: list[dict[str, Any]] = []
        while not isinstance(event := self.loader.get_event(), yaml.MappingEndEvent):
            if is_merge(event):
                merged += mappings(self.value(self.loader.get_event(), depth), event)
                continue
            key = key_text(self.value(event, depth), event)
            if key in found and len(self.repeated) < MOST_REPEATED:
                self.repeated.append(f'{place(event)}: key "{key}" already set in map')
            found[key] = self.value(self.loader.get_event(), depth)
        if not merged:
            return found
        self.spend(sum(map(len, merged)))
        whole: dict[str, Any] = {}
        for each in reversed(merged):  # of several, the first counts
            whole.update(each)
        whole.update(found)
        return whole


def place(event: Event) -> str:
    return f"line {event.start_mark.line + 1}"


def document(body: bytes) -> Document:
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
            return Document(None)
        reader = Reader(loader)
        found = reader.value(loader.get_event(), 0)
        loader.get_event()  # the document ends
        if not isinstance(loader.get_event(), yaml.StreamEndEvent):
            raise YamlError("there is more than one document")
        return Document(found, tuple(reader.repeated))
    except yaml.YAMLError as error:
        raise YamlError(str(error)[:500]) from error
    finally:
        loader.dispose()


def scalar(event: Event) -> Any:
    """What a scalar stands for in JSON."""
    text: str = event.value
    if event.tag == PREFIX + "str" or (event.tag in (None, "!") and not event.implicit[0]):
        return text
    if text in CONSTANTS:
        return CONSTANTS[text]
    if text[0] in "+-.0123456789":
        if INTEGER.fullmatch(text):
            return integer(text, event)
        if FLOAT.fullmatch(text):
            return finite(text, event)
        if NO_NUMBER.fullmatch(text):
            raise YamlError(f"{place(event)}: {text} is no number that JSON has")
    return text


def integer(text: str, event: Event) -> int | float:
    digits = text.replace("_", "")
    if len(digits) > LONGEST_NUMBER:
        raise YamlError(f"{place(event)}: a number is out of range")
    bare = digits.lstrip("+-")
    try:
        is_octal = bare[0] == "0" and bare[1:].isdigit()
        found = int(digits.replace("0", "0o", 1), 8) if is_octal else int(digits, 0)
    except ValueError:  # of underscores alone
        raise YamlError(f"{place(event)}: a number is malformed") from None
    return found if -(2**63) <= found < 2**64 else float(found)


def finite(text: str, event: Event) -> float:
    found = float(text) if len(text) <= LONGEST_NUMBER else float("inf")
    if found in (float("inf"), float("-inf")):
        raise YamlError(f"{place(event)}: a number is out of range")
    return found


def is_merge(event: Event) -> bool:
    return isinstance(event, yaml.ScalarEvent) and event.value == MERGE and event.tag is None and event.implicit[0]


def mappings(value: Any, event: Event) -> list[dict[str, Any]]:
    """What a merge key merges: one mapping, or several."""
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(each, dict) for each in found):
        raise YamlError(f"{place(event)}: map merge requires map or sequence of maps as the value")
    return found


def key_text(key: Any, event: Event) -> str:
    """A key as JSON has it: a text."""
    match key:
        case str():
            return key
        case bool():
            return "true" if key else "false"
        case int() | float():
            return str(key)
    raise YamlError(f"{place(event)}: unsupported map key")
