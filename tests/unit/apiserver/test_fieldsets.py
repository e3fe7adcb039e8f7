"""Sets of fields behave as sets of paths do, in the form that is written down."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apiserver.fieldmanager.fieldsets import (
    FieldSet,
    decode_field_set,
    field_difference,
    field_paths,
    intersection,
    list_item_key,
    path_text,
    recursive_difference,
    set_item_key,
    union,
)
from tapestry.apiserver.fieldmanager.merge_schemas import SCHEMALESS, ListSchema, MapSchema, MergeSchemas, merged_order
from tapestry.apiserver.resource_registry import ResourceRegistry, published_api
from tapestry.kube.objects import Object

STEPS = st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}', 'v:"x"', "v:1"])
PATHS = st.sets(st.lists(STEPS, min_size=1, max_size=4).map(tuple), max_size=8)

TABLE = published_api()
SHAPES = MergeSchemas(TABLE.schemas)
ROWS = ResourceRegistry(TABLE.resources)
VALUES = st.recursive(
    st.integers(0, 2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


def set_of(paths: set[tuple[str, ...]]) -> FieldSet:
    found: FieldSet = {}
    for path in paths:
        made: FieldSet = {}
        for step in reversed(path):
            made = {step: made}
        found = union(found, made)
    return found


def back(fields: FieldSet) -> set[tuple[str, ...]]:
    return set(field_paths(fields))


@given(PATHS)
def test_a_set_has_the_fields_that_were_put_into_it(paths: set[tuple[str, ...]]) -> None:
    assert back(set_of(paths)) == paths


@given(PATHS)
def test_a_set_that_is_written_down_reads_as_itself(paths: set[tuple[str, ...]]) -> None:
    assert decode_field_set(set_of(paths)) == set_of(paths)


@given(PATHS, PATHS)
def test_union_intersection_and_difference_are_those_of_sets(
    left: set[tuple[str, ...]], right: set[tuple[str, ...]]
) -> None:
    assert back(union(set_of(left), set_of(right))) == left | right
    assert back(intersection(set_of(left), set_of(right))) == left & right
    assert back(field_difference(set_of(left), set_of(right))) == left - right


@given(PATHS, PATHS)
def test_a_field_can_be_left_out_with_all_that_is_below_it(
    left: set[tuple[str, ...]], right: set[tuple[str, ...]]
) -> None:
    under = {path for path in left if any(path[: len(each)] == each for each in right)}
    assert back(recursive_difference(set_of(left), set_of(right))) == left - under


def test_fields_are_listed_level_by_level_and_by_name() -> None:
    fields: FieldSet = {"f:b": {".": {}, "f:c": {}}, "f:a": {"f:d": {}}, 'v:"x"': {}, 'k:{"name":"y"}': {}}
    listed = [path_text(path) for path in field_paths(fields)]
    assert listed == [".b", '[name="y"]', '[="x"]', ".a.d", ".b.c"]


def test_keys_that_others_wrote_get_the_one_form_that_is_compared() -> None:
    assert decode_field_set({'k:{ "port": 80, "name":"a"}': {}}) == {list_item_key({"name": "a", "port": 80}): {}}
    assert decode_field_set({"v: 1": {}, "x:unknown": {}}) == {set_item_key(1): {}}


@pytest.mark.parametrize("written", [{"a": {}}, {"k:x": {}}, {"k:1": {}}, {"f:a": 1}, []])
def test_what_is_no_set_of_fields_is_refused(written: Any) -> None:
    with pytest.raises(ValueError, match="fieldsV1"):
        decode_field_set(written)


# -- of values


def stated(group: str, version: str, plural: str, obj: Object) -> set[str]:
    row = ROWS.get(group, version, plural)
    assert row is not None
    return {path_text(path) for path in field_paths(SHAPES.schema_for(row).applied_fields(obj) or {})}


def test_a_struct_divides_into_its_fields_and_a_list_into_its_items_by_their_keys() -> None:
    spec = {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}], "nodeSelector": {"a": "b"}}
    at = '.spec.containers[name="c"]'
    assert stated("", "v1", "pods", {"spec": spec}) == {
        *(at, f"{at}.name", f"{at}.image", ".spec.nodeSelector"),
        *(f'{at}.ports[containerPort=80,protocol="TCP"]', f'{at}.ports[containerPort=80,protocol="TCP"].containerPort'),
    }


def test_what_is_atomic_is_one_field() -> None:
    assert stated("", "v1", "services", {"spec": {"selector": {"a": "b"}}}) == {".spec.selector"}
    assert stated("", "v1", "services", {"spec": {"clusterIPs": ["a", "b"]}}) == {".spec.clusterIPs"}


def test_a_set_divides_into_its_items() -> None:
    assert stated("", "v1", "pods", {"metadata": {"finalizers": ["x", "y"]}}) == {
        '.metadata.finalizers[="x"]',
        '.metadata.finalizers[="y"]',
    }


def test_a_schema_that_refers_to_itself_has_a_shape() -> None:
    row = ROWS.get("apiextensions.k8s.io", "v1", "customresourcedefinitions")
    assert row is not None
    schema = {"properties": {"spec": {"properties": {"a": {"type": "string"}}}}}
    version = {"name": "v1", "schema": {"openAPIV3Schema": schema}}
    fields = SHAPES.schema_for(row).applied_fields({"spec": {"versions": [version]}})
    assert fields == {"f:spec": {"f:versions": {}}}


CUSTOM = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": {}}},
                "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "parts": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {"type": "object", "properties": {"name": {"type": "string"}}},
                },
                "plain": {"type": "array", "items": {"type": "string"}},
            },
        }
    },
}


def test_a_custom_resource_divides_as_its_own_schema_says() -> None:
    shape = SHAPES.custom_schema(CUSTOM)
    spec = {"whole": {"a": 1}, "open": {"x": {"y": [1]}}, "parts": [{"name": "p"}], "plain": ["x"]}
    fields = shape.applied_fields({"metadata": {"labels": {"l": "1"}}, "spec": spec})
    assert fields is not None
    assert {path_text(path) for path in field_paths(fields)} == {
        *(".metadata.labels.l", ".spec.whole", ".spec.plain", ".spec.open.x", ".spec.open.x.y"),
        *('.spec.parts[name="p"]', '.spec.parts[name="p"].name'),
    }


def test_what_cannot_be_applied_is_named_with_its_path() -> None:
    shape = SHAPES.custom_schema(CUSTOM)
    parts = [{"name": "p"}, {"name": "p", "extra": 1}, {}]
    found = [f"{path}: {why}" for path, why in shape.faults({"spec": {"spam": 1, "parts": parts}})]
    assert found[0] == ".spec.spam: field not declared in schema"
    assert found[1] == '.spec.parts: duplicate entries for key [name="p"]'
    assert found[2].startswith(".spec.parts: element 2: associative list with keys has an element that omits all key")


@given(OBJECTS, OBJECTS)
def test_what_changed_and_what_is_gone_tell_two_values_apart(old: Object, new: Object) -> None:
    changed, gone = SCHEMALESS.compare(old, new)
    assert (changed is None and gone is None) is (old == new)
    assert not intersection(changed or {}, gone or {})
    assert not back(changed or {}) - back(SCHEMALESS.all_fields(new))
    assert not back(gone or {}) - back(SCHEMALESS.all_fields(old))


@given(OBJECTS, OBJECTS)
def test_what_is_merged_has_everything_that_was_stated(old: Object, new: Object) -> None:
    merged = SCHEMALESS.merge(old, new)
    assert SCHEMALESS.merge(merged, new) == merged
    assert back(SCHEMALESS.applied_fields(new) or {}) - back(SCHEMALESS.applied_fields(merged) or {}) <= {
        path for path in back(SCHEMALESS.applied_fields(new) or {}) if value_at(new, path) == {}
    }


def value_at(value: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        value = value[step[2:]]
    return value


@given(OBJECTS)
def test_nothing_is_left_without_all_of_its_fields(obj: Object) -> None:
    assert SCHEMALESS.without_fields(obj, SCHEMALESS.applied_fields(obj) or {}) == {}


@given(st.lists(st.sampled_from("abcdef"), unique=True), st.lists(st.sampled_from("abcdef"), unique=True))
def test_a_merged_list_has_each_item_once_and_those_applied_in_their_order(old: list[str], new: list[str]) -> None:
    found = [step for step, _ in merged_order(old, new)]
    assert sorted(found) == sorted({*old, *new})
    assert [each for each in found if each in new] == new
    assert [each for each in found if each not in new] == [each for each in old if each not in new]


@pytest.mark.parametrize(
    ("old", "new", "merged"),
    [("abc", "ca", "bca"), ("abc", "bd", "abcd"), ("abc", "dab", "dabc"), ("ab", "cd", "abcd"), ("abcd", "db", "acdb")],
)
def test_what_only_the_old_list_has_stays_behind_what_it_was_behind(old: str, new: str, merged: str) -> None:
    assert "".join(step for step, _ in merged_order(list(old), list(new))) == merged


def test_items_are_merged_by_their_keys() -> None:
    item = MapSchema(SCHEMALESS)
    shape = ListSchema(item, ("name",))
    old = [{"name": "a", "x": 1}, {"name": "b", "x": 1}]
    assert shape.merge(old, [{"name": "b", "y": 2}, {"name": "c"}]) == [
        {"name": "a", "x": 1},
        {"name": "b", "x": 1, "y": 2},
        {"name": "c"},
    ]
