"""The world on one machine: a virtual cluster woven from physical ones, each a process of its own.

The manager is installed as anywhere else; the virtual cluster's process kubelet runs it, and through it the syncers.
Nothing outlives whoever started the world, however they end; what is in its folder does.
"""

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tapestry.apis import keys
from tapestry.client.client import Client
from tapestry.client.connection import HttpTransport
from tapestry.client.kubeconfig import load
from tapestry.client.waiting import wait_for
from tapestry.kube.conditions import is_true
from tapestry.kube.errors import KubeError
from tapestry.kube.objects import Object, name_of, with_value
from tapestry.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CRDS,
    DEPLOYMENTS,
    NAMESPACES,
    NODES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
)
from tapestry.local.kubernetes import guard
from tapestry.manager.installation import installation
from tapestry.manager.joining import Plan, join
from tapestry.manager.offers import Offer
from tapestry.manager.steps import Cluster

TAPESTRY = Path(sys.executable).with_name("tapestry")
VIRTUAL = "virtual"
PATIENCE = 30.0
"""Seconds for a cluster to answer, and for one to end."""
LONGEST_LEASING = 300.0
"""Seconds for all virtual nodes to be ready."""

INSTALLED = {
    each.kind: each
    for each in (
        *(NAMESPACES, CRDS, SERVICE_ACCOUNTS, DEPLOYMENTS),
        *(ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS),
    )
}
"""What the manager's manifests consist of."""

Say = Callable[[str], None]


class WorldFailed(Exception):
    """A part of the world did not start; the message says which, and ends with the last lines of its log."""


