"""Parts: what a write may change of an object whose kind has parts of its own for that.

Each function takes the object as it is and as somebody wants it, and gives it with the change that is granted.
"""

from collections.abc import Callable, Mapping

from tapestry.kube.objects import Object, value_at, with_value, without_field

SIGNING_REQUESTS = "certificatesigningrequests.certificates.k8s.io"
DECISION_CONDITIONS = ("Approved", "Denied")
RESIZE_FIELDS = ("resources", "resizePolicy")

PartialUpdate = Callable[[Object, Object], Object]


def with_managed_fields_of(current: Object, desired: Object) -> Object:
    """Who owns which fields is all that such a write changes of the metadata."""
    fields = desired["metadata"].get("managedFields")
    return {**current, "metadata": {**current["metadata"], **({"managedFields": fields} if fields else {})}}


# -- pods


def with_ephemeral_containers(current: Object, desired: Object) -> Object:
    added = value_at(desired, "spec", "ephemeralContainers")
    found = without_field(with_managed_fields_of(current, desired), "spec", "ephemeralContainers")
    return with_value(found, ("spec", "ephemeralContainers"), added) if added else found


def with_resized_containers(current: Object, desired: Object) -> Object:
    """Of containers, what they need; other containers, or in another order, are for validation to refuse."""
    found = with_managed_fields_of(current, desired)
    for field in ("containers", "initContainers"):
        before, after = current["spec"].get(field) or [], value_at(desired, "spec", field, default=[])
        if [each.get("name") for each in before] != [each.get("name") for each in after]:
            return {**found, "spec": desired["spec"]}
        if before:
            sized = [with_resources_of(new, old) for new, old in zip(after, before, strict=True)]
            found = with_value(found, ("spec", field), sized)
    return found


def with_resources_of(source: Object, container: Object) -> Object:
    kept = {key: value for key, value in container.items() if key not in RESIZE_FIELDS}
    return kept | {key: source[key] for key in RESIZE_FIELDS if key in source}


# -- requests for certificates


def with_request_metadata(current: Object, desired: Object) -> Object:
    """Only the metadata: what is asked for never changes."""
    return {**current, "metadata": desired["metadata"]}


def with_approval(current: Object, desired: Object) -> Object:
    conditions = value_at(desired, "status", "conditions", default=[])
    return with_value({**current, "metadata": desired["metadata"]}, ("status", "conditions"), conditions)


def with_request_status(current: Object, desired: Object) -> Object:
    """Anything but decisions, which are another right: these stay as they are."""
    status = {**(desired.get("status") or {})}
    for decision in DECISION_CONDITIONS:
        had = [each for each in value_at(current, "status", "conditions", default=[]) if each.get("type") == decision]
        listed = status.get("conditions") or []
        if len(had) == sum(each.get("type") == decision for each in listed):
            kept = iter(had)
            status["conditions"] = [next(kept) if each.get("type") == decision else each for each in listed]
    return {**current, "metadata": desired["metadata"], "status": status}


PARTIAL_UPDATES: Mapping[tuple[str, str], PartialUpdate] = {
    ("pods", "ephemeralcontainers"): with_ephemeral_containers,
    ("pods", "resize"): with_resized_containers,
    (SIGNING_REQUESTS, ""): with_request_metadata,
    (SIGNING_REQUESTS, "approval"): with_approval,
    (SIGNING_REQUESTS, "status"): with_request_status,
}
"""By resource and subresource."""
