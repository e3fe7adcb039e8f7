import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.client.transport import Request, Stream, Transport
from tapestry.controller.testing import InProcessApi
from tapestry.controller.testing.clock import START, run, running_clock
from tapestry.kube.errors import TransportError
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
from tapestry.kube.strategic import PatchSchemas

BINDINGS = Resource("cloud.tencent.com", "v1beta1", "ClusterBinding", "clusterbindings", namespaced=False)
RESOURCES = (PODS, NODES, NAMESPACES, CONFIGMAPS, DEPLOYMENTS, LEASES, SERVICE_ACCOUNTS, BINDINGS)
POD = "/api/v1/namespaces/default/pods/p"
COLLECTION = PODS.path("default")
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


def an_api(**options: Any) -> InProcessApi:
    return InProcessApi(RESOURCES, now=lambda: START, **options)


def a_pod(name: str = "p", **fields: Any) -> Object:
    metadata = {"name": name, **fields.pop("metadata", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}, **fields}


def a_binding(**fields: Any) -> Object:
    return {"metadata": {"name": "b"}, "spec": {"clusterID": "c"}, **fields}


async def answer(
    api: Transport, method: str, path: str, body: Any = None, content_type: str = "application/json", **query: str
) -> tuple[int, Any]:
    data = None if body is None else msgspec.json.encode(body)
    response = await api.send(Request(method, path, query, data, content_type))
    return response.status, msgspec.json.decode(response.body)


async def done(api: Transport, method: str, path: str, body: Any = None, *args: Any, **query: str) -> Any:
    """The body of an answer that must be good."""
    code, found = await answer(api, method, path, body, *args, **query)
    assert code < 300, found
    return found


async def refused(api: Transport, method: str, path: str, body: Any = None, *args: Any, **query: str) -> Any:
    """The Status of an answer that must be a refusal."""
    code, found = await answer(api, method, path, body, *args, **query)
    assert code >= 400, found
    assert (found["kind"], found["status"], found["code"]) == ("Status", "Failure", code)
    return found


async def created(api: Transport, obj: Object, resource: Resource = PODS) -> Any:
    return await done(api, "POST", resource.path("default" if resource.namespaced else None), obj)


async def names(api: Transport, path: str = COLLECTION, **query: str) -> list[str]:
    return [item["metadata"]["name"] for item in (await done(api, "GET", path, **query))["items"]]


class Events:
    """The events of one watch, one at a time."""

    def __init__(self, stream: Stream) -> None:
        self._events = self._of(stream)

    async def _of(self, stream: Stream) -> AsyncIterator[tuple[str, Object]]:
        assert stream.status == 200
        async for chunk in stream.chunks():
            for line in chunk.splitlines():
                event = msgspec.json.decode(line)
                yield event["type"], event["object"]

    async def next(self) -> tuple[str, Object]:
        return await anext(self._events)

    async def brief(self) -> tuple[str, str]:
        type, obj = await self.next()
        return type, obj["metadata"]["name"]

    async def rest(self) -> list[str]:
        return [type async for type, _ in self._events]


@asynccontextmanager
async def a_watch(api: Transport, path: str = COLLECTION, **query: str) -> AsyncIterator[Events]:
    async with api.stream(Request("GET", path, {"watch": "1", **query})) as stream:
        yield Events(stream)


# -- paths


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/api",
        "/apis/nothing.example/v1/things",
        "/api/v1/secrets",
        "/api/v1/pods/p",
        "/api/v1/namespaces/default/nodes",
        "/api/v1/namespaces/default/pods/p/nothing",
        "/api/v1/namespaces/default/pods/p/status/more",
        "/api/v1/nodes/n/eviction",
    ],
)
async def test_an_unknown_path_is_not_found(path: str) -> None:
    status = await refused(an_api(), "GET", path)
    assert (status["code"], status["reason"]) == (404, "NotFound")
    assert status["message"] == "the server could not find the requested resource"


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/api/v1/pods"), ("PUT", COLLECTION), ("POST", POD), ("PATCH", COLLECTION), ("HEAD", POD)],
)
async def test_a_method_that_a_path_does_not_know_is_not_allowed(method: str, path: str) -> None:
    assert (await refused(an_api(), method, path, a_pod()))["reason"] == "MethodNotAllowed"


async def test_the_path_tells_a_namespace_from_what_is_in_it() -> None:
    api = an_api()
    await created(api, {"metadata": {"name": "default"}}, NAMESPACES)
    await created(api, a_pod())
    assert (await done(api, "GET", "/api/v1/namespaces/default"))["kind"] == "Namespace"
    assert (await done(api, "GET", "/api/v1/namespaces/default/status"))["kind"] == "Namespace"
    assert (await done(api, "GET", "/api/v1/namespaces/default/pods"))["kind"] == "PodList"


async def test_the_server_tells_its_version() -> None:
    assert (await done(an_api(), "GET", "/version"))["major"] == "1"


async def test_a_body_that_is_no_json_is_a_bad_request() -> None:
    answer = await an_api().send(Request("POST", COLLECTION, {}, b"{"))
    assert answer.status == 400
    assert b"the body cannot be decoded" in answer.body


# -- creating


