"""Claims of a tenant in its host cluster, and the volumes and storage classes of its plane. Pure.

To the plane, the host cluster is an external provisioner. Its volumes are named `pvc-UID` after the claim that they
were provisioned for. A claim in the host cluster stands for such a volume: it outlives its claim in the plane if the
volume is retained, and another claim of the plane may be bound to the volume later.

The volumes of the plane have a CSI source that means nothing outside: it has neither the driver nor the handle of the
host cluster, and nothing reads it except for the name of the driver. Everything else about a volume, also one that the
tenant writes itself, can only select among the tenant's own claims in the host cluster.
"""

from collections.abc import Mapping

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.hostclusters import OfferedStorageClass
from tapestry.apis.names import physical_name
from tapestry.apiserver.admission.default_class import STORAGE_CLASS_MARKS
from tapestry.controlplane.volume_matching import (
    BIND_COMPLETED,
    OLD_STORAGE_CLASS,
    PROVISIONED_BY,
    SELECTED_NODE,
    STORAGE_PROVISIONER,
    capacity_of,
    claim_reference,
    requested_storage,
    storage_class_of,
    volume_mode_of,
    waits_for_consumer,
)
from tapestry.kube.names import label_key_error, label_value_error
from tapestry.kube.objects import Object, annotations_of, is_deleting, uid_of, value_at
from tapestry.kube.quantity import parse_quantity
from tapestry.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES
from tapestry.syncer.translate.metadata import source_metadata
from tapestry.syncer.translate.nodes import HOSTNAME, RESERVED_LABEL_PREFIXES
from tapestry.syncer.translate.sanitize import as_list, as_object, sanitized_amount
from tapestry.tenants.sync.twin_objects import NotSynced, NoTwin

DRIVER = keys.HOST_VOLUME_DRIVER
VOLUME_PREFIX = "pvc-"
UNSUPPORTED_FIELDS = ("dataSource", "dataSourceRef", "selector", "volumeAttributesClassName")
"""Fields of a claim that a new volume of the host cluster cannot satisfy."""
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
MAX_TERMS, MAX_VALUES = 16, 256


# -- volumes of the plane


def volume_of(claim: Object) -> str:
    """Return the name of the volume that a claim is bound to, or that would be provisioned for it."""
    return value_at(claim, "spec", "volumeName") or provisioned_volume(claim)


def provisioned_volume(claim: Object) -> str:
    """Return the name of the volume that is provisioned for a claim without one."""
    return VOLUME_PREFIX + uid_of(claim)


def volume_of_twin(twin: Object) -> str:
    return VOLUME_PREFIX + annotations_of(twin).get(keys.VIRTUAL_UID, "")


def is_of_host(volume: Object) -> bool:
    """Return whether a volume of the plane claims to be one of the host cluster."""
    return bool(value_at(volume, "spec", "csi", "driver") == DRIVER)


def is_disposable(volume: Object) -> bool:
    """Return whether the volume, and its data, have to be deleted because its claim was."""
    policy, phase = value_at(volume, "spec", "persistentVolumeReclaimPolicy"), value_at(volume, "status", "phase")
    return is_of_host(volume) and policy == "Delete" and phase == "Released"


def plane_volume(claim: Object, twin: Object, storage_class: Object | None, affinity: Object | None) -> Object:
    """Return the volume of the plane for a bound claim of the host cluster. Its reclaim policy is that of the plane."""
    size = sanitized_amount("storage", value_at(as_object(twin.get("status")), "capacity", "storage"))
    name = volume_of_twin(twin)
    return {
        "apiVersion": PERSISTENT_VOLUMES.api_version,
        "kind": PERSISTENT_VOLUMES.kind,
        "metadata": {"name": name, "annotations": {PROVISIONED_BY: DRIVER}},
        "spec": {
            "accessModes": claim["spec"]["accessModes"],
            "capacity": {"storage": size or claim["spec"]["resources"]["requests"]["storage"]},
            "claimRef": claim_reference(claim),
            "csi": {"driver": DRIVER, "volumeHandle": name},
            "persistentVolumeReclaimPolicy": value_at(storage_class, "reclaimPolicy") or "Delete",
            "storageClassName": storage_class_of(claim) or None,
            "volumeMode": volume_mode_of(claim),
            "nodeAffinity": {"required": affinity} if affinity is not None else None,
        },
    }


