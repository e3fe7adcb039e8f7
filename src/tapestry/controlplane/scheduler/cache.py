"""Cache of nodes with their resources, ports and pods, updated with each change.

Pods are counted by group and node. Rules about other pods evaluate the groups, which are few, instead of all pods.
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
    """A node and the pods on it. Amounts are in nano-units."""

    node: Object
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Object, ...] = ()
    is_cordoned: bool = False
    allocatable: Mapping[str, int] = field(default_factory=dict)
    requested: dict[str, int] = field(default_factory=dict)
    nonzero_cpu: int = 0
    """Requests of its pods with defaults for missing ones, used for scoring."""
    nonzero_memory: int = 0
    pods: dict[str, PodInfo] = field(default_factory=dict)
    used_ports: dict[HostPort, int] = field(default_factory=dict)
    generation: int = 0
    """A unique number that changes with every update."""

    def set_node(self, node: Object) -> None:
        """Update the node and keep its pods. Raises QuantityError if its allocatable amounts are invalid."""
        amounts = ResourceList.parse(value_at(node, "status", "allocatable"))
        self.allocatable = {key: each.nano for key, each in amounts.items()}
        self.node, self.labels = node, labels_of(node)
        self.taints = tuple(value_at(node, "spec", "taints", default=()))
        self.is_cordoned = bool(value_at(node, "spec", "unschedulable"))
        self.generation = next(_versions)

    def insufficient_resources(self, requests: Mapping[str, int]) -> list[str]:
        """Return the names of resources of which the node has too little."""
        allocatable, used = self.allocatable, self.requested
        return [name for name, amount in requests.items() if amount > allocatable.get(name, 0) - used.get(name, 0)]

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
        used, requirements = self.requested, pod_info.requirements
        for name, amount in requirements.requests.items():
            used[name] = used.get(name, 0) + sign * amount
        self.nonzero_cpu += sign * requirements.nonzero_requests[0]
        self.nonzero_memory += sign * requirements.nonzero_requests[1]
        for port in requirements.host_ports:
            self.used_ports[port] = self.used_ports.get(port, 0) + sign
            if not self.used_ports[port]:
                del self.used_ports[port]
        self.generation = next(_versions)


NodeCounts = dict[str, int]
"""Number of pods by node name."""
CountKey = TypeVar("CountKey", PodGroupKey, AffinityTerms)


class SchedulerCache:
    """All nodes, and the node of each pod. A pod may be added before its node."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeInfo] = {}
        self.namespace_labels: dict[str, Mapping[str, str]] = {}
        self.assignments: dict[str, tuple[str, PodInfo]] = {}
        self.counts_by_group: dict[PodGroupKey, NodeCounts] = {}
        self.existing_affinity: dict[AffinityTerms, NodeCounts] = {}
        """Affinity terms of pods on nodes, with their number by node."""
        self.claim_users: dict[str, set[str]] = {}
        """Keys of the pods on nodes that use a claim, by the key of the claim."""
        self._domains: dict[Hashable, Mapping[str, str]] = {}

    def __iter__(self) -> Iterator[NodeInfo]:
        return iter(self.nodes.values())

    def __len__(self) -> int:
        return len(self.nodes)

    def cached_domains(self, key: Hashable, compute: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
        """Return the cached result of `compute`, which must depend only on nodes. Any node change clears the cache."""
        domains = self._domains.get(key)
        if domains is None:
            if len(self._domains) >= CACHED_DOMAINS:
                self._domains.clear()
            domains = self._domains[key] = compute()
        return domains

    def node_name_of(self, key: str) -> str | None:
        assignment = self.assignments.get(key)
        return assignment[0] if assignment is not None else None

    def set_node(self, node: Object) -> None:
        """Add or update a node and keep its pods. If it raises QuantityError, nothing has changed."""
        name = name_of(node)
        self._domains.clear()
        info = self.nodes.get(name)
        if info is not None:
            info.set_node(node)
            return
        info = NodeInfo(node, name)
        info.set_node(node)
        self.nodes[name] = info
        for node_name, pod in self.assignments.values():
            if node_name == name:
                info.add_pod(pod)

    def remove_node(self, name: str) -> None:
        self._domains.clear()
        self.nodes.pop(name, None)

    def add_pod(self, pod_info: PodInfo, node: str) -> None:
        self.remove_pod(pod_info.key)
        self.assignments[pod_info.key] = (node, pod_info)
        adjust_count(self.counts_by_group, pod_info.group, node, 1)
        if pod_info.affinity_terms.has_affinity:
            adjust_count(self.existing_affinity, pod_info.affinity_terms, node, 1)
        for claim in pod_info.claims:
            self.claim_users.setdefault(claim, set()).add(pod_info.key)
        if (info := self.nodes.get(node)) is not None:
            info.add_pod(pod_info)

    def remove_pod(self, key: str) -> bool:
        """Remove a pod. Return whether it was assigned to a node."""
        assignment = self.assignments.pop(key, None)
        if assignment is None:
            return False
        node, pod = assignment
        adjust_count(self.counts_by_group, pod.group, node, -1)
        if pod.affinity_terms.has_affinity:
            adjust_count(self.existing_affinity, pod.affinity_terms, node, -1)
        for claim in pod.claims:
            users = self.claim_users.get(claim, set())
            users.discard(key)
            if not users:
                self.claim_users.pop(claim, None)
        if (info := self.nodes.get(node)) is not None:
            info.remove_pod(pod)
        return True

    @contextmanager
    def with_pods(self, pods: Iterable[PodInfo], node: str) -> Iterator[None]:
        """Treat these pods as being on the node within the context."""
        added = [each for each in pods if each.key not in self.assignments]
        for each in added:
            self.add_pod(each, node)
        try:
            yield
        finally:
            for each in added:
                self.remove_pod(each.key)

    @contextmanager
    def restoring_pods(self, pods: Iterable[PodInfo], node: str) -> Iterator[None]:
        """Put these pods back on the node at the end of the context."""
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
