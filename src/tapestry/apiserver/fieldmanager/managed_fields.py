"""Who owns which fields of an object, and what an apply makes of that: pure functions.

Whoever writes a field owns it (`updated`).  Whoever applies owns what they state (`applied`): a field that somebody
else owns with another value is a conflict unless it is forced, one with the same value is owned by both, and one that
they stated before, no longer state, and nobody else owns, is removed.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from tapestry.apiserver.fieldmanager import fieldsets
from tapestry.apiserver.fieldmanager.fieldsets import (
    LEAF,
    FieldSet,
    children_of,
    field_difference,
    intersection,
    recursive_difference,
    union,
    union_all,
)
from tapestry.apiserver.fieldmanager.merge_schemas import MergeSchema
from tapestry.apiserver.spec_cache import bounded_cache, is_interned, memoize
from tapestry.kube.objects import Object, without_field

Operation = Literal["Apply", "Update"]

MAX_UPDATE_MANAGERS = 10
ANCIENT_CHANGES = "ancient-changes"
"""In whose name the oldest updates are owned, once there are too many."""
MAX_LISTED_CONFLICTS = 1_000
"""Conflicts that are named."""
BEFORE_APPLY = "before-first-apply"
"""In whose name everything is owned that was there before anybody's fields were kept account of."""
STANDARD_OBJECT_FIELDS = {"apiVersion", "kind", "metadata", "spec", "status"}
"""What there is to one."""
MAX_OUTLINE_BYTES = 1 << 11
"""Bytes of an outline by which something is remembered: many may be, for each spec."""
UNOWNED_FIELDS: FieldSet = {
    "f:apiVersion": LEAF,
    "f:kind": LEAF,
    "f:metadata": {
        ".": LEAF,
        **{
            f"f:{name}": LEAF
            for name in (
                *("name", "namespace", "creationTimestamp", "selfLink", "uid", "clusterName", "generation"),
                *("managedFields", "resourceVersion"),
            )
        },
    },
}
"""Fields that are nobody's: an object's identity, and what the server writes."""


class Manager(NamedTuple):
    """Who owns fields, and by what."""

    name: str
    operation: Operation
    api_version: str
    subresource: str = ""

    @property
    def key(self) -> "Manager":
        """Which entry is theirs: who applies has one for all versions."""
        return self._replace(api_version="") if self.operation == "Apply" else self

    def __str__(self) -> str:
        """As conflicts name it."""
        found = f'"{self.name}"'
        if self.subresource:
            found += f' with subresource "{self.subresource}"'
        return f"{found} using {self.api_version}" if self.operation == "Update" else found


class ManagedFieldsEntry(NamedTuple):
    """The fields of one manager."""

    manager: Manager
    fields: FieldSet
    time: str = ""


EntriesByManager = Mapping[Manager, ManagedFieldsEntry]
"""Entries by the keys of their managers."""


class Conflicts(Exception):
    """Fields that would get another value belong to others."""

    def __init__(self, fields: Mapping[Manager, FieldSet]) -> None:
        self.paths = [
            (manager, fieldsets.path_text(path))
            for manager in sorted(fields, key=lambda each: (each.name, each.operation, each.api_version))
            for path in fieldsets.field_paths(fields[manager])
        ]
        self.fields: FieldSet = union_all(fields.values())
        super().__init__(self.message())

    def message(self) -> str:
        if len(self.paths) == 1:
            [(manager, path)] = self.paths
            return f"Apply failed with 1 conflict: conflict with {manager}: {path}"
        lines: list[str] = []
        known: set[Manager] = set()
        for manager, path in self.paths[:MAX_LISTED_CONFLICTS]:
            if manager not in known:
                lines.append(f"conflicts with {manager}:")
                known.add(manager)
            lines.append(f"- {path}")
        return f"Apply failed with {len(self.paths)} conflicts: " + "\n".join(lines)


# -- as written in an object


