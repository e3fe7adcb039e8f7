"""The service of virtual clusters as a process, with a host cluster in which their pods run."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.kube.objects import object_named
from tapestry.kube.resources import NAMESPACES
from tapestry.local.kubernetes import free_ports
from tapestry.manager.join_steps import Cluster
from tapestry.tenants.host_registration import AddedHost, HostPlan, add_host

from .plane_clients import client_of, together
from .servers import ClusterProcess, PlanesProcess
from .vcluster_clients import Clients, clients

LIMITS = dict.fromkeys(("vclusters", "runningVclusters", "snapshots", "concurrentOperations"), "100")


class HeldPlanesProcess(PlanesProcess):
    """A process whose operations stop where `faults` says."""

    @property
    def faults(self) -> Path:
        return self.folder.with_name("faults.json")

    def command(self) -> Sequence[str | Path]:
        return [sys.executable, Path(__file__).with_name("held_planes.py"), self.faults, *super().command()[1:]]


@asynccontextmanager
async def service_with_host(folder: Path) -> AsyncIterator[tuple[HeldPlanesProcess, Clients, Client, Client]]:
    """Run both. Yield the process, and clients of the service, of the management API and of the host cluster.

    There is an empty namespace `shop`, and no test reaches the limits of the project.
    """
    (rest,) = free_ports(1)
    process = HeldPlanesProcess(folder / "planes", "--rest-address", f"127.0.0.1:{rest}")
    cluster = ClusterProcess(folder / "host", "--nodes", "2")
    try:
        await together(asyncio.to_thread(each.start) for each in (process, cluster))
        process.wait_for_output("served by rest")
        access = load_access([cluster.kubeconfig], environ={})
        async with (
            clients(process, rest, rest) as world,
            client_of(process.kubeconfig) as management,
            Client(HttpTransport(access)) as host,
        ):
            both = Cluster("management", management, print), Cluster("host", host, print)
            plan = HostPlan("east", {"allowLoopback": True})
            await add_host(plan, AddedHost(*both, access, HttpTransport), datetime.now(UTC))
            await world.rest("PATCH", "/v1/projects/default/quota", json={"limits": LIMITS})
            await management.create(NAMESPACES, object_named("shop"))
            yield process, world, management, host
    finally:
        process.kill()
        cluster.kill()
