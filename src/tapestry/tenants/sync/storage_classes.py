"""Controller of the storage classes that a plane has from its host cluster; keyed by name.

A class of that name which users of the plane have created stays as it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.hostclusters import OfferedStorageClass
from tapestry.client.client import Client
from tapestry.controller import ObjectCache
from tapestry.kube.errors import AlreadyExists, NotFound
from tapestry.kube.objects import Object, is_deleting, labels_of
from tapestry.kube.resources import STORAGE_CLASSES
from tapestry.syncer.components import Syncer
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.syncer.predicates import spec_changed
from tapestry.tenants.sync.volume_translation import DRIVER, desired_class, has_other_rules, is_default_class


@dataclass(frozen=True)
class TenantStorageClasses:
    """Keep a class of the plane for each one that the HostCluster offers and the host cluster has."""

    current_binding: CurrentBinding
    client: Client
    classes: ObjectCache
    """Classes of the plane."""
    host_classes: ObjectCache

    async def reconcile(self, name: str) -> None:
        binding = self.current_binding.get()
        if binding is None or self.current_binding.is_unbinding:
            return
        if not (self.classes.synced.is_set() and self.host_classes.synced.is_set()):
            return  # all keys are queued when the caches are filled
        current, desired = self.classes.store.get(name), self.desired(name, binding)
        if current is not None and (not is_own(current) or is_deleting(current)):
            return
        try:
            if current is not None and (desired is None or has_other_rules(current, desired)):
                await self.client.delete_if_exists(STORAGE_CLASSES, current)  # this queues the key again
            elif desired is not None:
                await self.client.converge(STORAGE_CLASSES, current, desired)
        except (AlreadyExists, NotFound):
            return  # a change follows

    def desired(self, name: str, binding: Binding) -> Object | None:
        if not binding.spec.sync.storage_classes:
            return None
        offered = next((each for each in offered_classes(binding) if each.name == name), None)
        host_class = self.host_classes.store.get(offered.name_in_host) if offered is not None else None
        if offered is None or host_class is None:
            return None
        chosen = binding.spec.default_storage_class
        return desired_class(offered, host_class, is_default=chosen == name if chosen else is_default_class(host_class))

    def names(self) -> Iterator[str]:
        """Yield the names of all classes that the plane has or is to have."""
        yield from self.classes.store
        if (binding := self.current_binding.get()) is not None:
            yield from (each.name for each in offered_classes(binding))


def offered_classes(binding: Binding) -> tuple[OfferedStorageClass, ...]:
    return binding.host.storage_classes if binding.host is not None else ()


def is_own(storage_class: Object) -> bool:
    """Return whether we have created a class of the plane."""
    return labels_of(storage_class).get(keys.MANAGED_BY) == keys.TAPESTRY and storage_class["provisioner"] == DRIVER


def wire_storage_classes(syncer: Syncer, hosts: ObjectCache, host_classes: ObjectCache) -> None:
    """Add the controller of storage classes to the syncer of a tenant. `hosts` are the HostClusters."""
    manager = syncer.manager
    classes = manager.informer(STORAGE_CLASSES)
    reconciler = TenantStorageClasses(syncer.current_binding, manager.client, classes, host_classes)
    controller = manager.controller("storage-classes", reconciler.reconcile, workers=1)
    controller.watch(classes)

    def requeue_all() -> None:
        for name in set(reconciler.names()):
            controller.queue.add(name)

    def requeue_if_changed(old: Object | None, new: Object | None) -> None:
        if spec_changed(old, new):
            requeue_all()

    for each in (hosts, syncer.caches.bindings):
        each.on_change(requeue_if_changed)
    host_classes.on_change(lambda _, __: requeue_all())
    for each in (classes, host_classes):
        each.after_sync(requeue_all)
