"""Removal of old records of operations."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from tapestry.apis.operations import OPERATIONS
from tapestry.client.client import Client
from tapestry.controller import Manager, Result
from tapestry.controller.controller import own_namespace
from tapestry.controller.informer import ObjectCache
from tapestry.kube.objects import Object, namespace_of
from tapestry.vclusters.operations import outdated

SWEEP_SECONDS = 3600.0
"""Seconds between two sweeps of a namespace."""
DELAY_SECONDS = 60.0
"""Seconds from the end of an operation to a sweep."""


@dataclass(frozen=True)
class OperationSweeper:
    """Delete records that are too old or too many; keyed by namespace."""

    operations: ObjectCache[Object]
    client: Client
    now: Callable[[], datetime]

    async def reconcile(self, namespace: str) -> Result | None:
        records = [each for each in self.operations.store.list() if namespace_of(each) == namespace]
        for each in outdated(records, self.now()):
            await self.client.delete_if_exists(OPERATIONS, each)
        return Result(requeue_after=SWEEP_SECONDS) if records else None


def install(manager: Manager) -> None:
    operations = manager.informer(OPERATIONS)
    sweeper = OperationSweeper(operations, manager.client, manager.now)
    controller = manager.controller("operation-sweeper", sweeper.reconcile)
    controller.watch(operations, own_namespace, after=DELAY_SECONDS)
