"""StorageObjectInUseProtection admission: a finalizer that keeps volumes and claims while they are in use.

`tapestry.controlplane.volume_protection` removes the finalizer.
"""

from tapestry.apiserver.core.requests import WriteRequest
from tapestry.kube.objects import Object

PROTECTION_FINALIZERS = {
    "persistentvolumeclaims": "kubernetes.io/pvc-protection",
    "persistentvolumes": "kubernetes.io/pv-protection",
}


async def protect_storage_object(request: WriteRequest, _: Object | None, new: Object) -> Object:
    finalizers = new["metadata"].get("finalizers") or []
    finalizer = PROTECTION_FINALIZERS[request.target.info.storage]
    if finalizer in finalizers or request.verb != "create" or request.target.subresource:
        return new
    return {**new, "metadata": {**new["metadata"], "finalizers": [*finalizers, finalizer]}}
