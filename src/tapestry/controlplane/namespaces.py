"""Controller that deletes the content of a namespace before the namespace itself.

Pods are deleted first, and nothing else before the last of them is gone: the objects they use must outlive them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from tapestry.client.client import Client
from tapestry.controller import Manager, Result
from tapestry.controller.queue import Queue
from tapestry.controller.store import Store
from tapestry.controlplane.collection_deletion import CollectionDeleter, RemainingContent
from tapestry.controlplane.metadata_cache import MetadataCache
from tapestry.kube.conditions import new_condition, with_condition
from tapestry.kube.objects import Object, is_deleting, namespace_of, value_at
from tapestry.kube.resources import NAMESPACES, PODS, Resource

KUBERNETES_FINALIZER = "kubernetes"
DELETION_VERBS = frozenset({"list", "delete"})
SHORT_RETRY_INTERVAL, RETRY_INTERVAL = 0.1, 5.0
"""Seconds until the next attempt: if objects changed during the deletion, and otherwise."""


@dataclass(frozen=True)
class NamespaceReconciler:
    """Delete the content of deleted namespaces and remove their finalizer."""

    namespaces: Store
    metadata: MetadataCache
    deleter: CollectionDeleter
    client: Client
    now: Callable[[], datetime]

    async def reconcile(self, name: str) -> Result | None:
        await self.metadata.synced.wait()
        namespace = self.namespaces.get(name)
        if namespace is None or not is_being_finalized(namespace):
            return None
        remains = await self.delete_content(name)
        if remains.objects or remains.failures:
            await self.update_conditions(namespace, remains)
            return Result(
                requeue_after=SHORT_RETRY_INTERVAL if remains.has_undeleted and not remains.failures else RETRY_INTERVAL
            )
        others = [each for each in namespace["spec"]["finalizers"] if each != KUBERNETES_FINALIZER]
        released = {**namespace, "spec": {"finalizers": others}}
        await self.client.replace(NAMESPACES, released, subresource="finalize")
        return None

    async def delete_content(self, name: str) -> RemainingContent:
        remains = RemainingContent()
        await self.deleter.delete_all(PODS, name, remains)
        if not remains.objects:
            for resource, verbs in self.metadata.resources.items():
                if resource.namespaced and DELETION_VERBS.issubset(verbs):
                    await self.deleter.delete_all(resource, name, remains)
        return remains

    async def update_conditions(self, namespace: Object, remaining: RemainingContent) -> None:
        """Report the remaining content in the status, as kube-controller-manager does."""
        before = conditions = value_at(namespace, "status", "conditions", default=[])
        for each in deletion_conditions(remaining):
            conditions = with_condition(conditions, each, self.now())
        if conditions is not before:
            status = {"status": {"conditions": conditions}}
            await self.client.patch(NAMESPACES, namespace, status, subresource="status")

    def object_changed(self, queue: Queue, _: Resource, old: Object | None, new: Object | None) -> None:
        """Enqueue the namespace of a deleted object if it is being finalized."""
        name = namespace_of(old) if old is not None and new is None else None
        namespace = self.namespaces.get(name) if name is not None else None
        if name is not None and namespace is not None and is_being_finalized(namespace):
            queue.add(name)


def is_being_finalized(namespace: Object) -> bool:
    return is_deleting(namespace) and KUBERNETES_FINALIZER in value_at(namespace, "spec", "finalizers", default=())


def deletion_conditions(remaining: RemainingContent) -> Iterator[Object]:
    yield new_condition(
        "NamespaceDeletionDiscoveryFailure", False, "ResourcesDiscovered", "All resources successfully discovered"
    )
    yield new_condition(
        "NamespaceDeletionGroupVersionParsingFailure",
        False,
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    )
    failures = ", ".join(sorted(remaining.failures))
    yield deletion_condition(
        "NamespaceDeletionContentFailure",
        f"Failed to delete all resource types, {len(remaining.failures)} remaining: {failures}" if failures else "",
        ("ContentDeletionFailed", "ContentDeleted"),
        "All content successfully deleted, may be waiting on finalization",
    )
    objects = ", ".join(
        sorted(f"{each.plural}.{each.group} has {n} resource instances" for each, n in remaining.objects.items())
    )
    yield deletion_condition(
        "NamespaceContentRemaining",
        f"Some resources are remaining: {objects}" if objects else "",
        ("SomeResourcesRemain", "ContentRemoved"),
        "All content successfully removed",
    )
    finalizers = ", ".join(sorted(f"{each} in {n} resource instances" for each, n in remaining.finalizers.items()))
    yield deletion_condition(
        "NamespaceFinalizersRemaining",
        f"Some content in the namespace has finalizers remaining: {finalizers}" if finalizers else "",
        ("SomeFinalizersRemain", "ContentHasNoFinalizers"),
        "All content-preserving finalizers finished",
    )


def deletion_condition(type: str, problem: str, reasons: tuple[str, str], ok_message: str) -> Object:
    """Return a condition that is true if there is a problem. `reasons` are for a problem and for none."""
    return new_condition(type, bool(problem), reasons[0] if problem else reasons[1], problem or ok_message)


def install(manager: Manager, metadata: MetadataCache) -> None:
    informer = manager.informer(NAMESPACES)
    deleter = CollectionDeleter(manager.reads, manager.client)
    reconciler = NamespaceReconciler(informer.store, metadata, deleter, manager.client, manager.now)
    controller = manager.controller("namespaces", reconciler.reconcile)
    controller.watch(informer)
    metadata.on_change(lambda *change: reconciler.object_changed(controller.queue, *change))
