"""Local world: a virtual cluster and physical clusters on one machine, one process each.

The manager is installed as usual.  The virtual cluster's process kubelet runs it, and through it the syncers.  All
processes end with the process that runs the world; the data in its folder stay.
"""

import asyncio
import os
import re
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.watch import wait_for
from tapestry.controller import Informer
from tapestry.kube.conditions import find_condition, is_condition_true
from tapestry.kube.errors import KubeError
from tapestry.kube.names import dns_label_error
from tapestry.kube.objects import Object, name_of, value_at, with_value
from tapestry.kube.resources import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CRDS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    LEASES,
    NAMESPACES,
    NETWORK_POLICIES,
    NODE_LEASE_NAMESPACE,
    NODES,
    ROLE_BINDINGS,
    ROLES,
    RUNTIME_CLASSES,
    SERVICE_ACCOUNTS,
    SERVICES,
)
from tapestry.kube.times import parse_time
from tapestry.local.cluster import PROCESS_NODE_NAME, ClusterPlan, ensure_nodes
from tapestry.local.cluster_processes import (
    POLL_INTERVAL,
    TAPESTRY_PROGRAM,
    ClusterProcesses,
    ReportLine,
    is_responding,
    open_client,
)
from tapestry.local.kubernetes import COMPONENTS, find_assets
from tapestry.local.process_kubelet import ISOLATED, RUNTIME_CLASS, process_runtime_class
from tapestry.local.world_folder import SERVICE_FOLDER, VIRTUAL, WorldError, WorldFolder, WorldRecord
from tapestry.local.world_service import HOST, WorldService, has_service_packages
from tapestry.manager.installation import installation_objects
from tapestry.manager.join_steps import Cluster, JoinError
from tapestry.manager.joining import Plan, join
from tapestry.manager.offers import Offer
from tapestry.process.supervised_processes import StallDetector, SupervisedProcess

__all__ = ["RESCAN_SIGNAL", "TAPESTRY_PROGRAM", "VIRTUAL", "World", "WorldError"]

RESCAN_SIGNAL = signal.SIGUSR1
"""Signal that makes the process of a world look for added and removed clusters."""
REMOVED_FILE = "removed"
"""File in the folder of a cluster that is to be removed."""
PING_TIMEOUT = 1.0
"""Seconds for a cluster to answer a health check."""
ESTABLISHED_TIMEOUT = 120.0
"""Seconds until a new kind must be served."""
START_TIMEOUT = 120.0
"""Seconds until a cluster started by another process must answer."""

MANIFEST_RESOURCES = {
    each.kind: each
    for each in (
        *(NAMESPACES, CRDS, SERVICE_ACCOUNTS, DEPLOYMENTS, SERVICES, NETWORK_POLICIES, DISRUPTION_BUDGETS),
        *(ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS),
        *(ADMISSION_POLICIES, ADMISSION_POLICY_BINDINGS),
    )
}
"""Resources of the manager's manifests, by kind."""


def discard_message(_: object) -> None:
    """Ignore the message."""


