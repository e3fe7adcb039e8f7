"""Response times for one client while another sends hostile and large requests.

The first client polls `/livez` and reads a small object, over its own connections and in its own process. Its slowest
response without other load is printed with the results: on a machine with other work, this is the lower limit.

`--quick` uses fewer objects and sends a third of the cases, once, in about half a minute. `--each` sends one request at
a time and prints, for each case, the longest response time of the first client.
"""

import argparse
import asyncio
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, field
from io import BytesIO
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import aiohttp
import msgspec
import uvloop
from tests.integration.etcds import Etcd
from tests.integration.processes import rss_megabytes
from tests.integration.servers import OwnServer

from benchmarks.hostile_cases import (
    CRDS,
    NAMESPACE,
    NAMESPACE_PATH,
    TENANT,
    Case,
    hostile,
    large,
    large_definition,
    new_object,
    ports,
    widget_definition,
)
from benchmarks.sides.poller import Sample
from benchmarks.table import Row, say, table
from tapestry.local.kubernetes import AssetsMissing, find_assets

ENCODE = msgspec.json.encode
OBJECTS, QUICK_OBJECTS = 10_000, 2_000
HOSTILE, LARGE = 240, 68
KNOWN = {"4,000 equal ports", "role of 60 x 60 x 60 x 5", "10,000 operations on a map", "pattern in 40,000 items"}
"""Cases that once blocked the server for more than ten seconds each. Every run includes them."""
AT_ONCE = 4
"""Number of concurrent requests of the hostile client."""
CONNECTIONS = 500
IDLE_SECONDS = 3.0
BEGINNING = 1 << 20
"""Bytes to read of an endless response."""
P99, WORST, GROWTH = 0.1, 0.25, 200.0


@dataclass
class Outcome:
    """Result of one request."""

    case: Case
    started: float
    ended: float
    status: int
    error: str = ""


@dataclass
class Run:
    """Measurements on one backend."""

    outcomes: list[Outcome] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    idle: tuple[float, float] = (0.0, 0.0)
    """Start and end of the idle period. The following fields are periods, too."""
    attacked: tuple[float, float] = (0.0, 0.0)
    crowded: tuple[float, float] = (0.0, 0.0)
    resting: float = 0.0
    """Memory in megabytes."""
    peak: float = 0.0

    def during(self, started: float, ended: float) -> list[Sample]:
        return [each for each in self.samples if each[0] < ended and each[0] + (each[2] or 0.0) > started]

    def seconds(self, span: tuple[float, float], what: str = "") -> list[float]:
        found = [each for each in self.during(*span) if not what or each[1] == what]
        return sorted(seconds for _, _, seconds in found if seconds is not None)

    def unanswered(self, span: tuple[float, float]) -> int:
        return sum(seconds is None for _, _, seconds in self.during(*span))


def share(values: Sequence[float], part: float) -> float:
    return values[min(int(len(values) * part), len(values) - 1)] if values else 0.0


@dataclass(frozen=True)
class Client:
    session: aiohttp.ClientSession
    url: str

    async def ask(self, case: Case) -> Outcome:
        headers = {"Content-Type": case.content_type, "Accept": case.accept, **case.headers}
        if case.as_tenant:
            headers["Impersonate-User"] = TENANT
        raw = case.body()
        body = (
            BytesIO(raw) if raw else None
        )  # aiohttp warns about large bodies in bytes, and warnings are errors in tests
        if raw:
            headers["Content-Length"] = str(len(raw))
        started, status, error_text = time.monotonic(), 0, ""
        try:
            async with self.session.request(case.method, self.url + case.path, data=body, headers=headers) as response:
                status = response.status
                text = await (response.content.read(BEGINNING) if case.is_stream else response.read())
                if status >= 400:
                    error_text = text[:200].decode(errors="replace")
        except (aiohttp.ClientError, TimeoutError) as error:
            error_text = repr(error)
        return Outcome(case, started, time.monotonic(), status, error_text)

    async def make(self, path: str, body: bytes) -> None:
        found = await self.ask(Case("", path, "POST", path, lambda: body))
        if found.status not in (200, 201, 409):
            raise RuntimeError(f"{path}: {found.status} {found.error}")


