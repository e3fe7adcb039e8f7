"""Measurements of the planes of one process, configured like those of the command. Each function runs in a new process.

Clients that must not affect the measured process are in processes of their own.
"""

import asyncio
import gc
import itertools
import os
import shutil
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory
from typing import Any

import uvloop

from benchmarks.fresh import held_bytes
from benchmarks.sides.client_process import client_process
from benchmarks.sides.plane_client import Sample
from tapestry.apis.planes import PlaneSpec
from tapestry.apiserver.access.ephemeral_tokens import TOKENS_FILE, create_token
from tapestry.apiserver.assembly import ServerIsolation, ServerThreads
from tapestry.apiserver.core.requests import APISERVER_USER, Call
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.apiserver.documents import document_cache
from tapestry.client.client import Client
from tapestry.client.metrics import RESOURCE_LABEL
from tapestry.controller.app import GC_THRESHOLDS
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.objects import Object
from tapestry.kube.resources import CONFIGMAPS, CRDS
from tapestry.planes.config import PlanesConfig, plane_server_config
from tapestry.planes.idle_planes import IdlePlanes
from tapestry.planes.open_plane import OpenPlane, open_plane
from tapestry.planes.plane_copies import copy_open_plane, create_plane_from_copy
from tapestry.planes.plane_listener import PlaneListener
from tapestry.planes.plane_metrics import built_in_label
from tapestry.planes.plane_names import PlaneNames
from tapestry.planes.plane_set import PlaneEntry, PlaneSet, PlaneState
from tapestry.planes.plane_tls import PlaneTls
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
CA_MAP = "/api/v1/namespaces/default/configmaps/kube-root-ca.crt"
MANAGE_PAUSE = 0.2
"""Seconds between two planes that are created."""
WARM_UP_CYCLES = 20
"""Number of times that a plane is opened and closed before anything is measured."""


class Planes:
    """Planes in a temporary folder, with a listener."""

    def __init__(self, planes: PlaneSet, config: PlanesConfig, url: str) -> None:
        self.planes, self.config, self._url = planes, config, url

    def add(self, name: str) -> PlaneEntry:
        return self.planes.add(name, plane_server_config(self.config, name, PlaneSpec()))

    async def open(self, entry: PlaneEntry) -> OpenPlane:
        """Open a plane and wait until it answers."""
        plane = await self.planes.open(entry)
        assert plane is not None, entry.message
        await answer(plane, "/api/v1/namespaces/default")
        return plane

    async def suspend(self, entry: PlaneEntry) -> None:
        await self.planes.close(entry, PlaneState.SUSPENDED)

    def url(self, plane_id: str) -> str:
        return f"{self._url}/planes/{plane_id}"

    @property
    def ca_file(self) -> str:
        return str(self.config.folder / "pki" / "ca.crt")

    def issue_token(self, *plane_ids: str) -> str:
        """Return a token for all of these planes, which is not checked for its plane in a benchmark."""
        tokens = [self.config.planes_folder / each for each in plane_ids]
        _, text = create_token(tokens[0], "bench", ("system:masters",), timedelta(hours=1), datetime.now(UTC))
        for folder in tokens[1:]:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copy(tokens[0] / TOKENS_FILE, folder / TOKENS_FILE)
        return text


@asynccontextmanager
async def running_planes() -> AsyncIterator[Planes]:
    with closing(ServerThreads.for_many_servers()) as threads, TemporaryDirectory() as folder:
        async with asyncio.TaskGroup() as group:
            plane_set, config = PlaneSet(group, threads), PlanesConfig(data=folder, address="127.0.0.1:0")
            tls = PlaneTls(config.folder, PlaneNames(config.domain, ("127.0.0.1",)), plane_set.config_of)
            http_server = await PlaneListener(plane_set, tls, group).listen("127.0.0.1", 0)
            idle = group.create_task(IdlePlanes(plane_set).run())
            planes = Planes(plane_set, config, f"https://127.0.0.1:{http_server.addresses[0][1]}")
            for number in range(WARM_UP):
                await planes.open(planes.add(f"warm-up-{number}"))
            await asyncio.sleep(START_SECONDS)
            yield planes
            idle.cancel()
            await plane_set.close_all()
            await http_server.stop()


