"""Sets of fields, in the form in which Kubernetes writes them down (FieldsV1), and what can be done with them.

A set is a tree of plain dicts.  A key names a step down: `f:name` to a field, `k:{"name":"a"}` to the item of a list
that has that key, `v:"x"` to the item of a set, `i:0` to an index.  Below a key, `{}` says that the field is in the set
and nothing below it is; `.` among other keys says that the field itself is, too:

    {"f:metadata": {"f:labels": {".": {}, "f:app": {}}}}     has .metadata.labels and .metadata.labels.app

The outermost dict is no field: `{}` is the empty set there.  Sets are never changed, and share what they can.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

FieldSet = dict[str, Any]

SELF = "."
LEAF: FieldSet = {}
"""Below a key: this field and nothing under it."""
PATH_ELEMENT_RANKS = {"f": 0, "k": 1, "v": 2, "i": 3}
"""The kinds of steps, in the order in which Kubernetes names fields."""


def is_member(node: FieldSet) -> bool:
    """Whether the field that the node stands for is in the set itself."""
    return not node or SELF in node


def with_self(node: FieldSet | None) -> FieldSet:
    return {SELF: LEAF, **node} if node and SELF not in node else node or LEAF


def union(left: FieldSet, right: FieldSet) -> FieldSet:
    if not left or not right:
        return left or right
    found = dict(left)
    for key, node in right.items():
        had = found.get(key)
        found[key] = node if had is None else union_nodes(had, node)
    return found


def union_all(sets: Iterable[FieldSet]) -> FieldSet:
    """The union of many sets, by halves: each field is copied a few times, however many sets there are."""
    waiting = list(sets)
    while len(waiting) > 1:
        pairs = zip(waiting[::2], waiting[1::2], strict=False)
        odd = waiting[-1:] if len(waiting) % 2 else []
        waiting = [union(left, right) for left, right in pairs] + odd
    return waiting[0] if waiting else {}


def union_nodes(left: FieldSet, right: FieldSet) -> FieldSet:
    if not left or not right:
        return with_self(left or right)
    return union(left, right)


def field_difference(left: FieldSet, right: FieldSet) -> FieldSet:
    """What is in `left` and not in `right`; a field in `right` does not take along what is below it."""
    if left.keys().isdisjoint(right):
        return left
    found = {}
    for key, node in left.items():
        other = right.get(key)
        rest = node if other is None else combine_nodes(node, other, keep=False)
        if rest is not None:
            found[key] = rest
    return found


def intersection(left: FieldSet, right: FieldSet) -> FieldSet:
    found = {}
    for key, node in left.items():
        other = right.get(key)
        common = None if other is None else combine_nodes(node, other, keep=True)
        if common is not None:
            found[key] = common
    return found


def combine_nodes(node: FieldSet, other: FieldSet, *, keep: bool) -> FieldSet | None:
    """What two nodes have in common, or what only the first has; None where that is nothing."""
    below = (intersection if keep else field_difference)(children_of(node), children_of(other))
    if is_member(node) and is_member(other) is keep:
        return {SELF: LEAF, **below} if below else LEAF
    return below or None


def children_of(node: FieldSet) -> FieldSet:
    return {key: each for key, each in node.items() if key != SELF} if SELF in node else node


def recursive_difference(left: FieldSet, right: FieldSet) -> FieldSet:
    """`left` without the fields of `right` and everything below them."""
    found = {}
    for key, node in left.items():
        other = right.get(key)
        if other is None:
            found[key] = node
        elif not is_member(other):
            below = recursive_difference(children_of(node), other)
            if below or is_member(node):
                found[key] = with_self(below) if is_member(node) else below
    return found


def field_paths(fields: FieldSet) -> Iterator[tuple[str, ...]]:
    """The fields in the order in which Kubernetes lists them: those of a level first, then what is below each."""
    ordered = sorted(children_of(fields), key=path_element_sort_key)
    yield from ((key,) for key in ordered if is_member(fields[key]))
    for key in ordered:
        yield from ((key, *rest) for rest in field_paths(fields[key]))


def path_element_sort_key(key: str) -> tuple[int, Any]:
    kind, _, text = key.partition(":")
    if kind == "k":
        return PATH_ELEMENT_RANKS[kind], [
            (name, value_sort_key(value)) for name, value in sorted(msgspec.json.decode(text).items())
        ]
    return PATH_ELEMENT_RANKS.get(kind, len(PATH_ELEMENT_RANKS)), text if kind == "f" else value_sort_key(
        msgspec.json.decode(text)
    )


def value_sort_key(value: Any) -> tuple[str, Any]:
    """Numbers before texts before truths: values of different kinds cannot be compared as they are."""
    kind = {float: "1", int: "1", str: "2", bool: "3"}.get(type(value), "4")
    return kind, value if kind != "4" else json.dumps(value)


def path_text(path: Sequence[str]) -> str:
    """As people read it: `.spec.containers[name="a"].image`."""
    return "".join(map(path_element_text, path))


def path_element_text(key: str) -> str:
    kind, _, text = key.partition(":")
    match kind:
        case "f":
            return f".{text}"
        case "k":
            return (
                "[" + ",".join(f"{name}={json.dumps(each)}" for name, each in msgspec.json.decode(text).items()) + "]"
            )
        case "v":
            return f"[={text}]"
    return f"[{text}]"


def list_item_key(values: dict[str, Any]) -> str:
    """The step to the item of a list that has these values in its key fields."""
    return "k:" + msgspec.json.encode(values, order="sorted").decode()


def set_item_key(value: Any) -> str:
    """The step to an item of a set."""
    return "v:" + msgspec.json.encode(value).decode()


def decode_field_set(encoded: Any) -> FieldSet:
    """A set that somebody else wrote down, each step in the one form that we compare; ValueError where it is none.

    A kind of step that we do not know is left out, with all that is below.
    """
    if not isinstance(encoded, dict):
        raise ValueError(f"fieldsV1: {encoded!r} is not a set of fields")
    found: FieldSet = {}
    for key, node in encoded.items():
        kind, colon, text = key.partition(":")
        if key == SELF:
            found[key] = LEAF
        elif not colon:
            raise ValueError(f"fieldsV1: {key!r} has no colon")
        elif kind in PATH_ELEMENT_RANKS:
            found[canonical_path_element(kind, text)] = decode_field_set(node)
    return found


def canonical_path_element(kind: str, text: str) -> str:
    if kind == "f":
        return f"f:{text}"
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"fieldsV1: {kind}:{text} is not JSON: {error}") from error
    if kind == "k" and not isinstance(value, dict):
        raise ValueError(f"fieldsV1: k:{text} is not the key of an item")
    return list_item_key(value) if kind == "k" else f"{kind}:{msgspec.json.encode(value).decode()}"