@dataclass
class World:
    """Clusters in one folder: `virtual`, and `clusters` physical ones with `nodes` nodes each.

    None keeps the previous number.
    """

    folder: Path
    clusters: int | None = None
    nodes: int | None = None
    real_kubernetes: bool = False
    run_pods: bool = False
    """Add a node to the first physical cluster that runs the pods of all users as processes."""
    has_service: bool = False
    """Run the lifecycle service of virtual clusters, if its packages are installed."""
    report: ReportLine = print
    """Called with each finished step and its duration."""
    report_start: ReportLine = discard_message
    """Called with each started step."""
    report_event: ReportLine = print
    """Called with unexpected events, such as the restart of a cluster."""
    processes: ClusterProcesses = field(init=False, repr=False)

    @property
    def world_folder(self) -> WorldFolder:
        return WorldFolder(self.folder)

    def kubeconfig(self, cluster: str = VIRTUAL) -> Path:
        return self.folder / cluster / "kubeconfig"

    @property
    def service(self) -> WorldService:
        return WorldService(self.folder / SERVICE_FOLDER)

    def client(self, name: str) -> Client:
        return open_client(self.kubeconfig(name))

    # -- running it

    @asynccontextmanager
    async def run(self) -> AsyncIterator[WorldRecord]:
        """Run everything while the context is open, then stop all processes.

        Raise WorldError or AssetsMissing.
        """
        loop = asyncio.get_running_loop()
        is_new = not self.world_folder.has_world()
        if self.real_kubernetes:
            find_assets(os.environ, COMPONENTS)
        record = self.world_folder.resolve_record(self.clusters, self.nodes, real_kubernetes=self.real_kubernetes)
        self.processes = ClusterProcesses(self.folder, self.report_event)
        loop.add_signal_handler(RESCAN_SIGNAL, self.rescan)
        try:
            with self.world_folder.claim(record):
                async with self.run_processes():
                    await self.start_clusters(record, is_new=is_new)
                    yield record
        finally:
            loop.remove_signal_handler(RESCAN_SIGNAL)

    @asynccontextmanager
    async def run_processes(self) -> AsyncIterator[None]:
        """Run the cluster processes, and report how long stopping takes."""
        stopped_at = 0.0
        try:
            async with self.processes.run():
                try:
                    yield
                finally:
                    self.report_start("stopping")
                    stopped_at = time.monotonic()
        finally:
            self.report_done("stopping", stopped_at)

    async def start_clusters(self, record: WorldRecord, *, is_new: bool) -> None:
        began = datetime.now(UTC)
        physical = [f"cluster-{number}" for number in range(1, record.clusters + 1)]
        with self.report_step(f"{1 + record.clusters} clusters with {record.clusters * record.nodes} simulated nodes"):
            self.spawn(VIRTUAL, "--process-node")
            for name in physical:
                run_pods = ["--run-pods"] if self.run_pods and name == physical[0] else []
                self.spawn(name, "--nodes", str(record.nodes), *run_pods)
            self.rescan()
            for name in list(self.processes.by_name):
                await self.processes.wait_for_cluster(name)
        # not before: its start would slow down that of the clusters, and the steps below wait more than they compute
        service = self.processes.supervise(SERVICE_FOLDER, self.service.command()) if self.runs_service else None
        async with self.client(VIRTUAL) as virtual:
            with self.report_step("Tapestry's manager"):
                await install_manager(virtual)
            async with self.starting_service(service):
                await self.join_clusters(virtual, record, physical, began, is_new=is_new)

    async def join_clusters(
        self, virtual: Client, record: WorldRecord, physical: list[str], began: datetime, *, is_new: bool
    ) -> None:
        """Join the physical clusters, and wait until their nodes are ready."""
        joined = [
            name for number, name in enumerate(physical) if number >= record.joined or await has_binding(virtual, name)
        ]
        for name in joined:
            with self.report_step(f"{name} joins"):
                await self.join(virtual, name)
        self.world_folder.write_record(replace(record, joined=record.clusters))
        expected = len(joined) * record.nodes
        if self.run_pods:
            await virtual.apply(RUNTIME_CLASSES, process_runtime_class(), manager="tapestry-up", force=True)
            expected += physical[0] in joined
            await self.report_process_node(physical[0])
        with self.report_step("virtual nodes"):
            found = await wait_for_nodes(virtual, expected, began)
        if found < expected:
            text = f"{found} of {expected} virtual nodes are ready; `tapestry status` shows details"
            if is_new:
                raise WorldError(text)
            self.report(text)

    @asynccontextmanager
    async def starting_service(self, service: SupervisedProcess | None) -> AsyncIterator[None]:
        """Wait for the lifecycle service while the context is open, and at its end until it has a host cluster."""
        if service is None:
            yield
            return
        failure: Exception | None = None
        async with asyncio.TaskGroup() as group:
            starting = group.create_task(self.start_service(service), name="lifecycle-service")
            try:
                yield
                with self.report_step(f"lifecycle service; {HOST} is the host cluster of its virtual clusters"):
                    failure = await starting
            except Exception as error:  # noqa: BLE001  the task group would wrap it
                failure = error
            finally:
                starting.cancel()
        if failure is not None:
            raise failure

    async def start_service(self, service: SupervisedProcess) -> WorldError | None:
        """Wait until the service answers, and add the compute cluster. Return why the service does not answer."""
        try:
            await self.service.wait(service)
        except WorldError as error:
            return error
        try:
            await self.service.add_host(self.kubeconfig())
        except (JoinError, KubeError, OSError) as error:
            self.report(f"virtual clusters run no pods, because host cluster {HOST} was not added: {error}")
        return None

    @property
    def runs_service(self) -> bool:
        return self.has_service and has_service_packages()

    async def report_process_node(self, name: str) -> None:
        """Report how the process node of a cluster runs pods."""
        async with self.client(name) as client:
            node = await wait_for(client, NODES, PROCESS_NODE_NAME, until=is_isolation_known, timeout=START_TIMEOUT)
        message = isolation_message(node)
        self.report(f"           RuntimeClass {RUNTIME_CLASS}: pods run on {name}/{PROCESS_NODE_NAME}; {message}")

    def spawn(self, name: str, *flags: str) -> None:
        """Start the process of a cluster of this world."""
        self.processes.spawn(name, *flags, *(["--real-kubernetes"] if self.real_kubernetes else []))

    def rescan(self) -> None:
        """Start clusters that have a folder but no process, and remove those marked for removal."""
        for folder in sorted(each for each in self.folder.iterdir() if each.is_dir()):
            if (folder / REMOVED_FILE).exists():
                self.processes.remove(folder.name)
            elif folder.name not in self.processes.by_name and folder.name != SERVICE_FOLDER:
                self.spawn(folder.name)

    async def join(self, virtual: Client, name: str) -> None:
        access = load_access([self.kubeconfig(name)], environ={})
        async with self.client(name) as physical:
            clusters = Cluster("virtual", virtual, discard_message), Cluster("physical", physical, discard_message)
            await join(Plan(name, name, offer=Offer()), *clusters, access, connect=HttpTransport, now=datetime.now(UTC))

    @contextmanager
    def report_step(self, what: str) -> Iterator[None]:
        self.report_start(what)
        started = time.monotonic()
        yield
        self.report_done(what, started)

    def report_done(self, what: str, started: float) -> None:
        self.report(f"  {time.monotonic() - started:5.1f} s  {what}")

    # -- a world that another process runs

    def running_pid(self) -> int | None:
        """Return the PID of the process that runs the world, if there is one."""
        return self.world_folder.running_pid()

    def stop_running(self) -> bool:
        """Stop the process that runs the world; return whether there was one."""
        pid = self.running_pid()
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        self.world_folder.wait_for_exit()
        return True

    async def wait_for_cluster(self, name: str) -> None:
        progress = StallDetector(START_TIMEOUT, START_TIMEOUT)
        while not await is_responding(self.kubeconfig(name)):
            if progress.has_stalled(name):
                raise WorldError(f"{name} does not answer; its log is {self.folder / name / 'log'}")
            await asyncio.sleep(POLL_INTERVAL)

    async def unreachable_clusters(self) -> list[str]:
        """Return the clusters in the folder that do not answer."""
        files = sorted(self.folder.glob("*/kubeconfig"))
        async with asyncio.TaskGroup() as group:
            tasks = [(file.parent.name, group.create_task(is_responding(file, PING_TIMEOUT))) for file in files]
        return [name for name, task in tasks if not task.result()]


