"""Twins of claims and of the volumes that they are bound to.

Only volumes of CSI drivers that the binding names are synced, at every Pod Security level: any other source refers to
nodes or networks and would refer to the owner's in the physical cluster. If the binding names storage classes, the
volume must be of one of them. The volume must be provisioned for its claim or have a handle that matches the binding's
patterns: any other handle could be one of the owner's volumes. References to Secrets are rewritten to our copies of
Secrets in the claim's namespace; a volume that refers to other Secrets is rejected.

The twin volume is reserved for its claim and has reclaim policy Retain: the virtual cluster decides about the data. The
virtual scheduler has already chosen the node, so node affinity is not copied.
"""

from collections.abc import Iterator

from tapestry.apis import keys
from tapestry.apis.clusterbindings import AllowedVolumes, Binding
from tapestry.apis.names import physical_name
from tapestry.kube.objects import Object, annotations_of, name_of, namespace_of, uid_of, value_at
from tapestry.kube.pod_references import CSI_SECRET_FIELDS
from tapestry.kube.quantity import parse_quantity
from tapestry.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from tapestry.syncer.translate.metadata import source_metadata
from tapestry.syncer.translate.sanitize import as_list, as_object, sanitized_amount, text_fields, time_fields

CSI_COPIED_FIELDS = ("driver", "volumeHandle", "readOnly", "fsType", "volumeAttributes")
PROVISIONER_ATTRIBUTE_PREFIX = "csi.storage.k8s.io/"
"""Prefix of the attributes in which a provisioner records the virtual claim; they do not apply to the twin."""
KUBELET_CONDITIONS = ("FileSystemResizePending", "NodeResizeError")
"""Conditions of a claim that depend on the expansion of the file system by a kubelet."""
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
"""Annotation in which a provisioner records the driver that it created the volume for."""


def is_bound(claim: Object, volume: Object) -> bool:
    """Return whether claim and volume are bound to each other, according to both."""
    binding = value_at(claim, "status", "phase"), value_at(claim, "spec", "volumeName")
    return binding == ("Bound", name_of(volume)) and value_at(volume, "spec", "claimRef", "uid") == uid_of(claim)


def volume_errors(claim: Object, volume: Object, allowed: AllowedVolumes) -> Iterator[str]:
    """Yield the reasons why the volume of a claim may not be synced, each with its field path."""
    spec = volume["spec"]
    csi = spec.get("csi")
    if not csi:
        yield "spec: the volume has no CSI driver; only CSI volumes are synced"
        return
    if csi["driver"] not in allowed.drivers:
        yield f"spec.csi.driver: {csi['driver']} is not in the binding's allowedVolumes"
    if allowed.storage_classes and class_of(volume) not in allowed.storage_classes:
        yield f"spec.storageClassName: {class_of(volume) or 'none'} is not in the binding's allowedVolumes"
    handle = csi.get("volumeHandle") or ""
    if not is_provisioned(claim, volume) and not any(matches(each, handle) for each in allowed.volume_handles):
        yield (
            "spec.csi.volumeHandle: the volume was not provisioned for the claim, and its handle matches no pattern of "
            "the binding's allowedVolumes.volumeHandles"
        )
    for field, value in csi.items():
        if field in CSI_SECRET_FIELDS:
            yield from secret_reference_errors(field, value, namespace_of(claim) or "")
        elif field not in CSI_COPIED_FIELDS:
            yield f"spec.csi.{field}: unknown field; it is not synced"
    for name in csi.get("volumeAttributes") or ():
        if "secret" in name.lower() and not name.startswith(PROVISIONER_ATTRIBUTE_PREFIX):
            yield f"spec.csi.volumeAttributes[{name}]: the driver may read it as a Secret of the physical cluster"


def is_provisioned(claim: Object, volume: Object) -> bool:
    """Return whether a provisioner created the volume for this claim: its name then contains the claim's UID.

    Only users who may write PersistentVolumes of the virtual cluster can forge that.
    """
    provisioner = annotations_of(volume).get(PROVISIONED_BY)
    return provisioner == volume["spec"]["csi"]["driver"] and name_of(volume).endswith(f"-{uid_of(claim)}")


def matches(pattern: str, handle: str) -> bool:
    """Return whether the pattern, in which * matches any text, matches the whole handle. Takes linear time."""
    first, *rest = pattern.split("*")
    if not rest:
        return handle == first
    *middle, last = rest
    start, end = len(first), len(handle) - len(last)
    if start > end or not handle.startswith(first) or not handle.endswith(last):
        return False
    for part in middle:
        index = handle.find(part, start, end)
        if index < 0:
            return False
        start = index + len(part)
    return True


def secret_reference_errors(field: str, reference: Object, namespace: str) -> Iterator[str]:
    if not reference.get("name") or reference.get("namespace") != namespace:
        secret = f"{reference.get('namespace')}/{reference.get('name')}"
        yield f"spec.csi.{field}: {secret} is not a Secret of the claim's namespace {namespace}"


def class_of(volume: Object) -> str:
    return volume["spec"].get("storageClassName") or ""


