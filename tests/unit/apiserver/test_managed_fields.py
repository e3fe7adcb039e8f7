"""Who owns which fields: the rules hold for any objects, any managers and any order of what they do."""

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


def a_shape() -> MergeSchema:
    """Of a `spec` with a scalar, a free map, a list by keys, a set, and a list that is one field."""
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
    found = MapSchema()
    found.declare({"apiVersion": ATOMIC, "kind": ATOMIC, "metadata": SCHEMALESS, "spec": spec})
    return found


SHAPE = a_shape()
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


def an_entry(name: str, operation: Any = "Apply", time: str = "2026-01-01T00:00:00Z") -> ManagedFieldsEntry:
    return ManagedFieldsEntry(Manager(name, operation, "v1"), LEAF, time)


def after(writes: list[tuple[str, str, Object]]) -> tuple[Object, EntriesByManager]:
    """An object that has been through that; appliers force."""
    obj: Object = START
    managed: EntriesByManager = {}
    for operation, name, config in writes:
        if operation == "Apply":
            obj, managed = apply_configuration(SHAPE, obj, config, managed, an_entry(name), LEAF, force=True)
        else:
            new = {**START, **config}
            managed = entries_after_update(SHAPE, obj, new, managed, an_entry(name, "Update"))
            obj = new
    return obj, managed


def fields_of(managed: EntriesByManager, name: str, operation: Any = "Apply") -> FieldSet:
    found = [each.fields for each in managed.values() if each.manager[:2] == (name, operation)]
    return found[0] if found else {}


def owned(fields: FieldSet) -> set[tuple[str, ...]]:
    return set(field_paths(fields))


@given(WRITES)
def test_nobody_ever_owns_a_field_that_is_not_there(writes: list[tuple[str, str, Object]]) -> None:
    obj, managed = after(writes)
    there = owned(SHAPE.all_fields(obj))
    assert all(owned(each.fields) <= there for each in managed.values())
    assert all(each.fields for each in managed.values())


@given(WRITES, NAMES, CONFIGS)
def test_to_apply_twice_is_to_apply_once(writes: list[tuple[str, str, Object]], name: str, config: Object) -> None:
    once = apply_configuration(SHAPE, *after(writes)[:1], config, after(writes)[1], an_entry(name), LEAF, force=True)
    obj, managed = apply_configuration(SHAPE, once[0], config, once[1], an_entry(name, time="later"), LEAF, force=False)
    assert obj is once[0]
    assert managed == once[1]


@given(WRITES, NAMES, CONFIGS)
def test_whoever_applies_gets_what_they_state_and_owns_it(
    writes: list[tuple[str, str, Object]], name: str, config: Object
) -> None:
    obj, managed = after(writes)
    new, managed = apply_configuration(SHAPE, obj, config, managed, an_entry(name), LEAF, force=True)
    assert SHAPE.merge(new, config) == new
    assert owned(fields_of(managed, name)) == {
        path for path in owned(SHAPE.applied_fields(config) or {}) if path[0] not in ("f:apiVersion", "f:kind")
    }


@given(WRITES, NAMES)
def test_to_apply_nothing_removes_exactly_what_one_owned_alone(
    writes: list[tuple[str, str, Object]], name: str
) -> None:
    obj, managed = after(writes)
    mine = owned(SHAPE.with_named_members(fields_of(managed, name)))
    others = {
        path
        for each in managed.values()
        if each.manager[:2] != (name, "Apply")
        for path in owned(SHAPE.with_named_members(each.fields))
    }
    new, left = apply_configuration(SHAPE, obj, dict(START), managed, an_entry(name), LEAF, force=False)
    before, there = owned(SHAPE.all_fields(obj)), owned(SHAPE.all_fields(new))
    alone = mine & before - others
    items = {path for path in alone if path[-1][0] in "kv"}
    inside = {path for path in before if any(path[: len(item)] == item for item in items)}
    kept = {path[:length] for path in before - alone - inside for length in range(1, len(path))}
    assert before - there == (alone | inside) - kept
    assert not fields_of(left, name)


@given(WRITES, NAMES, CONFIGS)
def test_what_others_own_is_as_it_was_unless_it_is_forced(
    writes: list[tuple[str, str, Object]], name: str, config: Object
) -> None:
    obj, managed = after(writes)
    others = {key: each for key, each in managed.items() if each.manager[:2] != (name, "Apply")}
    forced, _ = apply_configuration(SHAPE, obj, config, managed, an_entry(name), LEAF, force=True)
    changed, _ = SHAPE.compare(obj, forced)
    contested = {
        (each.manager, path_text(path))
        for each in others.values()
        for path in owned(intersection(each.fields, changed or {}))
    }
    try:
        new, _ = apply_configuration(SHAPE, obj, config, managed, an_entry(name), LEAF, force=False)
        found = set()
    except Conflicts as conflicts:
        new, found = forced, set(conflicts.paths)
    assert found == contested
    assert new == forced


@given(WRITES)
def test_an_account_that_is_written_down_reads_as_itself(writes: list[tuple[str, str, Object]]) -> None:
    _, managed = after(writes)
    assert decode_managed_fields(encode_managed_fields(managed)) == managed


