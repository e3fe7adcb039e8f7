"""Informers of clients continue when their plane moves to another process, and across its suspension.

Both processes share one etcd. A forwarder, like a load balancer, leads clients to the process that holds the plane.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.unit.planes.counting_informers import counting_informer, write_until_rejected

from tapestry.apis.planes import PLANES
from tapestry.client.client import Client
from tapestry.kube.objects import object_named
from tapestry.kube.resources import CONFIGMAPS

from .etcds import Etcd
from .plane_clients import client_of, created_plane, plane_kubeconfig, wait_for_phase
from .servers import PlanesProcess

INFORMERS = 20


@dataclass
class Forwarder:
    """Relay of connections to an address, which may change."""

    target: str
    address: str = ""
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    def lead_to(self, target: str) -> None:
        """Forward new connections to another address, and end those to the old one."""
        self.target = target
        self.close()

    def close(self) -> None:
        for each in self.writers:
            each.close()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        self.writers.append(writer)
        with suppress(OSError):
            upstream_reader, upstream_writer = await asyncio.open_connection(host, int(port))
            self.writers.append(upstream_writer)
            if writer.is_closing():
                upstream_writer.close()
            async with asyncio.TaskGroup() as group:
                group.create_task(copy(reader, upstream_writer))
                group.create_task(copy(upstream_reader, writer))
        writer.close()


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def forwarder(target: str) -> AsyncIterator[Forwarder]:
    result = Forwarder(target)
    async with asyncio.TaskGroup() as group:

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            group.create_task(result.forward(reader, writer))

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()
            result.address = f"{host}:{port}"
            yield result
            result.close()
    for each in result.writers:
        with suppress(OSError):
            await each.wait_closed()


async def write_during(client: Client, prefix: str, change: Callable[[], Awaitable[None]]) -> set[str]:
    """Create objects during a change, until the plane rejects one; return those that it acknowledged."""
    written: set[str] = set()
    is_busy = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(write_until_rejected(client, prefix, written, is_busy))
        await is_busy.wait()
        await change()
        writing.cancel()
    return written


@pytest.mark.timeout(180)
async def test_informers_continue_across_move_and_suspension(kube_assets: Path, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        etcd = stack.enter_context(Etcd(kube_assets, tmp_path))
        processes, managements = {}, {}
        for name in ("a", "b"):
            flags = ("--backend", "etcd", "--etcd-servers", etcd.url, "--group-key", tmp_path / "group.key")
            process = processes[name] = PlanesProcess(tmp_path / name, "--name", name, *map(str, flags))
            await asyncio.to_thread(process.start)
            stack.callback(process.kill)
            managements[name] = await stack.enter_async_context(client_of(process.kubeconfig))
        management = managements["a"]
        await created_plane(management, "p", backend="etcd", process="a")
        kubeconfig = await plane_kubeconfig(management, "p", tmp_path / "p.yaml")
        front = await stack.enter_async_context(forwarder(processes["a"].address))
        kubeconfig.write_text(kubeconfig.read_text().replace(processes["a"].address, front.address))
        client = await stack.enter_async_context(client_of(kubeconfig))
        informers = [counting_informer(kubeconfig) for _ in range(INFORMERS)]
        for each in informers:
            stack.push_async_callback(each.transport.close)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        tasks = [group.create_task(each.informer.run()) for each in informers]
        for each in informers:
            await each.informer.synced.wait()

        async def move() -> None:
            await management.patch(PLANES, object_named("p"), {"spec": {"process": "b"}})
            await wait_for_phase(management, "p", "Open", holder="b")
            front.lead_to(processes["b"].address)

        async def suspend() -> None:
            await management.patch(PLANES, object_named("p"), {"spec": {"state": "Suspended"}})
            await wait_for_phase(management, "p", "Suspended")

        expected = await write_during(client, "moved", move)
        expected |= await write_during(client, "suspended", suspend)
        await management.patch(PLANES, object_named("p"), {"spec": {"state": "Open"}})
        await wait_for_phase(management, "p", "Open")
        await client.create(CONFIGMAPS, object_named("last", "default"))
        expected.add("last")
        for each in informers:
            await each.wait_for(expected)
            assert each.transport.lists == 1
            assert set(each.created.values()) == {1}
        for task in tasks:
            task.cancel()
