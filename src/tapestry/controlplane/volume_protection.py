"""Protection: a claim outlasts the pods that mount it, and a volume the claim that is bound to it.

The API server adds the finalizer on creation (`tapestry.apiserver.admission.class_defaults`).  These controllers remove
it from deleted objects that no pod uses.
"""

from dataclasses import dataclass

from tapestry.client.client import Client
from tapestry.controller import Manager, Result
from tapestry.controller.queue import Queue
from tapestry.controlplane.metadata_informers import MetadataInformers
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, namespace_of, split_key, value_at
from tapestry.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, Resource

FINALIZERS = {
    PERSISTENT_VOLUME_CLAIMS: "kubernetes.io/pvc-protection",
    PERSISTENT_VOLUMES: "kubernetes.io/pv-protection",
}
RETRY_INTERVAL = 1.0
"""Seconds: only who is deleted while in use has to wait at all."""


@dataclass(frozen=True)
class VolumeProtectionReconciler:
    """Lets go of one claim or volume at a time."""

    reads: Client
    client: Client

    async def reconcile(self, key: str) -> Result | None:
        plural, _, place = key.partition(" ")
        resource = next(each for each in FINALIZERS if each.plural == plural)
        namespace, name = split_key(place)
        try:
            obj = await self.reads.get(resource, name, namespace)
            if not is_awaiting_release(resource, obj):
                return None
            if await self.is_in_use(resource, obj):
                return Result(requeue_after=RETRY_INTERVAL)
            left = [each for each in obj["metadata"]["finalizers"] if each != FINALIZERS[resource]]
            await self.client.patch(resource, obj, {"metadata": {"finalizers": left}})
        except NotFound:
            return None  # it went meanwhile
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
    """Whether a pod that a kubelet may be running has the claim among its volumes."""
    spec, metadata = pod["spec"], pod["metadata"]
    if not spec.get("nodeName"):
        return False
    is_shut_down = is_deleting(pod) and metadata.get("deletionGracePeriodSeconds") == 0
    own = {f"{name_of(pod)}-{each['name']}" for each in spec.get("volumes") or () if "ephemeral" in each}
    named = {value_at(each, "persistentVolumeClaim", "claimName") for each in spec.get("volumes") or ()}
    return name_of(claim) in named or (not is_shut_down and name_of(claim) in own)


def install(manager: Manager, metadata_informers: MetadataInformers) -> None:
    reconciler = VolumeProtectionReconciler(manager.reads, manager.client)
    controller = manager.controller("protection", reconciler.reconcile, workers=1)

    def noticed(queue: Queue, resource: Resource, new: Object | None) -> None:
        if new is not None and resource in FINALIZERS and is_awaiting_release(resource, new):
            queue.add(f"{resource.plural} {key_of(new)}")

    metadata_informers.on_change(lambda resource, _, new: noticed(controller.queue, resource, new))
