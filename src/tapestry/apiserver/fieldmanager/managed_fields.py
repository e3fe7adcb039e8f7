"""Ownership rules of server-side apply: managers, entries and conflicts. Pure.

An update owns the fields that it changes (`entries_after_update`). An apply owns the fields of its configuration
(`apply_configuration`). A field that another manager owns with a different value is a conflict unless the apply is
forced. A field with the same value is owned by both managers. A field that the previous configuration contained and
that no manager owns any more is removed.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from tapestry.apiserver.core.spec_cache import Interned, bounded_cache, memoize
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
from tapestry.kube.objects import Object, without_field

Operation = Literal["Apply", "Update"]

MAX_UPDATE_MANAGERS = 10
ANCIENT_CHANGES = "ancient-changes"
"""Manager name of merged entries of the oldest updates."""
MAX_LISTED_CONFLICTS = 1_000
"""Limit of conflicts listed in one error."""
BEFORE_APPLY = "before-first-apply"
"""Manager name that owns all fields that an object had before its first apply."""
STANDARD_OBJECT_FIELDS = {"apiVersion", "kind", "metadata", "spec", "status"}
"""Top-level fields of an ordinary object."""
MAX_OUTLINE_BYTES = 1 << 11
"""Limit in bytes of a metadata outline used as a cache key. Each spec can have many such keys."""
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
"""Fields that no manager can own: the identity of an object and fields that the server sets."""


class Manager(NamedTuple):
    """Owner of fields: a client name with the operation, API version and subresource of its writes."""

    name: str
    operation: Operation
    api_version: str
    subresource: str = ""

    @property
    def key(self) -> "Manager":
        """Key of the manager's entry. An applier has one entry for all API versions."""
        return self._replace(api_version="") if self.operation == "Apply" else self

    def __str__(self) -> str:
        """Return the manager as conflict messages name it."""
        text = f'"{self.name}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return f"{text} using {self.api_version}" if self.operation == "Update" else text


class ManagedFieldsEntry(NamedTuple):
    manager: Manager
    fields: FieldSet
    time: str = ""


EntriesByManager = Mapping[Manager, ManagedFieldsEntry]
"""Entries by `Manager.key`."""


class Conflicts(Exception):
    """An apply would change fields that other managers own."""

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
        listed: set[Manager] = set()
        for manager, path in self.paths[:MAX_LISTED_CONFLICTS]:
            if manager not in listed:
                lines.append(f"conflicts with {manager}:")
                listed.add(manager)
            lines.append(f"- {path}")
        return f"Apply failed with {len(self.paths)} conflicts: " + "\n".join(lines)


# -- encoding


def decode_managed_fields(entries: Iterable[Any]) -> EntriesByManager:
    """Decode the entries of `metadata.managedFields`. Raise ValueError if an entry is malformed."""
    decoded = {}
    for each in entries:
        if each.get("operation") not in ("Apply", "Update") or not each.get("apiVersion"):
            raise ValueError("metadata.managedFields: an entry needs an operation, Apply or Update, and an apiVersion")
        if each.get("fieldsType") != "FieldsV1":
            raise ValueError(f"metadata.managedFields: fieldsType {each.get('fieldsType')!r} is not FieldsV1")
        manager = Manager(each.get("manager", ""), each["operation"], each["apiVersion"], each.get("subresource", ""))
        fields = decode_fields_v1(msgspec.json.encode(each.get("fieldsV1", {})))
        decoded[manager.key] = ManagedFieldsEntry(manager, fields, each.get("time", ""))
    return decoded


@bounded_cache(512, 1 << 15)  # objects of one template have the same fields
def decode_fields_v1(text: bytes) -> FieldSet:
    return fieldsets.decode_field_set(msgspec.json.decode(text))


def encode_managed_fields(managed: EntriesByManager) -> list[Object]:
    """Encode the entries in their stored order: applies before updates, the oldest first."""
    entries: Iterable[ManagedFieldsEntry] = managed.values()
    if len(managed) > 1:
        entries = sorted(entries, key=lambda each: (each.manager.operation, each.time, each.manager))
    return [encode_entry(each) for each in entries]


def encode_entry(entry: ManagedFieldsEntry) -> Object:
    name, operation, api_version, subresource = entry.manager
    encoded: Object = {"manager": name, "operation": operation, "apiVersion": api_version}
    if entry.time:
        encoded["time"] = entry.time
    encoded["fieldsType"], encoded["fieldsV1"] = "FieldsV1", entry.fields
    if subresource:
        encoded["subresource"] = subresource
    return encoded


def is_managed_fields_reset(entries: Any) -> bool:
    """Return True if the writer asks to clear all entries."""
    return entries in ([], [{}])


def is_equal_except_timestamps(left: Object, right: Object) -> bool:
    """Return True if the objects differ only in the timestamps of their managers."""
    if without_field(left, "metadata") != without_field(right, "metadata"):
        return False
    first, second = left["metadata"], right["metadata"]
    if without_field(first, "managedFields") != without_field(second, "managedFields"):
        return False
    timeless = [[without_field(each, "time") for each in part.get("managedFields", ())] for part in (first, second)]
    return timeless[0] == timeless[1]


# -- ownership after a write