async def test_a_created_object_gets_what_the_server_owns() -> None:
    moment = datetime(2025, 6, 1, 12, 30, 15, 999, tzinfo=UTC)
    api = InProcessApi([PODS], now=lambda: moment)
    pod = await created(
        api, a_pod(metadata={"uid": "mine", "generation": 7, "deletionTimestamp": "2020-01-01T00:00:00Z"})
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
    api = an_api()
    versions = [
        int(version_of(await created(api, {"metadata": {"name": "x"}}, resource)))
        for resource in (CONFIGMAPS, NODES, LEASES, BINDINGS)
    ]
    assert versions == sorted(set(versions))


async def test_a_second_object_of_one_name_already_exists() -> None:
    api = an_api()
    await created(api, a_pod())
    status = await refused(api, "POST", COLLECTION, a_pod())
    assert (status["code"], status["reason"]) == (409, "AlreadyExists")
    assert status["message"] == 'pods "p" already exists'
    assert status["details"] == {"name": "p", "kind": "pods"}
    await done(api, "POST", PODS.path("elsewhere"), a_pod())


async def test_generated_names_differ_and_keep_their_prefix() -> None:
    api = an_api()
    pod = {"metadata": {"generateName": "job-"}}
    found = {(await created(api, pod))["metadata"]["name"] for _ in range(20)}
    assert len(found) == 20
    assert all(name.startswith("job-") and len(name) == 9 for name in found)


async def test_an_object_without_any_name_is_invalid() -> None:
    status = await refused(an_api(), "POST", COLLECTION, {"metadata": {}})
    assert status["message"] == 'Pod "" is invalid: metadata.name: Required value: name or generateName is required'
    assert status["details"]["causes"][0]["field"] == "metadata.name"


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (a_pod(metadata={"namespace": "other"}), "the namespace of the provided object does not match"),
        (a_pod(kind="Node"), "kind: Node does not match the expected Pod"),
        (a_pod(apiVersion="v2"), "apiVersion: v2 does not match the expected v1"),
        ([], "the body is not a Pod"),
        ({"metadata": "p"}, "the body is not a Pod"),
    ],
)
async def test_an_object_that_belongs_elsewhere_is_a_bad_request(body: Any, complaint: str) -> None:
    status = await refused(an_api(), "POST", COLLECTION, body)
    assert status["code"] == 400
    assert complaint in status["message"]


async def test_an_object_with_a_version_cannot_be_created() -> None:
    status = await refused(an_api(), "POST", COLLECTION, a_pod(metadata={"resourceVersion": "5"}))
    assert status["message"] == "resourceVersion should not be set on objects to be created"


async def test_a_status_is_dropped_on_creation_except_for_nodes() -> None:
    api = an_api(without_status=[CONFIGMAPS])
    status = {"phase": "Running"}
    assert (await created(api, a_pod(status=status)))["status"] == {"phase": "Pending"}
    assert "status" not in await created(api, a_binding(status=status), BINDINGS)
    assert (await created(api, {"metadata": {"name": "n"}, "status": status}, NODES))["status"] == status
    assert (await created(api, {"metadata": {"name": "c"}, "status": status}, CONFIGMAPS))["status"] == status


async def test_a_dry_run_answers_and_changes_nothing() -> None:
    api = an_api()
    await created(api, a_pod("standing"))
    before = api.dump()
    path = f"{COLLECTION}/standing"
    assert (await done(api, "POST", COLLECTION, a_pod(), dryRun="All"))["metadata"]["uid"]
    patch = {"metadata": {"labels": {"a": "b"}}}
    assert (await done(api, "PATCH", path, patch, MERGE, dryRun="All"))["metadata"]["labels"] == {"a": "b"}
    assert (await done(api, "DELETE", path, dryRun="All"))["metadata"]["name"] == "standing"
    await done(api, "DELETE", path, {"dryRun": ["All"]})
    assert api.dump() == before


async def test_uids_and_generated_names_follow_the_seed() -> None:
    async def dump(seed: int | None) -> list[Object]:
        api = an_api(seed=seed)
        await created(api, {"metadata": {"generateName": "x-"}})
        return api.dump()

    assert await dump(1) == await dump(1)
    assert await dump(1) != await dump(2)
    assert await dump(None) != await dump(None)


# -- replacing


