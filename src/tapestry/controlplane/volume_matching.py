"""Matching of claims and volumes, for the binder and the scheduler. Pure."""

from collections.abc import Callable, Iterable

from tapestry.kube.objects import (
    Object,
    annotations_of,
    is_deleting,
    labels_of,
    name_of,
    namespace_of,
    uid_of,
    value_at,
)
from tapestry.kube.quantity import parse_quantity
from tapestry.kube.selectors import LabelSelector, label_selector

SELECTED_NODE = "volume.kubernetes.io/selected-node"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
STORAGE_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
OLD_STORAGE_CLASS = "volume.beta.kubernetes.io/storage-class"
NO_PROVISIONER = "kubernetes.io/no-provisioner"


def claim_names(pod: Object) -> Iterable[tuple[str, bool]]:
    """Yield the names of its claims, and whether each is ephemeral."""
    for volume in pod["spec"].get("volumes") or ():
        if name := value_at(volume, "persistentVolumeClaim", "claimName"):
            yield name, False
        elif volume.get("ephemeral") is not None:
            yield f"{name_of(pod)}-{volume['name']}", True


def is_bound(claim: Object) -> bool:
    is_complete = BIND_COMPLETED in annotations_of(claim) or value_at(claim, "status", "phase") == "Bound"
    return bool(value_at(claim, "spec", "volumeName")) and is_complete


def storage_class_of(obj: Object) -> str:
    old: str | None = annotations_of(obj).get(OLD_STORAGE_CLASS)
    return old if old is not None else str(value_at(obj, "spec", "storageClassName", default=""))


def waits_for_consumer(storage_class: Object | None) -> bool:
    return bool(value_at(storage_class, "volumeBindingMode") == "WaitForFirstConsumer")


def requested_storage(claim: Object) -> int:
    return parse_quantity(value_at(claim, "spec", "resources", "requests", "storage", default="0")).nano


def capacity_of(volume: Object) -> int:
    return parse_quantity(value_at(volume, "spec", "capacity", "storage", default="0")).nano


def volume_mode_of(obj: Object) -> str:
    return str(value_at(obj, "spec", "volumeMode", default="Filesystem"))


def has_access_modes(volume: Object, claim: Object) -> bool:
    return set(claim["spec"].get("accessModes") or ()) <= set(volume["spec"].get("accessModes") or ())


def is_reserved_for(volume: Object, claim: Object) -> bool:
    """Return whether the volume names the claim, and no other claim of that name."""
    reference = value_at(volume, "spec", "claimRef", default={})
    return (
        reference.get("name") == name_of(claim)
        and reference.get("namespace") == namespace_of(claim)
        and reference.get("uid") in (None, "", uid_of(claim))
    )


def is_volume_free(volume: Object) -> bool:
    return (
        value_at(volume, "spec", "claimRef") is None
        and not is_deleting(volume)
        and value_at(volume, "status", "phase") == "Available"
    )


def mismatch(volume: Object, claim: Object) -> str:
    """Return why a volume that the claim names does not satisfy it, or an empty string. Labels do not matter."""
    if is_deleting(volume):
        return f'the volume is marked for deletion "{name_of(volume)}"'
    if capacity_of(volume) < requested_storage(claim):
        return "requested PV is too small"
    if storage_class_of(volume) != storage_class_of(claim):
        return "storageClassName does not match"
    if attributes_class_of(volume) != attributes_class_of(claim):
        return "volumeAttributesClassName does not match"
    if volume_mode_of(volume) != volume_mode_of(claim):
        return "incompatible volumeMode"
    return "" if has_access_modes(volume, claim) else "incompatible accessMode"


def attributes_class_of(obj: Object) -> str:
    return str(value_at(obj, "spec", "volumeAttributesClassName", default=""))


def best_volume(
    claim: Object,
    reserved: Iterable[Object],
    others: Iterable[Object],
    is_reachable: Callable[[Object], bool] = lambda _: True,
) -> Object | None:
    """Return the suitable volume that is reserved for the claim, or else the smallest free one of the others.

    A reserved volume that is not reachable excludes all others.
    """
    if (volume := reserved_volume(claim, reserved)) is not None:
        return volume if is_reachable(volume) else None
    requested = requested_storage(claim)
    best, best_capacity, selector = None, 0, claim_selector(claim)
    for volume in others:
        capacity = capacity_of(volume)
        if capacity < requested or (best is not None and capacity >= best_capacity):
            continue
        if not (is_volume_free(volume) and is_suitable(volume, claim) and is_reachable(volume)):
            continue
        if selector is None or selector.matches(labels_of(volume)):
            best, best_capacity = volume, capacity
            if capacity == requested:
                break
    return best


def is_candidate(volume: Object, claim: Object) -> bool:
    """Return whether a volume of the storage class of the claim could be the best one on some node."""
    return is_reserved_for(volume, claim) or (
        is_volume_free(volume) and capacity_of(volume) >= requested_storage(claim) and is_suitable(volume, claim)
    )


def reserved_volume(claim: Object, volumes: Iterable[Object]) -> Object | None:
    """Return the suitable volume that is reserved for the claim."""
    for volume in volumes:
        is_sufficient = is_reserved_for(volume, claim) and capacity_of(volume) >= requested_storage(claim)
        if is_sufficient and is_suitable(volume, claim):
            return volume
    return None


def is_suitable(volume: Object, claim: Object) -> bool:
    """Return whether a volume of sufficient capacity and any storage class could be bound to the claim."""
    return (
        not is_deleting(volume)
        and volume_mode_of(volume) == volume_mode_of(claim)
        and has_access_modes(volume, claim)
        and attributes_class_of(volume) == attributes_class_of(claim)
    )


def claim_selector(claim: Object) -> LabelSelector | None:
    selector = claim["spec"].get("selector")
    return None if selector is None else label_selector(selector)


def claim_reference(claim: Object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": namespace_of(claim),
        "name": name_of(claim),
        "uid": uid_of(claim),
    }


def claim_ref_patch(claim: Object) -> Object:
    return {"metadata": {"annotations": {BOUND_BY_CONTROLLER: "yes"}}, "spec": {"claimRef": claim_reference(claim)}}
