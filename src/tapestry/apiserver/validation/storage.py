"""Claims, volumes, and classes of storage."""

from collections.abc import Iterator
from typing import Any

from tapestry.apiserver.customs.structural import Fault, repetitions
from tapestry.apiserver.validation import names
from tapestry.apiserver.validation.differences import difference
from tapestry.apiserver.validation.faults import (
    NOT_POSITIVE,
    Rule,
    at_least,
    duplicate,
    every,
    forbidden,
    invalid,
    matching,
    needs,
    nonnegative,
    one_of,
    required,
    struct,
    too_long,
    unchanged,
    unsupported,
)
from tapestry.apiserver.validation.metadata import label_selector
from tapestry.apiserver.validation.resources import nonnegative_quantity, positive_quantity
from tapestry.apiserver.validation.scheduling import node_selector
from tapestry.apiserver.validation.volumes import SOURCES, driver_name, host_path
from tapestry.kube.objects import Object, value_at, with_value, without
from tapestry.kube.quantity import parse

MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
PARAMETERS, PARAMETER_BYTES = 512, 256 * 1024
BETA_CLASS = "volume.beta.kubernetes.io/storage-class"
CLAIM_FIXED = (
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
)

is_subdomain = matching(names.subdomain)


def access_modes(value: Any, path: str) -> Iterator[Fault]:
    for each in value:
        if each not in MODES:
            yield unsupported(path, each, MODES)
    if "ReadWriteOncePod" in value and any(each in MODES[:3] for each in value):
        yield forbidden(path, "may not use ReadWriteOncePod with other access modes")


# -- claims


def size(spec: Any, path: str) -> Iterator[Fault]:
    at = f"{path}.resources[storage]"
    asked = value_at(spec, "resources", "requests", "storage")
    if asked is None:
        yield required(at)
    else:
        yield from positive_quantity(asked, at)


def source(value: Any, path: str) -> Iterator[Fault]:
    yield from struct(needs("name", "kind"))(value, path)
    if not value.get("apiGroup"):
        if value.get("kind") != "PersistentVolumeClaim":
            why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup"
            yield invalid(path, value.get("kind", ""), why)
    else:
        yield from is_subdomain(value["apiGroup"], f"{path}.apiGroup")


claim_spec = struct(
    needs("accessModes", why="at least 1 access mode is required"),
    ("selector", label_selector),
    ("accessModes", access_modes),
    ("", size),
    ("storageClassName", is_subdomain),
    ("volumeMode", one_of("Block", "Filesystem")),
    ("dataSourceRef", source),
)


def changed_claim(old: Object, new: Object) -> Iterator[Fault]:
    """Faults of a changed claim: it can be bound, and once it is, it can grow."""
    yield from claim_spec(new["spec"], "spec")
    before, after = old["spec"], new["spec"]
    then, now = ((each["metadata"].get("annotations") or {}).get(BETA_CLASS, "") for each in (old, new))
    if then != now:
        yield invalid(f"metadata.annotations.{BETA_CLASS}", now, "field is immutable")
    expected = before
    for field in ("volumeName", "storageClassName"):
        if not before.get(field) and after.get(field):
            expected = {**expected, field: after[field]}
    if value_at(new, "status", "phase") == "Bound":
        expected = {**without(expected, "volumeAttributesClassName"), **only(after, "volumeAttributesClassName")}
        if value_at(after, "resources", "requests", "storage") is not None:
            expected = with_value(
                expected, ("resources", "requests", "storage"), after["resources"]["requests"]["storage"]
            )
    if after != expected:
        yield forbidden("spec", f"{CLAIM_FIXED}\n{difference(expected, after)}")
    yield from shrinking(old, new)
    yield from unchanged(before.get("volumeMode"), after.get("volumeMode"), "volumeMode")


def only(obj: Object, field: str) -> Object:
    return {field: obj[field]} if field in obj else {}


def shrinking(old: Object, new: Object) -> Iterator[Fault]:
    then, now = (value_at(each, "spec", "resources", "requests", "storage", default="0") for each in (old, new))
    has = value_at(old, "status", "capacity", "storage", default="0")
    if parse(now) < parse(then) and parse(now) <= parse(has):
        yield forbidden("spec.resources.requests.storage", "field can not be less than status.capacity")


# -- volumes


