"""Ledger of the amounts that our twins hold of each virtual node's lease.

An entry belongs to the name of a twin. It counts what the cached twin requests and what is reserved for a twin that is
being created or resized and that the cache does not show yet.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from tapestry.kube.quantity import ResourceList
from tapestry.syncer.translate.metadata import virtual_key, virtual_node_name_of, virtual_uid
from tapestry.syncer.views import PhysicalPod, Twin, VirtualPod

RESERVATION_TTL = timedelta(minutes=1)
"""Lifetime of a reservation after its write; the cache shows the twin long before."""


@dataclass(slots=True)
class Entry:
    """Amounts held by one twin."""

    node: str
    """Name of the virtual node."""
    pod: str
    """Key of the virtual pod."""
    uid: str
    """UID of the virtual pod."""
    requested: ResourceList | None = None
    """Requests of the cached twin; None without a twin or after its end."""
    reserved: ResourceList | None = None
    expires: datetime | None = None
    """End of the reservation; None while its write is in progress."""
    is_seen: bool = False
    """True if the cache has the twin."""

    @property
    def amounts(self) -> ResourceList:
        if self.reserved is None:
            return self.requested or ResourceList()
        return self.reserved if self.requested is None else self.requested.larger(self.reserved)


class Ledger:
    """Entries by twin key, and their sums by virtual node."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._sums: dict[str, ResourceList] = {}
        self._keys: dict[str, set[str]] = {}
        self._twins: dict[str, str] = {}

    def on_physical_pod_change(self, old: PhysicalPod | None, new: PhysicalPod | None) -> None:
        """Handle a change of a physical pod."""
        if isinstance(new, Twin):
            self._record(new, is_first=old is None)
        elif isinstance(old, Twin):
            self._forget(old)

    def held_amounts(self, node: str) -> ResourceList:
        """Return the amounts held of a virtual node's lease, including reservations."""
        return self._sums.get(node) or ResourceList()

    def twin_amounts(self, twin: str) -> ResourceList:
        """Return the amounts held by the twin under that key, including its reservation."""
        entry = self._entries.get(twin)
        return entry.amounts if entry is not None else ResourceList()

    def has_twin(self, uid: str) -> bool:
        """Return whether the pod with that UID has a twin or one is being created."""
        return uid in self._twins

    def entries_on(self, node: str) -> list[tuple[str, Entry]]:
        """Return the entries of a virtual node with the keys of their twins."""
        return [(key, self._entries[key]) for key in self._keys.get(node, ())]

    def reserve(self, twin: str, pod: VirtualPod, amounts: ResourceList) -> None:
        """Count `amounts` for the twin of `pod` until the cache shows them or `release` is called."""
        entry = self._entries.get(twin)
        if entry is not None and entry.uid != pod.uid:
            self._drop(twin)
            entry = None
        if entry is None:
            entry = Entry(pod.node, pod.key, pod.uid)
            self._add(twin, entry)
        self._change(entry, entry.requested, amounts)
        entry.expires = None

    def mark_written(self, twin: str, now: datetime) -> None:
        """Start the lifetime of a reservation after its write, whether or not it succeeded."""
        entry = self._entries.get(twin)
        if entry is not None and entry.reserved is not None:
            entry.expires = now + RESERVATION_TTL

    def release(self, twin: str) -> None:
        """End a reservation whose write had no effect."""
        entry = self._entries.get(twin)
        if entry is None:
            return
        self._change(entry, entry.requested, None)
        if not entry.is_seen:
            self._drop(twin)

    def release_expired(self, node: str, now: datetime) -> bool:
        """End the reservations of a node that have expired; return whether there were any."""
        expired = [key for key, entry in self.entries_on(node) if entry.expires is not None and entry.expires <= now]
        for key in expired:
            self.release(key)
        return bool(expired)

    def _record(self, twin: Twin, *, is_first: bool) -> None:
        key, uid = twin.key, virtual_uid(twin.object)
        entry = self._entries.get(key)
        node = virtual_node_name_of(twin.object)
        if entry is None or (entry.node, entry.uid) != (node, uid):
            if entry is not None:
                self._drop(key)
            entry = Entry(node, "".join(virtual_key(twin.object)), uid)
            self._add(key, entry)
        entry.is_seen = True
        requested, reserved = twin.requests, entry.reserved
        if reserved is not None and (is_first or (requested is not None and requested.larger(reserved) == requested)):
            reserved = None
        if reserved is not entry.reserved or requested != entry.requested:
            self._change(entry, requested, reserved)

    def _forget(self, twin: Twin) -> None:
        key = twin.key
        entry = self._entries.get(key)
        if entry is None:
            return
        entry.is_seen = False
        if entry.reserved is None or entry.uid == virtual_uid(twin.object):
            self._drop(key)

    def _change(self, entry: Entry, requested: ResourceList | None, reserved: ResourceList | None) -> None:
        before = entry.amounts
        entry.requested, entry.reserved = requested, reserved
        if reserved is None:
            entry.expires = None
        after = entry.amounts
        if before != after:
            self._sums[entry.node] = self.held_amounts(entry.node) + after - before

    def _add(self, key: str, entry: Entry) -> None:
        self._entries[key] = entry
        self._keys.setdefault(entry.node, set()).add(key)
        self._twins[entry.uid] = key

    def _drop(self, key: str) -> None:
        entry = self._entries[key]
        self._change(entry, None, None)
        del self._entries[key]
        if self._twins.get(entry.uid) == key:
            del self._twins[entry.uid]
        members = self._keys[entry.node]
        members.discard(key)
        if not members:
            del self._keys[entry.node]
            self._sums.pop(entry.node, None)
