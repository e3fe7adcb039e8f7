"""Informers of what goes down: of what is ours below, and of what there is above in the namespaces that matter now."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping

from tapestry.apis.ownership import owner_selector
from tapestry.controller import Informer
from tapestry.controller.store import Indexer
from tapestry.controller.transforms import Transform, slim
from tapestry.kube.objects import EMPTY_MAPPING, Object, split_key
from tapestry.kube.resources import Resource
from tapestry.syncer.context import SyncContext
from tapestry.syncer.translate.metadata import source_key


def owned_informer(
    context: SyncContext,
    resource: Resource,
    transform: Transform = slim,
    indexers: Mapping[str, Indexer] = EMPTY_MAPPING,
) -> Informer:
    """An informer of what is ours of a kind in the physical cluster, by what it stands for."""
    return Informer(
        context.physical_read_client,
        resource,
        namespace=context.mount_namespace if resource.namespaced else None,
        labels=owner_selector(context.virtual_cluster, context.binding_uid),
        transform=transform,
        indexers={"source": source_key, **indexers},
    ).with_name(f"physical_{resource.plural}")


class NamespaceInformers:
    """Informers that come and go: one for each namespace that is asked for now; `run` has to be running for that.

    `make` makes the informer of a namespace when it is asked for, and another one if it is again after it was not.
    """

    def __init__(self, make: Callable[[str], Informer]) -> None:
        self._make = make
        self._informers: dict[str, Informer] = {}
        self._changed = asyncio.Event()

    def set_namespaces(self, namespaces: Iterable[str]) -> None:
        """From now on follow these namespaces, and no others."""
        wanted = set(namespaces)
        if wanted != self._informers.keys():
            self._informers = {each: self._informers.get(each) or self._make(each) for each in wanted}
            self._changed.set()

    def synced_informer(self, namespace: str) -> Informer | None:
        """The informer of a namespace, once its store has been filled."""
        informer = self._informers.get(namespace)
        return informer if informer is not None and informer.synced.is_set() else None

    def get(self, key: str) -> Object | None:
        """The object under `key`, if its namespace is known and has it."""
        informer = self.synced_informer(split_key(key)[0] or "")
        return informer.store.get(key) if informer is not None else None

    def keys(self) -> Iterator[str]:
        """The keys of everything that has been seen."""
        return (key for informer in self._informers.values() for key in informer.store)

    def objects(self) -> list[Object] | None:
        """Everything that there is in these namespaces, once all of it has been seen."""
        informers = self._informers.values()
        if not all(informer.synced.is_set() for informer in informers):
            return None
        return [obj for informer in informers for obj in informer.store.list()]

    async def run(self) -> None:
        """Run the informers that are asked for, until cancelled."""
        running: dict[Informer, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                wanted = set(self._informers.values())
                for informer in running.keys() - wanted:
                    running.pop(informer).cancel()
                for informer in wanted - running.keys():
                    running[informer] = group.create_task(informer.run(), name=f"following-{informer.resource.name}")
                await self._changed.wait()
                self._changed.clear()
