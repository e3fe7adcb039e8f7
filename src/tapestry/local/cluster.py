"""Complete cluster in one process: API server, controllers, scheduler, simulated kubelets and storage.

All state is in one folder.  A cluster that is started again there keeps its address, users and objects.
"""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tapestry.apiserver.serving.request_handler import MountedHandler
from tapestry.client.client import Client
from tapestry.controller import Manager
from tapestry.controlplane.labeled_pods import LabeledPods
from tapestry.kube.errors import AlreadyExists
from tapestry.kube.names import dns_label_error
from tapestry.kube.objects import EMPTY_MAPPING
from tapestry.kube.resources import NODES
from tapestry.local import process_kubelet, simulated_kubelet, simulated_storage
from tapestry.local.container_commands import ProcessPolicy
from tapestry.local.control_planes import RunningCluster, kubernetes_control_plane, tapestry_control_plane
from tapestry.local.kubelet_api import KubeletServer, kubelet_tls, loopback_socket, serve_kubelet
from tapestry.local.metrics_api import MetricsServer, serve_metrics_api
from tapestry.process.logs import logger
from tapestry.process.system import stop_event

log = logger(__name__)

NODE_CAPACITY = {"cpu": "8", "memory": "32Gi", "pods": "110"}
MAX_NODES = 5000
"""Limit of simulated nodes per cluster; each costs memory and a heartbeat."""
CREATE_CONCURRENCY = 16
"""Nodes created at the same time."""


@dataclass(frozen=True)
class ClusterPlan:
    """Folder and size of a cluster to run."""

    folder: Path
    nodes: int = 0
    """Number of simulated nodes."""
    capacity: dict[str, str] = field(default_factory=lambda: dict(NODE_CAPACITY))
    gpus: int = 0
    process_node: bool = False
    """Add a node that runs Tapestry's own pods as processes."""
    run_pods: bool = False
    """Let that node run other pods, too."""
    real_kubernetes: bool = False
    """Use a real Kubernetes control plane instead of ours."""

    @property
    def name(self) -> str:
        """Name of the cluster: that of its folder, made valid for node names."""
        name = re.sub("[^a-z0-9]+", "-", self.folder.name.lower()).strip("-")[:40].rstrip("-")
        return name if dns_label_error(name) is None else "cluster"


async def run_cluster(plan: ClusterPlan, mounted_handlers: Mapping[str, MountedHandler] = EMPTY_MAPPING) -> None:
    """Run until stopped.  `mounted_handlers` are added to our API server, by the first segment of the path."""
    stopping = stop_event()
    control_plane = (
        kubernetes_control_plane(plan.folder)
        if plan.real_kubernetes
        else tapestry_control_plane(plan.folder, mounted_handlers)
    )
    async with control_plane as served, run_kubelets(plan, served):
        log.info("cluster ready", folder=str(plan.folder), nodes=plan.nodes)
        await stopping.wait()


@asynccontextmanager
async def run_kubelets(plan: ClusterPlan, cluster: RunningCluster) -> AsyncIterator[None]:
    """Create the planned nodes and run their kubelets and storage while the context is open."""
    await simulated_storage.ensure_storage(cluster.client)
    await ensure_nodes(cluster.client, plan)
    simulated_storage.install(cluster.manager)
    async with AsyncExitStack() as stack:
        process_kubelets = [process_kubelet_installer(plan, cluster.server)] if plan.process_node else []
        kubelets = [
            await stack.enter_async_context(serve_kubelets(install, cluster, plan))
            for install in (simulated_kubelet.install, *process_kubelets)
        ]
        if cluster.front_proxy_ca is not None:
            pods, folder = LabeledPods(kubelets[0].pods), plan.folder / "metrics"  # all kubelets watch the same pods
            metrics = MetricsServer(kubelets, pods, cluster.manager.now)
            await stack.enter_async_context(serve_metrics_api(metrics, cluster.client, folder, cluster.front_proxy_ca))
        async with asyncio.TaskGroup() as group:
            group.create_task(cluster.manager.run(), name="controllers")
            try:
                yield
            finally:
                cluster.manager.stop()


KubeletInstaller = Callable[[Manager, Callable[[], int]], KubeletServer]


def process_kubelet_installer(plan: ClusterPlan, server: str) -> KubeletInstaller:
    """Return the installer of a kubelet that runs Tapestry's own pods as processes."""
    policy = ProcessPolicy(Path(sys.executable).with_name("tapestry"), run_pods=plan.run_pods)
    settings = process_kubelet.ProcessSettings(plan.folder / "pods", server, policy, os.environ)
    return lambda manager, port: process_kubelet.install(manager, port, settings)


@asynccontextmanager
async def serve_kubelets(
    install: KubeletInstaller, cluster: RunningCluster, plan: ClusterPlan
) -> AsyncIterator[KubeletServer]:
    sock = loopback_socket()
    kubelet = install(cluster.manager, lambda: sock.getsockname()[1])
    async with serve_kubelet(kubelet, sock, kubelet_tls(plan.folder / "kubelets", [cluster.kubelet_client_ca])):
        yield kubelet


async def ensure_nodes(client: Client, plan: ClusterPlan, created: Callable[[int], None] = lambda _: None) -> int:
    """Create the missing nodes and return their number; existing ones are unchanged.

    `created` is called with the number of nodes created so far.
    """
    capacity = {**plan.capacity, **({"nvidia.com/gpu": str(plan.gpus)} if plan.gpus else {})}
    nodes = [simulated_kubelet.simulated_node(f"{plan.name}-{number}", capacity) for number in range(1, plan.nodes + 1)]
    if plan.process_node:
        nodes.append(process_kubelet.process_node("this-machine", process_kubelet.machine_capacity()))
    remaining, count = iter(nodes), 0

    async def create_some() -> None:
        nonlocal count
        for node in remaining:
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
