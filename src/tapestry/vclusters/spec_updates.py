"""Updates of a spec by a field mask."""

from collections.abc import Sequence
from typing import Any

from tapestry.kube.objects import Object
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.errors import Violation, field_invalid
from tapestry.vclusters.model import spec_fields

MASK_FIELDS = ("labels", "annotations", "expire_time", "deletion_protection")
"""Fields of an update besides those of the spec."""
DESIRED_FIELDS = frozenset(each.json_name for each in api.VClusterSpec.DESCRIPTOR.fields)


def mask_of(request: Any) -> frozenset[str]:
    """Return the fields that an update sets: `spec.` paths of the spec, and others. Raises ServiceError."""
    if not request.HasField("update_mask"):
        paths = {f"spec.{each.name}" for each, _ in request.spec.ListFields()}
        return frozenset(
            paths | {name for name in MASK_FIELDS if name in {each.name for each, _ in request.ListFields()}}
        )
    paths = set()
    for path in request.update_mask.paths:
        first, _, rest = path.partition(".")
        if path == "*":
            paths |= {"spec", *MASK_FIELDS}
        elif path == "spec" or (path in MASK_FIELDS and not rest):
            paths.add(path)
        else:
            name = path if first == "spec" else f"spec.{path}"
            check_path(name)
            paths.add(name)
    return frozenset(paths)


def check_path(path: str) -> None:
    descriptor: Any = api.VClusterSpec.DESCRIPTOR
    for name in path.split(".")[1:]:
        known = descriptor.fields_by_name.get(name) if descriptor is not None else None
        if known is None:
            raise field_invalid(Violation("updateMask", f"{path[:200]} is not a field of a virtual cluster"))
        descriptor = known.message_type if not known.is_repeated else None


def updated_spec(before: Object, request: Any, paths: Sequence[str] | frozenset[str]) -> Object:
    """Return a spec in which the named fields have the values of a request. A field that it does not set is removed."""
    given = spec_fields(request.spec)
    spec = {key: value for key, value in before.items() if "spec" not in paths or key not in DESIRED_FIELDS}
    if "spec" in paths:
        spec |= given
    for path in sorted(each for each in paths if each.startswith("spec.")):
        set_path(spec, given, [json_name(each) for each in path.split(".")[1:]])
    if "expire_time" in paths:
        spec.pop("expireTime", None)
        if request.HasField("expire_time"):
            spec["expireTime"] = request.expire_time.ToJsonString()
    if "deletion_protection" in paths:
        spec["deletionProtection"] = request.deletion_protection
    return spec


def set_path(target: Object, source: Object, path: Sequence[str]) -> None:
    *parents, last = path
    for parent in parents:
        source = source.get(parent) or {}
        target[parent] = target = dict(target.get(parent) or {})
    if last in source:
        target[last] = source[last]
    else:
        target.pop(last, None)


def json_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(each.capitalize() for each in others)
