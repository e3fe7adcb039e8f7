"""Cost of API requests: the Tapestry API server compared with kube-apiserver and etcd.

Both serve TLS. Tapestry syncs every write to disk and etcd does not, which favours etcd. The servers take turns, each
on its own. CPU and memory are those of all processes of a side, as counted by the kernel. Only ratios are compared,
because the client and the servers share the machine.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import aiohttp
import msgspec
import uvloop
from tests.integration.processes import cpu_seconds, rss_megabytes
from tests.integration.servers import OwnServer

from benchmarks.table import Row, alone, say
from tapestry.kube.objects import Object
from tapestry.local.kubernetes import AssetsMissing, ControlPlane, find_assets

PODS = 2_000
IN_FLIGHT = 32
LISTS = 20
WATCHERS, BEATS = 200, 100
ROUNDS = 2
OBJECTS = 10_000
"""Number of objects in the store when a start is timed."""
CPU_BARS = {"create": 4.0, "patch": 4.0, "get": 4.0, "delete": 4.0, "fan-out": 1.5}
"""Required ratio of the CPU time of kube-apiserver and etcd to ours: per request, or per event for fan-out."""
MERGE = {"Content-Type": "application/merge-patch+json"}
CUSTOM_KINDS = 100
DOCUMENT_BARS = {0: 6, CUSTOM_KINDS: 15}
"""Limits of the memory of all OpenAPI documents in megabytes, by the number of custom resources."""
EXAMPLE = Path(__file__).parent.parent / "manifests" / "crds" / "database.cloud.tencent.com_redismigrations.yaml"
"""CustomResourceDefinition that is copied."""
CUSTOM_RESOURCES = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ENCODE = msgspec.json.encode


@dataclass(frozen=True)
class Work:
    """Results of many requests of one kind."""

    per_second: float
    median: float
    cpu: float
    """CPU seconds of the server per request."""


@dataclass
class Turn:
    """Results of one server in one turn."""

    ready: float
    idle: float
    """Memory in megabytes."""
    work: dict[str, Work] = field(default_factory=dict)
    full: float = 0.0
    """Memory in megabytes with all pods stored."""


@dataclass(frozen=True)
class ApiClient:
    """A client of one server."""

    session: aiohttp.ClientSession
    url: str
    pids: Sequence[int]
    namespace: str

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    async def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
        async with self.session.request(method, self.url + path, data=body, headers=headers) as response:
            content = await response.read()
            if response.status >= 400:
                raise RuntimeError(f"{method} {path}: {response.status} {content[:300].decode()}")
            return content

    def cpu(self) -> float:
        return sum(map(cpu_seconds, self.pids))

    def megabytes(self) -> float:
        return sum(map(rss_megabytes, self.pids))

    async def many(self, count: int, ask: Callable[[int], Awaitable[object]], at_once: int = IN_FLIGHT) -> Work:
        numbers, seconds = iter(range(count)), []

        async def worker() -> None:
            for number in numbers:
                started = time.perf_counter()
                await ask(number)
                seconds.append(time.perf_counter() - started)

        cpu, started = self.cpu(), time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(worker())
        duration = time.perf_counter() - started
        return Work(count / duration, median(seconds), (self.cpu() - cpu) / count)

    async def fan_out(self) -> Work:
        """Measure changes of one pod with many watchers, counted in received events."""
        version = msgspec.json.decode(await self.ask("GET", f"{self.pods}?limit=1"))["metadata"]["resourceVersion"]
        query = f"watch=1&resourceVersion={version}&fieldSelector=metadata.name%3Dp1"
        sent: dict[bytes, float] = {}
        seconds: list[float] = []
        start, watching = asyncio.Semaphore(0), asyncio.Semaphore(0)

        async def watch() -> None:
            async with self.session.get(f"{self.url}{self.pods}?{query}") as response:
                watching.release()
                await start.acquire()
                remaining, rest = BEATS, b""
                while remaining:
                    *lines, rest = (rest + await response.content.readany()).split(b"\n")
                    received_at = time.perf_counter()
                    for line in lines:
                        begin = line.index(b'"beat":"') + 8
                        seconds.append(received_at - sent[line[begin : line.index(b'"', begin)]])
                    remaining -= len(lines)

        async with asyncio.TaskGroup() as group:
            for _ in range(WATCHERS):
                group.create_task(watch())
            for _ in range(WATCHERS):
                await watching.acquire()
            cpu, started = self.cpu(), time.perf_counter()
            for _ in range(WATCHERS):
                start.release()
            for number in range(BEATS):
                sent[b"%d" % number] = time.perf_counter()
                await self.ask(
                    "PATCH", f"{self.pods}/p1", b'{"metadata":{"annotations":{"beat":"%d"}}}' % number, **MERGE
                )
        duration = time.perf_counter() - started
        return Work(len(seconds) / duration, median(seconds), (self.cpu() - cpu) / len(seconds))


def pod(number: int) -> bytes:
    """Return a pod of about a kilobyte."""
    variables = [{"name": f"E{each}", "value": "v" * 20} for each in range(10)]
    requests = {"cpu": "10m", "memory": "10Mi"}
    container = {"name": "c", "image": "nginx:1.27", "env": variables, "resources": {"requests": requests}}
    return ENCODE(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"p{number}", "labels": {"app": "bench", "shard": str(number % 10)}},
            "spec": {"nodeName": f"n{number % 100}", "containers": [container]},
        }
    )


def status(number: int) -> bytes:
    return b'{"status":{"phase":"Running","podIP":"10.0.0.%d"}}' % (number % 250 + 1)


async def turn(url: str, ca: Path, token: str, pids: Sequence[int], ready: float) -> Turn:
    tls = ssl.create_default_context(cafile=ca)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(ssl=tls, limit=0)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(
        headers=headers, connector=connector, timeout=timeout, read_bufsize=1 << 22
    ) as session:
        client = ApiClient(session, url, pids, "bench")
        found = Turn(ready, client.megabytes())
        account: Object = {"metadata": {"name": "default"}}
        await client.ask("POST", "/api/v1/namespaces", ENCODE({"metadata": {"name": client.namespace}}))
        with suppress(RuntimeError):  # a controller of Tapestry may have created it
            await client.ask("POST", f"/api/v1/namespaces/{client.namespace}/serviceaccounts", ENCODE(account))
        found.work["create"] = await client.many(PODS, lambda n: client.ask("POST", client.pods, pod(n)))
        found.work["get"] = await client.many(PODS, lambda n: client.ask("GET", f"{client.pods}/p{n}"))
        found.work["patch"] = await client.many(
            PODS, lambda n: client.ask("PATCH", f"{client.pods}/p{n}/status", status(n), **MERGE)
        )
        found.work["list"] = await client.many(LISTS, lambda _: client.ask("GET", client.pods), at_once=1)
        found.work["fan-out"] = await client.fan_out()
        found.full = client.megabytes()
        found.work["delete"] = await client.many(
            PODS, lambda n: client.ask("DELETE", f"{client.pods}/p{n}", b'{"gracePeriodSeconds":0}')
        )
        return found


def ours(folder: Path) -> Turn:
    with OwnServer(folder) as server:
        return uvloop.run(turn(server.url, server.ca, server.token, [server.pid], server.ready_seconds))


def theirs(folder: Path, assets: Path) -> Turn:
    started = time.monotonic()
    with ControlPlane(folder, assets, fsync=False) as plane:
        ready = time.monotonic() - started
        return uvloop.run(turn(plane.url, plane.ca, plane.token, list(plane.pids().values()), ready))


async def fill(server: OwnServer) -> None:
    tls = ssl.create_default_context(cafile=server.ca)
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=tls, limit=0)) as session:
        client = ApiClient(session, server.url, [server.pid], "default")
        await client.many(OBJECTS, lambda n: client.ask("POST", client.pods, pod(n)))


def restart(folder: Path) -> float:
    """Return the seconds of a start with many objects after a kill."""
    server = OwnServer(folder)
    server.start()
    try:
        uvloop.run(fill(server))
        server.kill()
        server.start()
        server.stop()
    finally:
        server.kill()
    return server.ready_seconds


def custom_resource(number: int) -> bytes:
    """Return a CustomResourceDefinition; ten are in one group."""
    definition: Object = msgspec.yaml.decode(EXAMPLE.read_bytes())
    group, plural = f"group-{number // 10}.example.com", f"kinds{number}"
    names = {"kind": f"Kind{number}", "listKind": f"Kind{number}List", "plural": plural, "singular": f"kind{number}"}
    definition["metadata"] = {"name": f"{plural}.{group}"}
    definition["spec"] |= {"group": group, "names": names}
    return ENCODE(definition)


@dataclass(frozen=True)
class Documents:
    """Sizes of OpenAPI documents, and the memory of the server that serves them, in megabytes."""

    plain: float
    compressed: float
    grown: float
    """Growth since the server was idle."""


async def documents(server: OwnServer, custom_kinds: int) -> tuple[Documents, Documents]:
    """Return the sizes of the v3 and of the v2 documents with so many custom resources."""
    tls = ssl.create_default_context(cafile=server.ca)
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
    async with aiohttp.ClientSession(
        headers=headers, connector=aiohttp.TCPConnector(ssl=tls), auto_decompress=False
    ) as session:
        client = ApiClient(session, server.url, [server.pid], "default")
        for number in range(custom_kinds):
            await client.ask("POST", CUSTOM_RESOURCES, custom_resource(number))
        idle, found = client.megabytes(), []
        index = msgspec.json.decode(await client.ask("GET", "/openapi/v3", **{"Accept-Encoding": "identity"}))["paths"]
        for paths in ([each["serverRelativeURL"] for each in index.values()], ["/openapi/v2"]):
            plain, small = [
                sum([len(await client.ask("GET", path, **{"Accept-Encoding": each})) for path in paths])
                for each in ("identity", "gzip")
            ]
            found.append(Documents(plain / 1e6, small / 1e6, client.megabytes() - idle))
        return found[0], found[1]


def document_rows(folder: Path) -> Iterator[Row]:
    for custom_kinds in (0, CUSTOM_KINDS):
        say(f"api: OpenAPI documents with {custom_kinds} custom resources")
        with OwnServer(folder / f"documents-{custom_kinds}") as server:
            found = dict(zip(("v3", "v2"), uvloop.run(documents(server, custom_kinds)), strict=True))
        sizes = (f"{name} {each.plain:.1f} MB, {each.compressed:.2g} MB compressed" for name, each in found.items())
        what = f"memory of served OpenAPI documents, {custom_kinds} custom resources"
        yield Row(what, found["v2"].grown, "MB", at_most=DOCUMENT_BARS[custom_kinds], detail="; ".join(sizes))


def rows() -> Iterator[Row]:
    try:
        assets = find_assets(os.environ)
    except AssetsMissing as error:
        yield Row("API server", None, "x", at_least=2, detail=str(error))
        return
    turns: dict[str, list[Turn]] = {"ours": [], "theirs": []}
    with TemporaryDirectory() as name:
        for number in range(ROUNDS):
            for side, found in turns.items():
                say(f"api: {side}, turn {number + 1} of {ROUNDS}")
                folder = Path(name) / f"{side}-{number}"
                found.append(ours(folder) if side == "ours" else theirs(folder, assets))
        say(f"api: a start with {OBJECTS:,} pods")
        restart_seconds = restart(Path(name) / "restart")
        yield from document_rows(Path(name))
    yield from compared(turns["ours"], turns["theirs"])
    yield Row(f"ready again after a kill, {OBJECTS:,} pods", restart_seconds, "s", at_most=2)


def compared(own: Sequence[Turn], other: Sequence[Turn]) -> Iterator[Row]:
    def of(value: Callable[[Turn], float]) -> tuple[float, float]:
        return median(map(value, own)), median(map(value, other))

    mine, their = of(lambda each: each.ready)
    yield Row("ready", mine, "s", at_most=1, detail=f"kube-apiserver and etcd {their:.1f} s")
    mine, their = of(lambda each: each.idle)
    yield Row("RSS, idle", mine, "MB", at_most=80, detail=f"kube-apiserver and etcd {their:.0f} MB")
    for what, bar in {"create": 2.0, "patch": 2.0, "get": 2.0, "delete": None, "fan-out": 1.0}.items():
        mine, their = of(lambda each, what=what: each.work[what].per_second)
        detail = f"{mine:,.0f} a second, theirs {their:,.0f}"
        yield Row(f"{what}, ours / theirs", mine / their, "x", at_least=bar, detail=detail)
        mine, their = of(lambda each, what=what: each.work[what].cpu * 1000)
        detail = f"{mine:.3g} ms for each, theirs {their:.3g} ms"
        less = their / mine
        yield Row(f"{what}: CPU of the server, theirs / ours", less, "x", at_least=CPU_BARS[what], detail=detail)
    mine, _ = of(lambda each: each.work["create"].cpu * 1000)
    yield Row("create: CPU of the server", mine, "ms", at_most=0.5)
    mine, their = of(lambda each: each.work["list"].median * 1000)
    detail = f"{mine:.1f} ms, theirs {their:.1f} ms"
    yield Row(f"list of {PODS:,} pods, ours / theirs", mine / their, "x", at_most=1 / 3, detail=detail)
    mine, their = of(lambda each: each.full)
    yield Row(f"RSS with {PODS:,} pods", mine, "MB", at_most=150, detail=f"theirs {their:.0f} MB")


if __name__ == "__main__":
    alone(rows)
