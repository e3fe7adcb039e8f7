"""The lease that each node has now, by what the caches say.

A lease is computed again only when something that decides about it has changed, or at the next edge of a window: every
pod is admitted by it.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.kube.objects import Object, annotations_of, is_deleting, name_of, uid_of
from tapestry.kube.quantity import Amounts
from tapestry.syncer.changes import held, is_foreign
from tapestry.syncer.leasing import Lease, lease_of, shrunk
from tapestry.syncer.projections import claimed_node
from tapestry.syncer.site import Site
from tapestry.syncer.virtual_nodes import remembering


@dataclass(frozen=True, slots=True)
class Known:
    """A lease, and what it was computed from."""

    sources: tuple[object, ...]
    foreign: int
    lease: Lease

    def is_for(self, sources: tuple[object, ...], foreign: int, now: datetime) -> bool:
        if self.foreign != foreign or any(a is not b for a, b in zip(self.sources, sources, strict=True)):
            return False
        return self.lease.next_change is None or now < self.lease.next_change


@dataclass(frozen=True)
class Leases:
    """The leases of a site's physical nodes."""

    site: Site
    known: dict[str, Known] = field(default_factory=dict)
    foreign: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By physical node, how often foreign pods have changed there."""

    def saw_below(self, old: Object | None, new: Object | None) -> None:
        """A handler of the physical pods' changes: what foreign pods hold decides about a lease."""
        if is_foreign(old, new) and held(old) != held(new):
            for node in (node for obj in (old, new) if obj is not None for node in claimed_node(obj)):
                self.foreign[node] += 1

    def saw_node(self, old: Object | None, new: Object | None) -> None:
        """A handler of the physical nodes' changes."""
        if old is not None and new is None:
            self.known.pop(name_of(old), None)

    def current(self, name: str, now: datetime) -> tuple[Object | None, Lease | None]:
        """The physical node under a virtual one, and its lease; no node where the virtual one has lost it."""
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
        return node, found.lease

    def computed(
        self, node: Object, existing: Object | None, binding: Binding, now: datetime, used: Iterable[Amounts] = ()
    ) -> Lease:
        """The lease; with what pods of ours have `used`, also what is to become of those that it has no room for."""
        site = self.site
        rules = remembering(site.rules(binding), node, existing, now)
        lease = lease_of(node, site.foreign(name_of(node), binding), used, rules, now)
        shortage = site.shortage(name_of(node))
        return shrunk(lease, shortage.amounts) if shortage is not None else lease


def is_another(node: Object, existing: Object | None) -> bool:
    """Whether the physical node is not the one that the virtual node was made for: it was removed and came back."""
    if existing is None:
        return False
    return annotations_of(existing).get(keys.PHYSICAL_NODE_UID, uid_of(node)) != uid_of(node)
