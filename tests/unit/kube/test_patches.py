from contextlib import suppress
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.patches import (
    MAX_COPIED_BYTES,
    MAX_OPERATIONS,
    PatchError,
    PatchTooLarge,
    apply_json_patch,
    apply_merge_patch,
    merge_patch,
    owned_patch,
)

KEYS = st.sampled_from(["a", "b", "c", "a/b", "m~n", "", "0", "-"])
SCALARS = st.booleans() | st.integers(-3, 3) | st.text("xyz", max_size=2)


def documents(leaves):
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))


JSON = documents(SCALARS | st.none())
OBJECTS = st.dictionaries(KEYS, documents(SCALARS), max_size=4)  # without nulls, which a merge patch cannot express


def escaped(token):
    return str(token).replace("~", "~0").replace("/", "~1")


def pointers(document, prefix=""):
    """Yield every path in the document, and one missing path in each container."""
    yield prefix
    members = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for token, member in members:
        yield from pointers(member, f"{prefix}/{escaped(token)}")
    if isinstance(document, dict | list):
        yield f"{prefix}/-"


@st.composite
def documents_with_operations(draw):
    document = draw(JSON)
    paths = st.sampled_from(sorted(pointers(document)))
    operations = st.one_of(
        st.fixed_dictionaries({"op": st.sampled_from(["add", "replace", "test"]), "path": paths, "value": JSON}),
        st.fixed_dictionaries({"op": st.just("remove"), "path": paths}),
        st.fixed_dictionaries({"op": st.sampled_from(["move", "copy"]), "from": paths, "path": paths}),
    )
    return document, draw(st.lists(operations, max_size=5))


# -- JSON Patch


@pytest.mark.parametrize(
    ("document", "operation", "result"),
    [
        ({"a": 1}, {"op": "add", "path": "/b", "value": 2}, {"a": 1, "b": 2}),
        ({"a": 1}, {"op": "add", "path": "/a", "value": 2}, {"a": 2}),
        ({"a": 1}, {"op": "add", "path": "/b", "value": None}, {"a": 1, "b": None}),
        ({"a": 1}, {"op": "add", "path": "", "value": [1]}, [1]),
        ({"a": [1, 3]}, {"op": "add", "path": "/a/1", "value": 2}, {"a": [1, 2, 3]}),
        ({"a": [1]}, {"op": "add", "path": "/a/1", "value": 2}, {"a": [1, 2]}),
        ({"a": [1]}, {"op": "add", "path": "/a/-", "value": [2]}, {"a": [1, [2]]}),
        ({"a": {"-": 1}}, {"op": "add", "path": "/a/-", "value": 2}, {"a": {"-": 2}}),
        ({"a": 1, "b": 2}, {"op": "remove", "path": "/b"}, {"a": 1}),
        ({"a": [1, 2, 3]}, {"op": "remove", "path": "/a/1"}, {"a": [1, 3]}),
        ({"": 1, "a": 2}, {"op": "remove", "path": "/"}, {"a": 2}),
        ({"a": {"b": 1}}, {"op": "replace", "path": "/a/b", "value": [2]}, {"a": {"b": [2]}}),
        ({"a": [1, 2]}, {"op": "replace", "path": "/a/0", "value": 3}, {"a": [3, 2]}),
        ({"a": 1}, {"op": "replace", "path": "", "value": {"b": 2}}, {"b": 2}),
        ({"a": {"x": 1}, "b": {}}, {"op": "move", "from": "/a/x", "path": "/b/y"}, {"a": {}, "b": {"y": 1}}),
        ({"a": [1, 2, 3]}, {"op": "move", "from": "/a/0", "path": "/a/2"}, {"a": [2, 3, 1]}),
        ({"a": {"b": 1}}, {"op": "move", "from": "/a", "path": "/a"}, {"a": {"b": 1}}),
        ({"a": {"b": 1}}, {"op": "move", "from": "/a/b", "path": "/a"}, {"a": 1}),
        ({"a": {"b": 1}}, {"op": "copy", "from": "/a", "path": "/c"}, {"a": {"b": 1}, "c": {"b": 1}}),
        ({"a": {"b": 1}}, {"op": "copy", "from": "/a", "path": "/a/c"}, {"a": {"b": 1, "c": {"b": 1}}}),
        ({"a/b": {"m~n": 1}}, {"op": "replace", "path": "/a~1b/m~0n", "value": 2}, {"a/b": {"m~n": 2}}),
        ({"~1": 1}, {"op": "remove", "path": "/~01"}, {}),
    ],
)
def test_json_patch_operation_follows_rfc_6902(document, operation, result):
    assert apply_json_patch(document, [operation]) == result


