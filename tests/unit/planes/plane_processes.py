"""Processes that hold planes, with clients of their management API."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from tapestry.apis.planes import PLANES, plane_id
from tapestry.cli.planes import mounted_routes
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.transport import Request
from tapestry.client.watch import wait_for
from tapestry.kube.errors import Unauthorized
from tapestry.kube.objects import Object, object_named, value_at
from tapestry.kube.resources import NAMESPACES
from tapestry.planes.app import PlaneProcess, run_planes
from tapestry.planes.config import PlanesConfig
from tapestry.planes.plane_set import PlaneEntry

TIMEOUT = 30.0


@asynccontextmanager
async def running_planes(
    folder: Path, *, later: timedelta = timedelta(0), **options: Any
) -> AsyncIterator[tuple[PlaneProcess, Client]]:
    """Yield a process with a free port, and a client with the kubeconfig that it has written.

    The clock of the process is `later` than that of the machine.
    """
    config = PlanesConfig(**{"data": str(folder), "name": "here", "address": "127.0.0.1:0", **options})
    async with (
        run_planes(config, mounted_routes, lambda: datetime.now(UTC) + later) as process,
        client_with(config.kubeconfig_file) as management,
    ):
        yield process, management


def client_with(kubeconfig: Path) -> Client:
    return Client(HttpTransport(load_access([kubeconfig], environ={})))


async def create_plane(management: Client, name: str, **spec: object) -> Object:
    await management.create(PLANES, object_named(name) | {"spec": spec})
    return await wait_for_phase(management, name, "Open")


async def wait_for_phase(management: Client, name: str, phase: str) -> Object:
    return await wait_for_status(management, name, phase=phase)


async def wait_for_status(management: Client, name: str, **status: object) -> Object:
    def is_reached(plane: Object | None) -> bool:
        return plane is not None and status.items() <= value_at(plane, "status", default={}).items()

    found = await wait_for(management, PLANES, name, until=is_reached, timeout=TIMEOUT)
    assert found is not None
    return found


async def kubeconfig_of(management: Client, name: str, file: Path, **arguments: object) -> Path:
    path = f"/apiext/v1/planes/{name}/kubeconfig"
    response = await management.transport.send(Request("POST", path, {}, msgspec.json.encode(arguments)))
    assert response.status == 200, response.body
    file.write_text(msgspec.json.decode(response.body)["kubeconfig"])  # noqa: ASYNC240  a small file
    return file


async def call(client: Client, interface: str, name: str = "one", **arguments: object) -> tuple[int, Any]:
    """Call an interface of a plane, and return the status and the result."""
    method = "GET" if interface == "credentials" else "POST"
    body = msgspec.json.encode(arguments) if method == "POST" else b""
    response = await client.transport.send(Request(method, f"/apiext/v1/planes/{name}/{interface}", {}, body))
    return response.status, msgspec.json.decode(response.body) if response.body else None


async def issue(management: Client, file: Path, **arguments: object) -> str:
    """Write a new kubeconfig of plane `one` and return the id of its credentials."""
    status, issued = await call(management, "kubeconfig", **arguments)
    assert status == 200, issued
    file.write_text(issued["kubeconfig"])  # noqa: ASYNC240  a small file
    return str(issued["id"])


async def is_accepted(kubeconfig: Path) -> bool:
    async with client_with(kubeconfig) as client:
        try:
            return bool(await client.list(NAMESPACES))
        except Unauthorized:
            return False


async def wait_until_open(process: PlaneProcess, plane: Object) -> PlaneEntry:
    """Return a plane when this process has opened it. Its status may still be that of an earlier process."""
    changed, id = asyncio.Event(), plane_id(plane)
    process.plane_set.on_change(lambda _: changed.set())
    async with asyncio.timeout(TIMEOUT):
        while (entry := process.plane_set.get(id)) is None or entry.plane is None:
            await changed.wait()
            changed.clear()
    return entry
