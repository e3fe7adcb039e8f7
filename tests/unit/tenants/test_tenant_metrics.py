"""Metrics of host clusters and of the syncers of tenants."""

import asyncio

from prometheus_client import CollectorRegistry

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.apis.planes import PLANES, plane_id
from tapestry.apis.policies import POLICIES
from tapestry.client.client import Client
from tapestry.controller import Informer
from tapestry.controller.testing import in_virtual_time, running_clock
from tapestry.kube.objects import object_named
from tapestry.kube.resources import NODES
from tapestry.syncer.cache_transforms import with_changed_at
from tapestry.tenants.tenant_metrics import TenantCollector

from .tenant_world import HOST, TenantProcess, TenantWorld, has_condition, new_world

CPU, EAST = {"host": HOST, "resource": "cpu"}, {"host": HOST}
LAG = "tapestry_tenant_sync_lag_seconds"
CLOSED = [{"start": "00:00", "end": "00:01", "days": ["Sun"]}]


class Scrapes:
    """Reads of the metrics of a process."""

    def __init__(self, world: TenantWorld, process: TenantProcess, group: asyncio.TaskGroup) -> None:
        management, self.registry = Client(world.up.connect()), CollectorRegistry()
        hosts, policies = (
            Informer(management, HOST_CLUSTERS),
            Informer(management, POLICIES, transform=with_changed_at).with_managed_fields(),
        )
        self.tasks = [group.create_task(each.run()) for each in (hosts, policies)]
        assert process.clusters is not None
        self.clusters, tenants = process.clusters, process.tenants
        self.registry.register(TenantCollector(self.clusters, tenants, hosts, policies, running_clock().now))

    def value(self, name: str, labels: dict[str, str]) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def lags(self) -> list[float]:
        return [each.value for family in self.registry.collect() for each in family.samples if each.name == LAG]

    def stop(self) -> None:
        for each in self.tasks:
            each.cancel()


@in_virtual_time
async def test_host_has_leased_and_requested_amounts() -> None:
    world = await new_world("blue")
    async with world.process() as process, asyncio.TaskGroup() as group:
        scrapes = Scrapes(world, process, group)
        await world.wait_until_ready()
        requests = {"requests": {"cpu": "1500m"}}
        await world.add_pod(containers=[{"name": "c", "image": "busybox:1", "resources": requests}])
        await world.wait_for_twin()
        await asyncio.sleep(1)
        node = await world.host.get(NODES, "n1")
        assert scrapes.value("tapestry_host_reachable", EAST) == 1
        assert scrapes.value("tapestry_host_leased", CPU) == 2 * float(node["status"]["allocatable"]["cpu"])
        assert scrapes.value("tapestry_host_requested", CPU) == 1.5

        await world.set_policy(timeWindows=CLOSED)
        await asyncio.sleep(1)
        assert scrapes.value("tapestry_host_leased", CPU) == 0
        scrapes.stop()


@in_virtual_time
async def test_lag_grows_while_the_host_does_not_answer() -> None:
    world = await new_world("blue")
    async with world.process() as process, asyncio.TaskGroup() as group:
        scrapes = Scrapes(world, process, group)
        await world.wait_until_ready()
        await asyncio.sleep(10)
        assert scrapes.lags() == [0]
        world.down.cut()
        await world.add_pod()
        await world.wait_for_host(has_condition("Reachable", "False", "Unreachable"), timeout=60)
        assert scrapes.value("tapestry_host_reachable", EAST) == 0
        await asyncio.sleep(300)
        assert scrapes.lags()[0] > 300
        world.down.restore()
        await world.wait_for_twin()
        await asyncio.sleep(10)
        assert scrapes.lags() == [0]
        scrapes.stop()


@in_virtual_time
async def test_series_end_with_syncer_and_host() -> None:
    world = await new_world("blue")
    async with world.process() as process, asyncio.TaskGroup() as group:
        scrapes = Scrapes(world, process, group)
        await world.wait_until_ready()
        await asyncio.sleep(1)
        assert len(scrapes.lags()) == 1
        plane = plane_id(await world.management.get(PLANES, "blue"))
        await world.management.delete(CLUSTER_BINDINGS, object_named("blue"))
        await process.tenants.slot(plane).stopped.wait()
        assert scrapes.lags() == []
        await scrapes.clusters.disconnect(HOST)
        assert scrapes.value("tapestry_host_reachable", EAST) is None
        scrapes.stop()
