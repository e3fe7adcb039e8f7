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
OBJECTS = st.dictionaries(KEYS, documents(SCALARS), max_size=4)  # without nulls, which a merge patch cannot write


def written(step):
    return str(step).replace("~", "~0").replace("/", "~1")


def pointers(document, prefix=""):
    """Every place in the document, and one beside each."""
    yield prefix
    members = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for step, member in members:
        yield from pointers(member, f"{prefix}/{written(step)}")
    if isinstance(document, dict | list):
        yield f"{prefix}/-"


@st.composite
def documents_with_operations(draw):
    document = draw(JSON)
    places = st.sampled_from(sorted(pointers(document)))
    operations = st.one_of(
        st.fixed_dictionaries({"op": st.sampled_from(["add", "replace", "test"]), "path": places, "value": JSON}),
        st.fixed_dictionaries({"op": st.just("remove"), "path": places}),
        st.fixed_dictionaries({"op": st.sampled_from(["move", "copy"]), "from": places, "path": places}),
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
def test_an_operation_does_what_rfc_6902_says(document, operation, result):
    assert apply_json_patch(document, [operation]) == result


@pytest.mark.parametrize(
    ("there", "tested"),
    [
        (1, 1),
        (1, 1.0),
        ("a", "a"),
        (None, None),
        ([1, {"a": True}], [1, {"a": True}]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ],
)
def test_a_test_passes_on_equal_json(there, tested):
    document = {"a": there}
    assert apply_json_patch(document, [{"op": "test", "path": "/a", "value": tested}]) == document


@pytest.mark.parametrize(
    ("there", "tested"),
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
def test_a_test_fails_on_anything_else(there, tested):
    with pytest.raises(PatchError, match=r"^patch\[0\]: test /a: the value at this path is different$"):
        apply_json_patch({"a": there}, [{"op": "test", "path": "/a", "value": tested}])


NOTHING_THERE = "the path does not exist"


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ({"op": "remove", "path": "/spec/x"}, f"remove /spec/x: {NOTHING_THERE}"),
        ({"op": "replace", "path": "/x", "value": 1}, f"replace /x: {NOTHING_THERE}"),
        ({"op": "test", "path": "/x", "value": None}, f"test /x: {NOTHING_THERE}"),
        ({"op": "copy", "from": "/x", "path": "/y"}, f"copy /y: {NOTHING_THERE}"),
        ({"op": "move", "from": "/x", "path": "/y"}, f"move /y: {NOTHING_THERE}"),
        ({"op": "add", "path": "/x/y", "value": 1}, f"add /x/y: {NOTHING_THERE}"),
        ({"op": "add", "path": "/name/y", "value": 1}, "add /name/y: nothing can be added to a string"),
        ({"op": "remove", "path": "/name/y"}, f"remove /name/y: {NOTHING_THERE}"),
        ({"op": "remove", "path": "/list/2"}, f"remove /list/2: {NOTHING_THERE}"),
        ({"op": "remove", "path": "/list/-"}, f"remove /list/-: {NOTHING_THERE}"),
        ({"op": "remove", "path": "/list/-1"}, f"remove /list/-1: {NOTHING_THERE}"),
        ({"op": "remove", "path": "/list/01"}, f"remove /list/01: {NOTHING_THERE}"),
        ({"op": "remove", "path": "/list/٠"}, f"remove /list/٠: {NOTHING_THERE}"),
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
def test_an_operation_that_cannot_be_done_is_named_with_its_place_in_the_patch(operation, message):
    document = {"spec": {}, "name": "n", "list": [1, 2]}
    fine = {"op": "add", "path": "/fine", "value": 1}
    with pytest.raises(PatchError) as refused:
        apply_json_patch(document, [fine, fine, operation])
    assert str(refused.value).startswith("patch[2]: ")
    assert message in str(refused.value)


def test_a_json_patch_is_a_list():
    with pytest.raises(PatchError, match="a list of operations, not an object"):
        apply_json_patch({}, {"op": "remove", "path": "/x"})


def test_a_patch_may_have_ten_thousand_operations_and_no_more():
    one = {"op": "add", "path": "/a", "value": 1}
    assert apply_json_patch({}, [one] * MAX_OPERATIONS) == {"a": 1}
    with pytest.raises(PatchTooLarge, match="10001 operations are over 10000"):
        apply_json_patch({}, [one] * (MAX_OPERATIONS + 1))


def test_copies_that_double_a_document_end_at_the_limit():
    doubling = {"op": "copy", "from": "/a", "path": "/a/-"}
    with pytest.raises(
        PatchError, match=rf"^patch\[\d\d\]: copy /a/-: the copies so far are \d+ bytes, over {MAX_COPIED_BYTES}$"
    ):
        apply_json_patch({"a": ["x" * 1000]}, [doubling] * 100)


def test_many_small_copies_are_within_the_limit():
    copies = [{"op": "copy", "from": "/a", "path": f"/b/{index}"} for index in range(1000)]
    assert len(apply_json_patch({"a": "x", "b": {}}, copies)["b"]) == 1000


def test_a_path_may_be_deeper_than_the_interpreter_recurses():
    document = "leaf"
    for _ in range(5000):
        document = {"a": document}
    patched = apply_json_patch(document, [{"op": "replace", "path": "/a" * 5000, "value": "new"}])
    for _ in range(5000):
        patched = patched["a"]
    assert patched == "new"


def test_what_a_patch_does_not_touch_is_shared():
    document = {"metadata": {"labels": {}}, "spec": {"list": [{"a": 1}, {"b": 2}]}}
    patched = apply_json_patch(document, [{"op": "replace", "path": "/spec/list/0/a", "value": 2}])
    assert patched["metadata"] is document["metadata"]
    assert patched["spec"]["list"][1] is document["spec"]["list"][1]


@given(documents_with_operations())
def test_a_json_patch_changes_neither_the_document_nor_itself(case):
    document, operations = case
    before = deepcopy(case)
    with suppress(PatchError):
        apply_json_patch(document, operations)
    assert (document, operations) == before


@given(JSON, st.data())
def test_what_was_put_somewhere_is_found_there(document, data):
    path = data.draw(st.sampled_from(sorted(place for place in pointers(document) if not place.endswith("/-"))))
    value = data.draw(JSON)
    put = {"op": "replace", "path": path, "value": value}
    test = {"op": "test", "path": path, "value": value}
    assert apply_json_patch(document, [put, test]) == apply_json_patch(document, [put])


@given(OBJECTS, KEYS, JSON)
def test_removing_what_was_added_gives_the_document_back(document, key, value):
    path = "/" + written(f"{key}, new")
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
def test_a_merge_patch_does_what_rfc_7386_says(document, patch, result):
    before = deepcopy((document, patch))
    assert apply_merge_patch(document, patch) == result
    assert (document, patch) == before


def test_what_a_merge_patch_does_not_name_is_shared():
    document = {"metadata": {"labels": {}}, "spec": {"template": {}, "replicas": 1}}
    result = apply_merge_patch(document, {"spec": {"replicas": 2}})
    assert result["metadata"] is document["metadata"]
    assert result["spec"]["template"] is document["spec"]["template"]


@given(OBJECTS, OBJECTS)
def test_the_merge_patch_between_two_objects_turns_one_into_the_other(old, wanted):
    before = deepcopy((old, wanted))
    assert apply_merge_patch(old, merge_patch(old, wanted)) == wanted
    assert (old, wanted) == before


@given(OBJECTS)
def test_there_is_nothing_to_patch_between_equals(document):
    assert merge_patch(document, deepcopy(document)) == {}


@given(OBJECTS, OBJECTS)
def test_every_field_of_a_merge_patch_is_needed(old, wanted):
    patch = merge_patch(old, wanted)
    for key in patch:
        assert apply_merge_patch(old, {other: value for other, value in patch.items() if other != key}) != wanted


@pytest.mark.parametrize(
    ("old", "wanted", "patch"),
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
def test_a_merge_patch_is_the_smallest(old, wanted, patch):
    assert merge_patch(old, wanted) == patch


# -- the merge patch of the fields that are ours


@pytest.mark.parametrize(
    ("cached", "wanted", "patch"),
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
def test_an_owned_patch_says_what_differs_in_the_fields_we_name(cached, wanted, patch):
    before = deepcopy((cached, wanted))
    assert owned_patch(cached, wanted) == patch
    assert (cached, wanted) == before


def nones_below(document):
    return isinstance(document, dict) and any(value is None or nones_below(value) for value in document.values())


OWNED = st.dictionaries(KEYS, documents(SCALARS | st.none()), max_size=4)


@given(OBJECTS, OWNED)
def test_an_owned_patch_leaves_nothing_to_patch(cached, wanted):
    assert owned_patch(apply_merge_patch(cached, owned_patch(cached, wanted)), wanted) == {}


@given(OBJECTS, OBJECTS)
def test_an_owned_patch_deletes_nothing_that_it_was_not_told_to(cached, wanted):
    assert not nones_below(owned_patch(cached, wanted))