def test_a_conflict_names_who_and_what() -> None:
    obj, managed = after([("Update", "kubectl", {"spec": {"size": 1}})])
    with pytest.raises(Conflicts) as caught:
        apply_configuration(SHAPE, obj, {**START, "spec": {"size": 2}}, managed, an_entry("a"), LEAF, force=False)
    assert str(caught.value) == 'Apply failed with 1 conflict: conflict with "kubectl" using v1: .spec.size'


def test_conflicts_are_listed_by_manager() -> None:
    obj, managed = after(
        [("Apply", "b", {"spec": {"size": 1}}), ("Apply", "a", {"spec": {"plain": [1], "tags": ["t"]}})]
    )
    config = {**START, "spec": {"size": 2, "plain": [2], "tags": ["t"]}}
    with pytest.raises(Conflicts) as caught:
        apply_configuration(SHAPE, obj, config, managed, an_entry("c"), LEAF, force=False)
    assert str(caught.value) == (
        'Apply failed with 2 conflicts: conflicts with "a":\n- .spec.plain\nconflicts with "b":\n- .spec.size'
    )


def test_equal_values_are_owned_by_both_and_stay_until_both_let_go() -> None:
    config = {**START, "spec": {"size": 1}}
    obj, managed = after([("Apply", "a", config)])
    obj, managed = apply_configuration(SHAPE, obj, config, managed, an_entry("b"), LEAF, force=False)
    obj, managed = apply_configuration(SHAPE, obj, START, managed, an_entry("a"), LEAF, force=False)
    assert obj["spec"] == {"size": 1}
    obj, managed = apply_configuration(SHAPE, obj, START, managed, an_entry("b"), LEAF, force=False)
    assert "spec" not in obj
    assert not managed


def test_what_nobody_owns_stays_beside_what_others_own() -> None:
    obj, managed = after([("Apply", "a", {"spec": {"size": 1}}), ("Apply", "b", {"spec": {"tags": ["t"]}})])
    defaulted = {**obj, "spec": {**obj["spec"], "plain": [1]}}
    new, _ = apply_configuration(SHAPE, defaulted, START, managed, an_entry("a"), LEAF, force=False)
    assert new["spec"] == {"tags": ["t"], "plain": [1]}


def test_beyond_ten_the_oldest_updates_are_owned_in_one_name() -> None:
    obj: Object = START
    managed: EntriesByManager = {}
    for number in range(MAX_UPDATE_MANAGERS + 3):
        new = {**obj, "spec": {"free": {**obj.get("spec", {}).get("free", {}), f"k{number:02}": 1}}}
        entry = an_entry(f"m{number:02}", "Update", f"2026-01-01T00:00:{number:02}Z")
        managed = entries_after_update(SHAPE, obj, new, managed, entry)
        obj = new
    assert len(managed) == MAX_UPDATE_MANAGERS
    ancient = fields_of(managed, ANCIENT_CHANGES, "Update")
    assert {path[-1] for path in owned(ancient)} >= {"f:k00", "f:k01", "f:k02", "f:k03"}
    assert "f:k04" not in {path[-1] for path in owned(ancient)}


def test_what_a_write_does_not_reach_is_not_owned_by_it() -> None:
    managed = entries_after_update(
        SHAPE, START, {**START, "spec": {"size": 1}}, {}, an_entry("a", "Update"), {"f:spec": {}}
    )
    assert not managed


def test_a_writer_who_changes_nothing_leaves_the_times_alone() -> None:
    obj, managed = after([("Update", "a", {"spec": {"size": 1}})])
    assert entries_after_update(SHAPE, obj, obj, managed, an_entry("a", "Update", "later")) == managed


def test_times_alone_make_no_difference() -> None:
    obj, managed = after([("Update", "a", {"spec": {"size": 1}})])
    one = {**obj, "metadata": {**obj["metadata"], "managedFields": encode_managed_fields(managed)}}
    later = [{**each, "time": "later"} for each in encode_managed_fields(managed)]
    assert is_equal_except_timestamps(one, {**one, "metadata": {**one["metadata"], "managedFields": later}})
    assert not is_equal_except_timestamps(one, {**one, "spec": {"size": 2}})
    assert not is_equal_except_timestamps(one, {**one, "metadata": {"name": "t"}})
    assert not is_equal_except_timestamps(one, {**one, "metadata": {**one["metadata"], "labels": {"a": "b"}}})


@pytest.mark.parametrize(
    "entry",
    [{}, {"operation": "Apply"}, {"operation": "Apply", "apiVersion": "v1"}, {"operation": "Get", "apiVersion": "v1"}],
)
def test_what_is_no_account_is_refused(entry: Object) -> None:
    with pytest.raises(ValueError, match=r"metadata\.managedFields"):
        decode_managed_fields([entry])


@pytest.mark.parametrize(("entries", "reset"), [([], True), ([{}], True), (None, False), ([{"manager": "a"}], False)])
def test_an_empty_list_or_an_empty_entry_resets(entries: Any, *, reset: bool) -> None:
    assert is_managed_fields_reset(entries) is reset
