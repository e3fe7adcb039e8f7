"""Tests of field ownership: properties for any objects, managers and order of writes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apiserver.fieldmanager.fieldsets import LEAF, FieldSet, field_paths, intersection, path_text
from tapestry.apiserver.fieldmanager.managed_fields import (
    ANCIENT_CHANGES,
    MAX_UPDATE_MANAGERS,
    Conflicts,
    EntriesByManager,
    ManagedFieldsEntry,
    Manager,
    apply_configuration,
    decode_managed_fields,
    encode_managed_fields,
    entries_after_update,
    is_equal_except_timestamps,
    is_managed_fields_reset,
)
from tapestry.apiserver.fieldmanager.merge_schemas import ATOMIC, SCHEMALESS, ListSchema, MapSchema, MergeSchema
from tapestry.kube.objects import Object


def new_schema() -> MergeSchema:
    """Return a schema with a scalar, a map, a keyed list, a set and an atomic list in `spec`."""
    item = MapSchema()
    item.declare({"name": ATOMIC, "x": ATOMIC, "y": ATOMIC})
    spec = MapSchema()
    spec.declare(
        {
            "size": ATOMIC,
            "free": SCHEMALESS,
            "parts": ListSchema(item, ("name",)),
            "tags": ListSchema(ATOMIC),
            "plain": ATOMIC,
        }
    )
    schema = MapSchema()
    schema.declare({"apiVersion": ATOMIC, "kind": ATOMIC, "metadata": SCHEMALESS, "spec": spec})
    return schema


SCHEMA = new_schema()
START: Object = {"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "t"}}
NAMES = st.sampled_from(["a", "b", "c"])
SMALL = st.integers(0, 2)
PARTS = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from("pqr")}, optional={"x": SMALL, "y": SMALL}),
    min_size=1,
    max_size=3,
    unique_by=lambda each: each["name"],
)
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "size": SMALL,
        "free": st.dictionaries(st.sampled_from("mn"), SMALL, min_size=1, max_size=2),
        "parts": PARTS,
        "tags": st.lists(st.sampled_from("tuv"), min_size=1, max_size=3, unique=True),
        "plain": st.lists(SMALL, min_size=1, max_size=2),
    },
)
CONFIGS = SPECS.map(lambda spec: {"apiVersion": "v1", "kind": "Thing", **({"spec": spec} if spec else {})})
WRITES = st.lists(st.tuples(st.sampled_from(["Apply", "Update"]), NAMES, CONFIGS), max_size=6)


def new_entry(name: str, operation: Any = "Apply", time: str = "2026-01-01T00:00:00Z") -> ManagedFieldsEntry:
    return ManagedFieldsEntry(Manager(name, operation, "v1"), LEAF, time)


def object_after(writes: list[tuple[str, str, Object]]) -> tuple[Object, EntriesByManager]:
    """Return the object and entries after the writes. Applies are forced."""
    obj: Object = START
    managed: EntriesByManager = {}
    for operation, name, config in writes:
        if operation == "Apply":
            obj, managed = apply_configuration(SCHEMA, obj, config, managed, new_entry(name), LEAF, force=True)
        else:
            new = {**START, **config}
            managed = entries_after_update(SCHEMA, obj, new, managed, new_entry(name, "Update"))
            obj = new
    return obj, managed


def fields_of(managed: EntriesByManager, name: str, operation: Any = "Apply") -> FieldSet:
    fields = [each.fields for each in managed.values() if each.manager[:2] == (name, operation)]
    return fields[0] if fields else {}


def owned(fields: FieldSet) -> set[tuple[str, ...]]:
    return set(field_paths(fields))


@given(WRITES)
def test_owned_fields_always_exist(writes: list[tuple[str, str, Object]]) -> None:
    obj, managed = object_after(writes)
    present = owned(SCHEMA.all_fields(obj))
    assert all(owned(each.fields) <= present for each in managed.values())
    assert all(each.fields for each in managed.values())


@given(WRITES, NAMES, CONFIGS)
def test_apply_is_idempotent(writes: list[tuple[str, str, Object]], name: str, config: Object) -> None:
    once = apply_configuration(
        SCHEMA, *object_after(writes)[:1], config, object_after(writes)[1], new_entry(name), LEAF, force=True
    )
    obj, managed = apply_configuration(
        SCHEMA, once[0], config, once[1], new_entry(name, time="later"), LEAF, force=False
    )
    assert obj is once[0]
    assert managed == once[1]


@given(WRITES, NAMES, CONFIGS)
def test_forced_apply_sets_and_owns_fields(writes: list[tuple[str, str, Object]], name: str, config: Object) -> None:
    obj, managed = object_after(writes)
    new, managed = apply_configuration(SCHEMA, obj, config, managed, new_entry(name), LEAF, force=True)
    assert SCHEMA.merge(new, config) == new
    assert owned(fields_of(managed, name)) == {
        path for path in owned(SCHEMA.applied_fields(config) or {}) if path[0] not in ("f:apiVersion", "f:kind")
    }


@given(WRITES, NAMES)
def test_empty_apply_removes_exclusively_owned_fields(writes: list[tuple[str, str, Object]], name: str) -> None:
    obj, managed = object_after(writes)
    own_fields = owned(SCHEMA.with_named_members(fields_of(managed, name)))
    others = {
        path
        for each in managed.values()
        if each.manager[:2] != (name, "Apply")
        for path in owned(SCHEMA.with_named_members(each.fields))
    }
    new, left = apply_configuration(SCHEMA, obj, dict(START), managed, new_entry(name), LEAF, force=False)
    before, present = owned(SCHEMA.all_fields(obj)), owned(SCHEMA.all_fields(new))
    exclusive = own_fields & before - others
    items = {path for path in exclusive if path[-1][0] in "kv"}
    item_children = {path for path in before if any(path[: len(item)] == item for item in items)}
    parents = {path[:length] for path in before - exclusive - item_children for length in range(1, len(path))}
    assert before - present == (exclusive | item_children) - parents
    assert not fields_of(left, name)


@given(WRITES, NAMES, CONFIGS)
def test_apply_conflicts_on_fields_of_others(writes: list[tuple[str, str, Object]], name: str, config: Object) -> None:
    obj, managed = object_after(writes)
    others = {key: each for key, each in managed.items() if each.manager[:2] != (name, "Apply")}
    forced, _ = apply_configuration(SCHEMA, obj, config, managed, new_entry(name), LEAF, force=True)
    changed, _ = SCHEMA.compare(obj, forced)
    expected_conflicts = {
        (each.manager, path_text(path))
        for each in others.values()
        for path in owned(intersection(each.fields, changed or {}))
    }
    try:
        new, _ = apply_configuration(SCHEMA, obj, config, managed, new_entry(name), LEAF, force=False)
        actual = set()
    except Conflicts as conflicts:
        new, actual = forced, set(conflicts.paths)
    assert actual == expected_conflicts
    assert new == forced


@given(WRITES)
def test_encoded_entries_decode_to_themselves(writes: list[tuple[str, str, Object]]) -> None:
    _, managed = object_after(writes)
    assert decode_managed_fields(encode_managed_fields(managed)) == managed


def test_conflict_names_manager_and_field() -> None:
    obj, managed = object_after([("Update", "kubectl", {"spec": {"size": 1}})])
    with pytest.raises(Conflicts) as caught:
        apply_configuration(SCHEMA, obj, {**START, "spec": {"size": 2}}, managed, new_entry("a"), LEAF, force=False)
    assert str(caught.value) == 'Apply failed with 1 conflict: conflict with "kubectl" using v1: .spec.size'


def test_conflicts_are_listed_by_manager() -> None:
    obj, managed = object_after(
        [("Apply", "b", {"spec": {"size": 1}}), ("Apply", "a", {"spec": {"plain": [1], "tags": ["t"]}})]
    )
    config = {**START, "spec": {"size": 2, "plain": [2], "tags": ["t"]}}
    with pytest.raises(Conflicts) as caught:
        apply_configuration(SCHEMA, obj, config, managed, new_entry("c"), LEAF, force=False)
    assert str(caught.value) == (
        'Apply failed with 2 conflicts: conflicts with "a":\n- .spec.plain\nconflicts with "b":\n- .spec.size'
    )


def test_equal_values_are_owned_by_both_appliers() -> None:
    config = {**START, "spec": {"size": 1}}
    obj, managed = object_after([("Apply", "a", config)])
    obj, managed = apply_configuration(SCHEMA, obj, config, managed, new_entry("b"), LEAF, force=False)
    obj, managed = apply_configuration(SCHEMA, obj, START, managed, new_entry("a"), LEAF, force=False)
    assert obj["spec"] == {"size": 1}
    obj, managed = apply_configuration(SCHEMA, obj, START, managed, new_entry("b"), LEAF, force=False)
    assert "spec" not in obj
    assert not managed


def test_unowned_fields_stay() -> None:
    obj, managed = object_after([("Apply", "a", {"spec": {"size": 1}}), ("Apply", "b", {"spec": {"tags": ["t"]}})])
    defaulted = {**obj, "spec": {**obj["spec"], "plain": [1]}}
    new, _ = apply_configuration(SCHEMA, defaulted, START, managed, new_entry("a"), LEAF, force=False)
    assert new["spec"] == {"tags": ["t"], "plain": [1]}


def test_oldest_update_entries_are_merged() -> None:
    obj: Object = START
    managed: EntriesByManager = {}
    for number in range(MAX_UPDATE_MANAGERS + 3):
        new = {**obj, "spec": {"free": {**obj.get("spec", {}).get("free", {}), f"k{number:02}": 1}}}
        entry = new_entry(f"m{number:02}", "Update", f"2026-01-01T00:00:{number:02}Z")
        managed = entries_after_update(SCHEMA, obj, new, managed, entry)
        obj = new
    assert len(managed) == MAX_UPDATE_MANAGERS
    ancient = fields_of(managed, ANCIENT_CHANGES, "Update")
    assert {path[-1] for path in owned(ancient)} >= {"f:k00", "f:k01", "f:k02", "f:k03"}
    assert "f:k04" not in {path[-1] for path in owned(ancient)}


def test_ignored_fields_are_not_owned() -> None:
    managed = entries_after_update(
        SCHEMA, START, {**START, "spec": {"size": 1}}, {}, new_entry("a", "Update"), {"f:spec": {}}
    )
    assert not managed


def test_unchanged_update_keeps_entry_times() -> None:
    obj, managed = object_after([("Update", "a", {"spec": {"size": 1}})])
    assert entries_after_update(SCHEMA, obj, obj, managed, new_entry("a", "Update", "later")) == managed


def test_timestamps_alone_are_no_change() -> None:
    obj, managed = object_after([("Update", "a", {"spec": {"size": 1}})])
    current = {**obj, "metadata": {**obj["metadata"], "managedFields": encode_managed_fields(managed)}}
    later = [{**each, "time": "later"} for each in encode_managed_fields(managed)]
    assert is_equal_except_timestamps(current, {**current, "metadata": {**current["metadata"], "managedFields": later}})
    assert not is_equal_except_timestamps(current, {**current, "spec": {"size": 2}})
    assert not is_equal_except_timestamps(current, {**current, "metadata": {"name": "t"}})
    assert not is_equal_except_timestamps(
        current, {**current, "metadata": {**current["metadata"], "labels": {"a": "b"}}}
    )


@pytest.mark.parametrize(
    "entry",
    [{}, {"operation": "Apply"}, {"operation": "Apply", "apiVersion": "v1"}, {"operation": "Get", "apiVersion": "v1"}],
)
def test_malformed_entry_is_rejected(entry: Object) -> None:
    with pytest.raises(ValueError, match=r"metadata\.managedFields"):
        decode_managed_fields([entry])


@pytest.mark.parametrize(("entries", "reset"), [([], True), ([{}], True), (None, False), ([{"manager": "a"}], False)])
def test_empty_list_or_entry_resets_ownership(entries: Any, *, reset: bool) -> None:
    assert is_managed_fields_reset(entries) is reset