async def test_a_replacement_of_an_old_version_conflicts() -> None:
    api = an_api()
    old = await created(api, a_pod())
    await done(api, "PUT", POD, with_value(old, ("spec", "x"), 1))
    status = await refused(api, "PUT", POD, with_value(old, ("spec", "x"), 2))
    assert (status["code"], status["reason"]) == (409, "Conflict")
    assert status["message"] == (
        'Operation cannot be fulfilled on pods "p": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )


async def test_a_replacement_without_a_version_is_unconditional_for_most_kinds() -> None:
    api = an_api()
    await created(api, a_pod())
    assert (await done(api, "PUT", POD, a_pod(spec={"x": 1})))["spec"] == {"x": 1}


@pytest.mark.parametrize("resource", [BINDINGS, LEASES])
async def test_a_replacement_of_a_custom_resource_or_a_lease_needs_a_version(resource: Resource) -> None:
    api = an_api()
    obj = {"metadata": {"name": "x"}, "spec": {"y": 1}}
    await created(api, obj, resource)
    path = resource.path("default" if resource.namespaced else None, "x")
    status = await refused(api, "PUT", path, with_value(obj, ("spec", "y"), 2))
    assert status["code"] == 422
    assert "metadata.resourceVersion: Invalid value: 0: must be specified for an update" in status["message"]


async def test_a_replacement_is_for_the_object_of_its_uid_and_name() -> None:
    api = an_api()
    await created(api, a_pod())
    status = await refused(api, "PUT", POD, a_pod(metadata={"uid": "another"}))
    assert status["code"] == 409
    assert "Precondition failed: UID in precondition: another" in status["message"]
    status = await refused(api, "PUT", POD, a_pod("q"))
    assert status["message"] == "the name of the object (q) does not match the name on the URL (p)"
    assert (await refused(api, "PUT", f"{COLLECTION}/q", a_pod("q")))["message"] == 'pods "q" not found'


async def test_what_the_server_owns_survives_a_replacement() -> None:
    api = an_api()
    first = await created(api, a_pod())
    second = await done(api, "PUT", POD, a_pod(spec={"x": 1}, metadata={"creationTimestamp": None, "generation": 99}))
    for field in ("uid", "creationTimestamp"):
        assert second["metadata"][field] == first["metadata"][field]
    assert second["metadata"]["generation"] == 2


async def test_a_write_that_changes_nothing_keeps_the_version() -> None:
    api = an_api()
    pod = await created(api, a_pod())
    assert await done(api, "PUT", POD, pod) == pod
    assert await done(api, "PATCH", POD, {"metadata": {"labels": {}}}, MERGE) == pod
    assert await done(api, "PATCH", f"{POD}/status", {"status": {"phase": "Pending"}}, MERGE) == pod
    assert (await done(api, "GET", COLLECTION))["metadata"]["resourceVersion"] == version_of(pod)


# -- the status subresource and generations


async def test_a_main_write_ignores_status_and_a_status_write_all_else() -> None:
    api = an_api()
    binding = await created(api, a_binding(), BINDINGS)
    path = BINDINGS.path(None, "b")
    mixed = {**binding, "spec": {"clusterID": "new"}, "status": {"phase": "Ready"}}
    main = await done(api, "PUT", path, mixed)
    assert main["spec"] == {"clusterID": "new"}
    assert "status" not in main
    both = {"metadata": {"labels": {"a": "b"}}, "spec": {"clusterID": "no"}, "status": {"phase": "Ready"}}
    found = await done(api, "PATCH", f"{path}/status", both, MERGE)
    assert found["spec"] == {"clusterID": "new"}
    assert found["status"] == {"phase": "Ready"}
    assert "labels" not in found["metadata"]


async def test_a_status_write_to_a_built_in_kind_takes_annotations_along_but_no_owners() -> None:
    api = an_api()
    await created(api, a_pod())
    patch = {
        "metadata": {"annotations": {"a": "b"}, "ownerReferences": [{"uid": "x"}]},
        "spec": {"x": 1},
        "status": {"phase": "Running"},
    }
    found = await done(api, "PATCH", f"{POD}/status", patch, MERGE)
    assert found["metadata"]["annotations"] == {"a": "b"}
    assert "ownerReferences" not in found["metadata"]
    assert found["status"] == {"phase": "Running"}
    assert found["spec"] == {"containers": []}


async def test_a_resource_without_status_subresource_has_no_such_path_and_writes_it_whole() -> None:
    api = an_api(without_status=[BINDINGS])
    binding = await created(api, a_binding(status={"phase": "Pending"}), BINDINGS)
    path = BINDINGS.path(None, "b")
    assert (await refused(api, "GET", f"{path}/status"))["code"] == 404
    found = await done(api, "PUT", path, {**binding, "status": {"phase": "Ready"}})
    assert found["status"] == {"phase": "Ready"}


async def test_only_a_change_of_the_specification_is_a_new_generation() -> None:
    api = an_api()
    await created(api, a_binding(), BINDINGS)
    path = BINDINGS.path(None, "b")

    async def generation(patch: Object, where: str = path) -> int:
        found: int = (await done(api, "PATCH", where, patch, MERGE))["metadata"]["generation"]
        return found

    assert await generation({"metadata": {"labels": {"a": "b"}}}) == 1
    assert await generation({"status": {"phase": "Ready"}}, f"{path}/status") == 1
    assert await generation({"spec": {"x": 1}}) == 2
    assert await generation({"spec": {"x": 1}}) == 2
    assert await generation({"data": {"x": 1}}) == 3


async def test_kinds_that_hold_only_data_have_no_generation() -> None:
    api = an_api()
    for resource, has_one in {PODS: True, DEPLOYMENTS: True, BINDINGS: True, CONFIGMAPS: False, LEASES: False}.items():
        found = await created(api, {"metadata": {"name": "x"}}, resource)
        assert ("generation" in found["metadata"]) is has_one
    patched = await done(api, "PATCH", CONFIGMAPS.path("default", "x"), {"data": {"a": "b"}}, MERGE)
    assert "generation" not in patched["metadata"]


# -- patching


async def test_a_merge_patch_changes_what_it_names_and_removes_what_it_nulls() -> None:
    api = an_api()
    await created(api, a_pod(metadata={"labels": {"a": "1", "b": "2"}}))
    found = await done(api, "PATCH", POD, {"metadata": {"labels": {"a": None, "c": "3"}}}, MERGE)
    assert found["metadata"]["labels"] == {"b": "2", "c": "3"}


async def test_a_json_patch_is_applied_whole_or_not_at_all() -> None:
    api = an_api()
    pod = await created(api, a_pod())
    add = {"op": "add", "path": "/spec/x", "value": 1}
    status = await refused(api, "PATCH", POD, [add, {"op": "test", "path": "/spec/x", "value": 2}], JSON_PATCH)
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert await done(api, "GET", POD) == pod
    assert (await done(api, "PATCH", POD, [add], JSON_PATCH))["spec"]["x"] == 1


async def test_a_strategic_patch_follows_the_schema_where_there_is_one() -> None:
    containers = {
        "items": {"type": "object"},
        "x-kubernetes-patch-strategy": "merge",
        "x-kubernetes-patch-merge-key": "name",
    }
    schemas = PatchSchemas({"Pod": {"properties": {"spec": {"properties": {"containers": containers}}}}})
    spec = {"containers": [{"name": "a"}, {"name": "b"}]}
    patch = {"spec": {"containers": [{"name": "b", "image": "i"}]}}

    async def patched(api: InProcessApi) -> list[Object]:
        await created(api, a_pod(spec=spec))
        found: list[Object] = (await done(api, "PATCH", POD, patch, STRATEGIC))["spec"]["containers"]
        return found

    assert await patched(an_api(schemas={PODS: schemas.of("Pod")})) == [{"name": "a"}, {"name": "b", "image": "i"}]
    assert await patched(an_api()) == [{"name": "b", "image": "i"}]


@pytest.mark.parametrize("content_type", [STRATEGIC, "application/json"])
async def test_a_patch_that_a_kind_does_not_take_is_an_unsupported_media_type(content_type: str) -> None:
    api = an_api()
    await created(api, a_binding(), BINDINGS)
    status = await refused(api, "PATCH", BINDINGS.path(None, "b"), {}, content_type)
    assert (status["code"], status["reason"]) == (415, "UnsupportedMediaType")


@pytest.mark.parametrize("content_type", [MERGE, STRATEGIC, APPLY])
async def test_a_version_in_a_patch_is_a_precondition(content_type: str) -> None:
    api = an_api()
    old = version_of(await created(api, a_pod()))
    patch = {"metadata": {"resourceVersion": old}, "spec": {"x": 1}}
    await done(api, "PATCH", POD, patch, content_type, fieldManager="me")
    patch["spec"] = {"x": 2}
    assert (await refused(api, "PATCH", POD, patch, content_type, fieldManager="me"))["reason"] == "Conflict"


async def test_a_patch_for_another_uid_is_invalid() -> None:
    api = an_api()
    await created(api, a_pod())
    status = await refused(api, "PATCH", POD, {"metadata": {"uid": "another"}}, MERGE)
    assert 'metadata.uid: Invalid value: "another": field is immutable' in status["message"]


async def test_a_patch_of_nothing_is_not_found() -> None:
    assert (await refused(an_api(), "PATCH", POD, {}, MERGE))["message"] == 'pods "p" not found'
    assert (await refused(an_api(), "PATCH", f"{POD}/status", {}, APPLY, fieldManager="me"))["code"] == 404


async def test_apply_creates_what_is_missing_and_merges_what_is_there() -> None:
    api = an_api()
    assert (await refused(api, "PATCH", POD, a_pod(), APPLY))["code"] == 422
    code, first = await answer(api, "PATCH", POD, a_pod(spec={"a": 1}), APPLY, fieldManager="me")
    assert code == 201
    code, second = await answer(api, "PATCH", POD, a_pod(spec={"b": 2}), APPLY, fieldManager="me")
    assert code == 200
    assert second["spec"] == {"a": 1, "b": 2}
    assert second["metadata"]["uid"] == first["metadata"]["uid"]


# -- deleting


async def test_a_deleted_object_is_gone_and_its_name_free() -> None:
    api = an_api()
    first = await created(api, a_binding(), BINDINGS)
    status = await done(api, "DELETE", BINDINGS.path(None, "b"))
    assert (status["kind"], status["status"]) == ("Status", "Success")
    assert status["details"]["uid"] == first["metadata"]["uid"]
    assert (await refused(api, "GET", BINDINGS.path(None, "b")))["code"] == 404
    assert (await refused(api, "DELETE", BINDINGS.path(None, "b")))["code"] == 404
    assert (await created(api, a_binding(), BINDINGS))["metadata"]["uid"] != first["metadata"]["uid"]


@pytest.mark.parametrize(("field", "word"), [("uid", "UID"), ("resourceVersion", "ResourceVersion")])
async def test_a_deletion_spares_what_its_preconditions_do_not_mean(field: str, word: str) -> None:
    api = an_api()
    pod = await created(api, a_pod())
    status = await refused(api, "DELETE", POD, {"preconditions": {field: "0"}})
    assert status["code"] == 409
    assert f'"p": the {word} in the precondition (0) does not match the {word} in record' in status["message"]
    await done(api, "DELETE", POD, {"preconditions": {field: pod["metadata"][field]}})
    assert api.dump() == []


async def test_finalizers_hold_a_deleted_object_until_the_last_is_removed() -> None:
    api = an_api()
    binding = await created(api, with_value(a_binding(), ("metadata", "finalizers"), ["a", "b"]), BINDINGS)
    path = BINDINGS.path(None, "b")
    deleting = await done(api, "DELETE", path, {"propagationPolicy": "Foreground"})
    assert deleting["metadata"]["deletionTimestamp"] == "2024-01-01T00:00:00Z"
    assert deleting["metadata"]["generation"] == binding["metadata"]["generation"] + 1
    assert await done(api, "DELETE", path) == deleting
    await done(api, "PATCH", path, {"metadata": {"finalizers": ["b"], "deletionTimestamp": None}}, MERGE)
    assert (await done(api, "GET", path))["metadata"]["deletionTimestamp"]
    await done(api, "PATCH", path, {"metadata": {"finalizers": []}}, MERGE)
    assert api.dump() == []


async def test_no_finalizer_is_added_to_what_is_being_deleted() -> None:
    api = an_api()
    await created(api, with_value(a_binding(), ("metadata", "finalizers"), ["a"]), BINDINGS)
    path = BINDINGS.path(None, "b")
    await done(api, "DELETE", path)
    status = await refused(api, "PATCH", path, {"metadata": {"finalizers": ["a", "b"]}}, MERGE)
    assert (
        'no new finalizers can be added if the object is being deleted, found new finalizers []string{"b"}'
        in (status["message"])
    )


async def test_a_pod_on_a_node_stays_until_it_is_deleted_without_grace() -> None:
    api = an_api()
    await created(api, a_pod(spec={"nodeName": "n"}))
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


def test_a_grace_period_that_has_begun_never_ends_later() -> None:
    async def main() -> None:
        api = InProcessApi([PODS], now=running_clock().now)
        await created(api, a_pod(spec={"nodeName": "n"}))
        until = (await done(api, "DELETE", POD))["metadata"]["deletionTimestamp"]
        await asyncio.sleep(25)
        found = (await done(api, "DELETE", POD, {"gracePeriodSeconds": 20}))["metadata"]
        assert found["deletionTimestamp"] == until

    run(main())


@pytest.mark.parametrize(
    ("spec", "phase"),
    [
        ({}, "Pending"),
        ({"nodeName": "n"}, "Failed"),
        ({"nodeName": "n", "terminationGracePeriodSeconds": 0}, "Running"),
    ],
)
async def test_a_pod_that_no_kubelet_has_to_stop_goes_at_once(spec: Object, phase: str) -> None:
    api = an_api()
    await created(api, a_pod(spec=spec))
    await done(api, "PATCH", f"{POD}/status", {"status": {"phase": phase}}, MERGE)
    await done(api, "DELETE", POD, {"gracePeriodSeconds": 30} if phase != "Running" else None)
    assert api.dump() == []


async def test_a_pod_with_a_finalizer_outlives_its_grace() -> None:
    api = an_api()
    await created(api, a_pod(spec={"nodeName": "n"}, metadata={"finalizers": ["f"]}))
    await done(api, "DELETE", POD)
    await done(api, "DELETE", POD, {"gracePeriodSeconds": 0})
    assert len(api.dump()) == 1
    await done(api, "PATCH", POD, {"metadata": {"finalizers": None}}, MERGE)
    assert api.dump() == []


async def test_a_collection_is_deleted_as_far_as_it_is_selected() -> None:
    api = an_api()
    for name, label in (("a", "x"), ("b", "y"), ("c", "x")):
        await created(api, a_pod(name, metadata={"labels": {"l": label}}))
    await done(api, "POST", PODS.path("other"), a_pod("d", metadata={"labels": {"l": "x"}}))
    gone = await done(api, "DELETE", COLLECTION, labelSelector="l=x")
    assert [item["metadata"]["name"] for item in gone["items"]] == ["a", "c"]
    assert await names(api, "/api/v1/pods") == ["b", "d"]


# -- other subresources and reviews


@pytest.mark.parametrize("subresource", ["resize", "ephemeralcontainers"])
async def test_a_pods_spec_is_patched_through_its_subresources_and_no_other_kinds_is(subresource: str) -> None:
    api = an_api()
    await created(api, a_pod())
    await created(api, {"metadata": {"name": "p"}}, CONFIGMAPS)
    patched = await done(api, "PATCH", f"{POD}/{subresource}", {"spec": {"x": 1}}, MERGE)
    assert patched["spec"] == {"containers": [], "x": 1}
    assert patched["metadata"]["generation"] == 2
    path = CONFIGMAPS.path("default", "p", subresource)
    assert (await refused(api, "PATCH", path, {"data": {"a": "b"}}, MERGE))["code"] == 404


async def test_an_eviction_deletes_the_pod() -> None:
    api = an_api()
    await created(api, a_pod())
    eviction = {"kind": "Eviction", "metadata": {"name": "p"}, "deleteOptions": {"preconditions": {"uid": "another"}}}
    assert (await refused(api, "POST", f"{POD}/eviction", eviction))["code"] == 409
    code, found = await answer(api, "POST", f"{POD}/eviction", {"kind": "Eviction"})
    assert (code, found["status"]) == (201, "Success")
    assert api.dump() == []


async def test_a_service_account_token_expires_when_it_was_asked_to() -> None:
    api = an_api()
    path = SERVICE_ACCOUNTS.path("default", "robot", "token")
    assert (await refused(api, "POST", path, {"spec": {}}))["code"] == 404
    await created(api, {"metadata": {"name": "robot"}}, SERVICE_ACCOUNTS)
    first = (await done(api, "POST", path, {"spec": {"expirationSeconds": 600}}))["status"]
    second = (await done(api, "POST", path, {"spec": {}}))["status"]
    assert first["expirationTimestamp"] == "2024-01-01T00:10:00Z"
    assert second["expirationTimestamp"] == "2024-01-01T01:00:00Z"
    assert first["token"] != second["token"]


REVIEWS = {
    "SubjectAccessReview": "/apis/authorization.k8s.io/v1/subjectaccessreviews",
    "SelfSubjectAccessReview": "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    "TokenReview": "/apis/authentication.k8s.io/v1/tokenreviews",
}


@pytest.mark.parametrize("kind", REVIEWS)
async def test_reviews_grant_everything_unless_told_otherwise(kind: str) -> None:
    word = "authenticated" if kind == "TokenReview" else "allowed"
    granted = await done(an_api(), "POST", REVIEWS[kind], {"spec": {}})
    assert granted["status"][word] is True

    def deny(review: Object) -> Object:
        return {word: False, "reason": f"{review['kind']} of {review['spec']['user']}"}

    denied = await done(an_api(review=deny), "POST", REVIEWS[kind], {"kind": kind, "spec": {"user": "u"}})
    assert denied["status"] == {word: False, "reason": f"{kind} of u"}


# -- listing


async def test_a_list_is_ordered_and_its_items_do_not_say_what_they_are() -> None:
    api = an_api()
    for namespace, name in (("b", "x"), ("a", "z"), ("a", "y")):
        await done(api, "POST", PODS.path(namespace), a_pod(name))
    found = await done(api, "GET", "/api/v1/pods")
    assert (found["kind"], found["apiVersion"]) == ("PodList", "v1")
    assert [key_of(item) for item in found["items"]] == ["a/y", "a/z", "b/x"]
    assert not any("kind" in item or "apiVersion" in item for item in found["items"])
    assert await names(api, PODS.path("a")) == ["y", "z"]
    await created(api, a_binding(), BINDINGS)
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
async def test_selectors_choose_by_labels_and_by_any_field(query: dict[str, str], expected: list[str]) -> None:
    api = an_api()
    await created(api, a_pod("a", metadata={"labels": {"app": "web"}}, spec={"nodeName": "n1"}))
    await created(api, a_pod("b", metadata={"labels": {"app": "db"}}))
    await created(api, a_pod("c", metadata={"labels": {"app": "web", "old": ""}}))
    await created(api, a_pod("d", spec={"hostNetwork": True}))
    assert await names(api, **query) == expected


@pytest.mark.parametrize(
    "query", [{"labelSelector": "a in b"}, {"fieldSelector": "a"}, {"limit": "x"}, {"continue": "?"}]
)
async def test_a_query_that_makes_no_sense_is_a_bad_request(query: dict[str, str]) -> None:
    assert (await refused(an_api(), "GET", COLLECTION, **query))["code"] == 400


async def test_all_pages_of_a_list_show_one_moment() -> None:
    api = an_api()
    for name in "abcde":
        await created(api, a_pod(name))
    page = await done(api, "GET", COLLECTION, limit="2")
    seen = [page]
    await done(api, "DELETE", f"{COLLECTION}/c")
    await created(api, a_pod("d2"))
    while token := page["metadata"].get("continue"):
        page = await done(api, "GET", COLLECTION, limit="2", **{"continue": token})
        seen.append(page)
    assert [[item["metadata"]["name"] for item in page["items"]] for page in seen] == [["a", "b"], ["c", "d"], ["e"]]
    assert len({version_of(page) for page in seen}) == 1


async def test_a_page_of_a_forgotten_moment_is_gone() -> None:
    api = an_api()
    for name in "abc":
        await created(api, a_pod(name))
    token = (await done(api, "GET", COLLECTION, limit="1"))["metadata"]["continue"]
    await created(api, a_pod("d"))
    api.compact()
    status = await refused(api, "GET", COLLECTION, limit="1", **{"continue": token})
    assert (status["code"], status["reason"]) == (410, "Expired")


async def test_a_list_out_of_the_cache_is_whole_whatever_its_limit() -> None:
    api = an_api()
    for name in "abc":
        await created(api, a_pod(name))
    assert await names(api, limit="1", resourceVersion="0") == ["a", "b", "c"]


async def test_a_version_of_the_future_is_too_large() -> None:
    api = an_api()
    response = await api.send(Request("GET", COLLECTION, {"resourceVersion": "1000"}))
    assert response.status == 504
    assert response.headers["retry-after"] == "1"
    assert b"Too large resource version: 1000" in response.body


# -- watching


async def test_a_watch_tells_of_every_change_after_its_version() -> None:
    api = an_api()
    version = version_of(await created(api, a_pod("before")))
    async with a_watch(api, resourceVersion=version) as events:
        pod = await created(api, a_pod())
        assert await events.next() == ("ADDED", pod)
        pod = await done(api, "PATCH", POD, {"spec": {"x": 1}}, MERGE)
        await created(api, {"metadata": {"name": "c"}}, CONFIGMAPS)
        assert await events.next() == ("MODIFIED", pod)
        await done(api, "DELETE", POD)
        type, last = await events.next()
        assert type == "DELETED"
        assert int(version_of(last)) > int(version_of(pod))
        assert last["spec"] == pod["spec"]


async def test_a_watch_of_a_namespace_tells_of_no_other() -> None:
    api = an_api()
    async with a_watch(api, PODS.path("b")) as events:
        await done(api, "POST", PODS.path("a"), a_pod("x"))
        await done(api, "POST", PODS.path("b"), a_pod("y"))
        assert await events.brief() == ("ADDED", "y")


async def test_a_watch_without_a_version_first_shows_what_is_there() -> None:
    api = an_api()
    await created(api, a_pod("a"))
    for query in ({}, {"resourceVersion": "0"}):
        async with a_watch(api, **query) as events:
            assert await events.brief() == ("ADDED", "a")


async def test_what_enters_a_selection_is_added_and_what_leaves_it_is_deleted() -> None:
    api = an_api()
    await created(api, a_pod())
    async with a_watch(api, labelSelector="on=yes") as events:
        entered = await done(api, "PATCH", POD, {"metadata": {"labels": {"on": "yes"}}}, MERGE)
        assert await events.next() == ("ADDED", entered)
        left = await done(api, "PATCH", POD, {"metadata": {"labels": {"on": "no"}}}, MERGE)
        type, obj = await events.next()
        assert type == "DELETED"
        assert obj["metadata"]["labels"] == {"on": "yes"}
        assert version_of(obj) == version_of(left)


async def test_a_watch_from_a_forgotten_version_gets_an_error_event() -> None:
    api = an_api()
    old = version_of(await created(api, a_pod("a")))
    await created(api, a_pod("b"))
    api.compact()
    async with a_watch(api, resourceVersion=old) as events:
        type, status = await events.next()
        assert type == "ERROR"
        assert (status["code"], status["reason"]) == (410, "Expired")
        assert status["message"] == f"too old resource version: {old} ({int(old) + 1})"
        assert await events.rest() == []


async def test_a_watch_that_is_up_to_date_survives_compaction() -> None:
    api = an_api()
    version = version_of(await created(api, a_pod("a")))
    api.compact()
    async with a_watch(api, resourceVersion=version) as events:
        api.compact()
        await created(api, a_pod("b"))
        assert await events.brief() == ("ADDED", "b")


async def test_history_is_bounded() -> None:
    api = an_api(history=10)
    version = version_of(await created(api, a_pod("a")))
    for number in range(10):
        await created(api, a_pod(f"b{number}"))
    async with a_watch(api, resourceVersion=version) as events:
        assert (await events.next())[0] == "ERROR"
    recent = str(int(version) + 10 - 5)
    async with a_watch(api, resourceVersion=recent) as events:
        assert await events.brief() == ("ADDED", "b5")


async def test_a_streamed_list_ends_with_a_marked_bookmark() -> None:
    api = an_api()
    await created(api, a_pod("a"))
    await created(api, a_pod("b"))
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with a_watch(api, **query) as events:
        assert await events.brief() == ("ADDED", "a")
        assert await events.brief() == ("ADDED", "b")
        type, mark = await events.next()
        assert type == "BOOKMARK"
        assert mark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert version_of(mark) == version_of(await done(api, "GET", COLLECTION))
        await created(api, a_pod("c"))
        assert await events.brief() == ("ADDED", "c")


async def test_a_streamed_list_without_its_match_is_invalid() -> None:
    code, status = await answer(an_api(), "GET", COLLECTION, watch="1", sendInitialEvents="true")
    assert code == 422
    assert "sendInitialEvents" in status["message"]


async def test_a_watch_that_wants_no_initial_events_begins_now() -> None:
    api = an_api()
    await created(api, a_pod("a"))
    async with a_watch(api, sendInitialEvents="false", resourceVersionMatch="NotOlderThan") as events:
        await created(api, a_pod("b"))
        assert await events.brief() == ("ADDED", "b")


def test_bookmarks_come_each_minute_and_the_stream_ends_on_time() -> None:
    async def main() -> None:
        clock = running_clock()
        api = InProcessApi(RESOURCES, now=clock.now)
        version = version_of(await created(api, a_pod()))
        query = {"resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": "150"}
        async with a_watch(api, **query) as events:
            cm = await created(api, {"metadata": {"name": "c"}}, CONFIGMAPS)
            type, mark = await events.next()
            assert (type, clock.monotonic()) == ("BOOKMARK", 60)
            assert mark == {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"resourceVersion": version_of(cm), "creationTimestamp": None},
            }
            assert await events.rest() == ["BOOKMARK"]
            assert clock.monotonic() == 150

    run(main())


