"""What an informer does to an object on its way into the store.

A transform is given an object that nobody else has seen yet, so it may change it in place, and returns what is kept.

Most of an object is not its own.  The pods of a Deployment differ in a name, an address and a few times; their labels,
volumes, tolerations and probes are alike.  `slim` keeps such parts once, however many objects they are in: a cache of
pods is a third smaller for it.  That objects are never changed once they are in a store is what makes it safe.
"""

import sys
from collections.abc import Callable
from typing import Any

import msgspec

from tapestry.kube.objects import Object

Transform = Callable[[Object], Object]

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
LONGEST_SHARED = 64
"""Characters: longer strings are rarely equal to another object's."""
LARGEST_SHARED = 512
"""Bytes of JSON: larger parts are rarely equal to another object's, though what is in them may be."""
REMEMBERED = 10_000
"""Parts that are looked for; past that all are forgotten, and what recurs is soon known again."""

_encode = msgspec.json.Encoder().encode
_known: dict[bytes, Object] = {}


def slim(obj: Object) -> Object:
    """Drop what only the server and kubectl read, and share with other objects what is equal in them."""
    metadata = obj["metadata"]
    metadata.pop("managedFields", None)
    if (annotations := metadata.get("annotations")) is not None:
        annotations.pop(LAST_APPLIED, None)
    if len(_known) > REMEMBERED:
        _known.clear()
    for field, section in obj.items():
        if type(section) is dict:
            _share_within(section)  # a whole spec or status has no equal: do not even look
        else:
            obj[field] = _shared(section)
    return obj


def _share_within(part: Object) -> None:
    for key, child in part.items():
        part[key] = _shared(child)


def _shared(value: Any) -> Any:
    """`value`, or what is equal to it and known already."""
    kind = type(value)
    if kind is str:
        return sys.intern(value) if len(value) <= LONGEST_SHARED else value
    if kind is list:
        return [_shared(each) for each in value]
    if kind is not dict:
        return value
    text = _encode(value)  # tells 1 from true and from 1.0, which == does not
    if len(text) <= LARGEST_SHARED:
        known = _known.get(text)
        if known is not None:
            return known
        _known[text] = value
    _share_within(value)
    return value