def capacity_patch(volume: Object, twin: Object) -> Object | None:
    """Return the patch of a volume that the host cluster has expanded."""
    size = sanitized_amount("storage", value_at(as_object(twin.get("status")), "capacity", "storage"))
    if not size or parse_quantity(size).nano <= capacity_of(volume):
        return None
    return {"spec": {"capacity": {"storage": size}}}


def volume_affinity(host_volume: Object | None, twin: Object, hostnames: Mapping[str, str] | None) -> Object | None:
    """Return the required node affinity of a volume as the nodes of the plane show it.

    `hostnames` maps the host names of nodes to those in the plane; None if they are equal. None is returned for a
    volume without affinity and for one with requirements that the plane cannot express: the scheduler of the host
    cluster obeys these all the same.
    """
    if host_volume is None or value_at(host_volume, "spec", "claimRef", "uid") != uid_of(twin):
        return None
    required = as_object(value_at(host_volume, "spec", "nodeAffinity", "required"))
    terms = as_list(required.get("nodeSelectorTerms"))[:MAX_TERMS]
    found = [expressions(as_object(each), hostnames) for each in terms]
    if not found or None in found:
        return None
    return {"nodeSelectorTerms": [{"matchExpressions": each} for each in found]}


def expressions(term: Mapping[str, object], hostnames: Mapping[str, str] | None) -> list[Object] | None:
    """Return the requirements of a term; None if the plane cannot express them."""
    if term.get("matchFields"):
        return None
    found = [expression(as_object(each), hostnames) for each in as_list(term.get("matchExpressions"))[:MAX_TERMS]]
    return [each for each in found if each is not None] if found and None not in found else None


def expression(given: Mapping[str, object], hostnames: Mapping[str, str] | None) -> Object | None:
    key, operator, values = given.get("key"), given.get("operator"), as_list(given.get("values"))[:MAX_VALUES]
    if not isinstance(key, str) or label_key_error(key) or key.startswith(RESERVED_LABEL_PREFIXES):
        return None
    if operator not in OPERATORS or not all(isinstance(each, str) and not label_value_error(each) for each in values):
        return None
    if key == HOSTNAME and hostnames is not None:
        values = [hostnames[each] for each in values if each in hostnames]
    if bool(values) != (operator in ("In", "NotIn")):
        return None
    return {"key": key, "operator": operator, **({"values": values} if values else {})}


# -- claims in the host cluster


def offered_class(claim: Object, storage_class: Object | None, binding: Binding) -> OfferedStorageClass:
    """Return the class of the host cluster for a claim. Raises NoTwin.

    `storage_class` is the class that the claim names, if the plane has it. Claims of a plane that does not list the
    classes of the host cluster may name them nevertheless, and have the default class of the binding.
    """
    name = storage_class_of(claim)
    is_listed = binding.spec.sync.storage_classes
    if storage_class is not None and storage_class.get("provisioner") != DRIVER:
        raise NoTwin
    if storage_class is None and is_listed:
        raise NoTwin  # the controller of volumes reports it
    is_unset = value_at(claim, "spec", "storageClassName") is None and OLD_STORAGE_CLASS not in annotations_of(claim)
    if is_unset and not is_listed:
        name = binding.spec.default_storage_class
    offered = binding.host.storage_classes if binding.host is not None else ()
    for each in offered:
        if each.name == name:
            return each
    if storage_class is None:
        raise NoTwin
    message = f"spec.storageClassName: the host cluster does not offer the storage class {name!r}"
    raise NotSynced("StorageClassNotOffered", message)


def is_provisioned(claim: Object, storage_class: Object | None, *, has_node: bool) -> bool:
    """Return whether an unbound claim is to get a new volume now, and not a free one of the plane.

    `has_node` is true if a node has been selected for its first pod, or if the host cluster selects one with that pod.
    """
    if is_deleting(claim) or value_at(claim, "spec", "volumeName") or BIND_COMPLETED in annotations_of(claim):
        return False
    if waits_for_consumer(storage_class):
        return has_node
    return storage_class is None or annotations_of(claim).get(STORAGE_PROVISIONER) == DRIVER


