"""Metrics of the lifecycle service."""

from pathlib import Path

from prometheus_client import REGISTRY

from tapestry.apis.planes import PLANES, plane_id
from tapestry.apis.vclusters import Phase
from tapestry.kube.objects import object_named
from tapestry.process.metrics import served_metrics
from tapestry.vclusters.engines.native import VCLUSTER
from tapestry.vclusters.metrics import ServiceCollector
from tapestry.vclusters.stored_objects import StoredObjects

from .management_world import limit, management_world


async def test_phases_and_use_of_quotas(tmp_path: Path) -> None:
    async with management_world(tmp_path) as world:
        await limit(world, vclusters=4, memoryLimits="1Gi")
        amounts = {"memoryLimit": "256Mi"}
        for name, phase in (("a", Phase.RUNNING), ("b", Phase.RUNNING), ("c", Phase.ERROR)):
            host = {"hostCluster": "east"} if name == "b" else {}
            await world.set_status(await world.create(name, project="shop", resources=amounts), phase, **host)
        with served_metrics(ServiceCollector(StoredObjects(world.process.management.store))):
            assert REGISTRY.get_sample_value("tapestry_vclusters", {"phase": "Running", "host": "east"}) == 1
            assert REGISTRY.get_sample_value("tapestry_vclusters", {"phase": "Running", "host": ""}) == 1
            assert REGISTRY.get_sample_value("tapestry_vclusters", {"phase": "Error", "host": ""}) == 1
            used = {"project": "shop", "resource": "memoryLimits"}
            assert REGISTRY.get_sample_value("tapestry_vclusters_quota_used", used) == 768 << 20
            assert REGISTRY.get_sample_value("tapestry_vclusters_quota_limit", used) == 1 << 30
            counts = {"project": "shop", "resource": "vclusters"}
            assert REGISTRY.get_sample_value("tapestry_vclusters_quota_used", counts) == 3
        assert REGISTRY.get_sample_value("tapestry_vclusters", {"phase": "Running", "host": ""}) is None


async def test_planes_have_the_names_of_their_virtual_clusters(tmp_path: Path) -> None:
    async with management_world(tmp_path) as world:
        annotations = {VCLUSTER: "shop/blue"}
        plane = {"metadata": {"name": "vc-blue", "annotations": annotations}, "spec": {"state": "Suspended"}}
        created = await world.http.create(PLANES, plane)
        await world.http.create(PLANES, {**object_named("other"), "spec": {"state": "Suspended"}})
        with served_metrics(ServiceCollector(StoredObjects(world.process.management.store))):
            samples = [each for family in REGISTRY.collect() for each in family.samples]
        labels = [each.labels for each in samples if each.name == "tapestry_vclusters_plane_info"]
        assert labels == [{"namespace": "shop", "name": "blue", "plane": plane_id(created)}]