def twin_claim(claim: Object, volume: Object, binding: Binding) -> Object:
    """Return the desired twin claim. Its size is that of the volume at its creation; only the volume is expanded."""
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
            "storageClassName": class_of(volume),  # even if empty: a default class would not match
            "volumeMode": claim["spec"].get("volumeMode") or "Filesystem",
            "volumeName": volume_name,
        },
    }


def twin_volume(claim: Object, volume: Object, binding: Binding) -> Object:
    """Return the desired twin volume, for `Client.converge`; `claim` is the virtual claim of `volume`."""
    spec = volume["spec"]
    namespace = namespace_of(claim) or ""
    claim_ref = {
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
            "claimRef": claim_ref,
            "csi": twin_source(spec["csi"], namespace, binding),
            "mountOptions": spec.get("mountOptions"),
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": class_of(volume) or None,
            "volumeMode": spec.get("volumeMode") or "Filesystem",
        },
    }


def twin_source(csi: Object, namespace: str, binding: Binding) -> Object:
    attributes = csi.get("volumeAttributes") or {}
    copied = {name: value for name, value in attributes.items() if not name.startswith(PROVISIONER_ATTRIBUTE_PREFIX)}
    cleaned = {**csi, "volumeAttributes": copied}
    source = {field: cleaned[field] for field in CSI_COPIED_FIELDS if cleaned.get(field)}
    for field in CSI_SECRET_FIELDS:
        if csi.get(field):
            name = name_in_physical(binding, namespace, csi[field]["name"])
            source[field] = {"name": name, "namespace": binding.spec.mount_namespace}
    return source


def claim_metadata(claim: Object, uid: str, binding: Binding) -> Object:
    """Return metadata that identifies the virtual claim, and by its UID the object that this is the twin of."""
    metadata = source_metadata(claim, binding)
    return {**metadata, "annotations": {**metadata["annotations"], keys.VIRTUAL_UID: uid}}


def name_in_physical(binding: Binding, namespace: str, name: str) -> str:
    return physical_name(binding.virtual_cluster, binding.uid, namespace, name)


def is_twin_of(twin: Object, source: Object) -> bool:
    """Return whether the twin was created for that very object, and not for an earlier one with its name."""
    return annotations_of(twin).get(keys.VIRTUAL_UID) == uid_of(source)


def release_patch(volume: Object, claim: Object) -> Object | None:
    """Return the patch that lets a volume bind to the current twin claim instead of a deleted one."""
    if value_at(volume, "spec", "claimRef", "uid") in (None, uid_of(claim)):
        return None
    return {"spec": {"claimRef": {"uid": None, "resourceVersion": None}}}


def resize_patch(claim: Object, volume: Object, twin: Object) -> Object | None:
    """Return the patch that reports the expansion of the file system by the physical kubelet to the virtual claim.

    Of the twin's status, the capacity is used up to that of the virtual volume, and the conditions that a kubelet sets.
    A condition that the claim has already is not overwritten: syncers of other clusters may report on it, too.
    """
    status = claim.get("status") or {}
    conditions, capacity = status.get("conditions") or [], value_at(status, "capacity", "storage")
    size_text = value_at(volume, "spec", "capacity", "storage")
    reached_text = sanitized_amount("storage", value_at(as_object(twin.get("status")), "capacity", "storage"))
    if not capacity or not size_text or not reached_text:
        return None
    current, size, reached = (parse_quantity(text).nano for text in (capacity, size_text, reached_text))
    is_pending = any(each["type"] in KUBELET_CONDITIONS for each in conditions)
    if reached == size and (current < size or is_pending):
        remaining = [each for each in conditions if each["type"] not in KUBELET_CONDITIONS]
        unset = {"allocatedResourceStatuses": {"storage": None}}
        return {"status": {"capacity": {"storage": size_text}, "conditions": remaining, **unset}}
    patch: Object = {"capacity": {"storage": reached_text}} if current < reached < size else {}
    if current < size and (added := added_conditions(conditions, twin)):
        patch["conditions"] = [*conditions, *added]
    return {"status": patch} if patch else None


def added_conditions(conditions: list[Object], twin: Object) -> list[Object]:
    """Return the conditions of kubelets that the twin has and the virtual claim lacks, sanitized."""
    known, added = {each["type"] for each in conditions}, []
    for each in map(as_object, as_list(value_at(as_object(twin.get("status")), "conditions"))):
        type = each.get("type")
        if type in KUBELET_CONDITIONS and type not in known and each.get("status") == "True":
            known.add(type)
            texts, times = text_fields(each, "reason", "message"), time_fields(each, "lastTransitionTime")
            added.append({"type": type, "status": "True", **texts, **times})
    return added


def claim_problem(key: str, twin: Object) -> tuple[str, str] | None:
    """Return reason and message if the twin of the claim `key` is not bound."""
    phase = value_at(as_object(twin.get("status")), "phase")
    if phase == "Lost":
        return "ClaimLostBelow", (
            f"claim {key} has lost its volume in the physical cluster; delete the pods that mount it, and new ones get "
            "the volume again"
        )
    if phase == "Pending":
        return "ClaimPendingBelow", (
            f"claim {key} is not bound in the physical cluster yet; its owner can see why with kubectl describe "
            f"persistentvolumeclaim {name_of(twin)} --namespace {namespace_of(twin)}"
        )
    return None
