"""Objects of built-in kinds have the shape that Go gives them, said or not."""

import pytest

from tapestry.kube.objects import Object

from .conftest import Hand

APPS = "/apis/apps/v1/namespaces/default"
POD: Object = {"containers": [{"name": "c", "image": "nginx"}]}
LABELLED = {"metadata": {"labels": {"a": "b"}}, "spec": POD}
SELECTED = {"selector": {"matchLabels": {"a": "b"}}, "template": LABELLED}


CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
VOLUME = {"source": {"persistentVolumeName": "p"}, "attacher": "a", "nodeName": "n"}


@pytest.mark.parametrize(
    ("path", "spec", "status"),
    [
        (f"{APPS}/deployments", SELECTED, {}),
        (f"{APPS}/replicasets", SELECTED, {"replicas": 0}),
        ("/api/v1/namespaces/default/persistentvolumeclaims", CLAIM, {"phase": "Pending"}),
        ("/apis/storage.k8s.io/v1/volumeattachments", VOLUME, {"attached": False}),
    ],
)
async def test_a_new_object_has_a_status_from_the_start(call: Hand, path: str, spec: Object, status: Object) -> None:
    made = await call.made(path, {"metadata": {"name": "x"}, "spec": spec, "status": {"of": "its writer"}})
    assert made["status"] == status


async def test_a_struct_that_is_no_pointer_is_there_though_nobody_said_anything(call: Hand) -> None:
    made = await call.made(
        "/api/v1/namespaces/default/podtemplates", {"metadata": {"name": "x"}, "template": {"spec": POD}}
    )
    assert made["template"]["metadata"] == {}
    node = await call.made("/api/v1/nodes", {"metadata": {"name": "x"}})
    assert node["spec"] == {}
    assert node["status"]["daemonEndpoints"]["kubeletEndpoint"] == {}


async def test_an_annotation_counts_the_changes_of_what_the_pods_of_a_daemon_set_look_like(call: Hand) -> None:
    def count(obj: Object) -> str:
        found: str = obj["metadata"]["annotations"]["deprecated.daemonset.template.generation"]
        return found

    path = f"{APPS}/daemonsets"
    made = await call.made(path, {"metadata": {"name": "x"}, "spec": SELECTED})
    assert count(made) == "1"
    _, same = await call("PUT", f"{path}/x", {**made, "spec": {**made["spec"], "minReadySeconds": 5}})
    assert count(same) == "1"
    template = {**LABELLED, "spec": {"containers": [{"name": "c", "image": "nginx:2"}]}}
    _, other = await call("PUT", f"{path}/x", {**same, "spec": {**same["spec"], "template": template}})
    assert count(other) == "2"


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"),
        ("2026-01-02T03:04:05.999999999Z", "2026-01-02T03:04:05Z"),
        ("2026-01-02T03:04:05+02:00", "2026-01-02T01:04:05Z"),
        ("2026-01-02T03:04:05", None),
        ("yesterday", None),
    ],
)
async def test_times_are_kept_as_go_writes_them(call: Hand, sent: str, kept: str | None) -> None:
    body = {"metadata": {"name": "x"}, "involvedObject": {"namespace": "default"}, "firstTimestamp": sent}
    status, found = await call("POST", "/api/v1/namespaces/default/events", body)
    assert (status, found.get("firstTimestamp")) == (201 if kept else 400, kept)


async def test_moments_are_kept_to_the_microsecond(call: Hand) -> None:
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    made = await call.made(path, {"metadata": {"name": "x"}, "spec": {"renewTime": "2026-01-02T03:04:05.5Z"}})
    assert made["spec"]["renewTime"] == "2026-01-02T03:04:05.500000Z"


@pytest.mark.parametrize(
    ("path", "spec", "is_taken"),
    [
        (f"{APPS}/deployments", SELECTED, True),
        ("/apis/storage.k8s.io/v1/volumeattachments", VOLUME, False),
    ],
)
async def test_some_kinds_take_metadata_with_a_status_and_others_do_not(
    call: Hand, path: str, spec: Object, is_taken: bool
) -> None:
    await call.made(path, {"metadata": {"name": "x"}, "spec": spec})
    patch = {"metadata": {"annotations": {"a": "b"}}}
    status, found = await call("PATCH", f"{path}/x/status", patch, kind="application/merge-patch+json")
    assert (status, "annotations" in found["metadata"]) == (200, is_taken)


MAPS, ROLES = "/api/v1/namespaces/default/configmaps", "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles"


async def test_lists_and_maps_without_anything_in_them_are_not_kept(call: Hand) -> None:
    metadata = {"name": "x", "labels": {}, "finalizers": []}
    made = await call.made(MAPS, {"metadata": metadata, "data": {}, "binaryData": {"k": "AA=="}})
    assert not {"labels", "finalizers"} & made["metadata"].keys()
    assert "data" not in made
    _, emptied = await call("PATCH", f"{MAPS}/x", {"binaryData": {"k": None}}, kind="application/merge-patch+json")
    assert "binaryData" not in emptied


async def test_a_list_is_refused_where_a_map_belongs_though_nothing_is_in_it(call: Hand) -> None:
    status, found = await call("POST", MAPS, {"metadata": {"name": "x"}, "data": []})
    assert (status, "cannot unmarshal array" in found["message"]) == (400, True)


@pytest.mark.parametrize(("replicas", "is_made"), [(2**31 - 1, True), (2.0, True), (2**31, False), (-1e30, False)])
async def test_a_number_fits_into_the_bits_of_its_field(call: Hand, replicas: float, is_made: bool) -> None:
    spec = {**SELECTED, "replicas": replicas}
    status, found = await call("POST", f"{APPS}/deployments", {"metadata": {"name": "x"}, "spec": spec})
    assert (status == 201) == is_made
    if is_made:
        assert found["spec"]["replicas"] == replicas
    else:
        problem = f"json: cannot unmarshal number {replicas:.0f} into Go struct field spec.replicas of type int32"
        assert (status, problem in found["message"]) == (400, True)


@pytest.mark.parametrize("given", [{}, {"rules": []}, {"rules": None}])
async def test_the_rules_of_a_role_are_null_where_there_are_none(call: Hand, given: Object) -> None:
    made = await call.made(ROLES, {"metadata": {"name": "x"}, **given})
    assert made["rules"] is None
    rule = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}
    _, some = await call("PATCH", f"{ROLES}/x", {"rules": [rule]}, kind="application/merge-patch+json")
    assert some["rules"] == [rule]
    _, none = await call("PATCH", f"{ROLES}/x", {"rules": None}, kind="application/merge-patch+json")
    assert none["rules"] is None