@pytest.mark.parametrize(
    ("value", "tested"),
    [
        (1, 1),
        (1, 1.0),
        ("a", "a"),
        (None, None),
        ([1, {"a": True}], [1, {"a": True}]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ],
)
def test_test_operation_passes_on_equal_json(value, tested):
    document = {"a": value}
    assert apply_json_patch(document, [{"op": "test", "path": "/a", "value": tested}]) == document


@pytest.mark.parametrize(
    ("value", "tested"),
    [
        (1, "1"),
        (1, True),
        (0, False),
        (None, False),
        ([1, 2], [2, 1]),
        ([1], [1, 1]),
        ([], {}),
        ({"a": 1}, {"a": True}),
    ],
)
def test_test_operation_fails_on_different_json(value, tested):
    with pytest.raises(PatchError, match=r"^patch\[0\]: test /a: the value at this path is different$"):
        apply_json_patch({"a": value}, [{"op": "test", "path": "/a", "value": tested}])


MISSING_PATH = "the path does not exist"


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ({"op": "remove", "path": "/spec/x"}, f"remove /spec/x: {MISSING_PATH}"),
        ({"op": "replace", "path": "/x", "value": 1}, f"replace /x: {MISSING_PATH}"),
        ({"op": "test", "path": "/x", "value": None}, f"test /x: {MISSING_PATH}"),
        ({"op": "copy", "from": "/x", "path": "/y"}, f"copy /y: {MISSING_PATH}"),
        ({"op": "move", "from": "/x", "path": "/y"}, f"move /y: {MISSING_PATH}"),
        ({"op": "add", "path": "/x/y", "value": 1}, f"add /x/y: {MISSING_PATH}"),
        ({"op": "add", "path": "/name/y", "value": 1}, "add /name/y: nothing can be added to a string"),
        ({"op": "remove", "path": "/name/y"}, f"remove /name/y: {MISSING_PATH}"),
        ({"op": "remove", "path": "/list/2"}, f"remove /list/2: {MISSING_PATH}"),
        ({"op": "remove", "path": "/list/-"}, f"remove /list/-: {MISSING_PATH}"),
        ({"op": "remove", "path": "/list/-1"}, f"remove /list/-1: {MISSING_PATH}"),
        ({"op": "remove", "path": "/list/01"}, f"remove /list/01: {MISSING_PATH}"),
        ({"op": "remove", "path": "/list/٠"}, f"remove /list/٠: {MISSING_PATH}"),
        ({"op": "add", "path": "/list/3", "value": 1}, "add /list/3: '3' is not an index of a list of length 2"),
        ({"op": "add", "path": "/list/x", "value": 1}, "add /list/x: 'x' is not an index of a list of length 2"),
        ({"op": "add", "path": "/list/" + "9" * 9000, "value": 1}, "is not an index of a list of length 2"),
        ({"op": "remove", "path": ""}, "remove : the whole document cannot be removed"),
        ({"op": "move", "from": "/spec", "path": "/spec/x"}, "move /spec/x: a value cannot be moved into itself"),
        ({"op": "remove", "path": "spec"}, "remove spec: 'spec' is not a JSON pointer: it must start with /"),
        (
            {"op": "remove", "path": "/a~2"},
            "remove /a~2: '/a~2' is not a JSON pointer: ~ is written ~0 and / is written ~1",
        ),
        ({"op": "remove", "path": "/a~"}, "remove /a~: '/a~' is not a JSON pointer"),
        ({"op": "add", "path": "/x"}, "add: value is missing"),
        ({"op": "add", "value": 1}, "add: path is missing"),
        ({"op": "copy", "path": "/x"}, "copy: from is missing"),
        ({"op": "remove", "path": 7}, "remove: path is a number, not a string"),
        ({"op": "frob", "path": "/x"}, "op is not one of add, remove, replace, move, copy, test"),
        ({"op": ["add"], "path": "/x"}, "op is not one of add, remove, replace, move, copy, test"),
        ({"path": "/x"}, "op is not one of add, remove, replace, move, copy, test"),
        ("remove /x", "an operation is an object, not a string"),
    ],
)
def test_failed_operation_is_named_by_index(operation, message):
    document = {"spec": {}, "name": "n", "list": [1, 2]}
    fine = {"op": "add", "path": "/fine", "value": 1}
    with pytest.raises(PatchError) as caught:
        apply_json_patch(document, [fine, fine, operation])
    assert str(caught.value).startswith("patch[2]: ")
    assert message in str(caught.value)


