"""Measurements of the tenants of one process, configured like the command. Each function runs in a new process.

The host cluster is our own with simulated nodes, in a process of its own, as are the clients whose times are measured.
"""

import asyncio
import json
import os
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.integration.plane_clients import client_of as client_with
from tests.integration.plane_clients import created_plane, plane_kubeconfig, wait_for_phase
from tests.integration.servers import ClusterProcess
from tests.unit.tenants.running_tenants import TENANT_ADMIN, pod_named

from benchmarks.fresh import held_bytes
from benchmarks.sides.client_process import client_process
from benchmarks.sides.plane_client import cpu_seconds
from benchmarks.sides.planes import MEGABYTE, run
from benchmarks.sides.tenant_client import Instant
from benchmarks.table import say
from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.planes import PLANES, plane_id
from tapestry.cli.planes import mounted_routes
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.watch import Changes, ListPage, Watch, wait_for
from tapestry.controlplane.app import OPTIONAL_CONTROLLERS, WILDCARD
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object, is_deleting, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import NAMESPACES, NODES, PODS
from tapestry.manager.join_steps import Cluster
from tapestry.planes.app import PlaneProcess, client_of, run_planes
from tapestry.planes.config import PlanesConfig
from tapestry.process.system import raise_open_file_limit
from tapestry.tenants.app import run_tenants
from tapestry.tenants.host_registration import AddedHost, HostPlan, add_host

HOST = "east"
FOREIGN = "foreign"
"""Namespace of the pods of the host that are not those of tenants."""
WARM_UP = 3
"""Tenants that are created before anything is measured."""
START_SECONDS = 5.0
"""Seconds for which controllers finish the work of new tenants."""
TIMEOUT = 120.0
CONCURRENCY = 16
CLIENT = "benchmarks.sides.tenant_client"
OPEN_FILES = 65_536
ROUNDS = 3
FLOOD_START_SECONDS = 1.0
"""Seconds of a flood before and after others are measured."""
GREEDY_PODS = "100"
"""Quota of the tenant that creates pods as fast as it can."""
ALL_CONTROLLERS = [WILDCARD, *OPTIONAL_CONTROLLERS]


@dataclass(frozen=True)
class Host:
    """The size of a host cluster."""

    nodes: int
    pods: int
    """Number of foreign pods."""


@dataclass(frozen=True)
class TenantProcess:
    """A process of planes whose tenants run in one host cluster."""

    folder: Path
    host_kubeconfig: Path
    host_pid: int
    process: PlaneProcess
    management: Client

    async def add(self, name: str, **spec: Any) -> Client:
        """Create a plane with all controllers and a tenant, wait until it is ready, and return a client of it."""
        plane = await created_plane(self.management, name, controllers=ALL_CONTROLLERS)
        id = plane_id(plane)
        binding = {"clusterID": name, "virtualCluster": id, "hostCluster": HOST, **spec}
        await self.management.create(CLUSTER_BINDINGS, {**object_named(name), "spec": binding})
        await wait_for(self.management, CLUSTER_BINDINGS, name, until=is_ready, timeout=TIMEOUT)
        entry = self.process.plane_set.get(id)
        assert entry is not None
        assert entry.plane is not None
        return Client(InProcessTransport(entry.plane.opened.request_handler, TENANT_ADMIN))

    async def suspend(self, name: str) -> None:
        """Suspend a plane, and with it the syncer of its tenant."""
        await self.management.patch(PLANES, object_named(name), {"spec": {"state": "Suspended"}})
        await wait_for_phase(self.management, name, "Suspended")

    async def kubeconfig(self, name: str) -> str:
        """Return the file with the kubeconfig of a plane."""
        file = self.folder / f"{name}.kubeconfig"
        return str(await plane_kubeconfig(self.management, name, file, byPath=True))


