"""What is true of any pod: where its containers are, and when it has ended."""

from collections.abc import Iterator, Sequence

from tapestry.kube.objects import Object

CONTAINER_FIELDS = ("initContainers", "containers", "ephemeralContainers")
"""Where a pod's containers are, in the order in which they come to run."""
CREATION_CONTAINER_FIELDS = CONTAINER_FIELDS[:2]
"""Those that it was made with; the others come while it runs."""
TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})
"""Phases that a pod does not leave."""


def containers_of(pod: Object, fields: Sequence[str] = CREATION_CONTAINER_FIELDS) -> Iterator[Object]:
    for field in fields:
        yield from pod["spec"].get(field) or ()


def is_sidecar(container: Object) -> bool:
    """Whether an init container goes on beside everything that comes after it."""
    return container.get("restartPolicy") == "Always"


def is_pod_terminal(pod: Object) -> bool:
    """Whether the pod has ended; it never runs again."""
    status = pod.get("status")
    return isinstance(status, dict) and status.get("phase") in TERMINAL_PHASES