def test_json_patch_must_be_a_list():
    with pytest.raises(PatchError, match="a list of operations, not an object"):
        apply_json_patch({}, {"op": "remove", "path": "/x"})


def test_json_patch_operations_are_limited():
    operation = {"op": "add", "path": "/a", "value": 1}
    assert apply_json_patch({}, [operation] * MAX_OPERATIONS) == {"a": 1}
    with pytest.raises(PatchTooLarge, match="10001 operations are over 10000"):
        apply_json_patch({}, [operation] * (MAX_OPERATIONS + 1))


def test_doubling_copies_exceed_the_limit():
    doubling = {"op": "copy", "from": "/a", "path": "/a/-"}
    with pytest.raises(
        PatchError, match=rf"^patch\[\d\d\]: copy /a/-: the copies so far are \d+ bytes, over {MAX_COPIED_BYTES}$"
    ):
        apply_json_patch({"a": ["x" * 1000]}, [doubling] * 100)


def test_many_small_copies_are_allowed():
    copies = [{"op": "copy", "from": "/a", "path": f"/b/{index}"} for index in range(1000)]
    assert len(apply_json_patch({"a": "x", "b": {}}, copies)["b"]) == 1000


def test_path_may_exceed_recursion_limit():
    document = "leaf"
    for _ in range(5000):
        document = {"a": document}
    patched = apply_json_patch(document, [{"op": "replace", "path": "/a" * 5000, "value": "new"}])
    for _ in range(5000):
        patched = patched["a"]
    assert patched == "new"


def test_json_patch_shares_untouched_parts():
    document = {"metadata": {"labels": {}}, "spec": {"list": [{"a": 1}, {"b": 2}]}}
    patched = apply_json_patch(document, [{"op": "replace", "path": "/spec/list/0/a", "value": 2}])
    assert patched["metadata"] is document["metadata"]
    assert patched["spec"]["list"][1] is document["spec"]["list"][1]


@given(documents_with_operations())
def test_json_patch_does_not_change_its_inputs(case):
    document, operations = case
    before = deepcopy(case)
    with suppress(PatchError):
        apply_json_patch(document, operations)
    assert (document, operations) == before


@given(JSON, st.data())
def test_replaced_value_is_found_at_its_path(document, data):
    path = data.draw(st.sampled_from(sorted(pointer for pointer in pointers(document) if not pointer.endswith("/-"))))
    value = data.draw(JSON)
    replace = {"op": "replace", "path": path, "value": value}
    test = {"op": "test", "path": path, "value": value}
    assert apply_json_patch(document, [replace, test]) == apply_json_patch(document, [replace])


@given(OBJECTS, KEYS, JSON)
def test_remove_undoes_add(document, key, value):
    path = "/" + escaped(f"{key}, new")
    assert (
        apply_json_patch(document, [{"op": "add", "path": path, "value": value}, {"op": "remove", "path": path}])
        == document
    )


