"""The processes of a tenant: planes and a host cluster, and the commands on both."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.manager.join_steps import Cluster
from tapestry.tenants.host_registration import AddedHost, HostPlan, add_host

from .servers import TAPESTRY, ClusterProcess, PlanesProcess

OF_TENANTS = "tapestry.io/cluster-binding-uid"


@dataclass(frozen=True)
class Setting:
    """The processes, and kubectl for each API."""

    planes: PlanesProcess
    host: ClusterProcess
    kubectl: Callable[..., str]
    plane: Path
    """Kubeconfig of the plane of the tenant."""

    def tapestry(self, *words: str | Path) -> str:
        """Return the output of a command on the management API."""
        command = [TAPESTRY, *words, "--data", self.planes.folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def in_plane(self, *words: str, stdin: str = "") -> str:
        return self.kubectl(*words, kubeconfig=self.plane, stdin=stdin)

    def in_host(self, *words: str, stdin: str = "") -> str:
        return self.kubectl(*words, kubeconfig=self.host.kubeconfig, stdin=stdin)

    def in_management(self, *words: str) -> str:
        return self.kubectl(*words, kubeconfig=self.planes.kubeconfig)


def inventory(kubectl: Callable[..., str]) -> str:
    """Return all objects of a cluster with the label of tenants' objects."""
    kinds = ",".join(kubectl("api-resources", "--verbs=list,delete", "-o", "name").split())
    return kubectl("get", kinds, "-A", "-l", OF_TENANTS, "-o", "name")


async def add_host_cluster(plan: HostPlan, management: Client, cluster: ClusterProcess) -> None:
    """Add a host cluster as `tapestry host add` does."""
    access = load_access([cluster.kubeconfig], environ={})
    async with Client(HttpTransport(access)) as host:
        added = AddedHost(Cluster("management", management, print), Cluster("host", host, print), access, HttpTransport)
        await add_host(plan, added, datetime.now(UTC))