def fields_of_created(schema: MergeSchema, empty_object: Object, new: Object, ignored: FieldSet) -> FieldSet:
    """Return the fields that the creator of `new` owns.

    The result depends on the field names, not on most values. Replicas therefore share a cached result.
    """

    def owned() -> FieldSet:
        changed, _ = compare_objects(schema, empty_object, {**empty_object, **new}, ignored)
        return field_difference(changed, UNOWNED_FIELDS)

    spec = new.get("spec")
    if type(spec) is Interned and new.keys() <= STANDARD_OBJECT_FIELDS and "f:status" in ignored:
        text = msgspec.json.encode(metadata_outline(new["metadata"]))
        if len(text) <= MAX_OUTLINE_BYTES:
            return memoize(spec, (schema, text), lambda: Interned(owned(), spec.cache))
    return owned()


def metadata_outline(metadata: Object) -> Object:
    """Return the metadata with the same keys but without the values that differ between replicas."""
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
    """Return the entries after the manager of `entry` changed `old` to `new`.

    `ignored` contains the fields that this type of write cannot change.
    """
    changed, removed = compare_objects(schema, old, new, ignored)
    remaining = remaining_entries(managed, changed, removed)
    owned = field_difference(changed, UNOWNED_FIELDS)
    if not owned:
        return remaining
    key = entry.manager.key
    previous = remaining[key].fields if key in remaining else LEAF
    return cap_update_managers({**remaining, key: entry._replace(fields=union(previous, owned))})


def compare_objects(schema: MergeSchema, old: Object, new: Object, ignored: FieldSet) -> tuple[FieldSet, FieldSet]:
    """Return the changed fields and the removed fields, both without `ignored`."""
    changed, removed = schema.compare(old, new)
    return recursive_difference(changed or {}, ignored), recursive_difference(removed or {}, ignored)


def remaining_entries(
    managed: EntriesByManager, changed: FieldSet, removed: FieldSet
) -> dict[Manager, ManagedFieldsEntry]:
    """Return the entries without the fields that another manager changed or removed."""
    lost = union(changed, removed)
    remaining = {key: (each, field_difference(each.fields, lost)) for key, each in managed.items()}
    return {key: each._replace(fields=fields) for key, (each, fields) in remaining.items() if fields}


def cap_update_managers(managed: dict[Manager, ManagedFieldsEntry]) -> EntriesByManager:
    """Merge the oldest update entries into one entry per API version while there are too many."""
    if len(managed) <= MAX_UPDATE_MANAGERS:
        return managed
    updates = [each for each in managed.values() if each.manager.operation == "Update"]
    excess = len(updates) - MAX_UPDATE_MANAGERS
    oldest: dict[str, list[ManagedFieldsEntry]] = {}
    for each in sorted(updates, key=lambda each: (each.time, each.manager)):
        if excess <= 0:
            break
        merged = oldest.setdefault(each.manager.api_version, [])
        if (
            not merged
            and (existing := managed.get(Manager(ANCIENT_CHANGES, "Update", each.manager.api_version))) is not None
        ):
            merged.append(existing)
        if each not in merged[:1]:
            excess -= bool(merged)
            merged.append(each)
    capped = dict(managed)
    for version, entries in oldest.items():
        if len(entries) > 1:
            for each in entries:
                del capped[each.manager.key]
            bucket = Manager(ANCIENT_CHANGES, "Update", version)
            capped[bucket] = ManagedFieldsEntry(bucket, union_all(each.fields for each in entries), entries[-1].time)
    return capped


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
    """Apply `config` to `live`. Return the new object and its entries; the object is `live` itself if nothing changes.

    Raise Conflicts if other managers own changed fields and `force` is False.
    """
    key = entry.manager.key
    before = managed[key].fields if key in managed else LEAF
    applied = recursive_difference(schema.applied_fields(config) or {}, ignored)
    managers = {**managed, key: entry._replace(fields=applied)}
    new = schema.merge(live, config)
    if before:
        new = prune_unowned(schema, new, before, [each.fields for each in managers.values()])
    others = {each: managed[each] for each in managed if each != key}
    changed, removed = compare_objects(schema, live, new, ignored)
    conflicts = {each.manager: intersection(each.fields, changed) for each in others.values()}
    if not force and any(conflicts.values()):
        raise Conflicts({manager: fields for manager, fields in conflicts.items() if fields})
    entries = remaining_entries(others, changed, removed)
    is_same = new == live
    if owned := field_difference(applied, UNOWNED_FIELDS):
        last = managed[key].time if key in managed else ""
        entries[key] = entry._replace(fields=owned, time=last if is_same else entry.time)
    return live if is_same else new, entries


def prune_unowned(schema: MergeSchema, merged: Object, before: FieldSet, owned: Iterable[FieldSet]) -> Object:
    """Remove from `merged` the fields of the previous configuration (`before`) that no manager owns now.

    A list item is removed as a whole. A manager that owns only some fields of an item does not keep the item.
    """
    previous = schema.with_named_members(before)
    owned_now = union_all(owned)
    present = children_of(schema.all_fields(merged))
    unapplied = children_of(schema.all_fields(schema.without_fields(merged, previous)))
    owned_only = schema.without_fields(
        merged, field_difference(present, union(unapplied, schema.with_named_members(owned_now)))
    )
    removable = field_difference(present, children_of(schema.all_fields(owned_only)))
    pruned: Object = schema.without_fields(merged, intersection(removable, previous))
    return pruned