def test_a_watch_without_a_time_limit_ends_all_the_same() -> None:
    async def main() -> float:
        api = InProcessApi(RESOURCES, now=running_clock().now)
        response = await api.send(Request("GET", COLLECTION, {"watch": "true"}))
        assert (response.status, response.body) == (200, b"")
        return running_clock().monotonic()

    assert run(main()) == 1800


# -- what a test may do to the server


async def test_stale_reads_lag_and_writes_see_the_truth() -> None:
    api = an_api()
    await created(api, a_pod("a"))
    api.stale(1)
    async with a_watch(api) as events:
        await created(api, a_pod("b"))
        await created(api, a_pod("c"))
        assert await names(api) == ["a", "b"]
        assert (await refused(api, "GET", f"{COLLECTION}/c"))["code"] == 404
        assert (await refused(api, "POST", COLLECTION, a_pod("c")))["reason"] == "AlreadyExists"
        assert await events.brief() == ("ADDED", "a")
        assert await events.brief() == ("ADDED", "b")
        await done(api, "DELETE", f"{COLLECTION}/b")
        assert await names(api) == ["a", "b", "c"]
        assert await events.brief() == ("ADDED", "c")
        caught_up = asyncio.create_task(events.brief())
        await names(api)
        api.stale(None)
        assert await caught_up == ("DELETED", "b")
        assert await names(api) == ["a", "c"]


