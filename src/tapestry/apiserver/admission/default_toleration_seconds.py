"""DefaultTolerationSeconds admission: tolerations of nodes that are not ready or unreachable."""

from tapestry.apiserver.core.requests import WriteRequest
from tapestry.apiserver.core.spec_cache import memoized_and_interned
from tapestry.kube.objects import Object

DEFAULT_TOLERATIONS = {"node.kubernetes.io/not-ready": 300, "node.kubernetes.io/unreachable": 300}


async def default_toleration_seconds(request: WriteRequest, _: Object | None, new: Object) -> Object:
    """Tolerate not-ready and unreachable nodes for five minutes unless the pod has its own tolerations."""
    if request.target.subresource:
        return new
    return {**new, "spec": with_default_tolerations(new.get("spec") or {})}


@memoized_and_interned
def with_default_tolerations(spec: Object) -> Object:
    tolerations: list[Object] = list(spec.get("tolerations") or ())
    for key, seconds in DEFAULT_TOLERATIONS.items():
        if not any(tolerates_key(each, key) for each in tolerations):
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds})
    return {**spec, "tolerations": tolerations}


def tolerates_key(toleration: Object, key: str) -> bool:
    return toleration.get("key") in (None, "", key) and toleration.get("effect") in (None, "", "NoExecute")
