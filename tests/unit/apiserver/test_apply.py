"""Server-side apply at the server: what is answered, what is stored, and who owns it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from tapestry.apiserver.access.service_account_tokens import ServiceAccountTokens
from tapestry.apiserver.access.token_keys import load_token_keys
from tapestry.apiserver.app import build_authenticators, build_server
from tapestry.apiserver.config import ApiServerConfig
from tapestry.apiserver.fieldmanager.apply import LAST_APPLIED, FieldManager
from tapestry.apiserver.fieldmanager.merge_schemas import MergeSchemas
from tapestry.apiserver.requests import Call, Target
from tapestry.apiserver.resource_registry import published_api
from tapestry.apiserver.server import ApiResponse
from tapestry.apiserver.storage.local_store import LocalStore
from tapestry.apiserver.storage.memory_log import MemoryLog
from tapestry.apiserver.verbs import WriteRequest
from tapestry.kube.objects import Object

from .conftest import ADMIN, Hand

APPLY, MERGE, JSON_PATCH = "application/apply-patch+yaml", "application/merge-patch+json", "application/json-patch+json"
MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


def a_map(**data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data}


def a_pod() -> Object:
    spec = {"containers": [{"name": "c", "image": "nginx:1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def a_deployment(**spec: Any) -> Object:
    template = {"metadata": {"labels": {"app": "w"}}, "spec": {"containers": [{"name": "c", "image": "nginx:1"}]}}
    whole = {"selector": {"matchLabels": {"app": "w"}}, "template": template, **spec}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": whole}


async def apply(call: Hand, body: Object, manager: str = "a", path: str = f"{MAPS}/c", **query: str) -> tuple[int, Any]:
    return await call("PATCH", path, body, kind=APPLY, fieldManager=manager, **query)


def managers(obj: Object) -> dict[str, Any]:
    return {f"{each['manager']} {each['operation']}": each["fieldsV1"] for each in obj["metadata"]["managedFields"]}


async def test_what_is_not_there_is_created(call: Hand) -> None:
    status, made = await apply(call, a_map(x="1"))
    assert (status, made["data"]) == (201, {"x": "1"})
    assert managers(made) == {"a Apply": {"f:data": {"f:x": {}}}}


async def test_yaml_is_applied_as_well(call: Hand) -> None:
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {x: '1'}\n"
    status, made = await call("PATCH", f"{MAPS}/c", body, kind=APPLY, fieldManager="a")
    assert (status, made["data"]) == (201, {"x": "1"})


async def test_to_apply_the_same_again_makes_no_version(call: Hand) -> None:
    _, made = await apply(call, a_map(x="1"))
    assert await apply(call, a_map(x="1")) == (200, made)


async def test_the_namespace_must_be_there(call: Hand) -> None:
    status, found = await apply(call, a_map(x="1"), path="/api/v1/namespaces/nowhere/configmaps/c")
    assert (status, found["reason"]) == (404, "NotFound")


async def test_others_values_are_not_changed_unless_by_force(call: Hand) -> None:
    await call.made(MAPS, a_map(x="1"))
    status, found = await apply(call, a_map(x="2"))
    assert (status, found["reason"]) == (409, "Conflict")
    assert found["message"] == 'Apply failed with 1 conflict: conflict with "unknown" using v1: .data.x'
    [cause] = found["details"]["causes"]
    assert cause == {
        "reason": "FieldManagerConflict",
        "message": 'conflict with "unknown" using v1',
        "field": ".data.x",
    }
    status, found = await apply(call, a_map(x="2"), force="true")
    assert (status, found["data"]) == (200, {"x": "2"})
    assert managers(found) == {"a Apply": {"f:data": {"f:x": {}}}, "unknown Update": {"f:data": {}}}


async def test_what_is_no_longer_applied_goes(call: Hand) -> None:
    await apply(call, a_map(x="1", y="1"))
    await apply(call, a_map(z="1"), "b")
    _, found = await apply(call, a_map(y="1"))
    assert found["data"] == {"y": "1", "z": "1"}


async def test_nobody_owns_what_admission_and_the_server_add(call: Hand) -> None:
    made = await call.made(PODS, a_pod())
    assert made["spec"]["tolerations"]
    [fields] = managers(made).values()
    assert "f:tolerations" not in fields["f:spec"]
    assert "f:metadata" not in fields
    assert fields["f:spec"]["f:containers"]['k:{"name":"c"}']["f:imagePullPolicy"] == {}  # a default is the writer's


async def test_the_manager_of_a_write_is_the_program_unless_it_names_one(call: Hand) -> None:
    headers = {"content-type": "application/json", "user-agent": "kubelet/v1.34 (linux)"}
    body = msgspec.json.encode(a_map(x="1"))
    answer = await call.server.handle(Call("POST", MAPS, {}, headers, body, ADMIN))
    assert isinstance(answer, ApiResponse)
    assert [*managers(msgspec.json.decode(answer.body))] == ["kubelet Update"]
    _, found = await call("PATCH", f"{MAPS}/c", {"data": {"y": "1"}}, kind=MERGE, fieldManager="me")
    assert managers(found)["me Update"] == {"f:data": {"f:y": {}}}


async def test_a_write_to_the_status_owns_nothing_else(call: Hand) -> None:
    await apply(call, a_deployment(replicas=1), path=f"{DEPLOYMENTS}/d")
    patch = {"spec": {"replicas": 9}, "status": {"replicas": 1}}
    _, found = await call("PATCH", f"{DEPLOYMENTS}/d/status", patch, kind=MERGE, fieldManager="k")
    assert managers(found)["k Update"] == {"f:status": {"f:replicas": {}}}
    assert found["spec"]["replicas"] == 1
    [entry] = [each for each in found["metadata"]["managedFields"] if each["manager"] == "k"]
    assert entry["subresource"] == "status"


async def test_a_status_cannot_be_applied_to_nothing(call: Hand) -> None:
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "status": {"replicas": 1}}
    status, _ = await apply(call, body, path=f"{DEPLOYMENTS}/d/status")
    assert status == 404


async def test_who_scales_owns_the_replicas(call: Hand) -> None:
    await apply(call, a_deployment(replicas=1), path=f"{DEPLOYMENTS}/d")
    await call("PATCH", f"{DEPLOYMENTS}/d/scale", {"spec": {"replicas": 3}}, kind=MERGE, fieldManager="hpa")
    status, found = await apply(call, a_deployment(replicas=1), path=f"{DEPLOYMENTS}/d")
    assert status == 409
    assert 'conflict with "hpa" with subresource "scale" using apps/v1: .spec.replicas' in found["message"]


async def test_a_binding_is_nobodys(call: Hand) -> None:
    made = await call.made(PODS, a_pod())
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"name": "n"}}
    assert (await call("POST", f"{PODS}/p/binding", body))[0] == 201
    _, found = await call("GET", f"{PODS}/p")
    assert found["spec"]["nodeName"] == "n"
    assert found["metadata"]["managedFields"] == made["metadata"]["managedFields"]


async def test_a_writer_that_does_not_know_of_managers_does_not_lose_them(call: Hand) -> None:
    await apply(call, a_map(x="1"))
    _, found = await call("PUT", f"{MAPS}/c", a_map(x="1", y="1"), fieldManager="m")
    assert managers(found) == {"a Apply": {"f:data": {"f:x": {}}}, "m Update": {"f:data": {"f:y": {}}}}


@pytest.mark.parametrize("entries", [[], [{}]])
async def test_managers_are_forgotten_when_a_writer_says_so(call: Hand, entries: list[Object]) -> None:
    await apply(call, a_map(x="1"))
    patch = [{"op": "replace", "path": "/metadata/managedFields", "value": entries}]
    status, found = await call("PATCH", f"{MAPS}/c", patch, kind=JSON_PATCH)
    assert (status, "managedFields" in found["metadata"]) == (200, False)


async def test_a_writer_may_hand_its_fields_to_another(call: Hand) -> None:
    made = await call.made(MAPS, a_map(x="1"))
    [entry] = made["metadata"]["managedFields"]
    patch = {"metadata": {"managedFields": [{**entry, "manager": "b", "operation": "Apply"}]}}
    _, found = await call("PATCH", f"{MAPS}/c", patch, kind=MERGE)
    assert [*managers(found)] == ["b Apply"]


async def test_an_account_that_is_none_is_not_taken(call: Hand) -> None:
    made = await call.made(MAPS, a_map(x="1"))
    patch = {"metadata": {"managedFields": [{"manager": "b"}]}}
    assert await call("PATCH", f"{MAPS}/c", patch, kind=MERGE) == (200, made)


async def test_kubectl_moves_on_from_its_annotation_without_conflicts(call: Hand) -> None:
    body = a_map(x="1")
    annotated = {**body, "metadata": {"name": "c", "annotations": {LAST_APPLIED: msgspec.json.encode(body).decode()}}}
    await call("POST", MAPS, annotated, fieldManager="kubectl-client-side-apply")
    assert (await apply(call, a_map(x="2"), "other"))[0] == 409
    status, found = await apply(call, a_map(x="2"), "kubectl")
    assert (status, found["data"]) == (200, {"x": "2"})
    assert msgspec.json.decode(found["metadata"]["annotations"][LAST_APPLIED])["data"] == {"x": "2"}


async def test_a_dry_run_changes_nothing(call: Hand) -> None:
    assert (await apply(call, a_map(x="1"), dryRun="All"))[0] == 201
    assert (await call("GET", f"{MAPS}/c"))[0] == 404


@pytest.mark.parametrize(
    ("body", "query", "status", "words"),
    [
        (a_map(), {"fieldManager": ""}, 422, "fieldManager: Required value: is required for apply patch"),
        ({**a_map(), "metadata": {"managedFields": []}}, {}, 400, "metadata.managedFields must be nil"),
        ({**a_map(), "kind": "Secret"}, {}, 400, "invalid object type: /v1, Kind=Secret"),
        ({**a_map(), "date": {}}, {}, 500, ".date: field not declared in schema"),
        ({**a_map(), "metadata": {"name": "other"}}, {}, 400, "does not match the name on the URL"),
        ({**a_map(), "metadata": {"uid": "u"}}, {}, 409, "uid mismatch"),
        ({**a_map(), "metadata": []}, {}, 400, "not an object"),
        ([], {}, 400, "error decoding YAML: json: cannot unmarshal array into Go value of type map"),
    ],
)
async def test_what_cannot_be_applied_is_refused(
    call: Hand, body: Any, query: dict[str, str], status: int, words: str
) -> None:
    found = await call("PATCH", f"{MAPS}/c", body, kind=APPLY, **{"fieldManager": "a", **query})
    assert found[0] == status
    assert words in found[1]["message"]


async def test_only_an_apply_can_be_forced(call: Hand) -> None:
    await call.made(MAPS, a_map())
    status, found = await call("PATCH", f"{MAPS}/c", {}, kind=MERGE, force="true")
    assert status == 422
    assert "force: Forbidden: may not be specified for non-apply patch" in found["message"]


async def test_an_account_kept_only_after_an_apply_begins_with_everything_that_was_there() -> None:
    table = published_api()
    [row] = [each for each in table.resources if each.resource.name == "configmaps"]
    ownership = FieldManager(MergeSchemas(table.schemas), lambda: datetime.now(UTC), tracks_from_creation=False)
    request = WriteRequest("create", Target(row, "default", "c"), ADMIN, {"fieldManager": "m"})
    made = await ownership.track_update(request, None, a_map(x="1"))
    assert made == a_map(x="1")
    applying = WriteRequest("patch", Target(row, "default", "c"), ADMIN, {"fieldManager": "a"}, APPLY)
    found = ownership.apply(applying, made, a_map(x="1", y="1"))
    assert managers(found) == {
        "a Apply": {"f:data": {"f:x": {}, "f:y": {}}},
        "before-first-apply Update": {"f:data": {".": {}, "f:x": {}}},
    }
    later = await ownership.track_update(request, found, {**found, "data": {"x": "2"}})
    assert managers(later)["m Update"] == {"f:data": {"f:x": {}}}


@pytest.mark.parametrize("setting", ["Always", "AfterApply"])
async def test_the_configuration_says_of_which_objects_account_is_kept(
    setting: Literal["Always", "AfterApply"], tmp_path: Path
) -> None:
    config = ApiServerConfig(backend="memory", managed_fields=setting)
    store = LocalStore(MemoryLog())
    accounts = ServiceAccountTokens(store, load_token_keys(tmp_path / "key"), "https://here", lambda: datetime.now(UTC))
    server = build_server(config, store, accounts, build_authenticators(config, accounts), lambda: datetime.now(UTC))
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n", "labels": {"a": "b"}}}
    status, made = await Hand(server, accounts)("POST", "/api/v1/namespaces", namespace, dryRun="All")
    assert (status, "managedFields" in made["metadata"]) == (201, setting == "Always")
