"""Table columns of persistent volumes, claims, storage classes, attachments and CSI drivers."""

from collections.abc import Callable
from dataclasses import replace

from tapestry.apiserver.printing.table_columns import (
    AGE,
    BOOLEAN,
    CREATED,
    INTEGER,
    NAME,
    NONE,
    UNSET,
    ColumnsByResource,
    TableColumn,
    computed_cell,
    count_cell,
    value_cell,
)
from tapestry.kube.objects import Object, annotations_of, name_of, value_at

ACCESS_MODE_ABBREVIATIONS = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}
BETA_STORAGE_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
DEFAULT_CLASS_ANNOTATIONS = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)


def access_modes_text(obj: Object, field: str) -> str:
    modes = value_at(obj, field, "accessModes", default=[])
    return ",".join(short for mode, short in ACCESS_MODE_ABBREVIATIONS.items() if mode in modes)


def volume_phase(obj: Object) -> str:
    if "deletionTimestamp" in obj["metadata"]:
        return "Terminating"
    return str(value_at(obj, "status", "phase", default=""))


def storage_class_of(obj: Object) -> str:
    return str(
        annotations_of(obj).get(BETA_STORAGE_CLASS_ANNOTATION, value_at(obj, "spec", "storageClassName", default=""))
    )


def volume_claim_key(volume: Object) -> str:
    claim_ref = value_at(volume, "spec", "claimRef")
    return f"{claim_ref.get('namespace', '')}/{claim_ref.get('name', '')}" if claim_ref else ""


def only_if_bound(compute: Callable[[Object], str]) -> Callable[[Object], str]:
    """Return a cell function that is empty for a claim without a volume."""
    return lambda claim: compute(claim) if value_at(claim, "spec", "volumeName") else ""


def storage_class_name(obj: Object) -> str:
    is_default = any(annotations_of(obj).get(each) == "true" for each in DEFAULT_CLASS_ANNOTATIONS)
    return f"{name_of(obj)} (default)" if is_default else name_of(obj)


def token_audiences(obj: Object) -> str:
    requests = value_at(obj, "spec", "tokenRequests")
    return UNSET if requests is None else ",".join(each.get("audience", "") for each in requests)


STORAGE_CLASS_COLUMN = TableColumn("StorageClass", computed_cell(storage_class_of))
ATTRIBUTES_CLASS_COLUMN = TableColumn(
    "VolumeAttributesClass", value_cell("spec", "volumeAttributesClassName", default=UNSET)
)
VOLUME_MODE_COLUMN = TableColumn("VolumeMode", value_cell("spec", "volumeMode", default=UNSET), priority=1)
claim_capacity = only_if_bound(lambda obj: str(value_at(obj, "status", "capacity", "storage", default="0")))
claim_access_modes = only_if_bound(lambda obj: access_modes_text(obj, "status"))

COLUMNS: ColumnsByResource = {
    "persistentvolumes": (
        NAME,
        TableColumn("Capacity", value_cell("spec", "capacity", "storage", default="0")),
        TableColumn("Access Modes", computed_cell(lambda obj: access_modes_text(obj, "spec"))),
        TableColumn("Reclaim Policy", value_cell("spec", "persistentVolumeReclaimPolicy")),
        TableColumn("Status", computed_cell(volume_phase)),
        TableColumn("Claim", computed_cell(volume_claim_key)),
        STORAGE_CLASS_COLUMN,
        ATTRIBUTES_CLASS_COLUMN,
        TableColumn("Reason", value_cell("status", "reason")),
        AGE,
        VOLUME_MODE_COLUMN,
    ),
    "persistentvolumeclaims": (
        NAME,
        TableColumn("Status", computed_cell(volume_phase)),
        TableColumn("Volume", value_cell("spec", "volumeName")),
        TableColumn("Capacity", computed_cell(claim_capacity)),
        TableColumn("Access Modes", computed_cell(claim_access_modes)),
        STORAGE_CLASS_COLUMN,
        ATTRIBUTES_CLASS_COLUMN,
        AGE,
        VOLUME_MODE_COLUMN,
    ),
    "storageclasses.storage.k8s.io": (
        replace(NAME, cell=computed_cell(storage_class_name)),
        TableColumn("Provisioner", value_cell("provisioner")),
        TableColumn("ReclaimPolicy", value_cell("reclaimPolicy", default="Delete")),
        TableColumn("VolumeBindingMode", value_cell("volumeBindingMode", default="Immediate")),
        TableColumn("AllowVolumeExpansion", value_cell("allowVolumeExpansion", default=False)),
        AGE,
    ),
    "csidrivers.storage.k8s.io": (
        NAME,
        TableColumn("AttachRequired", value_cell("spec", "attachRequired", default=True), BOOLEAN),
        TableColumn("PodInfoOnMount", value_cell("spec", "podInfoOnMount", default=False), BOOLEAN),
        TableColumn("StorageCapacity", value_cell("spec", "storageCapacity", default=False), BOOLEAN),
        TableColumn("TokenRequests", computed_cell(token_audiences)),
        TableColumn("RequiresRepublish", value_cell("spec", "requiresRepublish", default=False), BOOLEAN),
        TableColumn(
            "Modes",
            computed_cell(lambda obj: ",".join(value_at(obj, "spec", "volumeLifecycleModes", default=[])) or NONE),
        ),
        AGE,
    ),
    "csinodes.storage.k8s.io": (NAME, TableColumn("Drivers", count_cell("spec", "drivers"), INTEGER), AGE),
    "csistoragecapacities.storage.k8s.io": (NAME, CREATED),
    "volumeattachments.storage.k8s.io": (
        NAME,
        TableColumn("Attacher", value_cell("spec", "attacher"), format="name"),
        TableColumn("PV", value_cell("spec", "source", "persistentVolumeName")),
        TableColumn("Node", value_cell("spec", "nodeName")),
        TableColumn("Attached", value_cell("status", "attached", default=False), BOOLEAN),
        AGE,
    ),
    "volumeattributesclasses.storage.k8s.io": (NAME, TableColumn("DriverName", value_cell("driverName")), AGE),
}
