"""Measurements of the planes of one process, without listeners. Each function runs in a new process."""

import asyncio
import gc
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop

from benchmarks.fresh import held_bytes
from tapestry.apiserver.assembly import ServerThreads
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import APISERVER_USER, Call
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.apiserver.documents import document_cache
from tapestry.client.client import Client
from tapestry.controller.app import GC_THRESHOLDS
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.objects import Object
from tapestry.kube.resources import CONFIGMAPS, CRDS
from tapestry.planes.open_plane import OpenPlane
from tapestry.planes.plane_set import PlaneEntry, PlaneSet, PlaneState
from tapestry.process import logs
from tapestry.process.system import return_large_blocks_to_system

MEGABYTE = 1 << 20
WARM_UP = 3
"""Planes that are opened before anything is measured."""
START_SECONDS = 2.0
"""Seconds for which controllers finish the work of a new plane."""
KUBECTL_ACCEPT = (
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
)
PROTOBUF_ACCEPT = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
KUBECTL_READS = (
    *((path, KUBECTL_ACCEPT) for path in ("/api", "/apis")),
    *((path, "application/json") for path in ("/openapi/v3", "/openapi/v3/api/v1", "/openapi/v3/apis/apps/v1")),
    *(("/openapi/v2", accept) for accept in ("application/json", PROTOBUF_ACCEPT)),
)
"""Paths that kubectl reads, with the forms that it accepts."""
DOCUMENT_IDLE_SECONDS = 2.0
"""Seconds after which documents are dropped here. It is a minute by default."""
WARM_UP_CYCLES = 20
"""Number of times that a plane is opened and closed before anything is measured."""


class Planes:
    """Planes in temporary folders."""

    def __init__(self, planes: PlaneSet, folder: Path) -> None:
        self._planes, self._folder = planes, folder

    def add(self, name: str) -> PlaneEntry:
        return self._planes.add(name, ApiServerConfig(file_rootpath=str(self._folder / name)))

    async def open(self, entry: PlaneEntry) -> OpenPlane:
        """Open a plane and wait until it answers."""
        plane = await self._planes.open(entry)
        assert plane is not None, entry.message
        await answer(plane, "/api/v1/namespaces/default")
        return plane

    async def suspend(self, entry: PlaneEntry) -> None:
        await self._planes.close(entry, PlaneState.SUSPENDED)


@asynccontextmanager
async def running_planes() -> AsyncIterator[Planes]:
    with closing(ServerThreads()) as threads, TemporaryDirectory() as folder:
        async with asyncio.TaskGroup() as group:
            plane_set = PlaneSet(group, threads)
            planes = Planes(plane_set, Path(folder))
            for number in range(WARM_UP):
                await planes.open(planes.add(f"warm-up-{number}"))
            await asyncio.sleep(START_SECONDS)
            yield planes
            await plane_set.close_all()


def run(measure: Callable[[], Awaitable[Mapping[str, Any]]]) -> dict[str, Any]:
    """Measure in a process that is configured like the command."""
    logs.configure("error", "json")
    gc.set_threshold(*GC_THRESHOLDS)
    return_large_blocks_to_system()

    async def measured() -> dict[str, Any]:
        return dict(await measure())

    return uvloop.run(measured())


async def answer(plane: OpenPlane, path: str, accept: str = "application/json") -> ApiResponse:
    headers = {"accept": accept, "accept-encoding": "gzip"}
    response = await plane.opened.request_handler.handle(Call("GET", path, {}, headers, b"", APISERVER_USER))
    assert isinstance(response, ApiResponse), path
    assert response.status == 200, response.body
    return response


def widget_definition() -> Object:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    names = {"plural": "widgets", "kind": "Widget"}
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": "widgets.example.com"}, "spec": spec}


def client_of(plane: OpenPlane) -> Client:
    return Client(InProcessTransport(plane.opened.request_handler, APISERVER_USER))


async def timed(awaitable: Awaitable[object]) -> float:
    started = time.perf_counter()
    await awaitable
    return time.perf_counter() - started


def full_collection() -> float:
    started = time.perf_counter()
    gc.collect()
    return time.perf_counter() - started


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class LoopBlocks:
    """Measure the longest time for which the event loop runs no other task."""

    def __init__(self) -> None:
        self.worst = self.worst_cpu = 0.0

    async def watch(self) -> None:
        while True:
            started, cpu_started = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0)
            self.worst = max(self.worst, time.perf_counter() - started)
            self.worst_cpu = max(self.worst_cpu, time.thread_time() - cpu_started)


# -- measurements


