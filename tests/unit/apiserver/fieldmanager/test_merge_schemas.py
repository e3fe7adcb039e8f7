"""Tests of merge schemas."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apiserver.core.resource_registry import ResourceRegistry, published_api
from tapestry.apiserver.fieldmanager.fieldsets import FieldSet, field_paths, intersection, path_text
from tapestry.apiserver.fieldmanager.merge_schemas import SCHEMALESS, ListSchema, MapSchema, MergeSchemas, merged_order
from tapestry.kube.objects import Object

API = published_api()
SCHEMAS = MergeSchemas(API.schemas)
REGISTRY = ResourceRegistry(API.resources)
VALUES = st.recursive(
    st.integers(0, 2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


def path_set(fields: FieldSet) -> set[tuple[str, ...]]:
    return set(field_paths(fields))


def applied_paths(group: str, version: str, plural: str, obj: Object) -> set[str]:
    info = REGISTRY.get(group, version, plural)
    assert info is not None
    return {path_text(path) for path in field_paths(SCHEMAS.schema_for(info).applied_fields(obj) or {})}


def test_struct_and_keyed_list_divide_into_fields() -> None:
    spec = {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}], "nodeSelector": {"a": "b"}}
    container = '.spec.containers[name="c"]'
    assert applied_paths("", "v1", "pods", {"spec": spec}) == {
        *(container, f"{container}.name", f"{container}.image", ".spec.nodeSelector"),
        *(
            f'{container}.ports[containerPort=80,protocol="TCP"]',
            f'{container}.ports[containerPort=80,protocol="TCP"].containerPort',
        ),
    }


def test_atomic_value_is_one_field() -> None:
    assert applied_paths("", "v1", "services", {"spec": {"selector": {"a": "b"}}}) == {".spec.selector"}
    assert applied_paths("", "v1", "services", {"spec": {"clusterIPs": ["a", "b"]}}) == {".spec.clusterIPs"}


def test_set_divides_into_its_items() -> None:
    assert applied_paths("", "v1", "pods", {"metadata": {"finalizers": ["x", "y"]}}) == {
        '.metadata.finalizers[="x"]',
        '.metadata.finalizers[="y"]',
    }


def test_recursive_schema_is_supported() -> None:
    info = REGISTRY.get("apiextensions.k8s.io", "v1", "customresourcedefinitions")
    assert info is not None
    schema = {"properties": {"spec": {"properties": {"a": {"type": "string"}}}}}
    version = {"name": "v1", "schema": {"openAPIV3Schema": schema}}
    fields = SCHEMAS.schema_for(info).applied_fields({"spec": {"versions": [version]}})
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


def test_custom_resource_divides_by_its_schema() -> None:
    merge_schema = SCHEMAS.custom_schema(CUSTOM)
    spec = {"whole": {"a": 1}, "open": {"x": {"y": [1]}}, "parts": [{"name": "p"}], "plain": ["x"]}
    fields = merge_schema.applied_fields({"metadata": {"labels": {"l": "1"}}, "spec": spec})
    assert fields is not None
    assert {path_text(path) for path in field_paths(fields)} == {
        *(".metadata.labels.l", ".spec.whole", ".spec.plain", ".spec.open.x", ".spec.open.x.y"),
        *('.spec.parts[name="p"]', '.spec.parts[name="p"].name'),
    }


def test_invalid_configuration_is_reported_with_path() -> None:
    merge_schema = SCHEMAS.custom_schema(CUSTOM)
    parts = [{"name": "p"}, {"name": "p", "extra": 1}, {}]
    result = [f"{path}: {message}" for path, message in merge_schema.faults({"spec": {"spam": 1, "parts": parts}})]
    assert result[0] == ".spec.spam: field not declared in schema"
    assert result[1] == '.spec.parts: duplicate entries for key [name="p"]'
    assert result[2].startswith(".spec.parts: element 2: associative list with keys has an element that omits all key")


@given(OBJECTS, OBJECTS)
def test_compare_finds_changed_and_removed_fields(old: Object, new: Object) -> None:
    changed, removed = SCHEMALESS.compare(old, new)
    assert (changed is None and removed is None) is (old == new)
    assert not intersection(changed or {}, removed or {})
    assert not path_set(changed or {}) - path_set(SCHEMALESS.all_fields(new))
    assert not path_set(removed or {}) - path_set(SCHEMALESS.all_fields(old))


@given(OBJECTS, OBJECTS)
def test_merged_object_contains_applied_fields(old: Object, new: Object) -> None:
    merged = SCHEMALESS.merge(old, new)
    assert SCHEMALESS.merge(merged, new) == merged
    assert path_set(SCHEMALESS.applied_fields(new) or {}) - path_set(SCHEMALESS.applied_fields(merged) or {}) <= {
        path for path in path_set(SCHEMALESS.applied_fields(new) or {}) if value_at(new, path) == {}
    }


def value_at(value: Any, path: tuple[str, ...]) -> Any:
    for element in path:
        value = value[element[2:]]
    return value


@given(OBJECTS)
def test_object_without_all_fields_is_empty(obj: Object) -> None:
    assert SCHEMALESS.without_fields(obj, SCHEMALESS.applied_fields(obj) or {}) == {}


@given(st.lists(st.sampled_from("abcdef"), unique=True), st.lists(st.sampled_from("abcdef"), unique=True))
def test_merged_list_keeps_applied_order(old: list[str], new: list[str]) -> None:
    result = [element for element, _ in merged_order(old, new)]
    assert sorted(result) == sorted({*old, *new})
    assert [each for each in result if each in new] == new
    assert [each for each in result if each not in new] == [each for each in old if each not in new]


@pytest.mark.parametrize(
    ("old", "new", "merged"),
    [("abc", "ca", "bca"), ("abc", "bd", "abcd"), ("abc", "dab", "dabc"), ("ab", "cd", "abcd"), ("abcd", "db", "acdb")],
)
def test_unapplied_items_stay_after_their_predecessor(old: str, new: str, merged: str) -> None:
    assert "".join(element for element, _ in merged_order(list(old), list(new))) == merged


def test_items_are_merged_by_keys() -> None:
    item = MapSchema(SCHEMALESS)
    merge_schema = ListSchema(item, ("name",))
    old = [{"name": "a", "x": 1}, {"name": "b", "x": 1}]
    assert merge_schema.merge(old, [{"name": "b", "y": 2}, {"name": "c"}]) == [
        {"name": "a", "x": 1},
        {"name": "b", "x": 1, "y": 2},
        {"name": "c"},
    ]
