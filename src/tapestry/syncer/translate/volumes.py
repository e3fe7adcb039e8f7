"""A claim of the virtual cluster and the volume that it is bound to, as they are below.

Only volumes of CSI drivers that the binding names cross, at every level of Pod Security: any other source names
something of the nodes or the network that it means above, and would name the owner's below.  If the binding names
storage classes too, the volume has to be of one of them.  The volume has to be provisioned for its claim, or to have a
handle that the binding's patterns allow: any other handle could be one of the owner's volumes.  What the volume says of
Secrets is rewritten to our copies of Secrets in the claim's own namespace, and a volume that names others is refused.

Below, the volume is reserved for its claim and outlives it (Retain): whose data it is, is decided above.  Where it may
be used was decided above, too, by the scheduler that chose the node, so its node affinity stays there.
"""

from collections.abc import Iterator

from tapestry.apis import keys
from tapestry.apis.clusterbindings import AllowedVolumes, Binding
from tapestry.apis.names import physical_name
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, annotations_of, name_of, namespace_of, uid_of, value_at
from tapestry.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from tapestry.syncer.translate.metadata import source_metadata

CSI_SECRET_FIELDS = (
    *("controllerPublishSecretRef", "nodeStageSecretRef", "nodePublishSecretRef"),
    *("controllerExpandSecretRef", "nodeExpandSecretRef"),
)
"""Where a CSI source names a Secret, by namespace and name."""
CSI_COPIED_FIELDS = ("driver", "volumeHandle", "readOnly", "fsType", "volumeAttributes")
PROVISIONER_ATTRIBUTE_PREFIX = "csi.storage.k8s.io/"
"""What the names of attributes begin with by which a provisioner noted whose the volume is; below it is another's."""
RESIZE_PENDING = "FileSystemResizePending"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
"""The annotation by which a provisioner tells that it made the volume, and for which driver."""


def is_bound(claim: Object, volume: Object) -> bool:
    """Whether the two belong to each other, as both of them say."""
    said = value_at(claim, "status", "phase"), value_at(claim, "spec", "volumeName")
    return said == ("Bound", name_of(volume)) and value_at(volume, "spec", "claimRef", "uid") == uid_of(claim)


def volume_errors(claim: Object, volume: Object, allowed: AllowedVolumes) -> Iterator[str]:
    """Why the volume of a claim does not cross, each with its path in the volume."""
    spec = volume["spec"]
    csi = spec.get("csi")
    if not csi:
        yield "spec: the volume is of no CSI driver, and only those cross"
        return
    if csi["driver"] not in allowed.drivers:
        yield f"spec.csi.driver: {csi['driver']} is not in the binding's allowedVolumes"
    if allowed.storage_classes and class_of(volume) not in allowed.storage_classes:
        yield f"spec.storageClassName: {class_of(volume) or 'none'} is not in the binding's allowedVolumes"
    handle = csi.get("volumeHandle") or ""
    if not is_provisioned(claim, volume) and not any(matches(each, handle) for each in allowed.volume_handles):
        yield (
            "spec.csi.volumeHandle: the volume was not provisioned for the claim, and its handle is in no pattern of "
            "the binding's allowedVolumes.volumeHandles"
        )
    for field, value in csi.items():
        if field in CSI_SECRET_FIELDS:
            yield from secret_reference_errors(field, value, namespace_of(claim) or "")
        elif field not in CSI_COPIED_FIELDS:
            yield f"spec.csi.{field}: it is not known whether that may cross"
    for name in csi.get("volumeAttributes") or ():
        if "secret" in name.lower() and not name.startswith(PROVISIONER_ATTRIBUTE_PREFIX):
            yield f"spec.csi.volumeAttributes[{name}]: the driver may take it for a Secret of the physical cluster"


def is_provisioned(claim: Object, volume: Object) -> bool:
    """Whether a provisioner made the volume for this claim, which then has the claim's UID in its name.

    Only those who may write PersistentVolumes of the virtual cluster can claim that of another volume.
    """
    by = annotations_of(volume).get(PROVISIONED_BY)
    return by == volume["spec"]["csi"]["driver"] and name_of(volume).endswith(f"-{uid_of(claim)}")


def matches(pattern: str, handle: str) -> bool:
    """Whether the pattern, in which * matches any text, matches the whole handle; in linear time."""
    first, *rest = pattern.split("*")
    if not rest:
        return handle == first
    *middle, last = rest
    start, end = len(first), len(handle) - len(last)
    if start > end or not handle.startswith(first) or not handle.endswith(last):
        return False
    for part in middle:
        found = handle.find(part, start, end)
        if found < 0:
            return False
        start = found + len(part)
    return True


def secret_reference_errors(field: str, reference: Object, namespace: str) -> Iterator[str]:
    if not reference.get("name") or reference.get("namespace") != namespace:
        named = f"{reference.get('namespace')}/{reference.get('name')}"
        yield f"spec.csi.{field}: {named} is no Secret of the claim's namespace {namespace}"


