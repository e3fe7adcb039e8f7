"""Tests of field sets, with sets of paths as the reference."""

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

PATH_ELEMENTS = st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}', 'v:"x"', "v:1"])
PATHS = st.sets(st.lists(PATH_ELEMENTS, min_size=1, max_size=4).map(tuple), max_size=8)


def field_set(paths: set[tuple[str, ...]]) -> FieldSet:
    result: FieldSet = {}
    for path in paths:
        branch: FieldSet = {}
        for element in reversed(path):
            branch = {element: branch}
        result = union(result, branch)
    return result


def path_set(fields: FieldSet) -> set[tuple[str, ...]]:
    return set(field_paths(fields))


@given(PATHS)
def test_set_contains_the_given_fields(paths: set[tuple[str, ...]]) -> None:
    assert path_set(field_set(paths)) == paths


@given(PATHS)
def test_encoded_set_decodes_to_itself(paths: set[tuple[str, ...]]) -> None:
    assert decode_field_set(field_set(paths)) == field_set(paths)


@given(PATHS, PATHS)
def test_set_operations_equal_python_sets(left: set[tuple[str, ...]], right: set[tuple[str, ...]]) -> None:
    assert path_set(union(field_set(left), field_set(right))) == left | right
    assert path_set(intersection(field_set(left), field_set(right))) == left & right
    assert path_set(field_difference(field_set(left), field_set(right))) == left - right


@given(PATHS, PATHS)
def test_recursive_difference_removes_children(left: set[tuple[str, ...]], right: set[tuple[str, ...]]) -> None:
    children = {path for path in left if any(path[: len(each)] == each for each in right)}
    assert path_set(recursive_difference(field_set(left), field_set(right))) == left - children


def test_fields_are_listed_by_level_and_name() -> None:
    fields: FieldSet = {"f:b": {".": {}, "f:c": {}}, "f:a": {"f:d": {}}, 'v:"x"': {}, 'k:{"name":"y"}': {}}
    listed = [path_text(path) for path in field_paths(fields)]
    assert listed == [".b", '[name="y"]', '[="x"]', ".a.d", ".b.c"]


def test_decoded_keys_are_canonical() -> None:
    assert decode_field_set({'k:{ "port": 80, "name":"a"}': {}}) == {list_item_key({"name": "a", "port": 80}): {}}
    assert decode_field_set({"v: 1": {}, "x:unknown": {}}) == {set_item_key(1): {}}


@pytest.mark.parametrize("encoded", [{"a": {}}, {"k:x": {}}, {"k:1": {}}, {"f:a": 1}, []])
def test_malformed_field_set_is_rejected(encoded: Any) -> None:
    with pytest.raises(ValueError, match="fieldsV1"):
        decode_field_set(encoded)