def new_claim(claim: Object, storage_class: Object | None, binding: Binding) -> Object:
    """Return the claim to create in the host cluster. Raises NoTwin."""
    offered = offered_class(claim, storage_class, binding)
    if not binding.spec.sync.persistent_volumes:
        message = "the host cluster provisions no volumes: sync.persistentVolumes is off for this plane"
        raise NotSynced("VolumesNotSynced", message)
    if fields := [each for each in UNSUPPORTED_FIELDS if claim["spec"].get(each)]:
        message = f"spec.{fields[0]}: the host cluster provisions new and empty volumes only; remove the field"
        raise NotSynced("ClaimNotSupported", message)
    desired = desired_claim(claim, uid_of(claim), binding)
    return {
        **desired,
        "spec": {
            "accessModes": claim["spec"]["accessModes"],
            "resources": {"requests": {"storage": claim["spec"]["resources"]["requests"]["storage"]}},
            "storageClassName": offered.name_in_host,
            "volumeMode": volume_mode_of(claim),
        },
    }


def desired_claim(claim: Object, provisioned_for: str, binding: Binding) -> Object:
    """Return what the host cluster's claim for a volume always has. `claim` is the one that the volume is bound to."""
    metadata = source_metadata(claim, binding)
    annotations = {**metadata["annotations"], keys.VIRTUAL_UID: provisioned_for}
    return {
        "apiVersion": PERSISTENT_VOLUME_CLAIMS.api_version,
        "kind": PERSISTENT_VOLUME_CLAIMS.kind,
        "metadata": {
            "name": twin_claim_name(VOLUME_PREFIX + provisioned_for, binding),
            "namespace": binding.spec.mount_namespace,
            **metadata,
            "annotations": annotations,
        },
    }


def twin_claim_name(volume: str, binding: Binding) -> str:
    """Return the name of the claim in the host cluster that stands for a volume of the plane."""
    return physical_name(binding.virtual_cluster, binding.uid, "", volume)


def changed_claim(claim: Object, twin: Object, binding: Binding) -> Object:
    """Return the desired state of an existing claim of the host cluster: a larger request is copied."""
    desired = desired_claim(claim, annotations_of(twin)[keys.VIRTUAL_UID], binding)
    if requested_storage(claim) <= requested_storage(twin):
        return desired
    size = claim["spec"]["resources"]["requests"]["storage"]
    return {**desired, "spec": {"resources": {"requests": {"storage": size}}}}


def with_selected_node(desired: Object, node: str | None) -> Object:
    """Return a claim with the node of the host cluster for which its volume has to be provisioned, if there is one."""
    if node is None:
        return desired
    metadata = desired["metadata"]
    return {**desired, "metadata": {**metadata, "annotations": {**metadata["annotations"], SELECTED_NODE: node}}}


def is_claim_bound(twin: Object) -> bool:
    return bool(value_at(twin, "status", "phase") == "Bound" and value_at(twin, "spec", "volumeName"))


# -- storage classes


def desired_class(offered: OfferedStorageClass, host_class: Object, *, is_default: bool) -> Object:
    """Return the storage class of the plane for one of the host cluster, without its parameters."""
    expands = host_class.get("allowVolumeExpansion") is True
    is_retained, is_delayed = host_class.get("reclaimPolicy") == "Retain", waits_for_consumer(host_class)
    return {
        "apiVersion": STORAGE_CLASSES.api_version,
        "kind": STORAGE_CLASSES.kind,
        "metadata": {
            "name": offered.name,
            "labels": {keys.MANAGED_BY: keys.TAPESTRY},
            "annotations": {STORAGE_CLASS_MARKS[0]: "true" if is_default else "false"},
        },
        "provisioner": DRIVER,
        "reclaimPolicy": "Retain" if is_retained else "Delete",
        "volumeBindingMode": "WaitForFirstConsumer" if is_delayed else "Immediate",
        "allowVolumeExpansion": expands,
    }


def is_default_class(host_class: Object) -> bool:
    return any(annotations_of(host_class).get(each) == "true" for each in STORAGE_CLASS_MARKS)


def has_other_rules(current: Object, desired: Object) -> bool:
    """Return whether a storage class differs in a field that cannot change."""
    return any(current.get(field) != desired[field] for field in ("provisioner", "reclaimPolicy", "volumeBindingMode"))