@dataclass
class World:
    """Clusters below one folder: `virtual`, and as many physical ones as wanted, with so many nodes each."""

    folder: Path
    clusters: int = 2
    nodes: int = 5
    say: Say = print
    _guard: subprocess.Popen[bytes] | None = None
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def physical(self) -> list[str]:
        return [f"cluster-{number}" for number in range(1, self.clusters + 1)]

    def kubeconfig(self, cluster: str = VIRTUAL) -> Path:
        return self.folder / cluster / "kubeconfig"

    async def start(self) -> None:
        """Have everything at work; raises WorldFailed, with nothing left running."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.running_pid() is not None:
            raise WorldFailed(f"the world in {self.folder} is running already; `tapestry down` stops it")
        self.mark.write_text(str(os.getpid()))
        self._guard = guard()
        try:
            with self.step(f"{1 + self.clusters} clusters with {self.clusters * self.nodes} simulated nodes"):
                self.spawn(VIRTUAL, "--process-node")
                for name in self.physical:
                    self.spawn(name, "--nodes", str(self.nodes))
                for name in (VIRTUAL, *self.physical):
                    await self.answers(name)
            async with self.client(VIRTUAL) as virtual:
                with self.step("Tapestry's manager"):
                    await install(virtual)
                for name in self.physical:
                    with self.step(f"{name} joins"):
                        await self.join(virtual, name)
                with self.step("virtual nodes"):
                    await wait_for_nodes(virtual, self.clusters * self.nodes)
        except BaseException:
            self.stop()
            raise

    @property
    def mark(self) -> Path:
        """The file that says which process runs the world."""
        return self.folder / "pid"

    def running_pid(self) -> int | None:
        """The process that runs the world, if one does."""
        try:
            pid = int(self.mark.read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if pid != os.getpid() and b"tapestry" in command else None

    def stop_running(self) -> bool:
        """Have the process that runs the world end it; whether there was one."""
        pid = self.running_pid()
        if pid is None:
            return False
        os.kill(pid, signal.SIGTERM)
        while self.running_pid() is not None:
            time.sleep(0.1)
        return True

    def spawn(self, name: str, *flags: str) -> None:
        assert self._guard is not None
        folder = self.folder / name
        folder.mkdir(exist_ok=True, mode=0o700)
        with (folder / "log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [TAPESTRY, "cluster", "--data", folder, *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=self._guard.pid,
            )

    async def answers(self, name: str) -> None:
        """Wait until a cluster does."""
        due = time.monotonic() + PATIENCE
        while time.monotonic() < due and self._processes[name].poll() is None:
            if self.kubeconfig(name).exists():
                async with self.client(name) as client:
                    try:
                        await client.version()
                    except KubeError:
                        pass
                    else:
                        return
            await asyncio.sleep(0.05)
        end = (self.folder / name / "log").read_text()[-2000:]
        raise WorldFailed(f"{name} does not answer; the end of its log:\n{end}")

    async def silent_clusters(self) -> list[str]:
        """The clusters in the folder that do not answer."""
        found = []
        for file in sorted(self.folder.glob("*/kubeconfig")):
            async with self.client(file.parent.name) as client:
                try:
                    await client.version()
                except KubeError:
                    found.append(file.parent.name)
        return found

    @asynccontextmanager
    async def client(self, name: str) -> AsyncIterator[Client]:
        client = Client(HttpTransport(load([self.kubeconfig(name)], environ={})))
        try:
            yield client
        finally:
            await client.close()

    async def join(self, virtual: Client, name: str) -> None:
        access = load([self.kubeconfig(name)], environ={})
        async with self.client(name) as physical:
            above, below = Cluster("virtual", virtual, quiet), Cluster("physical", physical, quiet)
            await join(
                Plan(name, name, offer=Offer()), above, below, access, connect=HttpTransport, now=datetime.now(UTC)
            )

    def stop(self) -> None:
        """End everything, in order."""
        for process in self._processes.values():
            process.terminate()
        for name, process in reversed(self._processes.items()):
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.say(f"  ... {name} takes too long to end, and is killed")
                process.kill()
                process.wait()
        self._processes.clear()
        if self._guard is not None:  # else it is somebody else who runs the world
            self.mark.unlink(missing_ok=True)
            self._guard.kill()
            self._guard.wait()
            self._guard = None

    def wait(self) -> str:
        """Wait until a cluster ends, and say which."""
        ends = {os.pidfd_open(process.pid): name for name, process in self._processes.items()}
        try:
            found, _, _ = select.select(list(ends), [], [])
            return ends[found[0]]
        finally:
            for each in ends:
                os.close(each)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.say(f"  {time.monotonic() - started:5.1f} s  {what}")


def quiet(_: object) -> None:
    """What join does step by step is of no interest here."""


async def install(virtual: Client) -> None:
    """The manager and what it needs, as `tapestry manifests` has it, for one process of it."""
    for obj in installation(replicas=1):
        resource = INSTALLED[obj["kind"]]
        wanted = with_one_syncer(obj) if resource == DEPLOYMENTS else obj
        await virtual.apply(resource, wanted, manager="tapestry-up", force=True)
        if resource == CRDS:
            await wait_for(
                virtual, CRDS, name_of(obj), until=lambda found: found is not None and is_true(found, "Established")
            )


def with_one_syncer(manager: Object) -> Object:
    """The manager's Deployment, told to have one replica of each syncer: there is but one machine to fail."""
    template = manager["spec"]["template"]
    told = {"name": "TAPESTRY_SYNCER_REPLICAS", "value": "1"}
    containers = [{**each, "env": [*each.get("env", ()), told]} for each in template["spec"]["containers"]]
    return with_value(manager, ("spec", "template", "spec", "containers"), containers)


async def wait_for_nodes(virtual: Client, count: int) -> None:
    """Until so many virtual nodes are ready; raises WorldFailed where they take too long."""
    due = time.monotonic() + LONGEST_LEASING
    while (ready := await ready_nodes(virtual)) < count:
        if time.monotonic() > due:
            raise WorldFailed(f"after {LONGEST_LEASING:.0f} s {ready} of {count} virtual nodes are ready; see the logs")
        await asyncio.sleep(0.1)


async def ready_nodes(virtual: Client) -> int:
    nodes = await virtual.list(NODES, labels=f"{keys.NODE_TYPE}=virtual")
    return sum(is_true(node, "Ready") for node in nodes)
