"""Controller that deletes the objects of a CustomResourceDefinition before the definition itself."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from tapestry.client.client import Client
from tapestry.controller import Manager, Result
from tapestry.controller.store import Store
from tapestry.controlplane.collection_deletion import CollectionDeleter, RemainingContent
from tapestry.kube.conditions import new_condition, with_condition
from tapestry.kube.objects import Object, is_deleting, value_at
from tapestry.kube.resources import CRDS, Resource

CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
RETRY_INTERVAL = 1.0
"""Seconds until the objects are checked again. Only objects with finalizers cause a retry."""


def without_schemas(definition: Object) -> Object:
    """Return a definition without its schemas. Controllers that use this transform share one informer."""
    spec = definition["spec"]
    versions = [{"name": each["name"], "served": each["served"]} for each in spec["versions"]]
    outline = {"group": spec["group"], "names": spec["names"], "scope": spec["scope"], "versions": versions}
    return {**definition, "spec": outline}


@dataclass(frozen=True)
class CrdFinalizer:
    """Finalize deleted CustomResourceDefinitions."""

    definitions: Store
    deleter: CollectionDeleter
    client: Client
    now: Callable[[], datetime]

    async def reconcile(self, name: str) -> Result | None:
        definition = self.definitions.get(name)
        finalizers = definition["metadata"].get("finalizers", []) if definition is not None else []
        if definition is None or not is_deleting(definition) or CLEANUP_FINALIZER not in finalizers:
            return None
        resource = resource_of(definition)
        if resource is None:
            why = "no version is served: serve a version so that its instances can be deleted"
            await self.update_terminating_condition(definition, "InstanceDeletionFailed", why)
            return None
        remains = RemainingContent()
        await self.deleter.delete_all(resource, None, remains)
        if remains.objects:
            failures = "; ".join(sorted(remains.failures))
            reason, why = "InstanceDeletionInProgress", "CustomResource deletion is in progress"
            if failures:
                reason, why = "InstanceDeletionFailed", f"could not issue all deletes: {failures}"
            await self.update_terminating_condition(definition, reason, why)
            return Result(requeue_after=RETRY_INTERVAL)
        others = [each for each in finalizers if each != CLEANUP_FINALIZER]
        await self.client.patch(CRDS, definition, {"metadata": {"finalizers": others}})
        return None

    async def update_terminating_condition(self, definition: Object, reason: str, message: str) -> None:
        before = value_at(definition, "status", "conditions", default=[])
        conditions = with_condition(before, new_condition("Terminating", True, reason, message), self.now())
        if conditions is not before:
            await self.client.patch(CRDS, definition, {"status": {"conditions": conditions}}, subresource="status")


def resource_of(definition: Object) -> Resource | None:
    """Return the resource in its first served version, or None if no version is served."""
    spec = definition["spec"]
    names = spec["names"]
    for version in spec["versions"]:
        if version["served"]:
            namespaced = spec["scope"] == "Namespaced"
            return Resource(spec["group"], version["name"], names["kind"], names["plural"], namespaced)
    return None


def install(manager: Manager) -> None:
    informer = manager.informer(CRDS, transform=without_schemas)
    deleter = CollectionDeleter(manager.reads, manager.client)
    reconciler = CrdFinalizer(informer.store, deleter, manager.client, manager.now)
    manager.controller("definitions", reconciler.reconcile, workers=1).watch(informer)
