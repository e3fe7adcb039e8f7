"""Priority queue of pods to schedule, which hands out each pod to one worker at a time."""

import heapq
from dataclasses import dataclass, field

from tapestry.kube.objects import Object, key_of, value_at


@dataclass
class SchedulingQueue:
    """Keys of pods, by descending priority and then by age."""

    _heap: list[tuple[int, str, str]] = field(default_factory=list)
    """Entries: negated priority, creation time, key."""
    _waiting: set[str] = field(default_factory=set)
    """Keys in the heap."""
    _in_flight: set[str] = field(default_factory=set)

    def add(self, pod: Object) -> None:
        key = key_of(pod)
        if key not in self._waiting:
            self._waiting.add(key)
            priority = value_at(pod, "spec", "priority", default=0)
            heapq.heappush(self._heap, (-priority, pod["metadata"].get("creationTimestamp", ""), key))

    def pop(self) -> str | None:
        """Return the next key that is not in flight, and mark it as in flight until `done`."""
        skipped, key = [], None
        while self._heap and key is None:
            entry = heapq.heappop(self._heap)
            if entry[2] in self._in_flight:
                skipped.append(entry)
            else:
                key = entry[2]
        for entry in skipped:
            heapq.heappush(self._heap, entry)
        if key is not None:
            self._waiting.discard(key)
            self._in_flight.add(key)
        return key

    def done(self, key: str) -> None:
        self._in_flight.discard(key)
