"""A virtual cluster behind the REST listener of the service, in one process, and a caller of each role."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from tapestry.apis.planes import PLANES, plane_id
from tapestry.apis.projects import ACCESS_KEYS, PROJECTS
from tapestry.apis.vclusters import VCLUSTERS, Phase
from tapestry.cli.planes import mounted_routes
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.kube.objects import Object, object_named, uid_of, value_at
from tapestry.planes.app import PlaneProcess, client_of, run_planes
from tapestry.planes.config import PlanesConfig
from tapestry.planes.plane_set import PlaneEntry
from tapestry.tenants.app import run_tenants
from tapestry.vclusters.access.keys import new_key
from tapestry.vclusters.admission import vcluster_plugin
from tapestry.vclusters.app import run_vclusters
from tapestry.vclusters.config import ServiceConfig
from tapestry.vclusters.serving import serve_gateway
from tapestry.vclusters.validation import Provided

NAMED = object_named("blue", "default")
ROLES = {"vera": "viewer", "olga": "operator", "eve": "editor", "ada": "admin"}


@dataclass
class ProxyWorld:
    process: PlaneProcess
    http: aiohttp.ClientSession
    base: str
    keys: dict[str, str]
    """Access keys, by user."""
    authority: Path
    """Certificate of the CA of the listener."""

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


PLUGIN = partial(vcluster_plugin, provided=Provided("1.34.3"))


@asynccontextmanager
async def proxy_world(folder: Path) -> AsyncIterator[ProxyWorld]:
    config = PlanesConfig(data=str(folder), name="here", address="127.0.0.1:0")
    async with (
        run_planes(config, mounted_routes, extension=run_tenants, admission=PLUGIN) as process,
        proxied_vcluster(process) as world,
    ):
        yield world


@asynccontextmanager
async def proxied_vcluster(process: PlaneProcess, **spec: Any) -> AsyncIterator[ProxyWorld]:
    """Run the service in a process of planes, with a virtual cluster."""
    service = ServiceConfig(rest_address="127.0.0.1:0")
    async with (
        run_vclusters(process),
        serve_gateway(process, service, lambda _: None) as listeners,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as http,
    ):
        management = client_of(process.management)
        keys = await create_users(management)
        await management.create(VCLUSTERS, {**NAMED, "spec": {"project": "shop", **spec}})
        vcluster = await reach(management, Phase.RUNNING)
        base = f"https://{listeners.rest}/v1/vclusters/{uid_of(vcluster)}/k8s"
        yield ProxyWorld(process, http, base, keys, process.config.folder / "pki" / "ca.crt")
