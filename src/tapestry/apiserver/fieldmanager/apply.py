"""Server-side apply, and the account of who owns which fields that it needs, in the way of a write.

Ordinary writes pass by `Ownership.track`, once what they say is complete and before the server adds its own; an apply
begins with `Ownership.apply`, which makes of the object and of what is stated the object that is wanted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec

from tapestry.apiserver import api_errors
from tapestry.apiserver.customresources.structural_schema import MAX_FAULTS
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
from tapestry.apiserver.verbs import APPLY_PATCH, WriteRequest
from tapestry.kube.errors import Conflict, ServerError
from tapestry.kube.objects import Object, annotations_of, uid_of, with_value, without_field
from tapestry.kube.times import timestamp

MAX_MANAGER_NAME_LENGTH = 128
KUBECTL = "kubectl"
"""The manager that used to keep its own account, in an annotation, and is let move on from it without conflicts."""
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
UNTRACKED_SUBRESOURCES = frozenset({"binding"})
"""Subresources whose writes are nobody's."""


@dataclass(frozen=True)
class FieldManager:
    """Keeps `metadata.managedFields`."""

    schemas: MergeSchemas
    now: Callable[[], datetime]
    tracks_from_creation: bool = True
    """Whether account is kept of every object; else only of those that somebody applied once, from then on."""

    # -- ordinary writes

    async def track_update(self, request: WriteRequest, old: Object | None, new: Object | None) -> Object:
        """A step: the writer owns what they changed."""
        if new is None or request.content_type == APPLY_PATCH or request.target.subresource in UNTRACKED_SUBRESOURCES:
            return new or old or {}
        entries = new["metadata"].get("managedFields")
        bare = without_field(new, "metadata", "managedFields") if entries is not None else new
        managed = previous_entries(request, old, entries)
        if not managed and (old is not None or not self.tracks_from_creation):
            return bare
        row, entry, ignored = request.target.info, self.new_entry(request, "Update"), ignored_fields(request)
        shape, nothing = self.schemas.schema_for(row), self.schemas.empty_object(row)
        if old is None and not managed:
            fields = managed_fields.fields_of_created(shape, nothing, bare, ignored)
            return with_managed_fields(
                bare, {entry.manager: ManagedFieldsEntry(entry.manager, fields, entry.time)} if fields else {}
            )
        before = nothing if old is None else {**nothing, **without_field(old, "metadata", "managedFields")}
        return with_managed_fields(
            bare, managed_fields.entries_after_update(shape, before, {**nothing, **bare}, managed, entry, ignored)
        )

    async def ignore_timestamp_changes(self, _: WriteRequest, old: Object | None, new: Object | None) -> Object:
        """A step, the last one: to have written again what was there is no change."""
        if old is None or new is None:
            return new or old or {}
        return old if managed_fields.is_equal_except_timestamps(old, new) else new

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
        """The object that is wanted once `body` is applied; `live` is None where there is none yet."""
        row = request.target.info
        config = applied_configuration(request, body)
        shape = self.schemas.schema_for(row)
        validate_configuration(shape, config, request)
        entry = self.new_entry(request, "Apply")
        if live is None:
            if uid := uid_of(config):
                why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                raise api_errors.conflict(row.resource, request.target.name, why)
            nothing = self.schemas.empty_object(row)
            _, managed = managed_fields.apply_configuration(
                shape, nothing, config, {}, entry, ignored_fields(request), force=True
            )
            return with_managed_fields(config, managed)
        current = without_field(live, "metadata", "managedFields")
        managed = previous_entries(request, live, None) or self.entries_before_apply(request, shape, current)
        try:
            made, managed = self.merge(request, shape, current, config, managed, entry)
        except Conflicts as error:
            raise conflict_error(error) from error
        if entry.manager.name == KUBECTL and annotations_of(made).get(LAST_APPLIED):
            made = with_value(made, ("metadata", "annotations", LAST_APPLIED), last_applied_annotation(config))
        return with_managed_fields(made, managed)

    def entries_before_apply(self, request: WriteRequest, schema: MergeSchema, current: Object) -> EntriesByManager:
        """What is owned of an object that no account was kept of: everything, by nobody in particular."""
        entry = self.new_entry(request, "Update", BEFORE_APPLY)
        nothing = self.schemas.empty_object(request.target.info)
        return managed_fields.entries_after_update(schema, nothing, current, {}, entry, ignored_fields(request))

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
    """What is owned before a write: by what the writer says of it, or else by the object as it is.

    Writes to subresources have no say in it, and what is no account of anything counts as none.
    """
    if old is None and entries is None:
        return {}
    live = old["metadata"].get("managedFields", ()) if old is not None else ()
    if request.target.subresource or entries is None:
        entries = live
    elif is_managed_fields_reset(entries):
        return {}
    for each in (entries, live):
        try:
            if found := managed_fields.decode_managed_fields(each):
                return found
        except ValueError:
            continue
    return {}