def plane_client(planes: Planes, token: str) -> AbstractAsyncContextManager[Callable[..., Awaitable[Any]]]:
    """Start a client of planes in a process of its own."""
    return client_process("benchmarks.sides.plane_client", planes.ca_file, token)


class Collections:
    """Longest garbage collection of any kind."""

    def __init__(self) -> None:
        self.worst_cpu = self._started = 0.0

    def __call__(self, phase: str, _: object) -> None:
        if phase == "start":
            self._started = time.thread_time()
        else:
            self.worst_cpu = max(self.worst_cpu, time.thread_time() - self._started)


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
            collections = Collections()
            gc.callbacks.append(collections)
            entries = [planes.add(str(number)) for number in range(number_of_planes)]
            started = time.perf_counter()
            seconds = [await timed(planes.open(each)) for each in entries]
            total = time.perf_counter() - started
            await asyncio.sleep(START_SECONDS)
            cpu_used = time.process_time() - cpu
            gc.collect()
            gc.callbacks.remove(collections)
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
                "collection": collections.worst_cpu,
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


def awake(count: str, awake_count: str, objects: str, idle_seconds: str) -> dict[str, Any]:
    """Hold many planes, of which some are awake and have objects and informers. Then nothing happens for a while."""

    async def measure() -> dict[str, Any]:
        async with running_planes() as planes:
            base, names = held_bytes(), [str(number) for number in range(int(count))]
            token = planes.issue_token(*names)
            for name in names[int(awake_count) :]:
                entry = planes.add(name)
                await planes.open(entry)
                await planes.planes.close(entry, PlaneState.ASLEEP)
            urls = []
            async with plane_client(planes, token) as ask:
                for name in names[: int(awake_count)]:
                    await planes.open(planes.add(name))
                    urls.append(planes.url(name))
                    await ask("fill", url=urls[-1], count=int(objects))
                await ask("inform", urls=urls)
                await asyncio.sleep(2 * START_SECONDS)
                megabytes, cpu, started = held_bytes() / MEGABYTE, time.process_time(), time.perf_counter()
                await asyncio.sleep(float(idle_seconds))
                share = (time.process_time() - cpu) / (time.perf_counter() - started)
            return {"megabytes": megabytes, "base": base / MEGABYTE, "cpu": share}

    return run(measure)


def neighbour(objects: str, definitions: str, watches: str, idle_seconds: str) -> dict[str, Any]:
    """Measure GETs of a client while another plane is busy, and planes are created, resumed and copied."""

    async def measure() -> dict[str, Any]:
        async with running_planes() as planes:
            token = planes.issue_token("quiet", "busy")
            await planes.open(planes.add("quiet"))
            busy, blocks = planes.add("busy"), LoopBlocks()
            await planes.open(busy)
            async with plane_client(planes, token) as ask, plane_client(planes, token) as ask_quiet:
                await ask("fill", url=planes.url("busy"), count=int(objects))
                await ask_quiet("poll", url=planes.url("quiet") + CA_MAP, pid=os.getpid())
                idle = Phase(await_end=asyncio.sleep(float(idle_seconds)))
                await idle.run()
                async with asyncio.TaskGroup() as group:
                    others = [group.create_task(each) for each in (manage_planes(planes, busy), blocks.watch())]
                    url = planes.url("busy")
                    work = ask("burden", url=url, definitions=int(definitions), watches=int(watches))
                    burdened = Phase(await_end=work)
                    await burdened.run()
                    for each in others:
                        each.cancel()
                samples = (await ask_quiet("samples"))["result"]
            return {
                "idle": idle.percentiles(samples),
                "burdened": burdened.percentiles(samples),
                "blocked_cpu": blocks.worst_cpu,
                "cpu": burdened.cpu,
                "lists": burdened.result["result"],
                "managed": MANAGED,
                "load": os.getloadavg()[0],
            }

    return run(measure)


MANAGED: Counter[str] = Counter()
"""Number of planes that were created, resumed and copied."""


