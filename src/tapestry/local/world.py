"""The world on one machine: a virtual cluster woven from physical ones, each a process of its own.

The manager is installed as anywhere else; the virtual cluster's process kubelet runs it, and through it the syncers.
Nothing outlives whoever runs the world, however they end; what is in its folder does.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.waiting import wait_for
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object, name_of, with_value
from tapestry.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CRDS,
    DEPLOYMENTS,
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
)
from tapestry.local.cluster_processes import (
    POLL_INTERVAL,
    TAPESTRY_PROGRAM,
    ClusterProcesses,
    ReportLine,
    StallDetector,
    is_responding,
    open_client,
)
from tapestry.local.kubernetes import COMPONENTS, find_assets
from tapestry.local.readiness import wait_for_nodes
from tapestry.local.world_folder import VIRTUAL, WorldError, WorldFolder, WorldRecord
from tapestry.manager.installation import installation_objects
from tapestry.manager.join_steps import Cluster
from tapestry.manager.joining import Plan, join
from tapestry.manager.offers import Offer

__all__ = ["RESCAN_SIGNAL", "TAPESTRY_PROGRAM", "VIRTUAL", "World", "WorldError"]

RESCAN_SIGNAL = signal.SIGUSR1
"""Tells the process that runs a world to look at the folders of clusters: one has come, or is to be removed."""
REMOVED_FILE = "removed"
"""The file in the folder of a cluster that is to be removed."""
PING_TIMEOUT = 1.0
"""Seconds that a cluster has to answer somebody who asks how it is."""
ESTABLISHED_TIMEOUT = 120.0
"""Seconds for the server to take up a kind."""
START_TIMEOUT = 120.0
"""Seconds for a cluster to answer that somebody else starts."""

MANIFEST_RESOURCES = {
    each.kind: each
    for each in (
        *(NAMESPACES, CRDS, SERVICE_ACCOUNTS, DEPLOYMENTS),
        *(ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS),
    )
}
"""What the manager's manifests consist of."""


def discard_message(_: object) -> None:
    """Says nothing."""


