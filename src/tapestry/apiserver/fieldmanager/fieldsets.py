"""Field sets in the FieldsV1 format and the set operations on them.

A field set is a tree of plain dicts. Each key is a path element: `f:name` is a field, `k:{"name":"a"}` is the list item
with that key, `v:"x"` is an item of a set, `i:0` is an index. A value of `{}` means that the field is in the set and
none of its children are. The key `.` means that the field itself is in the set in addition to the listed children:

    {"f:metadata": {"f:labels": {".": {}, "f:app": {}}}}     has .metadata.labels and .metadata.labels.app

The outermost dict is not a field: `{}` is the empty set there. Field sets are immutable and share subtrees.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

FieldSet = dict[str, Any]

SELF = "."
LEAF: FieldSet = {}
"""Value of a key whose field is in the set without children."""
PATH_ELEMENT_RANKS = {"f": 0, "k": 1, "v": 2, "i": 3}
"""Types of path elements, in the order in which Kubernetes lists fields."""


def is_member(node: FieldSet) -> bool:
    """Return True if the field of this node is itself in the set."""
    return not node or SELF in node


def with_self(node: FieldSet | None) -> FieldSet:
    return {SELF: LEAF, **node} if node and SELF not in node else node or LEAF


def union(left: FieldSet, right: FieldSet) -> FieldSet:
    if not left or not right:
        return left or right
    merged = dict(left)
    for key, node in right.items():
        existing = merged.get(key)
        merged[key] = node if existing is None else union_nodes(existing, node)
    return merged


def union_all(sets: Iterable[FieldSet]) -> FieldSet:
    """Return the union of many sets, merged pairwise so that each field is copied only O(log n) times."""
    pending = list(sets)
    while len(pending) > 1:
        pairs = zip(pending[::2], pending[1::2], strict=False)
        unpaired = pending[-1:] if len(pending) % 2 else []
        pending = [union(left, right) for left, right in pairs] + unpaired
    return pending[0] if pending else {}


def union_nodes(left: FieldSet, right: FieldSet) -> FieldSet:
    if not left or not right:
        return with_self(left or right)
    return union(left, right)


def field_difference(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return the fields of `left` that are not in `right`. Children of a field in `right` are not removed."""
    if left.keys().isdisjoint(right):
        return left
    difference = {}
    for key, node in left.items():
        other = right.get(key)
        rest = node if other is None else combine_nodes(node, other, keep=False)
        if rest is not None:
            difference[key] = rest
    return difference


def intersection(left: FieldSet, right: FieldSet) -> FieldSet:
    shared = {}
    for key, node in left.items():
        other = right.get(key)
        common = None if other is None else combine_nodes(node, other, keep=True)
        if common is not None:
            shared[key] = common
    return shared


def combine_nodes(node: FieldSet, other: FieldSet, *, keep: bool) -> FieldSet | None:
    """Return the intersection (`keep`) or the difference of two nodes; None if it is empty."""
    children = (intersection if keep else field_difference)(children_of(node), children_of(other))
    if is_member(node) and is_member(other) is keep:
        return {SELF: LEAF, **children} if children else LEAF
    return children or None


def children_of(node: FieldSet) -> FieldSet:
    return {key: each for key, each in node.items() if key != SELF} if SELF in node else node


def recursive_difference(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return `left` without the fields of `right` and without their children."""
    difference = {}
    for key, node in left.items():
        other = right.get(key)
        if other is None:
            difference[key] = node
        elif not is_member(other):
            children = recursive_difference(children_of(node), other)
            if children or is_member(node):
                difference[key] = with_self(children) if is_member(node) else children
    return difference


def field_paths(fields: FieldSet) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all fields in the order of Kubernetes: the fields of one level first, then their children."""
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
    """Return a sort key that orders numbers before strings before booleans."""
    kind = {float: "1", int: "1", str: "2", bool: "3"}.get(type(value), "4")
    return kind, value if kind != "4" else json.dumps(value)


def path_text(path: Sequence[str]) -> str:
    """Return the path as shown to users: `.spec.containers[name="a"].image`."""
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
    """Return the path element of the list item with these key fields."""
    return "k:" + msgspec.json.encode(values, order="sorted").decode()


def set_item_key(value: Any) -> str:
    """Return the path element of an item of a set."""
    return "v:" + msgspec.json.encode(value).decode()


def decode_field_set(encoded: Any) -> FieldSet:
    """Decode a FieldsV1 value into its canonical form. Raise ValueError if it is malformed.

    Path elements of an unknown type are dropped together with their children.
    """
    if not isinstance(encoded, dict):
        raise ValueError(f"fieldsV1: {encoded!r} is not a set of fields")
    decoded: FieldSet = {}
    for key, node in encoded.items():
        kind, colon, text = key.partition(":")
        if key == SELF:
            decoded[key] = LEAF
        elif not colon:
            raise ValueError(f"fieldsV1: {key!r} has no colon")
        elif kind in PATH_ELEMENT_RANKS:
            decoded[canonical_path_element(kind, text)] = decode_field_set(node)
    return decoded


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
