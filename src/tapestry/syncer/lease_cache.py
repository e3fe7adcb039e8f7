"""The lease that each node has now, by what the caches say.

A lease is computed again only when something that decides about it has changed, or at the next edge of a window: every
pod is admitted by it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.kube.objects import Object, annotations_of, is_deleting, name_of, uid_of, value_at
from tapestry.kube.quantity import ZERO, Quantity, ResourceList
from tapestry.syncer.cache_transforms import foreign_pod_node, physical_node_of
from tapestry.syncer.context import SyncContext
from tapestry.syncer.leasing import Lease, LeaseState, lease_for, reduced_lease
from tapestry.syncer.predicates import foreign_hold, involves_foreign_pod, twin_ended
from tapestry.syncer.total_limits import ShareRequest, combined_limits, from_units, in_units, limited_lease, node_shares
from tapestry.syncer.virtual_nodes import with_removed_policies

DIVISION_INTERVAL = timedelta(seconds=1)
"""Totals are divided at most this often, unless they themselves change: it takes a look at every node."""


@dataclass(slots=True)
class CachedLease:
    """A lease, and what it was computed from."""

    inputs: tuple[object, ...]
    foreign_changes: int
    lease: Lease
    """What the node could lend by itself."""
    share: ResourceList | None = None
    limited_lease: Lease | None = None
    """The lease with no more than that share."""

    def is_valid_for(self, inputs: tuple[object, ...], foreign_changes: int, now: datetime) -> bool:
        if self.foreign_changes != foreign_changes or any(a is not b for a, b in zip(self.inputs, inputs, strict=True)):
            return False
        return self.lease.next_change is None or now < self.lease.next_change


def ignore(_: object) -> None:
    """What is called where nobody has to know."""


@dataclass
class LeaseCache:
    """The leases of a site's physical nodes, and their shares of the totals that policies name."""

    context: SyncContext
    on_shares_changed: Callable[[Iterable[str]], None] = ignore
    """Called with the physical nodes whose shares have changed."""
    on_shares_stale: Callable[[SyncContext], None] = ignore
    """Called where the totals may have to be divided again."""
    entries: dict[str, CachedLease] = field(default_factory=dict)
    foreign_changes: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By physical node, how often foreign pods have changed there."""
    shares: dict[str, ResourceList] = field(default_factory=dict)
    """By physical node, of the resources that have a total."""
    totals: ResourceList = field(default_factory=ResourceList)
    """Those that the shares are of."""
    weights: dict[str, ResourceList] = field(default_factory=dict)
    """By physical node, what each could lend by itself when they were divided."""
    divided_at: datetime | None = None

    def on_physical_pod_change(self, old: Object | None, new: Object | None) -> None:
        """A handler of the physical pods' changes: what foreign pods hold decides about a lease."""
        if involves_foreign_pod(old, new) and foreign_hold(old) != foreign_hold(new):
            for node in (node for obj in (old, new) if obj is not None for node in foreign_pod_node(obj)):
                self.foreign_changes[node] += 1
        elif self.totals and twin_ended(old, new):
            self.on_shares_stale(self.context)

    def on_physical_node_change(self, old: Object | None, new: Object | None) -> None:
        """A handler of the physical nodes' changes."""
        if old is not None and new is None:
            self.entries.pop(name_of(old), None)
            self.foreign_changes.pop(name_of(old), None)
            if self.totals:
                self.on_shares_stale(self.context)

    def current_lease(self, name: str, now: datetime) -> tuple[Object | None, Lease | None]:
        """The physical node under a virtual one, and its lease; no node where the virtual one has lost it."""
        node, found = self.unlimited_lease(name, now)
        if node is None or found is None:
            return None, None
        share = self.share(name, now)
        if share is None:
            return node, found.lease
        if found.limited_lease is None or found.share is not share:
            found.share, found.limited_lease = share, limited_lease(found.lease, share)
        return node, found.limited_lease

    def unlimited_lease(self, name: str, now: datetime) -> tuple[Object | None, CachedLease | None]:
        """The lease of a physical node without regard to totals."""
        site, binding = self.context, self.context.binding()
        node, existing = site.physical_nodes.store.get(name), site.virtual_node_of(name)
        if node is None or binding is None or is_deleting(node) or is_replaced_node(node, existing):
            return None, None
        if existing is not None and is_deleting(existing):
            return None, None
        sources = (node, existing, site.lease_rules(binding), site.shortage(name))
        found, changes = self.entries.get(name), self.foreign_changes[name]
        if found is None or not found.is_valid_for(sources, changes, now):
            found = self.entries[name] = CachedLease(sources, changes, self.compute_lease(node, existing, binding, now))
        return node, found

    def compute_lease(
        self, node: Object, existing: Object | None, binding: Binding, now: datetime, used: Iterable[ResourceList] = ()
    ) -> Lease:
        """The lease by itself; with what pods of ours have `used`, also what becomes of those it has no room for."""
        site = self.context
        rules = with_removed_policies(site.lease_rules(binding), node, existing, now)
        lease = lease_for(node, site.foreign_holds(name_of(node), binding), used, rules, now)
        shortage = site.shortage(name_of(node))
        lease = reduced_lease(lease, shortage.amounts) if shortage is not None else lease
        if self.totals and self.weights.get(name_of(node)) != lease.amounts:
            self.on_shares_stale(self.context)
        return lease

    def share(self, name: str, now: datetime) -> ResourceList | None:
        """The node's share of the totals; None where there are none.

        Totals that have changed are divided at once.  A node that came since the last division has nothing of them
        until the next, which is soon.
        """
        binding = self.context.binding()
        assert binding is not None
        totals = combined_limits(self.context.lease_rules(binding), now)
        if not totals and not self.totals:
            return None
        if totals != self.totals or (name not in self.shares and self.may_divide(now)):
            self.divide_shares(totals, now)
        elif name not in self.shares:
            self.on_shares_stale(self.context)
        if not totals:
            return None
        return self.shares.get(name) or ResourceList(dict.fromkeys(totals, ZERO))

    def may_divide(self, now: datetime) -> bool:
        return self.divided_at is None or abs(now - self.divided_at) >= DIVISION_INTERVAL

    def refresh_shares(self, now: datetime) -> None:
        """Divide the totals by what nodes could lend now."""
        binding = self.context.binding()
        if binding is not None and self.context.is_physical_synced:
            self.divide_shares(combined_limits(self.context.lease_rules(binding), now), now)

    def divide_shares(self, totals: ResourceList, now: datetime) -> None:
        self.totals, self.divided_at = totals, now
        weights: dict[str, ResourceList] = {}
        for name in self.context.physical_nodes.store:
            _, found = self.unlimited_lease(name, now)
            if found is not None and found.lease.state is not LeaseState.WITHDRAWN:
                weights[name] = found.lease.amounts
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
        found = {}
        for name, amounts in weights.items():
            virtual = self.context.virtual_node_of(name)
            used = self.context.ledger.held_amounts(name_of(virtual))[resource] if virtual is not None else ZERO
            before = self.shares.get(name)
            if before is None or resource not in before:
                before = ResourceList.parse({resource: text} if (text := allocatable_amount(virtual, resource)) else {})
            known = in_units(resource, before[resource]) if resource in before else None
            found[name] = ShareRequest(in_units(resource, amounts[resource]), known, in_units(resource, used))
        return found

    def held_on_withdrawn_nodes(self, resource: str, weights: Mapping[str, ResourceList]) -> int:
        """What pods hold of nodes that lend no more."""
        nodes = (
            node for node in self.context.virtual_nodes.store.list() if not set(physical_node_of(node)) & set(weights)
        )
        return sum(in_units(resource, self.context.ledger.held_amounts(name_of(node))[resource]) for node in nodes)


def allocatable_amount(virtual: Object | None, resource: str) -> str | None:
    """What a virtual node shows of a resource: its share before this process started."""
    found: str | None = value_at(virtual, "status", "allocatable", resource)
    return found


def is_replaced_node(node: Object, existing: Object | None) -> bool:
    """Whether the physical node is not the one that the virtual node was made for: it was removed and came back."""
    if existing is None:
        return False
    return annotations_of(existing).get(keys.PHYSICAL_NODE_UID, uid_of(node)) != uid_of(node)