@dataclass
class World:
    """Clusters below one folder: `virtual`, and as many physical ones as wanted, with so many nodes each.

    What is None is as it was the last time.
    """

    folder: Path
    clusters: int | None = None
    nodes: int | None = None
    real_kubernetes: bool = False
    report: ReportLine = print
    """Told what is done, with the time that it took."""
    report_start: ReportLine = discard_message
    """Told what is about to be done."""
    report_event: ReportLine = print
    """Told what nobody asked for: a cluster that ended, and is started again."""
    processes: ClusterProcesses = field(init=False, repr=False)

    @property
    def world_folder(self) -> WorldFolder:
        return WorldFolder(self.folder)

    def kubeconfig(self, cluster: str = VIRTUAL) -> Path:
        return self.folder / cluster / "kubeconfig"

    def client(self, name: str) -> Client:
        return open_client(self.kubeconfig(name))

    # -- to run it

    @asynccontextmanager
    async def run(self) -> AsyncIterator[WorldRecord]:
        """Have everything at work for as long as the context lasts; nothing is left running then.

        Raises WorldFailed, AssetsMissing.
        """
        loop = asyncio.get_running_loop()
        is_new = not self.world_folder.has_world()
        if self.real_kubernetes:
            find_assets(os.environ, COMPONENTS)
        kept = self.world_folder.resolve_record(self.clusters, self.nodes, real_kubernetes=self.real_kubernetes)
        self.processes = ClusterProcesses(self.folder, self.report_event)
        loop.add_signal_handler(RESCAN_SIGNAL, self.rescan)
        try:
            with self.world_folder.claim(kept):
                async with self.run_processes():
                    await self.start_clusters(kept, is_new=is_new)
                    yield kept
        finally:
            loop.remove_signal_handler(RESCAN_SIGNAL)

    @asynccontextmanager
    async def run_processes(self) -> AsyncIterator[None]:
        """Have members, and say how long it took to end them."""
        ending = 0.0
        try:
            async with self.processes.run():
                try:
                    yield
                finally:
                    self.report_start("stopping")
                    ending = time.monotonic()
        finally:
            self.report_done("stopping", ending)

    async def start_clusters(self, record: WorldRecord, *, is_new: bool) -> None:
        began = datetime.now(UTC)
        physical = [f"cluster-{number}" for number in range(1, record.clusters + 1)]
        with self.report_step(f"{1 + record.clusters} clusters with {record.clusters * record.nodes} simulated nodes"):
            self.spawn(VIRTUAL, "--process-node")
            for name in physical:
                self.spawn(name, "--nodes", str(record.nodes))
            self.rescan()
            for name in list(self.processes.by_name):
                await self.processes.wait_for_cluster(name)
        async with self.client(VIRTUAL) as virtual:
            with self.report_step("Tapestry's manager"):
                await install_manager(virtual)
            joined = [
                name
                for number, name in enumerate(physical)
                if number >= record.joined or await has_binding(virtual, name)
            ]
            for name in joined:
                with self.report_step(f"{name} joins"):
                    await self.join(virtual, name)
            self.world_folder.write_record(replace(record, joined=record.clusters))
            with self.report_step("virtual nodes"):
                found = await wait_for_nodes(virtual, len(joined) * record.nodes, began)
        if found < len(joined) * record.nodes:
            text = f"{found} of {len(joined) * record.nodes} virtual nodes are ready; `tapestry status` says more"
            if is_new:
                raise WorldError(text)
            self.report(text)

    def spawn(self, name: str, *flags: str) -> None:
        """Have a process for a cluster of this world."""
        self.processes.spawn(name, *flags, *(["--real-kubernetes"] if self.real_kubernetes else []))

    def rescan(self) -> None:
        """Start the clusters that have a folder here and do not run, and end those that are to be removed."""
        for folder in sorted(each for each in self.folder.iterdir() if each.is_dir()):
            if (folder / REMOVED_FILE).exists():
                self.processes.remove(folder.name)
            elif folder.name not in self.processes.by_name:
                self.spawn(folder.name)

    async def join(self, virtual: Client, name: str) -> None:
        access = load_access([self.kubeconfig(name)], environ={})
        async with self.client(name) as physical:
            above, below = Cluster("virtual", virtual, discard_message), Cluster("physical", physical, discard_message)
            await join(
                Plan(name, name, offer=Offer()), above, below, access, connect=HttpTransport, now=datetime.now(UTC)
            )

    @contextmanager
    def report_step(self, what: str) -> Iterator[None]:
        self.report_start(what)
        started = time.monotonic()
        yield
        self.report_done(what, started)

    def report_done(self, what: str, started: float) -> None:
        self.report(f"  {time.monotonic() - started:5.1f} s  {what}")

    # -- of one that somebody else runs

    def running_pid(self) -> int | None:
        """The process that runs the world, if one does."""
        return self.world_folder.running_pid()

    def stop_running(self) -> bool:
        """Have the process that runs the world end it; whether there was one."""
        pid = self.running_pid()
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        self.world_folder.wait_for_exit()
        return True

    async def wait_for_cluster(self, name: str) -> None:
        """Return when a cluster answers."""
        progress = StallDetector(START_TIMEOUT, START_TIMEOUT)
        while not await is_responding(self.kubeconfig(name)):
            if progress.has_stalled(name):
                raise WorldError(f"{name} does not answer; its log is {self.folder / name / 'log'}")
            await asyncio.sleep(POLL_INTERVAL)

    async def unreachable_clusters(self) -> list[str]:
        """The clusters in the folder that do not answer."""
        files = sorted(self.folder.glob("*/kubeconfig"))
        async with asyncio.TaskGroup() as group:
            asked = [(file.parent.name, group.create_task(is_responding(file, PING_TIMEOUT))) for file in files]
        return [name for name, task in asked if not task.result()]


async def install_manager(virtual: Client) -> None:
    """The manager and what it needs, as `tapestry manifests` has it, for one process of it."""
    for obj in installation_objects(replicas=1):
        resource = MANIFEST_RESOURCES[obj["kind"]]
        wanted = with_local_settings(obj) if resource == DEPLOYMENTS else obj
        await virtual.apply(resource, wanted, manager="tapestry-up", force=True)
        if resource == CRDS:
            await wait_for(virtual, CRDS, name_of(obj), until=is_established, timeout=ESTABLISHED_TIMEOUT)


async def has_binding(virtual: Client, name: str) -> bool:
    """Whether a cluster has joined, and has not left."""
    return await virtual.find(CLUSTER_BINDINGS, name) is not None


def is_established(definition: Object | None) -> bool:
    return definition is not None and is_condition_true(definition, "Established")


def with_local_settings(manager: Object) -> Object:
    """The manager's Deployment with the settings of a world on one machine.

    Each syncer has one replica, for there is but one machine to fail.  The clusters are on loopback addresses.
    """
    template = manager["spec"]["template"]
    settings = {"TAPESTRY_SYNCER_REPLICAS": "1", "TAPESTRY_ALLOW_LOOPBACK": "true"}
    env = [{"name": name, "value": value} for name, value in settings.items()]
    containers = [{**each, "env": [*each.get("env", ()), *env]} for each in template["spec"]["containers"]]
    return with_value(manager, ("spec", "template", "spec", "containers"), containers)
