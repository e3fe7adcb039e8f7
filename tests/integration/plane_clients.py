"""Planes of a process, created through its management API, with kubeconfigs of their administrators."""

import asyncio
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tapestry.apis.planes import PLANES
from tapestry.apiserver.access.certificates import write_private_file
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.transport import Request
from tapestry.client.watch import wait_for
from tapestry.kube.objects import Object, object_named, value_at

OPEN_SECONDS = 60.0
T = TypeVar("T")


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of coroutines that run at the same time."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in coroutines]
    return [each.result() for each in tasks]


def client_of(kubeconfig: Path) -> Client:
    return Client(HttpTransport(load_access([kubeconfig], environ={})))


async def wait_for_phase(management: Client, name: str, phase: str = "Open", holder: str = "") -> Object:
    """Wait until a plane has a phase, and the holder if one is given."""

    def is_reached(plane: Object | None) -> bool:
        status = value_at(plane, "status", default={}) if plane is not None else {}
        return bool(status) and status.get("phase") == phase and holder in ("", status.get("holder"))

    found = await wait_for(management, PLANES, name, until=is_reached, timeout=OPEN_SECONDS)
    assert found is not None
    return found


async def created_plane(management: Client, name: str, **spec: Any) -> Object:
    await management.create(PLANES, object_named(name) | {"spec": spec})
    return await wait_for_phase(management, name)


async def created_planes(management: Client, names: list[str], **spec: Any) -> list[Object]:
    return await together(created_plane(management, name, **spec) for name in names)


async def plane_kubeconfig(management: Client, name: str, file: Path, **arguments: Any) -> Path:
    """Write a kubeconfig of an administrator of the plane to a file, and return it."""
    body = msgspec.json.encode(arguments)
    response = await management.transport.send(Request("POST", f"/apiext/v1/planes/{name}/kubeconfig", {}, body))
    assert response.status == 200, response.body
    write_private_file(file, msgspec.json.decode(response.body)["kubeconfig"].encode())
    return file


def token_of(kubeconfig: Path) -> str:
    (line,) = (each for each in kubeconfig.read_text().splitlines() if each.strip().startswith("token:"))
    return line.split()[1]
