"""A whole cluster in one process: an API server, its controllers, a scheduler, and kubelets for simulated nodes.

Everything that lasts is in one folder; a cluster that is started again there has its address, its users and its objects
as they were.
"""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tapestry.client.client import Client
from tapestry.controller import Manager
from tapestry.kube.errors import AlreadyExists
from tapestry.kube.names import dns_label_complaint
from tapestry.kube.resources import NODES
from tapestry.local import kubelets, processes
from tapestry.local.commands import Trust
from tapestry.local.control_planes import Served, kubernetes, ours
from tapestry.local.kubelet_api import Kubelet, kubelet_tls, loopback_socket, serving
from tapestry.process.logs import logger
from tapestry.process.signals import told_to_stop

log = logger(__name__)

ROOM = {"cpu": "8", "memory": "32Gi", "pods": "110"}
"""What a simulated node has."""
MAX_NODES = 5000
"""Simulated nodes of one cluster: each costs memory and a heartbeat."""
CREATES = 16
"""Nodes that are created at the same time."""


@dataclass(frozen=True)
class ClusterPlan:
    """What cluster to run, and where."""

    folder: Path
    nodes: int = 0
    """Simulated ones."""
    room: dict[str, str] = field(default_factory=lambda: dict(ROOM))
    gpus: int = 0
    process_node: bool = False
    """Whether there is a node that runs Tapestry's own pods as processes of this machine."""
    run_pods: bool = False
    """Whether it runs others, too."""
    real_kubernetes: bool = False
    """Whether a real Kubernetes serves it, and not we."""

    @property
    def name(self) -> str:
        """Of the cluster: that of its folder, in letters that a node's name may have."""
        name = re.sub("[^a-z0-9]+", "-", self.folder.name.lower()).strip("-")[:40].rstrip("-")
        return name if dns_label_complaint(name) is None else "cluster"


async def run_cluster(plan: ClusterPlan) -> None:
    """Run until told to stop."""
    stopping = told_to_stop()
    async with (kubernetes if plan.real_kubernetes else ours)(plan.folder) as served, with_kubelets(plan, served):
        log.info("cluster ready", folder=str(plan.folder), nodes=plan.nodes)
        await stopping.wait()


@asynccontextmanager
async def with_kubelets(plan: ClusterPlan, served: Served) -> AsyncIterator[None]:
    """The nodes that are wanted, kept by kubelets of this process for as long as the context lasts."""
    await have_nodes(served.client, plan)
    async with AsyncExitStack() as stack:
        for install in (kubelets.install, *([processes_of(plan, served.server)] if plan.process_node else [])):
            await stack.enter_async_context(at_work(install, served, plan))
        async with asyncio.TaskGroup() as group:
            group.create_task(served.manager.run(), name="controllers")
            try:
                yield
            finally:
                served.manager.stop()


Install = Callable[[Manager, Callable[[], int]], Kubelet]


def processes_of(plan: ClusterPlan, server: str) -> Install:
    """A kubelet that runs Tapestry's own pods as processes."""
    trust = Trust(Path(sys.executable).with_name("tapestry"), run_pods=plan.run_pods)
    given = processes.Settings(plan.folder / "pods", server, trust, os.environ)
    return lambda manager, port: processes.install(manager, port, given)


def at_work(install: Install, served: Served, plan: ClusterPlan) -> AbstractAsyncContextManager[int]:
    """Kubelets of one sort, and what they answer."""
    sock = loopback_socket()
    kubelet = install(served.manager, lambda: sock.getsockname()[1])
    return serving(kubelet, sock, kubelet_tls(plan.folder / "kubelets", [served.callers]))


async def have_nodes(client: Client, plan: ClusterPlan, created: Callable[[int], None] = lambda _: None) -> int:
    """Create the nodes that are missing, and return how many these were; those that are there stay as they are.

    `created` is called with the number of nodes that were created so far.
    """
    room = {**plan.room, **({"nvidia.com/gpu": str(plan.gpus)} if plan.gpus else {})}
    wanted = [kubelets.simulated_node(f"{plan.name}-{number}", room) for number in range(1, plan.nodes + 1)]
    if plan.process_node:
        wanted.append(processes.process_node("this-machine", processes.machine_room()))
    waiting, count = iter(wanted), 0

    async def create_some() -> None:
        nonlocal count
        for node in waiting:
            try:
                await client.create(NODES, node)
            except AlreadyExists:
                continue
            count += 1
            created(count)

    async with asyncio.TaskGroup() as group:
        for _ in range(CREATES):
            group.create_task(create_some())
    return count
