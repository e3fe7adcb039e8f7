"""Services and pods of a server with a host cluster, which only its syncer connects."""

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.core.host_access import PodUnreachable
from tapestry.apiserver.core.pod_sessions import socket_session
from tapestry.apiserver.core.requests import MASTERS_GROUP, Call, User
from tapestry.apiserver.core.responses import ApiResponse, SessionResponse
from tapestry.kube.objects import Object, name_of
from tapestry.streams.sockets import socket_to

from .. import hooks
from ..conftest import ServerClient
from ..test_forged_endpoint_slices import MAPS, WEBHOOKS, add_service, forged_slice, slices

SERVICES, PODS = "/api/v1/namespaces/default/services", "/api/v1/namespaces/default/pods"
API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
ORDERS = "/apis/shop.example.com/v1/orders"
ADMIN = User("admin", (MASTERS_GROUP,))


@dataclass
class Pods:
    """Pods that a syncer connects, all at one local port."""

    port: int = 0
    error: OSError | None = None
    connected: list[str] = field(default_factory=list)

    async def connect_pod(self, namespace: str, name: str, port: int) -> socket.socket:
        return await self._connect(f"pod {namespace}/{name}:{port}")

    async def connect_service(self, service: Object, port: int) -> socket.socket:
        return await self._connect(f"service {name_of(service)}:{port}")

    async def _connect(self, target: str) -> socket.socket:
        self.connected.append(target)
        if self.error is not None:
            raise self.error
        return await socket_to("127.0.0.1", self.port)


@dataclass(frozen=True)
class Syncer:
    pods: Pods
    nodes: Any = None
    metrics: Any = None


@pytest.fixture
async def pods(call: ServerClient) -> AsyncIterator[Pods]:
    call.server.syncer_restriction.enable(())
    found = Pods()
    with call.server.host_access.served_by(Syncer(found)):
        yield found


