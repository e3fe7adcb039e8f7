"""Comparison of RBAC decisions on our API server and on a kube-apiserver."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tapestry.apiserver import bootstrap
from tapestry.apiserver.assembly import (
    build_account_tokens,
    build_authenticators,
    build_limiters,
    build_request_handler,
    build_server,
)
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import Call, User
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.apiserver.serving.request_handler import RequestHandler
from tapestry.apiserver.storage.local_store import LocalStore
from tapestry.apiserver.storage.log import MemoryLog
from tapestry.kube.objects import Object
from tapestry.local.kubernetes import ControlPlane

GROUP = "rbac.authorization.k8s.io"
RBAC = f"/apis/{GROUP}/v1"
ROLES, BINDINGS = f"{RBAC}/clusterroles", f"{RBAC}/clusterrolebindings"
HERE = f"{RBAC}/namespaces/default"
REVIEWS = "/apis/authorization.k8s.io/v1"
WHOAMI = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
MERGE, APPLY = "application/merge-patch+json", "application/apply-patch+yaml"
CORE, LEASES = "/api/v1/namespaces/default", "/apis/coordination.k8s.io/v1/namespaces/default/leases"
VOLATILE = ("creationTimestamp", "uid", "resourceVersion", "managedFields", "generation")

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Ours:
    handler: RequestHandler

    async def __call__(self, method: str, path: str, body: Any, kind: str, named: Headers) -> tuple[int, Any]:
        raw = msgspec.json.encode(body) if body is not None else b""
        path, _, query = path.partition("?")
        pairs = dict(each.partition("=")[::2] for each in query.split("&") if each)
        admin = User("admin", ("system:masters", "system:authenticated"), "admin")
        answer = await self.handler.handle(Call(method, path, pairs, {"content-type": kind}, raw, admin, named))
        assert isinstance(answer, ApiResponse)
        return answer.status, read(answer.body)


@dataclass(frozen=True)
class Theirs:
    plane: ControlPlane
    session: aiohttp.ClientSession

    async def __call__(self, method: str, path: str, body: Any, kind: str, named: Headers) -> tuple[int, Any]:
        raw = msgspec.json.encode(body) if body is not None else None
        headers = [("Authorization", f"Bearer {self.plane.token}"), ("Content-Type", kind), *named]
        async with self.session.request(method, f"{self.plane.url}{path}", data=raw, headers=headers) as answer:
            return answer.status, read(await answer.read())


def read(body: bytes) -> Any:
    return msgspec.json.decode(body) if body[:1] == b"{" else body.decode()


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncIterator[Ours]:
    config = ApiServerConfig(backend="memory", pod_accounts=False)

    def now() -> datetime:
        return datetime.now(UTC)

    store = LocalStore(MemoryLog(), ThreadPoolExecutor(1))
    accounts = build_account_tokens(config, store, tmp_path, now)
    server = build_server(config, store, accounts, build_authenticators(config, accounts.now, accounts), now)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(store.run())
        await bootstrap.install(server)
        yield Ours(build_request_handler(config, server, accounts, build_limiters(config)))
        await server.close()
        running.cancel()
    store.close()


@pytest.fixture
async def theirs(control_plane: ControlPlane) -> AsyncIterator[Theirs]:
    tls = ssl.create_default_context(cafile=str(control_plane.ca))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session:
        yield Theirs(control_plane, session)


def as_user(name: str, *groups: str, **more: str) -> Headers:
    found = [("impersonate-user", name), *(("impersonate-group", group) for group in groups)]
    return (*found, *((f"impersonate-{key.replace('_', '-')}", value) for key, value in more.items()))


BOB = as_user("rights-bob", "devs", "system:authenticated")
DAVE = as_user("rights-dave", "system:authenticated")
ANONYMOUS = as_user("system:anonymous")


@dataclass(frozen=True)
class Ask:
    method: str
    path: str
    body: Any = None
    named: Headers = ()
    kind: str = "application/json"


def post(path: str, body: Any, named: Headers = BOB) -> Ask:
    return Ask("POST", path, body, named)


def role(name: str, *rules: Object, **more: Any) -> Object:
    return {"metadata": {"name": f"rights-{name}"}, "rules": list(rules), **more}


def rule(verbs: str, resources: str, groups: str = "", **more: Any) -> Object:
    return {"verbs": verbs.split(","), "apiGroups": groups.split(","), "resources": resources.split(","), **more}


def binding(name: str, bound: str, *subjects: Object, kind: str = "ClusterRole") -> Object:
    bob = {"apiGroup": GROUP, "kind": "User", "name": "rights-bob"}
    reference = {"apiGroup": GROUP, "kind": kind, "name": bound}
    return {"metadata": {"name": f"rights-{name}"}, "roleRef": reference, "subjects": list(subjects) or [bob]}


def access(user: str, groups: list[str], **attributes: str) -> Object:
    kind = "nonResourceAttributes" if "path" in attributes else "resourceAttributes"
    return {"spec": {"user": user, "groups": groups, kind: attributes}}


WRITING = rule("create,update,patch,get", "clusterroles,clusterrolebindings,roles,rolebindings", GROUP)
PREPARED = [
    post(
        ROLES, role("bobs", WRITING, rule("get,list", "pods,pods/log"), rule("get", "secrets", resourceNames=["a"])), ()
    ),
    post(BINDINGS, binding("bobs", "rights-bobs"), ()),
    post(ROLES, role("secrets", rule("get,watch", "secrets")), ()),
    post(ROLES, role("binder", rule("bind", "clusterroles", GROUP, resourceNames=["cluster-admin"])), ()),
    post(BINDINGS, binding("carol", "rights-binder", {"apiGroup": GROUP, "kind": "User", "name": "rights-carol"}), ()),
    post(f"{HERE}/roles", role("local", rule("get", "nodes")), ()),
    post(
        ROLES,
        role(
            "daves",
            rule("patch,update", "configmaps,leases,clusterroles", f",coordination.k8s.io,{GROUP}"),
            rule("*", "secrets", resourceNames=["mine"]),
            rule("create", "localsubjectaccessreviews", "authorization.k8s.io"),
        ),
        (),
    ),
    post(BINDINGS, binding("daves", "rights-daves", {"apiGroup": GROUP, "kind": "User", "name": "rights-dave"}), ()),
]
APPLIED = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "rights-new"}}
PUT = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "rights-new"}}
REQUESTS: Mapping[str, Ask] = {
    "a role with more": post(ROLES, role("r1", rule("get,list,watch,delete", "pods,nodes,pods/exec", ",apps"))),
    "a role with paths": post(ROLES, role("r2", {"verbs": ["get", "post"], "nonResourceURLs": ["/metrics", "/x/*"]})),
    "a role with names": post(ROLES, role("r3", rule("get,list", "secrets", resourceNames=["a", "b"]))),
    "a role with everything": post(ROLES, role("r4", rule("*", "*", "*"))),
    "a role with less": post(ROLES, role("r5", rule("get", "pods"))),
    "a role with nothing": post(ROLES, role("r6")),
    "an aggregated role": post(
        ROLES, role("r7", aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]})
    ),
    "a local role with more": post(f"{HERE}/roles", role("r8", rule("get", "pods"), rule("create", "pods"))),
    "a binding to more": post(BINDINGS, binding("b1", "rights-secrets")),
    "a binding to everything": post(BINDINGS, binding("b2", "cluster-admin")),
    "a binding to less": post(f"{BINDINGS}?dryRun=All", binding("b3", "rights-bobs")),
    "a binding to nothing": post(BINDINGS, binding("b4", "rights-ghost")),
    "a local binding to more": post(f"{HERE}/rolebindings", binding("b5", "rights-local", kind="Role")),
    "a local binding to nothing": post(f"{HERE}/rolebindings", binding("b6", "rights-ghost", kind="Role")),
    "a local binding to what is everywhere": post(f"{HERE}/rolebindings", binding("b7", "rights-bobs")),
    "an apply that creates": Ask("PATCH", f"{CORE}/configmaps/rights-new?fieldManager=m", APPLIED, DAVE, APPLY),
    "an apply that would create": Ask(
        "PATCH", f"{CORE}/configmaps/rights-new?fieldManager=m&dryRun=All", APPLIED, DAVE, APPLY
    ),
    "an apply of a role": Ask(
        "PATCH",
        f"{ROLES}/rights-new?fieldManager=m",
        {"apiVersion": f"{GROUP}/v1", "kind": "ClusterRole", **role("new")},
        DAVE,
        APPLY,
    ),
    "a put that creates": Ask("PUT", f"{LEASES}/rights-new", PUT, DAVE),
    "a put that would create": Ask("PUT", f"{LEASES}/rights-new?dryRun=All", PUT, DAVE),
    "a creation with a field selector": post(
        f"{CORE}/secrets?fieldSelector=metadata.name=mine", {"metadata": {"name": "rights-evil"}}, DAVE
    ),
    "a deletion of a collection with a field selector": Ask(
        "DELETE", f"{CORE}/secrets?fieldSelector=metadata.name=yours", None, DAVE
    ),
    "a change of labels": Ask("PATCH", f"{ROLES}/rights-secrets", {"metadata": {"labels": {"a": "b"}}}, BOB, MERGE),
    "a change of finalizers": Ask("PATCH", f"{ROLES}/rights-secrets", {"metadata": {"finalizers": []}}, BOB, MERGE),
    "a change of subjects": Ask("PATCH", f"{BINDINGS}/rights-carol", {"subjects": []}, BOB, MERGE),
    "no right to write roles": post(ROLES, role("r9"), as_user("rights-eve")),
    "masked by those who may not": Ask("GET", "/api/v1/pods", None, as_user("rights-eve")),
    "anonymous pods": Ask("GET", "/api/v1/pods", None, ANONYMOUS),
    "anonymous paths": Ask("GET", "/api", None, ANONYMOUS),
    "anonymous version": Ask("GET", "/healthz", None, ANONYMOUS),
    "anonymous whoami": Ask("POST", WHOAMI, {}, ANONYMOUS),
    "metrics for everybody": Ask("GET", "/metrics", None, as_user("rights-eve")),
    "a path that is none": Ask("GET", "/nowhere", None, as_user("rights-eve")),
    "a subresource": Ask("GET", "/api/v1/namespaces/default/pods/p/log", None, as_user("rights-eve")),
    "keys for everybody": Ask("GET", "/openid/v1/jwks", None, as_user("rights-eve")),
    "whoami": Ask("POST", WHOAMI, {}, as_user("rights-eve", "a", "b", uid="7", extra_scope="x")),
    "whoami of an account": Ask("POST", WHOAMI, {}, as_user("system:serviceaccount:default:robot")),
    "groups alone": Ask("GET", "/version", None, (("impersonate-group", "a"),)),
    "why bob may": post(f"{REVIEWS}/subjectaccessreviews", access("rights-bob", [], verb="get", resource="pods"), ()),
    "why bob may not": post(
        f"{REVIEWS}/subjectaccessreviews", access("rights-bob", [], verb="delete", resource="pods"), ()
    ),
    "why masters may": post(
        f"{REVIEWS}/subjectaccessreviews", access("x", ["system:masters"], verb="delete", resource="pods"), ()
    ),
    "why everybody may": post(
        f"{REVIEWS}/subjectaccessreviews", access("x", ["system:authenticated"], verb="get", path="/apis/"), ()
    ),
    "bob's own rights": post(f"{REVIEWS}/selfsubjectaccessreviews", access("", [], verb="list", resource="pods")),
}


def compared(status: int, found: Any) -> Any:
    if status >= 400:
        if not isinstance(found, dict) or status >= 500:
            return status
        details = {key: value for key, value in (found.get("details") or {}).items() if key != "causes"}
        return status, found.get("reason"), sorted(found["message"].split("\n")), details
    if not isinstance(found, dict):
        return status, found
    metadata = {key: value for key, value in (found.get("metadata") or {}).items() if key not in VOLATILE}
    return status, full({**found, "metadata": metadata})


def full(value: Any) -> Any:
    """Return `value` without empty fields, which each server represents differently."""
    if isinstance(value, dict):
        return {key: full(each) for key, each in value.items() if each not in (None, "", [], {})}
    return value


async def test_both_servers_authorize_alike(ours: Ours, theirs: Theirs) -> None:
    for ask in PREPARED:
        for side in (ours, theirs):
            status, found = await side(ask.method, ask.path, ask.body, ask.kind, ask.named)
            assert status == 201, found
    differences = {}
    for name, ask in REQUESTS.items():
        mine, other = [
            compared(*await side(ask.method, ask.path, ask.body, ask.kind, ask.named)) for side in (ours, theirs)
        ]
        if mine != other:
            differences[name] = (mine, other)
    for name in ("rolebindings", "roles"):
        await theirs("DELETE", f"{HERE}/{name}", None, "application/json", ())
    for place in (ROLES, BINDINGS):
        _, found = await theirs("GET", place, None, "application/json", ())
        for each in found["items"]:
            if each["metadata"]["name"].startswith("rights-"):
                await theirs("DELETE", f"{place}/{each['metadata']['name']}", None, "application/json", ())
    assert differences == {}


@pytest.mark.parametrize("plural", ["clusterroles", "clusterrolebindings", "roles", "rolebindings"])
async def test_default_roles_equal_those_of_kubernetes(ours: Ours, theirs: Theirs, plural: str) -> None:
    path = f"{RBAC}/{plural}?labelSelector=kubernetes.io/bootstrapping"
    sides = []
    for side in (ours, theirs):
        status, found = await side("GET", path, None, "application/json", ())
        assert status == 200
        sides.append([plain(each) for each in found["items"]])
    assert sides[0] == sides[1]
    assert sides[0]


def plain(obj: Object) -> Object:
    """Return a role without its identity and aggregated rules."""
    metadata = {key: value for key, value in obj["metadata"].items() if key not in VOLATILE}
    found = {key: value for key, value in obj.items() if value and key not in ("apiVersion", "kind")}
    return {**found, "metadata": metadata, **({"rules": None} if "aggregationRule" in obj else {})}
