"""Priorities of the pods of a tenant in its host cluster: classes of the range that its HostCluster allows.

The values of the plane's PriorityClasses, and 0, are spread over the range in their order: the lowest one gets the
lowest class, and the highest one the highest. Pods of the plane's system classes get the highest class, too. A twin
keeps its class when the classes of the plane change.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from tapestry.apis.priorities import PRIORITY_CLASSES
from tapestry.controller import ObjectCache
from tapestry.kube.objects import Object
from tapestry.syncer.components import Syncer

MAX_USER_PRIORITY = 1_000_000_000
"""Highest value of a PriorityClass that is not one of the system's."""


def class_of_priority(priority: int, values: Iterable[int], classes: Sequence[str]) -> str:
    """Return the class of the host cluster for a priority; `values` are those of the plane's classes."""
    if priority > MAX_USER_PRIORITY:
        return classes[-1]
    known = sorted({0, *(each for each in values if each <= MAX_USER_PRIORITY)})
    if len(known) == 1:
        return classes[0]
    rank = min(bisect_left(known, priority), len(known) - 1)
    return classes[rank * (len(classes) - 1) // (len(known) - 1)]


class TwinPriorities:
    """Classes of the twins of a tenant's pods."""

    def __init__(self, syncer: Syncer, classes: Sequence[str]) -> None:
        """`classes` are those that the tenant may use; without any, all twins have the class of the binding."""
        self._classes = classes
        self._virtual: ObjectCache | None = syncer.manager.informer(PRIORITY_CLASSES) if classes else None

    def class_of(self, pod: Object) -> str:
        """Return the class of the twin of a pod; empty for that of the binding."""
        if self._virtual is None:
            return ""
        values = (each.get("value", 0) for each in self._virtual.store.list())
        return class_of_priority(pod["spec"].get("priority") or 0, values, self._classes)
