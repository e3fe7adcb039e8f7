"""The objects of the management API in this process, decoded once for each version."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from tapestry.apiserver.core.store import Key, ObjectVersion, Store
from tapestry.kube.objects import Object, uid_of, value_at, version_of
from tapestry.kube.resources import Resource

DECODE = msgspec.json.Decoder(dict).decode


@dataclass(frozen=True)
class StoredObjects:
    """Objects in the store of the management API. Callers must not change them."""

    store: Store
    _decoded: dict[Key, tuple[ObjectVersion, Object]] = field(default_factory=dict)
    _by_uid: dict[str, Key] = field(default_factory=dict)

    @property
    def revision(self) -> int:
        return self.store.revision

    def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        return self._one(self.store.get(resource.name, namespace, name))

    def head(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Return the object as the next writer sees it."""
        return self._one(self.store.head(resource.name, namespace, name))

    def all(self, resource: Resource, namespace: str = "") -> list[Object]:
        return self._many(self.store.list_objects(resource.name, namespace))

    def at_revision(self, resource: Resource, namespace: str, revision: int) -> list[Object]:
        """Return the objects at an earlier revision. Raises Compacted."""
        if self.store.changed_revision(resource.name) <= revision:
            return self.all(resource, namespace)
        return self._many(self.store.list_at_revision(resource.name, namespace, revision))

    def named(self, resource: Resource, name: str) -> list[Object]:
        """Return the objects with a name in all namespaces."""
        return self._many(self.store.list_objects(resource.name, "", name))

    def heads(self, resource: Resource, namespace: str = "") -> list[Object]:
        return self._many(self.store.heads(resource.name, namespace))

    def with_uid(self, resource: Resource, uid: str) -> Object | None:
        found = self._found_by_uid(uid)
        if found is None and uid:
            self._by_uid.update((uid_of(each), key_in(resource, each)) for each in self.all(resource))
            found = self._found_by_uid(uid)
        return found

    async def wait_until(
        self, resource: Resource, obj: Object, is_reached: Callable[[Object | None], bool], seconds: float
    ) -> None:
        """Wait until an object, or that it is gone, is as desired. Return at the end of the time, too.

        `obj` is a version of it that may be newer than what readers see.
        """
        key = key_in(resource, obj)
        await self.store.wait_for_revision(int(version_of(obj) or 0), seconds)
        subscription = self.store.watch(*key)
        try:
            async with asyncio.timeout(seconds):
                while not is_reached(self.get(resource, key.namespace, key.name)):
                    await subscription.next_events()
                    if subscription.dropped or subscription.is_finished:
                        return
        except TimeoutError:
            return
        finally:
            self.store.unwatch(resource.name, subscription)

    async def wait_for_pending_write(self, resource: Resource, obj: Object) -> None:
        """Wait until readers see what the next writer of an object sees."""
        await self.store.wait_for_pending_write(key_in(resource, obj))

    def _found_by_uid(self, uid: str) -> Object | None:
        key = self._by_uid.get(uid)
        found = self._one(self.store.get(*key)) if key is not None else None
        if found is None or uid_of(found) != uid:
            self._by_uid.pop(uid, None)
            return None
        return found

    def _one(self, version: ObjectVersion | None) -> Object | None:
        return self.decoded(version) if version is not None else None

    def _many(self, versions: Iterable[ObjectVersion]) -> list[Object]:
        return [self.decoded(each) for each in versions]

    def decoded(self, version: ObjectVersion) -> Object:
        """Return an object, which the caller must not change."""
        known = self._decoded.get(version.key)
        if known is not None and known[0] is version:
            return known[1]
        decoded: Object = DECODE(version.raw)
        if len(self._decoded) > 2 * max(1000, self.store.object_count):
            self._decoded.clear()  # most are of objects that do not exist any more
        self._decoded[version.key] = version, decoded
        return decoded


def project_in(obj: Object | None) -> str | None:
    """Return the project of an object; None without an object."""
    if obj is None:
        return None
    project: str = value_at(obj, "spec", "project", default="")
    return project


def key_in(resource: Resource, obj: Object) -> Key:
    metadata = obj["metadata"]
    return Key(resource.name, metadata.get("namespace", ""), metadata["name"])
