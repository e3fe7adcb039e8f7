"""Patches: what turns one JSON document into another.

Two of the three formats that an API server takes are here; `strategic` has the third, which needs a schema.

- JSON Patch (RFC 6902) is a list of operations, made or refused as a whole: `json_patched`.
- JSON Merge Patch (RFC 7386) is the fields that change, null where one goes: `merged` applies it, `merge_patch` and
  `owned_patch` find the smallest one.

Nothing that comes in is changed: a result is the spine above each change, built anew, and shares the rest with the
document and with the patch.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tapestry.kube.budget import charge
from tapestry.kube.objects import EMPTY_MAPPING, Object

MAX_OPERATIONS = 10_000
"""In one JSON Patch, as in kube-apiserver."""
MAX_COPIED_BYTES = 3 * 1024 * 1024
"""What all copy operations of one JSON Patch may add, as JSON, as in kube-apiserver."""

ELEMENTS_PER_UNIT = 1_000
"""Elements of a list that are moved or copied in a microsecond, about."""

OPERATION_FIELDS = {
    "add": ("path", "value"),
    "remove": ("path",),
    "replace": ("path", "value"),
    "move": ("from", "path"),
    "copy": ("from", "path"),
    "test": ("path", "value"),
}
JSON_TYPES = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}
ARRAY_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
BAD_ESCAPE = re.compile(r"~(?![01])")

Pointer = tuple[str, ...]


class PatchError(ValueError):
    """The patch cannot be applied; the message names the place in the patch."""


class PatchTooLarge(PatchError):
    """The patch asks for more work than anyone may ask for at once."""


def json_type(value: Any) -> str:
    """What an error calls it: `an object`, `a list`."""
    return JSON_TYPES[type(value)]


# -- JSON Merge Patch


def apply_merge_patch(document: Any, patch: Any) -> Any:
    """`document` after the merge patch.  Lists are replaced whole; a patch that is no object replaces the document."""
    if not isinstance(patch, dict):
        return patch
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = apply_merge_patch(result.get(key), value)
    return result


def merge_patch(old: Mapping[str, Any], desired: Mapping[str, Any]) -> Object:
    """The smallest merge patch that turns `old` into `wanted`; empty when they are equal.

    Null counts as absent, because a merge patch cannot tell them apart.
    """
    if old == desired:
        return {}
    gone = {key: None for key, had in old.items() if had is not None and key not in desired}
    return gone | field_changes(old, desired, merge_patch)


def exact_map_patch(old: Mapping[str, Any] | None, desired: Mapping[str, Any]) -> Object:
    """`wanted`, with None for what `old` has beside it: for a map that is to have these entries and no others."""
    return {**dict.fromkeys(old or ()), **desired}


def owned_patch(cached: Mapping[str, Any], desired: Mapping[str, Any]) -> Object:
    """The smallest merge patch that makes the fields in `wanted` so; empty when they are.

    What `wanted` does not mention belongs to others and is left alone.  A None in it means absent.  Lists are owned
    whole.
    """
    return field_changes(cached, desired, owned_patch)


def field_changes(
    old: Mapping[str, Any],
    desired: Mapping[str, Any],
    nested_patch: Callable[[Mapping[str, Any], Mapping[str, Any]], Object],
) -> Object:
    """The merge patch of the fields that `wanted` names; `inside` compares the objects below."""
    patch = {}
    for key, value in desired.items():
        had = old.get(key)
        if had == value:
            continue
        if not isinstance(value, dict):
            patch[key] = value
        elif isinstance(had, dict):
            if change := nested_patch(had, value):
                patch[key] = change
        else:
            change = nested_patch(EMPTY_MAPPING, value)
            # An object of nothing but Nones is satisfied by its own absence; an empty one has to be there.
            if change or not value or had is not None:
                patch[key] = change
    return patch


# -- JSON Patch


def apply_json_patch(document: Any, operations: Any) -> Any:
    """`document` after all `operations`; PatchError for the first that cannot be done, and then none is."""
    if not isinstance(operations, list):
        raise PatchError(f"patch: a JSON Patch is a list of operations, not {json_type(operations)}")
    if len(operations) > MAX_OPERATIONS:
        raise PatchTooLarge(f"patch: {len(operations)} operations are over {MAX_OPERATIONS}; send several patches")
    patching = JsonPatcher(document)
    for index, operation in enumerate(operations):
        if flaw := operation_error(operation):
            raise PatchError(f"patch[{index}]: {flaw}")
        try:
            patching.apply(operation)
        except PatchError as error:
            raise PatchError(f"patch[{index}]: {operation['op']} {operation['path']}: {error}") from None
    return patching.document


def operation_error(operation: Any) -> str:
    """Why this is no operation; empty when it is one."""
    if not isinstance(operation, dict):
        return f"an operation is an object, not {json_type(operation)}"
    op = operation.get("op")
    if not isinstance(op, str) or op not in OPERATION_FIELDS:
        return f"op is none of {', '.join(OPERATION_FIELDS)}"
    for name in OPERATION_FIELDS[op]:
        if name not in operation:
            return f"{op}: {name} is missing"
        if name != "value" and not isinstance(operation[name], str):
            return f"{op}: {name} is {json_type(operation[name])}, not a string"
    return ""


class JsonPatcher:
    """A document while operations are made.

    A container is copied when it is first changed, and changed in place from then on: all operations together cost
    what the document and the patch have, not what each operation would cost alone.
    """

    def __init__(self, document: Any) -> None:
        self.document = document
        self._copied_containers: dict[int, Any] = {}
        """The containers that nobody else holds, by their ids."""
        self._copied_bytes = 0

    def apply(self, operation: Object) -> None:
        path = parse_pointer(operation["path"])
        match operation["op"]:
            case "add":
                self._add(path, operation["value"])
            case "remove":
                self._remove(path)
            case "replace":
                self._replace(path, operation["value"])
            case "move":
                self._move(parse_pointer(operation["from"]), path)
            case "copy":
                self._add(path, self._copy(parse_pointer(operation["from"])))
            case _:
                if not is_json_equal(value_at_pointer(self.document, path), operation["value"]):
                    raise PatchError("the value there is another")

    def _add(self, path: Pointer, value: Any) -> None:
        if not path:
            self.document = value
            return
        container, step = self._container(path[:-1]), path[-1]
        if isinstance(container, dict):
            container[step] = value
            return
        if not isinstance(container, list):
            raise PatchError(f"nothing can be added to {json_type(container)}")
        index = len(container) if step == "-" else int(step) if ARRAY_INDEX.fullmatch(step) else -1
        if not 0 <= index <= len(container):
            raise PatchError(f"{step!r} is no index of a list of {len(container)}")
        charge((len(container) - index) // ELEMENTS_PER_UNIT + 1)
        container.insert(index, value)

    def _remove(self, path: Pointer) -> None:
        if not path:
            raise PatchError("the whole document cannot go")
        container = self._container(path[:-1])
        charge(len(container) // ELEMENTS_PER_UNIT + 1 if isinstance(container, list) else 1)
        del container[member_key(container, path[-1])]

    def _replace(self, path: Pointer, value: Any) -> None:
        if not path:
            self.document = value
            return
        container = self._container(path[:-1])
        container[member_key(container, path[-1])] = value

    def _move(self, source: Pointer, path: Pointer) -> None:
        if len(path) > len(source) and path[: len(source)] == source:
            raise PatchError("a value cannot move into itself")
        value = value_at_pointer(self.document, source)
        if path != source:
            self._remove(source)
            self._add(path, value)

    def _copy(self, source: Pointer) -> Any:
        text = msgspec.json.encode(value_at_pointer(self.document, source))
        self._copied_bytes += len(text)
        if self._copied_bytes > MAX_COPIED_BYTES:
            raise PatchError(f"the copies so far are {self._copied_bytes} bytes, over {MAX_COPIED_BYTES}")
        return msgspec.json.decode(text)  # of its own: what is at the source may change in place

    def _container(self, path: Pointer) -> Any:
        """What is at a path, and may be changed."""
        self.document = found = self._writable(self.document)
        for step in path:
            at = member_key(found, step)
            found[at] = below = self._writable(found[at])
            found = below
        return found

    def _writable(self, value: Any) -> Any:
        if not isinstance(value, dict | list) or id(value) in self._copied_containers:
            return value
        charge(len(value) // ELEMENTS_PER_UNIT + 1)
        copy = value.copy()
        self._copied_containers[id(copy)] = copy
        return copy


def parse_pointer(text: str) -> Pointer:
    """The steps of a JSON pointer (RFC 6901)."""
    if text == "":
        return ()
    if not text.startswith("/"):
        raise PatchError(f"{text!r} is no JSON pointer: it begins with /")
    if BAD_ESCAPE.search(text):
        raise PatchError(f"{text!r} is no JSON pointer: ~ is written ~0 and / is written ~1")
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in text[1:].split("/"))


def value_at_pointer(document: Any, path: Pointer) -> Any:
    for step in path:
        document = document[member_key(document, step)]
    return document


def member_key(container: Any, step: str) -> Any:
    """The key or the index of the member that `step` names, which must exist."""
    if isinstance(container, dict) and step in container:
        return step
    if isinstance(container, list) and ARRAY_INDEX.fullmatch(step) and int(step) < len(container):
        return int(step)
    raise PatchError("there is nothing there")


def is_json_equal(left: Any, right: Any) -> bool:
    """Equal as JSON, where true is not 1 although 1.0 is."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(is_json_equal(value, right[key]) for key, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(is_json_equal, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)
