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
from tapestry.kube.names import dns_label_error
from tapestry.kube.resources import NODES
from tapestry.local import process_kubelet, simulated_kubelet
from tapestry.local.container_commands import ProcessPolicy
from tapestry.local.control_planes import RunningCluster, kubernetes_control_plane, tapestry_control_plane
from tapestry.local.kubelet_api import KubeletServer, kubelet_tls, loopback_socket, serve_kubelet
from tapestry.process.logs import logger
from tapestry.process.signals import stop_event

log = logger(__name__)

NODE_CAPACITY = {"cpu": "8", "memory": "32Gi", "pods": "110"}
"""What a simulated node has."""
MAX_NODES = 5000
"""Simulated nodes of one cluster: each costs memory and a heartbeat."""
CREATE_CONCURRENCY = 16
"""Nodes that are created at the same time."""


@dataclass(frozen=True)
class ClusterPlan:
    """What cluster to run, and where."""

    folder: Path
    nodes: int = 0
    """Simulated ones."""
    capacity: dict[str, str] = field(default_factory=lambda: dict(NODE_CAPACITY))
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
        return name if dns_label_error(name) is None else "cluster"


async def run_cluster(plan: ClusterPlan) -> None:
    """Run until told to stop."""
    stopping = stop_event()
    async with (
        (kubernetes_control_plane if plan.real_kubernetes else tapestry_control_plane)(plan.folder) as served,
        run_kubelets(plan, served),
    ):
        log.info("cluster ready", folder=str(plan.folder), nodes=plan.nodes)
        await stopping.wait()


@asynccontextmanager
async def run_kubelets(plan: ClusterPlan, cluster: RunningCluster) -> AsyncIterator[None]:
    """The nodes that are wanted, kept by kubelets of this process for as long as the context lasts."""
    await ensure_nodes(cluster.client, plan)
    async with AsyncExitStack() as stack:
        for install in (
            simulated_kubelet.install,
            *([process_kubelet_installer(plan, cluster.server)] if plan.process_node else []),
        ):
            await stack.enter_async_context(serve_kubelets(install, cluster, plan))
        async with asyncio.TaskGroup() as group:
            group.create_task(cluster.manager.run(), name="controllers")
            try:
                yield
            finally:
                cluster.manager.stop()


KubeletInstaller = Callable[[Manager, Callable[[], int]], KubeletServer]


def process_kubelet_installer(plan: ClusterPlan, server: str) -> KubeletInstaller:
    """A kubelet that runs Tapestry's own pods as processes."""
    trust = ProcessPolicy(Path(sys.executable).with_name("tapestry"), run_pods=plan.run_pods)
    given = process_kubelet.ProcessSettings(plan.folder / "pods", server, trust, os.environ)
    return lambda manager, port: process_kubelet.install(manager, port, given)


def serve_kubelets(
    install: KubeletInstaller, cluster: RunningCluster, plan: ClusterPlan
) -> AbstractAsyncContextManager[int]:
    """Kubelets of one sort, and what they answer."""
    sock = loopback_socket()
    kubelet = install(cluster.manager, lambda: sock.getsockname()[1])
    return serve_kubelet(kubelet, sock, kubelet_tls(plan.folder / "kubelets", [cluster.kubelet_client_ca]))


async def ensure_nodes(client: Client, plan: ClusterPlan, created: Callable[[int], None] = lambda _: None) -> int:
    """Create the nodes that are missing, and return how many these were; those that are there stay as they are.

    `created` is called with the number of nodes that were created so far.
    """
    room = {**plan.capacity, **({"nvidia.com/gpu": str(plan.gpus)} if plan.gpus else {})}
    wanted = [simulated_kubelet.simulated_node(f"{plan.name}-{number}", room) for number in range(1, plan.nodes + 1)]
    if plan.process_node:
        wanted.append(process_kubelet.process_node("this-machine", process_kubelet.machine_capacity()))
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
        for _ in range(CREATE_CONCURRENCY):
            group.create_task(create_some())
    return count
