"""A client of planes in a process of its own.

It executes the commands that it reads, one JSON object in a line, and answers each with a line. What a command has
opened stays open until the input ends.
"""

import asyncio
import ssl
import sys
import time
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import uvloop

from benchmarks.sides.client_process import execute_commands

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MAPS = "/api/v1/namespaces/default/configmaps"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
APPLY = {"Content-Type": "application/apply-patch+yaml"}
CONCURRENCY = 8
RETRY_SECONDS, PAUSE = 0.05, 0.005
TOO_MANY_REQUESTS = 429
"""Seconds between two attempts of a rejected request, and between two requests that are measured."""
KIND_PATHS = (
    *("/api/v1/configmaps", "/api/v1/secrets", "/api/v1/services", "/api/v1/pods", "/api/v1/namespaces"),
    *("/api/v1/serviceaccounts", "/apis/apps/v1/deployments", "/apis/apps/v1/replicasets", "/apis/batch/v1/jobs"),
    "/apis/rbac.authorization.k8s.io/v1/roles",
)
"""Kinds that informers follow."""


Sample = tuple[float, float, float]
"""Start of a request on the clock that all processes share, seconds until the response, and those of the server's CPU.

While only one thread of the server can run at a time, its CPU time is what the request takes on an idle machine.
"""


class PlaneClient:
    def __init__(self, session: aiohttp.ClientSession, group: asyncio.TaskGroup) -> None:
        self._session, self._group = session, group
        self._running: list[asyncio.Task[None]] = []
        self._samples: list[Sample] = []

    async def send(self, method: str, url: str, body: Any = None, **headers: str) -> bytes:
        """Send a request until it is not rejected because of a limit."""
        while True:
            async with self._session.request(method, url, json=body, headers=headers) as response:
                content = await response.read()
                if response.status != TOO_MANY_REQUESTS:
                    assert response.status < 300, (url, response.status, content[:300])
                    return content
            await asyncio.sleep(RETRY_SECONDS)

    async def get(self, url: str, count: int) -> None:
        for _ in range(count):
            await self.send("GET", url)

    async def create(self, url: str, prefix: str, count: int) -> None:
        for number in range(count):
            await self.send("POST", url + MAPS, {"metadata": {"name": f"{prefix}-{number}"}, "data": {"a": "b"}})

    async def fill(self, url: str, count: int) -> None:
        """Create objects, several at the same time."""

        def work() -> Iterable[Awaitable[Any]]:
            for number in range(count):
                metadata = {"name": f"c{number}", "labels": {"shard": str(number % 10)}}
                yield self.send("POST", url + MAPS, {"metadata": metadata, "data": {"text": "x" * 500}})

        await at_once(work())

    async def inform(self, urls: list[str]) -> None:
        """Open an informer on each of the kinds of all planes."""
        for url in urls:
            for path in KIND_PATHS:
                listed = msgspec.json.decode(await self.send("GET", url + path))
                await self.watch(f"{url}{path}?watch=1&resourceVersion={listed['metadata']['resourceVersion']}")

    async def watch(self, url: str) -> None:
        """Open a watch, and read it from now on."""
        while (response := await self._session.get(url)).status == TOO_MANY_REQUESTS:
            await response.read()
            await asyncio.sleep(RETRY_SECONDS)
        assert response.status == 200, url
        self._running.append(self._group.create_task(drain(response)))

    async def poll(self, url: str, pid: int) -> None:
        """Repeat a request from now on."""

        async def repeat() -> None:
            while True:
                started, cpu_started = time.monotonic(), cpu_seconds(pid)
                await self.send("GET", url)
                self._samples.append((started, time.monotonic() - started, cpu_seconds(pid) - cpu_started))
                await asyncio.sleep(PAUSE)

        self._running.append(self._group.create_task(repeat()))

    def close(self) -> None:
        for each in self._running:
            each.cancel()

    async def samples(self) -> list[Sample]:
        return self._samples

    async def burden(self, url: str, definitions: int, watches: int) -> dict[str, int]:
        """Apply definitions and open watches as fast as the server allows, and list all objects meanwhile."""
        lists = {"json": 0, "table": 0}

        async def list_all(form: str, accept: str) -> None:
            while True:
                await self.send("GET", f"{url}/api/v1/configmaps", accept=accept)
                lists[form] += 1

        async with asyncio.TaskGroup() as group:
            forms = ("json", "application/json"), ("table", TABLE)
            listing = [group.create_task(list_all(*each)) for each in forms]
            async with asyncio.TaskGroup() as work:
                work.create_task(at_once(self.send("PATCH", **definition(url, each)) for each in range(definitions)))
                work.create_task(at_once(self.watch(f"{url}/api/v1/configmaps?watch=1") for _ in range(watches)))
            for each in listing:
                each.cancel()
        return lists


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process, as precise as the kernel knows it."""
    return sum(int(each.read_text().split()[0]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


async def at_once(work: Iterable[Awaitable[Any]]) -> None:
    pending = iter(work)

    async def run() -> None:
        for each in pending:
            await each

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(run())


async def drain(response: aiohttp.ClientResponse) -> None:
    async for _ in response.content.iter_any():
        pass


def definition(url: str, number: int) -> dict[str, Any]:
    """Return a request that applies a CustomResourceDefinition with a few fields."""
    plural, group = f"widgets{number}", "example.com"
    fields = {f"field{each}": {"type": "string", "maxLength": 64} for each in range(20)}
    spec = {"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": spec}}
    names = {"plural": plural, "kind": f"Widget{number}"}
    body = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }
    return {"url": f"{url}{CRDS}/{plural}.{group}?fieldManager=bench&force=true", "body": body, **APPLY}


async def main(ca: str, token: str) -> None:
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=ca), limit=0)
    headers, timeout = {"Authorization": f"Bearer {token}"}, aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session,
        asyncio.TaskGroup() as group,
    ):
        client = PlaneClient(session, group)
        await execute_commands(client)
        client.close()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
