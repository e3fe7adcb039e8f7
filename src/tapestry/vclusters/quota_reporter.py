"""The usage in the status of each Quota, for people who use kubectl. Nothing is decided by it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from tapestry.apis.operations import SNAPSHOTS
from tapestry.apis.projects import QUOTAS
from tapestry.apis.vclusters import VCLUSTERS
from tapestry.client.client import Client
from tapestry.controller import Manager
from tapestry.controller.informer import ObjectCache
from tapestry.kube.objects import Object, value_at
from tapestry.kube.times import timestamp
from tapestry.vclusters.quota import charges_of, total_usage, used_texts

DELAY_SECONDS = 1.0
"""Seconds from a change to the report of all changes until then."""


@dataclass(frozen=True)
class QuotaReporter:
    """Write the usage of a project; keyed by its name, which its Quota has."""

    quotas: ObjectCache[Object]
    vclusters: ObjectCache[Object]
    snapshots: ObjectCache[Object]
    client: Client
    now: Callable[[], datetime]

    async def reconcile(self, project: str) -> None:
        quota = self.quotas.store.get(project)
        if quota is None:
            return
        charges = charges_of(self.vclusters.store.list(), self.snapshots.store.list())
        status = {
            "used": used_texts(total_usage(charges, project)),
            "observedGeneration": value_at(quota, "metadata", "generation"),
        }
        if any(value_at(quota, "status", name) != value for name, value in status.items()):
            status["updateTime"] = timestamp(self.now())
            await self.client.patch(QUOTAS, quota, {"status": status}, subresource="status")


def project_key(obj: Object) -> Iterator[str]:
    yield value_at(obj, "spec", "project", default="")


def install(manager: Manager) -> None:
    quotas, vclusters, snapshots = (manager.informer(each) for each in (QUOTAS, VCLUSTERS, SNAPSHOTS))
    reporter = QuotaReporter(quotas, vclusters, snapshots, manager.client, manager.now)
    controller = manager.controller("quota-reporter", reporter.reconcile)
    controller.watch(quotas)
    for informer in (vclusters, snapshots):
        controller.watch(informer, project_key, after=DELAY_SECONDS)