async def prepare(client: Client, objects: int) -> None:
    """Create the objects that the cases use."""
    for name in (NAMESPACE, f"{NAMESPACE}-full"):
        await client.make("/api/v1/namespaces", ENCODE(new_object(name)))
    with suppress(RuntimeError):
        await client.make(f"{NAMESPACE_PATH}/serviceaccounts", ENCODE(new_object("default")))
    reference = {"kind": "ClusterRole", "name": "admin", "apiGroup": "rbac.authorization.k8s.io"}
    subjects = [{"kind": "User", "name": TENANT, "apiGroup": "rbac.authorization.k8s.io"}]
    bindings = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings"
    await client.make(bindings, ENCODE(new_object("tenant", roleRef=reference, subjects=subjects)))
    widgets = {
        "metadata": {"name": "hostile-widgets", "labels": {"rbac.authorization.k8s.io/aggregate-to-admin": "true"}},
        "rules": [{"apiGroups": ["hostile.example", "discovery.k8s.io"], "resources": ["*"], "verbs": ["*"]}],
    }
    await client.make("/apis/rbac.authorization.k8s.io/v1/clusterroles", ENCODE(widgets))
    await client.make(CRDS, ENCODE(widget_definition()))
    big = large_definition("bigs", 700_000)
    big["spec"]["names"]["kind"] = "Big"
    await client.make(CRDS, ENCODE(big))
    await client.make(f"{NAMESPACE_PATH}/configmaps", ENCODE({**new_object("small"), "data": {"a": "b"}}))
    data = {"a": "b", **{f"key{n}": "v" * 20 for n in range(30_000)}}
    await client.make(f"{NAMESPACE_PATH}/configmaps", ENCODE({**new_object("large"), "data": data}))
    many = msgspec.json.decode(ports(8_000, containerPort=lambda n: n + 1))
    await client.make(f"{NAMESPACE_PATH}/pods", ENCODE({**many, "metadata": {"name": "many"}}))
    numbers = iter(range(objects))

    async def fill() -> None:
        for n in numbers:
            metadata = {"name": f"c{n}", "labels": {"shard": str(n % 10)}}
            data = {"text": "x" * 2_000, "number": str(n)}
            await client.make(
                f"/api/v1/namespaces/{NAMESPACE}-full/configmaps", ENCODE({"metadata": metadata, "data": data})
            )

    async with asyncio.TaskGroup() as group:
        for _ in range(32):
            group.create_task(fill())


async def attack(client: Client, cases: Iterable[Case], at_once: int) -> list[Outcome]:
    """Send all cases, `at_once` at a time."""
    found: list[Outcome] = []
    waiting = iter(cases)

    async def worker() -> None:
        for case in waiting:
            outcome = await client.ask(case)
            found.append(outcome)
            if at_once == 1:
                say(f"hostile: {case.category}: {case.name}: {outcome.status} {outcome.ended - outcome.started:.2f} s")

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())
    return found


async def open_stalled_connections(url: str, count: int) -> None:
    """Open connections and stall them: idle, incomplete heads, incomplete bodies, incomplete handshakes."""
    address = urlsplit(url)
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    starts = {
        "idle": b"",
        "half a head": b"GET /api HTTP/1.1\r\nHost: a\r\n",
        "half a body": b"POST /api/v1/namespaces HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n{",
        "half a handshake": None,
    }
    async with AsyncExitStack() as stack:
        limit = asyncio.Semaphore(32)

        async def opened(start: bytes | None) -> None:
            async with limit:
                with suppress(OSError, TimeoutError):
                    context = tls if start is not None else None
                    async with asyncio.timeout(20):
                        _, writer = await asyncio.open_connection(address.hostname, address.port, ssl=context)
                    stack.push_async_callback(closed, writer)
                    writer.write(b"\x16\x03\x01" if start is None else start)

        async with asyncio.TaskGroup() as group:
            for start in islice(cycle(starts.values()), count):
                group.create_task(opened(start))
        await asyncio.sleep(IDLE_SECONDS)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


async def watch_memory(run: Run, pid: int) -> None:
    while True:
        run.peak = max(run.peak, rss_megabytes(pid))
        await asyncio.sleep(0.05)


async def measured(server: OwnServer, folder: Path, *, is_quick: bool, at_once: int) -> Run:
    run = Run()
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=server.ca), limit=0)
    timeout = aiohttp.ClientTimeout(total=120)
    headers = {"Authorization": f"Bearer {server.token}"}
    sessions = aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=headers, read_bufsize=1 << 22, max_line_size=1 << 18
    )
    async with sessions as session, AsyncExitStack() as stack:
        client = Client(session, server.url)
        say("hostile: preparing")
        await prepare(client, QUICK_OBJECTS if is_quick else OBJECTS)
        harmful, harmless = list(hostile()), list(large())
        if is_quick:
            cases = [*(each for number, each in enumerate(harmful) if not number % 3 or each.name in KNOWN), *harmless]
        else:
            cases = [*islice(cycle(harmful), HOSTILE), *islice(cycle(harmless), LARGE)]
        await attack(client, harmless[:1], 1)  # the first list fills the caches
        command = [sys.executable, "-m", "benchmarks.sides.poller", server.url, server.ca, server.token]
        # A file, because uvloop may lose the end of a pipe when the process ends.
        output = stack.enter_context((folder / "samples").open("w+b"))
        poller = await asyncio.create_subprocess_exec(
            *map(str, command),
            f"{NAMESPACE_PATH}/configmaps/small",
            stdin=subprocess.PIPE,
            stdout=output,
            cwd=Path(__file__).parents[1],
        )
        try:
            await asyncio.sleep(1.0)  # until it has started
            started = time.monotonic()
            await asyncio.sleep(IDLE_SECONDS)
            run.idle = started, time.monotonic()
            run.resting = rss_megabytes(server.pid)
            say(f"hostile: {len(cases)} requests")
            async with asyncio.TaskGroup() as group:
                memory = group.create_task(watch_memory(run, server.pid))
                run.outcomes = await attack(client, cases, at_once)
                run.attacked = run.idle[1], time.monotonic()
                memory.cancel()
            say(f"hostile: {CONNECTIONS} connections")
            await open_stalled_connections(server.url, CONNECTIONS)
            run.crowded = run.attacked[1], time.monotonic()
            await poller.communicate(b"")  # ends its input
            output.seek(0)
            run.samples = msgspec.json.decode(output.read(), type=list[Sample])
        finally:
            if poller.returncode is None:
                poller.kill()
                await poller.wait()
    return run


