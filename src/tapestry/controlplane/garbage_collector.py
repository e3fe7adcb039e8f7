"""Controller that deletes objects whose owners are gone.

An object with owner references is deleted when none of its owners exists any more. If some exist, only the references
to absent owners are removed. The propagation policy of the owner's deletion determines the order:

    background   the owner is deleted at once, its dependents afterwards
    foreground   the owner waits for the dependents that block it (finalizer foregroundDeletion)
    orphan       the dependents stay and lose their reference to it (finalizer orphan)

Caches may lag. Therefore an owner that is not cached is read from the API server before it counts as absent, and a
dependent is changed or deleted only in the version that was examined: the server refuses if it has changed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from tapestry.client.client import Client
from tapestry.client.options import Propagation
from tapestry.controller import Manager
from tapestry.controller.queue import Queue
from tapestry.controlplane.metadata_cache import MetadataCache
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, is_deleting, key_of, namespace_of, uid_of, without_field
from tapestry.kube.resources import Resource

FOREGROUND_FINALIZER, ORPHAN_FINALIZER = "foregroundDeletion", "orphan"
PROPAGATION_BY_FINALIZER = {ORPHAN_FINALIZER: Propagation.ORPHAN, FOREGROUND_FINALIZER: Propagation.FOREGROUND}


class OwnerState(Enum):
    PRESENT = auto()
    WAITING_FOR_DEPENDENTS = auto()
    """Being deleted in the foreground: its dependents are deleted first."""
    ABSENT = auto()


@dataclass(frozen=True)
class GarbageCollector:
    """Process one object at a time, both as a dependent and as an owner that is being deleted."""

    metadata: MetadataCache
    reads: Client
    client: Client

    async def reconcile(self, key: str) -> None:
        await self.metadata.synced.wait()
        name, _, object_key = key.partition(" ")
        resource = self.metadata.resource_named(name)
        obj = self.metadata.get(resource, object_key) if resource is not None else None
        if resource is None or obj is None:
            return
        try:
            if not is_deleting(obj):
                await self.collect_dependent(resource, obj)
            elif ORPHAN_FINALIZER in finalizers_of(obj):
                await self.orphan_dependents(resource, obj)
            elif FOREGROUND_FINALIZER in finalizers_of(obj):
                await self.finish_foreground_deletion(resource, obj)
        except NotFound:
            return  # deleted in the meantime

    # -- as a dependent

    async def collect_dependent(self, resource: Resource, obj: Object) -> None:
        owners = owners_of(obj)
        states = [await self.owner_state(each, obj) for each in owners]
        present = [owner for owner, state in zip(owners, states, strict=True) if state is OwnerState.PRESENT]
        if len(present) == len(owners):
            return
        if present:
            await self.patch_metadata(resource, obj, ownerReferences=present)
            return
        policy = next(
            (PROPAGATION_BY_FINALIZER[each] for each in PROPAGATION_BY_FINALIZER if each in finalizers_of(obj)),
            Propagation.BACKGROUND,
        )
        dependents = (
            [each for _, each in self.metadata.dependents(obj)] if OwnerState.WAITING_FOR_DEPENDENTS in states else []
        )
        if dependents:
            policy = Propagation.FOREGROUND  # like its owner: delete its dependents first
            if any(is_foreground_deleting(each) for each in dependents):  # break the cycle
                released = [without_field(each, "blockOwnerDeletion") for each in owners]
                obj = await self.patch_metadata(resource, obj, ownerReferences=released)
        await self.client.delete(resource, obj, propagation=policy)

    async def owner_state(self, owner: Object, dependent: Object) -> OwnerState:
        resource = self.resource_of(owner)
        namespace = namespace_of(dependent)
        if resource is None or (resource.namespaced and namespace is None):
            return OwnerState.PRESENT  # absence cannot be proved
        current = self.cached_owner(resource, owner, dependent)
        if current is None:
            try:
                current = await self.reads.get(resource, owner["name"], namespace if resource.namespaced else None)
            except NotFound:
                return OwnerState.ABSENT
        if uid_of(current) != owner["uid"]:
            return OwnerState.ABSENT  # another object of the same name
        return OwnerState.WAITING_FOR_DEPENDENTS if is_foreground_deleting(current) else OwnerState.PRESENT

    def cached_owner(self, resource: Resource, owner: Object, dependent: Object) -> Object | None:
        cached = self.metadata.get(resource, owner_key(resource, owner, dependent))
        return cached if cached is not None and uid_of(cached) == owner["uid"] else None

    def resource_of(self, owner: Object) -> Resource | None:
        """Return the resource of an owner's kind, regardless of the version in the reference."""
        group = owner["apiVersion"].rpartition("/")[0]
        return self.metadata.resources_by_kind.get((group, owner["kind"]))

    # -- as an owner that is being deleted

    async def finish_foreground_deletion(self, resource: Resource, owner: Object) -> None:
        """Remove the finalizer of the owner if no dependent blocks its deletion."""
        if not any(blocks_owner_deletion(each, owner) for _, each in self.metadata.dependents(owner)):
            await self.patch_metadata(
                resource, owner, finalizers=[each for each in finalizers_of(owner) if each != FOREGROUND_FINALIZER]
            )

    async def orphan_dependents(self, resource: Resource, owner: Object) -> None:
        """Remove the references to the owner from all dependents, then the finalizer from the owner."""
        for each, dependent in list(self.metadata.dependents(owner)):
            others = [ref for ref in owners_of(dependent) if ref["uid"] != uid_of(owner)]
            try:
                await self.patch_metadata(each, dependent, ownerReferences=others)
            except NotFound:
                continue
        await self.patch_metadata(
            resource, owner, finalizers=[each for each in finalizers_of(owner) if each != ORPHAN_FINALIZER]
        )

    async def patch_metadata(self, resource: Resource, obj: Object, **metadata: Sequence[object]) -> Object:
        """Patch the metadata of an object if it has not changed since it was examined."""
        return await self.client.patch(resource, obj, {"metadata": metadata})

    # -- enqueueing

    def object_changed(self, queue: Queue, resource: Resource, old: Object | None, new: Object | None) -> None:
        owner = new or old
        if owner is not None and (
            new is None or (is_foreground_deleting(new) and (old is None or not is_foreground_deleting(old)))
        ):
            for each in self.metadata.dependent_keys(owner):
                queue.add(queue_key(each.resource, f"{each.namespace}/{each.name}" if each.namespace else each.name))
        if new is not None and any(now := deletion_state(new)) and now != deletion_state(old):
            queue.add(queue_key(resource.name, key_of(new)))
        if old is not None and (new is None or owners_of(new) != owners_of(old)):
            for waiting in self.waiting_owners(old):
                queue.add(waiting)

    def waiting_owners(self, dependent: Object) -> Iterable[str]:
        for owner in owners_of(dependent):
            resource = self.resource_of(owner)
            cached = self.cached_owner(resource, owner, dependent) if resource is not None else None
            if resource is not None and cached is not None and is_foreground_deleting(cached):
                yield queue_key(resource.name, key_of(cached))


