"""Informers of clients continue across the suspension of their plane: no second list, and no lost event."""

import asyncio
import itertools
from collections import Counter
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.transport import Request, Response, Stream
from tapestry.controller.informer import Informer
from tapestry.kube.errors import KubeError
from tapestry.kube.objects import Object, name_of, object_named
from tapestry.kube.resources import CONFIGMAPS
from tapestry.planes.plane_set import PlaneEntry, PlaneState

from .listening_planes import ListeningPlanes, listening_planes

INFORMERS = 20


@dataclass
class CountingTransport:
    """A transport that counts lists, also those that are streamed by a watch."""

    transport: HttpTransport
    lists: int = 0

    async def send(self, request: Request) -> Response:
        self.lists += request.method == "GET"
        return await self.transport.send(request)

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        self.lists += "sendInitialEvents" in request.query or "watch" not in request.query
        return self.transport.stream(request)

    def abort(self) -> None:
        self.transport.abort()

    async def close(self) -> None:
        await self.transport.close()


@dataclass
class CountingInformer:
    """An informer with the names of the objects whose creation it has seen."""

    transport: CountingTransport
    informer: Informer[Any]
    created: Counter[str] = field(default_factory=Counter)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def record(self, old: Object | None, new: Object | None) -> None:
        if old is None and new is not None:
            self.created[name_of(new)] += 1
            self.changed.set()

    async def wait_for(self, names: set[str]) -> None:
        async with asyncio.timeout(60):
            while not names <= self.created.keys():
                self.changed.clear()
                await self.changed.wait()


def counting_informer(kubeconfig: Path) -> CountingInformer:
    transport = CountingTransport(HttpTransport(load_access([kubeconfig], environ={})))
    result = CountingInformer(transport, Informer(Client(transport), CONFIGMAPS, namespace="default"))
    result.informer.on_change(result.record)
    return result


async def write_until_suspended(client: Client, prefix: str, written: set[str], is_busy: asyncio.Event) -> None:
    """Create objects until the plane rejects one, and record those that it acknowledged."""
    for number in itertools.count():
        try:
            await client.create(CONFIGMAPS, object_named(f"{prefix}-{number}", "default"))
        except KubeError:
            return
        written.add(f"{prefix}-{number}")
        if number == 20:
            is_busy.set()


async def suspend_under_writes(running: ListeningPlanes, entry: PlaneEntry, client: Client, prefix: str) -> set[str]:
    written: set[str] = set()
    is_busy = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(write_until_suspended(client, prefix, written, is_busy))
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
        await client.create(CONFIGMAPS, object_named("last", "default"))
        expected.add("last")
        for each in informers:
            await each.wait_for(expected)
            assert each.transport.lists == 1
            assert set(each.created.values()) == {1}
        for task in tasks:
            task.cancel()
        for closed in (client.transport, *(each.transport for each in informers)):
            await closed.close()
