"""Two planes of one process, whose cluster-admins do not trust each other: what one does never shows in the other."""

import asyncio
import base64
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tapestry.apis.planes import PlaneLimits
from tapestry.apiserver.assembly import ServerThreads
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.serving.http_handler import start_http_server
from tapestry.planes.open_plane import OpenPlane
from tapestry.planes.plane_limits import limited_config
from tapestry.planes.plane_set import PlaneSet, PlaneState
from tapestry.process import metrics

MAPS, PODS = "/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/pods"
SERVICES = "/api/v1/namespaces/default/services"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
MERGE_PATCH = {"Content-Type": "application/merge-patch+json"}
LIMITS = PlaneLimits(objects=300, bytes="4Mi", watches=3, requests_in_flight=6)


@dataclass
class Tenant:
    """The cluster-admin of a plane, a member of its system:masters."""

    plane: OpenPlane
    session: aiohttp.ClientSession
    url: str
    folder: Path

    async def __call__(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        async with self.session.request(method, self.url + path, json=body, **options) as response:
            raw = await response.read()
            return response.status, msgspec.json.decode(raw) if raw[:1] == b"{" else raw.decode()

    async def repeat(self, method: str, path: str, body: Any = None, *, until: int) -> Any:
        """Send a request again until it has a status, which depends on something that happens soon."""
        while (answer := await self(method, path, body))[0] != until:
            pass
        return answer[1]

    async def made(self, path: str, body: Any) -> None:
        status, result = await self("POST", path, body)
        assert status == 201, result

    async def status_set(self, path: str, status: Any) -> None:
        code, result = await self("PATCH", f"{path}/status", {"status": status}, headers=MERGE_PATCH)
        assert code == 200, result


@dataclass
class Listener:
    """A port of this machine that must not be called."""

    port: int = 0
    calls: list[str] = field(default_factory=list)

    async def handle(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.calls.append(str(writer.get_extra_info("peername")))
        writer.close()


@dataclass
class World:
    planes: PlaneSet
    a: Tenant
    b: Tenant


def plane_config(name: str, folder: Path) -> ApiServerConfig:
    folder.mkdir()
    tokens = folder / "tokens.csv"
    tokens.touch(0o600)
    tokens.write_text(f'{name}-token,{name}-admin,1,"system:masters"\n')
    audit_log = str(folder / "audit.log")
    own = ApiServerConfig(file_rootpath=str(folder), token_auth_file=str(tokens), audit_log_path=audit_log)
    return limited_config(own, LIMITS)


@asynccontextmanager
async def tenant(planes: PlaneSet, name: str, folder: Path, group: asyncio.TaskGroup) -> AsyncIterator[Tenant]:
    plane = await planes.open(planes.add(name, plane_config(name, folder)))
    assert plane is not None
    server = await start_http_server(plane.opened.http_handler, "127.0.0.1", 0, group=group)
    headers = {"Authorization": f"Bearer {name}-token"}
    try:
        async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=30)) as session:
            yield Tenant(plane, session, f"http://127.0.0.1:{server.addresses[0][1]}", folder)
    finally:
        await server.stop()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    with closing(ServerThreads()) as threads:
        async with asyncio.TaskGroup() as group:
            planes = PlaneSet(group, threads)
            async with AsyncExitStack() as stack:
                a, b = [
                    await stack.enter_async_context(tenant(planes, name, tmp_path / name, group))
                    for name in ("plane-one", "plane-two")
                ]
                yield World(planes, a, b)
            await planes.close_all()


@pytest.mark.usefixtures("world")
async def test_audit_logs_of_planes_share_one_thread() -> None:
    assert [each.name for each in threading.enumerate()].count("audit") == 1


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    result = Listener()
    server = await asyncio.start_server(result.handle, "127.0.0.1", 0)
    result.port = server.sockets[0].getsockname()[1]
    async with server:
        yield result


def definition(plural: str = "gadgetries", group: str = "secret.example.com") -> Any:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": "Gadgetry"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


async def define_gadgetries(tenant: Tenant) -> None:
    await tenant.made(CRDS, definition())
    await tenant.repeat("GET", "/apis/secret.example.com/v1/gadgetries", until=200)
    widget = {"apiVersion": "secret.example.com/v1", "kind": "Gadgetry", "metadata": {"name": "w"}}
    await tenant.made("/apis/secret.example.com/v1/namespaces/default/gadgetries", widget)


