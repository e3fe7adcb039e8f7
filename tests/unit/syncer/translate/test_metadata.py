"""Metadata of what is ours below: who owns it, what travels, and the note of what we set last."""

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


def a_binding(name: str = "east") -> Binding:
    spec = {"clusterID": "east", "mountNamespace": "leased", "secretRef": {"name": "s", "namespace": "t"}}
    return binding_of({"metadata": {"name": name, "uid": "5e1f"}, "spec": spec}, "a-virtual-cluster")


def an_object(labels: Object | None = None, annotations: Object | None = None, **metadata: Any) -> Object:
    return {"metadata": {"name": "n", "namespace": "ns", "labels": labels, "annotations": annotations, **metadata}}


def an_owner(kind: str, name: str, *, controller: bool = True) -> Object:
    return {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "u", "controller": controller}


KEYS = st.sampled_from(
    ["app", "example.com/a", "tapestry.io/managed-by", "tapestry.io/new", "kubernetes.io/config.mirror"]
)
PAIRS = st.dictionaries(KEYS, st.text(max_size=3))


@given(PAIRS)
def test_a_tenant_cannot_say_whose_an_object_is(labels: dict[str, str]) -> None:
    binding = a_binding()
    made = twin_labels(an_object(labels), binding)
    assert binding.owns({"metadata": {"labels": made}})
    assert {key: value for key, value in made.items() if key.startswith(keys.PREFIX)} == twin_labels(
        an_object(), binding
    )


# -- workloads


@pytest.mark.parametrize(
    ("owners", "labels", "kind", "name"),
    [
        ([an_owner("ReplicaSet", "web-5b7c9")], {"pod-template-hash": "5b7c9"}, "Deployment", "web"),
        ([an_owner("ReplicaSet", "web")], {}, "ReplicaSet", "web"),
        ([an_owner("ReplicaSet", "web")], {"pod-template-hash": ""}, "ReplicaSet", "web"),
        ([an_owner("ReplicaSet", "web-other")], {"pod-template-hash": "5b7c9"}, "ReplicaSet", "web-other"),
        ([an_owner("Job", "run-1")], {}, "Job", "run-1"),
        ([an_owner("ConfigMap", "a", controller=False), an_owner("StatefulSet", "db")], {}, "StatefulSet", "db"),
    ],
)
def test_a_pod_belongs_to_the_workload_that_controls_it(
    owners: list[Object], labels: Object, kind: str, name: str
) -> None:
    pod = an_object(labels, ownerReferences=owners)
    assert workload_metadata(pod) == {keys.WORKLOAD_TYPE: kind, keys.WORKLOAD_NAME: name}


@pytest.mark.parametrize("owners", [None, [], [an_owner("ConfigMap", "a", controller=False)]])
def test_a_pod_that_nobody_controls_belongs_to_no_workload(owners: list[Object] | None) -> None:
    assert workload_metadata(an_object(ownerReferences=owners)) == {}


@given(st.text())
def test_every_value_makes_a_label_and_what_is_lost_is_there_in_full(value: str) -> None:
    made = truncated_labels({"k": value})["k"]
    assert label_value_error(made) is None
    assert full_annotations({"k": value}) == ({} if made == value else {"k": value})


# -- notes


def test_an_object_is_as_applied_until_something_else_is_wanted() -> None:
    made = with_applied_metadata(an_object({"app": "web"}, {"a": "1"}), {"image": "1"})
    assert is_applied(made, with_applied_metadata(an_object({"app": "web"}, {"a": "1"}), {"image": "1"}))
    assert not is_applied(made, with_applied_metadata(an_object({"app": "web"}, {"a": "1"}), {"image": "2"}))
    assert not is_applied(made, with_applied_metadata(an_object({"app": "web"}, {"a": "2"}), {"image": "1"}))
    assert not is_applied(made, with_applied_metadata(an_object({"app": "shop"}, {"a": "1"}), {"image": "1"}))
    assert not is_applied(an_object(), made)


@pytest.mark.parametrize("note", ["", "{", "[]", '{"labels": 1}', '{"digest": null}', "\x00", '"' * 1000])
def test_a_broken_note_counts_as_none(note: str) -> None:
    assert applied_metadata(an_object(annotations={keys.EXPECTED_METADATA: note})) == AppliedMetadata()


TEXTS = st.dictionaries(st.sampled_from(["a", "b", "c", keys.WORKLOAD_NAME]), st.sampled_from(["1", "2"]))


@given(first=TEXTS, second=TEXTS, added=st.dictionaries(st.sampled_from(["theirs", "a", "b"]), st.just("below")))
def test_what_we_set_goes_with_us_and_what_was_added_below_stays(first: Object, second: Object, added: Object) -> None:
    existing = with_applied_metadata(an_object(first, first), None)
    existing = an_object({**added, **labels_of(existing)}, {**added, **annotations_of(existing)})
    wanted = with_applied_metadata(an_object(second, second), None)
    patch = metadata_patch(existing, wanted)
    for field in ("labels", "annotations"):
        merged = {**existing["metadata"][field], **patch[field]}
        after = {key: value for key, value in merged.items() if value is not None and key != keys.EXPECTED_METADATA}
        assert after == {**{key: value for key, value in added.items() if key not in first}, **second}


def test_our_own_keys_are_set_each_time() -> None:
    wanted = with_applied_metadata(an_object(twin_labels(an_object(), a_binding())), None)
    stripped = an_object({}, {})
    assert metadata_patch(stripped, wanted)["labels"] == labels_of(wanted)


# -- whose twin


def test_a_twin_tells_of_what_pod_it_is() -> None:
    told = {keys.VIRTUAL_POD_NAMESPACE: "team-a", keys.VIRTUAL_POD_NAME: "web", keys.VIRTUAL_POD_UID: "u"}
    assert virtual_key(an_object(annotations=told)) == ["team-a/web"]
    assert virtual_uid(an_object(annotations=told)) == "u"


@pytest.mark.parametrize(
    "told", [None, {}, {keys.VIRTUAL_POD_NAME: "web"}, {keys.VIRTUAL_POD_NAMESPACE: "", keys.VIRTUAL_POD_NAME: "web"}]
)
def test_one_that_does_not_tell_is_of_none(told: Object | None) -> None:
    assert virtual_key(an_object(annotations=told)) == []
    assert virtual_uid(an_object(annotations=told)) == ""
