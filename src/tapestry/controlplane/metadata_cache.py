"""Metadata of all objects of an API server in this process, and the objects that each object owns.

It follows the store of the server instead of watching every resource, so that an idle control plane costs little. Only
resources that can be listed, watched and deleted are included. Events are excluded: they are numerous, have no
owners and own nothing. So are the resources of other servers (aggregated APIs), which the store does not have.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any, TypedDict

import msgspec

from tapestry.apiserver.core.resource_registry import ResourceInfo, ResourceRegistry
from tapestry.apiserver.core.slices import sliced
from tapestry.apiserver.core.store import Key, ObjectVersion, Store, WatchEvent
from tapestry.controller import Manager
from tapestry.kube.objects import Object, namespace_of, split_key, uid_of
from tapestry.kube.resources import CRDS, Resource

REQUIRED_VERBS = frozenset({"list", "watch", "delete"})
IGNORED_RESOURCES = frozenset({"events", "events.events.k8s.io"})

Handler = Callable[[Resource, Object | None, Object | None], None]


class Metadata(TypedDict, total=False):
    """The fields of metadata that are decoded."""

    name: str
    namespace: str
    uid: str
    resourceVersion: str
    ownerReferences: list[Any] | None
    finalizers: list[Any] | None
    deletionTimestamp: str | None


class PartialObject(TypedDict):
    metadata: Metadata


METADATA_DECODER = msgspec.json.Decoder(PartialObject)


class MetadataCache:
    """Metadata by resource and key. It follows `store` while `manager` runs."""

    def __init__(self, manager: Manager, store: Store, registry: ResourceRegistry) -> None:
        self.resources: dict[Resource, tuple[str, ...]] = {}
        """All served resources and their verbs, each in its preferred version."""
        self.resources_by_kind: dict[tuple[str, str], Resource] = {}
        """The served resources by group and kind."""
        self.synced = asyncio.Event()
        """Set while all objects and changes that readers see are reported."""
        self._store, self._registry = store, registry
        self._resources_by_storage: dict[str, Resource] = {}
        """The resources whose objects are reported, by their key in the store."""
        self._generation = -1
        """Generation of the registry from which the resources were read."""
        self._dependents: dict[str, set[Key]] = {}
        """Objects by the UIDs of their owners."""
        self._handlers: list[Handler] = []
        self._events: deque[WatchEvent] = deque()
        """Changes that are not processed yet."""
        self._changed = asyncio.Event()
        manager.run_always("metadata-cache", self.run)

    def close(self) -> None:
        """Forget the handlers, which refer to this cache."""
        self._handlers.clear()

    def on_change(self, handler: Handler) -> None:
        """Call `handler` for every change of any object. Call this before the manager runs."""
        self._handlers.append(handler)

    def resource_named(self, name: str) -> Resource | None:
        """Return the resource with this name (`deployments.apps`) if its objects are included."""
        return self._resources_by_storage.get(name)

    def get(self, resource: Resource, key: str) -> Object | None:
        """Return the metadata of an object as readers see it now. `key` is `namespace/name` or `name`."""
        namespace, name = split_key(key)
        return metadata_of(self._store.get(resource.name, namespace or "", name))

    def dependents(self, owner: Object) -> Iterator[tuple[Resource, Object]]:
        """Yield the objects that `owner` owns. A namespaced owner owns only objects of its own namespace."""
        for key in self.dependent_keys(owner):
            resource, dependent = self._resources_by_storage.get(key.resource), metadata_of(self._store.get(*key))
            if resource is not None and dependent is not None and uid_of(owner) in owner_uids(dependent):
                yield resource, dependent

    def dependent_keys(self, owner: Object) -> list[Key]:
        """Return the keys of the dependents, without decoding them. Some may have changed since."""
        keys, namespace = self._dependents.get(uid_of(owner), ()), namespace_of(owner)
        return [each for each in keys if namespace in (None, each.namespace)]

    async def run(self) -> None:
        """Follow the store until cancelled."""
        with self._store.following(self._on_event), closing(self):
            await self._update_resources()
            while True:
                async for event in sliced(self._pending_events()):
                    key = event.object_version.key
                    if key.resource == CRDS.name:
                        await self._update_resources()
                    self._report(key, event.old, event.new)
                self.synced.set()
                self._changed.clear()
                await self._changed.wait()

    def _on_event(self, event: WatchEvent) -> None:
        if event.object_version.key.resource in self._resources_by_storage:
            self._events.append(event)
            self.synced.clear()
            self._changed.set()

    def _pending_events(self) -> Iterator[WatchEvent]:
        while self._events:
            yield self._events.popleft()

    async def _update_resources(self) -> None:
        """Read the served resources, and report the objects of those that are served newly or no longer."""
        if self._generation == self._registry.generation:
            return
        self._generation = self._registry.generation
        infos = preferred_versions(self._registry)
        self.resources = {each.resource: each.verbs for each in infos}
        self.resources_by_kind = {(each.group, each.kind): each for each in self.resources}
        before, after = self._resources_by_storage, {each.storage: each.resource for each in infos if is_reported(each)}
        async for version in sliced(self._objects_of(before.items() - after.items())):
            self._report(version.key, version, None)
        self._resources_by_storage = after
        async for version in sliced(self._objects_of(after.items() - before.items())):
            self._report(version.key, None, version)

    def _objects_of(self, resources: Iterable[tuple[str, Resource]]) -> Iterator[ObjectVersion]:
        for storage, _ in resources:
            yield from self._store.unsorted_objects(storage)

    def _report(self, key: Key, old_version: ObjectVersion | None, new_version: ObjectVersion | None) -> None:
        """Update the dependents and call the handlers."""
        resource = self._resources_by_storage.get(key.resource)
        if resource is None:
            return
        old, new = metadata_of(old_version), metadata_of(new_version)
        before, after = owner_uids(old) if old is not None else (), owner_uids(new) if new is not None else ()
        if before != after:
            for uid in before:
                self._forget_dependent(uid, key)
            for uid in after:
                self._dependents.setdefault(uid, set()).add(key)
        for handler in self._handlers:
            handler(resource, old, new)

    def _forget_dependent(self, uid: str, key: Key) -> None:
        keys = self._dependents.get(uid)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._dependents[uid]


def preferred_versions(registry: ResourceRegistry) -> list[ResourceInfo]:
    """Return each served resource in its preferred version."""
    preferred: dict[tuple[str, str], ResourceInfo] = {}
    for versions in registry.groups().values():
        for infos in versions.values():
            for info in infos:
                preferred.setdefault((info.resource.group, info.resource.plural), info)
    return list(preferred.values())


def is_reported(info: ResourceInfo) -> bool:
    return REQUIRED_VERBS.issubset(info.verbs) and info.resource.name not in IGNORED_RESOURCES


def metadata_of(version: ObjectVersion | None) -> Object | None:
    return METADATA_DECODER.decode(version.raw) if version is not None else None  # type: ignore[return-value]


def owner_uids(obj: Object) -> Iterable[str]:
    return [each["uid"] for each in obj["metadata"].get("ownerReferences") or ()]
