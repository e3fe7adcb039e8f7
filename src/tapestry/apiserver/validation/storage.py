"""Validation of persistent volumes, claims, storage classes, attachments and CSI objects."""

from collections.abc import Iterator
from typing import Any

from tapestry.apiserver.core import names
from tapestry.apiserver.core.faults import (
    NOT_POSITIVE_MESSAGE,
    Fault,
    Validator,
    at_least,
    duplicate_value,
    duplicates,
    forbidden_field,
    format_validator,
    invalid_value,
    item_validator,
    one_of,
    required_fields,
    required_value,
    struct_validator,
    too_long,
    unsupported_value,
    validate_immutable_field,
    validate_nonnegative,
)
from tapestry.apiserver.core.metadata import validate_label_selector
from tapestry.apiserver.validation.diff import json_diff
from tapestry.apiserver.validation.resources import validate_nonnegative_quantity, validate_positive_quantity
from tapestry.apiserver.validation.scheduling import validate_node_selector
from tapestry.apiserver.validation.volumes import VOLUME_SOURCE_VALIDATORS, validate_csi_driver_name, validate_host_path
from tapestry.kube.objects import Object, value_at, with_value, without_field
from tapestry.kube.quantity import parse_quantity

ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
MAX_PARAMETERS, MAX_PARAMETER_BYTES = 512, 256 * 1024
BETA_STORAGE_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
CLAIM_UPDATE_MESSAGE = (
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
)

validate_dns_subdomain = format_validator(names.dns_subdomain_errors)


def validate_access_modes(value: Any, path: str) -> Iterator[Fault]:
    for each in value:
        if each not in ACCESS_MODES:
            yield unsupported_value(path, each, ACCESS_MODES)
    if "ReadWriteOncePod" in value and any(each in ACCESS_MODES[:3] for each in value):
        yield forbidden_field(path, "may not use ReadWriteOncePod with other access modes")


# -- persistent volume claims


def validate_claim_size(spec: Any, path: str) -> Iterator[Fault]:
    at = f"{path}.resources[storage]"
    request = value_at(spec, "resources", "requests", "storage")
    if request is None:
        yield required_value(at)
    else:
        yield from validate_positive_quantity(request, at)


def validate_data_source(value: Any, path: str) -> Iterator[Fault]:
    yield from struct_validator(required_fields("name", "kind"))(value, path)
    if not value.get("apiGroup"):
        if value.get("kind") != "PersistentVolumeClaim":
            msg = "must be 'PersistentVolumeClaim' when referencing the default apiGroup"
            yield invalid_value(path, value.get("kind", ""), msg)
    else:
        yield from validate_dns_subdomain(value["apiGroup"], f"{path}.apiGroup")


validate_claim_spec = struct_validator(
    required_fields("accessModes", detail="at least 1 access mode is required"),
    ("selector", validate_label_selector),
    ("accessModes", validate_access_modes),
    ("", validate_claim_size),
    ("storageClassName", validate_dns_subdomain),
    ("volumeMode", one_of("Block", "Filesystem")),
    ("dataSourceRef", validate_data_source),
)


def validate_claim_update(old: Object, new: Object) -> Iterator[Fault]:
    """Validate a claim update. A claim can be bound once, and a bound claim can only grow."""
    yield from validate_claim_spec(new["spec"], "spec")
    before, after = old["spec"], new["spec"]
    old_class, new_class = (
        (each["metadata"].get("annotations") or {}).get(BETA_STORAGE_CLASS_ANNOTATION, "") for each in (old, new)
    )
    if old_class != new_class:
        yield invalid_value(f"metadata.annotations.{BETA_STORAGE_CLASS_ANNOTATION}", new_class, "field is immutable")
    expected = before
    for field in ("volumeName", "storageClassName"):
        if not before.get(field) and after.get(field):
            expected = {**expected, field: after[field]}
    if value_at(new, "status", "phase") == "Bound":
        expected = {
            **without_field(expected, "volumeAttributesClassName"),
            **only_field(after, "volumeAttributesClassName"),
        }
        if value_at(after, "resources", "requests", "storage") is not None:
            expected = with_value(
                expected, ("resources", "requests", "storage"), after["resources"]["requests"]["storage"]
            )
    if after != expected:
        yield forbidden_field("spec", f"{CLAIM_UPDATE_MESSAGE}\n{json_diff(expected, after)}")
    yield from validate_claim_not_shrinking(old, new)
    yield from validate_immutable_field(before.get("volumeMode"), after.get("volumeMode"), "volumeMode")


def only_field(obj: Object, field: str) -> Object:
    return {field: obj[field]} if field in obj else {}


def validate_claim_not_shrinking(old: Object, new: Object) -> Iterator[Fault]:
    before, after = (value_at(each, "spec", "resources", "requests", "storage", default="0") for each in (old, new))
    capacity = value_at(old, "status", "capacity", "storage", default="0")
    if parse_quantity(after) < parse_quantity(before) and parse_quantity(after) <= parse_quantity(capacity):
        yield forbidden_field("spec.resources.requests.storage", "field can not be less than status.capacity")


