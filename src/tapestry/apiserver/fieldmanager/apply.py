"""Field manager: track field ownership on writes and execute server-side apply.

Ordinary writes call `FieldManager.track_update` after defaulting and before admission plugins change the object. An
apply request calls `FieldManager.apply` first, which merges the applied configuration into the live object.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.faults import MAX_FAULTS
from tapestry.apiserver.core.requests import APPLY_PATCH, WriteRequest
from tapestry.apiserver.fieldmanager import managed_fields
from tapestry.apiserver.fieldmanager.fieldsets import LEAF, FieldSet, field_difference
from tapestry.apiserver.fieldmanager.managed_fields import (
    BEFORE_APPLY,
    Conflicts,
    EntriesByManager,
    ManagedFieldsEntry,
    Manager,
    is_managed_fields_reset,
)
from tapestry.apiserver.fieldmanager.merge_schemas import MergeSchema, MergeSchemas
from tapestry.kube.errors import Conflict, ServerError
from tapestry.kube.objects import Object, annotations_of, uid_of, with_value, without_field
from tapestry.kube.times import timestamp

MAX_MANAGER_NAME_LENGTH = 128
KUBECTL = "kubectl"
"""Manager that kept its own record in an annotation. It may move to server-side apply without conflicts."""
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
UNTRACKED_SUBRESOURCES = frozenset({"binding"})
"""Subresources whose writes change no ownership."""


@dataclass(frozen=True)
class FieldManager:
    """Maintain `metadata.managedFields`."""

    schemas: MergeSchemas
    now: Callable[[], datetime]
    tracks_from_creation: bool = True
    """True tracks every object from its creation. False tracks an object from its first apply on."""

    # -- ordinary writes

    async def track_update(self, request: WriteRequest, old: Object | None, new: Object) -> Object:
        """Write stage: give the writer ownership of the fields that it changed."""
        if request.content_type == APPLY_PATCH or request.target.subresource in UNTRACKED_SUBRESOURCES:
            return new
        entries = new["metadata"].get("managedFields")
        plain = without_field(new, "metadata", "managedFields") if entries is not None else new
        managed = previous_entries(request, old, entries)
        if not managed and (old is not None or not self.tracks_from_creation):
            return plain
        info, entry, ignored = request.target.info, self.new_entry(request, "Update"), ignored_fields(request)
        schema, empty = self.schemas.schema_for(info), self.schemas.empty_object(info)
        if old is None and not managed:
            fields = managed_fields.fields_of_created(schema, empty, plain, ignored)
            return with_managed_fields(
                plain, {entry.manager: ManagedFieldsEntry(entry.manager, fields, entry.time)} if fields else {}
            )
        before = empty if old is None else {**empty, **without_field(old, "metadata", "managedFields")}
        return with_managed_fields(
            plain, managed_fields.entries_after_update(schema, before, {**empty, **plain}, managed, entry, ignored)
        )

    async def ignore_timestamp_changes(self, _: WriteRequest, old: Object | None, new: Object) -> Object:
        """Last write stage: treat a write that changes only timestamps as no change."""
        return old if old is not None and managed_fields.is_equal_except_timestamps(old, new) else new

    def new_entry(
        self, request: WriteRequest, operation: managed_fields.Operation, name: str = ""
    ) -> ManagedFieldsEntry:
        manager = (
            name or request.query.get("fieldManager") or request.user_agent.partition("/")[0][:MAX_MANAGER_NAME_LENGTH]
        )
        version, subresource = request.target.info.resource.api_version, request.target.subresource
        return ManagedFieldsEntry(
            Manager(manager or "unknown", operation, version, subresource), LEAF, timestamp(self.now())
        )

    # -- apply

    def apply(self, request: WriteRequest, live: Object | None, body: Any) -> Object:
        """Return the object that results from applying `body`. `live` is None if the object does not exist."""
        info = request.target.info
        config = applied_configuration(request, body)
        schema = self.schemas.schema_for(info)
        validate_configuration(schema, config, request)
        entry = self.new_entry(request, "Apply")
        if live is None:
            if uid := uid_of(config):
                message = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                raise api_errors.conflict(info.resource, request.target.name, message)
            empty = self.schemas.empty_object(info)
            _, managed = managed_fields.apply_configuration(
                schema, empty, config, {}, entry, ignored_fields(request), force=True
            )
            return with_managed_fields(config, managed)
        current = without_field(live, "metadata", "managedFields")
        managed = previous_entries(request, live, None) or self.entries_before_apply(request, schema, current)
        try:
            merged, managed = self.merge(request, schema, current, config, managed, entry)
        except Conflicts as error:
            raise conflict_error(error) from error
        if entry.manager.name == KUBECTL and annotations_of(merged).get(LAST_APPLIED):
            merged = with_value(merged, ("metadata", "annotations", LAST_APPLIED), last_applied_annotation(config))
        return with_managed_fields(merged, managed)

    def entries_before_apply(self, request: WriteRequest, schema: MergeSchema, current: Object) -> EntriesByManager:
        """Return one entry, `before-first-apply`, that owns all fields of an untracked object."""
        entry = self.new_entry(request, "Update", BEFORE_APPLY)
        empty = self.schemas.empty_object(request.target.info)
        return managed_fields.entries_after_update(schema, empty, current, {}, entry, ignored_fields(request))

    def merge(
        self,
        request: WriteRequest,
        schema: MergeSchema,
        live: Object,
        config: Object,
        managed: EntriesByManager,
        entry: ManagedFieldsEntry,
    ) -> tuple[Object, EntriesByManager]:
        force, ignored = request.query.get("force") in ("1", "true"), ignored_fields(request)
        try:
            return managed_fields.apply_configuration(schema, live, config, managed, entry, ignored, force=force)
        except Conflicts as conflicts:
            if entry.manager.name != KUBECTL or field_difference(conflicts.fields, last_applied_fields(schema, live)):
                raise
        return managed_fields.apply_configuration(schema, live, config, managed, entry, ignored, force=True)


def previous_entries(request: WriteRequest, old: Object | None, entries: Any) -> EntriesByManager:
    """Return the entries before a write: those in the request if it sends any, else those of the live object.

    Writes to subresources cannot change the entries. Invalid entries are ignored.
    """
    if old is None and entries is None:
        return {}
    live = old["metadata"].get("managedFields", ()) if old is not None else ()
    if request.target.subresource or entries is None:
        entries = live
    elif is_managed_fields_reset(entries):
        return {}
    for candidate in (entries, live):
        try:
            if decoded := managed_fields.decode_managed_fields(candidate):
                return decoded
        except ValueError:
            continue
    return {}


def with_managed_fields(obj: Object, managed: EntriesByManager) -> Object:
    if not managed:
        return obj
    return {**obj, "metadata": {**obj["metadata"], "managedFields": managed_fields.encode_managed_fields(managed)}}


def ignored_fields(request: WriteRequest) -> FieldSet:
    """Fields that a write cannot change: `spec` for a status write, `status` for any other write."""
    info = request.target.info
    if request.target.subresource == "status":
        return BESIDE_CUSTOM_STATUS if info.is_custom else BESIDE_STATUS
    return STATUS if info.has_status else LEAF


STATUS: FieldSet = {"f:status": LEAF}
BESIDE_STATUS: FieldSet = {"f:spec": LEAF, "f:metadata": {"f:ownerReferences": LEAF}}
BESIDE_CUSTOM_STATUS: FieldSet = {"f:spec": LEAF, "f:metadata": LEAF}


def applied_configuration(request: WriteRequest, body: Any) -> Object:
    """Return the validated applied configuration without nulls."""
    resource = request.target.info.resource
    if not request.query.get("fieldManager"):
        message = "Required value: is required for apply patch"
        raise api_errors.invalid_field(api_errors.PATCH_OPTIONS, "", "fieldManager", message)
    if not isinstance(body, dict):
        detail = api_errors.unmarshal_message(body, "Go value of type map[string]interface {}")
        raise api_errors.bad_request(f"error decoding YAML: {detail}")
    if (body.get("apiVersion"), body.get("kind")) != (resource.api_version, resource.kind):
        group, _, version = f"/{body.get('apiVersion', '')}".rpartition("/")
        raise api_errors.bad_request(f"invalid object type: {group.lstrip('/')}/{version}, Kind={body.get('kind', '')}")
    config: Object = {"metadata": {}, **without_nulls(body)}
    if not isinstance(config["metadata"], dict):
        raise api_errors.bad_request(f"the metadata of the {resource.kind} are not an object")
    if "managedFields" in config["metadata"]:
        raise api_errors.bad_request("metadata.managedFields must be nil")
    return config


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value if each is not None] if isinstance(value, list) else value


def validate_configuration(schema: MergeSchema, config: Object, request: WriteRequest) -> None:
    """Raise an error for fields that are not in the schema and for duplicate list items."""
    faults = [f"{path}: {reason}" for path, reason in islice(schema.faults(config), MAX_FAULTS)]
    if not faults:
        return
    target, resource = request.target, request.target.info.resource
    identity = f"{target.namespace}/{target.name}; {resource.group}/{resource.version}, Kind={resource.kind}"
    details = faults[0] if len(faults) == 1 else "errors:\n  " + "\n  ".join(faults)
    raise ServerError(500, "", f"failed to create typed patch object ({identity}): {details}")


def last_applied_fields(schema: MergeSchema, live: Object) -> FieldSet:
    """Fields whose live value equals the value in kubectl's last-applied annotation."""
    try:
        last = msgspec.json.decode(annotations_of(live).get(LAST_APPLIED, "null"))
    except (msgspec.DecodeError, RecursionError):
        return {}
    if not isinstance(last, dict) or last.get("apiVersion") != live.get("apiVersion"):
        return {}
    unchanged: FieldSet = schema.applied_fields(last) or {}
    for changes in schema.compare(last, live):
        unchanged = field_difference(unchanged, changes or {})
    return unchanged


def last_applied_annotation(config: Object) -> str:
    """Value of the last-applied annotation for a configuration."""
    annotations = {key: each for key, each in annotations_of(config).items() if key != LAST_APPLIED}
    plain = with_value(config, ("metadata", "annotations"), annotations) if annotations_of(config) else config
    return msgspec.json.encode(plain, order="sorted").decode() + "\n"


def conflict_error(error: Conflicts) -> Conflict:
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {manager}", "field": path}
        for manager, path in error.paths[: managed_fields.MAX_LISTED_CONFLICTS]
    ]
    return Conflict(409, "Conflict", str(error), details={"causes": causes})
