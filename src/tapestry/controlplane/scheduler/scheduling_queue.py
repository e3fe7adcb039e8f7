"""The line in which pods wait: the most important first, then the oldest; nobody is served twice at a time."""

import heapq
from dataclasses import dataclass, field

from tapestry.kube.objects import Object, key_of, value_at


@dataclass
class SchedulingQueue:
    """Keys of pods."""

    _heap: list[tuple[int, str, str]] = field(default_factory=list)
    """Priority, the other way round; when it came; key."""
    _waiting: set[str] = field(default_factory=set)
    """The keys in it."""
    _in_flight: set[str] = field(default_factory=set)

    def add(self, pod: Object) -> None:
        key = key_of(pod)
        if key not in self._waiting:
            self._waiting.add(key)
            priority = value_at(pod, "spec", "priority", default=0)
            heapq.heappush(self._heap, (-priority, pod["metadata"].get("creationTimestamp", ""), key))

    def pop(self) -> str | None:
        """Whose turn it is, of those in nobody's hands; in ours, until `done`."""
        held, found = [], None
        while self._heap and found is None:
            entry = heapq.heappop(self._heap)
            if entry[2] in self._in_flight:
                held.append(entry)
            else:
                found = entry[2]
        for entry in held:
            heapq.heappush(self._heap, entry)
        if found is not None:
            self._waiting.discard(found)
            self._in_flight.add(found)
        return found

    def done(self, key: str) -> None:
        self._in_flight.discard(key)