async def install_manager(virtual: Client) -> None:
    """Install the manager with one replica, as `tapestry manifests` prints it."""
    for obj in installation_objects(replicas=1):
        resource = MANIFEST_RESOURCES[obj["kind"]]
        desired = with_local_settings(obj) if resource == DEPLOYMENTS else obj
        await virtual.apply(resource, desired, manager="tapestry-up", force=True)
        if resource == CRDS:
            await wait_for(virtual, CRDS, name_of(obj), until=is_established, timeout=ESTABLISHED_TIMEOUT)


async def has_binding(virtual: Client, name: str) -> bool:
    """Return whether a cluster has joined and not left."""
    return await virtual.find(CLUSTER_BINDINGS, name) is not None


def is_isolation_known(node: Object | None) -> bool:
    return bool(isolation_message(node))


def isolation_message(node: Object | None) -> str:
    """Return how the containers of a process node are isolated; empty until its kubelet reports it."""
    condition = find_condition(value_at(node, "status", "conditions"), ISOLATED) or {}
    message: str = condition.get("message", "")
    return message


def is_established(definition: Object | None) -> bool:
    return definition is not None and is_condition_true(definition, "Established")


def with_local_settings(manager: Object) -> Object:
    """Return the manager's Deployment with the settings of a local world.

    Each syncer has one replica, because there is only one machine.  The clusters are on loopback addresses, and nothing
    forwards the addresses of Services.
    """
    template = manager["spec"]["template"]
    settings = {
        "TAPESTRY_SYNCER_REPLICAS": "1",
        "TAPESTRY_SYNCER_KUBELET_SERVICE": "false",
        "TAPESTRY_ALLOW_LOOPBACK": "true",
    }
    env = [{"name": name, "value": value} for name, value in settings.items()]
    containers = [{**each, "env": [*each.get("env", ()), *env]} for each in template["spec"]["containers"]]
    return with_value(manager, ("spec", "template", "spec", "containers"), containers)