async def webhook_error(call: ServerClient, client: Object) -> str:
    """Return the error of a write that a webhook must admit; empty if it is admitted."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["*"]}
    webhook = {"name": "guard.example.com", "rules": [rule], "clientConfig": client}
    webhook |= {"admissionReviewVersions": ["v1"], "sideEffects": "None"}
    await call.made(WEBHOOKS, {"metadata": {"name": "guard"}, "webhooks": [webhook]})
    status, response = await call("POST", MAPS, {"metadata": {"name": "m"}})
    return "" if status == 201 else str(response["message"])


def guard(bundle: str = "") -> Object:
    return {"service": {"name": "guard", "namespace": "default"}, "caBundle": bundle}


@asynccontextmanager
async def listening(handle: Callable[[web.BaseRequest], Any], folder: Path, *names: str) -> AsyncIterator[int]:
    """Run an HTTP server, with TLS if there are names for its certificate, and yield its port."""
    tls = None
    if names:
        authority = CertificateAuthority(folder)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*authority.server_certificate(names))
    runner = web.ServerRunner(web.Server(handle, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


# -- webhooks


async def test_syncer_connects_service_of_webhook(call: ServerClient, pods: Pods, tmp_path: Path) -> None:
    async with hooks.listening(tmp_path / "pki", hooks.allowing, "guard.default.svc") as hook:
        pods.port = hook.port
        await add_service(call, "guard")
        await call.made(slices("default"), forged_slice("guard", "localhost", "FQDN", port=1))
        assert await webhook_error(call, guard(hook.bundle)) == ""
        assert len(hook.requests) == 1
    assert pods.connected == ["service guard:443"]


async def test_forged_slice_reaches_nothing(call: ServerClient, pods: Pods, tmp_path: Path) -> None:
    pods.error = PodUnreachable('no endpoints available for service "guard"')
    async with hooks.listening(tmp_path / "pki", hooks.allowing, "guard.default.svc") as hook:
        await add_service(call, "guard")
        await call.made(slices("default"), forged_slice("guard", "localhost", "FQDN", port=hook.port))
        message = await webhook_error(call, guard(hook.bundle))
        assert 'no endpoints available for service "guard"' in message
        assert hook.requests == []


@pytest.mark.parametrize("names", [("other.default.svc",), ("guard.other.svc",)])
async def test_certificate_must_be_that_of_the_service(
    call: ServerClient, pods: Pods, tmp_path: Path, names: tuple[str, ...]
) -> None:
    async with hooks.listening(tmp_path / "pki", hooks.allowing, *names) as hook:
        pods.port = hook.port
        await add_service(call, "guard")
        assert "certificate is not valid for any names" in await webhook_error(call, guard(hook.bundle))
        assert hook.requests == []


async def test_signer_must_be_in_the_bundle(call: ServerClient, pods: Pods, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = base64.b64encode(CertificateAuthority(tmp_path / "other").certificate_pem().encode()).decode()
    async with hooks.listening(tmp_path / "pki", hooks.allowing, "guard.default.svc") as hook:
        pods.port = hook.port
        await add_service(call, "guard")
        assert "certificate signed by unknown authority" in await webhook_error(call, guard(other))
        assert hook.requests == []


async def test_redirect_of_webhook_is_not_followed(call: ServerClient, pods: Pods, tmp_path: Path) -> None:
    def redirect(_: Object) -> web.Response:
        return web.Response(status=307, headers={"Location": "https://127.0.0.1:1/"})

    async with hooks.listening(tmp_path / "pki", redirect, "guard.default.svc") as hook:
        pods.port = hook.port
        await add_service(call, "guard")
        assert "status code 307" in await webhook_error(call, guard(hook.bundle))
    assert pods.connected == ["service guard:443"]


async def test_missing_service_is_not_called(call: ServerClient, pods: Pods) -> None:
    assert 'service "guard" not found' in await webhook_error(call, guard())
    assert pods.connected == []


async def test_nothing_is_called_while_no_syncer_runs(call: ServerClient, tmp_path: Path) -> None:
    call.server.syncer_restriction.enable(())
    async with hooks.listening(tmp_path / "pki", hooks.allowing, "guard.default.svc") as hook:
        await add_service(call, "guard")
        await call.made(slices("default"), forged_slice("guard", "localhost", "FQDN", port=hook.port))
        assert "host cluster of this server is not connected" in await webhook_error(call, guard(hook.bundle))
        assert hook.requests == []


@pytest.mark.parametrize("host", ["10.0.0.1", "127.0.0.1", "100.64.0.1", "[fd00::1]", "[fec0::1]", "169.254.169.254"])
async def test_url_of_webhook_must_be_public(call: ServerClient, pods: Pods, host: str) -> None:
    assert "address not allowed" in await webhook_error(call, {"url": f"https://{host}:9/"})
    assert pods.connected == []


async def test_closed_connection_is_an_error(call: ServerClient, pods: Pods) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        pods.port = server.sockets[0].getsockname()[1]
        await add_service(call, "guard")
        assert (await webhook_error(call, guard())).endswith(": EOF")


# -- API servers


async def register(call: ServerClient) -> None:
    await add_service(call, "orders")
    spec = {
        "group": "shop.example.com",
        "version": "v1",
        "groupPriorityMinimum": 100,
        "versionPriority": 10,
        "service": {"namespace": "default", "name": "orders"},
        "insecureSkipTLSVerify": True,
    }
    await call.made(API_SERVICES, {"metadata": {"name": "v1.shop.example.com"}, "spec": spec})


async def test_syncer_connects_aggregated_api_server(call: ServerClient, pods: Pods, tmp_path: Path) -> None:
    async def handle(request: web.BaseRequest) -> web.Response:
        return web.json_response({"user": request.headers["X-Remote-User"], "host": request.host})

    async with listening(handle, tmp_path, "orders.default.svc") as pods.port:
        await register(call)
        await call.made(slices("default"), forged_slice("orders", "localhost", "FQDN", port=1))
        assert await call("GET", ORDERS) == (200, {"user": "admin", "host": "orders.default.svc"})
    assert pods.connected[0] == "service orders:443"


async def test_syncer_connects_upgrade_to_api_server(call: ServerClient, pods: Pods, tmp_path: Path) -> None:
    async def handle(request: web.BaseRequest) -> web.WebSocketResponse:
        response = web.WebSocketResponse()
        await response.prepare(request)
        await response.close()
        return response

    async with listening(handle, tmp_path, "orders.default.svc") as pods.port:
        await register(call)
        assert isinstance(await upgraded(call, ORDERS + "/one/console"), SessionResponse)
    assert set(pods.connected) == {"service orders:443"}


async def upgraded(call: ServerClient, path: str) -> Any:
    """Request an upgrade to WebSocket, and close the connection if it is accepted."""
    headers = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": base64.b64encode(bytes(16)).decode(),
    }
    response = await call.server.handle(Call("GET", path, {}, headers, b"", ADMIN, is_upgrade=True))
    if isinstance(response, SessionResponse):
        response.end()
    return response


# -- proxy subresources


async def echo(request: web.BaseRequest) -> web.Response:
    return web.Response(text=f"{request.method} {request.path}")


async def add_pod(call: ServerClient) -> None:
    """Create a pod whose status names an address that must not be called."""
    container = {"name": "c", "image": "i", "ports": [{"containerPort": 8080}]}
    await call.made(PODS, {"metadata": {"name": "web"}, "spec": {"containers": [container]}})


@pytest.mark.parametrize(
    ("path", "target"),
    [
        (f"{PODS}/web/proxy/x", "pod default/web:8080"),
        (f"{PODS}/web:9/proxy/x", "pod default/web:9"),
        (f"{SERVICES}/guard:443/proxy/x", "service guard:443"),
        (f"{SERVICES}/guard:https/proxy/x", "service guard:443"),
    ],
)
async def test_syncer_connects_proxied_pods(
    call: ServerClient, pods: Pods, tmp_path: Path, path: str, target: str
) -> None:
    await add_pod(call)
    await add_service(call, "guard")
    await call.made(slices("default"), forged_slice("guard", "localhost", "FQDN", port=1, pod="web"))
    async with listening(echo, tmp_path) as pods.port:
        response = await call.server.handle(Call("GET", path, {}, {}, b"", ADMIN))
        assert isinstance(response, ApiResponse)
        assert response.stream is not None
        assert b"".join([chunk async for chunk in response.stream.chunks()]) == b"GET /x"
        response.stream.end()
    assert pods.connected == [target]


async def test_syncer_connects_proxied_pods_with_tls(call: ServerClient, pods: Pods, tmp_path: Path) -> None:
    await add_pod(call)
    async with listening(echo, tmp_path, "any") as pods.port:
        status, _ = await call("GET", f"{PODS}/https:web:8443/proxy/x")
    assert (status, pods.connected) == (200, ["pod default/web:8443"])


async def test_syncer_connects_upgrade_of_proxied_pod(call: ServerClient, pods: Pods, tmp_path: Path) -> None:
    async def handle(request: web.BaseRequest) -> web.WebSocketResponse:
        response = web.WebSocketResponse()
        await response.prepare(request)
        await response.close()
        return response

    await add_pod(call)
    async with listening(handle, tmp_path) as pods.port:
        assert isinstance(await upgraded(call, f"{PODS}/web/proxy/x"), SessionResponse)
    assert pods.connected == ["pod default/web:8080"]


async def test_unreachable_pod_has_a_reason(call: ServerClient, pods: Pods) -> None:
    await add_pod(call)
    pods.error = PodUnreachable('pod "web" does not run in the host cluster')
    status, response = await call("GET", f"{PODS}/web/proxy/x")
    assert (status, "does not run in the host cluster" in response["message"]) == (503, True)


async def test_proxy_needs_a_running_syncer(call: ServerClient) -> None:
    call.server.syncer_restriction.enable(())
    await add_pod(call)
    status, response = await call("GET", f"{PODS}/web/proxy/x")
    assert (status, "host cluster of this server is not connected" in response["message"]) == (503, True)


async def test_session_sends_no_plain_text_to_https() -> None:
    async def never(_: str, __: int) -> socket.socket:
        raise AssertionError("a connection was opened")

    async with socket_session(never) as session:
        with pytest.raises(ValueError, match="needs a context"):
            await session.get("https://guard.default.svc/", ssl=False)
