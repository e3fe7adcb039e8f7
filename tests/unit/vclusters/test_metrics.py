"""Metrics of the lifecycle service."""

from pathlib import Path

from prometheus_client import REGISTRY

from tapestry.apis.vclusters import Phase
from tapestry.vclusters.metrics import served_metrics
from tapestry.vclusters.stored_objects import StoredObjects

from .management_world import limit, management_world


async def test_phases_and_use_of_quotas(tmp_path: Path) -> None:
    async with management_world(tmp_path) as world:
        await limit(world, vclusters=4, memoryLimits="1Gi")
        amounts = {"memoryLimit": "256Mi"}
        for name, phase in (("a", Phase.RUNNING), ("b", Phase.RUNNING), ("c", Phase.ERROR)):
            await world.set_status(await world.create(name, project="shop", resources=amounts), phase)
        with served_metrics(StoredObjects(world.process.management.store)):
            assert REGISTRY.get_sample_value("tapestry_vclusters", {"phase": "Running"}) == 2
            assert REGISTRY.get_sample_value("tapestry_vclusters", {"phase": "Error"}) == 1
            used = {"project": "shop", "resource": "memoryLimits"}
            assert REGISTRY.get_sample_value("tapestry_vclusters_quota_used", used) == 768 << 20
            assert REGISTRY.get_sample_value("tapestry_vclusters_quota_limit", used) == 1 << 30
            counts = {"project": "shop", "resource": "vclusters"}
            assert REGISTRY.get_sample_value("tapestry_vclusters_quota_used", counts) == 3
        assert REGISTRY.get_sample_value("tapestry_vclusters", {"phase": "Running"}) is None
