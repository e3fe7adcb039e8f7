from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.objects import (
    annotations_of,
    controller_of,
    is_deleting,
    is_owned_by,
    key_of,
    labels_of,
    name_of,
    namespace_of,
    object_named,
    object_reference,
    owned_object,
    owner_reference,
    split_key,
    uid_from_bits,
    uid_of,
    value_at,
    version_of,
    with_type_meta,
    with_value,
    without_field,
)
from tapestry.kube.resources import DEPLOYMENTS, NODES, PODS

Object = dict[str, Any]

words = st.text("abc", min_size=1, max_size=2)
trees = st.recursive(st.integers() | st.none(), lambda inner: st.dictionaries(words, inner, max_size=3), max_leaves=12)
objects = st.dictionaries(words, trees, max_size=3)
paths = st.lists(words, min_size=1, max_size=4).map(tuple)


def a_pod(name: str = "web", **metadata: Any) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", **metadata}}


def test_the_parts_of_metadata_are_read() -> None:
    pod = a_pod(uid="u1", resourceVersion="7", labels={"a": "b"}, annotations={"c": "d"})
    assert (name_of(pod), namespace_of(pod), uid_of(pod), version_of(pod)) == ("web", "default", "u1", "7")
    assert (labels_of(pod), annotations_of(pod)) == ({"a": "b"}, {"c": "d"})


@pytest.mark.parametrize("metadata", [{}, {"labels": None, "annotations": None, "namespace": ""}])
def test_what_metadata_lacks_is_empty(metadata: Object) -> None:
    bare = {"metadata": {"name": "n", **metadata}}
    assert (namespace_of(bare), uid_of(bare), version_of(bare)) == (None, "", "")
    assert (labels_of(bare), annotations_of(bare)) == ({}, {})


@given(bits=st.integers(0, 2**128 - 1))
def test_a_uid_is_what_the_library_makes_of_the_same_bits(bits: int) -> None:
    assert uid_from_bits(bits) == str(UUID(int=bits, version=4))


def test_an_object_with_a_deletion_timestamp_is_deleting() -> None:
    assert is_deleting(a_pod(deletionTimestamp="2024-01-01T00:00:00Z"))
    assert not is_deleting(a_pod(deletionTimestamp=None))
    assert not is_deleting(a_pod())


@pytest.mark.parametrize(("namespace", "name", "key"), [("default", "web", "default/web"), (None, "n1", "n1")])
def test_a_key_names_an_object_and_is_split_again(namespace: str | None, name: str, key: str) -> None:
    assert key_of(object_named(name, namespace)) == key
    assert split_key(key) == (namespace, name)


def test_a_named_object_of_the_cluster_has_no_namespace() -> None:
    assert object_named("n1") == {"metadata": {"name": "n1"}}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("a", "b"), 1),
        (("list", 1), "y"),
        (("list", -1), "y"),
        (("list", -2), "x"),
        (("list", 2), "default"),
        (("list", "x"), "default"),
        (("list", -3), "default"),
        (("null",), "default"),
        (("null", "x"), "default"),
        (("a", "b", "c"), "default"),
        (("a", "x"), "default"),
        (("zero",), 0),
    ],
)
def test_a_value_is_found_at_its_path_or_the_default_stands_for_it(path: tuple[str | int, ...], value: Any) -> None:
    obj = {"a": {"b": 1}, "list": ["x", "y"], "null": None, "zero": 0}
    assert value_at(obj, *path, default="default") == value


def test_a_value_is_set_in_a_copy_that_shares_the_rest() -> None:
    obj = {"spec": {"a": 1, "kept": {}}, "status": {}}
    changed = with_value(obj, ("spec", "a"), 2)
    assert changed == {"spec": {"a": 2, "kept": {}}, "status": {}}
    assert obj == {"spec": {"a": 1, "kept": {}}, "status": {}}
    assert changed["status"] is obj["status"]
    assert changed["spec"]["kept"] is obj["spec"]["kept"]


@pytest.mark.parametrize("obj", [{}, {"a": None}, {"a": {"b": None}}])
def test_the_way_to_a_value_is_built_where_it_is_missing(obj: Object) -> None:
    assert with_value(obj, ("a", "b", "c"), 1) == {"a": {"b": {"c": 1}}}


