"""Cost of copying a pod down and its status up: the syncer compared with a minimal relay.

Two real control planes, a hundred nodes and a simulated kubelet. The same pods go through `tapestry syncer` and through
`benchmarks.relay`, which makes one write per pod on each side and nothing else. They take turns in one run, because
only their ratio is meaningful: most of the time is spent in the API servers.

Times are measured by external watches. Calls are those that the API servers counted, minus the known requests of this
process and the kubelet: one create and one status update per pod. Etcd does not sync to disk, because that would hide
the cost of the syncer.
"""

import asyncio
import os
import re
import ssl
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import uvloop
from tests.integration.bound_clusters import (
    TAPESTRY,
    BoundClusters,
    bound_clusters,
    install_kinds,
    wait_for_all,
    wait_until,
)
from tests.integration.pod_batches import POD_BATCH, PodBatch, lend, pod_batch, wait_until_lent
from tests.integration.processes import cpu_seconds, rss_megabytes, running

from benchmarks.first_pods import Delays, first_pod_delays, first_pod_rows
from benchmarks.table import Row, alone, say
from tapestry.apis import keys
from tapestry.client.client import Client
from tapestry.kube.resources import CONFIGMAPS, PODS, SECRETS, SERVICE_ACCOUNTS, Resource
from tapestry.local.kubernetes import AssetsMissing, ControlPlane, find_assets

PHYSICAL_NODES = 100
BURST = 1_000
STEADY, PER_SECOND = 300, 20
WITH_TOKEN = 200
ROUNDS = 3
WHAT = f"burst of {BURST:,} pods"

Call = tuple[str, str, str]
"""Side (`above` or `below`), verb and resource: `("above", "PATCH", "pods/status")`."""
Calls = Counter[Call]
WRITES = ("POST", "PUT", "PATCH", "APPLY", "DELETE")


@dataclass(frozen=True)
class Burst:
    """Results of many pods at once. Seconds are from the first create. CPU is that of the carrier, for all pods."""

    pods: int
    seconds: float
    cpu: float
    megabytes: float
    calls: Calls
    gone_seconds: float
    gone_cpu: float
    left: int
    """Pods, and copies of objects they refer to, that remained after their deletion."""

    def per_pod(self, matches: Callable[[Call], bool]) -> float:
        return sum(count for call, count in self.calls.items() if matches(call)) / self.pods


@dataclass
class Turns:
    """Results of all turns of one carrier."""

    name: str
    carrier: Callable[[], AbstractContextManager[int]]
    bursts: list[Burst] = field(default_factory=list)
    delays: list[list[float]] = field(default_factory=list)
    """Seconds from a pod's binding to its twin at a steady rate, sorted, for each turn."""
    steady_cpu: list[float] = field(default_factory=list)
    """CPU seconds per pod at a steady rate until it runs, for each turn."""

    def in_a_burst(self, value: Callable[[Burst], float]) -> float:
        return median(map(value, self.bursts))

    def delay(self, share: float) -> float:
        return median(delays[int(len(delays) * share)] for delays in self.delays)