def capacity(spec: Any, path: str) -> Iterator[Fault]:
    found, at = spec.get("capacity") or {}, f"{path}.capacity"
    if not found:
        yield required(at)
    if list(found) != ["storage"]:
        yield unsupported(at, found or None, ("storage",))
    for name, text in found.items():
        if (quantity := parse(text)).nano < 0:
            yield invalid(f"{at}[{name}]", quantity.value(), "must be a valid resource quantity")
        if quantity.nano <= 0:
            yield invalid(f"{at}[{name}]", str(quantity), NOT_POSITIVE)


PERSISTENT: dict[str, Rule] = {
    "hostPath": host_path,
    **{kind: SOURCES[kind] for kind in SOURCES if kind not in ("emptyDir", "hostPath", "csi")},
    "local": struct(needs("path")),
    "csi": struct(needs("driver"), ("driver", driver_name), needs("volumeHandle")),
}


def volume_source(spec: Any, path: str) -> Iterator[Fault]:
    found = [kind for kind in PERSISTENT if spec.get(kind) is not None]
    for kind in found[:1]:
        yield from PERSISTENT[kind](spec[kind], f"{path}.{kind}")
    for kind in found[1:]:
        yield forbidden(f"{path}.{kind}", "may not specify more than 1 volume type")
    if not found:
        yield required(path, "must specify a volume type")
    if "local" in found and not spec.get("nodeAffinity"):
        yield required(f"{path}.nodeAffinity", "Local volume requires node affinity")
    if value_at(spec, "hostPath", "path") == "/" and spec.get("persistentVolumeReclaimPolicy") == "Recycle":
        why = "may not be 'recycle' for a hostPath mount of '/'"
        yield forbidden(f"{path}.persistentVolumeReclaimPolicy", why)


volume_spec = struct(
    needs("accessModes"),
    ("accessModes", access_modes),
    ("", capacity),
    ("persistentVolumeReclaimPolicy", one_of("Delete", "Recycle", "Retain")),
    ("nodeAffinity", struct(("required", node_selector))),
    ("", volume_source),
    ("storageClassName", is_subdomain),
    ("volumeMode", one_of("Block", "Filesystem")),
)


def changed_volume(old: Object, new: Object) -> Iterator[Fault]:
    yield from volume_spec(new["spec"], "spec")
    before, after = ({kind: each["spec"].get(kind) for kind in PERSISTENT} for each in (old, new))
    if (
        value_at(old, "spec", "csi")
        and value_at(new, "spec", "csi")
        and "controllerExpandSecretRef" not in before["csi"]
    ):
        after["csi"] = without(after["csi"], "controllerExpandSecretRef")
    if before != after:
        why = f"spec.persistentvolumesource is immutable after creation\n{difference(before, after)}"
        yield forbidden("spec.persistentvolumesource", why)
    yield from unchanged(old["spec"].get("volumeMode"), new["spec"].get("volumeMode"), "volumeMode")
    if old["spec"].get("nodeAffinity") is not None:
        yield from unchanged(old["spec"]["nodeAffinity"], new["spec"].get("nodeAffinity"), "nodeAffinity")


# -- classes


def qualified_driver(value: Any, path: str) -> Iterator[Fault]:
    return matching(names.qualified)(value.lower(), path)


def parameters(value: Any, path: str) -> Iterator[Fault]:
    if len(value) > PARAMETERS:
        yield too_long(path, PARAMETERS)
        return
    if "" in value:
        yield invalid(path, "", "field can not be empty.")
    if sum(len(key) + len(text) for key, text in value.items()) > PARAMETER_BYTES:
        yield too_long(path, PARAMETER_BYTES)


def topologies(value: Any, path: str) -> Iterator[Fault]:
    for number, term in enumerate(value):
        at = f"{path}[{number}].matchLabelExpressions"
        for index, each in enumerate(term.get("matchLabelExpressions") or ()):
            values = each.get("values") or []
            if not values:
                yield required(f"{at}[{index}].values")
            for place, text in repetitions(values):
                yield duplicate(f"{at}[{index}].values[{place}]", text)
            yield from matching(names.qualified)(each.get("key", ""), f"{at}[{index}].key")


storage_class = struct(
    needs("provisioner"),
    ("provisioner", qualified_driver),
    ("parameters", parameters),
    ("reclaimPolicy", one_of("Delete", "Retain")),
    ("volumeBindingMode", one_of("Immediate", "WaitForFirstConsumer")),
    ("allowedTopologies", topologies),
)


