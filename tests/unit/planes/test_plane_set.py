"""Planes of one process: each opens, answers and fails on its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import msgspec

from tapestry.apiserver.assembly import ServerThreads
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.client.client import Client
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.objects import object_named
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES
from tapestry.planes.open_plane import OpenPlane
from tapestry.planes.plane_set import PlaneEntry, PlaneSet, PlaneState


@asynccontextmanager
async def plane_set() -> AsyncIterator[PlaneSet]:
    with closing(ServerThreads()) as threads:
        async with asyncio.TaskGroup() as group:
            planes = PlaneSet(group, threads)
            yield planes
            await planes.close_all()


def config_for(folder: Path) -> ApiServerConfig:
    return ApiServerConfig(file_rootpath=str(folder))


def client_of(plane: OpenPlane | None) -> Client:
    assert plane is not None
    return Client(InProcessTransport(plane.opened.request_handler, APISERVER_USER))


async def test_planes_do_not_see_objects_of_each_other(tmp_path: Path) -> None:
    async with plane_set() as planes:
        clients = [client_of(await planes.open(planes.add(each, config_for(tmp_path / each)))) for each in ("a", "b")]
        await clients[0].create(CONFIGMAPS, object_named("own", "default"))
        assert "own" not in [each["metadata"]["name"] for each in await clients[1].list(CONFIGMAPS, "default")]


async def test_plane_has_its_objects_after_it_opens_again(tmp_path: Path) -> None:
    async with plane_set() as planes:
        entry = planes.add("a", config_for(tmp_path / "a"))
        await client_of(await planes.open(entry)).create(NAMESPACES, object_named("kept"))
        await planes.close(entry, PlaneState.SUSPENDED, "on request")
        assert (entry.state, entry.message, entry.plane) == (PlaneState.SUSPENDED, "on request", None)
        assert await client_of(await planes.open(entry)).get(NAMESPACES, "kept")


async def test_suspended_plane_in_memory_has_its_objects_once(tmp_path: Path) -> None:
    async with plane_set() as planes:
        config = msgspec.structs.replace(config_for(tmp_path / "a"), backend="memory")
        entry = planes.add("a", config)
        plane = await planes.open(entry)
        assert plane is not None
        await client_of(plane).create(CONFIGMAPS, object_named("kept", "default"))
        revision = plane.opened.store.revision
        await planes.close(entry, PlaneState.SUSPENDED)
        plane = await planes.open(entry)
        assert plane is not None
        assert await client_of(plane).find(CONFIGMAPS, "kept", "default")
        assert plane.opened.store.revision >= revision
        await planes.close(entry, PlaneState.ASLEEP)
        assert await client_of(await planes.open(entry)).find(CONFIGMAPS, "kept", "default") is None


async def test_plane_that_cannot_open_affects_only_itself(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tapestry.db").write_bytes(b"not a database" * 1000)
    async with plane_set() as planes:
        broken, sound = (planes.add(each, config_for(tmp_path / each)) for each in ("broken", "sound"))
        assert await planes.open(broken) is None
        assert broken.state is PlaneState.FAILED
        assert "tapestry.db" in broken.message
        assert await client_of(await planes.open(sound)).get(NAMESPACES, "default")


async def test_suspended_plane_is_opened_but_not_woken(tmp_path: Path) -> None:
    async with plane_set() as planes:
        entry = planes.add("a", config_for(tmp_path / "a"))
        assert await planes.wake(entry) is not None
        await planes.close(entry, PlaneState.SUSPENDED)
        assert await planes.wake(entry) is None
        assert entry.state is PlaneState.SUSPENDED
        assert await planes.open(entry) is not None
        assert (entry.state, entry.message) == (PlaneState.OPEN, "")


async def test_plane_suspended_while_it_opens_stays_suspended(tmp_path: Path) -> None:
    async with plane_set() as planes, asyncio.TaskGroup() as group:
        entry = planes.add("a", config_for(tmp_path / "a"))
        waking = group.create_task(planes.wake(entry))
        await asyncio.sleep(0)
        assert entry.state is PlaneState.OPENING
        await planes.close(entry, PlaneState.SUSPENDED, "on request")
        assert await waking is None
        assert (entry.state, entry.message, entry.task) == (PlaneState.SUSPENDED, "on request", None)


async def test_plane_is_opened_after_its_closing_has_ended(tmp_path: Path) -> None:
    async with plane_set() as planes, asyncio.TaskGroup() as group:
        entry = planes.add("a", config_for(tmp_path / "a"))
        first = await planes.open(entry)
        group.create_task(planes.close(entry, PlaneState.ASLEEP))
        await asyncio.sleep(0)
        assert (entry.state, entry.plane) == (PlaneState.ASLEEP, None)
        assert entry.task is not None
        second = await planes.wake(entry)
        assert second is not None
        assert second is not first
        assert entry.state is PlaneState.OPEN


async def test_changes_are_reported(tmp_path: Path) -> None:
    async with plane_set() as planes:
        states: list[PlaneState] = []
        planes.on_change(lambda entry: states.append(entry.state))
        entry = planes.add("a", config_for(tmp_path / "a"))
        await planes.open(entry)
        await planes.close(entry, PlaneState.SUSPENDED)
        assert states == [PlaneState.ASLEEP, PlaneState.OPENING, PlaneState.OPEN, PlaneState.SUSPENDED]


async def test_no_plane_opens_after_the_end(tmp_path: Path) -> None:
    async with plane_set() as planes:
        entry = planes.add("a", config_for(tmp_path / "a"))
        await planes.open(entry)
        await planes.close_all()
        assert await planes.open(entry) is None
        assert await planes.wake(entry) is None
        assert (entry.state, entry.task) == (PlaneState.ASLEEP, None)


async def test_work_beside_a_plane_ends_before_the_plane_closes(tmp_path: Path) -> None:
    found: list[str] = []

    async def work(entry: PlaneEntry, plane: OpenPlane) -> None:
        client = client_of(plane)
        found.append(f"{entry.id} begins")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await client.create(NAMESPACES, object_named("last-write"))
            found.append(f"{entry.id} ends")

    async with plane_set() as planes:
        planes.run_with_planes(work)
        entry = planes.add("a", config_for(tmp_path / "a"))
        await planes.open(entry)
        await asyncio.sleep(0)
        await planes.close(entry, PlaneState.SUSPENDED)
        assert found == ["a begins", "a ends"]
        assert await client_of(await planes.open(entry)).get(NAMESPACES, "last-write")


async def test_error_of_work_beside_a_plane_closes_only_it(tmp_path: Path) -> None:
    async def work(entry: PlaneEntry, _: OpenPlane) -> None:
        if entry.id == "broken":
            raise ValueError("no work")

    async with plane_set() as planes:
        planes.run_with_planes(work)
        broken, sound = (planes.add(each, config_for(tmp_path / each)) for each in ("broken", "sound"))
        await planes.open(broken)
        await planes.open(sound)
        assert broken.task is None or await asyncio.wait([broken.task])
        assert (broken.state, broken.message) == (PlaneState.FAILED, "no work")
        assert sound.state is PlaneState.OPEN
