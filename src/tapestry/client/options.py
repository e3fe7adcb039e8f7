"""What is said beside an object: which are meant, what kind of patch it is, on which conditions it counts.  Pure."""

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
    """The part of a query that chooses among objects."""
    query = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in query.items() if value}


def dry_run_query(enabled: bool) -> dict[str, str]:
    return {"dryRun": "All"} if enabled else {}


def delete_options(target: Object, grace_seconds: int | None, propagation: Propagation | None) -> Object:
    """DeleteOptions that spare whatever took the place of `target`."""
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
    """`patch`, good only for an object at `version`."""
    if type is PatchType.JSON:
        # replaced by itself, not tested: a failed test is Invalid, a wrong version is the Conflict that it should be
        return [{"op": "replace", "path": "/metadata/resourceVersion", "value": version}, *patch]
    return {**patch, "metadata": {**(patch.get("metadata") or {}), "resourceVersion": version}}
