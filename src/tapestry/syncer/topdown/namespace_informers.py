"""Informers of our physical objects, and of virtual objects in a changing set of namespaces."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping

from tapestry.apis.ownership import owner_selector
from tapestry.client.client import Client
from tapestry.controller import Informer
from tapestry.controller.store import Indexer
from tapestry.controller.transforms import Transform, slim
from tapestry.kube.objects import EMPTY_MAPPING, Object, split_key
from tapestry.kube.resources import Resource
from tapestry.syncer.identity import Identity
from tapestry.syncer.translate.metadata import source_key


def owned_informer(
    identity: Identity,
    client: Client,
    resource: Resource,
    transform: Transform = slim,
    indexers: Mapping[str, Indexer] = EMPTY_MAPPING,
) -> Informer:
    """Return an informer of our physical objects of a kind, indexed by their source."""
    return Informer(
        client,
        resource,
        namespace=identity.mount_namespace if resource.namespaced else None,
        labels=owner_selector(identity.virtual_cluster, identity.binding_uid),
        transform=transform,
        indexers={"source": source_key, **indexers},
    ).with_name(f"physical_{resource.plural}")


class NamespaceInformers:
    """One informer for each namespace, or each `namespace/name`, of a changing set; they run while `run` does.

    `make` creates the informer of a namespace that is added, and a new one if it is removed and added again.
    """

    def __init__(self, make: Callable[[str], Informer]) -> None:
        self._make = make
        self._informers: dict[str, Informer] = {}
        self._changed = asyncio.Event()

    def set_namespaces(self, namespaces: Iterable[str]) -> None:
        """Replace the set of namespaces."""
        desired = set(namespaces)
        if desired != self._informers.keys():
            self._informers = {each: self._informers.get(each) or self._make(each) for each in desired}
            self._changed.set()

    def add(self, namespace: str) -> None:
        if namespace not in self._informers:
            self._informers[namespace] = self._make(namespace)
            self._changed.set()

    def discard(self, namespace: str) -> None:
        if self._informers.pop(namespace, None) is not None:
            self._changed.set()

    def __len__(self) -> int:
        return len(self._informers)

    def synced_informer(self, namespace: str) -> Informer | None:
        """Return the informer of a namespace once its store is filled."""
        informer = self._informers.get(namespace)
        return informer if informer is not None and informer.synced.is_set() else None

    def get(self, key: str) -> Object | None:
        """Return the object under `key` if the informer of its namespace is synced."""
        informer = self.synced_informer(split_key(key)[0] or "")
        return informer.store.get(key) if informer is not None else None

    def keys(self) -> Iterator[str]:
        """Return the keys of all cached objects."""
        return (key for informer in self._informers.values() for key in informer.store)

    def objects(self) -> list[Object] | None:
        """Return all objects of these namespaces; None until all informers are synced."""
        informers = self._informers.values()
        if not all(informer.synced.is_set() for informer in informers):
            return None
        return [obj for informer in informers for obj in informer.store.list()]

    async def run(self) -> None:
        """Run the informers of the current namespaces until cancelled."""
        running: dict[Informer, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                desired = set(self._informers.values())
                for informer in running.keys() - desired:
                    running.pop(informer).cancel()
                for informer in desired - running.keys():
                    running[informer] = group.create_task(informer.run(), name=f"following-{informer.resource.name}")
                await self._changed.wait()
                self._changed.clear()
