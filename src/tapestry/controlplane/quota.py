"""Controller that counts the usage of each ResourceQuota.

The API server charges a quota for an object before it stores it (`tapestry.apiserver.admission.quota`). This controller
counts stored objects. To include objects that were charged but not yet stored, it waits a moment after the quota
changed before it counts, and it updates the status only if the quota has not changed since.
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
from tapestry.controlplane.metadata_cache import MetadataCache
from tapestry.kube.objects import Object, key_of, namespace_of, value_at
from tapestry.kube.patches import merge_patch
from tapestry.kube.quantity import ZERO, ResourceList
from tapestry.kube.quota_usage import UNCOUNTED_RESOURCES, matches_scopes, matching_quota_names, object_usage
from tapestry.kube.resources import RESOURCE_QUOTAS, Resource

NAMESPACE_INDEX = "namespace"
MEASURED_RESOURCES = ("pods", "services", "persistentvolumeclaims")
"""Resources that are charged for more than their number."""
CHARGE_DELAY = 0.1
"""Seconds after which a charged object is stored."""
RECOUNT_INTERVAL, RECOUNT_COST_FACTOR = 1.0, 10
"""Seconds over which changes are batched: at least the first, or the factor times the duration of a count."""


@dataclass(frozen=True)
class QuotaReconciler:
    """Update the status of each ResourceQuota."""

    quotas: Store
    metadata: MetadataCache
    reads: Client
    client: Client
    now: Callable[[], datetime]
    count_seconds: dict[str, float] = field(default_factory=dict)
    """Duration of the last count, by key."""

    async def reconcile(self, key: str) -> None:
        await self.metadata.synced.wait()
        quota = self.quotas.get(key)
        if quota is None:
            self.count_seconds.pop(key, None)
            return
        if not is_status_outdated(quota):
            await asyncio.sleep(CHARGE_DELAY)
        hard, status = hard_limits(quota), quota.get("status") or {}
        started = asyncio.get_running_loop().time()
        used = await self.current_usage(quota, hard)
        self.count_seconds[key] = asyncio.get_running_loop().time() - started
        if is_status_outdated(quota) or ResourceList.parse(status.get("used")) != used:
            desired = {"hard": value_at(quota, "spec", "hard", default={}), "used": used.texts()}
            patch = {"status": merge_patch(status, desired)}
            await self.client.patch(RESOURCE_QUOTAS, quota, patch, subresource="status")

    async def current_usage(self, quota: Object, hard: ResourceList) -> ResourceList:
        """Return the usage of all limited and countable resources. Resources that are not served have no usage."""
        usage = ResourceList({name: ZERO for name in hard if name.startswith("count/")})
        namespace = namespace_of(quota) or ""
        for resource in self.countable_resources():
            if names := matching_quota_names(resource.name, hard):
                usage = usage + await self.resource_usage(resource, namespace, quota, names)
        return usage

    def countable_resources(self) -> list[Resource]:
        return [
            each
            for each, verbs in self.metadata.resources.items()
            if each.namespaced and "list" in verbs and each.name not in UNCOUNTED_RESOURCES
        ]

    async def resource_usage(
        self, resource: Resource, namespace: str, quota: Object, names: Sequence[str]
    ) -> ResourceList:
        """Return the total usage of all objects of a resource, by the given names."""
        usage = dict.fromkeys(names, ZERO)
        is_measured, now = resource.name in MEASURED_RESOURCES, self.now()
        async for page in self.reads.pages(
            resource, namespace, without_managed_fields=True, only_metadata=not is_measured
        ):
            for obj in page.items:
                if matches_scopes(resource.name, quota, obj):
                    used = object_usage(resource.name, obj, now)
                    for name in names:
                        usage[name] += used[name]
        return ResourceList(usage)

    def object_changed(self, queue: Queue, resource: Resource, old: Object | None, new: Object | None) -> None:
        obj = new or old
        namespace = namespace_of(obj) if obj is not None else None
        for quota in self.quotas.by(NAMESPACE_INDEX, namespace) if namespace else ():
            if matching_quota_names(resource.name, hard_limits(quota)):
                self.enqueue_later(queue, key_of(quota))

    def quota_changed(self, queue: Queue, _: Object | None, new: Object | None) -> None:
        """Enqueue a changed quota: at once if its limits changed, later if only its usage was charged."""
        if new is not None and is_status_outdated(new):
            queue.add(key_of(new))
        elif new is not None:
            self.enqueue_later(queue, key_of(new))

    def enqueue_later(self, queue: Queue, key: str) -> None:
        queue.add_after(key, max(RECOUNT_INTERVAL, RECOUNT_COST_FACTOR * self.count_seconds.get(key, 0.0)))


def hard_limits(quota: Object) -> ResourceList:
    return ResourceList.parse(value_at(quota, "spec", "hard"))


def is_status_outdated(quota: Object) -> bool:
    """Return whether the limits in the status differ from those in the spec."""
    return hard_limits(quota) != ResourceList.parse(value_at(quota, "status", "hard")) or "used" not in (
        quota.get("status") or {}
    )


def install(manager: Manager, metadata: MetadataCache) -> None:
    quotas = manager.informer(RESOURCE_QUOTAS)
    quotas.store.add_index(NAMESPACE_INDEX, own_namespace)
    reconciler = QuotaReconciler(quotas.store, metadata, manager.reads, manager.client, manager.now)
    controller = manager.controller("quota", reconciler.reconcile)
    quotas.on_change(lambda *change: reconciler.quota_changed(controller.queue, *change))
    metadata.on_change(lambda *change: reconciler.object_changed(controller.queue, *change))