STALL_TIMEOUT, TOTAL_TIMEOUT = 60.0, 900.0
"""Seconds without a new ready node until the wait fails, and for all nodes."""
MIN_POLL_INTERVAL, MAX_POLL_INTERVAL = 0.1, 1.0
"""Shortest and longest time between two checks, in seconds."""


async def wait_for_nodes(virtual: Client, count: int, since: datetime) -> int:
    """Wait until `count` virtual nodes are ready, or no more become ready; return their number."""
    nodes = Informer(virtual, NODES, labels=f"{keys.NODE_TYPE}={keys.NODE_TYPE_VIRTUAL}")
    leases = Informer(virtual, LEASES, namespace=NODE_LEASE_NAMESPACE)
    progress, changed = StallDetector(STALL_TIMEOUT, TOTAL_TIMEOUT), asyncio.Event()
    leases.on_change(lambda _old, _new: changed.set())
    nodes.on_change(lambda _old, _new: changed.set())
    async with asyncio.TaskGroup() as group:
        watches = [group.create_task(each.run()) for each in (nodes, leases)]
        while (ready := count_ready_nodes(nodes, leases, since)) < count and not progress.has_stalled(ready):
            await asyncio.sleep(MIN_POLL_INTERVAL)
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), MAX_POLL_INTERVAL)
            changed.clear()
        for each in watches:
            each.cancel()
    return ready


def count_ready_nodes(nodes: Informer, leases: Informer, since: datetime) -> int:
    return sum(
        is_condition_true(node, "Ready")
        and is_renewed(leases.store.get(f"{NODE_LEASE_NAMESPACE}/{name_of(node)}"), since)
        for node in nodes.store.list()
    )


def is_renewed(lease: Object | None, since: datetime) -> bool:
    renewed = value_at(lease, "spec", "renewTime")
    return bool(renewed) and parse_time(renewed) >= since


BUILT_IN_NAME = re.compile(r"cluster-\d+")
"""Names of the clusters that `tapestry up` creates."""


async def add_cluster(world: World, name: str, nodes: int, created: Callable[[int], None] = lambda _: None) -> int:
    """Make the process of the world start the cluster `name`, and wait until it answers.

    Return the number of created nodes; an existing cluster gets the missing ones.  If cancelled, delete a cluster that
    did not exist before.
    """
    check_name(name)
    running = running_pid(world)
    folder = world.folder / name
    is_new = not folder.exists()
    folder.mkdir(exist_ok=True, mode=0o700)
    try:
        os.kill(running, RESCAN_SIGNAL)
        await world.wait_for_cluster(name)
        async with world.client(name) as client:
            return await ensure_nodes(client, ClusterPlan(folder, nodes), created)
    except asyncio.CancelledError:
        if is_new:
            await remove_cluster(world, name)
        raise


async def remove_cluster(world: World, name: str) -> None:
    """Stop the cluster `name` and delete its folder.  Raise WorldError if it has joined, or was not added."""
    check_name(name)
    if BUILT_IN_NAME.fullmatch(name):
        raise WorldError(f"{name} was not added: it is part of the world; `tapestry down --purge` deletes the world")
    folder = world.folder / name
    if not folder.is_dir():
        raise WorldError(f"there is no cluster {name} in {world.folder}")
    if world.running_pid() is None:
        shutil.rmtree(folder)
        return
    async with world.client(VIRTUAL) as virtual:
        if await has_binding(virtual, name):
            command = f"tapestry unjoin {name} --cluster-kubeconfig {world.kubeconfig(name)}"
            raise WorldError(f"{name} has joined; first run: {command}")
    (folder / REMOVED_FILE).touch()
    os.kill(running_pid(world), RESCAN_SIGNAL)
    progress = StallDetector(START_TIMEOUT, START_TIMEOUT)
    while folder.exists():
        if progress.has_stalled(name):
            raise WorldError(f"{name} does not stop; its log is {folder / 'log'}")
        await asyncio.sleep(POLL_INTERVAL)


def check_name(name: str) -> None:
    if error := dns_label_error(name):
        raise WorldError(f"invalid cluster name: {error}")
    if name == VIRTUAL:
        raise WorldError(f"{name!r} is the name of the virtual cluster; choose another name")


def running_pid(world: World) -> int:
    """Return the PID of the process that runs the world.  Raise WorldError if there is none."""
    running = world.running_pid()
    if running is None:
        raise WorldError(f"no world is running in {world.folder}; `tapestry up` starts one")
    return running
