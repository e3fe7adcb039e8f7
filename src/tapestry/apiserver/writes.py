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

from tapestry.apiserver import refusals
from tapestry.apiserver.requests import Target
from tapestry.apiserver.rows import FINALIZED, ONLY_CONDITIONALLY, ORPHANING, STATUS_ALONE, Row
from tapestry.apiserver.subresources.parts import PARTS
from tapestry.kube.errors import ServerError
from tapestry.kube.objects import Object, is_deleting, name_of, uid_of, value_at, version_of, with_value, without
from tapestry.kube.times import parse_time, timestamp

SERVER_OWNED = frozenset(
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
LONGEST_GRACE = 2**31
"""Seconds, some 68 years: a deletionTimestamp must be a date that clients can read."""
FINISHED = ("Succeeded", "Failed")
FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
FINALIZERS = {"Foreground": FOREGROUND, "Orphan": ORPHAN}


def placed(target: Target, body: Any) -> Object:
    resource = target.row.resource
    if not isinstance(body, dict):
        raise refusals.no_object(resource.kind, body)
    if not isinstance(body.get("metadata"), dict | None):
        raise refusals.no_metadata(resource, body["metadata"])
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}
    metadata = body.get("metadata") or {}
    for field, expected in kind.items():
        if body.get(field) not in (None, "", expected):
            raise refusals.bad_request(
                f"the API version in the data ({body.get('apiVersion')}) does not match the expected API version "
                f"({expected})"
                if field == "apiVersion"
                else f"the kind in the data ({body['kind']}) does not match the expected kind ({expected})"
            )
    if metadata.get("namespace") not in (None, "", target.namespace):
        raise refusals.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if target.name and metadata.get("name") not in (None, "", target.name):
        raise refusals.bad_request(
            f"the name of the object ({metadata['name']}) does not match the name on the URL ({target.name})"
        )
    place = {"namespace": target.namespace or None, "name": target.name or metadata.get("name")}
    # an empty list of managed fields says something: that those there are be forgotten
    found = tidy({**metadata, **place}, keep=("managedFields",))
    # what a patch left alone stays the same value, which nobody needs to look at again
    return {**kind, **body, **kind, "metadata": metadata if found == metadata else found}


def created(row: Row, wanted: Object, *, uid: str, now: datetime) -> Object:
    if version_in(wanted):
        raise ServerError(500, "InternalError", "resourceVersion should not be set on objects to be created")
    metadata = {**theirs(wanted), "uid": uid, "creationTimestamp": timestamp(now)}
    if row.counts_generations:
        metadata["generation"] = 1
    found = {**wanted, "metadata": metadata}
    if row.has_status and row.resource.plural != "nodes":  # a kubelet registers its Node together with the status
        found = without(found, "status")
    if row.blank_status is None:
        return found
    return {**found, "status": {**row.blank_status, **found.get("status", {})}}


def updated(row: Row, current: Object, wanted: Object, subresource: str = "", *, free: bool = False) -> Object:
    """`current` itself when the write changes nothing.

    A write to the object leaves the status alone, a write to the status everything else; `free` lifts that.
    """
    check_identity(row, current, wanted)
    owned = {key: value for key, value in current["metadata"].items() if key in SERVER_OWNED}
    metadata = {**theirs(wanted), **owned}
    part = PARTS.get((row.resource.name, subresource))
    if subresource == "finalize":
        found = {**current, "spec": wanted.get("spec") or {}}
    elif part is not None and not free:
        found = part(current, {**wanted, "metadata": metadata})
    elif free or not row.has_status:
        found = {**wanted, "metadata": metadata}
    elif subresource == "status":
        found = with_status_of(wanted, {**current, "metadata": status_metadata(row, current, metadata)})
    else:
        found = with_status_of(current, {**wanted, "metadata": metadata})
    if row.resource.name == "namespaces" and subresource != "finalize":
        found = {**found, "spec": current.get("spec", {})}  # which is its finalizers, and nothing else
    if found == current:
        return current
    check_finalizers(row, current, found)
    if not row.counts_generations or subresource == "binding":
        return found
    if specification(row, found) == specification(row, current):
        return found
    return {**found, "metadata": next_generation(found["metadata"])}


def is_gone(obj: Object) -> bool:
    """Whether nothing holds a deleting object any longer: no finalizer, and no kubelet that has yet to stop it."""
    metadata = obj["metadata"]
    if not is_deleting(obj) or metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds"):
        return False
    return not value_at(obj, "spec", "finalizers") or obj.get("kind") != "Namespace"


def deleted(row: Row, current: Object, options: Mapping[str, Any], now: datetime) -> Object | None:
    """`current` itself when it is deleting already and nothing is hastened."""
    check_preconditions(row, current, options.get("preconditions") or {})
    metadata = current["metadata"]
    finalizers = deletion_finalizers(row, metadata, options)
    grace = grace_seconds(row, current, options.get("gracePeriodSeconds"))
    if (
        not grace
        and not finalizers
        and not (row.resource.name == "namespaces" and value_at(current, "spec", "finalizers"))
    ):
        return None
    if is_deleting(current):
        hastened = options.get("gracePeriodSeconds") is not None and grace < metadata.get(
            "deletionGracePeriodSeconds", 0
        )
        if not hastened and finalizers == metadata.get("finalizers", []):
            return current
        marked = {**metadata, **(shortened(metadata, grace, now) if hastened else {})}
    else:
        until = timestamp(now + timedelta(seconds=grace))
        marked = {**next_generation(metadata), "deletionTimestamp": until, "deletionGracePeriodSeconds": grace}
    left = {**current, "metadata": tidy({**marked, "finalizers": finalizers}, keep=("deletionGracePeriodSeconds",))}
    return with_value(left, ("status", "phase"), "Terminating") if row.resource.name == "namespaces" else left


