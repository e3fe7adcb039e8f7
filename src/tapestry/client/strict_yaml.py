"""A strict YAML parser for untrusted documents.

It reads one document of mappings, lists, strings, booleans and nulls.  Dangerous or ambiguous features of YAML are
rejected with their location: anchors and aliases (exponential expansion), tags, merge keys, duplicate keys, a second
document, deep nesting.  Numbers and dates stay strings, so no conversion can be expensive.
"""

import re
from collections.abc import Iterator
from typing import Any

import yaml

MAX_DEPTH = 16
CONSTANTS = {"true": True, "false": False, "null": None, "~": None, "": None}
SAFE_KEY = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,39}")


class StrictYamlError(ValueError):
    """Not plain YAML.  The message names the location, and quotes only short keys of safe characters."""


def parse_strict_yaml(data: bytes) -> Any:
    """Return the only document in `data`, or None if it is empty."""
    events = yaml.parse(data, Loader=yaml.CSafeLoader)
    try:
        return read_document(events)
    except yaml.YAMLError as error:
        # The parser's own message may quote the content.
        raise StrictYamlError(f"{error_location(error)}: not YAML") from None


def read_document(events: Iterator[yaml.Event]) -> Any:
    next(events)  # stream start
    start = next(events)
    if not isinstance(start, yaml.DocumentStartEvent):
        return None
    if start.tags:
        raise StrictYamlError("document: tag directives are not allowed")
    document = read_value(next(events), events, "", 0)
    next(events)  # document end
    if not isinstance(next(events), yaml.StreamEndEvent):
        raise StrictYamlError("document: more than one; keep one")
    return document


def read_value(event: yaml.Event, events: Iterator[yaml.Event], path: str, depth: int) -> Any:
    reject_unsafe_event(event, path)
    if isinstance(event, yaml.ScalarEvent):
        is_plain = event.implicit[0]
        return CONSTANTS.get(event.value, event.value) if is_plain else event.value
    if depth == MAX_DEPTH:
        raise StrictYamlError(f"{path or 'document'}: nested deeper than {MAX_DEPTH}")
    if isinstance(event, yaml.SequenceStartEvent):
        return read_sequence(events, path, depth)
    return read_mapping(events, path, depth)


def read_sequence(events: Iterator[yaml.Event], path: str, depth: int) -> list[Any]:
    items: list[Any] = []
    while not isinstance(event := next(events), yaml.SequenceEndEvent):
        items.append(read_value(event, events, f"{path}[{len(items)}]", depth + 1))
    return items


def read_mapping(events: Iterator[yaml.Event], path: str, depth: int) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        reject_unsafe_event(event, path)
        if not isinstance(event, yaml.ScalarEvent):
            raise StrictYamlError(f"{path or 'document'}: a key that is not a string")
        key = event.value
        place = f"{path}.{key if SAFE_KEY.fullmatch(key) else '?'}".lstrip(".")
        if key in mapping:
            raise StrictYamlError(f"{place}: given twice; keep one")
        if key == "<<":
            raise StrictYamlError(f"{path or 'document'}: merge keys are not allowed")
        mapping[key] = read_value(next(events), events, place, depth + 1)
    return mapping


def reject_unsafe_event(event: yaml.Event, path: str) -> None:
    place = path or "document"
    if isinstance(event, yaml.AliasEvent):
        raise StrictYamlError(f"{place}: YAML aliases are not allowed; write the value out")
    if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
        if event.anchor is not None:
            raise StrictYamlError(f"{place}: YAML anchors are not allowed")
        if event.tag is not None:
            raise StrictYamlError(f"{place}: YAML tags are not allowed")


def error_location(error: yaml.YAMLError) -> str:
    """Return the location of a YAML error, as in `line 3, column 7`."""
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark else "document"