# -- JSON Merge Patch


@pytest.mark.parametrize(
    ("document", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ({}, {"a": [{"b": None}]}, {"a": [{"b": None}]}),
    ],
)
def test_merge_patch_follows_rfc_7386(document, patch, result):
    before = deepcopy((document, patch))
    assert apply_merge_patch(document, patch) == result
    assert (document, patch) == before


def test_merge_patch_shares_untouched_parts():
    document = {"metadata": {"labels": {}}, "spec": {"template": {}, "replicas": 1}}
    result = apply_merge_patch(document, {"spec": {"replicas": 2}})
    assert result["metadata"] is document["metadata"]
    assert result["spec"]["template"] is document["spec"]["template"]


@given(OBJECTS, OBJECTS)
def test_merge_patch_converts_old_to_desired(old, desired):
    before = deepcopy((old, desired))
    assert apply_merge_patch(old, merge_patch(old, desired)) == desired
    assert (old, desired) == before


@given(OBJECTS)
def test_merge_patch_of_equal_objects_is_empty(document):
    assert merge_patch(document, deepcopy(document)) == {}


@given(OBJECTS, OBJECTS)
def test_every_field_of_merge_patch_is_needed(old, desired):
    patch = merge_patch(old, desired)
    for key in patch:
        assert apply_merge_patch(old, {other: value for other, value in patch.items() if other != key}) != desired


@pytest.mark.parametrize(
    ("old", "desired", "patch"),
    [
        ({"a": 1, "b": {"c": 1, "d": 2}}, {"a": 1, "b": {"c": 3}}, {"b": {"c": 3, "d": None}}),
        ({"a": [{"b": 1}, 2]}, {"a": [{"b": 1}, 3]}, {"a": [{"b": 1}, 3]}),
        ({"a": 1}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a": {"b": 1}}, {"a": 1}, {"a": 1}),
        ({"a": {"b": 1}}, {"a": {}}, {"a": {"b": None}}),
        ({}, {"a": {}}, {"a": {}}),
        ({"a": None}, {}, {}),
        ({}, {"a": None}, {}),
    ],
)
def test_merge_patch_is_the_smallest(old, desired, patch):
    assert merge_patch(old, desired) == patch


# -- owned patches


@pytest.mark.parametrize(
    ("cached", "desired", "patch"),
    [
        ({"a": 1, "theirs": 2}, {"a": 1}, {}),
        ({"a": 1, "theirs": 2}, {"a": 3}, {"a": 3}),
        ({"a": {"b": 1, "theirs": 2}}, {"a": {"b": 3}}, {"a": {"b": 3}}),
        ({"a": {"theirs": 2}}, {"a": {}}, {}),
        ({"a": [1, 2]}, {"a": [1]}, {"a": [1]}),
        ({"a": 1}, {"a": None}, {"a": None}),
        ({"b": 1}, {"a": None}, {}),
        ({"a": None}, {"a": None}, {}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"b": None}}),
        ({}, {"a": {"b": None}}, {}),
        ({}, {"a": {"b": {"c": None}}}, {}),
        ({}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}),
        ({}, {"a": {}}, {"a": {}}),
        ({"a": 5}, {"a": {"b": None}}, {"a": {}}),
    ],
)
def test_owned_patch_contains_only_changed_fields(cached, desired, patch):
    before = deepcopy((cached, desired))
    assert owned_patch(cached, desired) == patch
    assert (cached, desired) == before


def contains_none(document):
    return isinstance(document, dict) and any(value is None or contains_none(value) for value in document.values())


OWNED = st.dictionaries(KEYS, documents(SCALARS | st.none()), max_size=4)


@given(OBJECTS, OWNED)
def test_owned_patch_is_empty_after_applying(cached, desired):
    assert owned_patch(apply_merge_patch(cached, owned_patch(cached, desired)), desired) == {}


@given(OBJECTS, OBJECTS)
def test_owned_patch_deletes_only_explicit_nones(cached, desired):
    assert not contains_none(owned_patch(cached, desired))
