"""A client of tenants in a process of its own, which also watches their twins in the host cluster.

Its argument is a JSON object with the kubeconfigs of the host cluster and of the planes.
"""

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import uvloop
from tests.unit.tenants.running_tenants import pod_named

from benchmarks.sides.client_process import execute_commands
from benchmarks.sides.plane_client import cpu_seconds
from tapestry.apis import keys
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.transport import Request
from tapestry.client.watch import Changes, ListPage, Synced, Watch
from tapestry.kube.errors import NotFound, TransportError
from tapestry.kube.objects import Object, annotations_of, object_named
from tapestry.kube.resources import PODS

POD_PATH = "/api/v1/namespaces/default/pods"
REQUESTS = {"cpu": "10m", "memory": "16Mi"}
"""Requests of each pod, so that the scheduler of the host spreads them."""
FILL_CONCURRENCY = 8
FLOOD_CONCURRENCY = 64
WAIT_SECONDS = 60.0
"""Seconds after which a pod without a twin counts as one that gets its twin then."""


class TenantSpec(msgspec.Struct):
    name: str
    placement: str
    kubeconfig: str
    nodes: list[str]


class Clusters(msgspec.Struct):
    host: str
    pids: list[int]
    """Processes of the planes and of the host cluster."""
    tenants: list[TenantSpec]


def client_with(kubeconfig: str) -> Client:
    return Client(HttpTransport(load_access([Path(kubeconfig)], environ={})))


class Instant(NamedTuple):
    """A time on the clock that all processes share, and the CPU time of the measured processes until then.

    On an idle machine, both grow at most by the CPU time of the measured processes.
    """

    seconds: float
    cpu: float

    def since(self, start: "Instant") -> "Instant":
        return Instant(self.seconds - start.seconds, self.cpu - start.cpu)


@dataclass
class TenantPods:
    """The pods of one tenant in a churn."""

    spec: TenantSpec
    client: Client
    numbers: Iterator[int] = field(default_factory=count)
    names: list[str] = field(default_factory=list)
    """Names of the pods with twins, the oldest first."""

    def new_pod(self) -> Object:
        """Return a pod that is bound when it is created if the scheduler of the host does not place it."""
        name = f"{self.spec.name}-{next(self.numbers)}"
        nodes = self.spec.nodes
        bound = {"nodeName": nodes[hash(name) % len(nodes)]} if self.spec.placement == "virtual" else {}
        pod = pod_named(name, terminationGracePeriodSeconds=1, **bound)
        pod["spec"]["containers"][0]["resources"] = {"requests": REQUESTS}
        return pod


class TenantClient:
    def __init__(self, clusters: Clusters) -> None:
        self._host = client_with(clusters.host)
        self._tenants = {each.name: TenantPods(each, client_with(each.kubeconfig)) for each in clusters.tenants}
        self._pids = clusters.pids
        self._twins: dict[str, Instant] = {}
        """Time at which the twin of each pod was first seen, by the name of the pod."""
        self._changed = asyncio.Event()
        self.synced = asyncio.Event()

    async def watch(self) -> None:
        """Record the twins of all pods."""
        watch = Watch(self._host, PODS, labels=keys.CLUSTER_BINDING_UID)
        async with aclosing(watch.events()) as events:
            async for event in events:
                match event:
                    case ListPage(items):
                        self._see(items)
                    case Changes(changes):
                        self._see([each.object for each in changes])
                    case Synced():
                        self.synced.set()

    def _now(self) -> Instant:
        return Instant(time.monotonic(), sum(map(cpu_seconds, self._pids)))

    def _see(self, pods: list[Object]) -> None:
        names = {annotations_of(each).get(keys.VIRTUAL_POD_NAME, "") for each in pods} - self._twins.keys()
        if names:
            self._twins.update(dict.fromkeys(names, self._now()))
            self._changed.set()

    async def _create(self, tenant: TenantPods) -> Instant:
        """Create a pod. Return the time from the start of the request until its twin exists."""
        pod, started = tenant.new_pod(), self._now()
        name = pod["metadata"]["name"]
        with suppress(TimeoutError, TransportError):
            async with asyncio.timeout(WAIT_SECONDS):
                await tenant.client.create(PODS, pod)
                while name not in self._twins:
                    self._changed.clear()
                    await self._changed.wait()
            tenant.names.append(name)
        return self._twins.get(name, self._now()).since(started)

    async def _replace(self, tenant: TenantPods) -> Instant:
        """Delete the oldest pod of a tenant, and create another one."""
        if tenant.names:  # those of others are still awaited
            with suppress(NotFound, TransportError):
                await tenant.client.delete(PODS, object_named(tenant.names.pop(0), "default"))
        return await self._create(tenant)

    # -- commands

    async def fill(self, pods: int) -> None:
        """Create pods in all tenants."""
        missing = iter([each for each in self._tenants.values() for _ in range(pods)])

        async def create_some() -> None:
            for each in missing:
                await self._create(each)

        async with asyncio.TaskGroup() as group:
            for _ in range(FILL_CONCURRENCY):
                group.create_task(create_some())

    async def churn(self, tenants: list[str], rate: float, seconds: float) -> dict[str, list[Instant]]:
        """Replace pods of these tenants in turn at a constant rate. Return the times until the twins exist."""
        chosen = cycle([self._tenants[each] for each in tenants])
        started = time.monotonic()
        tasks: list[tuple[str, asyncio.Task[Instant]]] = []
        async with asyncio.TaskGroup() as group:
            for number in range(int(rate * seconds)):
                await asyncio.sleep(max(0.0, started + number / rate - time.monotonic()))
                tenant = next(chosen)
                tasks.append((tenant.spec.placement, group.create_task(self._replace(tenant))))
        latencies: dict[str, list[Instant]] = {}
        for placement, task in tasks:
            latencies.setdefault(placement, []).append(task.result())
        return latencies

    async def flood(self, name: str, seconds: float) -> dict[str, int]:
        """Create pods in a tenant, with many connections, as fast as there are answers. Return their numbers."""
        tenant, end = self._tenants[name], time.monotonic() + seconds
        answers: dict[str, int] = {}

        async def send() -> None:
            while time.monotonic() < end:
                request = Request("POST", POD_PATH, {}, msgspec.json.encode(tenant.new_pod()))
                try:
                    status = str((await tenant.client.transport.send(request)).status)
                except TransportError:
                    status = "none"
                answers[status] = answers.get(status, 0) + 1

        async with asyncio.TaskGroup() as group:
            for _ in range(FLOOD_CONCURRENCY):
                group.create_task(send())
        return answers


async def main(text: str) -> None:
    client: Any = TenantClient(msgspec.json.decode(text, type=Clusters))
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(client.watch())
        await client.synced.wait()
        await execute_commands(client)
        watching.cancel()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
