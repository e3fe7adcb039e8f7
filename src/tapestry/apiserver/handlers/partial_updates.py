"""Updates that may change only part of an object, by resource and subresource.

Each function takes the current and the desired object, and returns the current one with the permitted changes.
"""

from collections.abc import Callable, Mapping

from tapestry.apiserver.core.certificate_requests import SIGNING_REQUESTS
from tapestry.kube.objects import Object, value_at, with_value, without_field

DECISION_CONDITIONS = ("Approved", "Denied")
RESIZE_FIELDS = ("resources", "resizePolicy")

PartialUpdate = Callable[[Object, Object], Object]


def with_managed_fields_of(current: Object, desired: Object) -> Object:
    """The current object with the managed fields of the desired one."""
    fields = desired["metadata"].get("managedFields")
    return {**current, "metadata": {**current["metadata"], **({"managedFields": fields} if fields else {})}}


# -- pods


def with_ephemeral_containers(current: Object, desired: Object) -> Object:
    added = value_at(desired, "spec", "ephemeralContainers")
    result = without_field(with_managed_fields_of(current, desired), "spec", "ephemeralContainers")
    return with_value(result, ("spec", "ephemeralContainers"), added) if added else result


def with_resized_containers(current: Object, desired: Object) -> Object:
    """Copy only resources from the desired containers. Validation rejects different or reordered containers."""
    result = with_managed_fields_of(current, desired)
    for field in ("containers", "initContainers"):
        before, after = current["spec"].get(field) or [], value_at(desired, "spec", field, default=[])
        if [each.get("name") for each in before] != [each.get("name") for each in after]:
            return {**result, "spec": desired["spec"]}
        if before:
            resized = [with_resources_of(new, old) for new, old in zip(after, before, strict=True)]
            result = with_value(result, ("spec", field), resized)
    return result


def with_resources_of(source: Object, container: Object) -> Object:
    unchanged = {key: value for key, value in container.items() if key not in RESIZE_FIELDS}
    return unchanged | {key: source[key] for key in RESIZE_FIELDS if key in source}


# -- CertificateSigningRequests


def with_request_metadata(current: Object, desired: Object) -> Object:
    """Change only the metadata, because the spec is immutable."""
    return {**current, "metadata": desired["metadata"]}


def with_approval(current: Object, desired: Object) -> Object:
    conditions = value_at(desired, "status", "conditions", default=[])
    return with_value({**current, "metadata": desired["metadata"]}, ("status", "conditions"), conditions)


def with_request_status(current: Object, desired: Object) -> Object:
    """Change the status except for approval conditions, which need the `approval` subresource."""
    status = {**(desired.get("status") or {})}
    for decision in DECISION_CONDITIONS:
        old = [each for each in value_at(current, "status", "conditions", default=[]) if each.get("type") == decision]
        listed = status.get("conditions") or []
        if len(old) == sum(each.get("type") == decision for each in listed):
            unchanged = iter(old)
            status["conditions"] = [next(unchanged) if each.get("type") == decision else each for each in listed]
    return {**current, "metadata": desired["metadata"], "status": status}


PARTIAL_UPDATES: Mapping[tuple[str, str], PartialUpdate] = {
    ("pods", "ephemeralcontainers"): with_ephemeral_containers,
    ("pods", "resize"): with_resized_containers,
    (SIGNING_REQUESTS, ""): with_request_metadata,
    (SIGNING_REQUESTS, "approval"): with_approval,
    (SIGNING_REQUESTS, "status"): with_request_status,
}
"""By resource and subresource."""