def rows(name: str, run: Run, worst: float) -> Iterator[Row]:
    """Yield the results of one backend with their bars."""
    idle = run.seconds(run.idle)
    yield Row(f"{name}: idle, worst", 1e3 * share(idle, 1.0), "ms", detail=f"p99 {1e3 * share(idle, 0.99):.0f} ms")
    categories = dict.fromkeys(each.case.category for each in run.outcomes)
    for category in categories:
        found = sorted(each.ended - each.started for each in run.outcomes if each.case.category == category)
        detail = f"p50 {share(found, 0.5):.2f} s, p99 {share(found, 0.99):.2f} s, of {len(found)}"
        yield Row(f"{name}: {category}, answered after at most", share(found, 1.0), "s", detail=detail)
    for what, title in {"livez": "/livez", "get": "GET of a small object"}.items():
        found = run.seconds(run.attacked, what)
        detail = f"p50 {1e3 * share(found, 0.5):.0f} ms, of {len(found)}"
        if worst <= WORST:
            yield Row(f"{name}: {title} meanwhile, p99", 1e3 * share(found, 0.99), "ms", at_most=1e3 * P99)
        yield Row(
            f"{name}: {title} meanwhile, worst", 1e3 * share(found, 1.0), "ms", at_most=1e3 * worst, detail=detail
        )
    crowded = run.seconds(run.crowded)
    yield Row(f"{name}: worst beside {CONNECTIONS} connections", 1e3 * share(crowded, 1.0), "ms", at_most=1e3 * worst)
    lost = run.unanswered((run.attacked[0], run.crowded[1]))
    yield Row(f"{name}: not answered", lost, "requests", at_most=0)
    failed = [each for each in run.outcomes if each.status in (0, 500)]
    detail = "; ".join(f"{each.case.name}: {each.status} {each.error}" for each in failed)[:600]
    yield Row(f"{name}: hostile requests without a proper answer", len(failed), "requests", at_most=0, detail=detail)
    yield Row(
        f"{name}: growth of memory", run.peak - run.resting, "MB", at_most=GROWTH, detail=f"from {run.resting:.0f} MB"
    )


def case_lines(run: Run) -> Iterator[str]:
    for each in run.outcomes:
        longest = max((seconds or 0.0 for _, _, seconds in run.during(each.started, each.ended)), default=0.0)
        yield (
            f"{each.case.category:18}{each.case.name:36}{each.status:5}{each.ended - each.started:8.2f} s"
            f"{1e3 * longest:8.0f} ms waited  {each.error[:100]}"
        )


def served(backend: str, folder: Path, stack: ExitStack) -> OwnServer:
    if backend == "file":
        return stack.enter_context(OwnServer(folder / "file"))
    assets = find_assets(os.environ)
    (folder / "etcd").mkdir(parents=True)
    etcd = stack.enter_context(Etcd(assets, folder / "etcd"))
    return stack.enter_context(OwnServer(folder / "server", "--backend", "etcd", "--etcd-servers", etcd.url))


def runs(backends: Sequence[str], *, is_quick: bool, at_once: int) -> Iterator[tuple[str, Run]]:
    for backend in backends:
        with TemporaryDirectory() as name, ExitStack() as stack:
            server = served(backend, Path(name), stack)
            yield backend, uvloop.run(measured(server, Path(name), is_quick=is_quick, at_once=at_once))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--backend", choices=("file", "etcd", "both"), default="both", help="storage backend of the API server"
    )
    parser.add_argument(
        "--quick", action="store_true", help="use 2,000 objects, send a third of the cases once, and set the bar to 1 s"
    )
    parser.add_argument("--each", action="store_true", help="send one request at a time and print a line for each case")
    arguments = parser.parse_args()
    backends = ("file", "etcd") if arguments.backend == "both" else (arguments.backend,)
    found: list[Row] = []
    try:
        for name, run in runs(backends, is_quick=arguments.quick, at_once=1 if arguments.each else AT_ONCE):
            if arguments.each:
                print("\n".join(case_lines(run)), flush=True)
            found += rows(name, run, 1.0 if arguments.quick else WORST)
    except AssetsMissing as error:
        found.append(Row("etcd", None, "", at_most=0, detail=str(error)))
    print(table(found))
    return any(row.verdict == "MISS" for row in found)


if __name__ == "__main__":
    sys.exit(main())
