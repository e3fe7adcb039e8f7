"""Cost of streams through our API server, compared with kube-apiserver in front of the same kubelet and container.

kubectl sends and receives 100 MB through exec, over WebSocket and over SPDY. The servers take turns, and the best of
three runs counts. Latency is the time of a line to `cat` in the container and back, and of a whole `kubectl exec`.
Memory is the growth of our server while 1,000 clients follow a log.

The same is measured for a leased pod: kube-apiserver, the syncer and the physical kube-apiserver, compared with a pod
of the physical cluster on the same node.
"""

import asyncio
import json
import os
import shutil
import ssl
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from tests.e2e.clusters import Cluster, control_plane_of
from tests.e2e.images import IDLE, IMAGE, Contents, write_images
from tests.e2e.installation import running_installation, tapestry
from tests.e2e.nodes import Kit, RealNode, missing_requirements, network
from tests.e2e.stream_servers import WEBSOCKETS, Access, Servers, stream_servers
from tests.integration.processes import rss_megabytes

from benchmarks.table import Row, alone, say
from tapestry.local.control_planes import kubelet_flags
from tapestry.local.kubernetes import find_assets

SIZE = 100_000_000
RUNS = 3
ECHOES, COMMANDS = 200, 15
FOLLOWERS = 1_000
DIRECTIONS = {
    "stdin": ("exec", "-i", "web", "--", "wc", "-c"),
    "stdout": ("exec", "web", "--", "head", "-c", str(SIZE), "/dev/zero"),
}
SIDES = (("ours", False), ("kube-apiserver", True))
LEASED = "leased pod: "


class Sides(Protocol):
    """Access to a pod over a protocol: through us, or through kube-apiserver alone if it is `real`."""

    def __call__(self, protocol: str, *, real: bool) -> Access: ...


def rows() -> Iterator[Row]:
    assets = find_assets(os.environ, ("kubelet", "kube-proxy", "kubectl"))
    if problem := missing_requirements(assets):
        yield Row("exec throughput, ours / kube-apiserver", None, "x", at_least=0.5, detail=problem)
        return
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "image.tar"
        write_images(image, Contents(Path(shutil.which("busybox") or ""), (assets / "kubectl",)))
        with network(), stream_servers(Path(folder), Kit(assets, image)) as servers:
            yield from throughput_rows(servers.access, Path(folder))
            yield from latency_rows(servers.access)
            yield memory_row(servers)
        with network():
            leased = asyncio.run(leased_rows(Path(folder), Kit(assets, image)))
        yield from leased


async def leased_rows(folder: Path, kit: Kit) -> list[Row]:
    """Measure a leased pod, while this process runs the node of the syncer."""
    async with leased_pod(folder, kit) as access:
        return await asyncio.to_thread(
            lambda: [*throughput_rows(access, folder, LEASED), *latency_rows(access, LEASED)]
        )


@asynccontextmanager
async def leased_pod(folder: Path, kit: Kit) -> AsyncIterator[Sides]:
    """Run a pod `web` on a virtual node and another on its physical node."""
    above, below = folder / "above", folder / "below"
    with (
        control_plane_of(below, kit, {}) as physical,
        RealNode("n1", 1, physical, folder / "leased-node", kit) as node,
        control_plane_of(above, kit, kubelet_flags(above)) as virtual,
    ):
        node.wait_until_ready()
        (folder / "system").mkdir()
        async with running_installation(virtual, kit.assets, folder / "system"):
            access = ("--kubeconfig", virtual.kubeconfig, "--cluster-kubeconfig", physical.kubeconfig)
            await asyncio.to_thread(tapestry, "join", "east", *access, "--lease=50%")
            for plane, name in ((virtual, "vnode-east-n1"), (physical, "n1")):
                await asyncio.to_thread(start_pod, Cluster(plane, kit.assets), name, folder)
            yield lambda protocol, *, real: Access((physical if real else virtual).kubeconfig, kit.assets, protocol)


