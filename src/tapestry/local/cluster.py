"""A whole cluster in one process: our API server, its controllers, a scheduler, and kubelets for simulated nodes.

Everything that lasts is in one folder; a cluster that is started again there has its address, its users and its objects
as they were.
"""

import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tapestry.apiserver.access.certificates import Authority
from tapestry.apiserver.app import Running, running
from tapestry.apiserver.bootstrap import SYSTEM
from tapestry.apiserver.config import ApiServerConfig, Kubelets
from tapestry.client.client import Client
from tapestry.controller import Manager
from tapestry.controlplane.app import WORKLOADS, manager_beside
from tapestry.controlplane.direct import Direct
from tapestry.kube.errors import AlreadyExists
from tapestry.kube.resources import NODES
from tapestry.local import kubelets, processes
from tapestry.local.commands import Trust
from tapestry.local.kubelet_api import Kubelet, kubelet_tls, loopback_socket, serving
from tapestry.local.kubernetes import free_ports
from tapestry.process.logs import logger

log = logger(__name__)

ROOM = {"cpu": "8", "memory": "32Gi", "pods": "110"}
"""What a simulated node has."""
MASTERS = "system:masters"
SERVER_TO_KUBELET = "apiserver-kubelet-client"


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

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"


def settings_of(plan: ClusterPlan) -> ApiServerConfig:
    """The server's configuration; what is chosen by chance is chosen once."""
    plan.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept = plan.folder / "cluster.json"
    if not kept.exists():
        private(kept, json.dumps({"port": free_ports(1)[0], "token": secrets.token_urlsafe(32)}))
    known = json.loads(kept.read_text())
    tokens = plan.folder / "tokens.csv"
    private(tokens, f'{known["token"]},admin,admin,"{MASTERS}"\n')
    authority = Authority(plan.folder / "pki")
    certificate, key = authority.client(SERVER_TO_KUBELET, [MASTERS])
    return ApiServerConfig(
        file_rootpath=str(plan.folder),
        secure_address=f"127.0.0.1:{known['port']}",
        token_auth_file=str(tokens),
        controllers=["*", *WORKLOADS],
        kubelet=Kubelets(client_certificate=str(certificate), client_key=str(key)),
    )


def write_kubeconfig(plan: ClusterPlan, settings: ApiServerConfig, name: str) -> None:
    token = json.loads((plan.folder / "cluster.json").read_text())["token"]
    authority = plan.folder / "pki" / "ca.crt"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [
            {
                "name": name,
                "cluster": {"server": f"https://{settings.secure_address}", "certificate-authority": str(authority)},
            }
        ],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "admin"}}],
    }
    private(plan.kubeconfig, yaml.safe_dump(content, sort_keys=False))


def private(path: Path, text: str) -> None:
    """Write a file that nobody else may read."""
    path.touch(mode=0o600)
    path.write_text(text)


async def run_cluster(plan: ClusterPlan) -> None:
    """Run until told to stop."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    settings = settings_of(plan)
    async with running(settings) as served, AsyncExitStack() as stack:
        write_kubeconfig(plan, settings, plan.folder.name)
        client = Client(Direct(served.reception, SYSTEM))
        await have_nodes(client, plan)
        manager = manager_beside(served.reception, authority_of(served), settings.controllers)
        for install in (kubelets.install, *([processes_of(plan, settings)] if plan.process_node else [])):
            await stack.enter_async_context(at_work(install, manager, plan))
        async with asyncio.TaskGroup() as group:
            group.create_task(manager.run(), name="controllers")
            log.info("cluster ready", folder=str(plan.folder), nodes=plan.nodes)
            await stopping.wait()
            manager.stop()


Install = Callable[[Manager, Callable[[], int]], Kubelet]


def processes_of(plan: ClusterPlan, settings: ApiServerConfig) -> Install:
    """A kubelet that runs Tapestry's own pods as processes."""
    trust = Trust(Path(sys.executable).with_name("tapestry"), run_pods=plan.run_pods)
    given = processes.Settings(plan.folder / "pods", f"https://{settings.secure_address}", trust, os.environ)
    return lambda manager, port: processes.install(manager, port, given)


def at_work(install: Install, manager: Manager, plan: ClusterPlan) -> AbstractAsyncContextManager[int]:
    """Kubelets of one sort, and what they answer."""
    sock = loopback_socket()
    kubelet = install(manager, lambda: sock.getsockname()[1])
    return serving(kubelet, sock, kubelet_tls(plan.folder / "kubelets", [plan.folder / "pki" / "ca.crt"]))


def authority_of(served: Running) -> str:
    return Authority(served.folder / "pki").certificate()


async def have_nodes(client: Client, plan: ClusterPlan) -> None:
    """The nodes that are wanted; those that are there stay as they are."""
    room = {**plan.room, **({"nvidia.com/gpu": str(plan.gpus)} if plan.gpus else {})}
    wanted = [kubelets.simulated_node(f"{plan.folder.name}-{number}", room) for number in range(1, plan.nodes + 1)]
    if plan.process_node:
        wanted.append(processes.process_node("this-machine", processes.machine_room()))
    for node in wanted:
        try:
            await client.create(NODES, node)
        except AlreadyExists:
            continue
