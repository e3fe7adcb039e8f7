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

Fields = dict[str, Any]

ITSELF = "."
LEAF: Fields = {}
"""Below a key: this field and nothing under it."""
KINDS = {"f": 0, "k": 1, "v": 2, "i": 3}
"""The kinds of steps, in the order in which Kubernetes names fields."""


def is_member(node: Fields) -> bool:
    """Whether the field that the node stands for is in the set itself."""
    return not node or ITSELF in node


def as_member(node: Fields | None) -> Fields:
    return {ITSELF: LEAF, **node} if node and ITSELF not in node else node or LEAF


def union(left: Fields, right: Fields) -> Fields:
    if not left or not right:
        return left or right
    found = dict(left)
    for key, node in right.items():
        had = found.get(key)
        found[key] = node if had is None else joined(had, node)
    return found


def union_of(sets: Iterable[Fields]) -> Fields:
    """The union of many sets, by halves: each field is copied a few times, however many sets there are."""
    waiting = list(sets)
    while len(waiting) > 1:
        pairs = zip(waiting[::2], waiting[1::2], strict=False)
        odd = waiting[-1:] if len(waiting) % 2 else []
        waiting = [union(left, right) for left, right in pairs] + odd
    return waiting[0] if waiting else {}


def joined(left: Fields, right: Fields) -> Fields:
    if not left or not right:
        return as_member(left or right)
    return union(left, right)


def difference(left: Fields, right: Fields) -> Fields:
    """What is in `left` and not in `right`; a field in `right` does not take along what is below it."""
    if left.keys().isdisjoint(right):
        return left
    found = {}
    for key, node in left.items():
        other = right.get(key)
        rest = node if other is None else combined(node, other, keep=False)
        if rest is not None:
            found[key] = rest
    return found


def intersection(left: Fields, right: Fields) -> Fields:
    found = {}
    for key, node in left.items():
        other = right.get(key)
        common = None if other is None else combined(node, other, keep=True)
        if common is not None:
            found[key] = common
    return found


def combined(node: Fields, other: Fields, *, keep: bool) -> Fields | None:
    """What two nodes have in common, or what only the first has; None where that is nothing."""
    below = (intersection if keep else difference)(below_of(node), below_of(other))
    if is_member(node) and is_member(other) is keep:
        return {ITSELF: LEAF, **below} if below else LEAF
    return below or None


def below_of(node: Fields) -> Fields:
    return {key: each for key, each in node.items() if key != ITSELF} if ITSELF in node else node


def without_trees(left: Fields, right: Fields) -> Fields:
    """`left` without the fields of `right` and everything below them."""
    found = {}
    for key, node in left.items():
        other = right.get(key)
        if other is None:
            found[key] = node
        elif not is_member(other):
            below = without_trees(below_of(node), other)
            if below or is_member(node):
                found[key] = as_member(below) if is_member(node) else below
    return found


def paths_of(fields: Fields) -> Iterator[tuple[str, ...]]:
    """The fields in the order in which Kubernetes lists them: those of a level first, then what is below each."""
    ordered = sorted(below_of(fields), key=rank)
    yield from ((key,) for key in ordered if is_member(fields[key]))
    for key in ordered:
        yield from ((key, *rest) for rest in paths_of(fields[key]))


def rank(key: str) -> tuple[int, Any]:
    kind, _, text = key.partition(":")
    if kind == "k":
        return KINDS[kind], [(name, ranked(value)) for name, value in sorted(msgspec.json.decode(text).items())]
    return KINDS.get(kind, len(KINDS)), text if kind == "f" else ranked(msgspec.json.decode(text))


def ranked(value: Any) -> tuple[str, Any]:
    """Numbers before texts before truths: values of different kinds cannot be compared as they are."""
    kind = {float: "1", int: "1", str: "2", bool: "3"}.get(type(value), "4")
    return kind, value if kind != "4" else json.dumps(value)


def path_text(path: Sequence[str]) -> str:
    """As people read it: `.spec.containers[name="a"].image`."""
    return "".join(map(step_text, path))


def step_text(key: str) -> str:
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


def key_of(values: dict[str, Any]) -> str:
    """The step to the item of a list that has these values in its key fields."""
    return "k:" + msgspec.json.encode(values, order="sorted").decode()


def value_key(value: Any) -> str:
    """The step to an item of a set."""
    return "v:" + msgspec.json.encode(value).decode()


def read(written: Any) -> Fields:
    """A set that somebody else wrote down, each step in the one form that we compare; ValueError where it is none.

    A kind of step that we do not know is left out, with all that is below.
    """
    if not isinstance(written, dict):
        raise ValueError(f"fieldsV1: {written!r} is not a set of fields")
    found: Fields = {}
    for key, node in written.items():
        kind, colon, text = key.partition(":")
        if key == ITSELF:
            found[key] = LEAF
        elif not colon:
            raise ValueError(f"fieldsV1: {key!r} has no colon")
        elif kind in KINDS:
            found[canonical(kind, text)] = read(node)
    return found


def canonical(kind: str, text: str) -> str:
    if kind == "f":
        return f"f:{text}"
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"fieldsV1: {kind}:{text} is not JSON: {error}") from error
    if kind == "k" and not isinstance(value, dict):
        raise ValueError(f"fieldsV1: k:{text} is not the key of an item")
    return key_of(value) if kind == "k" else f"{kind}:{msgspec.json.encode(value).decode()}"
