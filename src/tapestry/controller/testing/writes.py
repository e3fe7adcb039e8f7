"""What a write makes of an object: the rules of a kube-apiserver as pure functions.

    checked     the body of a request as an object of the place that the path names
    created     what is stored for a POST
    updated     what is stored for a PUT, or for the result of a PATCH
    deleted     what is left after a DELETE: the object marked as deleting, or None

Each raises the error that Kubernetes would answer with.  Beyond what reconcilers stumble over there is no validation;
there are no defaults except a pod's phase, and no managedFields.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from tapestry.apiserver import refusals
from tapestry.kube.errors import ServerError
from tapestry.kube.objects import Object, is_deleting, name_of, uid_of, value_at, version_of, without
from tapestry.kube.resources import LEASES, NODES, PODS, Resource
from tapestry.kube.times import timestamp

SERVER_OWNED = (
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "resourceVersion",
    "selfLink",
    "managedFields",
)
DESIRED_STATE = ("apps", "batch", "policy", "networking.k8s.io", "apiextensions.k8s.io")
FINISHED = ("Succeeded", "Failed")


def is_custom(resource: Resource) -> bool:
    """Whether the kind comes from a CRD; Kubernetes treats those more strictly in places."""
    return "." in resource.group and not resource.group.endswith(".k8s.io")


def counts_generations(resource: Resource) -> bool:
    """Whether objects have a generation: custom resources do, and the built-in kinds that describe something to do."""
    return resource == PODS or is_custom(resource) or resource.group in DESIRED_STATE


def checked(resource: Resource, namespace: str | None, name: str | None, body: Any) -> Object:
    if not isinstance(body, dict) or not isinstance(body.get("metadata", {}), dict):
        raise refusals.bad_request(f"the body is not a {resource.kind}")
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}
    metadata = body.get("metadata", {})
    for field, expected in kind.items():
        if body.get(field, expected) != expected:
            raise refusals.bad_request(f"{field}: {body[field]} does not match the expected {expected}")
    if metadata.get("namespace") not in (None, "", namespace):
        raise refusals.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if name is not None and metadata.get("name") not in (None, "", name):
        raise refusals.bad_request(
            f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})"
        )
    place = {"namespace": namespace, "name": name or metadata.get("name")}
    return {**kind, **body, "metadata": tidy({**metadata, **place})}


def created(resource: Resource, wanted: Object, *, uid: str, has_status: bool, now: datetime) -> Object:
    if version_of(wanted):
        raise ServerError(500, "InternalError", "resourceVersion should not be set on objects to be created")
    metadata = {**theirs(wanted), "uid": uid, "creationTimestamp": timestamp(now)}
    if counts_generations(resource):
        metadata["generation"] = 1
    found = {**wanted, "metadata": metadata}
    if has_status and resource != NODES:  # a kubelet registers its Node together with the status
        found = without(found, "status")
    if resource == PODS:
        found = {**found, "status": {"phase": "Pending"}}
    return found


def updated(resource: Resource, current: Object, wanted: Object, *, status: bool | None) -> Object:
    """`current` itself when the write changes nothing.

    `status` says whether the write came to the status subresource; it is None for a resource that has none.
    """
    check_identity(resource, current, wanted)
    owned = {key: value for key, value in current["metadata"].items() if key in SERVER_OWNED}
    metadata = {**theirs(wanted), **owned}
    if status is None:
        found = {**wanted, "metadata": metadata}
    elif status:
        found = with_status_of(wanted, {**current, "metadata": status_metadata(resource, current, metadata)})
    else:
        found = with_status_of(current, {**wanted, "metadata": metadata})
    if found == current:
        return current
    check_finalizers(resource, current, found)
    if specification(found, status) == specification(current, status):
        return found
    return {**found, "metadata": next_generation(found["metadata"])}


def is_gone(obj: Object) -> bool:
    """Whether nothing holds a deleting object any longer: no finalizer, and no kubelet that has yet to stop it."""
    metadata = obj["metadata"]
    return is_deleting(obj) and not metadata.get("finalizers") and not metadata.get("deletionGracePeriodSeconds")


def deleted(resource: Resource, current: Object, options: Mapping[str, Any], now: datetime) -> Object | None:
    """`current` itself when it is deleting already and nothing is hastened.

    The propagation policy changes nothing: there is no garbage collector here to act on it.
    """
    check_preconditions(resource, current, options.get("preconditions") or {})
    metadata = current["metadata"]
    grace = grace_seconds(resource, current, options.get("gracePeriodSeconds"))
    if not grace and not metadata.get("finalizers"):
        return None
    until = timestamp(now + timedelta(seconds=grace))
    if not is_deleting(current):
        metadata = next_generation(metadata)
    elif grace < metadata["deletionGracePeriodSeconds"]:
        until = min(until, metadata["deletionTimestamp"])
    else:
        return current
    return {**current, "metadata": {**metadata, "deletionTimestamp": until, "deletionGracePeriodSeconds": grace}}


def grace_seconds(resource: Resource, current: Object, asked: int | None) -> int:
    """Only a pod that a kubelet may be running gets time to stop."""
    if resource != PODS or not value_at(current, "spec", "nodeName"):
        return 0
    if value_at(current, "status", "phase") in FINISHED:
        return 0
    seconds: int = value_at(current, "spec", "terminationGracePeriodSeconds", default=30) if asked is None else asked
    return max(0, seconds)


# -- parts of an object


def theirs(obj: Object) -> Object:
    """The metadata that is the writer's to choose."""
    return tidy({key: value for key, value in obj["metadata"].items() if key not in SERVER_OWNED})


