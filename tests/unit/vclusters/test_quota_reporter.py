"""The status of quotas."""

from datetime import UTC, datetime
from pathlib import Path

from tapestry.apis.projects import QUOTAS
from tapestry.apis.vclusters import VCLUSTERS
from tapestry.kube.objects import Object, name_of, version_of
from tapestry.vclusters.quota_reporter import QuotaReporter, project_key

from .management_world import limit, management_world

NOON = datetime(2026, 1, 10, 12, tzinfo=UTC)


class Cache:
    """A cache of objects that do not change."""

    def __init__(self, *objects: Object) -> None:
        self.objects = {name_of(each): each for each in objects}

    @property
    def store(self) -> "Cache":
        return self

    def list(self) -> list[Object]:
        return list(self.objects.values())

    def get(self, key: str) -> Object | None:
        return self.objects.get(key)


async def test_status_has_all_used_values(tmp_path: Path) -> None:
    async with management_world(tmp_path) as world:
        await limit(world, vclusters=4)
        await world.create("a", project="shop", storage={"persistenceSize": "1Gi"})
        vclusters = await world.http.list(VCLUSTERS)
        assert sorted(key for each in vclusters for key in project_key(each)) == ["shop"]
        versions = set()
        for _ in range(2):
            quota = await world.http.get(QUOTAS, "shop")
            caches = Cache(quota), Cache(*vclusters), Cache()
            reporter = QuotaReporter(*caches, world.orchestrator, lambda: NOON)  # type: ignore[arg-type]
            await reporter.reconcile("shop")
            await reporter.reconcile("default")
            versions.add(version_of(await world.http.get(QUOTAS, "shop")))
        status = (await world.http.get(QUOTAS, "shop"))["status"]
    assert len(versions) == 1
    used = status["used"]
    assert (used["vclusters"], used["storage"], used["concurrentOperations"]) == ("1", "1Gi", "1")
    assert (used["snapshots"], used["snapshotBytes"]) == ("0", "0")
    assert (status["observedGeneration"], status["updateTime"]) == (1, "2026-01-10T12:00:00Z")
