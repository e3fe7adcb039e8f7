"""What a write makes of an object: the rules that hold for every kind, as pure functions.

    placed      the body of a request as an object of the place that the path names
    created     what is stored for a POST
    updated     what is stored for a PUT, or for the result of a PATCH
    deleted     what is left after a DELETE: the object marked as deleting, or None

Each raises the error that Kubernetes would answer with.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from tapestry.apiserver import api_errors
from tapestry.apiserver.requests import Target
from tapestry.apiserver.resource_registry import (
    DELETION_FINALIZERS,
    ORPHANS_BY_DEFAULT,
    REQUIRES_RESOURCE_VERSION,
    STATUS_WRITE_KEEPS_METADATA,
    ResourceInfo,
)
from tapestry.apiserver.subresources.partial_updates import PARTIAL_UPDATES
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
"""Seconds, some 68 years: a deletionTimestamp must be a date that clients can read."""
FINISHED_PHASES = ("Succeeded", "Failed")
FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
PROPAGATION_FINALIZERS = {"Foreground": FOREGROUND, "Orphan": ORPHAN}


def object_from_body(target: Target, body: Any) -> Object:
    resource = target.info.resource
    if not isinstance(body, dict):
        raise api_errors.not_an_object(resource.kind, body)
    if not isinstance(body.get("metadata"), dict | None):
        raise api_errors.invalid_metadata(resource, body["metadata"])
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}
    metadata = body.get("metadata") or {}
    for field, expected in kind.items():
        if body.get(field) not in (None, "", expected):
            raise api_errors.bad_request(
                f"the API version in the data ({body.get('apiVersion')}) does not match the expected API version "
                f"({expected})"
                if field == "apiVersion"
                else f"the kind in the data ({body['kind']}) does not match the expected kind ({expected})"
            )
    if metadata.get("namespace") not in (None, "", target.namespace):
        raise api_errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if target.name and metadata.get("name") not in (None, "", target.name):
        raise api_errors.bad_request(
            f"the name of the object ({metadata['name']}) does not match the name on the URL ({target.name})"
        )
    place = {"namespace": target.namespace or None, "name": target.name or metadata.get("name")}
    # an empty list of managed fields says something: that those there are be forgotten
    found = without_empty_fields({**metadata, **place}, keep=("managedFields",))
    # what a patch left alone stays the same value, which nobody needs to look at again
    return {**kind, **body, **kind, "metadata": metadata if found == metadata else found}


def created_object(info: ResourceInfo, desired: Object, *, uid: str, now: datetime) -> Object:
    if expected_version(desired):
        raise ServerError(500, "InternalError", "resourceVersion should not be set on objects to be created")
    metadata = {**client_metadata(desired), "uid": uid, "creationTimestamp": timestamp(now)}
    if info.has_generation:
        metadata["generation"] = 1
    found = {**desired, "metadata": metadata}
    if info.has_status and info.resource.plural != "nodes":  # a kubelet registers its Node together with the status
        found = without_field(found, "status")
    if info.initial_status is None:
        return found
    return {**found, "status": {**info.initial_status, **found.get("status", {})}}


def updated_object(
    info: ResourceInfo, current: Object, desired: Object, subresource: str = "", *, unrestricted: bool = False
) -> Object:
    """`current` itself when the write changes nothing.

    A write to the object leaves the status alone, a write to the status everything else; `free` lifts that.
    """
    check_identity(info, current, desired)
    owned = {key: value for key, value in current["metadata"].items() if key in SERVER_OWNED_METADATA}
    metadata = {**client_metadata(desired), **owned}
    part = PARTIAL_UPDATES.get((info.resource.name, subresource))
    if subresource == "finalize":
        found = {**current, "spec": desired.get("spec") or {}}
    elif part is not None and not unrestricted:
        found = part(current, {**desired, "metadata": metadata})
    elif unrestricted or not info.has_status:
        found = {**desired, "metadata": metadata}
    elif subresource == "status":
        found = with_status_of(desired, {**current, "metadata": status_metadata(info, current, metadata)})
    else:
        found = with_status_of(current, {**desired, "metadata": metadata})
    if info.resource.name == "namespaces" and subresource != "finalize":
        found = {**found, "spec": current.get("spec", {})}  # which is its finalizers, and nothing else
    if found == current:
        return current
    check_finalizers(info, current, found)
    if not info.has_generation or subresource == "binding":
        return found
    if generation_content(info, found) == generation_content(info, current):
        return found
    return {**found, "metadata": next_generation(found["metadata"])}


def is_removable(obj: Object) -> bool:
    """Whether nothing holds a deleting object any longer: no finalizer, and no kubelet that has yet to stop it."""
    metadata = obj["metadata"]
    if not is_deleting(obj) or metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds"):
        return False
    return not value_at(obj, "spec", "finalizers") or obj.get("kind") != "Namespace"


def deleted_object(info: ResourceInfo, current: Object, options: Mapping[str, Any], now: datetime) -> Object | None:
    """`current` itself when it is deleting already and nothing is hastened."""
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
        hastened = options.get("gracePeriodSeconds") is not None and grace < metadata.get(
            "deletionGracePeriodSeconds", 0
        )
        if not hastened and finalizers == metadata.get("finalizers", []):
            return current
        marked = {**metadata, **(shortened_grace(metadata, grace, now) if hastened else {})}
    else:
        until = timestamp(now + timedelta(seconds=grace))
        marked = {**next_generation(metadata), "deletionTimestamp": until, "deletionGracePeriodSeconds": grace}
    left = {
        **current,
        "metadata": without_empty_fields({**marked, "finalizers": finalizers}, keep=("deletionGracePeriodSeconds",)),
    }
    return with_value(left, ("status", "phase"), "Terminating") if info.resource.name == "namespaces" else left


def shortened_grace(metadata: Object, grace: int, now: datetime) -> Object:
    """When an object goes that gets less time than it was given, counted from when that began; never in the past."""
    began = parse_time(metadata["deletionTimestamp"]) - timedelta(seconds=metadata["deletionGracePeriodSeconds"])
    until = began + timedelta(seconds=grace)
    if until < now:
        until, grace = now, min(grace, 1)  # some time is left as long as somebody has to be told
    return {"deletionTimestamp": timestamp(until), "deletionGracePeriodSeconds": grace}


def deletion_finalizers(info: ResourceInfo, metadata: Object, options: Mapping[str, Any]) -> list[str]:
    """The object's finalizers, with its kind's own and the one for what becomes of its dependents."""
    had: list[str] = metadata.get("finalizers", [])
    own = DELETION_FINALIZERS.get(info.resource.name)
    if own is not None and own not in had:
        had = [*had, own]
    policy = options.get("propagationPolicy")
    if options.get("orphanDependents") is not None:
        policy = "Orphan" if options["orphanDependents"] else "Background"
    others = [each for each in had if each not in PROPAGATION_FINALIZERS.values()]
    if policy is None and others == had and info.resource.name in ORPHANS_BY_DEFAULT:
        policy = "Orphan"
    if policy is None:
        return had
    return [*others, PROPAGATION_FINALIZERS[policy]] if policy in PROPAGATION_FINALIZERS else others


def grace_seconds(info: ResourceInfo, current: Object, requested: int | None) -> int:
    """Only a pod that a kubelet may be running gets time to stop."""
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
    """The metadata that is the writer's to choose."""
    return {
        key: value
        for key, value in obj["metadata"].items()
        if key not in SERVER_OWNED_METADATA and (value or isinstance(value, int))
    }


