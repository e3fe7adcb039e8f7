"""Controllers that keep claims and volumes until they are no longer in use.

The API server adds the finalizer on creation (`apiserver/admission/storage_object_in_use_protection.py`). These
controllers remove it from deleted objects that are not in use: a claim that no pod mounts, a volume that is not bound.
"""

from dataclasses import dataclass

from tapestry.client.client import Client
from tapestry.controller import Manager, Result
from tapestry.controller.queue import Queue
from tapestry.controlplane.metadata_cache import MetadataCache
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, namespace_of, split_key, value_at
from tapestry.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, Resource

FINALIZERS = {
    PERSISTENT_VOLUME_CLAIMS: "kubernetes.io/pvc-protection",
    PERSISTENT_VOLUMES: "kubernetes.io/pv-protection",
}
RETRY_INTERVAL = 1.0
"""Seconds until a deleted object that is still in use is checked again."""


@dataclass(frozen=True)
class VolumeProtectionReconciler:
    """Remove the protection finalizer from deleted claims and volumes."""

    reads: Client
    client: Client

    async def reconcile(self, key: str) -> Result | None:
        plural, _, object_key = key.partition(" ")
        resource = next(each for each in FINALIZERS if each.plural == plural)
        namespace, name = split_key(object_key)
        try:
            obj = await self.reads.get(resource, name, namespace)
            if not is_awaiting_release(resource, obj):
                return None
            if await self.is_in_use(resource, obj):
                return Result(requeue_after=RETRY_INTERVAL)
            finalizers = [each for each in obj["metadata"]["finalizers"] if each != FINALIZERS[resource]]
            await self.client.patch(resource, obj, {"metadata": {"finalizers": finalizers}})
        except NotFound:
            return None  # deleted in the meantime
        return None

    async def is_in_use(self, resource: Resource, obj: Object) -> bool:
        if resource == PERSISTENT_VOLUMES:
            return bool(value_at(obj, "status", "phase") == "Bound")
        async for page in self.reads.pages(PODS, namespace_of(obj), without_managed_fields=True):
            if any(uses_claim(pod, obj) for pod in page.items):
                return True
        return False


def is_awaiting_release(resource: Resource, obj: Object) -> bool:
    return is_deleting(obj) and FINALIZERS[resource] in (obj["metadata"].get("finalizers") or ())


def uses_claim(pod: Object, claim: Object) -> bool:
    """Return whether a pod mounts the claim and a kubelet may still be running it."""
    spec, metadata = pod["spec"], pod["metadata"]
    if not spec.get("nodeName"):
        return False
    is_shut_down = is_deleting(pod) and metadata.get("deletionGracePeriodSeconds") == 0
    ephemeral = {f"{name_of(pod)}-{each['name']}" for each in spec.get("volumes") or () if "ephemeral" in each}
    mounted = {value_at(each, "persistentVolumeClaim", "claimName") for each in spec.get("volumes") or ()}
    return name_of(claim) in mounted or (not is_shut_down and name_of(claim) in ephemeral)


def install(manager: Manager, metadata: MetadataCache) -> None:
    reconciler = VolumeProtectionReconciler(manager.reads, manager.client)
    controller = manager.controller("protection", reconciler.reconcile, workers=1)

    def enqueue(queue: Queue, resource: Resource, new: Object | None) -> None:
        if new is not None and is_deleting(new) and resource in FINALIZERS and is_awaiting_release(resource, new):
            queue.add(f"{resource.plural} {key_of(new)}")

    metadata.on_change(lambda resource, _, new: enqueue(controller.queue, resource, new))