async def test_frozen_watches_hear_nothing_until_they_thaw() -> None:
    api = an_api()
    async with a_watch(api) as events, asyncio.TaskGroup() as tasks:
        api.freeze()
        await created(api, a_pod("a"))
        heard = tasks.create_task(events.brief())
        assert await names(api) == ["a"]
        assert not heard.done()
        api.thaw()
        assert await heard == ("ADDED", "a")


async def test_compaction_ends_watches_that_were_held_back() -> None:
    api = an_api()
    async with a_watch(api) as events:
        api.freeze()
        await created(api, a_pod("a"))
        api.compact()
        type, status = await events.next()
        assert (type, status["reason"]) == ("ERROR", "Expired")


async def test_a_disconnected_watch_ends_and_can_be_taken_up_again() -> None:
    api = an_api()
    version = version_of(await created(api, a_pod("a")))
    async with a_watch(api, resourceVersion=version) as events, asyncio.TaskGroup() as tasks:
        rest = tasks.create_task(events.rest())
        await created(api, a_pod("b"))
        await asyncio.wait([rest], timeout=0)
        api.disconnect()
        assert await rest == ["ADDED"]
    async with a_watch(api, resourceVersion=version) as events:
        assert await events.brief() == ("ADDED", "b")


async def test_an_aborted_connection_breaks_its_watches_and_no_other() -> None:
    api = an_api()
    ours, theirs = api.connect(), api.connect()
    async with a_watch(ours) as cut, a_watch(theirs) as kept:
        ours.abort()
        with pytest.raises(TransportError, match="the connection was cut"):
            await cut.next()
        await created(ours, a_pod("a"))
        assert await kept.brief() == ("ADDED", "a")