def idle(count: str) -> dict[str, Any]:
    """Open planes one after the other, and let kubectl read the documents of each."""
    number_of_planes = int(count)

    async def measure() -> dict[str, Any]:
        async with running_planes() as planes:
            bytes_before, tasks_before, cpu = held_bytes(), len(asyncio.all_tasks()), time.process_time()
            entries = [planes.add(str(number)) for number in range(number_of_planes)]
            started = time.perf_counter()
            seconds = [await timed(planes.open(each)) for each in entries]
            total = time.perf_counter() - started
            await asyncio.sleep(START_SECONDS)
            cpu_used, collection = time.process_time() - cpu, full_collection()
            idle_bytes, tasks = held_bytes(), len(asyncio.all_tasks())
            for each in entries:
                assert each.plane is not None
                for path, accept in KUBECTL_READS:
                    await answer(each.plane, path, accept)
            read_bytes = held_bytes()
            return {
                "megabytes": (idle_bytes - bytes_before) / MEGABYTE / number_of_planes,
                "megabytes_read": (read_bytes - bytes_before) / MEGABYTE / number_of_planes,
                "tasks": (tasks - tasks_before) / number_of_planes,
                "base": bytes_before / MEGABYTE,
                "create_p50": sorted(seconds)[len(seconds) // 2],
                "create_total": total,
                "create_cpu": cpu_used / number_of_planes,
                "collection": collection,
            }

    return run(measure)


def documents(count: str) -> dict[str, Any]:
    """Let kubectl read the documents of planes with a custom resource each, and wait until they are dropped."""
    number_of_planes = int(count)
    document_cache.IDLE_SECONDS = DOCUMENT_IDLE_SECONDS

    async def measure() -> dict[str, Any]:
        async with running_planes() as planes:
            bytes_before = held_bytes()
            opened = [await planes.open(planes.add(str(number))) for number in range(number_of_planes)]
            for each in opened:
                await client_of(each).create(CRDS, widget_definition())
            await asyncio.sleep(START_SECONDS)
            for each in opened:
                for path, accept in KUBECTL_READS:
                    await answer(each, path, accept)
            read_bytes = held_bytes()
            await asyncio.sleep(2 * DOCUMENT_IDLE_SECONDS)
            return {
                "megabytes_read": (read_bytes - bytes_before) / MEGABYTE / number_of_planes,
                "megabytes": (held_bytes() - bytes_before) / MEGABYTE / number_of_planes,
            }

    return run(measure)


def resume(objects: str) -> dict[str, Any]:
    """Suspend and resume a plane with many objects, several times."""

    async def measure() -> dict[str, Any]:
        async with running_planes() as planes:
            entry = planes.add("full")
            await fill(client_of(await planes.open(entry)), int(objects))
            suspends, resumes = [], []
            blocks = LoopBlocks()
            watching = asyncio.create_task(blocks.watch())
            for _ in range(5):
                suspends.append(await timed(planes.suspend(entry)))
                resumes.append(await timed(planes.open(entry)))
                await asyncio.sleep(START_SECONDS)  # until the controllers have read all objects
            watching.cancel()
            return {
                "suspend": sorted(suspends)[2],
                "resume": sorted(resumes)[2],
                "blocked": blocks.worst,
                "blocked_cpu": blocks.worst_cpu,
            }

    return run(measure)


async def fill(client: Client, count: int) -> None:
    numbers = iter(range(count))

    async def create_some() -> None:
        for number in numbers:
            metadata = {"name": f"c{number}", "namespace": "default", "labels": {"shard": str(number % 10)}}
            await client.create(CONFIGMAPS, {"metadata": metadata, "data": {"text": "x" * 500, "number": str(number)}})

    async with asyncio.TaskGroup() as group:
        for _ in range(32):
            group.create_task(create_some())


def cycles(count: str) -> dict[str, Any]:
    """Open and close a plane many times, beside open ones."""

    async def measure() -> dict[str, Any]:
        async with running_planes() as planes:
            entry = planes.add("cycled")

            async def cycle(times: int) -> None:
                for _ in range(times):
                    await planes.open(entry)
                    await planes.suspend(entry)

            await cycle(WARM_UP_CYCLES)
            bytes_before, descriptors_before = held_bytes(), open_descriptors()
            await cycle(int(count))
            return {
                "bytes": held_bytes() / bytes_before,
                "megabytes": bytes_before / MEGABYTE,
                "descriptors": open_descriptors() / descriptors_before,
            }

    return run(measure)


def main() -> None:
    print(globals()[sys.argv[1]](*sys.argv[2:]))


if __name__ == "__main__":
    main()
