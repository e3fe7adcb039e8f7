"""Decisions of the volume binder: which volume a claim gets, and the phases of claims and volumes. Pure.

The rules, events and messages are those of the persistent volume controller of Kubernetes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tapestry.controlplane.volume_matching import (
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    OLD_STORAGE_CLASS,
    PROVISIONED_BY,
    SELECTED_NODE,
    STORAGE_PROVISIONER,
    claim_ref_patch,
    claim_reference,
    is_reserved_for,
    mismatch,
    reserved_volume,
    storage_class_of,
    volume_mode_of,
    waits_for_consumer,
)
from tapestry.kube.objects import Object, annotations_of, is_deleting, name_of, uid_of, value_at

IN_TREE_PREFIX = "kubernetes.io/"
"""Prefix of provisioners that a controller manager would have to contain, and of the one for no provisioner."""
OLD_STORAGE_PROVISIONER = "volume.beta.kubernetes.io/storage-provisioner"

Get = Callable[[str], Object | None]


class EventText(NamedTuple):
    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Volumes:
    """Lookup functions for volumes and storage classes."""

    volume: Get
    reserved: Callable[[Object], Iterable[Object]]
    """Volumes that name a claim."""
    free: Callable[[Object], Iterable[Object]]
    """Free volumes that match a claim, the best first."""
    storage_class: Get
    default_class: Callable[[], str | None]


@dataclass(frozen=True, slots=True)
class ClaimStep:
    """The next step of a claim: bind it to a volume, patch it, or set its phase."""

    volume: Object | None = None
    patch: Object | None = None
    phase: Literal["Pending", "Lost"] = "Pending"
    event: EventText | None = None


@dataclass(frozen=True, slots=True)
class VolumeStep:
    """The next step of a volume: set its phase, after a patch if there is one."""

    phase: str
    patch: Object | None = None
    event: EventText | None = None
    """Reason for the phase Failed."""


# -- claims


def claim_step(claim: Object, volumes: Volumes) -> ClaimStep | None:
    """Return the next step, or None if there is none until the claim, a volume or a storage class changes."""
    if BIND_COMPLETED in annotations_of(claim):
        return bound_claim_step(claim, volumes)
    if is_deleting(claim):
        return None
    if value_at(claim, "spec", "volumeName"):
        return named_volume_step(claim, volumes.volume(claim["spec"]["volumeName"]))
    storage_class = volumes.storage_class(storage_class_of(claim))
    is_delayed = waits_for_consumer(storage_class)
    # The scheduler selects the volume of a claim that waits for its first consumer, and reserves it.
    volume = reserved_volume(claim, volumes.reserved(claim))
    if volume is None and not is_delayed:
        volume = next(iter(volumes.free(claim)), None)
    if volume is not None:
        return ClaimStep(volume)
    has_class = value_at(claim, "spec", "storageClassName") is not None or OLD_STORAGE_CLASS in annotations_of(claim)
    if not has_class and (name := volumes.default_class()):
        return ClaimStep(patch={"spec": {"storageClassName": name}})
    if is_delayed and SELECTED_NODE not in annotations_of(claim):
        message = "waiting for first consumer to be created before binding"
        return ClaimStep(event=EventText("Normal", "WaitForFirstConsumer", message))
    return provisioning_step(claim, storage_class)


def provisioning_step(claim: Object, storage_class: Object | None) -> ClaimStep:
    name = storage_class_of(claim)
    if not name:
        message = "no persistent volumes available for this claim and no storage class is set"
        return ClaimStep(event=EventText("Normal", "FailedBinding", message))
    if storage_class is None:
        message = f'storageclass.storage.k8s.io "{name}" not found'
        return ClaimStep(event=EventText("Warning", "ProvisioningFailed", message))
    provisioner = storage_class["provisioner"]
    if provisioner.startswith(IN_TREE_PREFIX):
        message = f"no volume plugin matched name: {provisioner}"
        return ClaimStep(event=EventText("Warning", "ProvisioningFailed", message))
    message = (
        f"Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the "
        "system administrator. If volume creation is delayed, please verify that the provisioner is running and "
        "correctly registered."
    )
    marks = {STORAGE_PROVISIONER: provisioner, OLD_STORAGE_PROVISIONER: provisioner}
    is_marked = all(annotations_of(claim).get(key) == value for key, value in marks.items())
    patch = None if is_marked else {"metadata": {"annotations": marks}}
    return ClaimStep(patch=patch, event=EventText("Normal", "ExternalProvisioning", message))


def named_volume_step(claim: Object, volume: Object | None) -> ClaimStep:
    """Return the step of an unbound claim that names its volume."""
    if volume is None:
        return ClaimStep()
    if value_at(volume, "spec", "claimRef") is None:
        if reason := mismatch(volume, claim):
            message = f'Cannot bind to requested volume "{name_of(volume)}": {reason}'
            return ClaimStep(event=EventText("Warning", "VolumeMismatch", message))
        return ClaimStep(volume)
    if is_reserved_for(volume, claim):
        return ClaimStep(volume)
    message = f'volume "{name_of(volume)}" already bound to a different claim.'
    return ClaimStep(event=EventText("Warning", "FailedBinding", message))


def bound_claim_step(claim: Object, volumes: Volumes) -> ClaimStep:
    name = value_at(claim, "spec", "volumeName")
    if not name:
        return lost_step("ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
    volume = volumes.volume(name)
    if volume is None:
        return lost_step("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
    reference = value_at(volume, "spec", "claimRef")
    if reference is None or reference.get("uid") == uid_of(claim):
        return ClaimStep(volume)
    return lost_step("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")


def lost_step(reason: str, message: str) -> ClaimStep:
    return ClaimStep(phase="Lost", event=EventText("Warning", reason, message))


# -- volumes


def volume_step(volume: Object, claim: Object | None) -> VolumeStep | None:
    """Return the next step of a volume. `claim` is the claim that it names, if that exists with the same UID."""
    reference = value_at(volume, "spec", "claimRef")
    if reference is None or not reference.get("uid"):
        return VolumeStep("Available")
    if claim is None:
        return released_step(volume)
    claimed = value_at(claim, "spec", "volumeName")
    if claimed == name_of(volume):
        return VolumeStep("Bound")
    if not claimed:
        return mode_mismatch_step(volume, claim)
    if PROVISIONED_BY in annotations_of(volume) and reclaim_policy_of(volume) == "Delete":
        return released_step(volume)
    if BOUND_BY_CONTROLLER in annotations_of(volume):
        patch = {"metadata": {"annotations": {BOUND_BY_CONTROLLER: None}}, "spec": {"claimRef": None}}
    else:
        patch = {"spec": {"claimRef": {"uid": None}}}
    return VolumeStep("Available", patch)


def mode_mismatch_step(volume: Object, claim: Object) -> VolumeStep | None:
    """Return an event for a volume that cannot be bound to the claim that it is reserved for."""
    if volume_mode_of(volume) == volume_mode_of(claim):
        return None  # the step of the claim completes the binding
    message = (
        f'Cannot bind PersistentVolume to requested PersistentVolumeClaim "{name_of(claim)}" due to incompatible '
        "volumeMode."
    )
    event = EventText("Warning", "VolumeMismatch", message)
    return VolumeStep(value_at(volume, "status", "phase", default="Pending"), event=event)


def released_step(volume: Object) -> VolumeStep:
    """Return the step of a volume whose claim was deleted. External provisioners delete what they provisioned."""
    policy, name = reclaim_policy_of(volume), name_of(volume)
    is_external = value_at(volume, "spec", "csi") is not None or PROVISIONED_BY in annotations_of(volume)
    if policy == "Recycle":
        message = "No recycler plugin found for the volume!"
        return VolumeStep("Failed", event=EventText("Warning", "VolumeFailedRecycle", message))
    if policy == "Delete" and not is_external:
        message = f'error getting deleter volume plugin for volume "{name}": no deletable volume plugin matched'
        return VolumeStep("Failed", event=EventText("Warning", "VolumeFailedDelete", message))
    return VolumeStep("Released")


def reclaim_policy_of(volume: Object) -> str:
    return str(value_at(volume, "spec", "persistentVolumeReclaimPolicy", default="Retain"))


# -- patches of a binding, in the order in which they are written; None if the object has the content already


def volume_patch(volume: Object, claim: Object) -> Object | None:
    reference = value_at(volume, "spec", "claimRef")
    if reference is None:
        return claim_ref_patch(claim)
    return None if reference.get("uid") == uid_of(claim) else {"spec": {"claimRef": claim_reference(claim)}}


def claim_patch(claim: Object, volume: Object) -> Object | None:
    if value_at(claim, "spec", "volumeName") != name_of(volume):
        marks = {BOUND_BY_CONTROLLER: "yes", BIND_COMPLETED: "yes"}
        return {"metadata": {"annotations": marks}, "spec": {"volumeName": name_of(volume)}}
    if BIND_COMPLETED in annotations_of(claim):
        return None
    return {"metadata": {"annotations": {BIND_COMPLETED: "yes"}}}


def claim_status_patch(claim: Object, volume: Object) -> Object | None:
    """Return the status of a bound claim. A claim that is bound already keeps its capacity: others update that."""
    status, access_modes = claim.get("status") or {}, volume["spec"].get("accessModes")
    if status.get("phase") != "Bound":
        return {"status": {"phase": "Bound", "accessModes": access_modes, "capacity": volume["spec"].get("capacity")}}
    return None if status.get("accessModes") == access_modes else {"status": {"accessModes": access_modes}}