def with_managed_fields(obj: Object, managed: EntriesByManager) -> Object:
    if not managed:
        return obj
    return {**obj, "metadata": {**obj["metadata"], "managedFields": managed_fields.encode_managed_fields(managed)}}


def ignored_fields(request: WriteRequest) -> FieldSet:
    """Fields that a write does not reach: to the status what is wanted, to the object its status."""
    row = request.target.info
    if request.target.subresource == "status":
        return BESIDE_CUSTOM_STATUS if row.is_custom else BESIDE_STATUS
    return STATUS if row.has_status else LEAF


STATUS: FieldSet = {"f:status": LEAF}
BESIDE_STATUS: FieldSet = {"f:spec": LEAF, "f:metadata": {"f:ownerReferences": LEAF}}
BESIDE_CUSTOM_STATUS: FieldSet = {"f:spec": LEAF, "f:metadata": LEAF}


def applied_configuration(request: WriteRequest, body: Any) -> Object:
    """What is applied, complete with its place, and without nulls, which state nothing."""
    resource = request.target.info.resource
    if not request.query.get("fieldManager"):
        why = "Required value: is required for apply patch"
        raise api_errors.invalid_field(api_errors.PATCH_OPTIONS, "", "fieldManager", why)
    if not isinstance(body, dict):
        found = api_errors.unmarshal_message(body, "Go value of type map[string]interface {}")
        raise api_errors.bad_request(f"error decoding YAML: {found}")
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
    """Refuse what cannot be owned, for it is not in the schema or there twice."""
    faults = [f"{path}: {why}" for path, why in islice(schema.faults(config), MAX_FAULTS)]
    if not faults:
        return
    target, resource = request.target, request.target.info.resource
    what = f"{target.namespace}/{target.name}; {resource.group}/{resource.version}, Kind={resource.kind}"
    listed = faults[0] if len(faults) == 1 else "errors:\n  " + "\n  ".join(faults)
    raise ServerError(500, "", f"failed to create typed patch object ({what}): {listed}")


def last_applied_fields(schema: MergeSchema, live: Object) -> FieldSet:
    """The fields that are still as the annotation says that kubectl has applied them."""
    try:
        last = msgspec.json.decode(annotations_of(live).get(LAST_APPLIED, "null"))
    except (msgspec.DecodeError, RecursionError):
        return {}
    if not isinstance(last, dict) or last.get("apiVersion") != live.get("apiVersion"):
        return {}
    stated: FieldSet = schema.applied_fields(last) or {}
    for part in schema.compare(last, live):
        stated = field_difference(stated, part or {})
    return stated


def last_applied_annotation(config: Object) -> str:
    """The text of the annotation."""
    annotations = {key: each for key, each in annotations_of(config).items() if key != LAST_APPLIED}
    bare = with_value(config, ("metadata", "annotations"), annotations) if annotations_of(config) else config
    return msgspec.json.encode(bare, order="sorted").decode() + "\n"


def conflict_error(error: Conflicts) -> Conflict:
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {manager}", "field": path}
        for manager, path in error.paths[: managed_fields.MAX_LISTED_CONFLICTS]
    ]
    return Conflict(409, "Conflict", str(error), details={"causes": causes})
