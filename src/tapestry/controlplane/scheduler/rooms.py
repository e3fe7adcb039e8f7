"""What nodes have: room, ports, and the pods that are there.  Kept up to date change by change, never made anew.

Pods are counted by kind and by node as they come and go, so that a rule about other pods looks at kinds, of which there
are few, and not at pods.
"""

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from tapestry.controlplane.scheduler.asked import ANY_ADDRESS, Asked, Company, Kind, Port
from tapestry.kube.objects import Object, labels_of, name_of, value_at
from tapestry.kube.quantity import Amounts

REMEMBERED = 64

_versions = itertools.count(1)


@dataclass(slots=True)
class Room:
    """A node and what is on it.  Amounts are in nano-units."""

    node: Object
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Object, ...] = ()
    is_cordoned: bool = False
    has: Mapping[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    cpu: int = 0
    """What its pods count for when nodes are compared."""
    memory: int = 0
    pods: dict[str, Asked] = field(default_factory=dict)
    ports: dict[Port, int] = field(default_factory=dict)
    version: int = 0
    """Another one after each change, and never that of another room."""

    def become(self, node: Object) -> None:
        """The node as it is now; its pods stay.  Raises QuantityError where nobody can tell what it has."""
        amounts = Amounts.parse(value_at(node, "status", "allocatable"))
        self.has = {key: each.nano for key, each in amounts.items()}
        self.node, self.labels = node, labels_of(node)
        self.taints = tuple(value_at(node, "spec", "taints", default=()))
        self.is_cordoned = bool(value_at(node, "spec", "unschedulable"))
        self.version = next(_versions)

    def lacks(self, requests: Mapping[str, int]) -> list[str]:
        """The resources that there is too little of."""
        has, used = self.has, self.used
        return [name for name, amount in requests.items() if amount > has.get(name, 0) - used.get(name, 0)]

    def is_taken(self, ports: Iterable[Port]) -> bool:
        for address, protocol, number in ports:
            for taken in self.ports:
                if taken[1:] == (protocol, number) and (ANY_ADDRESS in (address, taken[0]) or address == taken[0]):
                    return True
        return False

    def add(self, pod: Asked) -> None:
        self.pods[pod.key] = pod
        self._count(pod, 1)

    def remove(self, pod: Asked) -> None:
        del self.pods[pod.key]
        self._count(pod, -1)

    def _count(self, pod: Asked, sign: int) -> None:
        used, needs = self.used, pod.needs
        for name, amount in needs.requests.items():
            used[name] = used.get(name, 0) + sign * amount
        self.cpu += sign * needs.weighs[0]
        self.memory += sign * needs.weighs[1]
        for port in needs.ports:
            self.ports[port] = self.ports.get(port, 0) + sign
            if not self.ports[port]:
                del self.ports[port]
        self.version = next(_versions)


Counts = dict[str, int]
"""How many, by the name of a node."""
Whom = TypeVar("Whom", Kind, Company)


class Rooms:
    """All nodes, and where each pod is.  A pod may be known before its node is."""

    def __init__(self) -> None:
        self.rooms: dict[str, Room] = {}
        self.spaces: dict[str, Mapping[str, str]] = {}
        """The labels of namespaces."""
        self.places: dict[str, tuple[str, Asked]] = {}
        self.kinds: dict[Kind, Counts] = {}
        self.opinions: dict[Company, Counts] = {}
        """What pods that are somewhere say about others."""
        self._domains: dict[Hashable, Mapping[str, str]] = {}

    def __iter__(self) -> Iterator[Room]:
        return iter(self.rooms.values())

    def __len__(self) -> int:
        return len(self.rooms)

    def domains(self, key: Hashable, worked_out: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
        """What was worked out under that key: it must depend on nodes alone, and holds until one of them changes."""
        found = self._domains.get(key)
        if found is None:
            if len(self._domains) >= REMEMBERED:
                self._domains.clear()
            found = self._domains[key] = worked_out()
        return found

    def place_of(self, key: str) -> str | None:
        found = self.places.get(key)
        return found[0] if found is not None else None

    def set_node(self, node: Object) -> None:
        """The node as it is now; its pods stay where they are.  Raises QuantityError, and then nothing has changed."""
        name = name_of(node)
        self._domains.clear()
        room = self.rooms.get(name)
        if room is not None:
            room.become(node)
            return
        room = Room(node, name)
        room.become(node)
        self.rooms[name] = room
        for place, pod in self.places.values():
            if place == name:
                room.add(pod)

    def remove_node(self, name: str) -> None:
        self._domains.clear()
        self.rooms.pop(name, None)

    def add(self, pod: Asked, node: str) -> None:
        """The pod is on that node, or on its way there."""
        self.remove(pod.key)
        self.places[pod.key] = (node, pod)
        count(self.kinds, pod.kind, node, 1)
        if pod.company.is_picky:
            count(self.opinions, pod.company, node, 1)
        if (room := self.rooms.get(node)) is not None:
            room.add(pod)

    def remove(self, key: str) -> bool:
        """The pod is gone; whether it was anywhere."""
        found = self.places.pop(key, None)
        if found is None:
            return False
        node, pod = found
        count(self.kinds, pod.kind, node, -1)
        if pod.company.is_picky:
            count(self.opinions, pod.company, node, -1)
        if (room := self.rooms.get(node)) is not None:
            room.remove(pod)
        return True

    @contextmanager
    def with_guests(self, guests: Iterable[Asked], node: str) -> Iterator[None]:
        """The rooms as if these pods were on that node too."""
        coming = [each for each in guests if each.key not in self.places]
        for each in coming:
            self.add(each, node)
        try:
            yield
        finally:
            for each in coming:
                self.remove(each.key)

    @contextmanager
    def restored(self, pods: Iterable[Asked], node: str) -> Iterator[None]:
        """Whatever happens inside, these pods are on that node afterwards."""
        try:
            yield
        finally:
            for each in pods:
                self.add(each, node)


def count(counts: dict[Whom, Counts], whom: Whom, node: str, by: int) -> None:
    by_node = counts.setdefault(whom, {})
    by_node[node] = by_node.get(node, 0) + by
    if not by_node[node]:
        del by_node[node]
        if not by_node:
            del counts[whom]
