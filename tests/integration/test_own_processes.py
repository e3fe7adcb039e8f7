"""Planes that move to processes of their own and back, on a real etcd, while their clients stay connected."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.unit.planes.counting_informers import CountingInformer, counting_informer

from tapestry.apis.planes import PLANES, own_process_name, plane_id
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.kube.objects import Object, object_named, value_at
from tapestry.kube.resources import CONFIGMAPS

from .etcds import Etcd
from .plane_clients import client_of, created_plane, plane_kubeconfig
from .servers import PlanesProcess


def pids_of(id: str) -> list[int]:
    """Return the ids of the processes of a plane."""
    needle, found = f"/own/{id}/settings.json".encode(), []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if needle in each.read_bytes():
                found.append(int(each.parent.name))
        except OSError:  # it has ended
            continue
    return found


@dataclass
class Setting:
    """A process with a plane, and clients of the plane that keep their kubeconfig."""

    process: PlanesProcess
    management: Client
    plane: Object
    kubeconfig: Path
    informer: CountingInformer
    written: set[str] = field(default_factory=set)

    @property
    def id(self) -> str:
        return plane_id(self.plane)

    @property
    def pid(self) -> int:
        (pid,) = pids_of(self.id)
        return pid

    async def wait_for(self, is_reached: Callable[[Any], bool]) -> None:
        """Wait for a status of the plane, which is then open."""

        def is_open(plane: Object | None) -> bool:
            status = value_at(plane, "status", default={})
            return status.get("phase") == "Open" and is_reached(status)

        found = await wait_for(self.management, PLANES, "p", until=is_open, timeout=60)
        assert found is not None
        self.plane = found

    async def move(self, *, own: bool) -> None:
        await self.management.patch(PLANES, object_named("p"), {"spec": {"ownProcess": own}})
        holder = own_process_name(self.id) if own else "a"
        await self.wait_for(lambda status: status.get("holder") == holder)

    async def wait_for_next_epoch(self) -> None:
        epoch = self.plane["status"]["epoch"]
        await self.wait_for(lambda status: status["epoch"] > epoch)

    async def write(self, name: str) -> None:
        """Create an object, and check that a watch from before sees it and that no other one was lost."""
        async with client_of(self.kubeconfig) as client:
            await client.create(CONFIGMAPS, object_named(name, "default"))
            found = {each["metadata"]["name"] for each in await client.list(CONFIGMAPS, "default")}
        self.written.add(name)
        assert self.written <= found
        await self.informer.wait_for(self.written)


@asynccontextmanager
async def setting(kube_assets: Path, folder: Path) -> AsyncIterator[Setting]:
    async with AsyncExitStack() as stack:
        etcd = stack.enter_context(Etcd(kube_assets, folder))
        process = PlanesProcess(folder / "a", "--name", "a", "--backend", "etcd", "--etcd-servers", etcd.url)
        await asyncio.to_thread(stack.enter_context, process)
        management = await stack.enter_async_context(client_of(process.kubeconfig))
        plane = await created_plane(management, "p", backend="etcd")
        kubeconfig = await plane_kubeconfig(management, "p", folder / "p.yaml")
        informer = counting_informer(kubeconfig)
        stack.push_async_callback(informer.transport.close)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        running = group.create_task(informer.informer.run())
        yield Setting(process, management, plane, kubeconfig, informer)
        running.cancel()


@pytest.mark.timeout(180)
async def test_clients_continue_while_a_plane_changes_its_process(kube_assets: Path, tmp_path: Path) -> None:
    async with setting(kube_assets, tmp_path) as world:
        await world.write("shared")
        assert pids_of(world.id) == []
        await world.move(own=True)
        await world.write("own")
        first = world.pid
        for arguments in ({"byPath": True}, {"clientCertificate": True}):
            issued = await plane_kubeconfig(world.management, "p", tmp_path / "issued.yaml", **arguments)
            async with client_of(issued) as client:
                assert await client.get(CONFIGMAPS, "own", "default")
                await client.delete_if_exists(CONFIGMAPS, object_named("shared", "default"))
        world.written.discard("shared")

        os.kill(first, signal.SIGKILL)
        await world.wait_for_next_epoch()
        assert world.pid != first
        await world.write("after-its-kill")

        second = world.pid
        await asyncio.to_thread(world.process.restart)
        await world.wait_for_next_epoch()
        assert world.pid != second
        await world.write("after-the-kill-of-its-parent")

        await world.move(own=False)
        await world.write("shared-again")
        assert world.informer.transport.lists == 1, "the watch continued each time"
        async with asyncio.timeout(30):
            while await asyncio.to_thread(pids_of, world.id):
                pass
    assert pids_of(world.id) == []


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_moves_survive_kills(kube_assets: Path, tmp_path: Path) -> None:
    """Kill the parent or the process of the plane at some point of each move."""
    random = Random(1)
    async with setting(kube_assets, tmp_path) as world:
        for turn in range(12):
            own = turn % 2 == 0
            await world.management.patch(PLANES, object_named("p"), {"spec": {"ownProcess": own}})
            await asyncio.sleep(random.uniform(0, 4))
            if random.random() < 0.5:
                await asyncio.to_thread(world.process.restart)
            for pid in pids_of(world.id):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await world.move(own=own)
            await world.write(f"turn-{turn}")
            assert bool(pids_of(world.id)) or not own
