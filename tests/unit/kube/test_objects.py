from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.objects import (
    annotations_of,
    controller_of,
    digest_of,
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


def new_pod(name: str = "web", **metadata: Any) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", **metadata}}


def test_accessors_read_metadata() -> None:
    pod = new_pod(uid="u1", resourceVersion="7", labels={"a": "b"}, annotations={"c": "d"})
    assert (name_of(pod), namespace_of(pod), uid_of(pod), version_of(pod)) == ("web", "default", "u1", "7")
    assert (labels_of(pod), annotations_of(pod)) == ({"a": "b"}, {"c": "d"})


@pytest.mark.parametrize("metadata", [{}, {"labels": None, "annotations": None, "namespace": ""}])
def test_missing_metadata_is_empty(metadata: Object) -> None:
    obj = {"metadata": {"name": "n", **metadata}}
    assert (namespace_of(obj), uid_of(obj), version_of(obj)) == (None, "", "")
    assert (labels_of(obj), annotations_of(obj)) == ({}, {})


@given(bits=st.integers(0, 2**128 - 1))
def test_uid_from_bits_equals_uuid_library(bits: int) -> None:
    assert uid_from_bits(bits) == str(UUID(int=bits, version=4))


def test_object_with_deletion_timestamp_is_deleting() -> None:
    assert is_deleting(new_pod(deletionTimestamp="2024-01-01T00:00:00Z"))
    assert not is_deleting(new_pod(deletionTimestamp=None))
    assert not is_deleting(new_pod())


@pytest.mark.parametrize(("namespace", "name", "key"), [("default", "web", "default/web"), (None, "n1", "n1")])
def test_key_is_built_and_split(namespace: str | None, name: str, key: str) -> None:
    assert key_of(object_named(name, namespace)) == key
    assert split_key(key) == (namespace, name)


def test_cluster_scoped_named_object_has_no_namespace() -> None:
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
def test_value_at_returns_value_or_default(path: tuple[str | int, ...], value: Any) -> None:
    obj = {"a": {"b": 1}, "list": ["x", "y"], "null": None, "zero": 0}
    assert value_at(obj, *path, default="default") == value


def test_with_value_copies_only_the_path() -> None:
    obj = {"spec": {"a": 1, "kept": {}}, "status": {}}
    changed = with_value(obj, ("spec", "a"), 2)
    assert changed == {"spec": {"a": 2, "kept": {}}, "status": {}}
    assert obj == {"spec": {"a": 1, "kept": {}}, "status": {}}
    assert changed["status"] is obj["status"]
    assert changed["spec"]["kept"] is obj["spec"]["kept"]


@pytest.mark.parametrize("obj", [{}, {"a": None}, {"a": {"b": None}}])
def test_with_value_creates_missing_parents(obj: Object) -> None:
    assert with_value(obj, ("a", "b", "c"), 1) == {"a": {"b": {"c": 1}}}


def test_without_field_copies_only_the_path() -> None:
    obj = {"metadata": {"name": "x", "managedFields": []}, "spec": {}}
    reduced = without_field(obj, "metadata", "managedFields")
    assert reduced == {"metadata": {"name": "x"}, "spec": {}}
    assert "managedFields" in obj["metadata"]
    assert reduced["spec"] is obj["spec"]


@pytest.mark.parametrize("path", [("x",), ("a", "x"), ("a", "b", "c"), ("null", "x")])
def test_removing_missing_field_returns_same_object(path: tuple[str, ...]) -> None:
    obj = {"a": {"b": 1}, "null": None}
    assert without_field(obj, *path) is obj


@given(objects, paths)
def test_without_field_removes_only_that_field(obj: Object, path: tuple[str, ...]) -> None:
    assert value_at(without_field(obj, *path), *path) is None
    assert without_field(without_field(obj, *path), *path) == without_field(obj, *path)
    assert without_field(with_value(without_field(obj, path[0]), path, 1), path[0]) == without_field(obj, path[0])


def test_object_reference_omits_unknown_fields() -> None:
    assert object_reference(new_pod(uid="u1")) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "web",
        "uid": "u1",
    }


