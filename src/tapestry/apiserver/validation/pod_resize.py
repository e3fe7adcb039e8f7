"""Validation of the pod `resize` subresource: only CPU and memory of running containers can change."""

from collections.abc import Iterator

from tapestry.apiserver.core.faults import Fault, forbidden_field, invalid_value
from tapestry.apiserver.validation.pods import validate_pod_always
from tapestry.kube.objects import Object, annotations_of, value_at
from tapestry.kube.pods import MIRROR_POD_ANNOTATION, qos_class

RESIZABLE_RESOURCES = ("cpu", "memory")
CONTAINER_FIELDS = ("containers", "initContainers")


def validate_pod_resize(old: Object, new: Object) -> Iterator[Fault]:
    if msg := resize_error(old, new):
        yield forbidden_field("", msg)
        return
    yield from validate_pod_always(new, new["spec"])
    before, after = old["spec"], new["spec"]
    if value_at(old, "status", "qosClass") not in (None, qos_class(new["spec"])):
        msg = "Pod QOS Class may not change as a result of resizing"
        yield invalid_value("spec", value_at(new, "status", "qosClass"), msg)
    running = [
        each for each in value_at(old, "status", "containerStatuses", default=[]) if "running" in container_state(each)
    ]
    if running and running[0].get("resources") is None:
        yield forbidden_field("spec", "Pod running on node without support for resize")
    container_faults = [fault for field in CONTAINER_FIELDS for fault in validate_same_containers(before, after, field)]
    yield from container_faults
    if not container_faults:
        yield from validate_resized_resources(before, after)


def resize_error(old: Object, new: Object) -> str:
    """Return the reason why a pod cannot be resized at all; empty if it can."""
    pod_resources = [value_at(each, "spec", "resources", default={}) for each in (old, new)]
    if any(each.get("requests") or each.get("limits") for each in pod_resources):
        return "pods with pod-level resources cannot be resized"
    if MIRROR_POD_ANNOTATION in annotations_of(old):
        return "static pods cannot be resized"
    return "windows pods cannot be resized" if value_at(old, "spec", "os", "name") == "windows" else ""


def container_state(status: Object) -> Object:
    state: Object = status.get("state") or {}
    return state


def validate_same_containers(before: Object, after: Object, field: str) -> Iterator[Fault]:
    old_containers, new_containers = before.get(field) or [], after.get(field) or []
    if len(old_containers) != len(new_containers):
        yield forbidden_field(f"spec.{field}", f"{field} may not be added or removed on resize")
        return
    for number, (old, new) in enumerate(zip(old_containers, new_containers, strict=True)):
        if old["name"] != new.get("name"):
            yield forbidden_field(f"spec.{field}[{number}].name", f"{field} may not be renamed or reordered on resize")


def validate_resized_resources(before: Object, after: Object) -> Iterator[Fault]:
    for field in reversed(CONTAINER_FIELDS):
        for number, (old, new) in enumerate(zip(before.get(field) or (), after.get(field) or (), strict=True)):
            if field == "containers" or is_sidecar(old):
                yield from validate_resources_not_removed(old, new, f"spec.{field}[{number}].resources")
    for field in CONTAINER_FIELDS:
        for old, new in zip(before.get(field) or (), after.get(field) or (), strict=True):
            if field == "initContainers" and not is_sidecar(old):
                if (old.get("resources") or {}) != (new.get("resources") or {}):
                    yield forbidden_field("spec", "resources for non-sidecar init containers are immutable")
            elif fixed_resources(old) != fixed_resources(new):
                suffix = " for sidecar containers" if field == "initContainers" else ""
                yield forbidden_field("spec", f"only cpu and memory resources{suffix} are mutable")


def is_sidecar(container: Object) -> bool:
    return container.get("restartPolicy") == "Always"


def validate_resources_not_removed(old: Object, new: Object, path: str) -> Iterator[Fault]:
    for kind in ("requests", "limits"):
        old_names, new_names = (value_at(each, "resources", kind, default={}) for each in (old, new))
        if old_names.keys() - new_names.keys():
            yield forbidden_field(f"{path}.{kind}", f"resource {kind} cannot be removed")


def fixed_resources(container: Object) -> list[Object]:
    """Return requests and limits without CPU and memory."""
    resource_lists = (value_at(container, "resources", kind, default={}) for kind in ("requests", "limits"))
    return [{key: value for key, value in each.items() if key not in RESIZABLE_RESOURCES} for each in resource_lists]
