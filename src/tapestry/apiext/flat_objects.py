"""Flat objects: the fields of an object under names that are the same for every kind.

  {"kind": "User", "name": "ann", "namespace": "default", "uid": "...", "version": "17", "created": "2026-01-02T...",
   "deleting": false, "labels": {}, "phase": "Active", "conditions": {"Ready": {"status": "True", ...}},
   "spec": {"email": "ann@example.com", "teams": ["blue"]}}

`full_object` keeps the rest of the object and can be posted or put again.  `object_outline` summarizes it for lists.
"""

from collections.abc import Mapping
from typing import Any

from tapestry.apiext.errors import bad_request
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object, is_deleting, labels_of, name_of, value_at
from tapestry.kube.resources import Resource

STANDARD_FIELDS = frozenset({"apiVersion", "kind", "metadata", "status"})
KEYS_ONLY = frozenset({"data", "stringData", "binaryData"})
"""Fields of which lists show only the keys, because the values are long or secret."""
MAX_TEXT_LENGTH = 200
"""Characters of a text that lists show."""

PHASE_CONDITIONS = ("Failed", "Complete", "Ready", "Available")
"""Conditions that replace a missing phase; the first true one counts."""

METADATA_FIELDS = ("name", "namespace", "labels", "annotations")
READ_ONLY_FIELDS = frozenset(
    {"kind", "apiVersion", "uid", "version", "created", "deleting", "phase", "conditions", "status"}
)
"""Fields of a flat object that are ignored when it is posted or put; `version` is a precondition of changes."""


def full_object(obj: Object, resource: Resource) -> Object:
    """Return the complete object in flat form."""
    rest = {name: value for name, value in obj.items() if name not in STANDARD_FIELDS}
    status = {name: value for name, value in status_of(obj).items() if name not in ("phase", "conditions")}
    annotations = obj["metadata"].get("annotations") or {}
    return {**rest, **common_fields(obj, resource), "annotations": annotations, "status": status}


def object_outline(obj: Object, resource: Resource) -> Object:
    """Return the object in flat form with its other fields summarized."""
    rest = {name: field_outline(name, value) for name, value in obj.items() if name not in STANDARD_FIELDS}
    return {**rest, **common_fields(obj, resource)}


def common_fields(obj: Object, resource: Resource) -> Object:
    """Return the fields that every kind has."""
    metadata = obj["metadata"]
    return {
        "kind": resource.kind,
        "name": name_of(obj),
        "namespace": metadata.get("namespace"),
        "uid": metadata.get("uid"),
        "version": metadata.get("resourceVersion"),
        "created": metadata.get("creationTimestamp"),
        "deleting": is_deleting(obj),
        "labels": dict(labels_of(obj)),
        "phase": phase_of(obj),
        "conditions": conditions_of(obj),
    }


def status_of(obj: Object) -> Mapping[str, Any]:
    """Return the status; empty if it is missing or not a mapping."""
    status = obj.get("status")
    return status if isinstance(status, dict) else {}


def phase_of(obj: Object) -> str | None:
    phase = value_at(obj, "status", "phase")
    if isinstance(phase, str) and phase:
        return phase
    known = {"status": {"conditions": list(valid_conditions(obj))}}
    return next((type for type in PHASE_CONDITIONS if is_condition_true(known, type)), None)


def conditions_of(obj: Object) -> Object:
    return {
        str(each["type"]): {
            "status": each.get("status"),
            "reason": each.get("reason"),
            "message": each.get("message"),
            "since": each.get("lastTransitionTime"),
        }
        for each in valid_conditions(obj)
    }


def valid_conditions(obj: Object) -> list[Object]:
    """Return the well-formed conditions; a custom resource may store anything in that field."""
    found = status_of(obj).get("conditions")
    return [each for each in found if isinstance(each, dict) and "type" in each] if isinstance(found, list) else []


