"""What nodes have: room, ports, and the pods that are there.  Kept up to date change by change, never made anew.

Pods are counted by kind and by node as they come and go, so that a rule about other pods looks at kinds, of which there
are few, and not at pods.
"""

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from tapestry.controlplane.scheduler.pod_info import ANY_ADDRESS, AffinityTerms, HostPort, PodGroupKey, PodInfo
from tapestry.kube.objects import Object, labels_of, name_of, value_at
from tapestry.kube.quantity import ResourceList

CACHED_DOMAINS = 64

_versions = itertools.count(1)


@dataclass(slots=True)
class NodeInfo:
    """A node and what is on it.  Amounts are in nano-units."""

    node: Object
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Object, ...] = ()
    is_cordoned: bool = False
    allocatable: Mapping[str, int] = field(default_factory=dict)
    requested: dict[str, int] = field(default_factory=dict)
    nonzero_cpu: int = 0
    """What its pods count for when nodes are compared."""
    nonzero_memory: int = 0
    pods: dict[str, PodInfo] = field(default_factory=dict)
    used_ports: dict[HostPort, int] = field(default_factory=dict)
    generation: int = 0
    """Another one after each change, and never that of another room."""

    def set_node(self, node: Object) -> None:
        """The node as it is now; its pods stay.  Raises QuantityError where nobody can tell what it has."""
        amounts = ResourceList.parse(value_at(node, "status", "allocatable"))
        self.allocatable = {key: each.nano for key, each in amounts.items()}
        self.node, self.labels = node, labels_of(node)
        self.taints = tuple(value_at(node, "spec", "taints", default=()))
        self.is_cordoned = bool(value_at(node, "spec", "unschedulable"))
        self.generation = next(_versions)

    def insufficient_resources(self, requests: Mapping[str, int]) -> list[str]:
        """The resources that there is too little of."""
        has, used = self.allocatable, self.requested
        return [name for name, amount in requests.items() if amount > has.get(name, 0) - used.get(name, 0)]

    def has_port_conflict(self, ports: Iterable[HostPort]) -> bool:
        for address, protocol, number in ports:
            for taken in self.used_ports:
                if taken[1:] == (protocol, number) and (ANY_ADDRESS in (address, taken[0]) or address == taken[0]):
                    return True
        return False

    def add_pod(self, pod_info: PodInfo) -> None:
        self.pods[pod_info.key] = pod_info
        self._count(pod_info, 1)

    def remove_pod(self, pod_info: PodInfo) -> None:
        del self.pods[pod_info.key]
        self._count(pod_info, -1)

    def _count(self, pod_info: PodInfo, sign: int) -> None:
        used, needs = self.requested, pod_info.requirements
        for name, amount in needs.requests.items():
            used[name] = used.get(name, 0) + sign * amount
        self.nonzero_cpu += sign * needs.nonzero_requests[0]
        self.nonzero_memory += sign * needs.nonzero_requests[1]
        for port in needs.host_ports:
            self.used_ports[port] = self.used_ports.get(port, 0) + sign
            if not self.used_ports[port]:
                del self.used_ports[port]
        self.generation = next(_versions)


NodeCounts = dict[str, int]
"""How many, by the name of a node."""
CountKey = TypeVar("CountKey", PodGroupKey, AffinityTerms)


class SchedulerCache:
    """All nodes, and where each pod is.  A pod may be known before its node is."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeInfo] = {}
        self.namespace_labels: dict[str, Mapping[str, str]] = {}
        """The labels of namespaces."""
        self.assignments: dict[str, tuple[str, PodInfo]] = {}
        self.counts_by_group: dict[PodGroupKey, NodeCounts] = {}
        self.existing_affinity: dict[AffinityTerms, NodeCounts] = {}
        """What pods that are somewhere say about others."""
        self._domains: dict[Hashable, Mapping[str, str]] = {}

    def __iter__(self) -> Iterator[NodeInfo]:
        return iter(self.nodes.values())

    def __len__(self) -> int:
        return len(self.nodes)

    def cached_domains(self, key: Hashable, compute: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
        """What was worked out under that key: it must depend on nodes alone, and holds until one of them changes."""
        found = self._domains.get(key)
        if found is None:
            if len(self._domains) >= CACHED_DOMAINS:
                self._domains.clear()
            found = self._domains[key] = compute()
        return found

    def node_name_of(self, key: str) -> str | None:
        found = self.assignments.get(key)
        return found[0] if found is not None else None

    def set_node(self, node: Object) -> None:
        """The node as it is now; its pods stay where they are.  Raises QuantityError, and then nothing has changed."""
        name = name_of(node)
        self._domains.clear()
        room = self.nodes.get(name)
        if room is not None:
            room.set_node(node)
            return
        room = NodeInfo(node, name)
        room.set_node(node)
        self.nodes[name] = room
        for place, pod in self.assignments.values():
            if place == name:
                room.add_pod(pod)

    def remove_node(self, name: str) -> None:
        self._domains.clear()
        self.nodes.pop(name, None)

    def add_pod(self, pod_info: PodInfo, node: str) -> None:
        """The pod is on that node, or on its way there."""
        self.remove_pod(pod_info.key)
        self.assignments[pod_info.key] = (node, pod_info)
        adjust_count(self.counts_by_group, pod_info.group, node, 1)
        if pod_info.affinity_terms.has_affinity:
            adjust_count(self.existing_affinity, pod_info.affinity_terms, node, 1)
        if (room := self.nodes.get(node)) is not None:
            room.add_pod(pod_info)

    def remove_pod(self, key: str) -> bool:
        """The pod is gone; whether it was anywhere."""
        found = self.assignments.pop(key, None)
        if found is None:
            return False
        node, pod = found
        adjust_count(self.counts_by_group, pod.group, node, -1)
        if pod.affinity_terms.has_affinity:
            adjust_count(self.existing_affinity, pod.affinity_terms, node, -1)
        if (room := self.nodes.get(node)) is not None:
            room.remove_pod(pod)
        return True

    @contextmanager
    def with_pods(self, pods: Iterable[PodInfo], node: str) -> Iterator[None]:
        """The rooms as if these pods were on that node too."""
        coming = [each for each in pods if each.key not in self.assignments]
        for each in coming:
            self.add_pod(each, node)
        try:
            yield
        finally:
            for each in coming:
                self.remove_pod(each.key)

    @contextmanager
    def restoring_pods(self, pods: Iterable[PodInfo], node: str) -> Iterator[None]:
        """Whatever happens inside, these pods are on that node afterwards."""
        try:
            yield
        finally:
            for each in pods:
                self.add_pod(each, node)


def adjust_count(counts: dict[CountKey, NodeCounts], key: CountKey, node: str, delta: int) -> None:
    by_node = counts.setdefault(key, {})
    by_node[node] = by_node.get(node, 0) + delta
    if not by_node[node]:
        del by_node[node]
        if not by_node:
            del counts[key]