# -- persistent volumes


def validate_volume_capacity(spec: Any, path: str) -> Iterator[Fault]:
    capacity, at = spec.get("capacity") or {}, f"{path}.capacity"
    if not capacity:
        yield required_value(at)
    if list(capacity) != ["storage"]:
        yield unsupported_value(at, capacity or None, ("storage",))
    for name, text in capacity.items():
        if (quantity := parse_quantity(text)).nano < 0:
            yield invalid_value(f"{at}[{name}]", quantity.value(), "must be a valid resource quantity")
        if quantity.nano <= 0:
            yield invalid_value(f"{at}[{name}]", str(quantity), NOT_POSITIVE_MESSAGE)


PERSISTENT_SOURCE_VALIDATORS: dict[str, Validator] = {
    "hostPath": validate_host_path,
    **{
        kind: VOLUME_SOURCE_VALIDATORS[kind]
        for kind in VOLUME_SOURCE_VALIDATORS
        if kind not in ("emptyDir", "hostPath", "csi")
    },
    "local": struct_validator(required_fields("path")),
    "csi": struct_validator(
        required_fields("driver"), ("driver", validate_csi_driver_name), required_fields("volumeHandle")
    ),
}


def validate_persistent_volume_source(spec: Any, path: str) -> Iterator[Fault]:
    kinds = [kind for kind in PERSISTENT_SOURCE_VALIDATORS if spec.get(kind) is not None]
    for kind in kinds[:1]:
        yield from PERSISTENT_SOURCE_VALIDATORS[kind](spec[kind], f"{path}.{kind}")
    for kind in kinds[1:]:
        yield forbidden_field(f"{path}.{kind}", "may not specify more than 1 volume type")
    if not kinds:
        yield required_value(path, "must specify a volume type")
    if "local" in kinds and not spec.get("nodeAffinity"):
        yield required_value(f"{path}.nodeAffinity", "Local volume requires node affinity")
    if value_at(spec, "hostPath", "path") == "/" and spec.get("persistentVolumeReclaimPolicy") == "Recycle":
        msg = "may not be 'recycle' for a hostPath mount of '/'"
        yield forbidden_field(f"{path}.persistentVolumeReclaimPolicy", msg)


validate_volume_spec = struct_validator(
    required_fields("accessModes"),
    ("accessModes", validate_access_modes),
    ("", validate_volume_capacity),
    ("persistentVolumeReclaimPolicy", one_of("Delete", "Recycle", "Retain")),
    ("nodeAffinity", struct_validator(("required", validate_node_selector))),
    ("", validate_persistent_volume_source),
    ("storageClassName", validate_dns_subdomain),
    ("volumeMode", one_of("Block", "Filesystem")),
)


def validate_volume_update(old: Object, new: Object) -> Iterator[Fault]:
    yield from validate_volume_spec(new["spec"], "spec")
    before, after = ({kind: each["spec"].get(kind) for kind in PERSISTENT_SOURCE_VALIDATORS} for each in (old, new))
    if (
        value_at(old, "spec", "csi")
        and value_at(new, "spec", "csi")
        and "controllerExpandSecretRef" not in before["csi"]
    ):
        after["csi"] = without_field(after["csi"], "controllerExpandSecretRef")
    if before != after:
        msg = f"spec.persistentvolumesource is immutable after creation\n{json_diff(before, after)}"
        yield forbidden_field("spec.persistentvolumesource", msg)
    yield from validate_immutable_field(old["spec"].get("volumeMode"), new["spec"].get("volumeMode"), "volumeMode")
    if old["spec"].get("nodeAffinity") is not None:
        yield from validate_immutable_field(
            old["spec"]["nodeAffinity"], new["spec"].get("nodeAffinity"), "nodeAffinity"
        )


# -- storage classes


def validate_driver_name(value: Any, path: str) -> Iterator[Fault]:
    return format_validator(names.qualified_name_errors)(value.lower(), path)


def validate_class_parameters(value: Any, path: str) -> Iterator[Fault]:
    if len(value) > MAX_PARAMETERS:
        yield too_long(path, MAX_PARAMETERS)
        return
    if "" in value:
        yield invalid_value(path, "", "field can not be empty.")
    if sum(len(key) + len(text) for key, text in value.items()) > MAX_PARAMETER_BYTES:
        yield too_long(path, MAX_PARAMETER_BYTES)


def validate_allowed_topologies(value: Any, path: str) -> Iterator[Fault]:
    for number, term in enumerate(value):
        at = f"{path}[{number}].matchLabelExpressions"
        for index, each in enumerate(term.get("matchLabelExpressions") or ()):
            values = each.get("values") or []
            if not values:
                yield required_value(f"{at}[{index}].values")
            for position, text in duplicates(values):
                yield duplicate_value(f"{at}[{index}].values[{position}]", text)
            yield from format_validator(names.qualified_name_errors)(each.get("key", ""), f"{at}[{index}].key")