def field_outline(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return sorted(value) if name in KEYS_ONLY else dict(flattened_fields(value, ""))
    return value_outline(value)


def flattened_fields(value: Object, prefix: str) -> list[tuple[str, Any]]:
    """Return the scalar values below `value` by dotted path."""
    found: list[tuple[str, Any]] = []
    for name, child in value.items():
        path = prefix + name
        found += flattened_fields(child, f"{path}.") if isinstance(child, dict) else [(path, value_outline(child))]
    return found


def value_outline(value: Any) -> Any:
    """Shorten a text; replace a list of objects by their names or, without names, their number."""
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT_LENGTH else f"{value[:MAX_TEXT_LENGTH]}..."
    if not isinstance(value, list):
        return value
    if not any(isinstance(each, dict | list) for each in value):
        return [value_outline(each) for each in value]
    if all(isinstance(each, dict) and "name" in each for each in value):
        return [each["name"] for each in value]
    return len(value)


def object_from_body(body: Any, resource: Resource, namespace: str | None) -> Object:
    """Convert a posted body, flat or with `metadata`, into an object; `namespace` is that of the query.

    Raise BadRequest if it cannot be an object of `resource`; the API server validates the rest.
    """
    obj = checked_body(body, resource)
    metadata = obj["metadata"]
    if not metadata.get("name") and not metadata.get("generateName"):
        raise bad_request('name: missing; send {"name": ..., "spec": {...}}')
    where = namespace_for(metadata.get("namespace"), namespace, resource)
    rest = {name: value for name, value in metadata.items() if name != "namespace"}
    identity = {"apiVersion": obj.get("apiVersion") or resource.api_version, "kind": resource.kind}
    return {**obj, **identity, "metadata": {**rest, "namespace": where} if where else rest}


def checked_body(body: Any, resource: Resource) -> Object:
    """Return a flat body, or one with `metadata`, as an object; raise BadRequest if it cannot be one of `resource`."""
    if not isinstance(body, dict):
        raise bad_request('the body is not an object; send {"name": ..., "spec": {...}}')
    kind = body.get("kind", resource.kind)
    if kind != resource.kind:
        raise bad_request(f"kind: {kind!r} was sent to {resource.name}, whose kind is {resource.kind!r}")
    obj = body if "metadata" in body else from_flat(body)
    if not isinstance(obj["metadata"], dict):
        raise bad_request("metadata: this is not an object; send the name in it, or a flat object without metadata")
    return obj


def check_identity(metadata: Object, name: str, namespace: str | None) -> None:
    """Raise BadRequest if a body names another object than the path."""
    for field, expected in (("name", name), ("namespace", namespace)):
        if metadata.get(field) not in (None, expected):
            raise bad_request(f"{field}: {metadata[field]!r} in the body and {expected!r} in the request; omit it")


def replacement(body: Any, current: Object, resource: Resource) -> Object:
    """Return the object that a put body stands for.

    A flat body replaces labels, annotations and all fields but the status, and keeps the rest of the metadata. Its
    `version`, if any, must be the current one. A body with `metadata` is complete.
    """
    obj = checked_body(body, resource)
    check_identity(obj["metadata"], name_of(current), current["metadata"].get("namespace"))
    identity = {"apiVersion": resource.api_version, "kind": resource.kind}
    if "metadata" in body:
        return {**obj, **identity}
    changed = {field: obj["metadata"].get(field, {}) for field in ("labels", "annotations")}
    metadata = {**current["metadata"], **changed, **version_precondition(body)}
    status = {"status": current["status"]} if "status" in current else {}
    return {**obj, **identity, "metadata": metadata, **status}


def merge_patch(body: Any, name: str, namespace: str | None) -> Object:
    """Return the merge patch of the object for one of its flat form; one with `metadata` stays as it is."""
    if not isinstance(body, dict):
        raise bad_request('the body is not an object; send the fields to change, as in {"spec": {"size": 3}}')
    if "metadata" in body:
        return body
    read_only = sorted((READ_ONLY_FIELDS - {"version"}) & body.keys())
    if read_only:
        raise bad_request(f"{read_only[0]}: this field cannot be changed; omit it")
    check_identity(body, name, namespace)
    metadata = {field: body[field] for field in ("labels", "annotations") if field in body}
    rest = {field: value for field, value in body.items() if field not in (*METADATA_FIELDS, "version")}
    metadata |= version_precondition(body)
    return {**rest, "metadata": metadata} if metadata else rest


def version_precondition(body: Object) -> Object:
    return {"resourceVersion": body["version"]} if body.get("version") is not None else {}


def from_flat(body: Object) -> Object:
    metadata = {name: body[name] for name in METADATA_FIELDS if body.get(name) is not None}
    rest = {name: value for name, value in body.items() if name not in METADATA_FIELDS and name not in READ_ONLY_FIELDS}
    return {**rest, "metadata": metadata}


def namespace_for(body_namespace: Any, query_namespace: str | None, resource: Resource) -> str | None:
    if not resource.namespaced:
        if body_namespace or query_namespace:
            raise bad_request(f"namespace: {resource.name} are not namespaced; omit it")
        return None
    if body_namespace and query_namespace and body_namespace != query_namespace:
        raise bad_request(f"namespace: {body_namespace!r} in the body and {query_namespace!r} in the query; use one")
    return body_namespace or query_namespace or "default"
