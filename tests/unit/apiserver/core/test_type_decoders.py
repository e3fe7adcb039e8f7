"""Objects of built-in kinds have the same shape as in Go."""

import pytest

from tapestry.kube.objects import Object

from ..conftest import ServerClient

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
async def test_new_object_has_initial_status(call: ServerClient, path: str, spec: Object, status: Object) -> None:
    created = await call.made(path, {"metadata": {"name": "x"}, "spec": spec, "status": {"of": "its writer"}})
    assert created["status"] == status


async def test_non_pointer_struct_is_always_present(call: ServerClient) -> None:
    created = await call.made(
        "/api/v1/namespaces/default/podtemplates", {"metadata": {"name": "x"}, "template": {"spec": POD}}
    )
    assert created["template"]["metadata"] == {}
    node = await call.made("/api/v1/nodes", {"metadata": {"name": "x"}})
    assert node["spec"] == {}
    assert node["status"]["daemonEndpoints"]["kubeletEndpoint"] == {}


async def test_daemonset_annotation_counts_template_changes(call: ServerClient) -> None:
    def count(obj: Object) -> str:
        result: str = obj["metadata"]["annotations"]["deprecated.daemonset.template.generation"]
        return result

    path = f"{APPS}/daemonsets"
    made = await call.made(path, {"metadata": {"name": "x"}, "spec": SELECTED})
    assert count(made) == "1"
    _, same = await call("PUT", f"{path}/x", {**made, "spec": {**made["spec"], "minReadySeconds": 5}})
    assert count(same) == "1"
    template = {**LABELLED, "spec": {"containers": [{"name": "c", "image": "nginx:2"}]}}
    _, other = await call("PUT", f"{path}/x", {**same, "spec": {**same["spec"], "template": template}})
    assert count(other) == "2"


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"),
        ("2026-01-02T03:04:05.999999999Z", "2026-01-02T03:04:05Z"),
        ("2026-01-02T03:04:05+02:00", "2026-01-02T01:04:05Z"),
        ("2026-01-02T03:04:05", None),
        ("yesterday", None),
    ],
)
async def test_times_are_stored_in_go_format(call: ServerClient, sent: str, stored: str | None) -> None:
    body = {"metadata": {"name": "x"}, "involvedObject": {"namespace": "default"}, "firstTimestamp": sent}
    status, result = await call("POST", "/api/v1/namespaces/default/events", body)
    assert (status, result.get("firstTimestamp")) == (201 if stored else 400, stored)


async def test_micro_times_have_microseconds(call: ServerClient) -> None:
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    created = await call.made(path, {"metadata": {"name": "x"}, "spec": {"renewTime": "2026-01-02T03:04:05.5Z"}})
    assert created["spec"]["renewTime"] == "2026-01-02T03:04:05.500000Z"


@pytest.mark.parametrize(
    ("path", "spec", "is_accepted"),
    [
        (f"{APPS}/deployments", SELECTED, True),
        ("/apis/storage.k8s.io/v1/volumeattachments", VOLUME, False),
    ],
)
async def test_metadata_in_status_write_depends_on_kind(
    call: ServerClient, path: str, spec: Object, is_accepted: bool
) -> None:
    await call.made(path, {"metadata": {"name": "x"}, "spec": spec})
    patch = {"metadata": {"annotations": {"a": "b"}}}
    status, result = await call("PATCH", f"{path}/x/status", patch, kind="application/merge-patch+json")
    assert (status, "annotations" in result["metadata"]) == (200, is_accepted)


MAPS, ROLES = "/api/v1/namespaces/default/configmaps", "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles"


async def test_empty_lists_and_maps_are_not_stored(call: ServerClient) -> None:
    metadata = {"name": "x", "labels": {}, "finalizers": []}
    created = await call.made(MAPS, {"metadata": metadata, "data": {}, "binaryData": {"k": "AA=="}})
    assert not {"labels", "finalizers"} & created["metadata"].keys()
    assert "data" not in created
    _, emptied = await call("PATCH", f"{MAPS}/x", {"binaryData": {"k": None}}, kind="application/merge-patch+json")
    assert "binaryData" not in emptied


async def test_empty_list_instead_of_map_is_rejected(call: ServerClient) -> None:
    status, result = await call("POST", MAPS, {"metadata": {"name": "x"}, "data": []})
    assert (status, "cannot unmarshal array" in result["message"]) == (400, True)


@pytest.mark.parametrize(("replicas", "is_created"), [(2**31 - 1, True), (2.0, True), (2**31, False), (-1e30, False)])
async def test_integer_must_fit_its_field(call: ServerClient, replicas: float, is_created: bool) -> None:
    spec = {**SELECTED, "replicas": replicas}
    status, result = await call("POST", f"{APPS}/deployments", {"metadata": {"name": "x"}, "spec": spec})
    assert (status == 201) == is_created
    if is_created:
        assert result["spec"]["replicas"] == replicas
    else:
        problem = f"json: cannot unmarshal number {replicas:.0f} into Go struct field spec.replicas of type int32"
        assert (status, problem in result["message"]) == (400, True)


@pytest.mark.parametrize("fields", [{}, {"rules": []}, {"rules": None}])
async def test_empty_rules_of_a_role_are_null(call: ServerClient, fields: Object) -> None:
    created = await call.made(ROLES, {"metadata": {"name": "x"}, **fields})
    assert created["rules"] is None
    rule = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}
    _, some = await call("PATCH", f"{ROLES}/x", {"rules": [rule]}, kind="application/merge-patch+json")
    assert some["rules"] == [rule]
    _, none = await call("PATCH", f"{ROLES}/x", {"rules": None}, kind="application/merge-patch+json")
    assert none["rules"] is None
