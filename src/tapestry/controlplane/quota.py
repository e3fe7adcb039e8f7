"""Quotas: what a namespace uses of its ResourceQuotas, counted.

The API server charges a quota for what is about to be made (`tapestry.apiserver.admission.quota`); here is counted
what there is.  So that a count does not miss what was charged for and is still on its way, it begins a moment after
the version of the quota that it is about, and is written only if the quota is still the same.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tapestry.client.client import Client
from tapestry.controller import Manager
from tapestry.controller.controller import own_namespace
from tapestry.controller.queue import Queue
from tapestry.controller.store import Store
from tapestry.controlplane.everything import Everything
from tapestry.kube.objects import Object, key_of, namespace_of, value_at
from tapestry.kube.patches import merge_patch
from tapestry.kube.quantity import ZERO, Amounts
from tapestry.kube.resources import RESOURCE_QUOTAS, Resource
from tapestry.kube.usage import UNCOUNTED, counted, in_scopes, usage

NAMESPACE = "namespace"
MEASURED = ("pods", "services", "persistentvolumeclaims")
"""Resources of which not only the number is used."""
GRACE = 0.1
"""Seconds after which whatever was charged for is stored."""
PAUSE, PAUSES = 1.0, 10
"""Seconds in which changes are counted together; in a crowd, so many times the seconds that counting takes."""


@dataclass(frozen=True)
class Quotas:
    """Keeps the status of each quota."""

    quotas: Store
    everything: Everything
    reads: Client
    client: Client
    now: Callable[[], datetime]
    took: dict[str, float] = field(default_factory=dict)
    """How long it took to count, by key."""

    async def reconcile(self, key: str) -> None:
        await self.everything.settled.wait()
        quota = self.quotas.get(key)
        if quota is None:
            self.took.pop(key, None)
            return
        if not is_news(quota):
            await asyncio.sleep(GRACE)
        hard, status = limits(quota), quota.get("status") or {}
        began = asyncio.get_running_loop().time()
        used = await self.used(quota, hard)
        self.took[key] = asyncio.get_running_loop().time() - began
        if is_news(quota) or Amounts.parse(status.get("used")) != used:
            wanted = {"hard": value_at(quota, "spec", "hard", default={}), "used": used.texts()}
            patch = {"status": merge_patch(status, wanted)}
            await self.client.patch(RESOURCE_QUOTAS, quota, patch, subresource="status")

    async def used(self, quota: Object, hard: Amounts) -> Amounts:
        """What is used of all that the quota limits and somebody can count; what is not served yet, nobody has."""
        found = Amounts({name: ZERO for name in hard if name.startswith("count/")})
        namespace = namespace_of(quota) or ""
        for resource in self.countable():
            if names := counted(resource.name, hard):
                found = found + await self.total(resource, namespace, quota, names)
        return found

    def countable(self) -> list[Resource]:
        return [
            each
            for each, verbs in self.everything.resources.items()
            if each.namespaced and "list" in verbs and each.name not in UNCOUNTED
        ]

    async def total(self, resource: Resource, namespace: str, quota: Object, names: Sequence[str]) -> Amounts:
        """What all objects of a resource use, under these names."""
        found = dict.fromkeys(names, ZERO)
        is_measured, now = resource.name in MEASURED, self.now()
        async for page in self.reads.pages(resource, namespace, lean=True, only_metadata=not is_measured):
            for obj in page.items:
                if in_scopes(resource.name, quota, obj):
                    used = usage(resource.name, obj, now)
                    for name in names:
                        found[name] += used[name]
        return Amounts(found)

    def noticed(self, queue: Queue, resource: Resource, old: Object | None, new: Object | None) -> None:
        """Something came, changed or went: what counts it is counted again."""
        obj = new or old
        namespace = namespace_of(obj) if obj is not None else None
        for quota in self.quotas.by(NAMESPACE, namespace) if namespace else ():
            if counted(resource.name, limits(quota)):
                self.put_off(queue, key_of(quota))

    def changed(self, queue: Queue, _: Object | None, new: Object | None) -> None:
        """The quota itself changed: where others are charged for, there is no hurry."""
        if new is not None and is_news(new):
            queue.add(key_of(new))
        elif new is not None:
            self.put_off(queue, key_of(new))

    def put_off(self, queue: Queue, key: str) -> None:
        queue.add_after(key, max(PAUSE, PAUSES * self.took.get(key, 0.0)))


def limits(quota: Object) -> Amounts:
    return Amounts.parse(value_at(quota, "spec", "hard"))


def is_news(quota: Object) -> bool:
    """Whether the quota limits something else than its status knows of."""
    return limits(quota) != Amounts.parse(value_at(quota, "status", "hard")) or "used" not in (
        quota.get("status") or {}
    )


def install(manager: Manager, everything: Everything) -> None:
    quotas = manager.informer(RESOURCE_QUOTAS)
    quotas.store.add_index(NAMESPACE, own_namespace)
    reconciler = Quotas(quotas.store, everything, manager.reads, manager.client, manager.now)
    controller = manager.controller("quota", reconciler.reconcile)
    quotas.on_change(lambda *change: reconciler.changed(controller.queue, *change))
    everything.on_change(lambda *change: reconciler.noticed(controller.queue, *change))
