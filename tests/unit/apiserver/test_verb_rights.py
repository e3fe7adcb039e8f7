"""Authorization per verb: every creation requires `create`, including by PUT and apply."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import User
from tapestry.kube.objects import Object

from .conftest import ServerClient

RBAC = "/apis/rbac.authorization.k8s.io/v1"
GROUP = "rbac.authorization.k8s.io"
APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
EVE = User("eve", ("system:authenticated",))
MAPS = "/api/v1/namespaces/default/configmaps"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
THINGS = "/apis/example.com/v1/namespaces/default/things"
CRD: Object = {
    "metadata": {"name": "things.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"kind": "Thing", "plural": "things"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
                "subresources": {"status": {}},
            }
        ],
    },
}


@pytest.fixture(params=["memory", "file"])
async def call(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ServerClient]:
    here = {"file_rootpath": str(tmp_path), "service_account_issuer": "https://here"}
    config = ApiServerConfig(backend=request.param, secure_address="", pod_accounts=False, **here)
    async with run_apiserver(config) as running:
        client = ServerClient(running.server, running.account_tokens)
        await client.made("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", CRD)
        yield client


async def grant_to_eve(
    call: ServerClient, verbs: str, resources: str = "*", names: tuple[str, ...] = ()
) -> ServerClient:
    """Grant Eve these verbs and return her client."""
    rule: Object = {"verbs": verbs.split(","), "apiGroups": ["*"], "resources": resources.split(",")}
    if names:
        rule["resourceNames"] = list(names)
    await call.made(f"{RBAC}/clusterroles", {"metadata": {"name": "eves"}, "rules": [rule]})
    subject = {"kind": "User", "name": "eve", "apiGroup": GROUP}
    reference = {"kind": "ClusterRole", "name": "eves", "apiGroup": GROUP}
    binding = {"metadata": {"name": "eves"}, "roleRef": reference, "subjects": [subject]}
    await call.made(f"{RBAC}/clusterrolebindings", binding)
    return call.being(EVE)


def an(version: str, kind: str, **more: Any) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "new"}, **more}


ROLE = an(f"{GROUP}/v1", "ClusterRole", rules=[])
BINDING = an(
    f"{GROUP}/v1", "ClusterRoleBinding", roleRef={"apiGroup": GROUP, "kind": "ClusterRole", "name": "cluster-admin"}
)
MAP, LEASE = an("v1", "ConfigMap"), an("coordination.k8s.io/v1", "Lease")
POD = an("v1", "Pod", spec={"containers": [{"name": "c", "image": "i"}]})


@pytest.mark.parametrize("query", [{}, {"dryRun": "All"}])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", MAPS, MAP),
        ("PATCH", "/api/v1/namespaces/kube-system/pods", POD),
        ("PATCH", THINGS, an("example.com/v1", "Thing")),
        ("PATCH", f"{RBAC}/clusterroles", ROLE),
        ("PATCH", f"{RBAC}/clusterrolebindings", BINDING),
        ("PUT", LEASES, LEASE),
        ("PUT", f"{RBAC}/clusterroles", ROLE),
        ("PUT", "/api/v1/namespaces/default/events", an("v1", "Event")),
        ("PUT", "/api/v1/namespaces/default/services", an("v1", "Service", spec={"ports": [{"port": 1}]})),
    ],
)
async def test_apply_and_put_cannot_create_without_create(
    call: ServerClient, method: str, path: str, body: Object, query: dict[str, str]
) -> None:
    eve = await grant_to_eve(call, "patch,update,get,escalate,bind")
    kind = APPLY if method == "PATCH" else "application/json"
    status, result = await eve(method, f"{path}/new", body, kind=kind, fieldManager="eve", **query)
    assert (status, result["reason"]) == (403, "Forbidden")
    assert 'User "eve" cannot create resource' in result["message"]
    assert (await call("GET", f"{path}/new"))[0] == 404


@pytest.mark.parametrize(("method", "path", "body"), [("PATCH", MAPS, MAP), ("PUT", LEASES, LEASE)])
async def test_apply_and_put_create_with_both_rights(call: ServerClient, method: str, path: str, body: Object) -> None:
    eve = await grant_to_eve(call, "patch,update,create")
    kind = APPLY if method == "PATCH" else "application/json"
    assert (await eve(method, f"{path}/new", body, kind=kind, fieldManager="eve"))[0] in (200, 201)


async def test_create_alone_does_not_allow_apply_or_put(call: ServerClient) -> None:
    eve = await grant_to_eve(call, "create")
    assert (await eve("PATCH", f"{MAPS}/new", MAP, kind=APPLY, fieldManager="eve"))[0] == 403
    assert (await eve("PUT", f"{LEASES}/new", LEASE))[0] == 403


async def test_existing_object_is_applied_with_patch_alone(call: ServerClient) -> None:
    eve = await grant_to_eve(call, "patch,update")
    created = await call.made(MAPS, MAP)
    body = {**MAP, "data": {"a": "b"}}
    assert (await eve("PATCH", f"{MAPS}/new", body, kind=APPLY, fieldManager="eve"))[0] == 200
    assert (await eve("PUT", f"{MAPS}/new", {**MAP, "metadata": {"name": "new", "uid": created["metadata"]["uid"]}}))[
        0
    ] == 200


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
async def test_subresource_writes_create_nothing(call: ServerClient, method: str) -> None:
    eve = await grant_to_eve(call, "*")
    kind = APPLY if method == "PATCH" else "application/json"
    body = an("example.com/v1", "Thing", status={"a": 1})
    for path, sent in ((f"{THINGS}/new/status", body), ("/api/v1/namespaces/default/pods/new/status", POD)):
        assert (await eve(method, path, sent, kind=kind, fieldManager="eve"))[0] == 404


async def test_applied_roles_cannot_escalate(call: ServerClient) -> None:
    eve = await grant_to_eve(call, "patch,create,update", "clusterroles,clusterrolebindings")
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
    body = {**ROLE, "rules": [everything]}
    for method, kind in (("PATCH", APPLY), ("PUT", "application/json")):
        status, result = await eve(method, f"{RBAC}/clusterroles/new", body, kind=kind, fieldManager="eve")
        assert (status, "not currently held" in result["message"]) == (403, True)
        status, result = await eve(method, f"{RBAC}/clusterrolebindings/new", BINDING, kind=kind, fieldManager="eve")
        assert (status, "not currently held" in result["message"]) == (403, True)


async def test_delete_does_not_allow_deletecollection(call: ServerClient) -> None:
    await call.made(MAPS, MAP)
    eve = await grant_to_eve(call, "delete")
    for path in (MAPS, f"{MAPS}/", "/api/v1/configmaps"):
        assert (await eve("DELETE", path))[0] == 403
    assert (await call("GET", f"{MAPS}/new"))[0] == 200


async def test_field_selector_does_not_authorize_creation(call: ServerClient) -> None:
    eve = await grant_to_eve(call, "*", "secrets", names=("mine",))
    path = "/api/v1/namespaces/default/secrets"
    for name in ("evil", "mine"):
        body = {"metadata": {"name": name}}
        status, _ = await eve("POST", path, body, fieldSelector="metadata.name=mine")
        assert status == 403
    assert (await eve("GET", path, fieldSelector="metadata.name=mine"))[0] == 200
    assert (await eve("GET", path, fieldSelector="metadata.name=yours"))[0] == 403
    assert (await eve("DELETE", path, fieldSelector="metadata.name=mine"))[0] == 403


async def test_local_review_is_limited_to_its_namespace(call: ServerClient) -> None:
    eve = await grant_to_eve(call, "create", "localsubjectaccessreviews")
    path = "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews"
    about = {"verb": "get", "resource": "secrets", "namespace": "default"}
    assert (await eve("POST", path, {"spec": {"user": "bob", "resourceAttributes": about}}))[0] == 201
    other = {"user": "bob", "resourceAttributes": {**about, "namespace": "kube-system"}}
    with_path = {"user": "bob", "resourceAttributes": about, "nonResourceAttributes": {"verb": "get", "path": "/x"}}
    for spec in (other, with_path):
        assert (await eve("POST", path, {"spec": spec}))[0] == 422
