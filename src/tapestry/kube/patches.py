"""JSON Patch and JSON Merge Patch: apply them and compute the smallest one.

`strategic_merge` has the third patch format of an API server, which needs a schema.

- JSON Patch (RFC 6902) is a list of operations that succeed or fail as a whole: `apply_json_patch`.
- JSON Merge Patch (RFC 7386) contains the changed fields, and null for removed fields: `apply_merge_patch` applies it,
  `merge_patch` and `owned_patch` compute the smallest one.

Inputs are never changed. A result copies the containers above each change and shares the rest with the document and
the patch.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tapestry.kube.budget import charge
from tapestry.kube.objects import EMPTY_MAPPING, Object

MAX_OPERATIONS = 10_000
"""Limit of operations in one JSON Patch, as in kube-apiserver."""
MAX_COPIED_BYTES = 3 * 1024 * 1024
"""Limit of bytes, as JSON, that all copy operations of one JSON Patch may add, as in kube-apiserver."""

ELEMENTS_PER_UNIT = 1_000
"""Approximate number of list elements that are moved or copied in a microsecond."""

OPERATION_FIELDS = {
    "add": ("path", "value"),
    "remove": ("path",),
    "replace": ("path", "value"),
    "move": ("from", "path"),
    "copy": ("from", "path"),
    "test": ("path", "value"),
}
JSON_TYPES = {
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
    """The patch cannot be applied. The message names the location in the patch."""


class PatchTooLarge(PatchError):
    """The patch needs more work than one request may use."""


def json_type(value: Any) -> str:
    """Return the name of a JSON type in error messages: `an object`, `a list`."""
    return "an object" if isinstance(value, dict) else JSON_TYPES[type(value)]


# -- JSON Merge Patch


def apply_merge_patch(document: Any, patch: Any) -> Any:
    """Apply a merge patch. Lists are replaced as a whole. A patch that is not an object replaces the document."""
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
    """Return the smallest merge patch that changes `old` to `desired`; empty if they are equal.

    Null counts as absent because a merge patch cannot distinguish them.
    """
    if old == desired:
        return {}
    removed = {key: None for key, value in old.items() if value is not None and key not in desired}
    return removed | field_changes(old, desired, merge_patch)


def exact_map_patch(old: Mapping[str, Any] | None, desired: Mapping[str, Any]) -> Object:
    """Return `desired` with None for every other key of `old`, for a map that must have exactly these entries."""
    return {**dict.fromkeys(old or ()), **desired}


def owned_patch(cached: Mapping[str, Any], desired: Mapping[str, Any]) -> Object:
    """Return the smallest merge patch that sets the fields of `desired`; empty if they are set.

    Fields that `desired` does not mention belong to others and stay unchanged. None means absent. Lists are owned as a
    whole.
    """
    return field_changes(cached, desired, owned_patch)


def field_changes(
    old: Mapping[str, Any],
    desired: Mapping[str, Any],
    nested_patch: Callable[[Mapping[str, Any], Mapping[str, Any]], Object],
) -> Object:
    """Return the merge patch for the fields of `desired`. `nested_patch` compares nested objects."""
    patch = {}
    for key, value in desired.items():
        current = old.get(key)
        if current == value:
            continue
        if not isinstance(value, dict):
            patch[key] = value
        elif isinstance(current, dict):
            if change := nested_patch(current, value):
                patch[key] = change
        else:
            change = nested_patch(EMPTY_MAPPING, value)
            # A missing object equals an object that contains only None. It does not equal an empty object.
            if change or not value or current is not None:
                patch[key] = change
    return patch


# -- JSON Patch


def apply_json_patch(document: Any, operations: Any) -> Any:
    """Apply all `operations`, or none: raise PatchError for the first that fails."""
    if not isinstance(operations, list):
        raise PatchError(f"patch: a JSON Patch is a list of operations, not {json_type(operations)}")
    if len(operations) > MAX_OPERATIONS:
        raise PatchTooLarge(f"patch: {len(operations)} operations are over {MAX_OPERATIONS}; send several patches")
    patcher = JsonPatcher(document)
    for index, operation in enumerate(operations):
        if problem := operation_error(operation):
            raise PatchError(f"patch[{index}]: {problem}")
        try:
            patcher.apply(operation)
        except PatchError as error:
            raise PatchError(f"patch[{index}]: {operation['op']} {operation['path']}: {error}") from None
    return patcher.document


def operation_error(operation: Any) -> str:
    """Return the error of an invalid operation; empty if it is valid."""
    if not isinstance(operation, dict):
        return f"an operation is an object, not {json_type(operation)}"
    op = operation.get("op")
    if not isinstance(op, str) or op not in OPERATION_FIELDS:
        return f"op is not one of {', '.join(OPERATION_FIELDS)}"
    for name in OPERATION_FIELDS[op]:
        if name not in operation:
            return f"{op}: {name} is missing"
        if name != "value" and not isinstance(operation[name], str):
            return f"{op}: {name} is {json_type(operation[name])}, not a string"
    return ""


class JsonPatcher:
    """Apply operations to a document.

    A container is copied on its first change and changed in place after that. The total cost depends on the size of the
    document and the patch, not on the number of operations times the size.
    """

    def __init__(self, document: Any) -> None:
        self.document = document
        self._copied_containers: dict[int, Any] = {}
        """Containers that only this patcher uses, by id."""
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
                    raise PatchError("the value at this path is different")

    def _add(self, path: Pointer, value: Any) -> None:
        if not path:
            self.document = value
            return
        container, token = self._container(path[:-1]), path[-1]
        if isinstance(container, dict):
            container[token] = value
            return
        if not isinstance(container, list):
            raise PatchError(f"nothing can be added to {json_type(container)}")
        index = len(container) if token == "-" else int(token) if ARRAY_INDEX.fullmatch(token) else -1
        if not 0 <= index <= len(container):
            raise PatchError(f"{token!r} is not an index of a list of length {len(container)}")
        charge((len(container) - index) // ELEMENTS_PER_UNIT + 1)
        container.insert(index, value)

    def _remove(self, path: Pointer) -> None:
        if not path:
            raise PatchError("the whole document cannot be removed")
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
            raise PatchError("a value cannot be moved into itself")
        value = value_at_pointer(self.document, source)
        if path != source:
            self._remove(source)
            self._add(path, value)

    def _copy(self, source: Pointer) -> Any:
        text = msgspec.json.encode(value_at_pointer(self.document, source))
        self._copied_bytes += len(text)
        if self._copied_bytes > MAX_COPIED_BYTES:
            raise PatchError(f"the copies so far are {self._copied_bytes} bytes, over {MAX_COPIED_BYTES}")
        return msgspec.json.decode(text)  # a separate copy: the value at the source may change in place

    def _container(self, path: Pointer) -> Any:
        """Return the container at a path, copied so that it can be changed."""
        self.document = container = self._writable(self.document)
        for token in path:
            key = member_key(container, token)
            container[key] = child = self._writable(container[key])
            container = child
        return container

    def _writable(self, value: Any) -> Any:
        if not isinstance(value, dict | list) or id(value) in self._copied_containers:
            return value
        charge(len(value) // ELEMENTS_PER_UNIT + 1)
        copy = value.copy()
        self._copied_containers[id(copy)] = copy
        return copy


def parse_pointer(text: str) -> Pointer:
    """Return the reference tokens of a JSON pointer (RFC 6901)."""
    if text == "":
        return ()
    if not text.startswith("/"):
        raise PatchError(f"{text!r} is not a JSON pointer: it must start with /")
    if BAD_ESCAPE.search(text):
        raise PatchError(f"{text!r} is not a JSON pointer: ~ is written ~0 and / is written ~1")
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in text[1:].split("/"))


def value_at_pointer(document: Any, path: Pointer) -> Any:
    for token in path:
        document = document[member_key(document, token)]
    return document


def member_key(container: Any, token: str) -> Any:
    """Return the key or index of an existing member of a container."""
    if isinstance(container, dict) and token in container:
        return token
    if isinstance(container, list) and ARRAY_INDEX.fullmatch(token) and int(token) < len(container):
        return int(token)
    raise PatchError("the path does not exist")


def is_json_equal(left: Any, right: Any) -> bool:
    """Return True if the values are equal as JSON: 1 equals 1.0 but not true."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(is_json_equal(value, right[key]) for key, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(is_json_equal, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)