def tidy(metadata: Object) -> Object:
    """Metadata as a server shows it: what is empty is absent."""
    return {key: value for key, value in metadata.items() if value not in (None, "", {}, [])}


def status_metadata(resource: Resource, current: Object, metadata: Object) -> Object:
    """Metadata after a write to /status: built-in kinds take it too, except for owners."""
    before: Object = current["metadata"]
    return before if is_custom(resource) else tidy({**metadata, "ownerReferences": before.get("ownerReferences")})


def with_status_of(source: Object, target: Object) -> Object:
    return {**target, "status": source["status"]} if "status" in source else without(target, "status")


def next_generation(metadata: Object) -> Object:
    return {**metadata, "generation": metadata["generation"] + 1} if "generation" in metadata else metadata


def specification(obj: Object, status: bool | None) -> Object:
    """What a generation counts the changes of."""
    beside = ("metadata",) if status is None else ("metadata", "status")
    return {key: value for key, value in obj.items() if key not in beside}


# -- refusals


def check_identity(resource: Resource, current: Object, wanted: Object) -> None:
    """The write must be meant for this object, and for this version of it where it names one."""
    uid, version = uid_of(wanted), version_of(wanted)
    if uid and uid != uid_of(current):
        raise refusals.other_uid(resource, name_of(current), uid, uid_of(current))
    if not version and (is_custom(resource) or resource == LEASES):
        why = "Invalid value: 0: must be specified for an update"
        raise refusals.invalid(resource, name_of(current), "metadata.resourceVersion", why)
    if version and version != version_of(current):
        raise refusals.conflict(resource, name_of(current), refusals.MODIFIED)


def check_preconditions(resource: Resource, current: Object, preconditions: Mapping[str, str]) -> None:
    found = {"uid": ("UID", uid_of(current)), "resourceVersion": ("ResourceVersion", version_of(current))}
    for field, (word, value) in found.items():
        wanted = preconditions.get(field)
        if wanted is not None and wanted != value:
            raise refusals.failed_precondition(resource, name_of(current), word, wanted, value)


def check_finalizers(resource: Resource, current: Object, wanted: Object) -> None:
    added = set(wanted["metadata"].get("finalizers", ())) - set(current["metadata"].get("finalizers", ()))
    if is_deleting(current) and added:
        listed = ", ".join(f'"{each}"' for each in sorted(added))
        why = (
            "Forbidden: no new finalizers can be added if the object is being deleted, "
            f"found new finalizers []string{{{listed}}}"
        )
        raise refusals.invalid(resource, name_of(current), "metadata.finalizers", why)
