"""Who owns which fields of an object, and what an apply makes of that: pure functions.

Whoever writes a field owns it (`updated`).  Whoever applies owns what they state (`applied`): a field that somebody
else owns with another value is a conflict unless it is forced, one with the same value is owned by both, and one that
they stated before, no longer state, and nobody else owns, is removed.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from tapestry.apiserver.ownership import fieldsets
from tapestry.apiserver.ownership.fieldsets import (
    LEAF,
    Fields,
    below_of,
    difference,
    intersection,
    union,
    union_of,
    without_trees,
)
from tapestry.apiserver.ownership.shapes import Shape
from tapestry.apiserver.recurring import cached, is_part, once
from tapestry.kube.objects import Object, without

Operation = Literal["Apply", "Update"]

MOST_UPDATERS = 10
ANCIENT = "ancient-changes"
"""In whose name the oldest updates are owned, once there are too many."""
MOST_CONFLICTS = 1_000
"""Conflicts that are named."""
BEFORE_APPLY = "before-first-apply"
"""In whose name everything is owned that was there before anybody's fields were kept account of."""
REPLICA = {"apiVersion", "kind", "metadata", "spec", "status"}
"""What there is to one."""
LONGEST_OUTLINE = 1 << 11
"""Bytes of an outline by which something is remembered: many may be, for each spec."""
UNOWNED: Fields = {
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


class Entry(NamedTuple):
    """The fields of one manager."""

    manager: Manager
    fields: Fields
    time: str = ""


Managed = Mapping[Manager, Entry]
"""Entries by the keys of their managers."""


class Conflicts(Exception):
    """Fields that would get another value belong to others."""

    def __init__(self, fields: Mapping[Manager, Fields]) -> None:
        self.paths = [
            (manager, fieldsets.path_text(path))
            for manager in sorted(fields, key=lambda each: (each.name, each.operation, each.api_version))
            for path in fieldsets.paths_of(fields[manager])
        ]
        self.fields: Fields = union_of(fields.values())
        super().__init__(self.message())

    def message(self) -> str:
        if len(self.paths) == 1:
            [(manager, path)] = self.paths
            return f"Apply failed with 1 conflict: conflict with {manager}: {path}"
        lines: list[str] = []
        known: set[Manager] = set()
        for manager, path in self.paths[:MOST_CONFLICTS]:
            if manager not in known:
                lines.append(f"conflicts with {manager}:")
                known.add(manager)
            lines.append(f"- {path}")
        return f"Apply failed with {len(self.paths)} conflicts: " + "\n".join(lines)


# -- as written in an object


def read(entries: Iterable[Any]) -> Managed:
    """The entries of `metadata.managedFields`; ValueError where they are no account of anything."""
    found = {}
    for each in entries:
        if each.get("operation") not in ("Apply", "Update") or not each.get("apiVersion"):
            raise ValueError("metadata.managedFields: an entry needs an operation, Apply or Update, and an apiVersion")
        if each.get("fieldsType") != "FieldsV1":
            raise ValueError(f"metadata.managedFields: fieldsType {each.get('fieldsType')!r} is not FieldsV1")
        manager = Manager(each.get("manager", ""), each["operation"], each["apiVersion"], each.get("subresource", ""))
        fields = fields_in(msgspec.json.encode(each.get("fieldsV1", {})))
        found[manager.key] = Entry(manager, fields, each.get("time", ""))
    return found


@cached(512, 1 << 15)  # objects made by one template have the same fields
def fields_in(text: bytes) -> Fields:
    return fieldsets.read(msgspec.json.decode(text))


def written(managed: Managed) -> list[Object]:
    """As they stand in an object: who applies before who updates, the oldest first."""
    entries: Iterable[Entry] = managed.values()
    if len(managed) > 1:
        entries = sorted(entries, key=lambda each: (each.manager.operation, each.time, each.manager))
    return [entry_of(each) for each in entries]


def entry_of(entry: Entry) -> Object:
    name, operation, api_version, subresource = entry.manager
    found: Object = {"manager": name, "operation": operation, "apiVersion": api_version}
    if entry.time:
        found["time"] = entry.time
    found["fieldsType"], found["fieldsV1"] = "FieldsV1", entry.fields
    if subresource:
        found["subresource"] = subresource
    return found


def is_reset(entries: Any) -> bool:
    """Whether a writer wants all account of managers to be forgotten."""
    return entries in ([], [{}])


def same_but_for_times(left: Object, right: Object) -> bool:
    """Whether two objects differ in nothing but when their managers wrote last."""
    if without(left, "metadata") != without(right, "metadata"):
        return False
    ours, theirs = left["metadata"], right["metadata"]
    if without(ours, "managedFields") != without(theirs, "managedFields"):
        return False
    timeless = [[without(each, "time") for each in part.get("managedFields", ())] for part in (ours, theirs)]
    return timeless[0] == timeless[1]


# -- what a write makes of it


def made(shape: Shape, nothing: Object, new: Object, ignored: Fields) -> Fields:
    """What a writer owns who makes `new` of nothing.

    It follows from which fields there are, and not from what is in most of them: replicas have the same.
    """

    def owned() -> Fields:
        changed, _ = compared(shape, nothing, {**nothing, **new}, ignored)
        return difference(changed, UNOWNED)

    if new.keys() <= REPLICA and is_part(new.get("spec")) and "f:status" in ignored:
        text = msgspec.json.encode(outline(new["metadata"]))
        if len(text) <= LONGEST_OUTLINE:
            return once(new["spec"], (shape, text), owned, is_part_too=True)
    return owned()


def outline(metadata: Object) -> Object:
    """Metadata with the same fields, and without what differs between replicas."""
    return {
        key: dict.fromkeys(value, "") if type(value) is dict else value if type(value) is list else ""
        for key, value in metadata.items()
    }


def updated(shape: Shape, old: Object, new: Object, managed: Managed, entry: Entry, ignored: Fields = LEAF) -> Managed:
    """What is owned after a writer, who is the manager of `entry`, has made `new` out of `old`.

    `ignored` are fields that a write of this kind does not reach, whatever it says of them.
    """
    changed, gone = compared(shape, old, new, ignored)
    found = left_to_others(managed, changed, gone)
    taken = difference(changed, UNOWNED)
    if not taken:
        return found
    key = entry.manager.key
    had = found[key].fields if key in found else LEAF
    return capped({**found, key: entry._replace(fields=union(had, taken))})


def compared(shape: Shape, old: Object, new: Object, ignored: Fields) -> tuple[Fields, Fields]:
    """What changed and what is gone."""
    changed, gone = shape.compared(old, new)
    return without_trees(changed or {}, ignored), without_trees(gone or {}, ignored)


def left_to_others(managed: Managed, changed: Fields, gone: Fields) -> dict[Manager, Entry]:
    """What managers own once somebody else has changed some fields, and removed others."""
    lost = union(changed, gone)
    found = {key: (each, difference(each.fields, lost)) for key, each in managed.items()}
    return {key: each._replace(fields=fields) for key, (each, fields) in found.items() if fields}


def capped(managed: dict[Manager, Entry]) -> Managed:
    """The same, the oldest of too many updates in one entry for each version."""
    if len(managed) <= MOST_UPDATERS:
        return managed
    updates = [each for each in managed.values() if each.manager.operation == "Update"]
    excess = len(updates) - MOST_UPDATERS
    oldest: dict[str, list[Entry]] = {}
    for each in sorted(updates, key=lambda each: (each.time, each.manager)):
        if excess <= 0:
            break
        same = oldest.setdefault(each.manager.api_version, [])
        if not same and (known := managed.get(Manager(ANCIENT, "Update", each.manager.api_version))) is not None:
            same.append(known)
        if each not in same[:1]:
            excess -= bool(same)
            same.append(each)
    found = dict(managed)
    for version, entries in oldest.items():
        if len(entries) > 1:
            for each in entries:
                del found[each.manager.key]
            bucket = Manager(ANCIENT, "Update", version)
            found[bucket] = Entry(bucket, union_of(each.fields for each in entries), entries[-1].time)
    return found


def applied(
    shape: Shape, live: Object, config: Object, managed: Managed, entry: Entry, ignored: Fields, *, force: bool
) -> tuple[Object, Managed]:
    """The object once `config` is applied to it, and what is owned then; `live` itself where nothing changes.

    Raises Conflicts, unless others' fields are taken by `force`.
    """
    key = entry.manager.key
    before = managed[key].fields if key in managed else LEAF
    stated = without_trees(shape.stated(config) or {}, ignored)
    managers = {**managed, key: entry._replace(fields=stated)}
    new = shape.merged(live, config)
    if before:
        new = pruned(shape, new, before, [each.fields for each in managers.values()])
    others = {each: managed[each] for each in managed if each != key}
    changed, gone = compared(shape, live, new, ignored)
    contested = {each.manager: intersection(each.fields, changed) for each in others.values()}
    if not force and any(contested.values()):
        raise Conflicts({manager: fields for manager, fields in contested.items() if fields})
    found = left_to_others(others, changed, gone)
    is_same = new == live
    if owned := difference(stated, UNOWNED):
        last = managed[key].time if key in managed else ""
        found[key] = entry._replace(fields=owned, time=last if is_same else entry.time)
    return live if is_same else new, found


def pruned(shape: Shape, merged: Object, before: Fields, owned: Iterable[Fields]) -> Object:
    """`merged` without what was stated `before` and that nobody owns now.

    An item of a list goes with everything in it: whoever owns a field of it only does not hold it.
    """
    last = shape.named(before)
    kept = union_of(owned)
    there = below_of(shape.whole(merged))
    bare = below_of(shape.whole(shape.pruned(merged, last)))
    owned_only = shape.pruned(merged, difference(there, union(bare, shape.named(kept))))
    gone = difference(there, below_of(shape.whole(owned_only)))
    found: Object = shape.pruned(merged, intersection(gone, last))
    return found