def decode_managed_fields(entries: Iterable[Any]) -> EntriesByManager:
    """The entries of `metadata.managedFields`; ValueError where they are no account of anything."""
    found = {}
    for each in entries:
        if each.get("operation") not in ("Apply", "Update") or not each.get("apiVersion"):
            raise ValueError("metadata.managedFields: an entry needs an operation, Apply or Update, and an apiVersion")
        if each.get("fieldsType") != "FieldsV1":
            raise ValueError(f"metadata.managedFields: fieldsType {each.get('fieldsType')!r} is not FieldsV1")
        manager = Manager(each.get("manager", ""), each["operation"], each["apiVersion"], each.get("subresource", ""))
        fields = decode_fields_v1(msgspec.json.encode(each.get("fieldsV1", {})))
        found[manager.key] = ManagedFieldsEntry(manager, fields, each.get("time", ""))
    return found


@bounded_cache(512, 1 << 15)  # objects made by one template have the same fields
def decode_fields_v1(text: bytes) -> FieldSet:
    return fieldsets.decode_field_set(msgspec.json.decode(text))


def encode_managed_fields(managed: EntriesByManager) -> list[Object]:
    """As they stand in an object: who applies before who updates, the oldest first."""
    entries: Iterable[ManagedFieldsEntry] = managed.values()
    if len(managed) > 1:
        entries = sorted(entries, key=lambda each: (each.manager.operation, each.time, each.manager))
    return [encode_entry(each) for each in entries]


def encode_entry(entry: ManagedFieldsEntry) -> Object:
    name, operation, api_version, subresource = entry.manager
    found: Object = {"manager": name, "operation": operation, "apiVersion": api_version}
    if entry.time:
        found["time"] = entry.time
    found["fieldsType"], found["fieldsV1"] = "FieldsV1", entry.fields
    if subresource:
        found["subresource"] = subresource
    return found


def is_managed_fields_reset(entries: Any) -> bool:
    """Whether a writer wants all account of managers to be forgotten."""
    return entries in ([], [{}])


def is_equal_except_timestamps(left: Object, right: Object) -> bool:
    """Whether two objects differ in nothing but when their managers wrote last."""
    if without_field(left, "metadata") != without_field(right, "metadata"):
        return False
    ours, theirs = left["metadata"], right["metadata"]
    if without_field(ours, "managedFields") != without_field(theirs, "managedFields"):
        return False
    timeless = [[without_field(each, "time") for each in part.get("managedFields", ())] for part in (ours, theirs)]
    return timeless[0] == timeless[1]


# -- what a write makes of it


def fields_of_created(schema: MergeSchema, empty_object: Object, new: Object, ignored: FieldSet) -> FieldSet:
    """What a writer owns who makes `new` of nothing.

    It follows from which fields there are, and not from what is in most of them: replicas have the same.
    """

    def owned() -> FieldSet:
        changed, _ = compare_objects(schema, empty_object, {**empty_object, **new}, ignored)
        return field_difference(changed, UNOWNED_FIELDS)

    if new.keys() <= STANDARD_OBJECT_FIELDS and is_interned(new.get("spec")) and "f:status" in ignored:
        text = msgspec.json.encode(metadata_outline(new["metadata"]))
        if len(text) <= MAX_OUTLINE_BYTES:
            return memoize(new["spec"], (schema, text), owned, intern_result=True)
    return owned()


def metadata_outline(metadata: Object) -> Object:
    """Metadata with the same fields, and without what differs between replicas."""
    return {
        key: dict.fromkeys(value, "") if type(value) is dict else value if type(value) is list else ""
        for key, value in metadata.items()
    }


def entries_after_update(
    schema: MergeSchema,
    old: Object,
    new: Object,
    managed: EntriesByManager,
    entry: ManagedFieldsEntry,
    ignored: FieldSet = LEAF,
) -> EntriesByManager:
    """What is owned after a writer, who is the manager of `entry`, has made `new` out of `old`.

    `ignored` are fields that a write of this kind does not reach, whatever it says of them.
    """
    changed, gone = compare_objects(schema, old, new, ignored)
    found = remaining_entries(managed, changed, gone)
    taken = field_difference(changed, UNOWNED_FIELDS)
    if not taken:
        return found
    key = entry.manager.key
    had = found[key].fields if key in found else LEAF
    return cap_update_managers({**found, key: entry._replace(fields=union(had, taken))})