def class_of(volume: Object) -> str:
    return volume["spec"].get("storageClassName") or ""


def secrets_of(volume: Object) -> list[str]:
    """The names of the Secrets that the volume needs; all in the claim's namespace, if it is not refused."""
    csi = value_at(volume, "spec", "csi", default={})
    return sorted({csi[field]["name"] for field in CSI_SECRET_FIELDS if csi.get(field)})


def twin_claim(claim: Object, volume: Object, binding: Binding) -> Object:
    """The claim to have below.  It is as large as its volume is when it is made; growth comes by the volume."""
    volume_name = name_in_physical(binding, "", name_of(volume))
    return {
        "apiVersion": PERSISTENT_VOLUME_CLAIMS.api_version,
        "kind": PERSISTENT_VOLUME_CLAIMS.kind,
        "metadata": {
            "name": name_in_physical(binding, namespace_of(claim) or "", name_of(claim)),
            "namespace": binding.spec.mount_namespace,
            **claim_metadata(claim, uid_of(claim), binding),
        },
        "spec": {
            "accessModes": claim["spec"]["accessModes"],
            "resources": {"requests": {"storage": volume["spec"]["capacity"]["storage"]}},
            "storageClassName": class_of(volume),  # even an empty one: a default class would not fit
            "volumeMode": claim["spec"].get("volumeMode") or "Filesystem",
            "volumeName": volume_name,
        },
    }


def twin_volume(claim: Object, volume: Object, binding: Binding) -> Object:
    """The volume to have below, for `Client.converge`; `claim` is the virtual one, which the volume is bound to."""
    spec = volume["spec"]
    namespace = namespace_of(claim) or ""
    reserved_for = {
        "apiVersion": PERSISTENT_VOLUME_CLAIMS.api_version,
        "kind": PERSISTENT_VOLUME_CLAIMS.kind,
        "namespace": binding.spec.mount_namespace,
        "name": name_in_physical(binding, namespace, name_of(claim)),
    }
    return {
        "apiVersion": PERSISTENT_VOLUMES.api_version,
        "kind": PERSISTENT_VOLUMES.kind,
        "metadata": {
            "name": name_in_physical(binding, "", name_of(volume)),
            **claim_metadata(claim, uid_of(volume), binding),
        },
        "spec": {
            "accessModes": spec["accessModes"],
            "capacity": spec["capacity"],
            "claimRef": reserved_for,
            "csi": twin_source(spec["csi"], namespace, binding),
            "mountOptions": spec.get("mountOptions"),
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": class_of(volume) or None,
            "volumeMode": spec.get("volumeMode") or "Filesystem",
        },
    }


def twin_source(csi: Object, namespace: str, binding: Binding) -> Object:
    attributes = csi.get("volumeAttributes") or {}
    kept = {name: value for name, value in attributes.items() if not name.startswith(PROVISIONER_ATTRIBUTE_PREFIX)}
    plain = {**csi, "volumeAttributes": kept}
    found = {field: plain[field] for field in CSI_COPIED_FIELDS if plain.get(field)}
    for field in CSI_SECRET_FIELDS:
        if csi.get(field):
            name = name_in_physical(binding, namespace, csi[field]["name"])
            found[field] = {"name": name, "namespace": binding.spec.mount_namespace}
    return found


def claim_metadata(claim: Object, uid: str, binding: Binding) -> Object:
    """Metadata that leads back to the claim, and tells by its UID of what very object this is the copy."""
    metadata = source_metadata(claim, binding)
    return {**metadata, "annotations": {**metadata["annotations"], keys.VIRTUAL_UID: uid}}


def name_in_physical(binding: Binding, namespace: str, name: str) -> str:
    return physical_name(binding.virtual_cluster, binding.uid, namespace, name)


def is_twin_of(twin: Object, source: Object) -> bool:
    """Whether a twin was made for that very object, and not for a namesake before it."""
    return annotations_of(twin).get(keys.VIRTUAL_UID) == uid_of(source)


def release_patch(volume: Object, claim: Object) -> Object | None:
    """What lets a volume below be bound to the claim that is there now, where it was to one that is gone."""
    if value_at(volume, "spec", "claimRef", "uid") in (None, uid_of(claim)):
        return None
    return {"spec": {"claimRef": {"uid": None, "resourceVersion": None}}}


def expansion_patch(claim: Object, volume: Object, twin: Object) -> Object | None:
    """What tells the virtual claim that its file system has grown, as its twin says; how far was decided above."""
    conditions = value_at(claim, "status", "conditions", default=[])
    size = value_at(volume, "spec", "capacity", "storage")
    if find_condition(conditions, RESIZE_PENDING) is None or value_at(twin, "status", "capacity", "storage") != size:
        return None
    return {
        "status": {
            "capacity": {"storage": size},
            "conditions": [each for each in conditions if each["type"] != RESIZE_PENDING],
            "allocatedResourceStatuses": {"storage": None},
        }
    }