def start_pod(cluster: Cluster, node: str, folder: Path) -> None:
    for state in ("create", "condition=Ready"):
        cluster.kubectl("wait", f"node/{node}", f"--for={state}", "--timeout=120s")
    requests = {"requests": {"cpu": "10m", "memory": "64Mi"}}
    container = {"name": "main", "image": IMAGE, "command": IDLE, "resources": requests}
    spec = {"nodeName": node, "automountServiceAccountToken": False, "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec}
    (folder / "pod.json").write_text(json.dumps(pod))
    cluster.kubectl("create", "-f", folder / "pod.json")
    cluster.kubectl("wait", "pod/web", "--for=condition=Ready", "--timeout=120s")


def throughput_rows(sides: Sides, folder: Path, what: str = "") -> Iterator[Row]:
    data = folder / "data"
    data.write_bytes(os.urandom(SIZE))
    for protocol in WEBSOCKETS:
        for direction, command in DIRECTIONS.items():
            best = dict.fromkeys(dict(SIDES), float("inf"))
            for number in range(RUNS):
                for side, real in SIDES:
                    say(f"streams: {what}{direction} over {protocol}, run {number + 1} of {RUNS}, {side}")
                    access = sides(protocol, real=real)
                    with data.open("rb") as source:
                        seconds, output = run_command(access, command, source.fileno())
                    received = int(output) if direction == "stdin" else len(output)
                    if received != SIZE:
                        raise RuntimeError(f"{direction} over {protocol} has {received} bytes instead of {SIZE}")
                    best[side] = min(best[side], seconds)
            ours, theirs = (SIZE / best[side] / 1e6 for side, _ in SIDES)
            yield Row(
                f"{what}exec {direction} over {protocol}, throughput ours / kube-apiserver",
                ours / theirs,
                "x",
                at_least=0.5,
                detail=f"{ours:.0f} MB/s, kube-apiserver {theirs:.0f} MB/s",
            )


def run_command(access: Access, command: tuple[str, ...], source: int = subprocess.DEVNULL) -> tuple[float, bytes]:
    """Return the seconds and the output of a command."""
    started = time.perf_counter()
    done = subprocess.run(
        access.command(*command), env=access.environ, stdin=source, stdout=subprocess.PIPE, check=True, timeout=300
    )
    return time.perf_counter() - started, done.stdout


def latency_rows(sides: Sides, what: str = "") -> Iterator[Row]:
    for protocol in WEBSOCKETS:
        say(f"streams: {what}latency over {protocol}")
        echoes = {side: echo_seconds(sides(protocol, real=real)) for side, real in SIDES}
        commands: dict[str, list[float]] = {side: [] for side, _ in SIDES}
        for _ in range(COMMANDS):
            for side, real in SIDES:
                access = sides(protocol, real=real)
                commands[side].append(run_command(access, ("exec", "web", "--", "true"))[0])
        for event, found in (("line and its echo", echoes), ("kubectl exec", commands)):
            ours, theirs = (statistics.median(found[side]) * 1000 for side, _ in SIDES)
            yield Row(
                f"{what}{event} over {protocol}, p50 added to that of kube-apiserver",
                ours - theirs,
                "ms",
                at_most=10,
                detail=f"{ours:.1f} ms, kube-apiserver {theirs:.1f} ms",
            )


def echo_seconds(access: Access) -> list[float]:
    """Return the seconds that each of many lines takes to the container and back, in one session."""
    command = access.command("exec", "-i", "web", "--", "cat")
    found = []
    with subprocess.Popen(
        command, env=access.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(ECHOES):
            started = time.perf_counter()
            process.stdin.write(b"line\n")
            process.stdout.readline()
            found.append(time.perf_counter() - started)
        process.stdin.close()
    return found[1:]  # the first one includes the start of the session


def memory_row(servers: Servers) -> Row:
    say(f"streams: {FOLLOWERS} followed logs")
    before, during = asyncio.run(follow_logs(servers))
    each = (during - before) * 1000 / FOLLOWERS
    detail = f"{before:.0f} MB before, {during:.0f} MB with {FOLLOWERS} open"
    return Row("memory of our server for each followed log", each, "kB", at_most=200, detail=detail)


async def follow_logs(servers: Servers) -> tuple[float, float]:
    """Return the memory of our server in MB, before and while all clients follow a log."""
    server, address = servers.own, urlsplit(servers.own.url)
    context = ssl.create_default_context(cafile=str(server.ca))
    head = (
        "GET /api/v1/namespaces/default/pods/web/log?follow=true HTTP/1.1\r\n"
        f"Host: {address.netloc}\r\nAuthorization: Bearer {server.token}\r\n\r\n"
    )

    async def follow() -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_connection(address.hostname, address.port, ssl=context)
        writer.write(head.encode())
        status = await reader.readuntil(b"\r\n")
        if b" 200 " not in status:
            raise RuntimeError(f"the log is not served: {status.decode()}")
        return writer

    (await follow()).close()
    before = rss_megabytes(server.pid)
    writers = []
    for _ in range(0, FOLLOWERS, 50):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(follow()) for _ in range(50)]
        writers += [task.result() for task in tasks]
    during = rss_megabytes(server.pid)
    for writer in writers:
        writer.close()
    return before, during


if __name__ == "__main__":
    alone(rows)