def sample_lines(page: str) -> list[str]:
    return [line for line in page.splitlines() if line and not line.startswith("#")]


# -- metrics, kinds, events, tokens, audit


async def test_metrics_of_a_plane_are_its_own(world: World) -> None:
    await define_gadgetries(world.a)
    assert (await world.b("GET", MAPS))[0] == 200
    status, page = await world.b("GET", "/metrics")
    lines = sample_lines(page)
    assert status == 200
    assert all(line.startswith("tapestry_plane_") for line in lines)
    assert len(lines) < 25
    assert not [word for word in ("gadgetr", "secret.example", "plane-one", "plane=") if word in page]
    assert 'tapestry_plane_requests_total{code="2xx",verb="read"}' in page
    store = world.b.plane.opened.store
    assert f"tapestry_plane_objects {float(store.object_count)}" in lines
    assert any(line.startswith("tapestry_plane_cpu_seconds_total ") and float(line.split()[1]) > 0 for line in lines)


async def test_process_has_few_series_per_open_plane(world: World) -> None:
    await define_gadgetries(world.a)
    page = metrics.render()[0].decode()
    assert "gadgetr" not in page
    assert "secret.example" not in page
    assert 'group="custom"' in page
    assert len([line for line in sample_lines(page) if 'plane="plane-one"' in line]) < 25
    assert 'plane="plane-two"' in page
    entry = world.planes.get("plane-one")
    assert entry is not None
    await world.planes.close(entry, PlaneState.SUSPENDED)
    page = metrics.render()[0].decode()
    assert 'plane="plane-one"' not in page
    assert 'plane="plane-two"' in page


async def test_nothing_of_another_plane_is_readable(world: World) -> None:
    await define_gadgetries(world.a)
    event = {"metadata": {"name": "e", "namespace": "default"}, "involvedObject": {"namespace": "default"}}
    await world.a.made("/api/v1/namespaces/default/events", {**event, "message": "plane-one did something"})
    for path in (
        *("/apis", "/apis/secret.example.com/v1", "/openapi/v2", "/openapi/v3", "/api/v1/events", CRDS),
        *("/api/v1/namespaces", "/logs", "/debug/pprof", "/configz", "/readyz?verbose", "/version", "/metrics"),
    ):
        text = str((await world.b("GET", path))[1]).lower().replace(path, "")
        assert not [word for word in ("gadgetr", "secret.example", "plane-one") if word in text], path


async def test_token_of_another_plane_is_not_accepted(world: World) -> None:
    assert (await world.b("GET", MAPS, headers={"Authorization": "Bearer plane-one-token"}))[0] == 401
    token_request = "/api/v1/namespaces/default/serviceaccounts/default/token"
    token = (await world.a.repeat("POST", token_request, {"spec": {}}, until=201))["status"]["token"]
    assert (await world.a("GET", "/version", headers={"Authorization": f"Bearer {token}"}))[0] == 200
    assert (await world.b("GET", "/version", headers={"Authorization": f"Bearer {token}"}))[0] == 401


async def test_audit_log_of_a_plane_has_only_its_requests(world: World) -> None:
    await world.a.made(MAPS, {"metadata": {"name": "of-one"}})
    await world.b.made(MAPS, {"metadata": {"name": "of-two"}})
    await world.planes.close_all()
    logs = {each.folder.name: (each.folder / "audit.log").read_text() for each in (world.a, world.b)}
    assert "of-one" in logs["plane-one"]
    assert "of-two" in logs["plane-two"]
    assert "plane-two" not in logs["plane-one"]
    assert "plane-one" not in logs["plane-two"]


# -- limits


async def test_only_plane_at_its_object_limit_gets_403(world: World) -> None:
    size = 1_000_000
    statuses = []
    for number in range(6):
        body = {"metadata": {"name": f"m{number}"}, "data": {"a": "x" * size}}
        statuses.append((await world.a("POST", MAPS, body))[0])
    assert statuses == [201] * 4 + [403] * 2
    await world.b.made(MAPS, {"metadata": {"name": "m"}, "data": {"a": "x" * size}})
    assert (await world.a("DELETE", f"{MAPS}/m0"))[0] == 200
    await world.a.made(MAPS, {"metadata": {"name": "again"}, "data": {"a": "x" * size}})


