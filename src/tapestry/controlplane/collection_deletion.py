"""Deletion of all objects of a resource, with a count of the objects that remain."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from tapestry.client.client import Client
from tapestry.client.options import Propagation
from tapestry.kube.errors import Conflict, KubeError, NotFound
from tapestry.kube.objects import Object, is_deleting
from tapestry.kube.resources import Resource


@dataclass
class RemainingContent:
    """Objects that still exist after a deletion."""

    objects: Counter[Resource] = field(default_factory=Counter)
    finalizers: Counter[str] = field(default_factory=Counter)
    """Number of objects that wait for each finalizer."""
    failures: list[str] = field(default_factory=list)
    has_undeleted: bool = False
    """True if some of the objects are not marked for deletion yet."""

    def add(self, resource: Resource, obj: Object) -> None:
        self.objects[resource] += 1
        self.finalizers.update(obj["metadata"].get("finalizers") or ())
        self.has_undeleted = self.has_undeleted or not is_deleting(obj)


@dataclass(frozen=True)
class CollectionDeleter:
    """List objects with one client and delete them with another."""

    reads: Client
    writes: Client

    async def delete_all(self, resource: Resource, namespace: str | None, remaining: RemainingContent) -> None:
        """Delete all objects of a resource, in one namespace or all, and add those that remain to `remaining`."""
        found = False
        async for page in self.reads.pages(resource, namespace, without_managed_fields=True, only_metadata=True):
            found = found or bool(page.items)
            async with asyncio.TaskGroup() as group:
                for obj in page.items:
                    if not is_deleting(obj):
                        group.create_task(self._delete(resource, obj, remaining))
        if found:
            async for page in self.reads.pages(resource, namespace, without_managed_fields=True, only_metadata=True):
                for obj in page.items:
                    remaining.add(resource, obj)

    async def _delete(self, resource: Resource, obj: Object, remaining: RemainingContent) -> None:
        try:
            await self.writes.delete(resource, obj, propagation=Propagation.BACKGROUND)
        except (NotFound, Conflict):
            return  # deleted or changed: the list that follows shows the result
        except KubeError as error:
            remaining.failures.append(str(error))
