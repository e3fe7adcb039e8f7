"""What an informer does to an object on its way into the store.

A transform is given an object that nobody else has seen yet, so it may change it in place, and returns what is kept.
However little that is, it has the name, namespace, uid and resourceVersion: by these the informer knows a change.
"""

import sys
from collections.abc import Callable
from typing import Any

from tapestry.kube.objects import Object

Transform = Callable[[Object], Object]

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
LONGEST_SHARED = 64
"""Longer strings are rarely equal to another object's."""


def slim(obj: Object) -> Object:
    """Drop what only the server and kubectl read, and share equal strings between objects."""
    metadata = obj["metadata"]
    metadata.pop("managedFields", None)
    if (annotations := metadata.get("annotations")) is not None:
        annotations.pop(LAST_APPLIED, None)
    _share(obj)
    return obj


def _share(value: Any) -> None:
    """Replace strings by their interned equals, in place: names, images and times recur in thousands of objects."""
    intern = sys.intern
    items: Any = value.items() if type(value) is dict else enumerate(value)
    for key, child in items:
        kind = type(child)
        if kind is str:
            if len(child) <= LONGEST_SHARED:
                value[key] = intern(child)
        elif kind is dict or kind is list:
            _share(child)
