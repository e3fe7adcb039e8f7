"""Basic facts of a pod: its containers, sidecars and terminal phases."""

from collections.abc import Iterator, Sequence

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
