"""What an informer does to an object on its way into the store.

A transform is given an object that nobody else has seen yet, so it may change it in place, and returns what is kept.
However little that is, it has the name, namespace, uid and resourceVersion: by these the informer knows a change.

Most of an object is not its own.  The pods of a Deployment differ in a name, an address and a few times; their labels,
volumes, tolerations and probes are alike.  `slim` keeps such parts once, however many objects they are in: a cache of
pods is half as large for it.  That objects are never changed once they are in a store is what makes it safe.
"""

import sys
from collections.abc import Callable
from typing import Any

import msgspec

from tapestry.kube.objects import Object

Transform = Callable[[Object], Object]

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
MAX_SHARED_STRING = 64
"""Characters: longer strings are rarely equal to another object's."""
MAX_SHARED_BYTES = 256
"""Bytes of JSON: a part up to this size is shared whole or not at all, in a larger one its parts are."""
MAX_SHARED_PARTS = 10_000
"""Parts that are looked for; past that all are forgotten, and those that recur are soon known again."""

_shared_parts: dict[bytes, Object] = {}
_encode = msgspec.json.Encoder().encode
_intern = sys.intern


def slim(obj: Object) -> Object:
    """Drop what only the server and kubectl read, and share with other objects what is equal in them."""
    metadata = obj["metadata"]
    metadata.pop("managedFields", None)
    if (annotations := metadata.get("annotations")) is not None:
        annotations.pop(LAST_APPLIED, None)
    if len(_shared_parts) > MAX_SHARED_PARTS:
        _shared_parts.clear()
    for section in obj.values():
        if type(section) is dict or type(section) is list:
            _share(section)
    return obj


def _share(value: Any) -> None:
    """Replace strings and small parts of a dict or a list by what is equal to them and known already."""
    items: Any = value.items() if type(value) is dict else enumerate(value)
    for key, child in items:
        kind = type(child)
        if kind is str:
            if len(child) <= MAX_SHARED_STRING:
                value[key] = _intern(child)
        elif kind is dict:
            text = _encode(child)  # tells 1 from true and from 1.0, which == does not
            if len(text) <= MAX_SHARED_BYTES:
                value[key] = _shared_parts.setdefault(text, child)
            else:
                _share(child)
        elif kind is list:
            _share(child)
