"""Basic facts of a pod: its containers, sidecars, terminal phases and tolerations."""

from collections.abc import Iterable, Iterator, Sequence

from tapestry.kube.objects import Object

CONTAINER_FIELDS = ("initContainers", "containers", "ephemeralContainers")
"""Fields that contain containers, in the order in which they start."""
CREATION_CONTAINER_FIELDS = CONTAINER_FIELDS[:2]
"""Container fields that are set on creation. Ephemeral containers are added later."""
TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})


def containers_of(pod: Object, fields: Sequence[str] = CREATION_CONTAINER_FIELDS) -> Iterator[Object]:
    for field in fields:
        yield from pod["spec"].get(field) or ()


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
