"""What is true of any pod: where its containers are, and when it has ended."""

from collections.abc import Iterator, Sequence

from tapestry.kube.objects import Object

LISTS = ("initContainers", "containers", "ephemeralContainers")
"""Where a pod's containers are, in the order in which they come to run."""
FROM_THE_START = LISTS[:2]
"""Those that it was made with; the others come while it runs."""
ENDED = frozenset({"Succeeded", "Failed"})
"""Phases that a pod does not leave."""


def containers_of(pod: Object, lists: Sequence[str] = FROM_THE_START) -> Iterator[Object]:
    for field in lists:
        yield from pod["spec"].get(field) or ()


def is_sidecar(container: Object) -> bool:
    """Whether an init container goes on beside everything that comes after it."""
    return container.get("restartPolicy") == "Always"


def is_over(pod: Object) -> bool:
    """Whether the pod has ended; it never runs again."""
    status = pod.get("status")
    return isinstance(status, dict) and status.get("phase") in ENDED
