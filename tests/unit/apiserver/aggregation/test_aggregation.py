"""Aggregated APIs: forwarding to a real HTTPS server, merged documents, and the limits of both."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from inspect import isawaitable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from tapestry.apiserver.access.certificates import CertificateAuthority, front_proxy_ca, server_ssl_context
from tapestry.apiserver.aggregation.proxy import user_headers
from tapestry.apiserver.aggregation.remote_documents import RemoteOpenApi, merged_v2, v2_part
from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.egress import AddressNotAllowed, EgressPolicy
from tapestry.apiserver.core.forwarding import forwarded_headers, request_target
from tapestry.apiserver.core.requests import APISERVER_USER, Call, User
from tapestry.apiserver.core.responses import ApiResponse, SessionResponse
from tapestry.kube.errors import BadRequest
from tapestry.kube.objects import Object

from ..conftest import ServerClient

GROUP = "/apis/shop.example.com/v1"
SERVICES, API_SERVICES = "/api/v1/namespaces/shop/services", "/apis/apiregistration.k8s.io/v1/apiservices"
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
RESOURCES = {
    "kind": "APIResourceList",
    "groupVersion": "shop.example.com/v1",
    "resources": [
        {"name": "orders", "singularName": "order", "namespaced": True, "kind": "Order", "verbs": ["get", "list"]},
        {"name": "orders/status", "singularName": "", "namespaced": True, "kind": "Order", "verbs": ["get"]},
    ],
}
ORDER = "com.example.shop.v1.Order"
META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
OPENAPI_V2 = {
    "paths": {
        f"{GROUP}/orders": {"get": {"responses": {"200": {"schema": {"$ref": f"#/definitions/{ORDER}"}}}}},
        "/apis/other.example.com/v1/x": {"get": {}},
    },
    "definitions": {
        ORDER: {"type": "object", "properties": {"metadata": {"$ref": f"#/definitions/{META}"}}},
        META: {"type": "object", "description": "an older version"},
        "unused": {},
    },
}


@dataclass
class Backend:
    """An aggregated API server that records requests. Paths without a response get their own path."""

    port: int = 0
    bundle: str = ""
    requests: list[web.BaseRequest] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    responses: dict[str, Any] = field(default_factory=dict)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        if request.query.get("watch") == "true":
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            for number in range(3):
                await response.write(json.dumps({"type": "ADDED", "object": {"n": number}}).encode() + b"\n")
            return response
        found = self.responses.get(request.path, {"path": request.path})
        result = found(request) if callable(found) else web.json_response(found)
        return await result if isawaitable(result) else result

    @property
    def documents_read(self) -> int:
        return sum(each.path == GROUP for each in self.requests)


@asynccontextmanager
async def backend_listening(folder: Path, client_ca: Path) -> AsyncIterator[Backend]:
    authority = CertificateAuthority(folder)
    files = authority.server_certificate(["orders.shop.svc"])
    context = server_ssl_context(*files, [client_ca])
    context.verify_mode = ssl.CERT_REQUIRED
    backend = Backend(bundle=base64.b64encode(authority.certificate_pem().encode()).decode())
    backend.responses[GROUP] = RESOURCES
    backend.responses["/openapi/v2"] = OPENAPI_V2
    url = f"/openapi/v3{GROUP}?hash=ABC123"
    backend.responses["/openapi/v3"] = {"paths": {GROUP[1:]: {"serverRelativeURL": url}}}
    runner = web.ServerRunner(web.Server(backend.handle, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    backend.port = runner.addresses[0][1]
    try:
        yield backend
    finally:
        await runner.cleanup()


@asynccontextmanager
async def serving(folder: Path, **options: Any) -> AsyncIterator[ServerClient]:
    settings = {"aggregation_allow_host": True, **options}
    config = ApiServerConfig(
        backend="memory", secure_address="", pod_accounts=False, file_rootpath=str(folder), **settings
    )
    async with run_apiserver(config) as running:
        yield ServerClient(running.server, running.account_tokens)


async def register(call: ServerClient, backend: Backend, **spec: Any) -> Object:
    await call.made("/api/v1/namespaces", {"metadata": {"name": "shop"}})
    await call.made(SERVICES, {"metadata": {"name": "orders"}, "spec": external("localhost")})
    return await call.made(API_SERVICES, api_service(backend, **spec))


def external(name: str) -> Object:
    return {"type": "ExternalName", "externalName": name}


def api_service(backend: Backend, **spec: Any) -> Object:
    service = {"namespace": "shop", "name": "orders", "port": backend.port}
    known = {"group": "shop.example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10}
    return {
        "metadata": {"name": "v1.shop.example.com"},
        "spec": {**known, "service": service, "caBundle": backend.bundle, **spec},
    }


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[tuple[ServerClient, Backend]]:
    ca = front_proxy_ca(tmp_path)
    ca.certificate_pem()
    async with backend_listening(tmp_path / "backend", ca.certificate_file) as backend, serving(tmp_path) as call:
        await register(call, backend)
        yield call, backend


async def test_request_is_forwarded_with_user(shop: tuple[ServerClient, Backend]) -> None:
    call, backend = shop
    user = User("ann é", ("system:masters", "b"), "u1", {"Scopes/x": ("read", "write")})
    body = b"k8s\x00any bytes"
    headers = {
        "content-type": "application/vnd.kubernetes.protobuf",
        "authorization": "Bearer secret",
        "x-remote-user": "root",
        "x_remote_group": "system:masters",
        "impersonate-user": "root",
        "x-own": "yes",
    }
    uri = f"{GROUP}/namespaces/a/orders?fieldManager=x%20y&z=1&z=2"
    request = Call("POST", f"{GROUP}/namespaces/a/orders", {}, headers, body, user, uri=uri, source_ip="10.1.2.3")
    response = await call.server.handle(request)
    assert isinstance(response, ApiResponse)
    assert (response.status, json.loads(response.body)) == (200, {"path": f"{GROUP}/namespaces/a/orders"})
    got = backend.requests[-1]
    assert got.query_string == "fieldManager=x y&z=1&z=2"
    assert backend.bodies[-1] == body
    assert got.headers.getall("X-Remote-User") == ["ann é"]
    assert got.headers.getall("X-Remote-Group") == ["system:masters", "b"]
    assert got.headers["X-Remote-Uid"] == "u1"
    assert got.headers.getall("X-Remote-Extra-scopes%2Fx") == ["read", "write"]
    assert (got.headers["X-Own"], got.headers["X-Forwarded-For"]) == ("yes", "10.1.2.3")
    assert got.headers["Content-Type"] == "application/vnd.kubernetes.protobuf"
    assert not {"Authorization", "Impersonate-User", "X_Remote_Group"} & set(got.headers)
    certificate = got.transport.get_extra_info("peercert") if got.transport else {}
    assert certificate["subject"] == ((("commonName", "front-proxy-client"),),)


class ClientConnection:
    """A client that sends nothing, and keeps what it receives until the server closes."""

    peer = "10.1.2.3"

    def __init__(self) -> None:
        self.received = b""
        self.closed = asyncio.Event()

    async def read(self) -> bytes:
        await self.closed.wait()
        return b""

    async def write(self, data: bytes) -> None:
        self.received += data

    async def close(self) -> None:
        self.closed.set()

    def abort(self) -> None:
        self.closed.set()


async def test_upgrade_is_forwarded_with_user(shop: tuple[ServerClient, Backend]) -> None:
    call, backend = shop

    async def console(request: web.BaseRequest) -> web.WebSocketResponse:
        response = web.WebSocketResponse(protocols=["plain"])
        await response.prepare(request)
        await response.send_str(f"hello {request.headers['X-Remote-User']}")
        await response.close()
        return response

    path = f"{GROUP}/namespaces/a/orders/o/console"
    backend.responses[path] = console
    headers = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": base64.b64encode(bytes(16)).decode(),
        "sec-websocket-protocol": "plain",
        "authorization": "Bearer secret",
        "x-remote-user": "root",
    }
    request = Call("GET", path, {}, headers, b"", User("ann", ("system:masters",)), is_upgrade=True)
    response = await call.server.handle(request)
    assert isinstance(response, SessionResponse)
    assert (response.headers["Upgrade"], response.headers["Sec-Websocket-Protocol"]) == ("websocket", "plain")
    client = ClientConnection()
    await response.run(client)
    response.end()
    assert client.received.startswith(b"\x81\x09hello ann")
    assert "Authorization" not in backend.requests[-1].headers
    assert request.audit_annotations["streams.tapestry.io/bytes-sent"] == str(len(client.received))
    assert call.server.aggregator.limiter.total == 0


async def test_refused_upgrade_is_passed_on(shop: tuple[ServerClient, Backend]) -> None:
    call, _ = shop
    headers = {"connection": "Upgrade", "upgrade": "websocket"}
    path = f"{GROUP}/namespaces/a/orders/o/console"
    user = User("ann", ("system:masters",))
    response = await call.server.handle(Call("GET", path, {}, headers, b"", user, is_upgrade=True))
    assert isinstance(response, ApiResponse)
    assert (response.status, "status code 200" in json.loads(response.body)["message"]) == (500, True)
    assert call.server.aggregator.limiter.total == 0


async def test_forwarded_call_is_authorized_first(shop: tuple[ServerClient, Backend]) -> None:
    call, backend = shop
    bob = call.being(User("bob", ("system:authenticated",)))
    path = f"{GROUP}/namespaces/a/orders"
    status, result = await bob("GET", path)
    assert status == 403
    assert 'cannot list resource "orders" in API group "shop.example.com" in the namespace "a"' in result["message"]
    assert (await bob("DELETE", f"{path}/x"))[0] == 403
    assert not backend.requests
    assert (await bob("GET", GROUP))[0] == 200  # discovery
    rules = [{"apiGroups": ["shop.example.com"], "resources": ["orders"], "verbs": ["list"]}]
    await call.made("/apis/rbac.authorization.k8s.io/v1/clusterroles", {"metadata": {"name": "r"}, "rules": rules})
    binding = {
        "metadata": {"name": "r"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "bob"}],
    }
    await call.made("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    assert (await bob("GET", path))[0] == 200
    assert (await bob("GET", path, watch="true"))[0] == 403


@pytest.mark.parametrize(
    "path", ["namespaces/a/../b/orders", "namespaces/a/./orders", "namespaces//orders", "a%2Fb", "%2e%2e/orders"]
)
async def test_ambiguous_paths_are_not_forwarded(shop: tuple[ServerClient, Backend], path: str) -> None:
    call, backend = shop
    assert (await call("GET", f"{GROUP}/{path}"))[0] == 404
    assert not backend.requests


async def test_watch_is_streamed(shop: tuple[ServerClient, Backend]) -> None:
    call, _ = shop
    response = await call.answer("GET", f"{GROUP}/orders", watch="true")
    assert isinstance(response, ApiResponse)
    assert response.stream is not None
    chunks = b"".join([chunk async for chunk in response.stream.chunks()])
    assert [json.loads(line)["object"]["n"] for line in chunks.splitlines()] == [0, 1, 2]
    response.stream.end()


async def test_errors_and_redirects_of_the_server(shop: tuple[ServerClient, Backend]) -> None:
    call, backend = shop
    status = {"kind": "Status", "code": 409, "message": "no"}
    backend.responses[f"{GROUP}/orders"] = lambda _: web.json_response(status, status=409)
    assert await call("GET", f"{GROUP}/orders") == (409, status)
    backend.responses[f"{GROUP}/orders"] = lambda _: web.Response(status=302, headers={"Location": "https://x"})
    code, result = await call("GET", f"{GROUP}/orders")
    assert (code, result["reason"]) == (503, "ServiceUnavailable")
    assert "redirect" in result["message"]
    backend.responses[f"{GROUP}/orders"] = lambda _: web.Response(status=304, headers={"ETag": '"1"'})
    response = await call.answer("GET", f"{GROUP}/orders")
    assert isinstance(response, ApiResponse)
    assert (response.status, response.body, response.headers["ETag"]) == (304, b"", '"1"')


async def test_slow_server_times_out(tmp_path: Path) -> None:
    ca = front_proxy_ca(tmp_path)
    ca.certificate_pem()
    async with (
        backend_listening(tmp_path / "backend", ca.certificate_file) as backend,
        serving(tmp_path, request_timeout=0.3) as call,
    ):
        await register(call, backend)
        silence = asyncio.Event()

        async def wait(_: web.BaseRequest) -> web.Response:
            await silence.wait()
            return web.Response()

        backend.responses[f"{GROUP}/orders"] = wait
        assert (await call("GET", f"{GROUP}/orders"))[0] == 504
        silence.set()


async def test_unreachable_server_is_unavailable(shop: tuple[ServerClient, Backend]) -> None:
    call, _ = shop
    _, service = await call("GET", f"{SERVICES}/orders")
    assert (await call("DELETE", f"{SERVICES}/orders"))[0] == 200
    code, result = await call("GET", f"{GROUP}/orders")
    assert (code, result["message"]) == (503, 'error trying to reach service: service "orders" not found')
    assert service["spec"]["type"] == "ExternalName"


async def test_certificate_of_server_is_verified(shop: tuple[ServerClient, Backend], tmp_path: Path) -> None:
    call, backend = shop
    other = CertificateAuthority(tmp_path / "other").certificate_pem()
    _, current = await call("GET", f"{API_SERVICES}/v1.shop.example.com")
    current["spec"]["caBundle"] = base64.b64encode(other.encode()).decode()
    _, current = await call("PUT", f"{API_SERVICES}/v1.shop.example.com", current)
    code, result = await call("GET", f"{GROUP}/orders")
    assert code == 503
    assert "certificate signed by unknown authority" in result["message"]
    assert not backend.requests
    del current["spec"]["caBundle"]
    current["spec"]["insecureSkipTLSVerify"] = True
    await call("PUT", f"{API_SERVICES}/v1.shop.example.com", current)
    assert (await call("GET", f"{GROUP}/orders"))[0] == 200


async def test_addresses_of_this_machine_need_configuration(tmp_path: Path) -> None:
    ca = front_proxy_ca(tmp_path)
    ca.certificate_pem()
    async with (
        backend_listening(tmp_path / "backend", ca.certificate_file) as backend,
        serving(tmp_path, aggregation_allow_host=False) as call,
    ):
        await register(call, backend)
        code, result = await call("GET", f"{GROUP}/orders")
        assert code == 503
        assert "address not allowed: 127.0.0.1" in result["message"] or "address not allowed: ::1" in result["message"]
        assert not backend.requests


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "169.254.169.254"])
def test_local_addresses_are_not_remote(address: str) -> None:
    with pytest.raises(AddressNotAllowed):
        EgressPolicy().check_api_server(address)
    EgressPolicy().check_api_server("192.0.2.1")


async def test_built_in_groups_are_never_forwarded(shop: tuple[ServerClient, Backend]) -> None:
    call, backend = shop
    spec = {"group": "apps", "version": "v1"}
    await call.made(API_SERVICES, {**api_service(backend, **spec), "metadata": {"name": "v1.apps"}})
    assert (await call("GET", "/apis/apps/v1/deployments"))[1]["kind"] == "DeploymentList"
    assert (await call("GET", "/apis/apps/v1"))[1]["kind"] == "APIResourceList"
    assert not backend.requests


async def test_discovery_is_merged(shop: tuple[ServerClient, Backend]) -> None:
    call, backend = shop
    groups = (await call("GET", "/apis"))[1]["groups"]
    assert {"shop.example.com", "apps"} <= {each["name"] for each in groups}
    assert (await call("GET", "/apis/shop.example.com"))[1]["preferredVersion"]["version"] == "v1"
    assert not backend.requests
    items = (await call("GET", "/apis", accept=AGGREGATED))[1]["items"]
    (found,) = [each for each in items if each["metadata"]["name"] == "shop.example.com"]
    (version,) = found["versions"]
    assert (version["version"], version["freshness"]) == ("v1", "Current")
    (resource,) = version["resources"]
    assert (resource["resource"], resource["scope"], resource["verbs"]) == ("orders", "Namespaced", ["get", "list"])
    assert resource["subresources"][0]["subresource"] == "status"
    await call("GET", "/apis", accept=AGGREGATED)
    assert backend.documents_read == 1


async def test_unavailable_server_is_stale_and_not_called(shop: tuple[ServerClient, Backend]) -> None:
    call, backend = shop
    await call("GET", "/apis", accept=AGGREGATED)
    _, current = await call("GET", f"{API_SERVICES}/v1.shop.example.com")
    condition = {"type": "Available", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    current["status"] = {"conditions": [condition]}
    assert (await call("PUT", f"{API_SERVICES}/v1.shop.example.com/status", current))[0] == 200
    items = (await call("GET", "/apis", accept=AGGREGATED))[1]["items"]
    (found,) = [each for each in items if each["metadata"]["name"] == "shop.example.com"]
    assert (found["versions"][0]["freshness"], len(found["versions"][0]["resources"])) == ("Stale", 1)
    assert backend.documents_read == 1
    status, result = await call("GET", f"{GROUP}/orders")
    assert (status, result["reason"]) == (503, "ServiceUnavailable")
    assert (await call.being(APISERVER_USER)("GET", GROUP))[0] == 200  # the next check
    assert (await call("DELETE", f"{API_SERVICES}/v1.shop.example.com"))[0] == 200
    items = (await call("GET", "/apis", accept=AGGREGATED))[1]["items"]
    assert all(each["metadata"]["name"] != "shop.example.com" for each in items)
    assert (await call("GET", f"{GROUP}/orders"))[0] == 404


async def test_unauthorized_users_cannot_cause_reads(shop: tuple[ServerClient, Backend]) -> None:
    call, backend = shop
    anonymous = call.being(User("system:anonymous", ("system:unauthenticated",)))
    for path in ("/apis", "/apis/", "/openapi/v2", "/openapi/v3", GROUP, f"{GROUP}/orders", f"/openapi/v3{GROUP}"):
        assert (await anonymous("GET", path, accept=AGGREGATED if path.startswith("/apis") else ""))[0] == 403
    assert not backend.requests


async def test_names_that_are_no_labels_are_not_called(shop: tuple[ServerClient, Backend]) -> None:
    call, backend = shop
    for name in ("127.0.0.1:1/x?", "a@b", "a.b"):
        spec = {"version": "v2", "service": {"namespace": "shop", "name": name, "port": backend.port}}
        created = await call.made(
            API_SERVICES, {**api_service(backend, **spec), "metadata": {"name": "v2.shop.example.com"}}
        )
        assert (await call("GET", "/apis/shop.example.com/v2/orders"))[0] == 404
        assert (await call("DELETE", f"{API_SERVICES}/{created['metadata']['name']}"))[0] == 200
    assert not backend.requests


async def test_malformed_openapi_does_not_break_the_documents(shop: tuple[ServerClient, Backend]) -> None:
    call, backend = shop
    deep: Any = {}
    for _ in range(2000):
        deep = {"a": deep}
    for number, document in enumerate(
        ({"paths": {f"{GROUP}/x": [7]}}, {"paths": {f"{GROUP}/x": deep}}, [], {"paths": 7})
    ):
        backend.responses["/openapi/v2"] = lambda _, document=document: web.Response(body=msgspec.json.encode(document))
        _, current = await call("GET", f"{API_SERVICES}/v1.shop.example.com")
        current["spec"]["versionPriority"] = 20 + number
        assert (await call("PUT", f"{API_SERVICES}/v1.shop.example.com", current))[0] == 200
        protobuf = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
        for accept in ("", protobuf):
            response = await call.answer("GET", "/openapi/v2", accept=accept)
            assert response.status == 200


async def test_malformed_discovery_is_stale(shop: tuple[ServerClient, Backend]) -> None:
    call, backend = shop
    for document in ([], {"kind": "APIResourceList", "resources": [7]}, {"kind": "Other"}, "text"):
        backend.responses[GROUP] = lambda _, document=document: web.json_response(document)
        _, current = await call("GET", f"{API_SERVICES}/v1.shop.example.com")
        current["spec"]["versionPriority"] += 1  # a changed APIService is read again
        assert (await call("PUT", f"{API_SERVICES}/v1.shop.example.com", current))[0] == 200
        items = (await call("GET", "/apis", accept=AGGREGATED))[1]["items"]
        (found,) = [each for each in items if each["metadata"]["name"] == "shop.example.com"]
        assert found["versions"][0]["freshness"] == "Stale"


async def test_openapi_is_merged(shop: tuple[ServerClient, Backend]) -> None:
    call, backend = shop
    index = (await call("GET", "/openapi/v3"))[1]["paths"]
    assert index[GROUP[1:]] == {"serverRelativeURL": f"/openapi/v3{GROUP}?hash=ABC123"}
    assert "apis/apps/v1" in index
    backend.responses[f"/openapi/v3{GROUP}"] = {"openapi": "3.0.0"}
    assert await call("GET", f"/openapi/v3{GROUP}") == (200, {"openapi": "3.0.0"})
    document = (await call("GET", "/openapi/v2"))[1]
    assert f"{GROUP}/orders" in document["paths"]
    assert "/apis/other.example.com/v1/x" not in document["paths"]
    assert "unused" not in document["definitions"]
    own = f"{META}_shop.example.com_v1"
    assert document["definitions"][ORDER]["properties"]["metadata"] == {"$ref": f"#/definitions/{own}"}
    assert document["definitions"][own]["description"] == "an older version"
    assert document["definitions"][META]["properties"]


def test_equal_definitions_keep_their_names() -> None:
    part = v2_part(OPENAPI_V2, GROUP)
    shared = {META: OPENAPI_V2["definitions"][META]}
    merged = merged_v2({"paths": {}, "definitions": shared}, (RemoteOpenApi("shop.example.com", "v1", None, part),))
    assert set(merged["definitions"]) == {ORDER, META}


def test_user_with_control_characters_is_rejected() -> None:
    with pytest.raises(BadRequest):
        user_headers(User("a\r\nX-Remote-Group: system:masters"))


def test_connection_headers_are_dropped() -> None:
    headers = {"connection": "close, X-Secret", "x-secret": "1", "upgrade": "websocket", "accept": "a"}
    assert list(forwarded_headers(Call("GET", "/", {}, headers, b"", User("a")))) == [("accept", "a")]


def test_target_is_the_authorized_path() -> None:
    sent = Call("GET", "/apis/g/v1/a b#?", {}, {}, b"", User("a"), uri="/apis/g/v1/a%20b%23%3f?x=1#y")
    assert request_target(sent, sent.path) == "/apis/g/v1/a%20b%23%3F?x=1%23y"
    plain = Call("GET", "/apis/g/v1", {"a": "b c"}, {}, b"", User("a"))
    assert request_target(plain, plain.path) == "/apis/g/v1?a=b+c"
