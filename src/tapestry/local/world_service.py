"""Lifecycle service of virtual clusters that runs with a local world, in a process of planes."""

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from tapestry.apis import keys
from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.watch import wait_for
from tapestry.kube.objects import Object, value_at
from tapestry.local.cluster_processes import POLL_INTERVAL, START_TIMEOUT, TAPESTRY_PROGRAM
from tapestry.local.kubernetes import free_ports, write_private
from tapestry.local.world_folder import PLANES_FOLDER, SERVICE_CONFIG, WorldError
from tapestry.manager.join_steps import Cluster
from tapestry.process.supervised_processes import StallDetector, SupervisedProcess
from tapestry.tenants.host_registration import AddedHost, HostPlan, add_host, wait_for_host

HOST = "compute"
"""Name of the compute cluster as a host cluster."""
HOST_SPEC: Object = {
    "allowLoopback": True,
    "nodeSelector": {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": keys.NODE_TYPE, "operator": "In", "values": [keys.NODE_TYPE_VIRTUAL]}]}
        ]
    },
}
"""Fields of its HostCluster: only leased nodes run pods, and not the node of the manager and the syncers."""
STALL_TIMEOUT = 60.0
NODES_TIMEOUT = 10.0
"""Seconds to wait for the first leased node, without which no virtual cluster can be created with pods."""
PACKAGES = ("cryptography", "grpc", "grpc_health", "grpc_reflection", "google.rpc")
LOOPBACK = "127.0.0.1"


def has_service_packages() -> bool:
    """Return whether the packages of `kube-tapestry[service]` are installed."""
    try:
        return all(map(find_spec, PACKAGES))
    except ModuleNotFoundError:  # the parent of a package
        return False


@dataclass(frozen=True)
class WorldService:
    folder: Path

    @property
    def client_config(self) -> Path:
        """Configuration file of `tapestry vc`."""
        return self.folder / SERVICE_CONFIG

    @property
    def management_kubeconfig(self) -> Path:
        return self.folder / PLANES_FOLDER / "kubeconfig"

    @property
    def host_marker(self) -> Path:
        """File that exists once the compute cluster was added as a host cluster."""
        return self.folder / "host-added"

    def ports(self) -> tuple[int, int, int]:
        """Return the ports of planes, REST and gRPC, which are chosen once. Raises WorldError."""
        file = self.folder / "ports.json"
        if not file.exists():
            self.folder.mkdir(exist_ok=True, mode=0o700)
            write_private(file, json.dumps(free_ports(3)))
        try:
            planes, rest, grpc = json.loads(file.read_text())
            return int(planes), int(rest), int(grpc)
        except (ValueError, TypeError) as error:
            raise WorldError(f"{self.folder} cannot be read ({error}); delete it, and its virtual clusters") from error

    def command(self) -> list[str]:
        planes, rest, grpc = (f"{LOOPBACK}:{port}" for port in self.ports())
        flags = {
            "--data": str(self.folder / PLANES_FOLDER),
            "--name": "world",
            "--bind-address": planes,
            "--rest-address": rest,
            "--grpc-address": grpc,
            "--client-config": str(self.client_config),
            "--isolation-mode": "lite",
            "--log-level": "warning",
        }
        return [str(TAPESTRY_PROGRAM), "planes", "run", *(text for flag in flags.items() for text in flag)]

    async def wait(self, process: SupervisedProcess) -> None:
        """Wait until the service answers. Raises WorldError if it ends first, or if the start stalls."""
        _, rest, _ = self.ports()
        progress = StallDetector(STALL_TIMEOUT, START_TIMEOUT)
        while not (self.client_config.exists() and await is_listening(rest)):
            if process.exit_message or progress.has_stalled(process.progress_value()):
                end = process.exit_message or "does not answer"
                advice = f"{self.folder} has its data, and can be deleted with all virtual clusters"
                raise WorldError(f"the lifecycle service {end}; its log is {process.log}; {advice}")
            await asyncio.sleep(POLL_INTERVAL)
        process.has_responded = True

    async def add_host(self, kubeconfig: Path) -> None:
        """Add the compute cluster with this kubeconfig as a host cluster, and wait until it is connected and has nodes.

        Unless it was added before and removed since. Raises JoinError and KubeError.
        """
        access, management_access = (
            load_access([each], environ={}) for each in (kubeconfig, self.management_kubeconfig)
        )
        async with Client(HttpTransport(management_access)) as management, Client(HttpTransport(access)) as host:
            is_new = not self.host_marker.exists()
            if not is_new and await management.find(HOST_CLUSTERS, HOST) is None:
                return
            clusters = Cluster("management", management, ignore), Cluster("host", host, ignore)
            plan = HostPlan(HOST, HOST_SPEC) if is_new else HostPlan(HOST, has_policy=False)
            await add_host(plan, AddedHost(*clusters, access, HttpTransport), datetime.now(UTC))
            self.host_marker.touch()
            await wait_for_host(HOST, management, START_TIMEOUT)
            with suppress(TimeoutError):
                await wait_for(management, HOST_CLUSTERS, HOST, until=has_open_nodes, timeout=NODES_TIMEOUT)


def has_open_nodes(host: Object | None) -> bool:
    return host is None or bool(value_at(host, "status", "openNodes", default=0))


def ignore(_: object) -> None:
    """Ignore the report of a step."""


async def is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        return False
    writer.close()
    return True
