"""The API of a virtual cluster through the service: real requests by REST to a plane in the same process."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tapestry.apis.planes import PLANES, plane_id
from tapestry.apis.projects import ACCESS_KEYS, PROJECTS
from tapestry.apis.vclusters import VCLUSTERS, Phase
from tapestry.apiserver.core.codec import MAX_BODY_BYTES
from tapestry.apiserver.serving.active_requests import RequestKind
from tapestry.cli.planes import mounted_routes
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.kube.objects import Object, object_named, uid_of, value_at
from tapestry.planes.app import PlaneProcess, client_of, run_planes
from tapestry.planes.config import PlanesConfig
from tapestry.planes.plane_set import PlaneEntry, PlaneState
from tapestry.tenants.app import run_tenants
from tapestry.vclusters.access.keys import new_key
from tapestry.vclusters.admission import vcluster_plugin
from tapestry.vclusters.app import run_vclusters
from tapestry.vclusters.audit.queries import newest_first
from tapestry.vclusters.config import ServiceConfig
from tapestry.vclusters.serving import serve_gateway
from tapestry.vclusters.validation import Provided
from tapestry.vclusters.vcluster_proxy import proxied_path

NAMED = object_named("blue", "default")
ROLES = {"vera": "viewer", "olga": "operator", "eve": "editor", "ada": "admin"}
MAPS = "/api/v1/namespaces/default/configmaps"


@dataclass
class World:
    process: PlaneProcess
    http: aiohttp.ClientSession
    base: str
    keys: dict[str, str]
    audit: Path

    def headers(self, user: str, **more: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[user]}", **more}

    async def call(self, method: str, path: str, user: str = "ada", **options: Any) -> tuple[int, Any]:
        headers = self.headers(user, **options.pop("headers", {}))
        async with self.http.request(method, self.base + path, headers=headers, **options) as response:
            text = await response.text()
            is_json = response.content_type == "application/json"
            return response.status, json.loads(text) if is_json else text

    async def plane(self) -> PlaneEntry:
        (record,) = await client_of(self.process.management).list(PLANES)
        entry = self.process.plane_set.get(plane_id(record))
        assert entry is not None
        return entry


async def reach(client: Client, phase: Phase) -> Object:
    def is_there(obj: Object | None) -> bool:
        return value_at(obj, "status", "phase") == phase and not value_at(obj, "status", "journal")

    found = await wait_for(client, VCLUSTERS, "blue", "default", until=is_there, timeout=30)
    assert found is not None
    return found


async def create_users(client: Client) -> dict[str, str]:
    """Create the project `shop` with a member of each role, and a key for each and for a stranger."""
    members = [{"kind": "User", "name": name, "role": role} for name, role in ROLES.items()]
    await client.create(PROJECTS, {**object_named("shop"), "spec": {"members": members}})
    keys = {}
    for user in (*ROLES, "stranger"):
        key = new_key()
        spec = {"principal": user, "secretSha256": key.hash}
        await client.create(ACCESS_KEYS, {**object_named(key.id), "spec": spec})
        keys[user] = key.text
    return keys


@asynccontextmanager
async def proxy_world(folder: Path) -> AsyncIterator[World]:
    config = PlanesConfig(data=str(folder), name="here", address="127.0.0.1:0")
    plugin = partial(vcluster_plugin, provided=Provided("1.34.3"))
    service = ServiceConfig(rest_address="127.0.0.1:0")
    async with (
        run_planes(config, mounted_routes, extension=run_tenants, admission=plugin) as process,
        run_vclusters(process),
        serve_gateway(process, service, lambda _: None) as listeners,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as http,
    ):
        management = client_of(process.management)
        keys = await create_users(management)
        await management.create(VCLUSTERS, {**NAMED, "spec": {"project": "shop"}})
        vcluster = await reach(management, Phase.RUNNING)
        base = f"https://{listeners.rest}/v1/vclusters/{uid_of(vcluster)}/k8s"
        yield World(process, http, base, keys, folder / "audit")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with proxy_world(tmp_path) as made:
        yield made


def config_map(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


async def test_reads_writes_and_roles(world: World) -> None:
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


async def test_limits_and_audit(world: World) -> None:
    big = io.BytesIO(b" " * (MAX_BODY_BYTES + 1))
    assert (await world.call("POST", MAPS, data=big, headers={"Content-Type": "application/json"}))[0] == 413
    upgrade = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}
    status, refused = await world.call("POST", "/api/v1/namespaces/default/pods/p/exec", headers=upgrade)
    assert status == 501
    assert "kubeconfig" in refused["message"]
    records = list(newest_first(world.audit, matches=lambda each: each.method == "ProxyVCluster"))[::-1]
    assert [(each.stage, each.message, each.project, each.principal) for each in records[:2]] == [
        (stage, f"POST {MAPS}", "shop", "ada") for stage in ("received", "completed")
    ]
    async with world.http.get(f"{world.base}/api", headers=world.headers("ada")) as response:
        assert response.headers["Content-Security-Policy"] == "sandbox"


async def test_watch_is_streamed(world: World) -> None:
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


async def test_watch_ends_with_its_plane(world: World) -> None:
    entry = await world.plane()
    async with world.http.get(f"{world.base}{MAPS}?watch=1", headers=world.headers("olga")) as response:
        await world.process.plane_set.close(entry, PlaneState.ASLEEP)
        async with asyncio.timeout(10):
            lines = (await response.text()).splitlines()
        assert json.loads(lines[-1])["type"] in ("ADDED", "BOOKMARK")


async def test_asleep_planes_wake_and_suspended_ones_say_so(world: World) -> None:
    entry = await world.plane()
    await world.process.plane_set.close(entry, PlaneState.ASLEEP)
    assert (await world.call("GET", MAPS, "olga"))[0] == 200
    management = client_of(world.process.management)
    await management.patch(VCLUSTERS, NAMED, {"spec": {"suspended": True}})
    await reach(management, Phase.SUSPENDED)
    status, refused = await world.call("GET", MAPS, "olga")
    assert (status, "suspended" in refused["message"]) == (503, True)


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