def test_a_field_is_removed_from_a_copy_that_shares_the_rest() -> None:
    obj = {"metadata": {"name": "x", "managedFields": []}, "spec": {}}
    smaller = without_field(obj, "metadata", "managedFields")
    assert smaller == {"metadata": {"name": "x"}, "spec": {}}
    assert "managedFields" in obj["metadata"]
    assert smaller["spec"] is obj["spec"]


@pytest.mark.parametrize("path", [("x",), ("a", "x"), ("a", "b", "c"), ("null", "x")])
def test_removing_what_is_not_there_gives_back_the_same_object(path: tuple[str, ...]) -> None:
    obj = {"a": {"b": 1}, "null": None}
    assert without_field(obj, *path) is obj


@given(objects, paths)
def test_a_removed_field_is_gone_and_nothing_else_changed(obj: Object, path: tuple[str, ...]) -> None:
    assert value_at(without_field(obj, *path), *path) is None
    assert without_field(without_field(obj, *path), *path) == without_field(obj, *path)
    assert without_field(with_value(without_field(obj, path[0]), path, 1), path[0]) == without_field(obj, path[0])


def test_a_reference_names_what_is_known_of_an_object() -> None:
    assert object_reference(a_pod(uid="u1")) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "web",
        "uid": "u1",
    }


def test_an_owner_reference_names_the_owner_by_uid() -> None:
    owner = a_pod(uid="u1")
    plain = {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u1"}
    assert owner_reference(owner) == {**plain, "controller": True, "blockOwnerDeletion": True}
    assert owner_reference(owner, controller=False, block_deletion=False) == plain


def test_an_object_that_was_never_created_cannot_own_another() -> None:
    with pytest.raises(
        ValueError, match=r"^metadata\.uid: default/web has none; only a created object can own another$"
    ):
        owner_reference(a_pod())


def test_an_owned_object_stands_beside_its_owner_under_its_name() -> None:
    owner = a_pod(uid="u1")
    assert owned_object(owner, DEPLOYMENTS, {"spec": {"replicas": 1}}) == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default", "ownerReferences": [owner_reference(owner)]},
        "spec": {"replicas": 1},
    }
    assert name_of(owned_object(owner, DEPLOYMENTS, {}, name="other")) == "other"


def test_an_owned_object_has_a_namespace_only_where_its_kind_and_its_owner_do() -> None:
    of_the_cluster = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "u1"}}
    assert "namespace" not in owned_object(a_pod(uid="u1"), NODES, {})["metadata"]
    assert "namespace" not in owned_object(of_the_cluster, PODS, {})["metadata"]


def test_the_controller_is_the_owner_that_says_so() -> None:
    helper, controller = owner_reference(a_pod(uid="u1"), controller=False), owner_reference(a_pod(uid="u2"))
    assert controller_of(a_pod(ownerReferences=[helper, controller])) is controller
    assert controller_of(a_pod(ownerReferences=[helper])) is None
    assert controller_of(a_pod(ownerReferences=None)) is None


def test_a_namesake_of_the_owner_does_not_own() -> None:
    owner = a_pod(uid="u1")
    child = a_pod("child", ownerReferences=[owner_reference(owner)])
    assert is_owned_by(child, owner)
    assert not is_owned_by(child, a_pod(uid="u2"))
    assert not is_owned_by(child, a_pod())
    assert not is_owned_by(a_pod("child", ownerReferences=[{"name": "web", "uid": ""}]), a_pod())


def test_an_item_of_a_list_gets_its_kind() -> None:
    assert with_type_meta(DEPLOYMENTS, {"metadata": {}}) == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {},
    }


@pytest.mark.parametrize(
    "wrong", [{"kind": ""}, {"apiVersion": None}, {"apiVersion": "apps/v1beta1", "kind": "Deployment"}]
)
def test_an_item_of_another_or_an_empty_kind_gets_the_right_one(wrong: Object) -> None:
    assert with_type_meta(DEPLOYMENTS, wrong) == {"apiVersion": "apps/v1", "kind": "Deployment"}


def test_an_object_of_the_right_kind_is_itself() -> None:
    pod = a_pod()
    assert with_type_meta(PODS, pod) is pod