validate_storage_class = struct_validator(
    required_fields("provisioner"),
    ("provisioner", validate_driver_name),
    ("parameters", validate_class_parameters),
    ("reclaimPolicy", one_of("Delete", "Retain")),
    ("volumeBindingMode", one_of("Immediate", "WaitForFirstConsumer")),
    ("allowedTopologies", validate_allowed_topologies),
)


def validate_storage_class_update(old: Object, new: Object) -> Iterator[Fault]:
    for field in ("parameters", "provisioner", "reclaimPolicy"):
        if (old.get(field) or None) != (new.get(field) or None):
            yield forbidden_field(field, f"updates to {field} are forbidden.")
    yield from validate_immutable_field(old.get("volumeBindingMode"), new.get("volumeBindingMode"), "volumeBindingMode")


validate_volume_attributes_class = struct_validator(
    required_fields("driverName"),
    ("driverName", validate_driver_name),
    ("parameters", validate_class_parameters),
    required_fields("parameters", detail="must contain at least one key/value pair"),
)


def validate_volume_attributes_class_update(old: Object, new: Object) -> Iterator[Fault]:
    for field in ("driverName", "parameters"):
        if old.get(field) != new.get(field):
            yield forbidden_field(field, f"updates to {field} are forbidden.")
    yield from validate_volume_attributes_class(new, "")


# -- attachments and drivers


def validate_attachment_source(value: Any, path: str) -> Iterator[Fault]:
    inline_spec, name = value.get("inlineVolumeSpec"), value.get("persistentVolumeName")
    msg = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
    if inline_spec is None and name is None:
        yield required_value(path, msg)
    elif inline_spec is not None and name is not None:
        yield forbidden_field(path, msg)
    elif name == "":
        yield required_value(f"{path}.persistentVolumeName", "must specify non empty persistentVolumeName")


def validate_attachment_spec(value: Any, path: str) -> Iterator[Fault]:
    yield from struct_validator(required_fields("attacher"))(value, path)
    yield from validate_csi_driver_name(value.get("attacher", ""), f"{path}.attacher")
    yield from validate_attachment_source(value.get("source") or {}, f"{path}.source")
    yield from validate_dns_subdomain(value.get("nodeName", ""), f"{path}.nodeName")


def validate_attachment_update(old: Object, new: Object) -> Iterator[Fault]:
    yield from validate_attachment_spec(new["spec"], "spec")
    yield from validate_immutable_field(old["spec"], new["spec"], "spec")


validate_token_requests = item_validator(
    struct_validator(("expirationSeconds", at_least(600, "may not specify a duration less than 10 minutes")))
)


def validate_lifecycle_modes(value: Any, path: str) -> Iterator[Fault]:
    for each in value:
        yield from one_of("Persistent", "Ephemeral")(each, path)


validate_csi_driver_spec = struct_validator(
    ("fsGroupPolicy", one_of("File", "None", "ReadWriteOnceWithFSType")),
    ("tokenRequests", validate_token_requests),
    ("volumeLifecycleModes", validate_lifecycle_modes),
)


def validate_csi_driver_update(old: Object, new: Object) -> Iterator[Fault]:
    before, after = old["spec"], new["spec"]
    yield from validate_csi_driver_spec(after, "spec")
    yield from validate_immutable_field(
        before.get("attachRequired"), after.get("attachRequired"), "spec.attachedRequired"
    )
    yield from validate_immutable_field(
        before.get("volumeLifecycleModes"), after.get("volumeLifecycleModes"), "spec.volumeLifecycleModes"
    )


def validate_node_drivers(value: Any, path: str) -> Iterator[Fault]:
    seen = set()
    for number, each in enumerate(value):
        at = f"{path}[{number}]"
        yield from struct_validator(
            required_fields("name"),
            ("", lambda driver, path: validate_csi_driver_name(driver.get("name", ""), f"{path}.name")),
            required_fields("nodeID"),
            ("allocatable", struct_validator(("count", validate_nonnegative))),
        )(each, at)
        if each.get("name") in seen:
            yield duplicate_value(f"{at}.name", each.get("name"))
        seen.add(each.get("name"))
        for key in each.get("topologyKeys") or ():
            yield from format_validator(names.qualified_name_errors)(key, at)


validate_csi_node_spec = struct_validator(("drivers", validate_node_drivers))


def validate_csi_node_update(old: Object, new: Object) -> Iterator[Fault]:
    yield from validate_csi_node_spec(new["spec"], "spec")
    before = {each["name"]: each for each in value_at(old, "spec", "drivers", default=[])}
    for each in value_at(new, "spec", "drivers", default=[]):
        if each.get("name") in before and before[each["name"]] != each:
            yield invalid_value("spec.drivers", each, "field is immutable")


validate_storage_capacity = struct_validator(
    ("nodeTopology", validate_label_selector),
    ("storageClassName", validate_dns_subdomain),
    ("capacity", validate_nonnegative_quantity),
)


def validate_storage_capacity_update(old: Object, new: Object) -> Iterator[Fault]:
    for field in ("nodeTopology", "storageClassName"):
        yield from validate_immutable_field(old.get(field), new.get(field), field)