@dataclass(frozen=True)
class Course:
    """Environment in which carriers take their turns."""

    clusters: BoundClusters
    virtual: ControlPlane
    physical: ControlPlane
    nodes: Sequence[str]
    """Names of the virtual nodes."""

    def ours(self) -> AbstractContextManager[int]:
        command = [TAPESTRY, "syncer", "--binding", self.clusters.name, "--kubeconfig", self.virtual.kubeconfig]
        command += ["--allow-loopback", "--leader-elect=false"]
        command += ["--metrics-bind-address", "", "--health-probe-bind-address", ""]
        return running(command, self.clusters.log)

    def limit(self) -> AbstractContextManager[int]:
        command = [sys.executable, "-m", "benchmarks.relay", self.virtual.kubeconfig, self.physical.kubeconfig]
        return running([*command, self.clusters.above(""), self.clusters.mount], self.clusters.folder / "relay.log")

    async def take_turns(self, sides: Sequence[Turns]) -> None:
        """Measure all sides in turn. Turns are short: the relay renews no leases, and nodes are lost after 40 s."""
        for number in range(ROUNDS):
            for side in sides:
                name = f"{side.name}-burst-{number}"
                with side.carrier() as pid:
                    await self.warmed_up(name)
                    burst = await self.burst(pid, name, BURST)
                side.bursts.append(burst)
                say(f"sync: {name}: {burst.seconds:.1f} s, {burst.cpu / BURST * 1000:.2f} ms of CPU for each pod")
            for side in sides:
                name = f"{side.name}-steady-{number}"
                with side.carrier() as pid:
                    await self.warmed_up(name)
                    delays, cpu = await self.steady(pid, name)
                side.delays.append(delays)
                side.steady_cpu.append(cpu)
                delay = f"{median(delays) * 1000:.1f} ms from binding to twin"
                say(f"sync: {name}: {delay}, {cpu * 1000:.2f} ms of CPU for each pod")

    async def warmed_up(self, name: str) -> None:
        """Wait until the carrier has copied and deleted one pod."""
        async with pod_batch(self.clusters, f"{name}-first") as first:
            await first.bind(1, self.nodes)
            await first.wait_until_running(1)
            await self.delete_batch(first)

    async def burst(self, pid: int, name: str, count: int, *, token: bool = False) -> Burst:
        async with pod_batch(self.clusters, name) as pods:
            before, cpu, started = await self.calls(), cpu_seconds(pid), time.monotonic()
            await pods.bind(count, self.nodes, automountServiceAccountToken=token)
            await pods.wait_until_running(count)
            used_cpu, megabytes = cpu_seconds(pid) - cpu, rss_megabytes(pid)
            calls = await self.calls()
            calls.subtract(before)
            calls.subtract({("above", "POST", "pods"): count, ("below", "PATCH", "pods/status"): count})
            cpu, deletion_started = cpu_seconds(pid), time.monotonic()
            left = await self.delete_batch(pods)
            deletion_seconds = time.monotonic() - deletion_started
        return Burst(
            pods=count,
            seconds=max(pods.running.values()) - started,
            cpu=used_cpu,
            megabytes=megabytes,
            calls=calls,
            gone_seconds=deletion_seconds,
            gone_cpu=cpu_seconds(pid) - cpu,
            left=left,
        )

    async def steady(self, pid: int, name: str) -> tuple[list[float], float]:
        """Return the sorted seconds from each pod's binding to its twin, and CPU seconds per pod."""
        async with pod_batch(self.clusters, name) as pods:
            cpu = cpu_seconds(pid)
            await pods.bind(STEADY, self.nodes, per_second=PER_SECOND)
            await pods.wait_until_running(STEADY)
            cpu_per_pod = (cpu_seconds(pid) - cpu) / STEADY
            await self.delete_batch(pods)
        return sorted(pods.mapped[pod] - bound for pod, bound in pods.bound.items()), cpu_per_pod

    async def delete_batch(self, pods: PodBatch) -> int:
        """Delete a pod_batch and return the number of objects that remain."""
        await pods.delete()
        await pods.is_gone()
        ours = f"{keys.MANAGED_BY}={keys.TAPESTRY}"
        return (
            await remaining(self.clusters.virtual, PODS, "default", POD_BATCH)
            + await remaining(self.clusters.physical, PODS, self.clusters.mount)
            + await remaining(self.clusters.physical, SECRETS, self.clusters.mount, ours)
            + await remaining(self.clusters.physical, CONFIGMAPS, self.clusters.mount, ours)
        )

    async def calls(self) -> Calls:
        """Return the requests that both API servers have counted so far."""
        sides = {"above": self.virtual, "below": self.physical}
        return Counter(
            {
                (side, verb, resource): count
                for side, plane in sides.items()
                for (verb, resource), count in (await asyncio.to_thread(requests_of, plane)).items()
            }
        )


def rows() -> Iterator[Row]:
    try:
        assets = find_assets(os.environ)
    except AssetsMissing as error:
        yield Row(WHAT, None, "x", at_most=1.3, detail=str(error))
        return
    say("sync: starting two control planes")
    with TemporaryDirectory() as name:
        folder = Path(name)
        with (
            ControlPlane(folder / "virtual", assets, controller_manager=True, fsync=False) as virtual,
            ControlPlane(folder / "physical", assets, fsync=False) as physical,
        ):
            ours, limit, with_token, first_pods = uvloop.run(measured(virtual, physical, folder))
    yield from compared(ours, limit)
    yield from counted(ours.bursts[-1], limit.bursts[-1], with_token)
    yield from ended(ours, limit, with_token)
    yield from first_pod_rows(first_pods)


async def measured(virtual: ControlPlane, physical: ControlPlane, folder: Path) -> tuple[Turns, Turns, Burst, Delays]:
    for plane in (virtual, physical):
        await install_kinds(plane)
    kubelet = [sys.executable, "-m", "tests.integration.kubelet", physical.kubeconfig]
    async with bound_clusters(
        virtual, physical, folder, directScheduling=True, disableNodeDefaultTaint=True
    ) as clusters:
        course = await prepared(clusters, virtual, physical)
        with running(kubelet, folder / "kubelet.log"):
            sides = Turns("ours", course.ours), Turns("limit", course.limit)
            await course.take_turns(sides)
            with course.ours() as pid:
                await course.warmed_up("token")
                with_token = await course.burst(pid, "token-burst", WITH_TOKEN, token=True)
            return *sides, with_token, await first_pod_delays(clusters, virtual, course.nodes[0])


async def prepared(clusters: BoundClusters, virtual: ControlPlane, physical: ControlPlane) -> Course:
    """Lease all nodes and wait until pods are admitted."""
    course = Course(clusters, virtual, physical, await lend(clusters, PHYSICAL_NODES))
    with course.ours():
        await wait_until_lent(clusters, PHYSICAL_NODES)
        await wait_until(clusters.virtual, SERVICE_ACCOUNTS, "default", bool, "default")
    return course


