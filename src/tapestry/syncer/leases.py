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
from tapestry.kube.quantity import ZERO, Amounts, Quantity
from tapestry.syncer.changes import held, is_foreign, twin_went
from tapestry.syncer.leasing import Lease, State, lease_of, shrunk
from tapestry.syncer.projections import claimed_node, physical_node_of
from tapestry.syncer.site import Site
from tapestry.syncer.totals import Claim, division, from_units, in_units, limited, totals_of
from tapestry.syncer.virtual_nodes import remembering

DIVIDED_EVERY = timedelta(seconds=1)
"""Totals are divided at most this often, unless they themselves change: it takes a look at every node."""


@dataclass(slots=True)
class Known:
    """A lease, and what it was computed from."""

    sources: tuple[object, ...]
    foreign: int
    lease: Lease
    """What the node could lend by itself."""
    share: Amounts | None = None
    limited: Lease | None = None
    """The lease with no more than that share."""

    def is_for(self, sources: tuple[object, ...], foreign: int, now: datetime) -> bool:
        if self.foreign != foreign or any(a is not b for a, b in zip(self.sources, sources, strict=True)):
            return False
        return self.lease.next_change is None or now < self.lease.next_change


def nobody(_: object) -> None:
    """What is called where nobody has to know."""


@dataclass
class Leases:
    """The leases of a site's physical nodes, and their shares of the totals that policies name."""

    site: Site
    on_division: Callable[[Iterable[str]], None] = nobody
    """Called with the physical nodes whose shares have changed."""
    on_doubt: Callable[[Site], None] = nobody
    """Called where the totals may have to be divided again."""
    known: dict[str, Known] = field(default_factory=dict)
    foreign: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By physical node, how often foreign pods have changed there."""
    shares: dict[str, Amounts] = field(default_factory=dict)
    """By physical node, of the resources that have a total."""
    totals: Amounts = field(default_factory=Amounts)
    """Those that the shares are of."""
    weights: dict[str, Amounts] = field(default_factory=dict)
    """By physical node, what each could lend by itself when they were divided."""
    divided_at: datetime | None = None

    def saw_below(self, old: Object | None, new: Object | None) -> None:
        """A handler of the physical pods' changes: what foreign pods hold decides about a lease."""
        if is_foreign(old, new) and held(old) != held(new):
            for node in (node for obj in (old, new) if obj is not None for node in claimed_node(obj)):
                self.foreign[node] += 1
        elif self.totals and twin_went(old, new):
            self.on_doubt(self.site)

    def saw_node(self, old: Object | None, new: Object | None) -> None:
        """A handler of the physical nodes' changes."""
        if old is not None and new is None:
            self.known.pop(name_of(old), None)
            self.foreign.pop(name_of(old), None)
            if self.totals:
                self.on_doubt(self.site)

    def current(self, name: str, now: datetime) -> tuple[Object | None, Lease | None]:
        """The physical node under a virtual one, and its lease; no node where the virtual one has lost it."""
        node, found = self.by_itself(name, now)
        if node is None or found is None:
            return None, None
        share = self.share(name, now)
        if share is None:
            return node, found.lease
        if found.limited is None or found.share is not share:
            found.share, found.limited = share, limited(found.lease, share)
        return node, found.limited

    def by_itself(self, name: str, now: datetime) -> tuple[Object | None, Known | None]:
        """The lease of a physical node without regard to totals."""
        site, binding = self.site, self.site.binding()
        node, existing = site.physical_nodes.store.get(name), site.virtual_node_of(name)
        if node is None or binding is None or is_deleting(node) or is_another(node, existing):
            return None, None
        if existing is not None and is_deleting(existing):
            return None, None
        sources = (node, existing, site.rules(binding), site.shortage(name))
        found, changes = self.known.get(name), self.foreign[name]
        if found is None or not found.is_for(sources, changes, now):
            found = self.known[name] = Known(sources, changes, self.computed(node, existing, binding, now))
        return node, found

    def computed(
        self, node: Object, existing: Object | None, binding: Binding, now: datetime, used: Iterable[Amounts] = ()
    ) -> Lease:
        """The lease by itself; with what pods of ours have `used`, also what becomes of those it has no room for."""
        site = self.site
        rules = remembering(site.rules(binding), node, existing, now)
        lease = lease_of(node, site.foreign(name_of(node), binding), used, rules, now)
        shortage = site.shortage(name_of(node))
        lease = shrunk(lease, shortage.amounts) if shortage is not None else lease
        if self.totals and self.weights.get(name_of(node)) != lease.amounts:
            self.on_doubt(self.site)
        return lease

    def share(self, name: str, now: datetime) -> Amounts | None:
        """The node's share of the totals; None where there are none.

        Totals that have changed are divided at once.  A node that came since the last division has nothing of them
        until the next, which is soon.
        """
        binding = self.site.binding()
        assert binding is not None
        totals = totals_of(self.site.rules(binding), now)
        if not totals and not self.totals:
            return None
        if totals != self.totals or (name not in self.shares and self.may_divide(now)):
            self.divide(totals, now)
        elif name not in self.shares:
            self.on_doubt(self.site)
        if not totals:
            return None
        return self.shares.get(name) or Amounts(dict.fromkeys(totals, ZERO))

    def may_divide(self, now: datetime) -> bool:
        return self.divided_at is None or abs(now - self.divided_at) >= DIVIDED_EVERY

    def divide_again(self, now: datetime) -> None:
        """Divide the totals by what nodes could lend now."""
        binding = self.site.binding()
        if binding is not None and self.site.is_known:
            self.divide(totals_of(self.site.rules(binding), now), now)

    def divide(self, totals: Amounts, now: datetime) -> None:
        self.totals, self.divided_at = totals, now
        weights: dict[str, Amounts] = {}
        for name in self.site.physical_nodes.store:
            _, found = self.by_itself(name, now)
            if found is not None and found.lease.state is not State.WITHDRAWN:
                weights[name] = found.lease.amounts
        self.weights = weights
        shares: dict[str, dict[str, Quantity]] = {name: {} for name in weights} if totals else {}
        for resource, total in totals.items():
            left = in_units(resource, total) - self.held_elsewhere(resource, weights)
            for name, units in division(left, self.claims(resource, weights)).items():
                shares[name][resource] = from_units(resource, units)
        changed = [name for name in {*shares, *self.shares} if shares.get(name) != self.shares.get(name)]
        for name in changed:
            self.shares.pop(name, None)
            if name in shares:
                self.shares[name] = Amounts(shares[name])
        if changed:
            self.on_division(changed)

    def claims(self, resource: str, weights: Mapping[str, Amounts]) -> dict[str, Claim]:
        found = {}
        for name, amounts in weights.items():
            virtual = self.site.virtual_node_of(name)
            used = self.site.ledger.held(name_of(virtual))[resource] if virtual is not None else ZERO
            before = self.shares.get(name)
            if before is None or resource not in before:
                before = Amounts.parse({resource: text} if (text := shown_amount(virtual, resource)) else {})
            known = in_units(resource, before[resource]) if resource in before else None
            found[name] = Claim(in_units(resource, amounts[resource]), known, in_units(resource, used))
        return found

    def held_elsewhere(self, resource: str, weights: Mapping[str, Amounts]) -> int:
        """What pods hold of nodes that lend no more."""
        nodes = (
            node for node in self.site.virtual_nodes.store.list() if not set(physical_node_of(node)) & set(weights)
        )
        return sum(in_units(resource, self.site.ledger.held(name_of(node))[resource]) for node in nodes)


def shown_amount(virtual: Object | None, resource: str) -> str | None:
    """What a virtual node shows of a resource: its share before this process started."""
    found: str | None = value_at(virtual, "status", "allocatable", resource)
    return found


def is_another(node: Object, existing: Object | None) -> bool:
    """Whether the physical node is not the one that the virtual node was made for: it was removed and came back."""
    if existing is None:
        return False
    return annotations_of(existing).get(keys.PHYSICAL_NODE_UID, uid_of(node)) != uid_of(node)
