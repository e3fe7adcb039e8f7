"""Volumes of pods: what each kind of them needs, and the paths they are mounted at."""

from collections.abc import Iterator
from typing import Any

from tapestry.apiserver.customs.structural import Fault
from tapestry.apiserver.validation import names
from tapestry.apiserver.validation.faults import (
    Rule,
    between,
    duplicate,
    every,
    forbidden,
    invalid,
    matching,
    needs,
    not_found,
    nothing_wrong,
    one_of,
    required,
    struct,
    too_long,
    unsupported,
)
from tapestry.apiserver.validation.resources import nonnegative_quantity
from tapestry.kube.objects import Object

mode = between(0, 0o777, "must be a number between 0 and 0777 (octal), both inclusive")

POD_FIELDS = (
    *("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName"),
    *("status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
)
FILE_FIELDS = ("metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid")
RESOURCE_FIELDS = tuple(
    f"{kind}.{each}" for kind in ("limits", "requests") for each in ("cpu", "ephemeral-storage", "memory")
)
SUBSCRIPTED = ("metadata.annotations", "metadata.labels")
TOKEN_SECONDS = (600, 2**32)


# -- paths


def relative_path(value: Any, path: str) -> Iterator[Fault]:
    if value.startswith("/"):
        yield invalid(path, value, "must be a relative path")
    yield from no_backsteps(value, path)


def no_backsteps(value: Any, path: str) -> Iterator[Fault]:
    if ".." in value.split("/"):
        yield invalid(path, value, "must not contain '..'")


def file_path(value: Any, path: str) -> Iterator[Fault]:
    yield from relative_path(value, path)
    if value.startswith("..") and not value.startswith("../"):
        yield invalid(path, value, "must not start with '..'")


# -- what is taken from the pod


def field_of_pod(supported: tuple[str, ...]) -> Rule:
    """A reference to a field of the pod itself."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        field: str = value.get("fieldPath", "")
        if not field:
            yield required(f"{path}.fieldPath")
            return
        name, bracket, subscript = field.partition("[")
        if bracket and subscript.endswith("']"):
            if name in SUBSCRIPTED:
                complaints = names.annotation_key if name == SUBSCRIPTED[0] else names.qualified
                yield from matching(complaints)(subscript[1:-2], path)
            else:
                why = f"error converting fieldPath: field label does not support subscript: {name}"
                yield invalid(f"{path}.fieldPath", field, why)
        elif field not in POD_FIELDS and field not in FILE_FIELDS:
            why = f"error converting fieldPath: field label not supported: {field}"
            yield invalid(f"{path}.fieldPath", field, why)
        elif field not in supported:
            yield unsupported(f"{path}.fieldPath", field, supported)

    return faults


def resource_of_container(*, in_volume: bool) -> Rule:
    """A reference to what a container asks for."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        resource = value.get("resource", "")
        if in_volume and not value.get("containerName"):
            yield required(f"{path}.containerName")
        elif not resource:
            yield required(f"{path}.resource")
        elif resource not in RESOURCE_FIELDS and not resource.startswith(("requests.hugepages-", "limits.hugepages-")):
            yield unsupported(f"{path}.resource", resource, RESOURCE_FIELDS)

    return faults


# -- sources

key_to_path = struct(needs("key"), needs("path"), ("path", file_path), ("mode", mode))


def downward_file(value: Any, path: str) -> Iterator[Fault]:
    yield from struct(needs("path"), ("path", file_path))(value, path)
    if "fieldRef" in value:
        yield from field_of_pod(FILE_FIELDS)(value["fieldRef"], f"{path}.fieldRef")
        if "resourceFieldRef" in value:
            yield invalid(path, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
    elif "resourceFieldRef" in value:
        yield from resource_of_container(in_volume=True)(value["resourceFieldRef"], f"{path}.resourceFieldRef")
    else:
        yield required(path, "one of fieldRef and resourceFieldRef is required")
    yield from struct(("mode", mode))(value, path)


def downward_files(value: Any, path: str) -> Iterator[Fault]:
    for each in value.get("items") or ():
        yield from downward_file(each, path)  # without its number, as Kubernetes has it


def token(value: Any, path: str) -> Iterator[Fault]:
    seconds = value.get("expirationSeconds", 3600)
    if seconds < TOKEN_SECONDS[0]:
        yield invalid(f"{path}.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
    if seconds > TOKEN_SECONDS[1]:
        yield invalid(f"{path}.expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds")
    if not value.get("path"):
        yield required(f"{path.partition('.sources')[0]}.path")  # of the volume, as Kubernetes has it


PROJECTIONS: dict[str, Rule] = {
    "secret": struct(needs("name"), ("items", every(key_to_path))),
    "configMap": struct(needs("name"), ("items", every(key_to_path))),
    "downwardAPI": downward_files,
    "serviceAccountToken": token,
    "clusterTrustBundle": nothing_wrong,
    "podCertificate": nothing_wrong,
}


def projected(value: Any, path: str) -> Iterator[Fault]:
    yield from struct(("defaultMode", mode))(value, path)
    taken: set[str] = set()
    for number, each in enumerate(value.get("sources") or ()):
        at = f"{path}.sources[{number}]"
        found = [kind for kind in PROJECTIONS if each.get(kind) is not None]
        for kind in found:
            yield from PROJECTIONS[kind](each[kind], f"{at}.{kind}")
            for file in projected_paths(each[kind]):
                if file in taken:
                    yield invalid(path, each[kind].get("name") or file, "conflicting duplicate paths")
                taken.add(file)
        if len(found) > 1:
            yield forbidden(at, "may not specify more than 1 volume type per source")


def projected_paths(source: Object) -> Iterator[str]:
    for each in (source, *(source.get("items") or ())):
        if file := each.get("path"):
            yield file


def driver_name(value: Any, path: str) -> Iterator[Fault]:
    if len(value) > names.LABEL_LIMIT:
        yield too_long(path, names.LABEL_LIMIT)
    for why in names.subdomain(value.lower()):
        yield invalid(path, value, why)


def no_limit_below_zero(value: Any, path: str) -> Iterator[Fault]:
    if list(nonnegative_quantity(value, path)):
        yield forbidden(path, "SizeLimit field must be a valid resource quantity")


host_path = struct(
    needs("path"),
    ("path", no_backsteps),
    (
        "type",
        one_of("", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"),
    ),
)


def nfs(value: Any, path: str) -> Iterator[Fault]:
    yield from struct(needs("server", "path"))(value, path)
    if not value.get("path", "").startswith("/"):
        yield invalid(f"{path}.path", value.get("path", ""), "must be an absolute path")


SOURCES: dict[str, Rule] = {
    "emptyDir": struct(("sizeLimit", no_limit_below_zero)),
    "hostPath": host_path,
    "gitRepo": struct(needs("repository"), ("directory", relative_path)),
    "gcePersistentDisk": struct(needs("pdName")),
    "awsElasticBlockStore": struct(needs("volumeID")),
    "secret": struct(needs("secretName"), ("defaultMode", mode), ("items", every(key_to_path))),
    "nfs": nfs,
    "iscsi": struct(needs("targetPortal", "iqn")),
    "glusterfs": struct(needs("endpoints", "path")),
    "flocker": nothing_wrong,
    "persistentVolumeClaim": struct(needs("claimName")),
    "rbd": struct(needs("monitors", "image")),
    "cinder": struct(needs("volumeID")),
    "cephfs": struct(needs("monitors")),
    "quobyte": struct(needs("registry")),
    "downwardAPI": struct(("defaultMode", mode), ("", downward_files)),
    "fc": nothing_wrong,
    "flexVolume": struct(needs("driver")),
    "configMap": struct(needs("name"), ("defaultMode", mode), ("items", every(key_to_path))),
    "azureFile": struct(needs("secretName", "shareName")),
    "vsphereVolume": struct(needs("volumePath")),
    "photonPersistentDisk": struct(needs("pdID")),
    "portworxVolume": struct(needs("volumeID")),
    "azureDisk": struct(needs("diskName", "diskURI")),
    "storageos": nothing_wrong,
    "projected": projected,
    "scaleIO": struct(needs("gateway", "system", "volumeName")),
    "csi": struct(needs("driver"), ("driver", driver_name)),
    "ephemeral": struct(needs("volumeClaimTemplate")),
    "image": struct(needs("reference")),
}


def volumes(value: Any, path: str) -> Iterator[Fault]:
    """Faults of the volumes of a pod; see `usable` for those that containers can mount."""
    seen: set[str] = set()
    for number, each in enumerate(value):
        at, name = f"{path}[{number}]", each.get("name", "")
        found = [kind for kind in each if kind in SOURCES]
        if len(found) > 1:  # the first that Kubernetes comes to is the one that is meant
            found.sort(key=list(SOURCES).index)
        for kind in found[:1]:
            yield from SOURCES[kind](each[kind], f"{at}.{kind}")
        for kind in found[1:]:
            yield forbidden(f"{at}.{kind}", "may not specify more than 1 volume type")
        if not found:
            yield required(at, "must specify a volume type")
        if name:
            yield from is_label(name, f"{at}.name")
        else:
            yield required(f"{at}.name")
        if name in seen:
            yield duplicate(f"{at}.name", name)
        seen.add(name)


is_label = matching(names.label)


def mounts(container: Object, usable: set[str], path: str) -> Iterator[Fault]:
    """Faults of the mounts of a container."""
    points: set[str] = set()
    devices = {each.get("name"): each.get("devicePath") for each in container.get("volumeDevices") or ()}
    for number, each in enumerate(container["volumeMounts"]):
        at, name, point = f"{path}[{number}]", each.get("name", ""), each.get("mountPath", "")
        if not name:
            yield required(f"{at}.name")
        if name not in usable:
            yield not_found(f"{at}.name", name)
        if not point:
            yield required(f"{at}.mountPath")
        if point in points:
            yield invalid(f"{at}.mountPath", point, "must be unique")
        points.add(point)
        if name in devices:
            yield invalid(f"{at}.name", name, "must not already exist in volumeDevices")
        if point in devices.values():
            yield invalid(f"{at}.mountPath", point, "must not already exist as a path in volumeDevices")
        if len(each) > 2:
            yield from mount_options(container, each, path, at)


def mount_options(container: Object, mount: Object, path: str, at: str) -> Iterator[Fault]:
    if below := mount.get("subPath"):
        yield from relative_path(below, f"{path}.subPath")
    if expression := mount.get("subPathExpr"):
        if below:
            why = "subPathExpr and subPath are mutually exclusive"
            yield invalid(f"{at}.subPathExpr", expression, why)
        yield from relative_path(expression, f"{path}.subPathExpr")
    if propagation := mount.get("mountPropagation"):
        yield from one_of("Bidirectional", "HostToContainer", "None")(propagation, f"{path}.mountPropagation")
        if propagation == "Bidirectional" and not (container.get("securityContext") or {}).get("privileged"):
            why = "Bidirectional mount propagation is available only to privileged containers"
            yield forbidden(f"{path}.mountPropagation", why)
    if recursive := mount.get("recursiveReadOnly"):
        at = f"{path}.recursiveReadOnly"
        yield from one_of("Disabled", "Enabled", "IfPossible")(recursive, at)
        if recursive != "Disabled" and not mount.get("readOnly"):
            yield forbidden(at, "may only be specified when readOnly is true")


def devices(container: Object, sources: dict[str, Object], path: str) -> Iterator[Fault]:
    """Faults of the raw devices of a container."""
    seen: set[str] = set()
    for number, each in enumerate(container["volumeDevices"]):
        at, name = f"{path}[{number}]", each.get("name", "")
        if not name:
            yield required(f"{at}.name")
        if name in seen:
            yield invalid(f"{at}.name", name, "must be unique")
        if name not in sources:
            yield not_found(f"{at}.name", name)
        elif not sources[name].keys() & {"persistentVolumeClaim", "ephemeral"}:
            why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
            yield invalid(f"{at}.name", name, why)
        if not each.get("devicePath"):
            yield required(f"{at}.devicePath")
        seen.add(name)