def changed_storage_class(old: Object, new: Object) -> Iterator[Fault]:
    for field in ("parameters", "provisioner", "reclaimPolicy"):
        if (old.get(field) or None) != (new.get(field) or None):
            yield forbidden(field, f"updates to {field} are forbidden.")
    yield from unchanged(old.get("volumeBindingMode"), new.get("volumeBindingMode"), "volumeBindingMode")


attributes_class = struct(
    needs("driverName"),
    ("driverName", qualified_driver),
    ("parameters", parameters),
    needs("parameters", why="must contain at least one key/value pair"),
)


def changed_attributes_class(old: Object, new: Object) -> Iterator[Fault]:
    for field in ("driverName", "parameters"):
        if old.get(field) != new.get(field):
            yield forbidden(field, f"updates to {field} are forbidden.")
    yield from attributes_class(new, "")


# -- attachments and drivers


def attachment_source(value: Any, path: str) -> Iterator[Fault]:
    inline, name = value.get("inlineVolumeSpec"), value.get("persistentVolumeName")
    why = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
    if inline is None and name is None:
        yield required(path, why)
    elif inline is not None and name is not None:
        yield forbidden(path, why)
    elif name == "":
        yield required(f"{path}.persistentVolumeName", "must specify non empty persistentVolumeName")


def attachment(value: Any, path: str) -> Iterator[Fault]:
    yield from struct(needs("attacher"))(value, path)
    yield from driver_name(value.get("attacher", ""), f"{path}.attacher")
    yield from attachment_source(value.get("source") or {}, f"{path}.source")
    yield from is_subdomain(value.get("nodeName", ""), f"{path}.nodeName")


def changed_attachment(old: Object, new: Object) -> Iterator[Fault]:
    yield from attachment(new["spec"], "spec")
    yield from unchanged(old["spec"], new["spec"], "spec")


token_requests = every(struct(("expirationSeconds", at_least(600, "may not specify a duration less than 10 minutes"))))


def lifecycle_modes(value: Any, path: str) -> Iterator[Fault]:
    for each in value:
        yield from one_of("Persistent", "Ephemeral")(each, path)


driver = struct(
    ("fsGroupPolicy", one_of("File", "None", "ReadWriteOnceWithFSType")),
    ("tokenRequests", token_requests),
    ("volumeLifecycleModes", lifecycle_modes),
)


def changed_driver(old: Object, new: Object) -> Iterator[Fault]:
    before, after = old["spec"], new["spec"]
    yield from driver(after, "spec")
    yield from unchanged(before.get("attachRequired"), after.get("attachRequired"), "spec.attachedRequired")
    yield from unchanged(
        before.get("volumeLifecycleModes"), after.get("volumeLifecycleModes"), "spec.volumeLifecycleModes"
    )


def node_drivers(value: Any, path: str) -> Iterator[Fault]:
    seen = set()
    for number, each in enumerate(value):
        at = f"{path}[{number}]"
        yield from struct(
            needs("name"),
            ("", lambda found, path: driver_name(found.get("name", ""), f"{path}.name")),
            needs("nodeID"),
            ("allocatable", struct(("count", nonnegative))),
        )(each, at)
        if each.get("name") in seen:
            yield duplicate(f"{at}.name", each.get("name"))
        seen.add(each.get("name"))
        for key in each.get("topologyKeys") or ():
            yield from matching(names.qualified)(key, at)


csi_node = struct(("drivers", node_drivers))


def changed_csi_node(old: Object, new: Object) -> Iterator[Fault]:
    yield from csi_node(new["spec"], "spec")
    before = {each["name"]: each for each in value_at(old, "spec", "drivers", default=[])}
    for each in value_at(new, "spec", "drivers", default=[]):
        if each.get("name") in before and before[each["name"]] != each:
            yield invalid("spec.drivers", each, "field is immutable")


storage_capacity = struct(
    ("nodeTopology", label_selector), ("storageClassName", is_subdomain), ("capacity", nonnegative_quantity)
)


def changed_capacity(old: Object, new: Object) -> Iterator[Fault]:
    for field in ("nodeTopology", "storageClassName"):
        yield from unchanged(old.get(field), new.get(field), field)
