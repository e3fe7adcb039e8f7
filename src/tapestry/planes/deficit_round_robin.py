"""Deficit round robin over owners of waiting items, by the time that each owner has used.

Owners take turns. In each round, an owner may use a quantum of time. If its work takes longer, it owes the difference
to the others in the next rounds. An owner that did not wait before comes first, once, as in FQ-CoDel (RFC 8290): the
item of an owner with little work waits for at most a quantum of each of the others that have also just come.

The time that an item will take is not known before. It is expected to take as long as the last ones of its owner, and
the difference is settled when the owner's time has been measured.
"""

from collections import deque
from collections.abc import Mapping
from typing import Generic, TypeVar

from tapestry.kube.objects import EMPTY_MAPPING
from tapestry.process.work_meter import WorkMeter

T = TypeVar("T")

FIRST_EXPECTED_NS, MIN_EXPECTED_NS = 500_000, 100_000
"""Time that the first item of an owner is expected to take, and the least time of all others."""
MEMORY = 4
"""Number of measurements that the expected time of an item remembers."""


class Flow(WorkMeter, Generic[T]):
    """Waiting items of one owner, and its measured work."""

    __slots__ = ("_charged_ns", "_charged_steps", "_expected_ns", "_promised_ns", "deficit_ns", "is_listed", "waiting")

    def __init__(self, log_values: Mapping[str, str] = EMPTY_MAPPING) -> None:
        super().__init__(log_values)
        self.waiting: deque[T] = deque()
        self.deficit_ns = 0
        """Time that the owner may use in this round. It is negative if the owner has used too much."""
        self.is_listed = False
        self._charged_ns = self._charged_steps = 0
        self._expected_ns = FIRST_EXPECTED_NS
        self._promised_ns = 0
        """Expected time of the items that were taken since the last measurement."""

    def start(self, quantum_ns: int) -> None:
        """Begin to wait, without regard to earlier work."""
        self._charged_ns, self._charged_steps = self.loop_ns, self.steps
        self._promised_ns, self.deficit_ns, self.is_listed = 0, quantum_ns, True

    def charge(self) -> None:
        """Charge the time that was used since the last call, instead of what was expected."""
        used, steps = self.loop_ns - self._charged_ns, self.steps - self._charged_steps
        self.deficit_ns -= used - self._promised_ns
        self._charged_ns, self._charged_steps, self._promised_ns = self.loop_ns, self.steps, 0
        if steps:
            self._expected_ns += (max(used // steps, MIN_EXPECTED_NS) - self._expected_ns) // MEMORY

    def take(self) -> tuple[T, int]:
        """Return the next item and the time that it is expected to take."""
        self._promised_ns += self._expected_ns
        self.deficit_ns -= self._expected_ns
        return self.waiting.popleft(), self._expected_ns


class DeficitRoundRobin(Generic[T]):
    """Waiting items of all owners. Each is returned once, those of one owner in their order."""

    def __init__(self, quantum_ns: int) -> None:
        self._quantum_ns = quantum_ns
        self._new: deque[Flow[T]] = deque()
        self._old: deque[Flow[T]] = deque()

    @property
    def owners(self) -> list[Flow[T]]:
        """Owners that wait, or that owe time."""
        return [*self._new, *self._old]

    @property
    def has_owners(self) -> bool:
        """False if nothing waits and nothing is owed."""
        return bool(self._new or self._old)

    def push(self, flow: Flow[T], item: T) -> None:
        flow.waiting.append(item)
        if not flow.is_listed:
            flow.start(self._quantum_ns)
            self._new.append(flow)

    def move(self, flow: Flow[T], queue: "DeficitRoundRobin[T]") -> None:
        """Let an owner that is in this queue, if it is in any, wait in another one, with what it owes."""
        if flow.is_listed:
            (self._new if flow in self._new else self._old).remove(flow)
            queue._old.append(flow)

    def take(self, budget_ns: int) -> list[T]:
        """Return the next items for an amount of time, and at least one if any waits."""
        for flow in self.owners:
            flow.charge()
        items = []
        while budget_ns > 0 and (next_flow := self._next_flow()) is not None:
            item, expected_ns = next_flow.take()
            items.append(item)
            budget_ns -= expected_ns
        return items

    def _next_flow(self) -> Flow[T] | None:
        while self._new:
            if self._new[0].waiting and self._new[0].deficit_ns > 0:
                return self._new[0]
            self._old.append(self._new.popleft())
        if not any(flow.waiting for flow in self._old):
            self._forget()
            return None
        while True:
            for _ in range(len(self._old)):
                flow = self._old[0]
                if flow.deficit_ns > 0 and flow.waiting:
                    return flow
                self._old.popleft()
                flow.is_listed = bool(flow.waiting) or flow.deficit_ns <= 0
                if flow.is_listed:
                    self._old.append(flow)
            self._start_round()

    def _start_round(self) -> None:
        """Give each owner a quantum, or as many as are needed so that one that waits has time again."""
        owed = min(-flow.deficit_ns for flow in self._old if flow.waiting)
        for flow in self._old:
            flow.deficit_ns += self._quantum_ns * (owed // self._quantum_ns + 1)

    def _forget(self) -> None:
        """Forget all owners, because none waits."""
        for flow in self._old:
            flow.is_listed = False
        self._old.clear()
