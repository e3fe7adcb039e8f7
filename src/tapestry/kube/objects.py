"""Kubernetes objects as plain dicts.

An object read from a server belongs to the cache that holds it and is shared by everyone who reads it: it is never
changed in place.  To change something, rebuild the spine above it (`with_value`) and share the rest.
"""

from collections.abc import Mapping
from typing import Any

from tapestry.kube.resources import Resource

Object = dict[str, Any]

EMPTY_MAPPING: Mapping[str, Any] = {}


def object_named(name: str, namespace: str | None = None) -> Object:
    """An object of which only the name is known, for verbs that take one: whatever stands under that name is meant."""
    return {"metadata": {"name": name, "namespace": namespace} if namespace else {"name": name}}


def name_of(obj: Object) -> str:
    name: str = obj["metadata"]["name"]
    return name


def namespace_of(obj: Object) -> str | None:
    """The namespace, or None for a cluster-scoped object."""
    return obj["metadata"].get("namespace") or None


def uid_of(obj: Object) -> str:
    uid: str = obj["metadata"].get("uid", "")
    return uid


def uid_from_bits(bits: int) -> str:
    """The UUID of version 4 that 128 random bits make; several times faster than `uuid.UUID`."""
    digits = f"{bits:032x}"
    variant = "89ab"[bits >> 60 & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def version_of(obj: Object) -> str:
    """The resourceVersion; empty for an object that no server has seen."""
    version: str = obj["metadata"].get("resourceVersion", "")
    return version


def labels_of(obj: Object) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or EMPTY_MAPPING


def annotations_of(obj: Object) -> Mapping[str, str]:
    return obj["metadata"].get("annotations") or EMPTY_MAPPING


def is_deleting(obj: Object) -> bool:
    return obj["metadata"].get("deletionTimestamp") is not None


def key_of(obj: Object) -> str:
    """`namespace/name`, or `name` for a cluster-scoped object: how stores and queues name an object."""
    metadata = obj["metadata"]
    namespace = metadata.get("namespace")
    name: str = metadata["name"]
    return f"{namespace}/{name}" if namespace else name


def split_key(key: str) -> tuple[str | None, str]:
    """`(namespace, name)` of a key; the namespace is None for a cluster-scoped object."""
    namespace, slash, name = key.rpartition("/")
    return (namespace if slash else None), name


def value_at(obj: Any, *path: str | int, default: Any = None) -> Any:
    """The value at `path`, or `default` where any step is missing or null."""
    for step in path:
        if isinstance(obj, dict):
            obj = obj.get(step)
        elif isinstance(obj, list) and isinstance(step, int) and -len(obj) <= step < len(obj):
            obj = obj[step]
        else:
            return default
        if obj is None:
            return default
    return obj


def with_value(obj: Object, path: tuple[str, ...], value: Any) -> Object:
    """A copy of `obj` with `value` at `path`; everything beside the path is shared with `obj`."""
    head, *rest = path
    return {**obj, head: with_value(obj.get(head) or {}, tuple(rest), value) if rest else value}


def without_field(obj: Object, *path: str) -> Object:
    """A copy of `obj` without the field at `path`; `obj` itself when it has none."""
    head, *rest = path
    if head not in obj:
        return obj
    if not rest:
        return {key: value for key, value in obj.items() if key != head}
    child = obj[head]
    if not isinstance(child, dict):
        return obj
    smaller = without_field(child, *rest)
    return obj if smaller is child else {**obj, head: smaller}


def object_reference(obj: Object) -> Object:
    """An ObjectReference, as events and bindings use it."""
    metadata = obj["metadata"]
    found = {
        "apiVersion": obj.get("apiVersion"),
        "kind": obj.get("kind"),
        "namespace": metadata.get("namespace"),
        "name": metadata.get("name"),
        "uid": metadata.get("uid"),
        "resourceVersion": metadata.get("resourceVersion"),
    }
    return {key: value for key, value in found.items() if value}


def owner_reference(owner: Object, *, controller: bool = True, block_deletion: bool = True) -> Object:
    """An owner reference to `owner`, which must have been created already: the UID is the point of it."""
    uid = owner["metadata"].get("uid")
    if not uid:
        raise ValueError(f"metadata.uid: {key_of(owner)} has none; only a created object can own another")
    found: Object = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": uid,
    }
    if controller:
        found["controller"] = True
    if block_deletion:
        found["blockOwnerDeletion"] = True
    return found


def owned_object(owner: Object, resource: Resource, content: Object, *, name: str | None = None) -> Object:
    """A new object that `owner` controls, in its namespace and, unless said otherwise, under its name."""
    metadata: Object = {"name": name or name_of(owner), "ownerReferences": [owner_reference(owner)]}
    if resource.namespaced and (namespace := namespace_of(owner)):
        metadata["namespace"] = namespace
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}


def controller_of(obj: Object) -> Object | None:
    """The owner reference of the object's managing controller."""
    for owner in obj["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            found: Object = owner
            return found
    return None


def is_owned_by(obj: Object, owner: Object) -> bool:
    """Whether `obj` names `owner` by UID; a namesake that came later does not count."""
    uid = uid_of(owner)
    return bool(uid) and any(ref.get("uid") == uid for ref in obj["metadata"].get("ownerReferences") or ())


def with_type_meta(resource: Resource, obj: Object) -> Object:
    """`obj` with the apiVersion and kind of `resource`: items of a list carry neither."""
    if obj.get("kind") == resource.kind and obj.get("apiVersion") == resource.api_version:
        return obj
    identity = {"apiVersion": resource.api_version, "kind": resource.kind}
    return {**identity, **obj, **identity}  # in front for people who read it, and at the end to prevail
