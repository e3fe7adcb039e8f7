"""The API of a virtual cluster through the service: real requests by REST to a plane in the same process."""

import asyncio
import base64
import io
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp.test_utils import make_mocked_request
from yarl import URL

from tapestry.apis.vclusters import VCLUSTERS, Phase
from tapestry.apiserver.core.codec import MAX_BODY_BYTES
from tapestry.apiserver.serving.active_requests import RequestKind
from tapestry.apiserver.serving.http_handler import HttpHandler
from tapestry.kube.objects import Object, object_named
from tapestry.planes.app import client_of
from tapestry.planes.plane_holders import PlaneHolders
from tapestry.planes.plane_set import PlaneSet, PlaneState
from tapestry.streams.upgrade import Headers, UpgradeResponse, dial, request_upgrade
from tapestry.vclusters import serving
from tapestry.vclusters.stored_objects import StoredObjects
from tapestry.vclusters.vcluster_kubeconfigs import VClusterKubeconfigs
from tapestry.vclusters.vcluster_proxy import ProxiedExchange, ProxiedPath, is_upgrade, proxied_path

from ..apiserver.core.test_host_access import Syncer
from ..apiserver.kubelets import SPDY, V4, websocket_headers
from .proxied_vclusters import NAMED, ProxyWorld, proxy_world, reach

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ProxyWorld]:
    async with proxy_world(tmp_path) as made:
        yield made


