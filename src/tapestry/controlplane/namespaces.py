"""Namespaces: all that is in a namespace goes before it does, the pods first.

The pods go first, and nothing else before the last of them is gone: what they use must outlast them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from tapestry.client.client import Client
from tapestry.controller import Manager, Result
from tapestry.controller.queue import Queue
from tapestry.controller.store import Store
from tapestry.controlplane.clearing import Clearing, Remains
from tapestry.controlplane.everything import Everything
from tapestry.kube.conditions import condition, with_condition
from tapestry.kube.objects import Object, is_deleting, namespace_of, value_at
from tapestry.kube.resources import NAMESPACES, PODS, Resource

KUBERNETES = "kubernetes"
CLEARABLE = frozenset({"list", "delete"})
SOON, LATER = 0.1, 5.0
"""Seconds until the next look: at what changed while it was to be deleted, and at what others hold."""


@dataclass(frozen=True)
class Namespaces:
    """Empties namespaces that are deleted, and lets them go."""

    namespaces: Store
    everything: Everything
    clearing: Clearing
    client: Client
    now: Callable[[], datetime]

    async def reconcile(self, name: str) -> Result | None:
        await self.everything.settled.wait()
        namespace = self.namespaces.get(name)
        if namespace is None or not is_going(namespace):
            return None
        remains = await self.emptied(name)
        if remains.objects or remains.failures:
            await self.explain(namespace, remains)
            return Result(requeue_after=SOON if remains.untouched and not remains.failures else LATER)
        others = [each for each in namespace["spec"]["finalizers"] if each != KUBERNETES]
        released = {**namespace, "spec": {"finalizers": others}}
        await self.client.replace(NAMESPACES, released, subresource="finalize")
        return None

    async def emptied(self, name: str) -> Remains:
        remains = Remains()
        await self.clearing.clear(PODS, name, remains)
        if not remains.objects:
            for resource, verbs in self.everything.resources.items():
                if resource.namespaced and verbs >= CLEARABLE:
                    await self.clearing.clear(resource, name, remains)
        return remains

    async def explain(self, namespace: Object, remains: Remains) -> None:
        """Say in the status what is missing, as kube-controller-manager does."""
        before = conditions = value_at(namespace, "status", "conditions", default=[])
        for each in conditions_of(remains):
            conditions = with_condition(conditions, each, self.now())
        if conditions is not before:
            status = {"status": {"conditions": conditions}}
            await self.client.patch(NAMESPACES, namespace, status, subresource="status")

    def noticed(self, queue: Queue, _: Resource, old: Object | None, new: Object | None) -> None:
        """Something went: its namespace may be able to."""
        name = namespace_of(old) if old is not None and new is None else None
        namespace = self.namespaces.get(name) if name is not None else None
        if name is not None and namespace is not None and is_going(namespace):
            queue.add(name)


def is_going(namespace: Object) -> bool:
    return is_deleting(namespace) and KUBERNETES in value_at(namespace, "spec", "finalizers", default=())


def conditions_of(remains: Remains) -> Iterator[Object]:
    yield condition(
        "NamespaceDeletionDiscoveryFailure", False, "ResourcesDiscovered", "All resources successfully discovered"
    )
    yield condition(
        "NamespaceDeletionGroupVersionParsingFailure",
        False,
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    )
    failures = ", ".join(sorted(remains.failures))
    yield verdict(
        "NamespaceDeletionContentFailure",
        f"Failed to delete all resource types, {len(remains.failures)} remaining: {failures}" if failures else "",
        ("ContentDeletionFailed", "ContentDeleted"),
        "All content successfully deleted, may be waiting on finalization",
    )
    objects = ", ".join(
        sorted(f"{each.plural}.{each.group} has {n} resource instances" for each, n in remains.objects.items())
    )
    yield verdict(
        "NamespaceContentRemaining",
        f"Some resources are remaining: {objects}" if objects else "",
        ("SomeResourcesRemain", "ContentRemoved"),
        "All content successfully removed",
    )
    finalizers = ", ".join(sorted(f"{each} in {n} resource instances" for each, n in remains.finalizers.items()))
    yield verdict(
        "NamespaceFinalizersRemaining",
        f"Some content in the namespace has finalizers remaining: {finalizers}" if finalizers else "",
        ("SomeFinalizersRemain", "ContentHasNoFinalizers"),
        "All content-preserving finalizers finished",
    )


def verdict(type: str, trouble: str, reasons: tuple[str, str], well: str) -> Object:
    """A condition that is true where there is trouble; its reasons are that of trouble and that of none."""
    return condition(type, bool(trouble), reasons[0] if trouble else reasons[1], trouble or well)


def install(manager: Manager, everything: Everything) -> None:
    informer = manager.informer(NAMESPACES)
    clearing = Clearing(manager.reads, manager.client)
    reconciler = Namespaces(informer.store, everything, clearing, manager.client, manager.now)
    controller = manager.controller("namespaces", reconciler.reconcile)
    controller.watch(informer)
    everything.on_change(lambda *change: reconciler.noticed(controller.queue, *change))
