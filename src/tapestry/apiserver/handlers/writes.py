"""Rules for writes that hold for every kind. Pure.

    created_object      the object that a POST stores
    updated_object      the object that a PUT or a PATCH stores
    deleted_object      the object after a DELETE: marked as deleting, or None

Each raises the same error as Kubernetes.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.requests import without_empty_fields
from tapestry.apiserver.core.resource_registry import (
    DELETION_FINALIZERS,
    ORPHANS_BY_DEFAULT,
    REQUIRES_RESOURCE_VERSION,
    STATUS_WRITE_KEEPS_METADATA,
    ResourceInfo,
)
from tapestry.apiserver.handlers.partial_updates import PARTIAL_UPDATES
from tapestry.kube.errors import ServerError
from tapestry.kube.objects import Object, is_deleting, name_of, uid_of, value_at, version_of, with_value, without_field
from tapestry.kube.times import parse_time, timestamp

SERVER_OWNED_METADATA = frozenset(
    {
        "uid",
        "creationTimestamp",
        "generation",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "resourceVersion",
        "selfLink",
    }
)
MAX_GRACE_SECONDS = 2**31
"""Maximum grace period in seconds (68 years), so that clients can parse the deletionTimestamp."""
FINISHED_PHASES = ("Succeeded", "Failed")
FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
PROPAGATION_FINALIZERS = {"Foreground": FOREGROUND, "Orphan": ORPHAN}


def created_object(
    info: ResourceInfo, desired: Object, *, uid: str, now: datetime, unrestricted: bool = False
) -> Object:
    """Return the object to store.  It has the status of the request only if `unrestricted`."""
    if expected_version(desired):
        raise ServerError(500, "InternalError", "resourceVersion should not be set on objects to be created")
    metadata = {**client_metadata(desired), "uid": uid, "creationTimestamp": timestamp(now)}
    if info.has_generation:
        metadata["generation"] = 1
    result = {**desired, "metadata": metadata}
    # A kubelet registers its Node together with the status.
    if info.has_status and not unrestricted and info.resource.plural != "nodes":
        result = without_field(result, "status")
    if info.initial_status is None:
        return result
    return {**result, "status": {**info.initial_status, **result.get("status", {})}}


def updated_object(
    info: ResourceInfo, current: Object, desired: Object, subresource: str = "", *, unrestricted: bool = False
) -> Object:
    """Return the object after an update, or `current` itself if nothing changes.

    A write to the object keeps the status, and a write to the status keeps everything else, unless `unrestricted`.
    """
    check_identity(info, current, desired)
    owned = {key: value for key, value in current["metadata"].items() if key in SERVER_OWNED_METADATA}
    metadata = {**client_metadata(desired), **owned}
    part = PARTIAL_UPDATES.get((info.resource.name, subresource))
    if subresource == "finalize":
        result = {**current, "spec": desired.get("spec") or {}}
    elif part is not None and not unrestricted:
        result = part(current, {**desired, "metadata": metadata})
    elif unrestricted or not info.has_status:
        result = {**desired, "metadata": metadata}
    elif subresource == "status":
        result = with_status_of(desired, {**current, "metadata": status_metadata(info, current, metadata)})
    else:
        result = with_status_of(current, {**desired, "metadata": metadata})
    if info.resource.name == "namespaces" and subresource != "finalize":
        result = {**result, "spec": current.get("spec", {})}  # the spec of a namespace has only finalizers
    if result == current:
        return current
    check_finalizers(info, current, result)
    if not info.has_generation or subresource == "binding":
        return result
    if generation_content(info, result) == generation_content(info, current):
        return result
    return {**result, "metadata": next_generation(result["metadata"])}


def is_removable(obj: Object) -> bool:
    """Return whether a deleting object can be removed: no finalizers, and no grace period for the kubelet."""
    metadata = obj["metadata"]
    if not is_deleting(obj) or metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds"):
        return False
    return not value_at(obj, "spec", "finalizers") or obj.get("kind") != "Namespace"


def deleted_object(info: ResourceInfo, current: Object, options: Mapping[str, Any], now: datetime) -> Object | None:
    """Return the object marked as deleting, None to remove it now, or `current` itself if nothing changes."""
    check_preconditions(info, current, options.get("preconditions") or {})
    metadata = current["metadata"]
    finalizers = deletion_finalizers(info, metadata, options)
    grace = grace_seconds(info, current, options.get("gracePeriodSeconds"))
    if (
        not grace
        and not finalizers
        and not (info.resource.name == "namespaces" and value_at(current, "spec", "finalizers"))
    ):
        return None
    if is_deleting(current):
        is_shortened = options.get("gracePeriodSeconds") is not None and grace < metadata.get(
            "deletionGracePeriodSeconds", 0
        )
        if not is_shortened and finalizers == metadata.get("finalizers", []):
            return current
        marked = {**metadata, **(shortened_grace(metadata, grace, now) if is_shortened else {})}
    else:
        until = timestamp(now + timedelta(seconds=grace))
        marked = {**next_generation(metadata), "deletionTimestamp": until, "deletionGracePeriodSeconds": grace}
    left = {
        **current,
        "metadata": without_empty_fields({**marked, "finalizers": finalizers}, keep=("deletionGracePeriodSeconds",)),
    }
    return with_value(left, ("status", "phase"), "Terminating") if info.resource.name == "namespaces" else left


def shortened_grace(metadata: Object, grace: int, now: datetime) -> Object:
    """Return the deadline after the grace period is shortened: counted from the deletion, never in the past."""
    began = parse_time(metadata["deletionTimestamp"]) - timedelta(seconds=metadata["deletionGracePeriodSeconds"])
    until = began + timedelta(seconds=grace)
    if until < now:
        until, grace = now, min(grace, 1)  # the kubelet needs some time to notice
    return {"deletionTimestamp": timestamp(until), "deletionGracePeriodSeconds": grace}


def deletion_finalizers(info: ResourceInfo, metadata: Object, options: Mapping[str, Any]) -> list[str]:
    """Return the finalizers of a deleted object, with those of its kind and of the propagation policy."""
    finalizers: list[str] = metadata.get("finalizers", [])
    own = DELETION_FINALIZERS.get(info.resource.name)
    if own is not None and own not in finalizers:
        finalizers = [*finalizers, own]
    policy = options.get("propagationPolicy")
    if options.get("orphanDependents") is not None:
        policy = "Orphan" if options["orphanDependents"] else "Background"
    others = [each for each in finalizers if each not in PROPAGATION_FINALIZERS.values()]
    if policy is None and others == finalizers and info.resource.name in ORPHANS_BY_DEFAULT:
        policy = "Orphan"
    if policy is None:
        return finalizers
    return [*others, PROPAGATION_FINALIZERS[policy]] if policy in PROPAGATION_FINALIZERS else others


def grace_seconds(info: ResourceInfo, current: Object, requested: int | None) -> int:
    """Return the grace period; only a pod that a kubelet may be running has one."""
    if info.resource.name != "pods" or not value_at(current, "spec", "nodeName"):
        return 0
    if value_at(current, "status", "phase") in FINISHED_PHASES:
        return 0
    seconds: int = (
        value_at(current, "spec", "terminationGracePeriodSeconds", default=30) if requested is None else requested
    )
    return min(max(0, seconds), MAX_GRACE_SECONDS)


# -- parts of an object


def client_metadata(obj: Object) -> Object:
    """Return the metadata that clients may set."""
    return {
        key: value
        for key, value in obj["metadata"].items()
        if key not in SERVER_OWNED_METADATA and (value or isinstance(value, int))
    }


def status_metadata(info: ResourceInfo, current: Object, metadata: Object) -> Object:
    """Return the metadata after a write to /status. Most built-in kinds accept it, except for ownerReferences."""
    before: Object = current["metadata"]
    if info.is_custom or info.resource.name in STATUS_WRITE_KEEPS_METADATA:
        return {**before, **({"managedFields": metadata["managedFields"]} if "managedFields" in metadata else {})}
    return without_empty_fields(
        {**metadata, "ownerReferences": before.get("ownerReferences")}, keep=("deletionGracePeriodSeconds",)
    )


def with_status_of(source: Object, target: Object) -> Object:
    return {**target, "status": source["status"]} if "status" in source else without_field(target, "status")


def next_generation(metadata: Object) -> Object:
    return {**metadata, "generation": metadata["generation"] + 1} if "generation" in metadata else metadata


def generation_content(info: ResourceInfo, obj: Object) -> Object:
    """Return the part of an object whose changes increment its generation."""
    excluded = ("metadata", "status") if info.has_status else ("metadata",)
    return {key: value for key, value in obj.items() if key not in excluded}


# -- checks


def expected_version(desired: Object) -> str:
    """Return the resourceVersion that a write requires, or an empty string; 0 means none."""
    version = version_of(desired)
    return "" if version == "0" else version


def check_identity(info: ResourceInfo, current: Object, desired: Object) -> None:
    """Raise an error unless the write is for this object, and for its current version if it names one."""
    uid, version, resource = uid_of(desired), expected_version(desired), info.resource
    if uid and uid != uid_of(current):
        raise api_errors.uid_mismatch(resource, name_of(current), uid, uid_of(current))
    if not version and (info.is_custom or resource.name in REQUIRES_RESOURCE_VERSION):
        why = "Invalid value: 0: must be specified for an update"
        plural = replace(resource, kind=resource.plural)  # Kubernetes reports the plural as the kind here
        raise api_errors.invalid_field(plural, name_of(current), "metadata.resourceVersion", why)
    if version and version != version_of(current):
        raise api_errors.conflict(resource, name_of(current), api_errors.OBJECT_MODIFIED)


def check_preconditions(info: ResourceInfo, current: Object, preconditions: Mapping[str, str]) -> None:
    result = {"uid": ("UID", uid_of(current)), "resourceVersion": ("ResourceVersion", version_of(current))}
    for field, (label, value) in result.items():
        expected = preconditions.get(field)
        if expected is not None and expected != value:
            raise api_errors.failed_precondition(info.resource, name_of(current), label, expected, value)


def check_finalizers(info: ResourceInfo, current: Object, desired: Object) -> None:
    added = set(desired["metadata"].get("finalizers", ())) - set(current["metadata"].get("finalizers", ()))
    if is_deleting(current) and added:
        listed = ", ".join(f'"{each}"' for each in sorted(added))
        why = (
            "Forbidden: no new finalizers can be added if the object is being deleted, "
            f"found new finalizers []string{{{listed}}}"
        )
        raise api_errors.invalid_field(info.resource, name_of(current), "metadata.finalizers", why)
