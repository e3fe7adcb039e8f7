"""Generic verbs of every resource, against an API server in this process."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tapestry.client.transport import Request
from tapestry.controller.testing import InProcessApi, specimen
from tapestry.controller.testing.clock import START
from tapestry.kube.objects import Object, key_of, version_of, with_value
from tapestry.kube.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    SERVICE_ACCOUNTS,
    Resource,
)

from ...api_requests import COLLECTION, MERGE, POD, answer, created, done, names, new_watch, rejection

OWNER = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "x"}
BINDINGS = Resource("cloud.tencent.com", "v1beta1", "ClusterBinding", "clusterbindings", namespaced=False)
RESOURCES = (PODS, NODES, NAMESPACES, CONFIGMAPS, DEPLOYMENTS, LEASES, SERVICE_ACCOUNTS, BINDINGS)
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


def new_api(**options: Any) -> InProcessApi:
    return InProcessApi(RESOURCES, now=lambda: START, **options)


def new_pod(name: str = "p", **fields: Any) -> Object:
    metadata = {"name": name, **fields.pop("metadata", {})}
    spec = {**specimen(PODS, name)["spec"], **fields.pop("spec", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, **fields}


def new_binding(**fields: Any) -> Object:
    return {"metadata": {"name": "b"}, "spec": {"clusterID": "c"}, **fields}


# -- paths


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/apis/nothing.example/v1/things",
        "/api/v1/secrets",
        "/api/v1/pods/p",
        "/api/v1/namespaces/default/nodes",
        "/api/v1/namespaces/default/pods/p/nothing",
        "/api/v1/namespaces/default/pods/p/status/more",
        "/api/v1/nodes/n/eviction",
    ],
)
async def test_unknown_path_is_not_found(path: str) -> None:
    status = await rejection(new_api(), "GET", path)
    assert (status["code"], status["reason"]) == (404, "NotFound")
    assert status["message"] == "the server could not find the requested resource"


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/api/v1/pods"), ("PUT", COLLECTION), ("POST", POD), ("PATCH", COLLECTION)],
)
async def test_unsupported_method_is_not_allowed(method: str, path: str) -> None:
    assert (await rejection(new_api(), method, path, new_pod()))["reason"] == "MethodNotAllowed"


async def test_path_distinguishes_namespace_from_its_content() -> None:
    api = new_api()
    await created(api, {"metadata": {"name": "default"}}, NAMESPACES)
    await created(api, new_pod())
    assert (await done(api, "GET", "/api/v1/namespaces/default"))["kind"] == "Namespace"
    assert (await done(api, "GET", "/api/v1/namespaces/default/status"))["kind"] == "Namespace"
    assert (await done(api, "GET", "/api/v1/namespaces/default/pods"))["kind"] == "PodList"


async def test_malformed_json_is_bad_request() -> None:
    response = await new_api().send(Request("POST", COLLECTION, {}, b"{"))
    assert response.status == 400
    assert b"couldn't get version/kind; Input data was truncated" in response.body


# -- create


async def test_created_object_has_server_owned_metadata() -> None:
    now = datetime(2025, 6, 1, 12, 30, 15, 999, tzinfo=UTC)
    api = InProcessApi([PODS], now=lambda: now)
    pod = await created(
        api, new_pod(metadata={"uid": "mine", "generation": 7, "deletionTimestamp": "2020-01-01T00:00:00Z"})
    )
    metadata = pod["metadata"]
    assert metadata["namespace"] == "default"
    assert metadata["creationTimestamp"] == "2025-06-01T12:30:15Z"
    assert metadata["generation"] == 1
    assert "deletionTimestamp" not in metadata
    assert metadata["uid"] not in ("", "mine")
    assert int(metadata["resourceVersion"]) > 0
    assert await done(api, "GET", POD) == pod


async def test_versions_grow_across_all_resources() -> None:
    api = new_api()
    versions = [
        int(version_of(await created(api, {"metadata": {"name": "x"}}, resource)))
        for resource in (CONFIGMAPS, NODES, LEASES, BINDINGS)
    ]
    assert versions == sorted(set(versions))


async def test_duplicate_name_already_exists() -> None:
    api = new_api()
    await created(api, new_pod())
    status = await rejection(api, "POST", COLLECTION, new_pod())
    assert (status["code"], status["reason"]) == (409, "AlreadyExists")
    assert status["message"] == 'pods "p" already exists'
    assert status["details"] == {"name": "p", "kind": "pods"}
    await done(api, "POST", PODS.path("elsewhere"), new_pod())


async def test_generated_names_differ_and_keep_prefix() -> None:
    api = new_api()
    pod = new_pod(metadata={"name": "", "generateName": "job-"})
    result = {(await created(api, pod))["metadata"]["name"] for _ in range(20)}
    assert len(result) == 20
    assert all(name.startswith("job-") and len(name) == 9 for name in result)


async def test_object_without_name_is_invalid() -> None:
    status = await rejection(new_api(), "POST", COLLECTION, {"metadata": {}})
    assert status["message"] == 'Pod "" is invalid: metadata.name: Required value: name or generateName is required'
    assert status["details"]["causes"][0]["field"] == "metadata.name"


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (new_pod(metadata={"namespace": "other"}), "the namespace of the provided object does not match"),
        (new_pod(kind="Node"), "the kind in the data (Node) does not match the expected kind (Pod)"),
        (new_pod(apiVersion="v2"), "the API version in the data (v2) does not match the expected API version (v1)"),
        ([], "(must be of type Pod): json: cannot unmarshal array into an object"),
        ("x", "(must be of type Pod): json: cannot unmarshal string into an object"),
        (None, "(must be of type Pod): the body is empty"),
        ({"metadata": "p"}, "cannot unmarshal string into Go struct field Pod.metadata of type v1.ObjectMeta"),
        ({"metadata": []}, "cannot unmarshal array into Go struct field Pod.metadata of type v1.ObjectMeta"),
    ],
)
async def test_object_for_another_path_is_bad_request(body: Any, complaint: str) -> None:
    status = await rejection(new_api(), "POST", COLLECTION, body)
    assert status["code"] == 400
    assert complaint in status["message"]


async def test_create_with_resource_version_is_rejected() -> None:
    status = await rejection(new_api(), "POST", COLLECTION, new_pod(metadata={"resourceVersion": "5"}))
    assert status["message"] == "resourceVersion should not be set on objects to be created"


async def test_status_is_dropped_on_create_except_nodes() -> None:
    api = new_api()
    status = {"phase": "Running"}
    assert (await created(api, new_pod(status=status)))["status"]["phase"] == "Pending"
    assert "status" not in await created(api, new_binding(status=status), BINDINGS)
    assert (await created(api, {"metadata": {"name": "n"}, "status": status}, NODES))["status"]["phase"] == "Running"


async def test_dry_run_changes_nothing() -> None:
    api = new_api()
    await created(api, new_pod("standing"))
    before = api.dump()
    path = f"{COLLECTION}/standing"
    assert (await done(api, "POST", COLLECTION, new_pod(), dryRun="All"))["metadata"]["uid"]
    patch = {"metadata": {"labels": {"a": "b"}}}
    assert (await done(api, "PATCH", path, patch, MERGE, dryRun="All"))["metadata"]["labels"] == {"a": "b"}
    assert (await done(api, "DELETE", path, dryRun="All"))["metadata"]["name"] == "standing"
    await done(api, "DELETE", path, {"dryRun": ["All"]})
    assert api.dump() == before


# -- replace


async def test_stale_replace_conflicts() -> None:
    api = new_api()
    old = await created(api, new_pod())
    await done(api, "PUT", POD, with_value(old, ("spec", "activeDeadlineSeconds"), 60))
    status = await rejection(api, "PUT", POD, with_value(old, ("spec", "activeDeadlineSeconds"), 50))
    assert (status["code"], status["reason"]) == (409, "Conflict")
    assert status["message"] == (
        'Operation cannot be fulfilled on pods "p": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )


async def test_replace_without_version_is_unconditional() -> None:
    api = new_api()
    await created(api, new_pod())
    result = await done(api, "PUT", POD, new_pod(spec={"activeDeadlineSeconds": 60}))
    assert result["spec"]["activeDeadlineSeconds"] == 60


@pytest.mark.parametrize(
    ("kind", "patch", "words"),
    [
        ("json-patch+json", {}, "cannot unmarshal object into Go value of type []handlers.jsonPatchOp"),
        ("json-patch+json", "x", "cannot unmarshal string into Go value of type []handlers.jsonPatchOp"),
        ("json-patch+json", [3], "cannot unmarshal number into Go value of type handlers.jsonPatchOp"),
        ("merge-patch+json", [], "cannot unmarshal array into Go value of type map[string]interface {}"),
        ("merge-patch+json", 3, "cannot unmarshal number into Go value of type map[string]interface {}"),
        ("strategic-merge-patch+json", True, "cannot unmarshal bool into Go value of type map[string]interface {}"),
        ("strategic-merge-patch+json", None, "error decoding patch: unexpected end of JSON input"),
    ],
)
async def test_patch_of_wrong_type_is_rejected(kind: str, patch: Any, words: str) -> None:
    api = new_api()
    await created(api, new_pod())
    status = await rejection(api, "PATCH", POD, patch, content_type=f"application/{kind}")
    assert (status["code"], words in status["message"]) == (400, True)


async def test_version_0_means_no_version() -> None:
    api = new_api()
    await created(api, new_pod(metadata={"resourceVersion": "0"}))
    body = new_pod(metadata={"resourceVersion": "0"}, spec={"activeDeadlineSeconds": 60})
    assert (await done(api, "PUT", POD, body))["spec"]["activeDeadlineSeconds"] == 60
    await created(api, {"metadata": {"name": "x"}, "spec": {"y": 1}}, BINDINGS)
    custom = {"metadata": {"name": "x", "resourceVersion": "0"}, "spec": {"y": 2}}
    status = await rejection(api, "PUT", BINDINGS.path(None, "x"), custom)
    assert "metadata.resourceVersion: Invalid value: 0: must be specified for an update" in status["message"]


@pytest.mark.parametrize("resource", [BINDINGS, LEASES])
async def test_replace_requires_version_for_some_kinds(resource: Resource) -> None:
    api = new_api()
    obj = {"metadata": {"name": "x"}, "spec": {"y": 1}}
    await created(api, obj, resource)
    path = resource.path("default" if resource.namespaced else None, "x")
    status = await rejection(api, "PUT", path, with_value(obj, ("spec", "y"), 2))
    assert status["code"] == 422
    assert "metadata.resourceVersion: Invalid value: 0: must be specified for an update" in status["message"]


async def test_replace_checks_uid_and_name() -> None:
    api = new_api()
    await created(api, new_pod())
    status = await rejection(api, "PUT", POD, new_pod(metadata={"uid": "another"}))
    assert status["code"] == 409
    assert "Precondition failed: UID in precondition: another" in status["message"]
    status = await rejection(api, "PUT", POD, new_pod("q"))
    assert status["message"] == "the name of the object (q) does not match the name on the URL (p)"
    assert (await rejection(api, "PUT", f"{COLLECTION}/q", new_pod("q")))["message"] == 'pods "q" not found'


async def test_replace_keeps_server_owned_metadata() -> None:
    api = new_api()
    first = await created(api, new_pod())
    second = await done(
        api,
        "PUT",
        POD,
        new_pod(spec={"activeDeadlineSeconds": 60}, metadata={"creationTimestamp": None, "generation": 99}),
    )
    for field in ("uid", "creationTimestamp"):
        assert second["metadata"][field] == first["metadata"][field]
    assert second["metadata"]["generation"] == 2


async def test_unchanged_write_keeps_resource_version() -> None:
    api = new_api()
    pod = await created(api, new_pod())
    assert await done(api, "PUT", POD, pod) == pod
    assert await done(api, "PATCH", POD, {"metadata": {"labels": {}}}, MERGE) == pod
    assert await done(api, "PATCH", f"{POD}/status", {"status": {"phase": "Pending"}}, MERGE) == pod
    assert (await done(api, "GET", COLLECTION))["metadata"]["resourceVersion"] == version_of(pod)


# -- the status subresource and generations


async def test_main_and_status_writes_are_separate() -> None:
    api = new_api()
    binding = await created(api, new_binding(), BINDINGS)
    path = BINDINGS.path(None, "b")
    mixed = {**binding, "spec": {"clusterID": "new"}, "status": {"phase": "Ready"}}
    main = await done(api, "PUT", path, mixed)
    assert main["spec"] == {"clusterID": "new"}
    assert "status" not in main
    both = {"metadata": {"labels": {"a": "b"}}, "spec": {"clusterID": "no"}, "status": {"phase": "Ready"}}
    result = await done(api, "PATCH", f"{path}/status", both, MERGE)
    assert result["spec"] == {"clusterID": "new"}
    assert result["status"] == {"phase": "Ready"}
    assert "labels" not in result["metadata"]


async def test_status_write_accepts_annotations_but_no_owners() -> None:
    api = new_api()
    await created(api, new_pod())
    patch = {
        "metadata": {"annotations": {"a": "b"}, "ownerReferences": [OWNER]},
        "spec": {"activeDeadlineSeconds": 60},
        "status": {"phase": "Running"},
    }
    result = await done(api, "PATCH", f"{POD}/status", patch, MERGE)
    assert result["metadata"]["annotations"] == {"a": "b"}
    assert "ownerReferences" not in result["metadata"]
    assert result["status"]["phase"] == "Running"
    assert "activeDeadlineSeconds" not in result["spec"]


async def test_only_spec_changes_increment_generation() -> None:
    api = new_api()
    await created(api, new_binding(), BINDINGS)
    path = BINDINGS.path(None, "b")

    async def generation(patch: Object, where: str = path) -> int:
        result: int = (await done(api, "PATCH", where, patch, MERGE))["metadata"]["generation"]
        return result

    assert await generation({"metadata": {"labels": {"a": "b"}}}) == 1
    assert await generation({"status": {"phase": "Ready"}}, f"{path}/status") == 1
    assert await generation({"spec": {"x": 1}}) == 2
    assert await generation({"spec": {"x": 1}}) == 2
    assert await generation({"data": {"x": 1}}) == 3


async def test_data_kinds_have_no_generation() -> None:
    api = new_api()
    for resource, has_one in {PODS: True, DEPLOYMENTS: True, BINDINGS: True, CONFIGMAPS: False, LEASES: False}.items():
        result = await created(api, specimen(resource, "x"), resource)
        assert ("generation" in result["metadata"]) is has_one
    patched = await done(api, "PATCH", CONFIGMAPS.path("default", "x"), {"data": {"a": "b"}}, MERGE)
    assert "generation" not in patched["metadata"]


# -- patch


async def test_merge_patch_sets_and_removes_fields() -> None:
    api = new_api()
    await created(api, new_pod(metadata={"labels": {"a": "1", "b": "2"}}))
    result = await done(api, "PATCH", POD, {"metadata": {"labels": {"a": None, "c": "3"}}}, MERGE)
    assert result["metadata"]["labels"] == {"b": "2", "c": "3"}


async def test_json_patch_is_atomic() -> None:
    api = new_api()
    pod = await created(api, new_pod())
    add = {"op": "add", "path": "/spec/activeDeadlineSeconds", "value": 60}
    status = await rejection(
        api, "PATCH", POD, [add, {"op": "test", "path": "/spec/activeDeadlineSeconds", "value": 50}], JSON_PATCH
    )
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert await done(api, "GET", POD) == pod
    assert (await done(api, "PATCH", POD, [add], JSON_PATCH))["spec"]["activeDeadlineSeconds"] == 60


@pytest.mark.parametrize("content_type", [STRATEGIC, "application/json"])
async def test_unsupported_patch_type_is_rejected(content_type: str) -> None:
    api = new_api()
    await created(api, new_binding(), BINDINGS)
    status = await rejection(api, "PATCH", BINDINGS.path(None, "b"), {}, content_type)
    assert (status["code"], status["reason"]) == (415, "UnsupportedMediaType")


@pytest.mark.parametrize("content_type", [MERGE, STRATEGIC, APPLY])
async def test_resource_version_in_patch_is_precondition(content_type: str) -> None:
    api = new_api()
    old = version_of(await created(api, new_pod()))
    kind = {"apiVersion": "v1", "kind": "Pod"}
    patch = {**kind, "metadata": {"resourceVersion": old}, "spec": {"activeDeadlineSeconds": 60}}
    await done(api, "PATCH", POD, patch, content_type, fieldManager="me")
    patch["spec"] = {"activeDeadlineSeconds": 50}
    assert (await rejection(api, "PATCH", POD, patch, content_type, fieldManager="me"))["reason"] == "Conflict"


async def test_patch_with_other_uid_conflicts() -> None:
    api = new_api()
    await created(api, new_pod())
    status = await rejection(api, "PATCH", POD, {"metadata": {"uid": "another"}}, MERGE)
    assert "Precondition failed: UID in precondition: another" in status["message"]


async def test_patch_of_missing_object_is_not_found() -> None:
    assert (await rejection(new_api(), "PATCH", POD, {}, MERGE))["message"] == 'pods "p" not found'
    assert (await rejection(new_api(), "PATCH", f"{POD}/status", {}, APPLY, fieldManager="me"))["code"] == 404


async def test_apply_creates_or_merges() -> None:
    api = new_api()
    assert (await rejection(api, "PATCH", POD, new_pod(), APPLY))["code"] == 422
    code, first = await answer(api, "PATCH", POD, new_pod(), APPLY, fieldManager="me")
    assert code == 201
    more = new_pod(spec={"activeDeadlineSeconds": 60})
    code, second = await answer(api, "PATCH", POD, more, APPLY, fieldManager="me")
    assert code == 200
    assert second["spec"] == {**first["spec"], "activeDeadlineSeconds": 60}
    assert second["metadata"]["uid"] == first["metadata"]["uid"]


# -- delete


async def test_deleted_object_frees_its_name() -> None:
    api = new_api()
    first = await created(api, new_binding(), BINDINGS)
    status = await done(api, "DELETE", BINDINGS.path(None, "b"))
    assert (status["kind"], status["status"]) == ("Status", "Success")
    assert status["details"]["uid"] == first["metadata"]["uid"]
    assert (await rejection(api, "GET", BINDINGS.path(None, "b")))["code"] == 404
    assert (await rejection(api, "DELETE", BINDINGS.path(None, "b")))["code"] == 404
    assert (await created(api, new_binding(), BINDINGS))["metadata"]["uid"] != first["metadata"]["uid"]


@pytest.mark.parametrize(("field", "word"), [("uid", "UID"), ("resourceVersion", "ResourceVersion")])
async def test_delete_checks_preconditions(field: str, word: str) -> None:
    api = new_api()
    pod = await created(api, new_pod())
    status = await rejection(api, "DELETE", POD, {"preconditions": {field: "0"}})
    assert status["code"] == 409
    assert f'"p": the {word} in the precondition (0) does not match the {word} in record' in status["message"]
    await done(api, "DELETE", POD, {"preconditions": {field: pod["metadata"][field]}})
    assert api.dump() == []


async def test_finalizers_delay_removal() -> None:
    api = new_api()
    binding = await created(api, with_value(new_binding(), ("metadata", "finalizers"), ["a", "b"]), BINDINGS)
    path = BINDINGS.path(None, "b")
    deleting = await done(api, "DELETE", path, {"propagationPolicy": "Foreground"})
    assert deleting["metadata"]["deletionTimestamp"] == "2024-01-01T00:00:00Z"
    assert deleting["metadata"]["generation"] == binding["metadata"]["generation"] + 1
    assert await done(api, "DELETE", path) == deleting
    await done(api, "PATCH", path, {"metadata": {"finalizers": ["b"], "deletionTimestamp": None}}, MERGE)
    assert (await done(api, "GET", path))["metadata"]["deletionTimestamp"]
    await done(api, "PATCH", path, {"metadata": {"finalizers": []}}, MERGE)
    assert api.dump() == []


async def test_no_finalizer_is_added_during_deletion() -> None:
    api = new_api()
    await created(api, with_value(new_binding(), ("metadata", "finalizers"), ["a"]), BINDINGS)
    path = BINDINGS.path(None, "b")
    await done(api, "DELETE", path)
    status = await rejection(api, "PATCH", path, {"metadata": {"finalizers": ["a", "b"]}}, MERGE)
    assert (
        'no new finalizers can be added if the object is being deleted, found new finalizers []string{"b"}'
        in (status["message"])
    )


async def test_bound_pod_stays_until_grace_is_zero() -> None:
    api = new_api()
    await created(api, new_pod(spec={"nodeName": "n"}))
    first = (await done(api, "DELETE", POD))["metadata"]
    assert (first["deletionGracePeriodSeconds"], first["deletionTimestamp"]) == (30, "2024-01-01T00:00:30Z")
    shorter = (await done(api, "DELETE", POD, {"gracePeriodSeconds": 5}))["metadata"]
    assert (shorter["deletionGracePeriodSeconds"], shorter["deletionTimestamp"]) == (5, "2024-01-01T00:00:05Z")
    assert shorter["generation"] == first["generation"] == 2
    assert (await done(api, "DELETE", POD, gracePeriodSeconds="20"))["metadata"] == shorter
    await done(api, "PATCH", f"{POD}/status", {"status": {"phase": "Running"}}, MERGE)
    assert len(api.dump()) == 1
    assert (await done(api, "DELETE", POD, {"gracePeriodSeconds": 0}))["kind"] == "Pod"
    assert api.dump() == []


@pytest.mark.parametrize(
    ("spec", "phase"),
    [
        ({}, "Pending"),
        ({"nodeName": "n"}, "Failed"),
        ({"nodeName": "n", "terminationGracePeriodSeconds": 0}, "Running"),
    ],
)
async def test_pod_without_kubelet_is_removed_immediately(spec: Object, phase: str) -> None:
    api = new_api()
    await created(api, new_pod(spec=spec))
    await done(api, "PATCH", f"{POD}/status", {"status": {"phase": phase}}, MERGE)
    await done(api, "DELETE", POD, {"gracePeriodSeconds": 30} if phase != "Running" else None)
    assert api.dump() == []


async def test_grace_period_can_only_be_shortened() -> None:
    now = START
    api = InProcessApi(RESOURCES, now=lambda: now)
    await created(api, new_pod(spec={"nodeName": "n"}))
    await done(api, "DELETE", POD, {"gracePeriodSeconds": 60})
    now += timedelta(seconds=10)
    for requested, seconds, until in ((None, 60, "01:00"), (90, 60, "01:00"), (40, 40, "00:40"), (5, 1, "00:10")):
        body = None if requested is None else {"gracePeriodSeconds": requested}
        result = (await done(api, "DELETE", POD, body))["metadata"]
        assert (result["deletionGracePeriodSeconds"], result["deletionTimestamp"]) == (
            seconds,
            f"2024-01-01T00:{until}Z",
        )


async def test_pod_with_finalizer_outlives_grace_period() -> None:
    api = new_api()
    await created(api, new_pod(spec={"nodeName": "n"}, metadata={"finalizers": ["example.com/f"]}))
    await done(api, "DELETE", POD)
    await done(api, "DELETE", POD, {"gracePeriodSeconds": 0})
    assert len(api.dump()) == 1
    await done(api, "PATCH", POD, {"metadata": {"finalizers": None}}, MERGE)
    assert api.dump() == []


async def test_delete_collection_respects_selector() -> None:
    api = new_api()
    for name, label in (("a", "x"), ("b", "y"), ("c", "x")):
        await created(api, new_pod(name, metadata={"labels": {"l": label}}))
    await done(api, "POST", PODS.path("other"), new_pod("d", metadata={"labels": {"l": "x"}}))
    deleted = await done(api, "DELETE", COLLECTION, labelSelector="l=x")
    assert [item["metadata"]["name"] for item in deleted["items"]] == ["a", "c"]
    assert await names(api, "/api/v1/pods") == ["b", "d"]


# -- other subresources and reviews


async def test_only_pods_have_ephemeral_containers() -> None:
    api = new_api()
    await created(api, new_pod())
    await created(api, {"metadata": {"name": "p"}}, CONFIGMAPS)
    debugger = {"name": "debugger", "image": "busybox:1"}
    patch = {"spec": {"ephemeralContainers": [debugger], "activeDeadlineSeconds": 60}}
    patched = await done(api, "PATCH", f"{POD}/ephemeralcontainers", patch, MERGE)
    assert [each["name"] for each in patched["spec"]["ephemeralContainers"]] == ["debugger"]
    assert "activeDeadlineSeconds" not in patched["spec"]
    assert patched["metadata"]["generation"] == 2
    path = CONFIGMAPS.path("default", "p", "ephemeralcontainers")
    assert (await rejection(api, "PATCH", path, {"data": {"a": "b"}}, MERGE))["code"] == 404


async def test_eviction_deletes_the_pod() -> None:
    api = new_api()
    await created(api, new_pod())
    eviction = {"kind": "Eviction", "metadata": {"name": "p"}, "deleteOptions": {"preconditions": {"uid": "another"}}}
    assert (await rejection(api, "POST", f"{POD}/eviction", eviction))["code"] == 409
    code, result = await answer(api, "POST", f"{POD}/eviction", {"kind": "Eviction"})
    assert (code, result["status"]) == (201, "Success")
    assert api.dump() == []


async def test_service_account_token_expires_as_requested() -> None:
    api = new_api()
    path = SERVICE_ACCOUNTS.path("default", "robot", "token")
    assert (await rejection(api, "POST", path, {"spec": {}}))["code"] == 404
    await created(api, {"metadata": {"name": "robot"}}, SERVICE_ACCOUNTS)
    first = (await done(api, "POST", path, {"spec": {"expirationSeconds": 600}}))["status"]
    second = (await done(api, "POST", path, {"spec": {}}))["status"]
    assert first["expirationTimestamp"] == "2024-01-01T00:10:00Z"
    assert second["expirationTimestamp"] == "2024-01-01T01:00:00Z"
    assert first["token"] != second["token"]


# -- list


async def test_list_is_sorted_and_items_have_no_kind() -> None:
    api = new_api()
    for namespace, name in (("b", "x"), ("a", "z"), ("a", "y")):
        await done(api, "POST", PODS.path(namespace), new_pod(name))
    result = await done(api, "GET", "/api/v1/pods")
    assert (result["kind"], result["apiVersion"]) == ("PodList", "v1")
    assert [key_of(item) for item in result["items"]] == ["a/y", "a/z", "b/x"]
    assert not any("kind" in item or "apiVersion" in item for item in result["items"])
    assert await names(api, PODS.path("a")) == ["y", "z"]
    await created(api, new_binding(), BINDINGS)
    assert (await done(api, "GET", BINDINGS.path()))["items"][0]["kind"] == "ClusterBinding"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"labelSelector": "app=web"}, ["a", "c"]),
        ({"labelSelector": "app!=web"}, ["b", "d"]),
        ({"labelSelector": "app in (web,db),!old"}, ["a", "b"]),
        ({"labelSelector": "app=web", "fieldSelector": "metadata.name!=a"}, ["c"]),
        ({"fieldSelector": "metadata.name=b,metadata.namespace=default"}, ["b"]),
        ({"fieldSelector": "spec.nodeName=n1"}, ["a"]),
        ({"fieldSelector": "spec.nodeName="}, ["b", "c", "d"]),
        ({"fieldSelector": "spec.hostNetwork=true"}, ["d"]),
        ({"fieldSelector": "status.phase!=Pending"}, []),
    ],
)
async def test_lists_are_filtered_by_labels_and_fields(query: dict[str, str], expected: list[str]) -> None:
    api = new_api()
    await created(api, new_pod("a", metadata={"labels": {"app": "web"}}, spec={"nodeName": "n1"}))
    await created(api, new_pod("b", metadata={"labels": {"app": "db"}}))
    await created(api, new_pod("c", metadata={"labels": {"app": "web", "old": ""}}))
    await created(api, new_pod("d", spec={"hostNetwork": True}))
    assert await names(api, **query) == expected


@pytest.mark.parametrize(
    "query", [{"labelSelector": "a in b"}, {"fieldSelector": "a"}, {"limit": "x"}, {"continue": "?"}]
)
async def test_invalid_query_is_bad_request(query: dict[str, str]) -> None:
    assert (await rejection(new_api(), "GET", COLLECTION, **query))["code"] == 400


async def test_all_pages_show_one_revision() -> None:
    api = new_api()
    for name in "abcde":
        await created(api, new_pod(name))
    page = await done(api, "GET", COLLECTION, limit="2")
    pages = [page]
    await done(api, "DELETE", f"{COLLECTION}/c")
    await created(api, new_pod("d2"))
    while token := page["metadata"].get("continue"):
        page = await done(api, "GET", COLLECTION, limit="2", **{"continue": token})
        pages.append(page)
    assert [[item["metadata"]["name"] for item in page["items"]] for page in pages] == [["a", "b"], ["c", "d"], ["e"]]
    assert len({version_of(page) for page in pages}) == 1


async def test_list_at_version_0_ignores_limit() -> None:
    api = new_api()
    for name in "abc":
        await created(api, new_pod(name))
    assert await names(api, limit="1", resourceVersion="0") == ["a", "b", "c"]


# -- watch


async def test_watch_reports_changes_after_its_version() -> None:
    api = new_api()
    version = version_of(await created(api, new_pod("before")))
    async with new_watch(api, resourceVersion=version) as events:
        pod = await created(api, new_pod())
        assert await events.next() == ("ADDED", pod)
        pod = await done(api, "PATCH", POD, {"spec": {"activeDeadlineSeconds": 60}}, MERGE)
        await created(api, {"metadata": {"name": "c"}}, CONFIGMAPS)
        assert await events.next() == ("MODIFIED", pod)
        await done(api, "DELETE", POD)
        type, last = await events.next()
        assert type == "DELETED"
        assert int(version_of(last)) > int(version_of(pod))
        assert last["spec"] == pod["spec"]


async def test_watch_is_limited_to_its_namespace() -> None:
    api = new_api()
    async with new_watch(api, PODS.path("b")) as events:
        await done(api, "POST", PODS.path("a"), new_pod("x"))
        await done(api, "POST", PODS.path("b"), new_pod("y"))
        assert await events.brief() == ("ADDED", "y")


async def test_watch_without_version_starts_with_existing_objects() -> None:
    api = new_api()
    await created(api, new_pod("a"))
    for query in ({}, {"resourceVersion": "0"}):
        async with new_watch(api, **query) as events:
            assert await events.brief() == ("ADDED", "a")


async def test_selection_changes_are_added_and_deleted_events() -> None:
    api = new_api()
    await created(api, new_pod())
    async with new_watch(api, labelSelector="on=yes") as events:
        entered = await done(api, "PATCH", POD, {"metadata": {"labels": {"on": "yes"}}}, MERGE)
        assert await events.next() == ("ADDED", entered)
        left = await done(api, "PATCH", POD, {"metadata": {"labels": {"on": "no"}}}, MERGE)
        type, obj = await events.next()
        assert type == "DELETED"
        assert obj["metadata"]["labels"] == {"on": "yes"}
        assert version_of(obj) == version_of(left)


async def test_compacted_version_is_error_event() -> None:
    api = new_api()
    old = version_of(await created(api, new_pod("a")))
    await created(api, new_pod("b"))
    api.compact()
    async with new_watch(api, resourceVersion=old) as events:
        type, status = await events.next()
        assert type == "ERROR"
        assert (status["code"], status["reason"]) == (410, "Expired")
        assert status["message"] == f"too old resource version: {old} ({int(old) + 1})"
        assert await events.rest() == []


async def test_streamed_list_ends_with_bookmark() -> None:
    api = new_api()
    await created(api, new_pod("a"))
    await created(api, new_pod("b"))
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with new_watch(api, **query) as events:
        assert await events.brief() == ("ADDED", "a")
        assert await events.brief() == ("ADDED", "b")
        type, mark = await events.next()
        assert type == "BOOKMARK"
        assert mark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert version_of(mark) == version_of(await done(api, "GET", COLLECTION))
        await created(api, new_pod("c"))
        assert await events.brief() == ("ADDED", "c")


async def test_streamed_list_without_version_match_is_invalid() -> None:
    code, status = await answer(new_api(), "GET", COLLECTION, watch="1", sendInitialEvents="true")
    assert code == 422
    assert "sendInitialEvents" in status["message"]


async def test_watch_without_initial_events_starts_now() -> None:
    api = new_api()
    await created(api, new_pod("a"))
    async with new_watch(api, sendInitialEvents="false", resourceVersionMatch="NotOlderThan") as events:
        await created(api, new_pod("b"))
        assert await events.brief() == ("ADDED", "b")
