"""Time until many nodes are leased, and their cost at rest.

The time is counted from the start of the syncer process, between two real API servers. A physical node is as large as a
real one: kubelets report the names of fifty images. At rest, every kubelet reports its status every five minutes, and
none of that may cause a write to the virtual cluster.
"""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.integration.bound_clusters import BoundClusters, bound_clusters, install_kinds, ready
from tests.integration.pod_batches import wait_until_lent
from tests.integration.processes import cpu_seconds, rss_megabytes

from benchmarks.table import Row, say, table
from tapestry.kube.objects import Object, object_named, value_at
from tapestry.kube.resources import LEASES, NODES
from tapestry.local.kubernetes import AssetsMissing, ControlPlane, find_assets

BARS = {100: 3, 1_000: 15}
"""Seconds within which this number of nodes must be leased."""
REST = 30
REPORT_SECONDS = 300
AT_ONCE = 16


@dataclass(frozen=True)
class Rest:
    """Cost of a syncer in `REST` seconds without work."""

    cores: float
    megabytes: float
    node_writes: int
    other_writes: int
    renewals: int


def rows() -> Iterator[Row]:
    try:
        assets = find_assets(os.environ)
    except AssetsMissing as error:
        yield Row("nodes leased", None, "s", at_most=BARS[1_000], detail=str(error))
        return
    for count, bar in BARS.items():
        say(f"nodes: starting two control planes with {count:,} nodes")
        with TemporaryDirectory() as name:
            folder = Path(name)
            with (
                ControlPlane(folder / "virtual", assets) as virtual,
                ControlPlane(folder / "physical", assets) as physical,
            ):
                seconds, rest = asyncio.run(leased(virtual, physical, folder, count))
        yield Row(f"{count:,} nodes leased", seconds, "s", at_most=bar)
    yield Row(f"{count:,} virtual nodes at rest: CPU", rest.cores, "core", at_most=0.5, detail=f"over {REST} s")
    yield Row(f"{count:,} virtual nodes at rest: RSS", rest.megabytes, "MB", at_most=200)
    yield Row(f"{count:,} virtual nodes at rest: node writes", rest.node_writes, "", at_most=0)
    yield Row(
        f"{count:,} virtual nodes at rest: other writes", rest.other_writes, "", detail=f"and {rest.renewals} renewals"
    )


async def leased(virtual: ControlPlane, physical: ControlPlane, folder: Path, count: int) -> tuple[float, Rest]:
    for plane in (virtual, physical):
        await install_kinds(plane)
    async with bound_clusters(virtual, physical, folder) as clusters:
        names = [f"node-{number:04d}" for number in range(count)]
        await in_parallel(names, lambda name: add_node(clusters, name))
        await clusters.add_policy("all")
        started = time.monotonic()
        with clusters.syncer(forked=False) as process:
            await wait_until_lent(clusters, count)
            seconds = time.monotonic() - started
            say(f"nodes: {count:,} leased after {seconds:.1f} s; at rest for {REST} s")
            await clusters.wait_for_binding(lambda found: value_at(found, "status", "nodes") == count)
            return seconds, await at_rest(clusters, process.pid, names)


async def at_rest(clusters: BoundClusters, pid: int, names: list[str]) -> Rest:
    await asyncio.sleep(5)  # until the first renewals and the last status updates are done
    before, cpu = len(clusters.writes()), cpu_seconds(pid)
    started = time.monotonic()
    while (elapsed := time.monotonic() - started) < REST:
        number = int(elapsed / REPORT_SECONDS * len(names))
        await report(clusters, names[number])
        await asyncio.sleep(REPORT_SECONDS / len(names))
    new_writes = clusters.writes()[before:]
    return Rest(
        cores=(cpu_seconds(pid) - cpu) / elapsed,
        megabytes=rss_megabytes(pid),
        node_writes=sum(write["resource"] == NODES.name for write in new_writes),
        other_writes=sum(write["resource"] not in (NODES.name, LEASES.name) for write in new_writes),
        renewals=sum(write["resource"] == LEASES.name for write in new_writes),
    )


async def add_node(clusters: BoundClusters, name: str) -> None:
    await clusters.add_node(name, labels={"topology.kubernetes.io/zone": "east-1", "kubernetes.io/arch": "amd64"})
    images = [
        {"names": [f"images.example/{name}/service-{number}@sha256:{number:064x}"], "sizeBytes": 100_000_000}
        for number in range(50)
    ]
    await clusters.physical.patch(NODES, object_named(name), {"status": {"images": images}}, subresource="status")


async def report(clusters: BoundClusters, name: str) -> None:
    """Report an unchanged status, as a kubelet does."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    condition: Object = {**ready("True"), "lastHeartbeatTime": now}
    await clusters.physical.patch(
        NODES, object_named(name), {"status": {"conditions": [condition]}}, subresource="status"
    )


async def in_parallel(names: list[str], do: Callable[[str], Awaitable[None]]) -> None:
    async def some(part: list[str]) -> None:
        for name in part:
            await do(name)

    async with asyncio.TaskGroup() as group:
        for first in range(AT_ONCE):
            group.create_task(some(names[first::AT_ONCE]))


if __name__ == "__main__":
    found = list(rows())
    print(table(found))
    sys.exit(any(row.verdict == "MISS" for row in found))