@asynccontextmanager
async def tenant_process(host: Host) -> AsyncIterator[TenantProcess]:
    """Run a host cluster with foreign pods, and a process of planes that has added it."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        cluster = ClusterProcess(folder / "host", "--nodes", str(host.nodes))
        await asyncio.to_thread(cluster.start)
        try:
            access = load_access([cluster.kubeconfig], None, environ={})
            config = PlanesConfig(data=str(folder / "planes"), name="here", address="127.0.0.1:0")
            async with (
                Client(HttpTransport(access)) as client,
                run_planes(config, mounted_routes, extension=run_tenants) as process,
            ):
                await create_foreign_pods(client, host.pods)
                management = client_of(process.management)
                clusters = AddedHost(
                    *(Cluster("management", management, quiet), Cluster("host", client, quiet), access, HttpTransport)
                )
                await add_host(HostPlan(HOST, {"allowLoopback": True}), clusters, datetime.now(UTC))
                reads = client_with(config.kubeconfig_file)
                yield TenantProcess(folder, cluster.kubeconfig, cluster.pid, process, reads)
        finally:
            await asyncio.to_thread(cluster.stop)


def quiet(_: str) -> None:
    """Print nothing."""


def is_ready(binding: Object | None) -> bool:
    return binding is not None and is_condition_true(binding, "Ready")


async def create_foreign_pods(client: Client, number: int) -> None:
    """Create pods on all nodes of the host."""
    await client.create(NAMESPACES, object_named(FOREIGN))
    nodes, numbers = [name_of(each) for each in await client.list(NODES)], iter(range(number))

    async def create_some() -> None:
        for each in numbers:
            await client.create(PODS, pod_named(f"foreign-{each}", FOREIGN, nodeName=nodes[each % len(nodes)]))

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(create_some())


async def run_first_pod(client: Client) -> None:
    """Create a pod, and wait until it runs."""
    await client.create(PODS, pod_named("first"))
    await wait_for(client, PODS, "first", "default", until=runs, timeout=TIMEOUT)


def runs(pod: Object | None) -> bool:
    return value_at(pod, "status", "phase") == "Running"


# -- measurements


def idle(count: str, nodes: str, pods: str, sync_nodes: str, seconds: str) -> dict[str, Any]:
    """Create tenants with a pod each, one after the other. Then nothing happens for a while."""
    number_of_tenants, sync = int(count), {"nodes": sync_nodes == "all"}

    async def measure() -> dict[str, Any]:
        async with tenant_process(Host(int(nodes), int(pods))) as tenants:
            for number in range(WARM_UP):
                await run_first_pod(await tenants.add(f"warm-up-{number}", sync=sync))
            await asyncio.sleep(START_SECONDS)
            before, tasks, cpu_before, times = held_bytes(), len(asyncio.all_tasks()), time.process_time(), []
            for number in range(number_of_tenants):
                started = time.perf_counter()
                client = await tenants.add(f"t{number}", sync=sync)
                await run_first_pod(client)
                times.append(time.perf_counter() - started)
            await asyncio.sleep(START_SECONDS)
            created_cpu = time.process_time() - cpu_before
            megabytes = (held_bytes() - before) / MEGABYTE / number_of_tenants
            tasks = len(asyncio.all_tasks()) - tasks
            cpu, started = time.process_time(), time.perf_counter()
            await asyncio.sleep(float(seconds))
            share = (time.process_time() - cpu) / (time.perf_counter() - started)
            return {
                "megabytes": megabytes,
                "base": before / MEGABYTE,
                "tasks": tasks / number_of_tenants,
                "first_pod": statistics.median(times),
                "create_cpu": created_cpu / number_of_tenants,
                "cpu": share,
                "nodes": len(await client.list(NODES)),
                "load": os.getloadavg()[0],
            }

    return run(measure)


def churn(tenants: str, nodes: str, foreign: str, pods: str, rate: str, seconds: str) -> dict[str, Any]:
    """Replace pods of one tenant, of all, and of all while another one creates pods as fast as it can.

    These phases take turns, because the load of the machine changes. Each flood is that of a new tenant, which is
    suspended then.
    """
    churned, number_of_nodes = {"rate": float(rate), "seconds": float(seconds) / ROUNDS}, int(nodes)

    async def measure() -> dict[str, Any]:
        raise_open_file_limit(OPEN_FILES)
        async with tenant_process(Host(number_of_nodes, int(foreign))) as process:
            placements = [(f"t{number}", ("host", "virtual")[number % 2]) for number in range(int(tenants))]
            clients = [await churned_tenant(process, number_of_nodes, *each) for each in placements]
            quota = {"quota": {"pods": GREEDY_PODS}}
            greedy = [
                await churned_tenant(process, number_of_nodes, f"greedy-{number}", "host", **quota)
                for number in range(ROUNDS)
            ]
            common = {"host": str(process.host_kubeconfig), "pids": [os.getpid(), process.host_pid]}
            async with (
                client_process(CLIENT, json.dumps({**common, "tenants": clients})) as ask,
                client_process(CLIENT, json.dumps({**common, "tenants": greedy})) as ask_greedy,
            ):
                say(f"tenants: {pods} pods in each of {len(clients)} tenants")
                await ask("fill", pods=int(pods))
                await asyncio.sleep(START_SECONDS)
                phases = {name: Phase(process) for name in ("one host", "one virtual", "all", "flooded")}
                answers: Counter[str] = Counter()
                everyone = [name for name, _ in placements]
                for each in greedy:
                    for phase, names in (("one host", ["t0"]), ("one virtual", ["t1"]), ("all", everyone)):
                        await phases[phase].add(ask("churn", tenants=names, **churned))
                    flood = asyncio.create_task(
                        ask_greedy("flood", name=each["name"], seconds=churned["seconds"] + 2 * FLOOD_START_SECONDS)
                    )
                    await asyncio.sleep(FLOOD_START_SECONDS)
                    await phases["flooded"].add(ask("churn", tenants=everyone, **churned))
                    answers.update((await flood)["result"])
                    await process.suspend(each["name"])
                    say(f"tenants: flood of {each['name']} ended, load {os.getloadavg()[0]:.1f}")
            return {
                **{name: phase.result() for name, phase in phases.items()},
                "answers": answers,
                "load": os.getloadavg()[0],
            }

    return run(measure)


def kill_switch(pods: str, nodes: str) -> dict[str, Any]:
    """Return the time from the owner's kill switch until all twins of a tenant are deleting, for each placement."""

    async def measure() -> dict[str, Any]:
        async with tenant_process(Host(int(nodes), 0)) as process:
            access = load_access([process.host_kubeconfig], None, environ={})
            async with Client(HttpTransport(access)) as host:
                times = {each: await reclaim_times(process, host, each, int(pods)) for each in ("host", "virtual")}
                return {**times, "load": os.getloadavg()[0]}

    return run(measure)


