"""Volumes, claims, and what storage drivers say of themselves, in a table."""

from collections.abc import Callable
from dataclasses import replace

from tapestry.apiserver.printing.prints import (
    AGE,
    BOOLEAN,
    CREATED,
    INTEGER,
    NAME,
    NONE,
    UNSET,
    Columns,
    Print,
    count,
    of,
    path,
)
from tapestry.kube.objects import Object, annotations_of, name_of, value_at

ACCESS = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}
OLD_CLASS = "volume.beta.kubernetes.io/storage-class"
DEFAULTS = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")


def access_modes(obj: Object, field: str) -> str:
    modes = value_at(obj, field, "accessModes", default=[])
    return ",".join(short for mode, short in ACCESS.items() if mode in modes)


def phase(obj: Object) -> str:
    if "deletionTimestamp" in obj["metadata"]:
        return "Terminating"
    return str(value_at(obj, "status", "phase", default=""))


def storage_class(obj: Object) -> str:
    return str(annotations_of(obj).get(OLD_CLASS, value_at(obj, "spec", "storageClassName", default="")))


def volume_claim(volume: Object) -> str:
    about = value_at(volume, "spec", "claimRef")
    return f"{about.get('namespace', '')}/{about.get('name', '')}" if about else ""


def if_bound(show: Callable[[Object], str]) -> Callable[[Object], str]:
    """What is known of a claim once it has a volume."""
    return lambda claim: show(claim) if value_at(claim, "spec", "volumeName") else ""


def class_name(obj: Object) -> str:
    is_default = any(annotations_of(obj).get(each) == "true" for each in DEFAULTS)
    return f"{name_of(obj)} (default)" if is_default else name_of(obj)


def audiences(obj: Object) -> str:
    requests = value_at(obj, "spec", "tokenRequests")
    return UNSET if requests is None else ",".join(each.get("audience", "") for each in requests)


CLASS = Print("StorageClass", of(storage_class))
ATTRIBUTES = Print("VolumeAttributesClass", path("spec", "volumeAttributesClassName", default=UNSET))
MODE = Print("VolumeMode", path("spec", "volumeMode", default=UNSET), priority=1)
SIZE = if_bound(lambda obj: str(value_at(obj, "status", "capacity", "storage", default="0")))
ACCESS_OF_CLAIM = if_bound(lambda obj: access_modes(obj, "status"))

COLUMNS: Columns = {
    "persistentvolumes": (
        NAME,
        Print("Capacity", path("spec", "capacity", "storage", default="0")),
        Print("Access Modes", of(lambda obj: access_modes(obj, "spec"))),
        Print("Reclaim Policy", path("spec", "persistentVolumeReclaimPolicy")),
        Print("Status", of(phase)),
        Print("Claim", of(volume_claim)),
        CLASS,
        ATTRIBUTES,
        Print("Reason", path("status", "reason")),
        AGE,
        MODE,
    ),
    "persistentvolumeclaims": (
        NAME,
        Print("Status", of(phase)),
        Print("Volume", path("spec", "volumeName")),
        Print("Capacity", of(SIZE)),
        Print("Access Modes", of(ACCESS_OF_CLAIM)),
        CLASS,
        ATTRIBUTES,
        AGE,
        MODE,
    ),
    "storageclasses.storage.k8s.io": (
        replace(NAME, show=of(class_name)),
        Print("Provisioner", path("provisioner")),
        Print("ReclaimPolicy", path("reclaimPolicy", default="Delete")),
        Print("VolumeBindingMode", path("volumeBindingMode", default="Immediate")),
        Print("AllowVolumeExpansion", path("allowVolumeExpansion", default=False)),
        AGE,
    ),
    "csidrivers.storage.k8s.io": (
        NAME,
        Print("AttachRequired", path("spec", "attachRequired", default=True), BOOLEAN),
        Print("PodInfoOnMount", path("spec", "podInfoOnMount", default=False), BOOLEAN),
        Print("StorageCapacity", path("spec", "storageCapacity", default=False), BOOLEAN),
        Print("TokenRequests", of(audiences)),
        Print("RequiresRepublish", path("spec", "requiresRepublish", default=False), BOOLEAN),
        Print("Modes", of(lambda obj: ",".join(value_at(obj, "spec", "volumeLifecycleModes", default=[])) or NONE)),
        AGE,
    ),
    "csinodes.storage.k8s.io": (NAME, Print("Drivers", count("spec", "drivers"), INTEGER), AGE),
    "csistoragecapacities.storage.k8s.io": (NAME, CREATED),
    "volumeattachments.storage.k8s.io": (
        NAME,
        Print("Attacher", path("spec", "attacher"), format="name"),
        Print("PV", path("spec", "source", "persistentVolumeName")),
        Print("Node", path("spec", "nodeName")),
        Print("Attached", path("status", "attached", default=False), BOOLEAN),
        AGE,
    ),
    "volumeattributesclasses.storage.k8s.io": (NAME, Print("DriverName", path("driverName")), AGE),
}
