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

from tapestry.apiserver import refusals
from tapestry.apiserver.customs.structural import MOST_FAULTS
from tapestry.apiserver.ownership import managed_fields
from tapestry.apiserver.ownership.fieldsets import LEAF, Fields, difference
from tapestry.apiserver.ownership.managed_fields import BEFORE_APPLY, Conflicts, Entry, Managed, Manager, is_reset
from tapestry.apiserver.ownership.shapes import Shape, Shapes
from tapestry.apiserver.verbs import APPLY_PATCH, Request
from tapestry.kube.errors import Conflict, ServerError
from tapestry.kube.objects import Object, annotations_of, uid_of, with_value, without
from tapestry.kube.times import timestamp

LONGEST_MANAGER = 128
KUBECTL = "kubectl"
"""The manager that used to keep its own account, in an annotation, and is let move on from it without conflicts."""
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
UNTRACKED = frozenset({"binding"})
"""Subresources whose writes are nobody's."""


@dataclass(frozen=True)
class Ownership:
    """Keeps `metadata.managedFields`."""

    shapes: Shapes
    now: Callable[[], datetime]
    from_the_start: bool = True
    """Whether account is kept of every object; else only of those that somebody applied once, from then on."""

    # -- ordinary writes

    async def track(self, request: Request, old: Object | None, new: Object | None) -> Object:
        """A step: the writer owns what they changed."""
        if new is None or request.content_type == APPLY_PATCH or request.target.subresource in UNTRACKED:
            return new or old or {}
        entries = new["metadata"].get("managedFields")
        bare = without(new, "metadata", "managedFields") if entries is not None else new
        managed = known_to(request, old, entries)
        if not managed and (old is not None or not self.from_the_start):
            return bare
        row, entry, ignored = request.target.row, self.entry(request, "Update"), beyond(request)
        shape, nothing = self.shapes.of(row), self.shapes.nothing(row)
        if old is None and not managed:
            fields = managed_fields.made(shape, nothing, bare, ignored)
            return owned(bare, {entry.manager: Entry(entry.manager, fields, entry.time)} if fields else {})
        before = nothing if old is None else {**nothing, **without(old, "metadata", "managedFields")}
        return owned(bare, managed_fields.updated(shape, before, {**nothing, **bare}, managed, entry, ignored))

    async def steady(self, _: Request, old: Object | None, new: Object | None) -> Object:
        """A step, the last one: to have written again what was there is no change."""
        if old is None or new is None:
            return new or old or {}
        return old if managed_fields.same_but_for_times(old, new) else new

    def entry(self, request: Request, operation: managed_fields.Operation, name: str = "") -> Entry:
        manager = name or request.query.get("fieldManager") or request.agent.partition("/")[0][:LONGEST_MANAGER]
        version, subresource = request.target.row.resource.api_version, request.target.subresource
        return Entry(Manager(manager or "unknown", operation, version, subresource), LEAF, timestamp(self.now()))

    # -- apply

    def apply(self, request: Request, live: Object | None, body: Any) -> Object:
        """The object that is wanted once `body` is applied; `live` is None where there is none yet."""
        row = request.target.row
        config = stated_by(request, body)
        shape = self.shapes.of(row)
        check(shape, config, request)
        entry = self.entry(request, "Apply")
        if live is None:
            if uid := uid_of(config):
                why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                raise refusals.conflict(row.resource, request.target.name, why)
            nothing = self.shapes.nothing(row)
            _, managed = managed_fields.applied(shape, nothing, config, {}, entry, beyond(request), force=True)
            return owned(config, managed)
        current = without(live, "metadata", "managedFields")
        managed = known_to(request, live, None) or self.before(request, shape, current)
        try:
            made, managed = self.merged(request, shape, current, config, managed, entry)
        except Conflicts as error:
            raise conflicting(error) from error
        if entry.manager.name == KUBECTL and annotations_of(made).get(LAST_APPLIED):
            made = with_value(made, ("metadata", "annotations", LAST_APPLIED), last_applied(config))
        return owned(made, managed)

    def before(self, request: Request, shape: Shape, current: Object) -> Managed:
        """What is owned of an object that no account was kept of: everything, by nobody in particular."""
        entry = self.entry(request, "Update", BEFORE_APPLY)
        nothing = self.shapes.nothing(request.target.row)
        return managed_fields.updated(shape, nothing, current, {}, entry, beyond(request))

    def merged(
        self, request: Request, shape: Shape, live: Object, config: Object, managed: Managed, entry: Entry
    ) -> tuple[Object, Managed]:
        force, ignored = request.query.get("force") in ("1", "true"), beyond(request)
        try:
            return managed_fields.applied(shape, live, config, managed, entry, ignored, force=force)
        except Conflicts as conflicts:
            if entry.manager.name != KUBECTL or difference(conflicts.fields, yielded(shape, live)):
                raise
        return managed_fields.applied(shape, live, config, managed, entry, ignored, force=True)


