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


def known_priorities(values: Iterable[int]) -> list[int]:
    """Return the priorities of a plane in ascending order; `values` are those of its classes."""
    return sorted({0, *(each for each in values if each <= MAX_USER_PRIORITY)})


def class_of_priority(priority: int, known: Sequence[int], classes: Sequence[str]) -> str:
    """Return the class of the host cluster for a priority; `known` are the priorities of the plane."""
    if priority > MAX_USER_PRIORITY:
        return classes[-1]
    if len(known) == 1:
        return classes[0]
    rank = min(bisect_left(known, priority), len(known) - 1)
    return classes[rank * (len(classes) - 1) // (len(known) - 1)]


class TwinPriorities:
    """Classes of the twins of a tenant's pods."""

    def __init__(self, syncer: Syncer, classes: Sequence[str]) -> None:
        """`classes` are those that the tenant may use; without any, all twins have the class of the binding."""
        self._classes = classes
        self._known: list[int] | None = None
        self._virtual: ObjectCache | None = syncer.manager.informer(PRIORITY_CLASSES) if classes else None
        if self._virtual is not None:
            self._virtual.on_change(self._on_change)

    def _on_change(self, _: Object | None, __: Object | None) -> None:
        self._known = None

    def class_of(self, pod: Object) -> str:
        """Return the class of the twin of a pod; empty for that of the binding."""
        if self._virtual is None:
            return ""
        if self._known is None:
            self._known = known_priorities(each.get("value", 0) for each in self._virtual.store.list())
        return class_of_priority(pod["spec"].get("priority") or 0, self._known, self._classes)