def config_map(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


async def records(world: ProxyWorld) -> list[dict[str, Any]]:
    """Return the audit records about proxied requests so far."""
    url, query = world.base.partition("/v1/")[0], {"method": "ProxyVCluster", "project": "shop", "pageSize": "100"}
    async with world.http.get(f"{url}/v1/auditrecords", headers=world.headers("ada"), params=query) as response:
        return list(reversed((await response.json())["records"]))


async def handler_of(world: ProxyWorld) -> HttpHandler:
    plane = (await world.plane()).plane
    assert plane is not None
    return plane.opened.http_handler


async def test_reads_writes_and_roles(world: ProxyWorld) -> None:
    assert (await world.call("POST", MAPS, "eve", json=config_map("a")))[0] == 201
    status, found = await world.call("GET", f"{MAPS}/a", "olga")
    assert (status, found["metadata"]["name"]) == (200, "a")
    status, found = await world.call("GET", f"{MAPS}?fieldSelector=metadata.name%3Da", "olga")
    assert (status, len(found["items"])) == (200, 1)
    assert (await world.call("GET", "/api", "olga"))[0] == 200
    # nobody has more rights than its role, and headers do not change who calls
    assert (await world.call("POST", MAPS, "olga", json=config_map("b")))[0] == 403
    masters = {"Impersonate-User": "root", "Impersonate-Group": "system:masters"}
    assert (await world.call("POST", MAPS, "olga", json=config_map("b"), headers=masters))[0] == 403
    assert (await world.call("GET", "/api/v1/namespaces/default/secrets", "olga", headers=masters))[0] == 403
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    assert (await world.call("GET", roles, "eve"))[0] == 403
    assert (await world.call("GET", roles, "ada"))[0] == 200
    status, refused = await world.call("GET", MAPS, "vera")
    assert (status, refused["kind"], refused["reason"]) == (403, "Status", "PERMISSION_DENIED")
    assert (await world.call("GET", MAPS, "stranger"))[0] == 404
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    user = (await world.call("POST", path, "olga", json=review, headers=masters))[1]["status"]["userInfo"]
    assert (user["username"], user["groups"]) == ("olga", ["tapestry:vcluster:view", "system:authenticated"])


async def test_limits_and_audit(world: ProxyWorld) -> None:
    big = io.BytesIO(b" " * (MAX_BODY_BYTES + 1))
    assert (await world.call("POST", MAPS, data=big, headers={"Content-Type": "application/json"}))[0] == 413
    fields = ("stage", "target", "project", "principal")
    assert [tuple(map(each.get, fields)) for each in await records(world)] == [
        (stage, f"POST {MAPS}", "shop", "ada") for stage in ("received", "completed")
    ]
    async with world.http.get(f"{world.base}/api", headers=world.headers("ada")) as response:
        assert response.headers["Content-Security-Policy"] == "sandbox"


async def test_watch_is_streamed(world: ProxyWorld) -> None:
    entry = await world.plane()
    async with world.http.get(f"{world.base}{MAPS}?watch=1", headers=world.headers("olga")) as response:
        assert response.status == 200
        assert (await world.call("POST", MAPS, json=config_map("seen")))[0] == 201
        async with asyncio.timeout(10):
            while True:
                event = json.loads(await response.content.readline())
                if event["object"]["metadata"]["name"] == "seen":
                    break
        assert event["type"] == "ADDED"
        assert entry.plane is not None
        handler = entry.plane.opened.http_handler
        assert len(handler.active_requests) == 1
    await handler.active_requests.wait_for_end(RequestKind.WATCH, 10)  # the client has gone
    assert len(handler.active_requests) == 0
    assert handler.connection_limiter.authenticated == 0


async def test_records_have_the_status_of_the_plane(world: ProxyWorld) -> None:
    for path, user in ((f"{MAPS}/none", "olga"), ("/api/v1/nodes", "olga"), ("/api", "ada")):
        await world.call("GET", path, user)
    async with world.http.get(f"{world.base}{MAPS}?watch=1", headers=world.headers("olga")):
        begun = await records(world)
        ended = [(each.get("code"), each.get("reason")) for each in begun if each["stage"] == "completed"]
        assert ended == [(5, "HTTP_404"), (7, "HTTP_403"), (None, None)]
    await (await handler_of(world)).active_requests.wait_for_end(RequestKind.WATCH, 10)
    received, completed = [each for each in await records(world) if each["id"] == begun[-1]["id"]]
    assert (received["stage"], completed["stage"], completed.get("code")) == ("received", "completed", None)


async def test_watch_ends_with_its_plane(world: ProxyWorld) -> None:
    entry = await world.plane()
    async with world.http.get(f"{world.base}{MAPS}?watch=1", headers=world.headers("olga")) as response:
        await world.process.plane_set.close(entry, PlaneState.ASLEEP)
        async with asyncio.timeout(10):
            lines = (await response.text()).splitlines()
        assert json.loads(lines[-1])["type"] in ("ADDED", "BOOKMARK")


async def test_asleep_planes_wake_and_suspended_ones_say_so(world: ProxyWorld) -> None:
    entry = await world.plane()
    await world.process.plane_set.close(entry, PlaneState.ASLEEP)
    assert (await world.call("GET", MAPS, "olga"))[0] == 200
    management = client_of(world.process.management)
    await management.patch(VCLUSTERS, NAMED, {"spec": {"suspended": True}})
    await reach(management, Phase.SUSPENDED)
    status, refused = await world.call("GET", MAPS, "olga")
    assert (status, "suspended" in refused["message"]) == (503, True)


# -- exec, attach and port-forward


EXEC = "/api/v1/namespaces/default/pods/web/exec?command=sh&stdin=1&stdout=1"
TOKEN_PROTOCOL = "base64url.bearer.authorization.k8s.io.c2VjcmV0"


@asynccontextmanager
async def echoing_pod(world: ProxyWorld) -> AsyncIterator[Syncer]:
    """Run the syncer of a host cluster, which echoes what is sent to the pod `web` of the virtual cluster."""
    entry, syncer = await world.plane(), Syncer()
    assert entry.plane is not None
    server = entry.plane.opened.server
    server.syncer_restriction.enable(())
    pod = {**object_named("web"), "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "i"}]}}
    assert (await world.call("POST", PODS, json={"kind": "Pod", "apiVersion": "v1", **pod}))[0] == 201
    with server.host_access.served_by(syncer):
        yield syncer


@pytest.fixture
async def syncer(world: ProxyWorld) -> AsyncIterator[Syncer]:
    async with echoing_pod(world) as found:
        yield found


async def upgraded(world: ProxyWorld, user: str, headers: Headers, **more: str) -> UpgradeResponse:
    url = URL(world.base)
    tls = ssl.create_default_context(cafile=str(world.authority))
    assert url.host is not None
    assert url.port is not None
    connection = await dial(url.host, url.port, tls)
    own = {"Host": f"{url.host}:{url.port}", "Connection": "Upgrade", **world.headers(user), **more}
    method = "POST" if ("Upgrade", SPDY) in headers else "GET"
    return await request_upgrade(connection, method, url.raw_path + EXEC, [*own.items(), *headers])


SPDY_HEADERS = [("Upgrade", SPDY), ("X-Stream-Protocol-Version", "v1"), ("X-Stream-Protocol-Version", V4)]


@pytest.mark.parametrize("headers", [SPDY_HEADERS, websocket_headers(TOKEN_PROTOCOL, V4)], ids=["spdy", "websocket"])
async def test_exec_is_connected_to_the_plane(world: ProxyWorld, syncer: Syncer, headers: Headers) -> None:
    response = await upgraded(world, "eve", headers, **{"Impersonate-User": "root"})
    assert (response.status, response.connection is not None) == (101, True)
    connection = response.connection
    assert connection is not None
    for data in (b"echo", bytes(1 << 20)):
        await connection.write(data)
        received = b""
        while len(received) < len(data):
            received += await connection.read()
        assert received == data
    assert [(call[0], call[3]) for call in syncer.calls] == [("n1", "eve")]
    handler = await handler_of(world)
    assert len(handler.active_requests) == 1
    assert [each["stage"] for each in await records(world)] == ["received", "completed", "received"]
    await connection.close()
    await syncer.connection.is_aborted.wait()
    await handler.active_requests.wait_for_end(RequestKind.SESSION, 10)
    *_, ended = await records(world)
    assert (ended["stage"], ended.get("code"), ended["principal"]) == ("completed", None, "eve")
    assert len(handler.active_requests) == 0
    assert handler.connection_limiter.authenticated == 0


class NoPlanes:
    """The planes of a process that holds none."""

    def has(self, _: str) -> bool:
        return False


async def test_exec_reaches_the_process_that_holds_the_plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kubeconfigs(objects: StoredObjects, _: PlaneSet, *others: Any) -> VClusterKubeconfigs:
        return VClusterKubeconfigs(objects, NoPlanes(), *others)  # type: ignore[arg-type]

    monkeypatch.setattr(serving, "VClusterKubeconfigs", kubeconfigs)
    monkeypatch.setattr(PlaneHolders, "_management_url", lambda self, _: self.endpoints.base_url)
    async with proxy_world(tmp_path) as world, echoing_pod(world) as syncer:
        for headers in (SPDY_HEADERS, websocket_headers(TOKEN_PROTOCOL, V4)):
            response = await upgraded(world, "eve", headers, **{"Impersonate-User": "root"})
            assert response.connection is not None
            await response.connection.write(b"echo")
            assert await response.connection.read() == b"echo"
            await response.connection.close()
            await syncer.connection.is_aborted.wait()
            syncer.connection = type(syncer.connection)()
        assert {call[3] for call in syncer.calls} == {"eve"}
        assert world.process.holders._targets  # so the requests came by its listener
        assert (await upgraded(world, "olga", SPDY_HEADERS)).status == 403
        issued = [await issued_kubeconfig(world, format) for format in ("token", "exec")]
        assert issued[0]["clusters"] == issued[1]["clusters"]
        assert [each["users"][0]["user"].keys() for each in issued] == [{"token"}, {"exec"}]


async def issued_kubeconfig(world: ProxyWorld, format: str) -> Any:
    url = f"{world.base.partition('/v1/')[0]}/v1/namespaces/default/vclusters/blue:generateKubeconfig"
    async with world.http.post(url, headers=world.headers("eve"), json={"format": format}) as response:
        return yaml.safe_load(base64.b64decode((await response.json())["kubeconfig"]))


async def test_plane_decides_who_may_exec(world: ProxyWorld, syncer: Syncer) -> None:
    masters = {"Impersonate-User": "root", "Impersonate-Group": "system:masters"}
    assert (await upgraded(world, "olga", SPDY_HEADERS, **masters)).status == 403
    assert (await upgraded(world, "vera", SPDY_HEADERS)).status == 403
    origin = {"Origin": "https://elsewhere.example"}
    assert (await upgraded(world, "eve", websocket_headers(V4), **origin)).status == 403
    assert syncer.calls == []
    own = {"Origin": world.base.partition("/v1")[0]}
    assert (await upgraded(world, "eve", websocket_headers(V4), **own)).status == 101


async def test_exec_ends_with_its_plane(world: ProxyWorld, syncer: Syncer) -> None:
    response = await upgraded(world, "eve", SPDY_HEADERS)
    assert response.connection is not None
    await world.process.plane_set.close(await world.plane(), PlaneState.ASLEEP)
    async with asyncio.timeout(10):
        assert await response.connection.read() == b""
        await syncer.connection.is_aborted.wait()
    *_, ended = await records(world)
    assert (ended["stage"], ended.get("code")) == ("completed", None)


@pytest.mark.parametrize(
    "path", ["/v1/vclusters/u", "/v1/vclusters/u/k8sx", "/v1/vclusters/a/b/k8s/", "/v2/vclusters/u/k8s/"]
)
def test_other_paths_are_not_proxied(path: str) -> None:
    assert proxied_path(path) is None


def test_path_below_the_prefix_stays_encoded() -> None:
    found = proxied_path("/v1/vclusters/u/k8s/api/v1/a%2Fb")
    assert found is not None
    assert (found.base, found.id, found.path) == ("/v1/vclusters/u/k8s", "u", "/api/v1/a%2Fb")
    root = proxied_path("/v1/vclusters/u/k8s")
    assert root is not None
    assert root.path == "/"


def test_planes_get_no_credentials() -> None:
    headers = {"Authorization": "Bearer x", "Cookie": "x", "Impersonate-User": "root", "Accept": "a/b"}
    protocols = f"{TOKEN_PROTOCOL}, {V4}"
    request = make_mocked_request("GET", "/", headers={**headers, "Sec-WebSocket-Protocol": protocols})
    exchange = ProxiedExchange(request, ProxiedPath("", "u", "/"))
    assert exchange.headers == {"accept": "a/b"}
    upgrade = {**headers, "Connection": "keep-alive, Upgrade", "Upgrade": "websocket"}
    request = make_mocked_request("GET", "/", headers={**upgrade, "Sec-WebSocket-Protocol": protocols})
    exchange = ProxiedExchange(request, ProxiedPath("", "u", "/"))
    assert exchange.headers.keys() == {"accept", "connection", "upgrade", "sec-websocket-protocol"}
    assert exchange.headers["sec-websocket-protocol"] == V4


@pytest.mark.parametrize(
    ("connection", "protocol", "expected"),
    [
        ("Upgrade", "websocket", True),
        ("keep-alive, upgrade", "SPDY/3.1", True),
        ("Upgrade, HTTP2-Settings", "h2c", False),
        ("keep-alive", "websocket", False),
        ("Upgrade", "", False),
    ],
)
def test_upgrades_are_recognized(connection: str, protocol: str, expected: bool) -> None:
    headers = {"Connection": connection, **({"Upgrade": protocol} if protocol else {})}
    assert is_upgrade(make_mocked_request("GET", "/", headers=headers)) is expected