def queue_key(resource: str, key: str) -> str:
    return f"{resource} {key}"


def owner_key(resource: Resource, owner: Object, dependent: Object) -> str:
    """Return the cache key of an owner. A namespaced owner is in the namespace of its dependent."""
    return f"{namespace_of(dependent)}/{owner['name']}" if resource.namespaced else str(owner["name"])


def owners_of(obj: Object) -> list[Object]:
    return obj["metadata"].get("ownerReferences") or []


def finalizers_of(obj: Object) -> list[str]:
    return obj["metadata"].get("finalizers") or []


def is_foreground_deleting(obj: Object) -> bool:
    return is_deleting(obj) and FOREGROUND_FINALIZER in finalizers_of(obj)


def blocks_owner_deletion(dependent: Object, owner: Object) -> bool:
    return any(each["uid"] == uid_of(owner) and each.get("blockOwnerDeletion") for each in owners_of(dependent))


def deletion_state(obj: Object | None) -> tuple[list[Object], list[str]]:
    """Return the fields whose change triggers a reconcile: owners and deletion finalizers."""
    if obj is None:
        return [], []
    return owners_of(obj), [
        each for each in finalizers_of(obj) if is_deleting(obj) and each in PROPAGATION_BY_FINALIZER
    ]


def install(manager: Manager, metadata: MetadataCache) -> None:
    collector = GarbageCollector(metadata, manager.reads, manager.client)
    controller = manager.controller("garbage", collector.reconcile)
    metadata.on_change(lambda *change: collector.object_changed(controller.queue, *change))