async def reclaim_times(process: TenantProcess, host: Client, placement: str, pods: int) -> Instant:
    """Return the seconds, and the CPU seconds of the processes of planes and of the host cluster."""
    plane = await process.add(placement, placement=placement)
    for number in range(pods):
        await plane.create(PODS, pod_named(f"work-{number}", terminationGracePeriodSeconds=600))
    labels = f"{keys.CLUSTER_BINDING_UID}={uid_of(await process.management.get(CLUSTER_BINDINGS, placement))}"
    staying = set[str]()
    async with asyncio.timeout(TIMEOUT):
        while not (len(staying) == pods and all(map(runs, await plane.list(PODS)))):
            await asyncio.sleep(0.5)
            staying = {uid_of(each) for each in await host.list(PODS, labels=labels) if runs(each)}
    await asyncio.sleep(START_SECONDS)
    [namespace] = await host.list(NAMESPACES, labels=labels)
    started, cpu = time.perf_counter(), 0.0
    async with aclosing(Watch(host, PODS, labels=labels).events()) as events:
        async for event in events:
            match event:
                case ListPage():
                    patch = {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
                    started, cpu = time.perf_counter(), time.process_time() + cpu_seconds(process.host_pid)
                    await host.patch(NAMESPACES, object_named(name_of(namespace)), patch)
                case Changes(changes):
                    staying -= {uid_of(obj) for type, obj in changes if type == "DELETED" or is_deleting(obj)}
            if not staying:
                break
    return time.perf_counter() - started, time.process_time() + cpu_seconds(process.host_pid) - cpu


class Phase:
    """What was measured while pods of the same tenants were replaced, in all rounds."""

    def __init__(self, process: TenantProcess) -> None:
        self._host_pid = process.host_pid
        self._times: dict[str, list[Instant]] = {}
        self._cpu = self._host_cpu = 0.0

    async def add(self, churned: Awaitable[Any]) -> None:
        cpu, host_cpu = time.process_time(), cpu_seconds(self._host_pid)
        for placement, seconds in (await churned)["result"].items():
            self._times.setdefault(placement, []).extend(seconds)
        self._cpu += time.process_time() - cpu
        self._host_cpu += cpu_seconds(self._host_pid) - host_cpu

    def result(self) -> dict[str, Any]:
        """Return the times by placement, and the CPU times of both processes for each pod."""
        pods = sum(map(len, self._times.values()))
        return {**self._times, "cpu": self._cpu / pods, "host cpu": self._host_cpu / pods}


async def churned_tenant(
    process: TenantProcess, number_of_nodes: int, name: str, placement: str, **spec: Any
) -> Object:
    """Create a tenant, and return what its client must know."""
    client, nodes = await process.add(name, placement=placement, **spec), list[str]()
    while placement == "virtual" and len(nodes) < number_of_nodes:
        await asyncio.sleep(0.1)
        nodes = [name_of(each) for each in await client.list(NODES)]
    return {"name": name, "placement": placement, "kubeconfig": await process.kubeconfig(name), "nodes": nodes}
