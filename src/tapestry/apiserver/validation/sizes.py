"""Sizes: what may be changed of a pod that goes on running, which is how much CPU and memory its containers get."""

from collections.abc import Iterator

from tapestry.apiserver.admission.plain import quality
from tapestry.apiserver.customs.structural import Fault
from tapestry.apiserver.validation.faults import forbidden, invalid
from tapestry.apiserver.validation.pods import itself
from tapestry.kube.objects import Object, annotations_of, value_at

MIRROR = "kubernetes.io/config.mirror"
SIZABLE = ("cpu", "memory")
FIELDS = ("containers", "initContainers")


def resized(old: Object, new: Object) -> Iterator[Fault]:
    """Faults of a write to the size of a pod."""
    if why := refusal(old, new):
        yield forbidden("", why)
        return
    yield from itself(new, new["spec"])
    before, after = old["spec"], new["spec"]
    if value_at(old, "status", "qosClass") not in (None, quality(new["spec"])):
        why = "Pod QOS Class may not change as a result of resizing"
        yield invalid("spec", value_at(new, "status", "qosClass"), why)
    running = [each for each in value_at(old, "status", "containerStatuses", default=[]) if "running" in state(each)]
    if running and running[0].get("resources") is None:
        yield forbidden("spec", "Pod running on node without support for resize")
    others = [fault for field in FIELDS for fault in other_containers(before, after, field)]
    yield from others
    if not others:
        yield from changed_sizes(before, after)


def refusal(old: Object, new: Object) -> str:
    """Why a pod cannot be resized at all."""
    own = [value_at(each, "spec", "resources", default={}) for each in (old, new)]
    if any(each.get("requests") or each.get("limits") for each in own):
        return "pods with pod-level resources cannot be resized"
    if MIRROR in annotations_of(old):
        return "static pods cannot be resized"
    return "windows pods cannot be resized" if value_at(old, "spec", "os", "name") == "windows" else ""


def state(status: Object) -> Object:
    found: Object = status.get("state") or {}
    return found


def other_containers(before: Object, after: Object, field: str) -> Iterator[Fault]:
    had, has = before.get(field) or [], after.get(field) or []
    if len(had) != len(has):
        yield forbidden(f"spec.{field}", f"{field} may not be added or removed on resize")
        return
    for number, (one, other) in enumerate(zip(had, has, strict=True)):
        if one["name"] != other.get("name"):
            yield forbidden(f"spec.{field}[{number}].name", f"{field} may not be renamed or reordered on resize")


def changed_sizes(before: Object, after: Object) -> Iterator[Fault]:
    for field in reversed(FIELDS):
        for number, (one, other) in enumerate(zip(before.get(field) or (), after.get(field) or (), strict=True)):
            if field == "containers" or is_sidecar(one):
                yield from taken_away(one, other, f"spec.{field}[{number}].resources")
    for field in FIELDS:
        for one, other in zip(before.get(field) or (), after.get(field) or (), strict=True):
            if field == "initContainers" and not is_sidecar(one):
                if (one.get("resources") or {}) != (other.get("resources") or {}):
                    yield forbidden("spec", "resources for non-sidecar init containers are immutable")
            elif beside(one) != beside(other):
                whose = " for sidecar containers" if field == "initContainers" else ""
                yield forbidden("spec", f"only cpu and memory resources{whose} are mutable")


def is_sidecar(container: Object) -> bool:
    return container.get("restartPolicy") == "Always"


def taken_away(one: Object, other: Object, path: str) -> Iterator[Fault]:
    for kind in ("requests", "limits"):
        had, has = (value_at(each, "resources", kind, default={}) for each in (one, other))
        if had.keys() - has.keys():
            yield forbidden(f"{path}.{kind}", f"resource {kind} cannot be removed")


def beside(container: Object) -> list[Object]:
    """What a container needs beside CPU and memory."""
    found = (value_at(container, "resources", kind, default={}) for kind in ("requests", "limits"))
    return [{key: value for key, value in each.items() if key not in SIZABLE} for each in found]
