"""Metadata of our physical objects: ownership, copied keys, and the record of what we set."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding, binding_of
from tapestry.kube.names import label_value_error
from tapestry.kube.objects import Object, annotations_of, labels_of
from tapestry.syncer.translate.metadata import (
    AppliedMetadata,
    applied_metadata,
    full_annotations,
    is_applied,
    metadata_patch,
    truncated_labels,
    twin_labels,
    virtual_key,
    virtual_uid,
    with_applied_metadata,
    workload_metadata,
)


def new_binding(name: str = "east") -> Binding:
    spec = {"clusterID": "east", "mountNamespace": "leased", "secretRef": {"name": "s", "namespace": "t"}}
    return binding_of({"metadata": {"name": name, "uid": "5e1f"}, "spec": spec}, "a-virtual-cluster")


def new_object(labels: Object | None = None, annotations: Object | None = None, **metadata: Any) -> Object:
    return {"metadata": {"name": "n", "namespace": "ns", "labels": labels, "annotations": annotations, **metadata}}


def new_owner(kind: str, name: str, *, controller: bool = True) -> Object:
    return {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "u", "controller": controller}


KEYS = st.sampled_from(
    ["app", "example.com/a", "tapestry.io/managed-by", "tapestry.io/new", "kubernetes.io/config.mirror"]
)
PAIRS = st.dictionaries(KEYS, st.text(max_size=3))


@given(PAIRS)
def test_tenant_cannot_change_ownership_labels(labels: dict[str, str]) -> None:
    binding = new_binding()
    created = twin_labels(new_object(labels), binding)
    assert binding.owns({"metadata": {"labels": created}})
    assert {key: value for key, value in created.items() if key.startswith(keys.PREFIX)} == twin_labels(
        new_object(), binding
    )


# -- workloads


@pytest.mark.parametrize(
    ("owners", "labels", "kind", "name"),
    [
        ([new_owner("ReplicaSet", "web-5b7c9")], {"pod-template-hash": "5b7c9"}, "Deployment", "web"),
        ([new_owner("ReplicaSet", "web")], {}, "ReplicaSet", "web"),
        ([new_owner("ReplicaSet", "web")], {"pod-template-hash": ""}, "ReplicaSet", "web"),
        ([new_owner("ReplicaSet", "web-other")], {"pod-template-hash": "5b7c9"}, "ReplicaSet", "web-other"),
        ([new_owner("Job", "run-1")], {}, "Job", "run-1"),
        ([new_owner("ConfigMap", "a", controller=False), new_owner("StatefulSet", "db")], {}, "StatefulSet", "db"),
    ],
)
def test_pod_belongs_to_its_controlling_workload(owners: list[Object], labels: Object, kind: str, name: str) -> None:
    pod = new_object(labels, ownerReferences=owners)
    assert workload_metadata(pod) == {keys.WORKLOAD_TYPE: kind, keys.WORKLOAD_NAME: name}


@pytest.mark.parametrize("owners", [None, [], [new_owner("ConfigMap", "a", controller=False)]])
def test_uncontrolled_pod_has_no_workload(owners: list[Object] | None) -> None:
    assert workload_metadata(new_object(ownerReferences=owners)) == {}


@given(st.text())
def test_every_value_has_label_and_full_annotation(value: str) -> None:
    created = truncated_labels({"k": value})["k"]
    assert label_value_error(created) is None
    assert full_annotations({"k": value}) == ({} if created == value else {"k": value})


# -- the record


def test_object_is_applied_until_wanted_changes() -> None:
    created = with_applied_metadata(new_object({"app": "web"}, {"a": "1"}), {"image": "1"})
    assert is_applied(created, with_applied_metadata(new_object({"app": "web"}, {"a": "1"}), {"image": "1"}))
    assert not is_applied(created, with_applied_metadata(new_object({"app": "web"}, {"a": "1"}), {"image": "2"}))
    assert not is_applied(created, with_applied_metadata(new_object({"app": "web"}, {"a": "2"}), {"image": "1"}))
    assert not is_applied(created, with_applied_metadata(new_object({"app": "shop"}, {"a": "1"}), {"image": "1"}))
    assert not is_applied(new_object(), created)


@pytest.mark.parametrize("note", ["", "{", "[]", '{"labels": 1}', '{"digest": null}', "\x00", '"' * 1000])
def test_unreadable_record_counts_as_empty(note: str) -> None:
    assert applied_metadata(new_object(annotations={keys.EXPECTED_METADATA: note})) == AppliedMetadata()


TEXTS = st.dictionaries(st.sampled_from(["a", "b", "c", keys.WORKLOAD_NAME]), st.sampled_from(["1", "2"]))


@given(first=TEXTS, second=TEXTS, added=st.dictionaries(st.sampled_from(["theirs", "a", "b"]), st.just("below")))
def test_unwanted_keys_are_removed_and_additions_stay(first: Object, second: Object, added: Object) -> None:
    existing = with_applied_metadata(new_object(first, first), None)
    existing = new_object({**added, **labels_of(existing)}, {**added, **annotations_of(existing)})
    wanted = with_applied_metadata(new_object(second, second), None)
    patch = metadata_patch(existing, wanted)
    for field in ("labels", "annotations"):
        merged = {**existing["metadata"][field], **patch[field]}
        after = {key: value for key, value in merged.items() if value is not None and key != keys.EXPECTED_METADATA}
        assert after == {**{key: value for key, value in added.items() if key not in first}, **second}


def test_own_keys_are_always_set() -> None:
    wanted = with_applied_metadata(new_object(twin_labels(new_object(), new_binding())), None)
    stripped = new_object({}, {})
    assert metadata_patch(stripped, wanted)["labels"] == labels_of(wanted)


# -- identity of twins


def test_twin_names_its_pod() -> None:
    reported = {keys.VIRTUAL_POD_NAMESPACE: "team-a", keys.VIRTUAL_POD_NAME: "web", keys.VIRTUAL_POD_UID: "u"}
    assert virtual_key(new_object(annotations=reported)) == ["team-a/web"]
    assert virtual_uid(new_object(annotations=reported)) == "u"


@pytest.mark.parametrize(
    "annotations",
    [None, {}, {keys.VIRTUAL_POD_NAME: "web"}, {keys.VIRTUAL_POD_NAMESPACE: "", keys.VIRTUAL_POD_NAME: "web"}],
)
def test_incomplete_identity_names_no_pod(annotations: Object | None) -> None:
    assert virtual_key(new_object(annotations=annotations)) == []
    assert virtual_uid(new_object(annotations=annotations)) == ""
