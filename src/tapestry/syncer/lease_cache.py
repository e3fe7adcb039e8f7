"""Cache of the current lease of each node, its share of total limits, and its shortages.

A lease is recomputed only when one of its inputs changes or at the next edge of a window, because every admission of a
pod reads it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.kube.objects import Object, annotations_of, is_deleting, name_of, uid_of, value_at
from tapestry.kube.pod_requests import effective_requests, occupies_node
from tapestry.kube.quantity import ZERO, Quantity, ResourceList
from tapestry.syncer.cache_transforms import physical_node_of
from tapestry.syncer.caches import Caches
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.current_binding import CurrentBinding, IdentityMemo
from tapestry.syncer.leasing import Lease, LeaseRules, LeaseState, PolicySide, lease_for, reduced_lease
from tapestry.syncer.ledger import Ledger
from tapestry.syncer.policies import build_rules, parsed_policies, removed_policies
from tapestry.syncer.predicates import nodes_with_changed_holds, twin_ended
from tapestry.syncer.total_limits import ShareRequest, combined_limits, from_units, in_units, limited_lease, node_shares
from tapestry.syncer.views import PhysicalPod, VirtualPod

SHORTAGE_TTL = timedelta(minutes=10)
DIVISION_INTERVAL = timedelta(seconds=1)
"""Minimum time between two divisions of totals, unless the totals change: a division reads every node."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """Resources that a physical node turned out not to have."""

    amounts: ResourceList
    until: datetime
    pods: frozenset[str]
    """UIDs of the pods that did not fit."""


@dataclass(frozen=True)
class Shortages:
    """Recorded shortages. Each lasts until a foreign pod changes on its node, or until it expires."""

    now: Callable[[], datetime]
    by_node: dict[str, Shortage] = field(default_factory=dict)
    """Keyed by physical node."""

    def get(self, node: str) -> Shortage | None:
        found = self.by_node.get(node)
        return found if found is not None and found.until > self.now() else None

    def record(self, node: str, pod: VirtualPod) -> None:
        """Lease less of a node by the pod's requests."""
        known = self.get(node) or Shortage(ResourceList(), self.now(), frozenset())
        if pod.uid not in known.pods:
            total, pods = known.amounts + effective_requests(pod.object), known.pods | {pod.uid}
            self.by_node[node] = Shortage(total, self.now() + SHORTAGE_TTL, pods)

    def on_physical_pod_change(self, old: PhysicalPod | None, new: PhysicalPod | None) -> None:
        """Handle a change of a physical pod: other requests of foreign pods end the shortage of their node."""
        for node in nodes_with_changed_holds(old, new):
            self.by_node.pop(node, None)


@dataclass(slots=True)
class CachedLease:
    """A lease and its inputs."""

    inputs: tuple[object, ...]
    foreign_changes: int
    lease: Lease
    """Lease without regard to total limits."""
    share: ResourceList | None = None
    limited_lease: Lease | None = None
    """The lease limited to `share`."""

    def is_valid_for(self, inputs: tuple[object, ...], foreign_changes: int, now: datetime) -> bool:
        if self.foreign_changes != foreign_changes or any(a is not b for a, b in zip(self.inputs, inputs, strict=True)):
            return False
        return self.lease.next_change is None or now < self.lease.next_change


