"""Predicates that select the watch events a controller reacts to; old or new may be missing."""

from tapestry.apis import keys
from tapestry.kube.objects import Object, annotations_of, is_deleting, value_at
from tapestry.kube.pods import is_pod_terminal
from tapestry.syncer.translate.metadata import virtual_uid
from tapestry.syncer.translate.pod_status import MAPPING, mapped_uid
from tapestry.syncer.views import ForeignPod, PhysicalPod, Twin, VirtualPod


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


def involves_foreign_pod(old: PhysicalPod | None, new: PhysicalPod | None) -> bool:
    """Return whether the pod is foreign. What twins hold is known from their virtual pods."""
    return isinstance(old, ForeignPod) or isinstance(new, ForeignPod)


def nodes_with_changed_holds(old: PhysicalPod | None, new: PhysicalPod | None) -> list[str]:
    """Return the physical nodes of which a foreign pod holds other amounts than before."""
    before, after = (pod if isinstance(pod, ForeignPod) else None for pod in (old, new))
    if before and after and (before.node, before.allocation.amounts) == (after.node, after.allocation.amounts):
        return []
    return [pod.node for pod in (before, after) if pod is not None and pod.node]


def hold_changed(before: VirtualPod | None, after: VirtualPod | None) -> bool:
    """Return whether a virtual pod was deleted, ended or changed its requests. Creations are handled with a delay."""
    if before is None or after is None:
        return before is not None
    old, new = before.object, after.object
    if is_deleting(old) != is_deleting(new):
        return True
    return bool(old["spec"] != new["spec"] or is_pod_terminal(old) != is_pod_terminal(new))


def changed_beyond_twin_status(before: VirtualPod | None, after: VirtualPod | None) -> bool:
    """Return whether a virtual pod changed in more than the status of its twin."""
    if before is None or after is None:
        return True
    old, new = before.object, after.object
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


def is_mapped_to(pod: VirtualPod | None, twin: Twin) -> bool:
    """Return whether the pod runs or will run as `twin`, and neither of them is ending."""
    if pod is None or pod.uid != virtual_uid(twin.object) or is_deleting(pod.object) or is_pod_terminal(pod.object):
        return False
    return not is_deleting(twin.object) and mapped_uid(pod.object) in (None, twin.uid)


def twin_changed_beyond_status(old: PhysicalPod | None, new: PhysicalPod | None) -> bool:
    """Return whether a twin was created, deleted, marked for deletion, scheduled, or is not scheduled yet."""
    if not isinstance(old, Twin) or not isinstance(new, Twin):
        return True
    return is_deleting(old.object) != is_deleting(new.object) or "nodeName" not in new.object["spec"]


def twin_ended(old: PhysicalPod | None, new: PhysicalPod | None) -> bool:
    """Return whether a twin ended or was deleted."""
    return isinstance(old, Twin) and bool(old.requests) and not (isinstance(new, Twin) and new.requests)


def status_changed(old: VirtualPod | None, new: VirtualPod | None) -> bool:
    """Return whether the status of an existing virtual pod changed."""
    if old is None or new is None:
        return new is not None
    if old.status_digest != new.status_digest or old.is_scheduled != new.is_scheduled:
        return True
    return bool(old.object["status"] != new.object["status"])


def twin_status_changed(old: PhysicalPod | None, new: PhysicalPod | None) -> bool:
    """Return whether the status or the annotations of an existing twin changed."""
    if not isinstance(old, Twin) or not isinstance(new, Twin):
        return isinstance(new, Twin)
    return old.status_json != new.status_json or annotations_of(old.object) != annotations_of(new.object)


def cordon_changed(old: Object | None, new: Object | None) -> bool:
    """Return whether the cordon or the taints of a physical node changed."""
    return any(value_at(old, "spec", field) != value_at(new, "spec", field) for field in ("unschedulable", "taints"))


def is_creation(old: object, _: object) -> bool:
    return old is None


def lifecycle_changed(old: Object | None, new: Object | None) -> bool:
    return old is None or new is None or is_deleting(old) != is_deleting(new)


def ports_changed(old: PhysicalPod | None, new: PhysicalPod | None) -> bool:
    """Return whether the host ports of a physical pod changed, or its node with them."""
    return held_ports(old) != held_ports(new)


def held_ports(pod: PhysicalPod | None) -> object:
    return (pod.node, pod.host_ports) if isinstance(pod, ForeignPod) and pod.host_ports else None
