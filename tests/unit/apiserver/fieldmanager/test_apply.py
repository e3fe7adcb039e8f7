"""Tests of server-side apply through the API server: responses, stored objects and ownership."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from tapestry.apiserver.access.service_account_tokens import ServiceAccountTokens
from tapestry.apiserver.access.token_keys import load_token_keys
from tapestry.apiserver.assembly import build_authenticators, build_server
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import Call, Target, WriteRequest
from tapestry.apiserver.core.resource_registry import published_api
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.apiserver.fieldmanager.apply import LAST_APPLIED, FieldManager
from tapestry.apiserver.fieldmanager.merge_schemas import MergeSchemas
from tapestry.apiserver.storage.local_store import LocalStore
from tapestry.apiserver.storage.log import MemoryLog
from tapestry.kube.objects import Object

from ..conftest import ADMIN, ServerClient

APPLY, MERGE, JSON_PATCH = "application/apply-patch+yaml", "application/merge-patch+json", "application/json-patch+json"
MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


def new_config_map(**data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data}


def new_pod() -> Object:
    spec = {"containers": [{"name": "c", "image": "nginx:1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def new_deployment(**spec: Any) -> Object:
    template = {"metadata": {"labels": {"app": "w"}}, "spec": {"containers": [{"name": "c", "image": "nginx:1"}]}}
    deployment_spec = {"selector": {"matchLabels": {"app": "w"}}, "template": template, **spec}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": deployment_spec}


async def apply(
    call: ServerClient, body: Object, manager: str = "a", path: str = f"{MAPS}/c", **query: str
) -> tuple[int, Any]:
    return await call("PATCH", path, body, kind=APPLY, fieldManager=manager, **query)


def managers(obj: Object) -> dict[str, Any]:
    return {f"{each['manager']} {each['operation']}": each["fieldsV1"] for each in obj["metadata"]["managedFields"]}


async def test_apply_creates_missing_object(call: ServerClient) -> None:
    status, created = await apply(call, new_config_map(x="1"))
    assert (status, created["data"]) == (201, {"x": "1"})
    assert managers(created) == {"a Apply": {"f:data": {"f:x": {}}}}


async def test_apply_accepts_yaml(call: ServerClient) -> None:
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {x: '1'}\n"
    status, created = await call("PATCH", f"{MAPS}/c", body, kind=APPLY, fieldManager="a")
    assert (status, created["data"]) == (201, {"x": "1"})


async def test_repeated_apply_keeps_resource_version(call: ServerClient) -> None:
    _, created = await apply(call, new_config_map(x="1"))
    assert await apply(call, new_config_map(x="1")) == (200, created)


async def test_apply_requires_existing_namespace(call: ServerClient) -> None:
    status, found = await apply(call, new_config_map(x="1"), path="/api/v1/namespaces/nowhere/configmaps/c")
    assert (status, found["reason"]) == (404, "NotFound")


async def test_apply_conflicts_unless_forced(call: ServerClient) -> None:
    await call.made(MAPS, new_config_map(x="1"))
    status, found = await apply(call, new_config_map(x="2"))
    assert (status, found["reason"]) == (409, "Conflict")
    assert found["message"] == 'Apply failed with 1 conflict: conflict with "unknown" using v1: .data.x'
    [cause] = found["details"]["causes"]
    assert cause == {
        "reason": "FieldManagerConflict",
        "message": 'conflict with "unknown" using v1',
        "field": ".data.x",
    }
    status, found = await apply(call, new_config_map(x="2"), force="true")
    assert (status, found["data"]) == (200, {"x": "2"})
    assert managers(found) == {"a Apply": {"f:data": {"f:x": {}}}, "unknown Update": {"f:data": {}}}


async def test_field_no_longer_applied_is_removed(call: ServerClient) -> None:
    await apply(call, new_config_map(x="1", y="1"))
    await apply(call, new_config_map(z="1"), "b")
    _, found = await apply(call, new_config_map(y="1"))
    assert found["data"] == {"y": "1", "z": "1"}


async def test_fields_set_by_server_are_unowned(call: ServerClient) -> None:
    created = await call.made(PODS, new_pod())
    assert created["spec"]["tolerations"]
    [fields] = managers(created).values()
    assert "f:tolerations" not in fields["f:spec"]
    assert "f:metadata" not in fields
    assert fields["f:spec"]["f:containers"]['k:{"name":"c"}']["f:imagePullPolicy"] == {}  # the writer owns defaults


async def test_manager_defaults_to_user_agent(call: ServerClient) -> None:
    headers = {"content-type": "application/json", "user-agent": "kubelet/v1.34 (linux)"}
    body = msgspec.json.encode(new_config_map(x="1"))
    answer = await call.server.handle(Call("POST", MAPS, {}, headers, body, ADMIN))
    assert isinstance(answer, ApiResponse)
    assert [*managers(msgspec.json.decode(answer.body))] == ["kubelet Update"]
    _, found = await call("PATCH", f"{MAPS}/c", {"data": {"y": "1"}}, kind=MERGE, fieldManager="me")
    assert managers(found)["me Update"] == {"f:data": {"f:y": {}}}


async def test_status_write_owns_only_status(call: ServerClient) -> None:
    await apply(call, new_deployment(replicas=1), path=f"{DEPLOYMENTS}/d")
    patch = {"spec": {"replicas": 9}, "status": {"replicas": 1}}
    _, found = await call("PATCH", f"{DEPLOYMENTS}/d/status", patch, kind=MERGE, fieldManager="k")
    assert managers(found)["k Update"] == {"f:status": {"f:replicas": {}}}
    assert found["spec"]["replicas"] == 1
    [entry] = [each for each in found["metadata"]["managedFields"] if each["manager"] == "k"]
    assert entry["subresource"] == "status"


async def test_status_apply_requires_existing_object(call: ServerClient) -> None:
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "status": {"replicas": 1}}
    status, _ = await apply(call, body, path=f"{DEPLOYMENTS}/d/status")
    assert status == 404


async def test_scale_write_owns_replicas(call: ServerClient) -> None:
    await apply(call, new_deployment(replicas=1), path=f"{DEPLOYMENTS}/d")
    await call("PATCH", f"{DEPLOYMENTS}/d/scale", {"spec": {"replicas": 3}}, kind=MERGE, fieldManager="hpa")
    status, found = await apply(call, new_deployment(replicas=1), path=f"{DEPLOYMENTS}/d")
    assert status == 409
    assert 'conflict with "hpa" with subresource "scale" using apps/v1: .spec.replicas' in found["message"]


async def test_binding_changes_no_ownership(call: ServerClient) -> None:
    created = await call.made(PODS, new_pod())
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"name": "n"}}
    assert (await call("POST", f"{PODS}/p/binding", body))[0] == 201
    _, found = await call("GET", f"{PODS}/p")
    assert found["spec"]["nodeName"] == "n"
    assert found["metadata"]["managedFields"] == created["metadata"]["managedFields"]


async def test_put_without_managed_fields_keeps_them(call: ServerClient) -> None:
    await apply(call, new_config_map(x="1"))
    _, found = await call("PUT", f"{MAPS}/c", new_config_map(x="1", y="1"), fieldManager="m")
    assert managers(found) == {"a Apply": {"f:data": {"f:x": {}}}, "m Update": {"f:data": {"f:y": {}}}}


@pytest.mark.parametrize("entries", [[], [{}]])
async def test_empty_managed_fields_reset_ownership(call: ServerClient, entries: list[Object]) -> None:
    await apply(call, new_config_map(x="1"))
    patch = [{"op": "replace", "path": "/metadata/managedFields", "value": entries}]
    status, found = await call("PATCH", f"{MAPS}/c", patch, kind=JSON_PATCH)
    assert (status, "managedFields" in found["metadata"]) == (200, False)


async def test_writer_may_change_managed_fields(call: ServerClient) -> None:
    created = await call.made(MAPS, new_config_map(x="1"))
    [entry] = created["metadata"]["managedFields"]
    patch = {"metadata": {"managedFields": [{**entry, "manager": "b", "operation": "Apply"}]}}
    _, found = await call("PATCH", f"{MAPS}/c", patch, kind=MERGE)
    assert [*managers(found)] == ["b Apply"]


async def test_invalid_managed_fields_are_ignored(call: ServerClient) -> None:
    created = await call.made(MAPS, new_config_map(x="1"))
    patch = {"metadata": {"managedFields": [{"manager": "b"}]}}
    assert await call("PATCH", f"{MAPS}/c", patch, kind=MERGE) == (200, created)


async def test_kubectl_migrates_from_annotation_without_conflicts(call: ServerClient) -> None:
    body = new_config_map(x="1")
    annotated = {**body, "metadata": {"name": "c", "annotations": {LAST_APPLIED: msgspec.json.encode(body).decode()}}}
    await call("POST", MAPS, annotated, fieldManager="kubectl-client-side-apply")
    assert (await apply(call, new_config_map(x="2"), "other"))[0] == 409
    status, found = await apply(call, new_config_map(x="2"), "kubectl")
    assert (status, found["data"]) == (200, {"x": "2"})
    assert msgspec.json.decode(found["metadata"]["annotations"][LAST_APPLIED])["data"] == {"x": "2"}


async def test_dry_run_changes_nothing(call: ServerClient) -> None:
    assert (await apply(call, new_config_map(x="1"), dryRun="All"))[0] == 201
    assert (await call("GET", f"{MAPS}/c"))[0] == 404


@pytest.mark.parametrize(
    ("body", "query", "status", "text"),
    [
        (new_config_map(), {"fieldManager": ""}, 422, "fieldManager: Required value: is required for apply patch"),
        ({**new_config_map(), "metadata": {"managedFields": []}}, {}, 400, "metadata.managedFields must be nil"),
        ({**new_config_map(), "kind": "Secret"}, {}, 400, "invalid object type: /v1, Kind=Secret"),
        ({**new_config_map(), "date": {}}, {}, 500, ".date: field not declared in schema"),
        ({**new_config_map(), "metadata": {"name": "other"}}, {}, 400, "does not match the name on the URL"),
        ({**new_config_map(), "metadata": {"uid": "u"}}, {}, 409, "uid mismatch"),
        ({**new_config_map(), "metadata": []}, {}, 400, "not an object"),
        ([], {}, 400, "error decoding YAML: json: cannot unmarshal array into Go value of type map"),
    ],
)
async def test_invalid_apply_is_rejected(
    call: ServerClient, body: Any, query: dict[str, str], status: int, text: str
) -> None:
    found = await call("PATCH", f"{MAPS}/c", body, kind=APPLY, **{"fieldManager": "a", **query})
    assert found[0] == status
    assert text in found[1]["message"]


async def test_force_is_rejected_for_other_patches(call: ServerClient) -> None:
    await call.made(MAPS, new_config_map())
    status, found = await call("PATCH", f"{MAPS}/c", {}, kind=MERGE, force="true")
    assert status == 422
    assert "force: Forbidden: may not be specified for non-apply patch" in found["message"]


async def test_first_apply_records_existing_fields() -> None:
    table = published_api()
    [row] = [each for each in table.resources if each.resource.name == "configmaps"]
    field_manager = FieldManager(MergeSchemas(table.schemas), lambda: datetime.now(UTC), tracks_from_creation=False)
    request = WriteRequest("create", Target(row, "default", "c"), ADMIN, {"fieldManager": "m"})
    created = await field_manager.track_update(request, None, new_config_map(x="1"))
    assert created == new_config_map(x="1")
    apply_request = WriteRequest("patch", Target(row, "default", "c"), ADMIN, {"fieldManager": "a"}, APPLY)
    found = field_manager.apply(apply_request, created, new_config_map(x="1", y="1"))
    assert managers(found) == {
        "a Apply": {"f:data": {"f:x": {}, "f:y": {}}},
        "before-first-apply Update": {"f:data": {".": {}, "f:x": {}}},
    }
    later = await field_manager.track_update(request, found, {**found, "data": {"x": "2"}})
    assert managers(later)["m Update"] == {"f:data": {"f:x": {}}}


@pytest.mark.parametrize("setting", ["Always", "AfterApply"])
async def test_managed_fields_setting_controls_tracking(
    setting: Literal["Always", "AfterApply"], tmp_path: Path
) -> None:
    config = ApiServerConfig(backend="memory", managed_fields=setting)
    store = LocalStore(MemoryLog(), ThreadPoolExecutor(1))
    load_keys = partial(load_token_keys, tmp_path / "key")
    accounts = ServiceAccountTokens(store, load_keys, "https://here", lambda: datetime.now(UTC))
    server = build_server(
        config, store, accounts, build_authenticators(config, accounts.now, accounts), lambda: datetime.now(UTC)
    )
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n", "labels": {"a": "b"}}}
    status, created = await ServerClient(server, accounts)("POST", "/api/v1/namespaces", namespace, dryRun="All")
    assert (status, "managedFields" in created["metadata"]) == (201, setting == "Always")