def test_owner_reference_contains_uid() -> None:
    owner = new_pod(uid="u1")
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u1"}
    assert owner_reference(owner) == {**reference, "controller": True, "blockOwnerDeletion": True}
    assert owner_reference(owner, controller=False, block_deletion=False) == reference


def test_owner_without_uid_is_rejected() -> None:
    with pytest.raises(
        ValueError, match=r"^metadata\.uid: default/web has none; only a created object can own another$"
    ):
        owner_reference(new_pod())


def test_owned_object_gets_name_and_namespace() -> None:
    owner = new_pod(uid="u1")
    assert owned_object(owner, DEPLOYMENTS, {"spec": {"replicas": 1}}) == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default", "ownerReferences": [owner_reference(owner)]},
        "spec": {"replicas": 1},
    }
    assert name_of(owned_object(owner, DEPLOYMENTS, {}, name="other")) == "other"


def test_owned_object_may_have_no_namespace() -> None:
    of_the_cluster = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "u1"}}
    assert "namespace" not in owned_object(new_pod(uid="u1"), NODES, {})["metadata"]
    assert "namespace" not in owned_object(of_the_cluster, PODS, {})["metadata"]


def test_controller_is_the_controlling_owner() -> None:
    helper, controller = owner_reference(new_pod(uid="u1"), controller=False), owner_reference(new_pod(uid="u2"))
    assert controller_of(new_pod(ownerReferences=[helper, controller])) is controller
    assert controller_of(new_pod(ownerReferences=[helper])) is None
    assert controller_of(new_pod(ownerReferences=None)) is None


def test_ownership_is_by_uid_not_name() -> None:
    owner = new_pod(uid="u1")
    child = new_pod("child", ownerReferences=[owner_reference(owner)])
    assert is_owned_by(child, owner)
    assert not is_owned_by(child, new_pod(uid="u2"))
    assert not is_owned_by(child, new_pod())
    assert not is_owned_by(new_pod("child", ownerReferences=[{"name": "web", "uid": ""}]), new_pod())


def test_list_item_gets_type_meta() -> None:
    assert with_type_meta(DEPLOYMENTS, {"metadata": {}}) == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {},
    }


@pytest.mark.parametrize(
    "wrong", [{"kind": ""}, {"apiVersion": None}, {"apiVersion": "apps/v1beta1", "kind": "Deployment"}]
)
def test_wrong_type_meta_is_replaced(wrong: Object) -> None:
    assert with_type_meta(DEPLOYMENTS, wrong) == {"apiVersion": "apps/v1", "kind": "Deployment"}


def test_correct_type_meta_returns_same_object() -> None:
    pod = new_pod()
    assert with_type_meta(PODS, pod) is pod


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def reversed_keys(value: Any) -> Any:
    """Return the value with the keys of every object in reverse order."""
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return [reversed_keys(each) for each in value] if isinstance(value, list) else value


@given(JSON)
def test_digest_ignores_key_order(value: Any) -> None:
    assert digest_of(value) == digest_of(reversed_keys(value))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({}, []),
        ({"a": None}, {}),
        ([1, 2], [2, 1]),
        ("1", 1),
        (True, 1),
        ({"a": {"b": 1}}, {"a": {}, "b": 1}),
        (["ab"], ["a", "b"]),
        ("", None),
    ],
)
def test_different_values_have_different_digests(left: Any, right: Any) -> None:
    assert digest_of(left) != digest_of(right)


@given(JSON)
def test_digest_has_fixed_length(value: Any) -> None:
    assert len(digest_of(value)) == 20


def test_digest_is_stable_across_releases() -> None:
    """Digests are stored on objects. A different digest would rewrite every twin."""
    assert digest_of({"b": [1, None], "a": "ü"}) == "f154504104e0cf79bcae"
