"""Kubernetes objects as plain dicts: accessors, references, digests and copies with changes.

An object read from a server belongs to a cache and is shared by all its readers. Never change it in place. To change a
value, copy the dicts above it (`with_value`) and share the rest.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from tapestry.kube.resources import Resource

Object = dict[str, Any]

EMPTY_MAPPING: Mapping[str, Any] = {}


def object_named(name: str, namespace: str | None = None) -> Object:
    """Return an object that has only a name, for verbs that take an object."""
    return {"metadata": {"name": name, "namespace": namespace} if namespace else {"name": name}}


def name_of(obj: Object) -> str:
    name: str = obj["metadata"]["name"]
    return name


def namespace_of(obj: Object) -> str | None:
    return obj["metadata"].get("namespace") or None


def uid_of(obj: Object) -> str:
    uid: str = obj["metadata"].get("uid", "")
    return uid


def uid_from_bits(bits: int) -> str:
    """Return the version 4 UUID of 128 random bits. It is several times faster than `uuid.UUID`."""
    digits = f"{bits:032x}"
    variant = "89ab"[bits >> 60 & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def version_of(obj: Object) -> str:
    """Return the resourceVersion; empty for an object that was never stored."""
    version: str = obj["metadata"].get("resourceVersion", "")
    return version


class View(msgspec.Struct, frozen=True, gc=False):
    """Base class of typed views, in which a cache may hold objects instead of dicts."""

    uid: str
    version: str
    """The resourceVersion."""


def identity_of(obj: Object | View) -> tuple[str, str]:
    """Return the uid and resourceVersion of a cached object."""
    return (uid_of(obj), version_of(obj)) if isinstance(obj, dict) else (obj.uid, obj.version)


def labels_of(obj: Object) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or EMPTY_MAPPING


def annotations_of(obj: Object) -> Mapping[str, str]:
    return obj["metadata"].get("annotations") or EMPTY_MAPPING


def is_deleting(obj: Object) -> bool:
    return obj["metadata"].get("deletionTimestamp") is not None


def key_of(obj: Object) -> str:
    """Return `namespace/name`, or `name` for a cluster-scoped object: the key in stores and queues."""
    metadata = obj["metadata"]
    namespace = metadata.get("namespace")
    name: str = metadata["name"]
    return f"{namespace}/{name}" if namespace else name


def split_key(key: str) -> tuple[str | None, str]:
    """Return `(namespace, name)` of a key. The namespace is None for a cluster-scoped object."""
    namespace, slash, name = key.rpartition("/")
    return (namespace if slash else None), name


def value_at(obj: Any, *path: str | int, default: Any = None) -> Any:
    """Return the value at `path`, or `default` if any part of the path is missing or null."""
    for key in path:
        if isinstance(obj, dict):
            obj = obj.get(key)
        elif isinstance(obj, list) and isinstance(key, int) and -len(obj) <= key < len(obj):
            obj = obj[key]
        else:
            return default
        if obj is None:
            return default
    return obj


def with_value(obj: Object, path: tuple[str, ...], value: Any) -> Object:
    """Return a copy of `obj` with `value` at `path`. Everything outside the path is shared with `obj`."""
    head, *rest = path
    return {**obj, head: with_value(obj.get(head) or {}, tuple(rest), value) if rest else value}


def without_field(obj: Object, *path: str) -> Object:
    """Return a copy of `obj` without the field at `path`; `obj` itself if it has no such field."""
    head, *rest = path
    if head not in obj:
        return obj
    if not rest:
        return {key: value for key, value in obj.items() if key != head}
    child = obj[head]
    if not isinstance(child, dict):
        return obj
    reduced = without_field(child, *rest)
    return obj if reduced is child else {**obj, head: reduced}


def object_reference(obj: Object) -> Object:
    metadata = obj["metadata"]
    reference = {
        "apiVersion": obj.get("apiVersion"),
        "kind": obj.get("kind"),
        "namespace": metadata.get("namespace"),
        "name": metadata.get("name"),
        "uid": metadata.get("uid"),
        "resourceVersion": metadata.get("resourceVersion"),
    }
    return {key: value for key, value in reference.items() if value}


def owner_reference(owner: Object, *, controller: bool = True, block_deletion: bool = True) -> Object:
    """Return an owner reference to `owner`. Raise ValueError if `owner` has no UID, which only created objects have."""
    uid = owner["metadata"].get("uid")
    if not uid:
        raise ValueError(f"metadata.uid: {key_of(owner)} has none; only a created object can own another")
    reference: Object = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": uid,
    }
    if controller:
        reference["controller"] = True
    if block_deletion:
        reference["blockOwnerDeletion"] = True
    return reference


def owned_object(owner: Object, resource: Resource, content: Object, *, name: str | None = None) -> Object:
    """Return a new object that `owner` controls, in its namespace and by default with its name."""
    metadata: Object = {"name": name or name_of(owner), "ownerReferences": [owner_reference(owner)]}
    if resource.namespaced and (namespace := namespace_of(owner)):
        metadata["namespace"] = namespace
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}


def controller_of(obj: Object) -> Object | None:
    """Return the owner reference of the controller that manages the object."""
    for owner in obj["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            reference: Object = owner
            return reference
    return None


def is_owned_by(obj: Object, owner: Object) -> bool:
    """Return True if `obj` refers to `owner` by UID. A later object with the same name does not count."""
    uid = uid_of(owner)
    return bool(uid) and any(ref.get("uid") == uid for ref in obj["metadata"].get("ownerReferences") or ())


def with_type_meta(resource: Resource, obj: Object) -> Object:
    """Return `obj` with the apiVersion and kind of `resource`, which items of a list do not have."""
    if obj.get("kind") == resource.kind and obj.get("apiVersion") == resource.api_version:
        return obj
    identity = {"apiVersion": resource.api_version, "kind": resource.kind}
    return {**identity, **obj, **identity}  # first for readable output, last to override


_ENCODER = msgspec.json.Encoder(order="sorted")


def digest_of(value: Any) -> str:
    """Return a digest of 20 hex characters. Equal values have equal digests, independent of key order."""
    return blake2b(_ENCODER.encode(value), digest_size=10).hexdigest()