async def test_impersonation_does_not_lift_limits(world: World) -> None:
    missing = LIMITS.objects - world.a.plane.opened.store.object_count
    bodies = [{"metadata": {"name": f"m{number}"}} for number in range(missing + 20)]  # controllers create some, too
    statuses = {(await world.a("POST", MAPS, body))[0] for body in bodies}
    assert statuses == {201, 403}
    for user in ("system:apiserver", "system:kube-controller-manager", "kubernetes-admin"):
        headers = {"Impersonate-User": user, "Impersonate-Group": "system:masters"}
        status, body = await world.a("POST", MAPS, {"metadata": {"name": "over"}}, headers=headers)
        assert (status, "exceeded quota of objects" in body["message"]) == (403, True)
    assert (await world.a("POST", "/api/v1/namespaces/kube-system/configmaps", {"metadata": {"name": "x"}}))[0] == 403


async def test_only_plane_with_too_many_watches_gets_429(world: World) -> None:
    async with AsyncExitStack() as stack:

        async def watch(tenant: Tenant) -> aiohttp.ClientResponse:
            return await stack.enter_async_context(tenant.session.get(f"{tenant.url}{MAPS}?watch=1"))

        assert [(await watch(world.a)).status for _ in range(4)] == [200, 200, 200, 429]
        assert (await watch(world.a)).headers["Retry-After"] == "1"
        assert (await watch(world.b)).status == 200
        assert (await world.a("GET", MAPS))[0] == 200


@pytest.mark.parametrize("path", [MAPS, "/healthz"])
async def test_only_plane_with_too_many_requests_gets_429(world: World, path: str) -> None:
    limiter = world.a.plane.opened.http_handler.inflight_limiter
    slots = [limiter.acquire("GET", "plane-one-admin", exempt=True) for _ in range(4)]
    assert (await world.a("GET", path))[0] == 429
    assert (await world.b("GET", path))[0] == 200
    limiter.release(slots.pop())
    assert (await world.a("GET", path))[0] == 200


async def test_masters_of_a_plane_share_connections_of_the_process(world: World) -> None:
    for each in (world.a, world.b):
        assert (await each("GET", "/version"))[0] == 200
    connections = world.planes.shares.connections
    assert (connections.held("plane-one"), connections.held("plane-two")) == (1, 1)
    while connections.has_capacity("plane-one"):
        connections.acquire("plane-one")
    async with world.a.session.get(f"{world.a.url}{MAPS}?watch=1"):  # the only connection of the user is busy
        assert (await world.a("GET", "/version"))[0] == 429
    assert (await world.b("GET", "/version"))[0] == 200


# -- egress


def webhook_configuration(client: Any) -> Any:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}
    webhook = {"name": "one.example.com", "rules": [rule], "clientConfig": client, "admissionReviewVersions": ["v1"]}
    return {"metadata": {"name": "hook"}, "webhooks": [{**webhook, "sideEffects": "None"}]}


