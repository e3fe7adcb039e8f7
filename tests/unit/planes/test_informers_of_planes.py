"""Informers of clients continue across the suspension of their plane: no second list, and no lost event."""

import asyncio
from pathlib import Path

import pytest

from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.kube.objects import object_named
from tapestry.kube.resources import CONFIGMAPS
from tapestry.planes.plane_set import PlaneEntry, PlaneState

from .counting_informers import counting_informer, write_until_rejected
from .listening_planes import ListeningPlanes, listening_planes

INFORMERS = 20


async def suspend_under_writes(running: ListeningPlanes, entry: PlaneEntry, client: Client, prefix: str) -> set[str]:
    written: set[str] = set()
    is_busy = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(write_until_rejected(client, prefix, written, is_busy))
        await is_busy.wait()
        await running.planes.close(entry, PlaneState.SUSPENDED, "maintenance")
    return written


@pytest.mark.parametrize("controllers", [["none"], ["*"]])
async def test_informers_continue_without_list_or_loss(tmp_path: Path, controllers: list[str]) -> None:
    async with listening_planes(tmp_path) as running, asyncio.TaskGroup() as group:
        entry = await running.opened("a", controllers=controllers)
        kubeconfigs = [running.kubeconfig("a", by_path=each) for each in (False, True)]
        informers = [counting_informer(kubeconfigs[number % 2]) for number in range(INFORMERS)]
        tasks = [group.create_task(each.informer.run()) for each in informers]
        for each in informers:
            await each.informer.synced.wait()
        client = Client(HttpTransport(load_access([kubeconfigs[0]], environ={})))
        expected: set[str] = set()
        for round_number in range(2):
            expected |= await suspend_under_writes(running, entry, client, f"round-{round_number}")
            assert await running.planes.open(entry) is not None
            expected.add(name := f"after-{round_number}")
            await client.create(CONFIGMAPS, object_named(name, "default"))
            for each in informers:
                await each.wait_for(expected)  # one that does not watch when the plane closes has to list again
        for each in informers:
            assert each.transport.lists == 1
            assert set(each.created.values()) == {1}
        for task in tasks:
            task.cancel()
        for closed in (client.transport, *(each.transport for each in informers)):
            await closed.close()
