"""Basic facts of a pod: its containers, sidecars, terminal phases, tolerations and quality of service."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from tapestry.kube.objects import Object, annotations_of, value_at
from tapestry.kube.quantity import QuantityError, ResourceList, parse_quantity

CONTAINER_FIELDS = ("initContainers", "containers", "ephemeralContainers")
"""Fields that contain containers, in the order in which they start."""
CREATION_CONTAINER_FIELDS = CONTAINER_FIELDS[:2]
"""Container fields that are set on creation. Ephemeral containers are added later."""
COMPUTE_RESOURCES = ("cpu", "memory")
DEFAULT_CONTAINER_ANNOTATION = "kubectl.kubernetes.io/default-container"
"""Annotation with the name of the container that kubectl uses if none is named."""
MIRROR_POD_ANNOTATION = "kubernetes.io/config.mirror"
"""Annotation of a mirror pod, which a kubelet creates for a static pod."""
TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})


def containers_of(pod: Object, fields: Sequence[str] = CREATION_CONTAINER_FIELDS) -> Iterator[Object]:
    for field in fields:
        yield from pod["spec"].get(field) or ()


def default_container(pod: Object) -> str:
    """Return the container that kubectl uses if none is named: that of the annotation, or else the first."""
    annotated = annotations_of(pod).get(DEFAULT_CONTAINER_ANNOTATION, "")
    if any(each["name"] == annotated for each in containers_of(pod, CONTAINER_FIELDS)):
        return annotated
    first: str = pod["spec"]["containers"][0]["name"]
    return first


def is_sidecar(container: Object) -> bool:
    """Return True for an init container that keeps running beside all later containers."""
    return container.get("restartPolicy") == "Always"


def is_pod_terminal(pod: Object) -> bool:
    """Return True if the pod has terminated. It never runs again."""
    status = pod.get("status")
    return isinstance(status, dict) and status.get("phase") in TERMINAL_PHASES


NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
CORDON_TAINT: Object = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
"""Taint that the node controller sets on a cordoned node."""


def tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    operator = toleration.get("operator") or "Equal"
    if operator == "Exists":
        return True
    return operator == "Equal" and (toleration.get("value") or "") == (taint.get("value") or "")


def is_tolerated(taint: Object, tolerations: Iterable[Object]) -> bool:
    return any(tolerates(each, taint) for each in tolerations)


def taint_named(node: Object | None, key: str) -> Object | None:
    taints: list[Object] = value_at(node, "spec", "taints", default=[])
    return next((taint for taint in taints if taint["key"] == key), None)


def qos_class(spec: Object) -> str:
    """The quality of service class of a pod, from the requests and limits of its containers.

    Zero amounts do not count. Pod-level resources replace those of the containers.
    """
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    resources = [spec["resources"]] if spec.get("resources") else [item.get("resources") or {} for item in containers]
    requests, limits = ([positive_amounts(item.get(kind)) for item in resources] for kind in ("requests", "limits"))
    if not any(requests) and not any(limits):
        return "BestEffort"
    is_limited = all(len(item) == len(COMPUTE_RESOURCES) for item in limits)
    return "Guaranteed" if is_limited and sum(requests, ResourceList()) == sum(limits, ResourceList()) else "Burstable"


def positive_amounts(amounts: Object | None) -> ResourceList:
    """The amounts of cpu and memory above zero. Validation rejects invalid quantities elsewhere."""
    result = ResourceList()
    for resource in COMPUTE_RESOURCES:
        with suppress(QuantityError):
            if amount := parse_quantity((amounts or {}).get(resource, "0")):
                result[resource] = amount
    return result
