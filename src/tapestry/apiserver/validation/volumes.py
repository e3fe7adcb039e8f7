"""Validation of pod volumes, volume sources and mounts."""

from collections.abc import Iterator
from typing import Any

from tapestry.apiserver.core import names
from tapestry.apiserver.core.faults import (
    Fault,
    Validator,
    accept_any,
    between,
    duplicate_value,
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
    value_not_found,
)
from tapestry.apiserver.validation.resources import validate_nonnegative_quantity
from tapestry.kube.objects import Object

validate_file_mode = between(0, 0o777, "must be a number between 0 and 0777 (octal), both inclusive")

POD_FIELDS = (
    *("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName"),
    *("status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
)
DOWNWARD_FILE_FIELDS = (
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
)
RESOURCE_FIELDS = tuple(
    f"{kind}.{each}" for kind in ("limits", "requests") for each in ("cpu", "ephemeral-storage", "memory")
)
SUBSCRIPTABLE_FIELDS = ("metadata.annotations", "metadata.labels")
TOKEN_EXPIRATION_BOUNDS = (600, 2**32)


# -- paths


def validate_relative_path(value: Any, path: str) -> Iterator[Fault]:
    if value.startswith("/"):
        yield invalid_value(path, value, "must be a relative path")
    yield from validate_no_parent_steps(value, path)


def validate_no_parent_steps(value: Any, path: str) -> Iterator[Fault]:
    if ".." in value.split("/"):
        yield invalid_value(path, value, "must not contain '..'")


def validate_file_path(value: Any, path: str) -> Iterator[Fault]:
    yield from validate_relative_path(value, path)
    if value.startswith("..") and not value.startswith("../"):
        yield invalid_value(path, value, "must not start with '..'")


# -- references to pod fields


def field_reference_validator(supported: tuple[str, ...]) -> Validator:
    """Return a validator for a reference to a field of the pod."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        field: str = value.get("fieldPath", "")
        if not field:
            yield required_value(f"{path}.fieldPath")
            return
        name, bracket, subscript = field.partition("[")
        if bracket and subscript.endswith("']"):
            if name in SUBSCRIPTABLE_FIELDS:
                errors = names.annotation_key_errors if name == SUBSCRIPTABLE_FIELDS[0] else names.qualified_name_errors
                yield from format_validator(errors)(subscript[1:-2], path)
            else:
                msg = f"error converting fieldPath: field label does not support subscript: {name}"
                yield invalid_value(f"{path}.fieldPath", field, msg)
        elif field not in POD_FIELDS and field not in DOWNWARD_FILE_FIELDS:
            msg = f"error converting fieldPath: field label not supported: {field}"
            yield invalid_value(f"{path}.fieldPath", field, msg)
        elif field not in supported:
            yield unsupported_value(f"{path}.fieldPath", field, supported)

    return faults


def resource_reference_validator(*, in_volume: bool) -> Validator:
    """Return a validator for a reference to a container's requests or limits."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        resource = value.get("resource", "")
        if in_volume and not value.get("containerName"):
            yield required_value(f"{path}.containerName")
        elif not resource:
            yield required_value(f"{path}.resource")
        elif resource not in RESOURCE_FIELDS and not resource.startswith(("requests.hugepages-", "limits.hugepages-")):
            yield unsupported_value(f"{path}.resource", resource, RESOURCE_FIELDS)

    return faults


# -- sources

validate_key_to_path = struct_validator(
    required_fields("key"), required_fields("path"), ("path", validate_file_path), ("mode", validate_file_mode)
)


def validate_downward_file(value: Any, path: str) -> Iterator[Fault]:
    yield from struct_validator(required_fields("path"), ("path", validate_file_path))(value, path)
    if "fieldRef" in value:
        yield from field_reference_validator(DOWNWARD_FILE_FIELDS)(value["fieldRef"], f"{path}.fieldRef")
        if "resourceFieldRef" in value:
            yield invalid_value(path, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
    elif "resourceFieldRef" in value:
        yield from resource_reference_validator(in_volume=True)(value["resourceFieldRef"], f"{path}.resourceFieldRef")
    else:
        yield required_value(path, "one of fieldRef and resourceFieldRef is required")
    yield from struct_validator(("mode", validate_file_mode))(value, path)


def validate_downward_files(value: Any, path: str) -> Iterator[Fault]:
    for each in value.get("items") or ():
        yield from validate_downward_file(each, path)  # path without the index, as in kube-apiserver


def validate_token_projection(value: Any, path: str) -> Iterator[Fault]:
    seconds = value.get("expirationSeconds", 3600)
    if seconds < TOKEN_EXPIRATION_BOUNDS[0]:
        yield invalid_value(f"{path}.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
    if seconds > TOKEN_EXPIRATION_BOUNDS[1]:
        yield invalid_value(f"{path}.expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds")
    if not value.get("path"):
        yield required_value(f"{path.partition('.sources')[0]}.path")  # path of the volume, as in kube-apiserver


PROJECTION_VALIDATORS: dict[str, Validator] = {
    "secret": struct_validator(required_fields("name"), ("items", item_validator(validate_key_to_path))),
    "configMap": struct_validator(required_fields("name"), ("items", item_validator(validate_key_to_path))),
    "downwardAPI": validate_downward_files,
    "serviceAccountToken": validate_token_projection,
    "clusterTrustBundle": accept_any,
    "podCertificate": accept_any,
}


def validate_projected_volume(value: Any, path: str) -> Iterator[Fault]:
    yield from struct_validator(("defaultMode", validate_file_mode))(value, path)
    paths: set[str] = set()
    for number, each in enumerate(value.get("sources") or ()):
        at = f"{path}.sources[{number}]"
        kinds = [kind for kind in PROJECTION_VALIDATORS if each.get(kind) is not None]
        for kind in kinds:
            yield from PROJECTION_VALIDATORS[kind](each[kind], f"{at}.{kind}")
            for file in projected_paths(each[kind]):
                if file in paths:
                    yield invalid_value(path, each[kind].get("name") or file, "conflicting duplicate paths")
                paths.add(file)
        if len(kinds) > 1:
            yield forbidden_field(at, "may not specify more than 1 volume type per source")


def projected_paths(source: Object) -> Iterator[str]:
    for each in (source, *(source.get("items") or ())):
        if file := each.get("path"):
            yield file


def validate_csi_driver_name(value: Any, path: str) -> Iterator[Fault]:
    if len(value) > names.LABEL_LIMIT:
        yield too_long(path, names.LABEL_LIMIT)
    for msg in names.dns_subdomain_errors(value.lower()):
        yield invalid_value(path, value, msg)


def validate_size_limit(value: Any, path: str) -> Iterator[Fault]:
    if list(validate_nonnegative_quantity(value, path)):
        yield forbidden_field(path, "SizeLimit field must be a valid resource quantity")


validate_host_path = struct_validator(
    required_fields("path"),
    ("path", validate_no_parent_steps),
    (
        "type",
        one_of("", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"),
    ),
)


def validate_nfs(value: Any, path: str) -> Iterator[Fault]:
    yield from struct_validator(required_fields("server", "path"))(value, path)
    if not value.get("path", "").startswith("/"):
        yield invalid_value(f"{path}.path", value.get("path", ""), "must be an absolute path")


VOLUME_SOURCE_VALIDATORS: dict[str, Validator] = {
    "emptyDir": struct_validator(("sizeLimit", validate_size_limit)),
    "hostPath": validate_host_path,
    "gitRepo": struct_validator(required_fields("repository"), ("directory", validate_relative_path)),
    "gcePersistentDisk": struct_validator(required_fields("pdName")),
    "awsElasticBlockStore": struct_validator(required_fields("volumeID")),
    "secret": struct_validator(
        required_fields("secretName"),
        ("defaultMode", validate_file_mode),
        ("items", item_validator(validate_key_to_path)),
    ),
    "nfs": validate_nfs,
    "iscsi": struct_validator(required_fields("targetPortal", "iqn")),
    "glusterfs": struct_validator(required_fields("endpoints", "path")),
    "flocker": accept_any,
    "persistentVolumeClaim": struct_validator(required_fields("claimName")),
    "rbd": struct_validator(required_fields("monitors", "image")),
    "cinder": struct_validator(required_fields("volumeID")),
    "cephfs": struct_validator(required_fields("monitors")),
    "quobyte": struct_validator(required_fields("registry")),
    "downwardAPI": struct_validator(("defaultMode", validate_file_mode), ("", validate_downward_files)),
    "fc": accept_any,
    "flexVolume": struct_validator(required_fields("driver")),
    "configMap": struct_validator(
        required_fields("name"), ("defaultMode", validate_file_mode), ("items", item_validator(validate_key_to_path))
    ),
    "azureFile": struct_validator(required_fields("secretName", "shareName")),
    "vsphereVolume": struct_validator(required_fields("volumePath")),
    "photonPersistentDisk": struct_validator(required_fields("pdID")),
    "portworxVolume": struct_validator(required_fields("volumeID")),
    "azureDisk": struct_validator(required_fields("diskName", "diskURI")),
    "storageos": accept_any,
    "projected": validate_projected_volume,
    "scaleIO": struct_validator(required_fields("gateway", "system", "volumeName")),
    "csi": struct_validator(required_fields("driver"), ("driver", validate_csi_driver_name)),
    "ephemeral": struct_validator(required_fields("volumeClaimTemplate")),
    "image": struct_validator(required_fields("reference")),
}


def validate_volumes(value: Any, path: str) -> Iterator[Fault]:
    """Validate the volumes of a pod. `pods.mountable_volumes` returns those that containers can mount."""
    seen: set[str] = set()
    for number, each in enumerate(value):
        at, name = f"{path}[{number}]", each.get("name", "")
        kinds = [kind for kind in each if kind in VOLUME_SOURCE_VALIDATORS]
        if len(kinds) > 1:  # kube-apiserver uses the first type in this order
            kinds.sort(key=list(VOLUME_SOURCE_VALIDATORS).index)
        for kind in kinds[:1]:
            yield from VOLUME_SOURCE_VALIDATORS[kind](each[kind], f"{at}.{kind}")
        for kind in kinds[1:]:
            yield forbidden_field(f"{at}.{kind}", "may not specify more than 1 volume type")
        if not kinds:
            yield required_value(at, "must specify a volume type")
        if name:
            yield from validate_dns_label(name, f"{at}.name")
        else:
            yield required_value(f"{at}.name")
        if name in seen:
            yield duplicate_value(f"{at}.name", name)
        seen.add(name)


validate_dns_label = format_validator(names.dns_label_errors)


def validate_volume_mounts(container: Object, mountable: set[str], path: str) -> Iterator[Fault]:
    mount_paths: set[str] = set()
    devices = {each.get("name"): each.get("devicePath") for each in container.get("volumeDevices") or ()}
    for number, each in enumerate(container["volumeMounts"]):
        at, name, mount_path = f"{path}[{number}]", each.get("name", ""), each.get("mountPath", "")
        if not name:
            yield required_value(f"{at}.name")
        if name not in mountable:
            yield value_not_found(f"{at}.name", name)
        if not mount_path:
            yield required_value(f"{at}.mountPath")
        if mount_path in mount_paths:
            yield invalid_value(f"{at}.mountPath", mount_path, "must be unique")
        mount_paths.add(mount_path)
        if name in devices:
            yield invalid_value(f"{at}.name", name, "must not already exist in volumeDevices")
        if mount_path in devices.values():
            yield invalid_value(f"{at}.mountPath", mount_path, "must not already exist as a path in volumeDevices")
        if len(each) > 2:
            yield from validate_mount_options(container, each, path, at)


def validate_mount_options(container: Object, mount: Object, path: str, at: str) -> Iterator[Fault]:
    if sub_path := mount.get("subPath"):
        yield from validate_relative_path(sub_path, f"{path}.subPath")
    if expression := mount.get("subPathExpr"):
        if sub_path:
            msg = "subPathExpr and subPath are mutually exclusive"
            yield invalid_value(f"{at}.subPathExpr", expression, msg)
        yield from validate_relative_path(expression, f"{path}.subPathExpr")
    if propagation := mount.get("mountPropagation"):
        yield from one_of("Bidirectional", "HostToContainer", "None")(propagation, f"{path}.mountPropagation")
        if propagation == "Bidirectional" and not (container.get("securityContext") or {}).get("privileged"):
            msg = "Bidirectional mount propagation is available only to privileged containers"
            yield forbidden_field(f"{path}.mountPropagation", msg)
    if recursive := mount.get("recursiveReadOnly"):
        at = f"{path}.recursiveReadOnly"
        yield from one_of("Disabled", "Enabled", "IfPossible")(recursive, at)
        if recursive != "Disabled" and not mount.get("readOnly"):
            yield forbidden_field(at, "may only be specified when readOnly is true")


def validate_volume_devices(container: Object, sources: dict[str, Object], path: str) -> Iterator[Fault]:
    seen: set[str] = set()
    for number, each in enumerate(container["volumeDevices"]):
        at, name = f"{path}[{number}]", each.get("name", "")
        if not name:
            yield required_value(f"{at}.name")
        if name in seen:
            yield invalid_value(f"{at}.name", name, "must be unique")
        if name not in sources:
            yield value_not_found(f"{at}.name", name)
        elif not sources[name].keys() & {"persistentVolumeClaim", "ephemeral"}:
            msg = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
            yield invalid_value(f"{at}.name", name, msg)
        if not each.get("devicePath"):
            yield required_value(f"{at}.devicePath")
        seen.add(name)