async def remaining(client: Client, kind: Resource, namespace: str, labels: str = "") -> int:
    """Return the number of objects that remain after a timeout."""
    with suppress(TimeoutError):
        await wait_for_all(client, kind, namespace, lambda found: not found, labels=labels)
    return len(await client.list(kind, namespace, labels=labels))


# -- rows


def compared(ours: Turns, limit: Turns) -> Iterator[Row]:
    """Yield medians of all turns, compared with the limit."""

    def row(what: str, at_most: float, unit: str, value: Callable[[Turns], float]) -> Row:
        mine, least = value(ours), value(limit)
        detail = f"{mine:.3g} {unit}, limit {least:.3g} {unit}"
        return Row(f"{what}, ours / limit", mine / least, "x", at_most=at_most, detail=detail)

    steady = f"{PER_SECOND} pods a second: from binding to twin"
    yield row(f"{WHAT}: all Running", 1.3, "s", lambda side: side.in_a_burst(lambda burst: burst.seconds))
    yield row(f"{steady}, p50", 1.8, "ms", lambda side: side.delay(0.5) * 1000)
    yield row(f"{steady}, p99", 2, "ms", lambda side: side.delay(0.99) * 1000)
    cpu, least = (side.in_a_burst(lambda burst: burst.cpu) / BURST * 1000 for side in (ours, limit))
    yield Row(f"{WHAT}: CPU for each", cpu, "ms", at_most=2, detail=f"limit {least:.2g} ms")
    cpu, least = (median(side.steady_cpu) * 1000 for side in (ours, limit))
    yield Row(f"{PER_SECOND} pods a second: CPU for each", cpu, "ms", at_most=5, detail=f"limit {least:.2g} ms")
    size, least = (max(burst.megabytes for burst in side.bursts) for side in (ours, limit))
    what = f"{PHYSICAL_NODES} nodes and {BURST:,} pods: RSS"
    yield Row(what, size, "MB", at_most=100, detail=f"limit {least:.0f} MB")


def counted(ours: Burst, limit: Burst, with_token: Burst) -> Iterator[Row]:
    """Yield writes by resource, and every call whose number grows with the pods."""
    for side, bar in (("above", 2), ("below", 1)):
        least = f"limit {limit.per_pod(writes(side, 'pods')):.3g}"
        what = f"writes to pods {side}, for each until it runs"
        yield Row(what, ours.per_pod(writes(side, "pods")), "", at_most=bar, detail=least)
    for side, bar, kind in (("above", 3, "serviceaccounts"), ("below", 2, "secrets")):
        what = f"with a token: writes to pods and {kind} {side}"
        yield Row(what, with_token.per_pod(writes(side, "pods", kind)), "", at_most=bar)
    for call, count in sorted(ours.calls.items()):
        if count >= ours.pods / 100:
            yield Row(f"calls for each pod {call[0]}: {call[1]} {call[2]}", count / ours.pods, "")


def ended(ours: Turns, limit: Turns, with_token: Burst) -> Iterator[Row]:
    seconds, least = (side.in_a_burst(lambda burst: burst.gone_seconds) for side in (ours, limit))
    detail = f"{seconds:.3g} s, limit {least:.3g} s"
    yield Row(f"{WHAT} deleted: all gone, ours / limit", seconds / least, "x", at_most=1.3, detail=detail)
    cpu, least = (side.in_a_burst(lambda burst: burst.gone_cpu) / BURST * 1000 for side in (ours, limit))
    yield Row(f"{WHAT} deleted: CPU for each", cpu, "ms", at_most=2.5, detail=f"limit {least:.2g} ms")
    left = sum(burst.left for burst in (*ours.bursts, with_token))
    yield Row("left of any burst on either side", left, "", at_most=0, detail="pods, Secrets and ConfigMaps")


def writes(side: str, *kinds: str) -> Callable[[Call], bool]:
    """Return a predicate for calls that write to these resources or their subresources."""
    return lambda call: call[0] == side and call[1] in WRITES and call[2].partition("/")[0] in kinds


# -- metrics of the API servers

REQUEST = re.compile(r"^apiserver_request_total{(?P<labels>[^}]*)} (?P<count>\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


def requests_of(plane: ControlPlane) -> Counter[tuple[str, str]]:
    """Return the number of requests by verb and resource, regardless of their result."""
    request = urllib.request.Request(f"{plane.url}/metrics", headers={"Authorization": f"Bearer {plane.token}"})
    with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=plane.ca)) as response:
        text = response.read().decode()
    requests: Counter[tuple[str, str]] = Counter()
    for match in REQUEST.finditer(text):
        labels = dict(LABEL.findall(match["labels"]))
        resource = "/".join(filter(None, (labels["resource"], labels["subresource"])))
        if resource:
            requests[labels["verb"], resource] += int(float(match["count"]))
    return requests


if __name__ == "__main__":
    alone(rows)