FORBIDDEN_HOSTS = [
    *("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "127.1.2.3", "0.0.0.0"),
    *("169.254.169.254", "[fe80::1]", "100.100.100.200", "[64:ff9b::7f00:1]"),
]


async def test_webhook_on_this_machine_is_not_called(world: World, listener: Listener) -> None:
    for host in FORBIDDEN_HOSTS:
        await world.a.made(WEBHOOKS, webhook_configuration({"url": f"https://{host}:{listener.port}/x"}))
        result = await world.a.repeat("POST", MAPS, {"metadata": {"generateName": "m"}}, until=500)
        assert "address not allowed" in result["message"]
        assert (await world.a("DELETE", f"{WEBHOOKS}/hook"))[0] == 200
    assert listener.calls == []
    await world.b.made(MAPS, {"metadata": {"name": "m"}})


async def test_service_of_webhook_does_not_lead_to_this_machine(world: World, listener: Listener) -> None:
    service = {"type": "ExternalName", "externalName": "localhost"}
    await world.a.made(SERVICES, {"metadata": {"name": "s"}, "spec": service})
    client = {"service": {"name": "s", "namespace": "default", "port": listener.port}}
    await world.a.made(WEBHOOKS, webhook_configuration(client))
    result = await world.a.repeat("POST", MAPS, {"metadata": {"generateName": "m"}}, until=500)
    assert "address not allowed" in result["message"]
    assert listener.calls == []


async def test_conversion_webhook_on_this_machine_is_not_called(world: World, listener: Listener) -> None:
    body = definition()
    bundle = base64.b64encode(world.a.plane.opened.folder.joinpath("pki", "ca.crt").read_bytes()).decode()
    client = {"url": f"https://127.0.0.1:{listener.port}/convert", "caBundle": bundle}
    body["spec"]["conversion"] = {
        "strategy": "Webhook",
        "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]},
    }
    body["spec"]["versions"].append({**body["spec"]["versions"][0], "name": "v2", "storage": False})
    await world.a.made(CRDS, body)
    gadgetries = "/apis/secret.example.com/v2/namespaces/default/gadgetries"
    widget = {"apiVersion": "secret.example.com/v2", "kind": "Gadgetry", "metadata": {"name": "w"}}
    result = await world.a.repeat("POST", gadgetries, widget, until=500)
    assert "address not allowed" in result["message"]
    assert listener.calls == []


async def test_aggregated_server_on_this_machine_is_not_called(world: World, listener: Listener) -> None:
    service = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": listener.port}]}
    await world.a.made(SERVICES, {"metadata": {"name": "s"}, "spec": service})
    spec = {
        "group": "x.example.com",
        "version": "v1",
        "insecureSkipTLSVerify": True,
        "service": {"name": "s", "namespace": "default", "port": listener.port},
        "groupPriorityMinimum": 10,
        "versionPriority": 10,
    }
    await world.a.made(API_SERVICES, {"metadata": {"name": "v1.x.example.com"}, "spec": spec})
    for path in ("/apis/x.example.com/v1/anything", "/apis", "/openapi/v2"):
        await world.a("GET", path)
    status, body = await world.a("GET", "/apis/x.example.com/v1/anything")
    assert (status, listener.calls) == (503, []), body


async def bound_pod(tenant: Tenant, address: str, port: int) -> None:
    """Create a node at an address, and a pod on it with that address."""
    await tenant.made("/api/v1/nodes", {"metadata": {"name": "n"}})
    endpoint = {"kubeletEndpoint": {"Port": port}}
    addresses = [{"type": "InternalIP", "address": address}]
    await tenant.status_set("/api/v1/nodes/n", {"addresses": addresses, "daemonEndpoints": endpoint})
    spec = {"nodeName": "n", "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": port}]}]}
    await tenant.repeat("POST", PODS, {"metadata": {"name": "p"}, "spec": spec}, until=201)


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "192.0.2.1"])
async def test_kubelet_at_tenant_address_is_not_called(world: World, listener: Listener, address: str) -> None:
    await bound_pod(world.a, address, listener.port)
    upgrade = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}
    for path, headers in (
        (f"{PODS}/p/log", {}),
        (f"{PODS}/p/exec?command=ls&stdout=true", upgrade),
        (f"{PODS}/p/attach?stdout=true", upgrade),
        (f"{PODS}/p/portforward", upgrade),
        ("/api/v1/nodes/n/proxy/pods", {}),
    ):
        status, body = await world.a("GET", path, headers=headers)
        assert (status in (500, 503), "address not allowed" in body["message"]) == (True, True), body
    assert listener.calls == []


@pytest.mark.parametrize("address", ["127.0.0.1", "10.96.0.1", "192.0.2.1"])
async def test_pod_at_tenant_address_is_not_called(world: World, listener: Listener, address: str) -> None:
    await bound_pod(world.a, "192.0.2.7", listener.port)
    code, _ = await world.a(
        "PATCH",
        f"{PODS}/p/status",
        {"status": {"podIP": address, "podIPs": [{"ip": address}]}},
        headers=MERGE_PATCH,
    )
    assert code in (200, 422)
    status, body = await world.a("GET", f"{PODS}/p:{listener.port}/proxy/")
    assert (status, body["message"]) == (400, "address not allowed")
    assert listener.calls == []
