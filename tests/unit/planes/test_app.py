"""A process that holds planes: from records to kubeconfigs, copies and restarts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import yaml

from tapestry.apis.planes import PLANES, plane_id
from tapestry.apiserver.core.store import StorageError
from tapestry.cli.planes import mounted_routes
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.transport import Request
from tapestry.client.watch import wait_for
from tapestry.kube.errors import Unauthorized, Unavailable
from tapestry.kube.objects import Object, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES
from tapestry.planes.app import PlaneProcess, run_planes
from tapestry.planes.config import PlanesConfig

TIMEOUT = 30.0


@asynccontextmanager
async def running_planes(folder: Path) -> AsyncIterator[tuple[PlaneProcess, Client]]:
    """Yield a process with a free port, and a client with the kubeconfig that it has written."""
    config = PlanesConfig(data=str(folder), name="here", address="127.0.0.1:0")
    async with run_planes(config, mounted_routes) as process, client_with(config.kubeconfig_file) as management:
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


@pytest.mark.parametrize("by_path", [False, True])
async def test_kubeconfig_of_a_plane_works(tmp_path: Path, by_path: bool) -> None:
    async with running_planes(tmp_path / "data") as (process, management):
        plane = await create_plane(management, "one")
        assert plane["status"]["address"] == f"{process.address}/planes/{plane_id(plane)}"
        file = await kubeconfig_of(management, "one", tmp_path / "one", byPath=by_path)
        cluster = yaml.safe_load(file.read_text())["clusters"][0]["cluster"]
        assert ("tls-server-name" in cluster) is not by_path
        async with client_with(file) as client:
            await client.create(CONFIGMAPS, object_named("mine", "default"))
        assert plane["status"]["objects"] > 0
        assert plane["status"]["bytes"] > 0


async def test_credentials_of_a_plane_do_not_work_elsewhere(tmp_path: Path) -> None:
    async with running_planes(tmp_path / "data") as (_, management):
        for name in ("one", "two"):
            await create_plane(management, name)
        first = yaml.safe_load((await kubeconfig_of(management, "one", tmp_path / "one")).read_text())
        for other in (await kubeconfig_of(management, "two", tmp_path / "two"), tmp_path / "data" / "kubeconfig"):
            mixed = yaml.safe_load(other.read_text())
            mixed["users"][0]["user"] = first["users"][0]["user"]
            (tmp_path / "mixed").write_text(yaml.safe_dump(mixed))
            async with client_with(tmp_path / "mixed") as client:
                with pytest.raises(Unauthorized):
                    await client.list(NAMESPACES)


async def test_user_without_groups_has_no_rights_in_the_management_api(tmp_path: Path) -> None:
    async with running_planes(tmp_path / "data") as (_, management):
        await create_plane(management, "one")
        async with client_with(await kubeconfig_of(management, "one", tmp_path / "one", user="eve", groups=[])) as eve:
            response = await eve.transport.send(Request("GET", "/api/v1/namespaces"))
        assert response.status == 403


async def test_copy_has_the_objects_but_another_identity(tmp_path: Path) -> None:
    async with running_planes(tmp_path / "data") as (_, management):
        await create_plane(management, "one")
        async with client_with(await kubeconfig_of(management, "one", tmp_path / "one")) as client:
            await client.create(CONFIGMAPS, object_named("mine", "default"))
            identity = uid_of(await client.get(NAMESPACES, "kube-system"))
        await create_plane(management, "two", copyOf="one")
        async with client_with(await kubeconfig_of(management, "two", tmp_path / "two")) as client:
            assert await client.get(CONFIGMAPS, "mine", "default")
            assert uid_of(await client.get(NAMESPACES, "kube-system")) != identity
        assert name_of(await management.get(PLANES, "one")) == "one"


async def test_planes_are_open_again_after_a_restart(tmp_path: Path) -> None:
    async with running_planes(tmp_path / "data") as (_, management):
        await create_plane(management, "one")
        async with client_with(await kubeconfig_of(management, "one", tmp_path / "one")) as client:
            await client.create(CONFIGMAPS, object_named("mine", "default"))
    async with running_planes(tmp_path / "data") as (_, management):
        await wait_for_status(management, "one", epoch=2, phase="Open")
        async with client_with(await kubeconfig_of(management, "one", tmp_path / "one")) as client:
            assert await client.get(CONFIGMAPS, "mine", "default")


async def test_restart_revokes_the_token_of_the_last_start(tmp_path: Path) -> None:
    async with running_planes(tmp_path / "data"):
        before = (tmp_path / "data" / "admin-token").read_text()
    async with running_planes(tmp_path / "data") as (_, management):
        assert await management.list(PLANES) == []
        (tmp_path / "data" / "admin-token").write_text(before)
        async with client_with(tmp_path / "data" / "kubeconfig") as former:
            with pytest.raises(Unauthorized):
                await former.list(PLANES)


async def test_suspended_plane_tells_its_reason_until_it_is_resumed(tmp_path: Path) -> None:
    async with running_planes(tmp_path / "data") as (_, management):
        await create_plane(management, "one")
        async with client_with(await kubeconfig_of(management, "one", tmp_path / "one")) as client:
            suspended = {"state": "Suspended", "suspendReason": "over budget"}
            await management.patch(PLANES, object_named("one"), {"spec": suspended})
            await wait_for_phase(management, "one", "Suspended")
            with pytest.raises(Unavailable, match="over budget"):
                await client.get(NAMESPACES, "default")
            await management.patch(PLANES, object_named("one"), {"spec": {"state": "Open"}})
            await wait_for_phase(management, "one", "Open")
            assert await client.get(NAMESPACES, "default")


async def test_deleted_plane_leaves_no_files(tmp_path: Path) -> None:
    async with running_planes(tmp_path / "data") as (_, management):
        plane = await create_plane(management, "one")
        assert (tmp_path / "data" / "planes" / plane_id(plane)).exists()
        await management.delete(PLANES, object_named("one"))
        await wait_for(management, PLANES, "one", until=lambda found: found is None, timeout=TIMEOUT)
        assert list((tmp_path / "data" / "planes").iterdir()) == []


async def test_second_process_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    async with running_planes(tmp_path / "data"):
        with pytest.raises(StorageError, match="another process"):
            async with running_planes(tmp_path / "data"):
                pass
