"""Transforms that informers apply to objects before they store them.

A transform receives an object that has no other user yet, so it may change it in place.  It returns the object to
store, or a `View` of it.  It must keep the uid and resourceVersion: the informer detects changes by these.

Objects have many equal parts.  The pods of a Deployment differ in name, address and a few times; their labels, volumes,
tolerations and probes are equal.  `slim` stores such parts once, which halves the memory of a cache of pods.  This is
safe because stored objects are never changed.
"""

import sys
from collections.abc import Callable
from typing import Any

import msgspec

from tapestry.controller.store import T
from tapestry.kube.objects import Object

Transform = Callable[[Object], T]

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
MAX_SHARED_STRING = 64
"""Maximum characters of shared strings.  Longer strings are rarely equal."""
MAX_SHARED_BYTES = 256
"""Maximum JSON bytes of a part that is shared as a whole.  In a larger part, its parts are shared."""
MAX_SHARED_PARTS = 10_000
"""Maximum number of known parts.  Beyond that, all are dropped and frequent ones are soon known again."""

_shared_parts: dict[bytes, Object] = {}
_encode = msgspec.json.Encoder().encode
_intern = sys.intern


def slim(obj: Object) -> Object:
    """Remove fields that only the server and kubectl read, and share equal parts with other objects."""
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
    """Replace strings and small parts of a dict or list by equal ones that are already known."""
    items: Any = value.items() if type(value) is dict else enumerate(value)
    for key, child in items:
        kind = type(child)
        if kind is str:
            if len(child) <= MAX_SHARED_STRING:
                value[key] = _intern(child)
        elif kind is dict:
            text = _encode(child)  # distinguishes 1, true and 1.0, unlike ==
            if len(text) <= MAX_SHARED_BYTES:
                value[key] = _shared_parts.setdefault(text, child)
            else:
                _share(child)
        elif kind is list:
            _share(child)