def without_empty_fields(metadata: Object, keep: tuple[str, ...] = ()) -> Object:
    """Metadata as a server shows it: what is empty is absent."""
    return {key: value for key, value in metadata.items() if value or key in keep or isinstance(value, int)}


def status_metadata(info: ResourceInfo, current: Object, metadata: Object) -> Object:
    """Metadata after a write to /status: most built-in kinds take it too, except for owners."""
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
    """What a generation counts the changes of."""
    beside = ("metadata", "status") if info.has_status else ("metadata",)
    return {key: value for key, value in obj.items() if key not in beside}


# -- refusals


def expected_version(desired: Object) -> str:
    """The version that a write is meant for, if any; 0 is none."""
    version = version_of(desired)
    return "" if version == "0" else version


def check_identity(info: ResourceInfo, current: Object, desired: Object) -> None:
    """The write must be meant for this object, and for this version of it where it names one."""
    uid, version, resource = uid_of(desired), expected_version(desired), info.resource
    if uid and uid != uid_of(current):
        raise api_errors.uid_mismatch(resource, name_of(current), uid, uid_of(current))
    if not version and (info.is_custom or resource.name in REQUIRES_RESOURCE_VERSION):
        why = "Invalid value: 0: must be specified for an update"
        plural = replace(resource, kind=resource.plural)  # which Kubernetes takes for the kind here
        raise api_errors.invalid_field(plural, name_of(current), "metadata.resourceVersion", why)
    if version and version != version_of(current):
        raise api_errors.conflict(resource, name_of(current), api_errors.OBJECT_MODIFIED)


def check_preconditions(info: ResourceInfo, current: Object, preconditions: Mapping[str, str]) -> None:
    found = {"uid": ("UID", uid_of(current)), "resourceVersion": ("ResourceVersion", version_of(current))}
    for field, (word, value) in found.items():
        wanted = preconditions.get(field)
        if wanted is not None and wanted != value:
            raise api_errors.failed_precondition(info.resource, name_of(current), word, wanted, value)


def check_finalizers(info: ResourceInfo, current: Object, desired: Object) -> None:
    added = set(desired["metadata"].get("finalizers", ())) - set(current["metadata"].get("finalizers", ()))
    if is_deleting(current) and added:
        listed = ", ".join(f'"{each}"' for each in sorted(added))
        why = (
            "Forbidden: no new finalizers can be added if the object is being deleted, "
            f"found new finalizers []string{{{listed}}}"
        )
        raise api_errors.invalid_field(info.resource, name_of(current), "metadata.finalizers", why)