def shortened(metadata: Object, grace: int, now: datetime) -> Object:
    """When an object goes that gets less time than it was given, counted from when that began; never in the past."""
    began = parse_time(metadata["deletionTimestamp"]) - timedelta(seconds=metadata["deletionGracePeriodSeconds"])
    until = began + timedelta(seconds=grace)
    if until < now:
        until, grace = now, min(grace, 1)  # some time is left as long as somebody has to be told
    return {"deletionTimestamp": timestamp(until), "deletionGracePeriodSeconds": grace}


def deletion_finalizers(row: Row, metadata: Object, options: Mapping[str, Any]) -> list[str]:
    """The object's finalizers, with its kind's own and the one for what becomes of its dependents."""
    had: list[str] = metadata.get("finalizers", [])
    own = FINALIZED.get(row.resource.name)
    if own is not None and own not in had:
        had = [*had, own]
    policy = options.get("propagationPolicy")
    if options.get("orphanDependents") is not None:
        policy = "Orphan" if options["orphanDependents"] else "Background"
    others = [each for each in had if each not in FINALIZERS.values()]
    if policy is None and others == had and row.resource.name in ORPHANING:
        policy = "Orphan"
    if policy is None:
        return had
    return [*others, FINALIZERS[policy]] if policy in FINALIZERS else others


def grace_seconds(row: Row, current: Object, asked: int | None) -> int:
    """Only a pod that a kubelet may be running gets time to stop."""
    if row.resource.name != "pods" or not value_at(current, "spec", "nodeName"):
        return 0
    if value_at(current, "status", "phase") in FINISHED:
        return 0
    seconds: int = value_at(current, "spec", "terminationGracePeriodSeconds", default=30) if asked is None else asked
    return min(max(0, seconds), LONGEST_GRACE)


# -- parts of an object


def theirs(obj: Object) -> Object:
    """The metadata that is the writer's to choose."""
    return {
        key: value
        for key, value in obj["metadata"].items()
        if key not in SERVER_OWNED and (value or isinstance(value, int))
    }


def tidy(metadata: Object, keep: tuple[str, ...] = ()) -> Object:
    """Metadata as a server shows it: what is empty is absent."""
    return {key: value for key, value in metadata.items() if value or key in keep or isinstance(value, int)}


def status_metadata(row: Row, current: Object, metadata: Object) -> Object:
    """Metadata after a write to /status: most built-in kinds take it too, except for owners."""
    before: Object = current["metadata"]
    if row.is_custom or row.resource.name in STATUS_ALONE:
        return {**before, **({"managedFields": metadata["managedFields"]} if "managedFields" in metadata else {})}
    return tidy({**metadata, "ownerReferences": before.get("ownerReferences")}, keep=("deletionGracePeriodSeconds",))


def with_status_of(source: Object, target: Object) -> Object:
    return {**target, "status": source["status"]} if "status" in source else without(target, "status")


def next_generation(metadata: Object) -> Object:
    return {**metadata, "generation": metadata["generation"] + 1} if "generation" in metadata else metadata


def specification(row: Row, obj: Object) -> Object:
    """What a generation counts the changes of."""
    beside = ("metadata", "status") if row.has_status else ("metadata",)
    return {key: value for key, value in obj.items() if key not in beside}


# -- refusals


def version_in(wanted: Object) -> str:
    """The version that a write is meant for, if any; 0 is none."""
    version = version_of(wanted)
    return "" if version == "0" else version


def check_identity(row: Row, current: Object, wanted: Object) -> None:
    """The write must be meant for this object, and for this version of it where it names one."""
    uid, version, resource = uid_of(wanted), version_in(wanted), row.resource
    if uid and uid != uid_of(current):
        raise refusals.other_uid(resource, name_of(current), uid, uid_of(current))
    if not version and (row.is_custom or resource.name in ONLY_CONDITIONALLY):
        why = "Invalid value: 0: must be specified for an update"
        plural = replace(resource, kind=resource.plural)  # which Kubernetes takes for the kind here
        raise refusals.invalid(plural, name_of(current), "metadata.resourceVersion", why)
    if version and version != version_of(current):
        raise refusals.conflict(resource, name_of(current), refusals.MODIFIED)


def check_preconditions(row: Row, current: Object, preconditions: Mapping[str, str]) -> None:
    found = {"uid": ("UID", uid_of(current)), "resourceVersion": ("ResourceVersion", version_of(current))}
    for field, (word, value) in found.items():
        wanted = preconditions.get(field)
        if wanted is not None and wanted != value:
            raise refusals.failed_precondition(row.resource, name_of(current), word, wanted, value)


def check_finalizers(row: Row, current: Object, wanted: Object) -> None:
    added = set(wanted["metadata"].get("finalizers", ())) - set(current["metadata"].get("finalizers", ()))
    if is_deleting(current) and added:
        listed = ", ".join(f'"{each}"' for each in sorted(added))
        why = (
            "Forbidden: no new finalizers can be added if the object is being deleted, "
            f"found new finalizers []string{{{listed}}}"
        )
        raise refusals.invalid(row.resource, name_of(current), "metadata.finalizers", why)
