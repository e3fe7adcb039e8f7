"""Nodes of a host cluster on which pods of a tenant may start now, for placement by the scheduler of the host.

No lease is kept for each node, because a host cluster may have thousands of nodes and a process hundreds of tenants.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from tapestry.apis.clusterbindings import Binding
from tapestry.kube.objects import Object, is_deleting, value_at
from tapestry.syncer.admission import Wait, node_closure
from tapestry.syncer.caches import Caches
from tapestry.syncer.lease_cache import LeaseCache
from tapestry.syncer.leasing import Lease, LeaseRules, soonest
from tapestry.syncer.policies import LastTerms, deciding_terms, forced_terms
from tapestry.syncer.total_limits import combined_limits
from tapestry.syncer.translate.host_placement import (
    HostPlacement,
    host_placement,
    hostname_of_node,
    node_matcher,
    unique_hostnames,
)
from tapestry.syncer.translate.nodes import HOSTNAME

NO_NODES = "NoNodes"
LIMITED = "AmountsLimited"
NO_MATCH = "NodeNotMatched"
MAX_REASONS = 3


@dataclass(frozen=True, slots=True)
class OpenNodeList:
    """The open nodes at one time."""

    rules: LeaseRules
    nodes: tuple[Object, ...]
    whole: HostPlacement
    """Placement of a pod that requires nothing of its node."""
    forced_terms: str
    """Terms of the policies of these nodes that force pods to end, as an annotation."""
    closures: tuple[str, ...]
    """Reasons why other nodes are not open, the most frequent first."""
    next_change: datetime | None
    """Time at which a lease opens or closes."""


@dataclass
class OpenNodes:
    """Candidates for pods that have no node yet."""

    caches: Caches
    lease_cache: LeaseCache
    now: Callable[[], datetime]
    _known: OpenNodeList | None = field(default=None, init=False)

    def on_physical_node_change(self, old: Object | None, new: Object | None) -> None:
        """Handle a change of a node of the host cluster."""
        if is_relevant_change(old, new):
            self._known = None

    def placement(self, pod: Object, binding: Binding) -> HostPlacement | Wait:
        """Return the candidates for a pod, or why there are none."""
        known = self.open_nodes(binding)
        matches = node_matcher(pod)
        if matches is None and known.nodes:
            return known.whole
        nodes = [each for each in known.nodes if matches is not None and matches(each)]
        if nodes:
            return host_placement(nodes)
        if known.nodes:
            message = (
                f"none of the {len(known.nodes)} open nodes matches the node selector and the node affinity of the pod"
            )
            return Wait(NO_MATCH, message, known.next_change)
        reasons = "; ".join(known.closures[:MAX_REASONS]) or "it has no nodes"
        return Wait(NO_NODES, f"the host cluster has no open node: {reasons}", known.next_change)

    def next_change(self, binding: Binding) -> datetime | None:
        """Return when a lease will open or close."""
        return self.open_nodes(binding).next_change

    def open_nodes(self, binding: Binding) -> OpenNodeList:
        rules, now, known = self.lease_cache.lease_rules(binding), self.now(), self._known
        if known is None or known.rules is not rules or (known.next_change is not None and known.next_change <= now):
            known = self._known = self._compute(binding, rules, now)
        return known

    def _compute(self, binding: Binding, rules: LeaseRules, now: datetime) -> OpenNodeList:
        found: list[Object] = []
        terms: list[LastTerms] = []
        closures: dict[str, int] = {}
        changes: list[datetime | None] = []
        is_limited, everywhere = bool(combined_limits(rules, now)), self.caches.physical_nodes.store.list()
        identifying = unique_hostnames(everywhere)
        for node in everywhere:
            if is_deleting(node):
                continue
            lease = self.lease_cache.compute_lease(node, None, binding, now)
            changes.append(lease.next_change)
            closure = node_closure(node, lease, now)
            if closure is None and (is_limited or not is_whole(lease)):
                message = "policies limit the amounts of nodes; such nodes are only used with placement virtual"
            elif closure is None and hostname_of_node(node) not in identifying:
                message = f"nodes have no host name of their own in the label {HOSTNAME}"
            elif closure is None:
                found.append(node)
                terms += deciding_terms(lease)
                continue
            else:
                message = closure.message
            closures[message] = closures.get(message, 0) + 1
        reasons = sorted(closures, key=lambda each: -closures[each])
        return OpenNodeList(
            *(rules, tuple(found), host_placement(found), forced_terms(terms), tuple(reasons), soonest(*changes))
        )


def is_whole(lease: Lease) -> bool:
    """Return whether no policy limits the amounts of a node."""
    return lease.amounts == lease.idle


def is_relevant_change(old: Object | None, new: Object | None) -> bool:
    """Return whether a change of a node may open or close it, or change which pods it matches."""
    if old is None or new is None or is_deleting(old) != is_deleting(new):
        return True
    if old["metadata"].get("annotations") != new["metadata"].get("annotations"):
        return True
    paths = (("spec", "unschedulable"), ("spec", "taints"), ("status", "allocatable"), ("metadata", "labels"))
    return any(value_at(old, *path) != value_at(new, *path) for path in paths)