@pytest.mark.parametrize(("turns", "arrived"), [(1, False), (2, True)])
def test_a_request_under_way_fails_when_the_connection_is_aborted(turns: int, arrived: bool) -> None:
    api = an_api()
    connection = api.connect()
    sent = connection.send(Request("POST", COLLECTION, {}, msgspec.json.encode(a_pod())))
    for _ in range(turns):
        sent.send(None)
    connection.abort()
    with pytest.raises(TransportError) as failure:
        sent.send(None)
    assert failure.value.maybe_sent is arrived
    assert bool(api.dump()) is arrived


async def test_a_closed_watch_is_forgotten() -> None:
    api = an_api()
    async with a_watch(api):
        assert len(api._watches) == 1
    assert not api._watches


async def test_the_dump_is_the_true_state_in_order() -> None:
    api = an_api()
    await created(api, a_pod("b"))
    await created(api, a_pod("a"))
    await created(api, {"metadata": {"name": "z"}}, CONFIGMAPS)
    api.stale(3)
    assert [(obj["kind"], key_of(obj)) for obj in api.dump()] == [
        ("ConfigMap", "default/z"),
        ("Pod", "default/a"),
        ("Pod", "default/b"),
    ]


# -- the whole, under any history


steps = st.lists(
    st.tuples(st.sampled_from(["put", "relabel", "delete"]), st.sampled_from("abc"), st.booleans()), max_size=25
)


