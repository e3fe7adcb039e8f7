"""Controller that writes its identity into ConfigMaps continuously, to show who wrote at which revision.

It is discovered through its entry point, like any third-party controller.
"""

from dataclasses import dataclass, field

from tapestry.controller import Manager, Registry, Result
from tapestry.controller.informer import Informer
from tapestry.kube.errors import Conflict
from tapestry.kube.objects import Object
from tapestry.kube.resources import CONFIGMAPS


@dataclass(frozen=True)
class Writer:
    configmaps: Informer
    manager: Manager
    latest: dict[str, Object] = field(default_factory=dict)

    async def reconcile(self, key: str) -> Result | None:
        configmap = self.latest.pop(key, None) or self.configmaps.store.get(key)
        if configmap is None:
            return None
        count = int(configmap["data"].get("count", "0")) + 1
        patch = {"data": {"writer": self.manager.identity, "count": str(count)}}
        try:
            self.latest[key] = await self.manager.client.patch(CONFIGMAPS, configmap, patch)
        except Conflict:
            return Result(requeue_after=0.05)
        return Result(requeue_after=0.001)


def setup(manager: Manager) -> None:
    configmaps = manager.informer(CONFIGMAPS, labels="written-by=writer")
    manager.controller("writer", Writer(configmaps, manager).reconcile).watch(configmaps)


def register(registry: Registry) -> None:
    registry.register("writer", setup)