@dataclass
class LeaseCache:
    """Leases of a binding's physical nodes, and their shares of the total limits."""

    current_binding: CurrentBinding
    caches: Caches
    ledger: Ledger
    shortages: Shortages
    config: SyncerConfig
    on_shares_changed: Callable[[Iterable[str]], None]
    """Called with the physical nodes whose shares have changed."""
    on_shares_stale: Callable[[], None]
    """Called when the totals may have to be divided again."""
    entries: dict[str, CachedLease] = field(default_factory=dict)
    foreign_changes: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Number of changes of foreign pods, by physical node."""
    shares: dict[str, ResourceList] = field(default_factory=dict)
    """Shares of the resources that have a total, by physical node."""
    totals: ResourceList = field(default_factory=ResourceList)
    """Totals that were divided into `shares`."""
    weights: dict[str, ResourceList] = field(default_factory=dict)
    """Amounts that each physical node could lease at the last division."""
    divided_at: datetime | None = None
    memo: IdentityMemo[LeaseRules] = field(default_factory=IdentityMemo)

    def on_physical_pod_change(self, old: PhysicalPod | None, new: PhysicalPod | None) -> None:
        """Handle a change of a physical pod: leases depend on what foreign pods hold."""
        for node in nodes_with_changed_holds(old, new):
            self.foreign_changes[node] += 1
        if self.totals and twin_ended(old, new):
            self.on_shares_stale()

    def on_physical_node_change(self, old: Object | None, new: Object | None) -> None:
        """Handle a change of a physical node."""
        if old is not None and new is None:
            self.entries.pop(name_of(old), None)
            self.foreign_changes.pop(name_of(old), None)
            if self.totals:
                self.on_shares_stale()

    def lease_rules(self, binding: Binding) -> LeaseRules:
        """Return the rules that apply to every node of the binding."""
        operator = self.caches.operator_policies.store.list()
        owner, mount = self.caches.owner_policies.store.list(), self.current_binding.mount_namespace()

        def compute() -> LeaseRules:
            zone, warning = self.config.time_zone, timedelta(seconds=self.config.warning_seconds)
            operator_policies = parsed_policies(operator, PolicySide.OPERATOR, binding, zone)
            owner_policies = parsed_policies(owner, PolicySide.OWNER, binding, zone)
            return build_rules(binding, operator_policies, owner_policies, mount, warning)

        return self.memo.get((binding, mount, *operator, *owner), compute)

    def current_lease(self, name: str, now: datetime) -> tuple[Object | None, Lease | None]:
        """Return the physical node and its current lease; None if the node is deleted or replaced."""
        node, cached = self.unlimited_lease(name, now)
        if node is None or cached is None:
            return None, None
        share = self.share(name, now)
        if share is None:
            return node, cached.lease
        if cached.limited_lease is None or cached.share is not share:
            cached.share, cached.limited_lease = share, limited_lease(cached.lease, share)
        return node, cached.limited_lease

    def unlimited_lease(self, name: str, now: datetime) -> tuple[Object | None, CachedLease | None]:
        """Return the physical node and its lease without regard to total limits."""
        binding = self.current_binding.get()
        node, existing = self.caches.physical_nodes.store.get(name), self.caches.virtual_node_of(name)
        if node is None or binding is None or is_deleting(node) or is_replaced_node(node, existing):
            return None, None
        if existing is not None and is_deleting(existing):
            return None, None
        sources = (node, existing, self.lease_rules(binding), self.shortages.get(name))
        cached, changes = self.entries.get(name), self.foreign_changes[name]
        if cached is None or not cached.is_valid_for(sources, changes, now):
            lease = self.compute_lease(node, existing, binding, now)
            cached = self.entries[name] = CachedLease(sources, changes, lease)
        return node, cached

    def compute_lease(
        self, node: Object, existing: Object | None, binding: Binding, now: datetime, used: Iterable[ResourceList] = ()
    ) -> Lease:
        """Compute the lease without total limits; `used` also decides which of our pods it has to reclaim."""
        rules = self.lease_rules(binding)
        allocations = [pod.allocation for pod in self.caches.foreign_pods(name_of(node))]
        lease = lease_for(node, allocations, used, rules, now, removed_policies(rules, node, existing, now))
        shortage = self.shortages.get(name_of(node))
        lease = reduced_lease(lease, shortage.amounts) if shortage is not None else lease
        if self.totals and self.weights.get(name_of(node)) != lease.amounts:
            self.on_shares_stale()
        return lease

    def reclaiming_lease(self, node: Object, existing: Object | None, binding: Binding, now: datetime) -> Lease:
        """Compute the lease with the pods that it has to reclaim."""
        pods = self.caches.pods_on(name_of(existing)) if existing else []
        used = [pod.requests for pod in pods if occupies_node(pod.object)]
        lease = self.compute_lease(node, existing, binding, now, used)
        share = self.share(name_of(node), now)
        return limited_lease(lease, share) if share is not None else lease

    def share(self, name: str, now: datetime) -> ResourceList | None:
        """Return the node's share of the totals; None without totals.

        Changed totals are divided at once. A node that was added since the last division has no share until the next
        one.
        """
        binding = self.current_binding.get()
        assert binding is not None
        totals = combined_limits(self.lease_rules(binding), now)
        if not totals and not self.totals:
            return None
        if totals != self.totals or (name not in self.shares and self.may_divide(now)):
            self.divide_shares(totals, now)
        elif name not in self.shares:
            self.on_shares_stale()
        if not totals:
            return None
        return self.shares.get(name) or ResourceList(dict.fromkeys(totals, ZERO))

    def may_divide(self, now: datetime) -> bool:
        return self.divided_at is None or abs(now - self.divided_at) >= DIVISION_INTERVAL

    def refresh_shares(self, now: datetime) -> None:
        """Divide the totals by what the nodes could lease now."""
        binding = self.current_binding.get()
        if binding is not None and self.caches.is_physical_synced:
            self.divide_shares(combined_limits(self.lease_rules(binding), now), now)

    def divide_shares(self, totals: ResourceList, now: datetime) -> None:
        self.totals, self.divided_at = totals, now
        weights: dict[str, ResourceList] = {}
        for name in self.caches.physical_nodes.store:
            _, cached = self.unlimited_lease(name, now)
            if cached is not None and cached.lease.state is not LeaseState.WITHDRAWN:
                weights[name] = cached.lease.amounts
        self.weights = weights
        shares: dict[str, dict[str, Quantity]] = {name: {} for name in weights} if totals else {}
        for resource, total in totals.items():
            left = in_units(resource, total) - self.held_on_withdrawn_nodes(resource, weights)
            for name, units in node_shares(left, self.share_requests(resource, weights)).items():
                shares[name][resource] = from_units(resource, units)
        changed = [name for name in {*shares, *self.shares} if shares.get(name) != self.shares.get(name)]
        for name in changed:
            self.shares.pop(name, None)
            if name in shares:
                self.shares[name] = ResourceList(shares[name])
        if changed:
            self.on_shares_changed(changed)

    def share_requests(self, resource: str, weights: Mapping[str, ResourceList]) -> dict[str, ShareRequest]:
        requests = {}
        for name, amounts in weights.items():
            virtual = self.caches.virtual_node_of(name)
            used = self.ledger.held_amounts(name_of(virtual))[resource] if virtual is not None else ZERO
            before = self.shares.get(name)
            if before is None or resource not in before:
                before = ResourceList.parse({resource: text} if (text := allocatable_amount(virtual, resource)) else {})
            last = in_units(resource, before[resource]) if resource in before else None
            requests[name] = ShareRequest(in_units(resource, amounts[resource]), last, in_units(resource, used))
        return requests

    def held_on_withdrawn_nodes(self, resource: str, weights: Mapping[str, ResourceList]) -> int:
        """Return the amount that pods hold on nodes that are no longer leased."""
        nodes = (
            node for node in self.caches.virtual_nodes.store.list() if not set(physical_node_of(node)) & set(weights)
        )
        return sum(in_units(resource, self.ledger.held_amounts(name_of(node))[resource]) for node in nodes)


def allocatable_amount(virtual: Object | None, resource: str) -> str | None:
    """Return the allocatable amount of a virtual node: its share before this process started."""
    amount: str | None = value_at(virtual, "status", "allocatable", resource)
    return amount


def is_replaced_node(node: Object, existing: Object | None) -> bool:
    """Return whether the physical node was deleted and recreated since the virtual node was created."""
    if existing is None:
        return False
    return annotations_of(existing).get(keys.PHYSICAL_NODE_UID, uid_of(node)) != uid_of(node)