def known_to(request: Request, old: Object | None, entries: Any) -> Managed:
    """What is owned before a write: by what the writer says of it, or else by the object as it is.

    Writes to subresources have no say in it, and what is no account of anything counts as none.
    """
    if old is None and entries is None:
        return {}
    live = old["metadata"].get("managedFields", ()) if old is not None else ()
    if request.target.subresource or entries is None:
        entries = live
    elif is_reset(entries):
        return {}
    for each in (entries, live):
        try:
            if found := managed_fields.read(each):
                return found
        except ValueError:
            continue
    return {}


def owned(obj: Object, managed: Managed) -> Object:
    if not managed:
        return obj
    return {**obj, "metadata": {**obj["metadata"], "managedFields": managed_fields.written(managed)}}


def beyond(request: Request) -> Fields:
    """Fields that a write does not reach: to the status what is wanted, to the object its status."""
    row = request.target.row
    if request.target.subresource == "status":
        return BESIDE_CUSTOM_STATUS if row.is_custom else BESIDE_STATUS
    return STATUS if row.has_status else LEAF


STATUS: Fields = {"f:status": LEAF}
BESIDE_STATUS: Fields = {"f:spec": LEAF, "f:metadata": {"f:ownerReferences": LEAF}}
BESIDE_CUSTOM_STATUS: Fields = {"f:spec": LEAF, "f:metadata": LEAF}


def stated_by(request: Request, body: Any) -> Object:
    """What is applied, complete with its place, and without nulls, which state nothing."""
    resource = request.target.row.resource
    if not request.query.get("fieldManager"):
        why = "Required value: is required for apply patch"
        raise refusals.invalid(refusals.PATCH_OPTIONS, "", "fieldManager", why)
    if not isinstance(body, dict):
        found = refusals.not_into(body, "Go value of type map[string]interface {}")
        raise refusals.bad_request(f"error decoding YAML: {found}")
    if (body.get("apiVersion"), body.get("kind")) != (resource.api_version, resource.kind):
        group, _, version = f"/{body.get('apiVersion', '')}".rpartition("/")
        raise refusals.bad_request(f"invalid object type: {group.lstrip('/')}/{version}, Kind={body.get('kind', '')}")
    config: Object = {"metadata": {}, **without_nulls(body)}
    if not isinstance(config["metadata"], dict):
        raise refusals.bad_request(f"the metadata of the {resource.kind} are not an object")
    if "managedFields" in config["metadata"]:
        raise refusals.bad_request("metadata.managedFields must be nil")
    return config


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value if each is not None] if isinstance(value, list) else value


def check(shape: Shape, config: Object, request: Request) -> None:
    """Refuse what cannot be owned, for it is not in the schema or there twice."""
    faults = [f"{path}: {why}" for path, why in islice(shape.faults(config), MOST_FAULTS)]
    if not faults:
        return
    target, resource = request.target, request.target.row.resource
    what = f"{target.namespace}/{target.name}; {resource.group}/{resource.version}, Kind={resource.kind}"
    listed = faults[0] if len(faults) == 1 else "errors:\n  " + "\n  ".join(faults)
    raise ServerError(500, "", f"failed to create typed patch object ({what}): {listed}")


def yielded(shape: Shape, live: Object) -> Fields:
    """The fields that are still as the annotation says that kubectl has applied them."""
    try:
        last = msgspec.json.decode(annotations_of(live).get(LAST_APPLIED, "null"))
    except (msgspec.DecodeError, RecursionError):
        return {}
    if not isinstance(last, dict) or last.get("apiVersion") != live.get("apiVersion"):
        return {}
    stated: Fields = shape.stated(last) or {}
    for part in shape.compared(last, live):
        stated = difference(stated, part or {})
    return stated


def last_applied(config: Object) -> str:
    """The text of the annotation."""
    annotations = {key: each for key, each in annotations_of(config).items() if key != LAST_APPLIED}
    bare = with_value(config, ("metadata", "annotations"), annotations) if annotations_of(config) else config
    return msgspec.json.encode(bare, order="sorted").decode() + "\n"


def conflicting(error: Conflicts) -> Conflict:
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {manager}", "field": path}
        for manager, path in error.paths[: managed_fields.MOST_CONFLICTS]
    ]
    return Conflict(409, "Conflict", str(error), details={"causes": causes})