@dataclass
class Phase:
    """A period of time."""

    await_end: Awaitable[Any]
    started: float = 0.0
    ended: float = 0.0
    cpu: float = 0.0
    """Share of a core that this process used."""
    result: Any = None

    async def run(self) -> None:
        self.started, cpu = time.monotonic(), time.process_time()
        self.result = await self.await_end
        self.ended = time.monotonic()
        self.cpu = (time.process_time() - cpu) / (self.ended - self.started)

    def percentiles(self, samples: list[Sample]) -> dict[str, float]:
        """Return p50, p99 and maximum of the requests of the period, in seconds and in seconds of CPU."""
        found = [each for each in samples if self.started <= each[0] < self.ended]
        result: dict[str, float] = {"count": len(found), "seconds": self.ended - self.started}
        for column, name in ((1, ""), (2, "_cpu")):
            ordered = sorted(each[column] for each in found)
            result |= {f"p{each}{name}": ordered[len(ordered) * each // 100] for each in (50, 99)}
            result[f"worst{name}"] = ordered[-1]
        return result


async def manage_planes(planes: Planes, source: PlaneEntry) -> None:
    """Create, suspend, resume and copy planes, one after the other."""
    for number in itertools.count():
        entry = planes.add(f"created-{number}")
        await planes.open(entry)
        MANAGED["created"] += 1
        await planes.suspend(entry)
        await planes.open(entry)
        MANAGED["resumed"] += 1
        await planes.planes.remove(entry)
        if number % 10 == 0:
            assert source.plane is not None
            folder = planes.config.planes_folder
            file = folder / "copy.tar"
            await copy_open_plane(source.plane.opened.store, file)
            await asyncio.to_thread(create_plane_from_copy, folder, f"copy-{number}", file)
            copy = planes.add(f"copy-{number}")
            await planes.open(copy)
            MANAGED["copied"] += 1
            await planes.planes.remove(copy)
        await asyncio.sleep(MANAGE_PAUSE)


def steps(requests: str, rounds: str) -> dict[str, Any]:
    """Measure the CPU time of requests to two planes: the steps of one are neither measured nor scheduled."""

    async def measure() -> dict[str, Any]:
        async with running_planes() as planes, AsyncExitStack() as stack:
            token = planes.issue_token("measured", "plain")
            await planes.open(planes.add("measured"))
            share = planes.planes.shares.open_share("plain")
            threads = await stack.enter_async_context(plain_plane(planes, share.isolation))
            planes.planes.add_open(threads)
            best: dict[str, list[float]] = {}
            async with plane_client(planes, token) as ask:
                for number, plane in itertools.product(range(int(rounds)), ("measured", "plain")):
                    url, count = planes.url(plane), int(requests)
                    for what, arguments in (
                        ("get", {"url": url + CA_MAP}),
                        ("create", {"url": url, "prefix": f"r{number}"}),
                    ):
                        cpu = time.process_time()
                        await ask(what, count=count, **arguments)
                        best.setdefault(f"{what}-{plane}", []).append((time.process_time() - cpu) / count)
            return {name: statistics.median(sorted(each)[: len(each) // 2]) for name, each in best.items()}

    return run(measure)


@asynccontextmanager
async def plain_plane(planes: Planes, isolation: ServerIsolation) -> AsyncIterator[OpenPlane]:
    """Open a plane whose tasks and requests do not belong to it."""
    RESOURCE_LABEL.set(built_in_label)  # as in the context of a plane
    config = plane_server_config(planes.config, "plain", PlaneSpec())
    unscheduled = replace(isolation, scheduler=Unscheduled())
    with closing(ServerThreads.for_many_servers()) as threads:
        async with open_plane("plain", config, threads, isolation=unscheduled) as plane:
            yield plane


class Unscheduled:
    def run(self, work: Coroutine[Any, Any, None]) -> Awaitable[None]:
        return work

    def may_start(self) -> bool:
        return True


def main() -> None:
    print(globals()[sys.argv[1]](*sys.argv[2:]))


if __name__ == "__main__":
    main()
