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
from urllib.parse import urlsplit

from tapestry.apis.keys import RUN_PODS_NODE
from tapestry.apiserver.serving.request_handler import MountedHandler
from tapestry.client.client import Client
from tapestry.client.kubeconfig import load_access
from tapestry.controller import Manager
from tapestry.controlplane.labeled_pods import LabeledPods
from tapestry.kube.errors import AlreadyExists
from tapestry.kube.names import dns_label_error
from tapestry.kube.objects import EMPTY_MAPPING, labels_of
from tapestry.kube.resources import NODES, RUNTIME_CLASSES
from tapestry.local import process_kubelet, simulated_kubelet, simulated_storage
from tapestry.local.container_commands import ProcessPolicy
from tapestry.local.control_planes import RunningCluster, kubernetes_control_plane, tapestry_control_plane
from tapestry.local.isolation import isolation_failure, machine_isolation
from tapestry.local.kubelet_api import KubeletServer, kubelet_tls, loopback_socket, serve_kubelet
from tapestry.local.metrics_api import MetricsServer, UsageSource, serve_metrics_api
from tapestry.local.pod_sandbox import Endpoint
from tapestry.local.scraped_nodes import scraped_nodes
from tapestry.local.world_folder import VIRTUAL, WorldFolder
from tapestry.process.logs import logger
from tapestry.process.system import stop_event

log = logger(__name__)

NODE_CAPACITY = {"cpu": "8", "memory": "32Gi", "pods": "110"}
MAX_NODES = 5000
"""Limit of simulated nodes per cluster; each costs memory and a heartbeat."""
PROCESS_NODE_NAME = "this-machine"
HTTPS_PORT = 443
LOOPBACK_PREFIX = "127."
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
    """Let that node run the pods of all users, too."""
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
    await ensure_process_node(cluster.client, plan)
    await ensure_nodes(cluster.client, plan)
    simulated_storage.install(cluster.manager)
    async with AsyncExitStack() as stack:
        process_kubelets = [await process_kubelet_installer(plan, cluster.server)] if plan.process_node else []
        kubelets = [
            await stack.enter_async_context(serve_kubelets(install, cluster, plan))
            for install in (simulated_kubelet.install, *process_kubelets)
        ]
        if cluster.front_proxy_ca is not None:
            pods, folder = kubelets[0].pods, plan.folder / "metrics"  # all kubelets watch the same pods
            virtual_nodes = scraped_nodes(cluster.manager, plan.folder, pods)
            stack.push_async_callback(virtual_nodes.close)
            sources: list[UsageSource] = [*kubelets, virtual_nodes]
            metrics = MetricsServer(sources, LabeledPods(pods), cluster.manager.now)
            await stack.enter_async_context(serve_metrics_api(metrics, cluster.client, folder, cluster.front_proxy_ca))
        async with asyncio.TaskGroup() as group:
            group.create_task(cluster.manager.run(), name="controllers")
            try:
                yield
            finally:
                cluster.manager.stop()


KubeletInstaller = Callable[[Manager, Callable[[], int]], KubeletServer]


async def process_kubelet_installer(plan: ClusterPlan, server: str) -> KubeletInstaller:
    """Return the installer of a kubelet that runs Tapestry's own pods, or all pods, as processes."""
    isolation, failure = None, ""
    if plan.run_pods:
        isolation = machine_isolation(plan.folder, os.environ)
        if failure := await isolation_failure(isolation, plan.folder):
            isolation = None
    program = Path(sys.executable).with_name("tapestry")
    policy = ProcessPolicy(program, run_pods=plan.run_pods, user=os.getuid(), isolation=isolation)
    settings = process_kubelet.ProcessSettings(
        plan.folder / "pods", server, policy, os.environ, lambda: api_servers(plan.folder, server), failure
    )
    return lambda manager, port: process_kubelet.install(manager, port, settings)


def api_servers(folder: Path, server: str) -> list[Endpoint]:
    """Return the API servers that pods may call: that of the cluster, and that of the virtual cluster of its world."""
    urls, virtual = [server], folder.parent / VIRTUAL / "kubeconfig"
    if WorldFolder(folder.parent).record_file.exists() and virtual.exists():
        urls.append(load_access([virtual], environ={}).server)
    parsed = {Endpoint(each.hostname or "", each.port or HTTPS_PORT) for each in map(urlsplit, urls)}
    return [each for each in parsed if each.host.startswith(LOOPBACK_PREFIX)]


@asynccontextmanager
async def serve_kubelets(
    install: KubeletInstaller, cluster: RunningCluster, plan: ClusterPlan
) -> AsyncIterator[KubeletServer]:
    sock = loopback_socket()
    kubelet = install(cluster.manager, lambda: sock.getsockname()[1])
    async with serve_kubelet(kubelet, sock, kubelet_tls(plan.folder / "kubelets", [cluster.kubelet_client_ca])):
        yield kubelet


async def ensure_process_node(client: Client, plan: ClusterPlan) -> None:
    """Delete the process node of an earlier run with another `run_pods`, and create the RuntimeClass of this run."""
    found = await client.find(NODES, PROCESS_NODE_NAME)
    if found is not None and (RUN_PODS_NODE in labels_of(found)) is not plan.run_pods:
        await client.delete(NODES, found)
    if plan.run_pods:
        await client.apply(
            RUNTIME_CLASSES, process_kubelet.process_runtime_class(), manager="tapestry-cluster", force=True
        )


async def ensure_nodes(client: Client, plan: ClusterPlan, created: Callable[[int], None] = lambda _: None) -> int:
    """Create the missing nodes and return their number; existing ones are unchanged.

    `created` is called with the number of nodes created so far.
    """
    capacity = {**plan.capacity, **({"nvidia.com/gpu": str(plan.gpus)} if plan.gpus else {})}
    nodes = [simulated_kubelet.simulated_node(f"{plan.name}-{number}", capacity) for number in range(1, plan.nodes + 1)]
    if plan.process_node:
        capacity = process_kubelet.machine_capacity()
        nodes.append(process_kubelet.process_node(PROCESS_NODE_NAME, capacity, run_pods=plan.run_pods))
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