def compare_objects(schema: MergeSchema, old: Object, new: Object, ignored: FieldSet) -> tuple[FieldSet, FieldSet]:
    """What changed and what is gone."""
    changed, gone = schema.compare(old, new)
    return recursive_difference(changed or {}, ignored), recursive_difference(gone or {}, ignored)


def remaining_entries(
    managed: EntriesByManager, changed: FieldSet, removed: FieldSet
) -> dict[Manager, ManagedFieldsEntry]:
    """What managers own once somebody else has changed some fields, and removed others."""
    lost = union(changed, removed)
    found = {key: (each, field_difference(each.fields, lost)) for key, each in managed.items()}
    return {key: each._replace(fields=fields) for key, (each, fields) in found.items() if fields}


def cap_update_managers(managed: dict[Manager, ManagedFieldsEntry]) -> EntriesByManager:
    """The same, the oldest of too many updates in one entry for each version."""
    if len(managed) <= MAX_UPDATE_MANAGERS:
        return managed
    updates = [each for each in managed.values() if each.manager.operation == "Update"]
    excess = len(updates) - MAX_UPDATE_MANAGERS
    oldest: dict[str, list[ManagedFieldsEntry]] = {}
    for each in sorted(updates, key=lambda each: (each.time, each.manager)):
        if excess <= 0:
            break
        same = oldest.setdefault(each.manager.api_version, [])
        if (
            not same
            and (known := managed.get(Manager(ANCIENT_CHANGES, "Update", each.manager.api_version))) is not None
        ):
            same.append(known)
        if each not in same[:1]:
            excess -= bool(same)
            same.append(each)
    found = dict(managed)
    for version, entries in oldest.items():
        if len(entries) > 1:
            for each in entries:
                del found[each.manager.key]
            bucket = Manager(ANCIENT_CHANGES, "Update", version)
            found[bucket] = ManagedFieldsEntry(bucket, union_all(each.fields for each in entries), entries[-1].time)
    return found


def apply_configuration(
    schema: MergeSchema,
    live: Object,
    config: Object,
    managed: EntriesByManager,
    entry: ManagedFieldsEntry,
    ignored: FieldSet,
    *,
    force: bool,
) -> tuple[Object, EntriesByManager]:
    """The object once `config` is applied to it, and what is owned then; `live` itself where nothing changes.

    Raises Conflicts, unless others' fields are taken by `force`.
    """
    key = entry.manager.key
    before = managed[key].fields if key in managed else LEAF
    stated = recursive_difference(schema.applied_fields(config) or {}, ignored)
    managers = {**managed, key: entry._replace(fields=stated)}
    new = schema.merge(live, config)
    if before:
        new = prune_unowned(schema, new, before, [each.fields for each in managers.values()])
    others = {each: managed[each] for each in managed if each != key}
    changed, gone = compare_objects(schema, live, new, ignored)
    contested = {each.manager: intersection(each.fields, changed) for each in others.values()}
    if not force and any(contested.values()):
        raise Conflicts({manager: fields for manager, fields in contested.items() if fields})
    found = remaining_entries(others, changed, gone)
    is_same = new == live
    if owned := field_difference(stated, UNOWNED_FIELDS):
        last = managed[key].time if key in managed else ""
        found[key] = entry._replace(fields=owned, time=last if is_same else entry.time)
    return live if is_same else new, found


def prune_unowned(schema: MergeSchema, merged: Object, before: FieldSet, owned: Iterable[FieldSet]) -> Object:
    """`merged` without what was stated `before` and that nobody owns now.

    An item of a list goes with everything in it: whoever owns a field of it only does not hold it.
    """
    last = schema.with_named_members(before)
    kept = union_all(owned)
    there = children_of(schema.all_fields(merged))
    bare = children_of(schema.all_fields(schema.without_fields(merged, last)))
    owned_only = schema.without_fields(merged, field_difference(there, union(bare, schema.with_named_members(kept))))
    gone = field_difference(there, children_of(schema.all_fields(owned_only)))
    found: Object = schema.without_fields(merged, intersection(gone, last))
    return found
