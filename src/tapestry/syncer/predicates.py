"""Predicates that select the watch events a controller reacts to; old or new may be missing."""

from tapestry.apis import keys
from tapestry.kube.objects import Object, annotations_of, is_deleting, uid_of, value_at
from tapestry.kube.pods import is_pod_terminal
from tapestry.syncer.translate.metadata import virtual_uid
from tapestry.syncer.translate.pod_status import MAPPING, mapped_uid


def spec_changed(old: Object | None, new: Object | None) -> bool:
    """Return whether users or other controllers changed the object; our own status writes do not count."""
    if old is None or new is None:
        return True
    fields = ("generation", "deletionTimestamp", "labels")
    if any(old["metadata"].get(field) != new["metadata"].get(field) for field in fields):
        return True
    return annotations_of(old).get(keys.RECLAIM) != annotations_of(new).get(keys.RECLAIM)


def changed_beyond_own_status(old: Object | None, new: Object | None) -> bool:
    """Return whether more changed than the status that we write ourselves."""
    if old is None or new is None or value_at(old, "status", "identity") != value_at(new, "status", "identity"):
        return True
    return {**old["metadata"], "resourceVersion": ""} != {**new["metadata"], "resourceVersion": ""}


def involves_foreign_pod(old: Object | None, new: Object | None) -> bool:
    """Return whether the pod is foreign. What twins hold is known from their virtual pods."""
    return any(obj is not None and "twin" not in obj for obj in (old, new))


def foreign_hold(claim: Object | None) -> object:
    """Return the node and the amounts that a foreign pod holds."""
    return (claim["node"], claim["hold"].amounts) if claim is not None and "hold" in claim else None


def hold_changed(old: Object | None, new: Object | None) -> bool:
    """Return whether a virtual pod was deleted, ended or changed its requests. Creations are handled with a delay."""
    if old is None or new is None or is_deleting(old) != is_deleting(new):
        return old is not None
    return bool(old["spec"] != new["spec"] or is_pod_terminal(old) != is_pod_terminal(new))


def changed_beyond_twin_status(old: Object | None, new: Object | None) -> bool:
    """Return whether a virtual pod changed in more than the status of its twin."""
    if old is None or new is None:
        return True
    if old["spec"] != new["spec"] or own_conditions(old) != own_conditions(new):
        return True
    if is_pod_terminal(old) != is_pod_terminal(new) or mapped_uid(old) not in (None, mapped_uid(new)):
        return True
    if own_annotations(old) != own_annotations(new):
        return True
    return any(
        old["metadata"].get(field) != new["metadata"].get(field)
        for field in ("labels", "deletionTimestamp", "deletionGracePeriodSeconds")
    )


def own_annotations(pod: Object) -> dict[str, str]:
    """Return the annotations of a virtual pod that do not describe its twin."""
    return {key: value for key, value in annotations_of(pod).items() if key not in MAPPING}


def own_conditions(pod: Object) -> list[Object]:
    """Return the conditions of a virtual pod, except the one that records its twin."""
    conditions: list[Object] = pod["status"]["conditions"]
    return (
        conditions
        if mapped_uid(pod) is None
        else [each for each in conditions if each["type"] != keys.MAPPED_CONDITION]
    )


def is_mapped_to(pod: Object | None, twin: Object) -> bool:
    """Return whether the pod runs or will run as `twin`, and neither of them is ending."""
    if pod is None or uid_of(pod) != virtual_uid(twin) or is_deleting(pod) or is_pod_terminal(pod) or is_deleting(twin):
        return False
    return mapped_uid(pod) in (None, uid_of(twin))


def twin_changed_beyond_status(old: Object | None, new: Object | None) -> bool:
    """Return whether a twin was created, deleted, marked for deletion, scheduled, or is not scheduled yet."""
    if old is None or new is None or "twin" not in old or "twin" not in new:
        return True
    return bool(is_deleting(old) != is_deleting(new) or "nodeName" not in new["spec"])


def twin_ended(old: Object | None, new: Object | None) -> bool:
    """Return whether a twin ended or was deleted."""
    return old is not None and bool(old.get("held")) and (new is None or not new.get("held"))


def status_changed(old: Object | None, new: Object | None) -> bool:
    """Return whether the status of an existing virtual pod changed."""
    return new is not None and (old is None or bool(old["status"] != new["status"]))


def twin_status_changed(old: Object | None, new: Object | None) -> bool:
    """Return whether the status or the annotations of an existing twin changed."""
    if new is None or "twin" not in new:
        return False
    return old is None or old.get("twin") != new["twin"] or annotations_of(old) != annotations_of(new)


def cordon_changed(old: Object | None, new: Object | None) -> bool:
    """Return whether the cordon or the taints of a physical node changed."""
    return any(value_at(old, "spec", field) != value_at(new, "spec", field) for field in ("unschedulable", "taints"))


def is_creation(old: Object | None, _: Object | None) -> bool:
    return old is None


def lifecycle_changed(old: Object | None, new: Object | None) -> bool:
    return old is None or new is None or is_deleting(old) != is_deleting(new)


def ports_changed(old: Object | None, new: Object | None) -> bool:
    """Return whether the host ports of a physical pod changed, or its node with them."""
    return held_ports(old) != held_ports(new)


def held_ports(claim: Object | None) -> object:
    return (claim["node"], claim["ports"]) if claim is not None and "ports" in claim else None
