"""Clearing: every object of a resource is deleted, and what does not go at once is counted."""

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
    """What is still there after a clearing."""

    objects: Counter[Resource] = field(default_factory=Counter)
    finalizers: Counter[str] = field(default_factory=Counter)
    """How many objects wait for whom."""
    failures: list[str] = field(default_factory=list)
    has_undeleted: bool = False
    """Whether some of it is not even deleting yet."""

    def add(self, resource: Resource, obj: Object) -> None:
        self.objects[resource] += 1
        self.finalizers.update(obj["metadata"].get("finalizers") or ())
        self.has_undeleted = self.has_undeleted or not is_deleting(obj)


@dataclass(frozen=True)
class CollectionDeleter:
    """Deletes through one client what it finds through another."""

    reads: Client
    writes: Client

    async def delete_all(self, resource: Resource, namespace: str | None, remaining: RemainingContent) -> None:
        """Delete all of a resource, of one namespace or everywhere; `remains` is told what stays for now."""
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
            return  # it went, or changed: whatever is there now is seen in a moment
        except KubeError as error:
            remaining.failures.append(str(error))
