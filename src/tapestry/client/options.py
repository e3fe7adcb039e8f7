"""Request options: selectors, patch types, delete preconditions.  Pure."""

from enum import StrEnum
from typing import Any

from tapestry.kube.objects import Object, uid_of, version_of


class PatchType(StrEnum):
    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


class Propagation(StrEnum):
    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


def selector_query(labels: str, fields: str) -> dict[str, str]:
    query = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in query.items() if value}


def dry_run_query(enabled: bool) -> dict[str, str]:
    return {"dryRun": "All"} if enabled else {}


def delete_options(target: Object, grace_seconds: int | None, propagation: Propagation | None) -> Object:
    """Return DeleteOptions that protect an object created later under the same name as `target`."""
    preconditions = {"uid": uid_of(target), "resourceVersion": version_of(target)}
    options: Object = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {key: value for key, value in preconditions.items() if value},
        "gracePeriodSeconds": grace_seconds,
        "propagationPolicy": propagation,
    }
    return {key: value for key, value in options.items() if value not in (None, {})}


def with_resource_version(patch: Any, version: str, type: PatchType) -> Any:
    """Return `patch` with the precondition that the object is at `version`."""
    if type is PatchType.JSON:
        # "replace", not "test": a failed test is Invalid, but a wrong version must be a Conflict
        return [{"op": "replace", "path": "/metadata/resourceVersion", "value": version}, *patch]
    return {**patch, "metadata": {**(patch.get("metadata") or {}), "resourceVersion": version}}
