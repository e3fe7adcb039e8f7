"""Parts: what a write may change of an object whose kind has parts of its own for that.

Each function takes the object as it is and as somebody wants it, and gives it with the change that is granted.
"""

from collections.abc import Callable, Mapping

from tapestry.kube.objects import Object, value_at, with_value, without

REQUESTS = "certificatesigningrequests.certificates.k8s.io"
DECISIONS = ("Approved", "Denied")
RESIZED = ("resources", "resizePolicy")

Part = Callable[[Object, Object], Object]


def with_metadata_of(current: Object, wanted: Object) -> Object:
    """Who owns which fields is all that such a write changes of the metadata."""
    fields = wanted["metadata"].get("managedFields")
    return {**current, "metadata": {**current["metadata"], **({"managedFields": fields} if fields else {})}}


# -- pods


def ephemeral_containers(current: Object, wanted: Object) -> Object:
    added = value_at(wanted, "spec", "ephemeralContainers")
    found = without(with_metadata_of(current, wanted), "spec", "ephemeralContainers")
    return with_value(found, ("spec", "ephemeralContainers"), added) if added else found


def resized(current: Object, wanted: Object) -> Object:
    """Of containers, what they need; other containers, or in another order, are for validation to refuse."""
    found = with_metadata_of(current, wanted)
    for field in ("containers", "initContainers"):
        before, after = current["spec"].get(field) or [], value_at(wanted, "spec", field, default=[])
        if [each.get("name") for each in before] != [each.get("name") for each in after]:
            return {**found, "spec": wanted["spec"]}
        if before:
            sized = [with_size_of(new, old) for new, old in zip(after, before, strict=True)]
            found = with_value(found, ("spec", field), sized)
    return found


def with_size_of(source: Object, container: Object) -> Object:
    kept = {key: value for key, value in container.items() if key not in RESIZED}
    return kept | {key: source[key] for key in RESIZED if key in source}


# -- requests for certificates


def request_itself(current: Object, wanted: Object) -> Object:
    """Only the metadata: what is asked for never changes."""
    return {**current, "metadata": wanted["metadata"]}


def approval(current: Object, wanted: Object) -> Object:
    conditions = value_at(wanted, "status", "conditions", default=[])
    return with_value({**current, "metadata": wanted["metadata"]}, ("status", "conditions"), conditions)


def request_status(current: Object, wanted: Object) -> Object:
    """Anything but decisions, which are another right: these stay as they are."""
    status = {**(wanted.get("status") or {})}
    for decision in DECISIONS:
        had = [each for each in value_at(current, "status", "conditions", default=[]) if each.get("type") == decision]
        listed = status.get("conditions") or []
        if len(had) == sum(each.get("type") == decision for each in listed):
            kept = iter(had)
            status["conditions"] = [next(kept) if each.get("type") == decision else each for each in listed]
    return {**current, "metadata": wanted["metadata"], "status": status}


PARTS: Mapping[tuple[str, str], Part] = {
    ("pods", "ephemeralcontainers"): ephemeral_containers,
    ("pods", "resize"): resized,
    (REQUESTS, ""): request_itself,
    (REQUESTS, "approval"): approval,
    (REQUESTS, "status"): request_status,
}
"""By resource and subresource."""
