"""Informers that count their lists, and record the objects whose creation they have seen."""

import asyncio
import itertools
from collections import Counter
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.transport import Request, Response, Stream
from tapestry.controller.informer import Informer
from tapestry.kube.errors import KubeError
from tapestry.kube.objects import Object, name_of, object_named
from tapestry.kube.resources import CONFIGMAPS


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


async def write_until_rejected(client: Client, prefix: str, written: set[str], is_busy: asyncio.Event) -> None:
    """Create objects until the plane rejects one, and record those that it acknowledged."""
    for number in itertools.count():
        try:
            await client.create(CONFIGMAPS, object_named(f"{prefix}-{number}", "default"))
        except KubeError:
            return
        written.add(f"{prefix}-{number}")
        if number == 20:
            is_busy.set()