async def taken(api: Transport, step: tuple[str, str, bool]) -> None:
    verb, name, on = step
    labels = {"metadata": {"labels": {"on": "yes" if on else "no"}}}
    match verb:
        case "put":
            await answer(api, "POST", COLLECTION, a_pod(name, **labels))
        case "relabel":
            await answer(api, "PATCH", f"{COLLECTION}/{name}", labels, MERGE)
        case "delete":
            await answer(api, "DELETE", f"{COLLECTION}/{name}")


def replayed(items: list[Object], events: list[tuple[str, Object]]) -> dict[str, Object]:
    found = {item["metadata"]["name"]: item["metadata"] for item in items}
    for type, obj in events:
        name = obj["metadata"]["name"]
        match type:
            case "ADDED":
                assert name not in found
                found[name] = obj["metadata"]
            case "MODIFIED":
                assert name in found
                found[name] = obj["metadata"]
            case "DELETED":
                del found[name]
    return found


def decoded(body: bytes) -> Iterator[tuple[str, Object]]:
    for line in body.splitlines():
        event = msgspec.json.decode(line)
        yield event["type"], event["object"]


@given(before=steps, after=steps, selector=st.sampled_from(["", "on=yes", "on!=yes"]))
def test_a_list_and_the_watch_from_it_give_the_present_whatever_happened(
    before: list[Any], after: list[Any], selector: str
) -> None:
    async def main() -> None:
        api = InProcessApi([PODS], now=running_clock().now)
        for step in before:
            await taken(api, step)
        listed = await done(api, "GET", COLLECTION, labelSelector=selector)
        for step in after:
            await taken(api, step)
        query = {"watch": "1", "timeoutSeconds": "1", "resourceVersion": version_of(listed), "labelSelector": selector}
        events = list(decoded((await api.send(Request("GET", COLLECTION, query))).body))
        versions = [int(version_of(obj)) for _, obj in events]
        assert versions == sorted(set(versions))
        present = await done(api, "GET", COLLECTION, labelSelector=selector)
        assert replayed(listed["items"], events) == replayed(present["items"], [])

    run(main())


@given(history=steps, lag=st.integers(min_value=0, max_value=30))
def test_a_stale_read_shows_exactly_what_was(history: list[Any], lag: int) -> None:
    async def main() -> None:
        api = InProcessApi([PODS], now=running_clock().now)
        past = {1: []}
        for step in history:
            await taken(api, step)
            present = await done(api, "GET", COLLECTION)
            past[int(version_of(present))] = present["items"]
        newest = max(past)
        api.stale(lag)
        shown = await done(api, "GET", COLLECTION)
        assert int(version_of(shown)) == max(1, newest - lag)
        assert shown["items"] == past[int(version_of(shown))]

    run(main())
