"""Indexes of free volumes and unbound claims, sorted by size, which find a match without a scan. Pure.

Only label selectors that require no value of any label (`NotIn`, `Exists`, `DoesNotExist`, or `In` with several values)
are compared with one volume after the other.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tapestry.controlplane.volume_matching import (
    attributes_class_of,
    capacity_of,
    claim_selector,
    requested_storage,
    storage_class_of,
    volume_mode_of,
)
from tapestry.kube.objects import Object, key_of, labels_of
from tapestry.kube.selectors import LabelSelector

Label = tuple[str, str]
Group = tuple[str, str, str]
"""Storage class, volume mode and attributes class, which must be equal."""
AccessModes = frozenset[str]
Entry = tuple[int, str]
"""Size and key of an object."""


@dataclass(frozen=True, slots=True)
class IndexedObject:
    """An object and its places in the index."""

    object: Object
    group: Group
    access_modes: AccessModes
    labels: tuple[Label | None, ...]
    entry: Entry
    selector: LabelSelector | None = None


@dataclass(slots=True)
class SizeIndex:
    """Objects by key, and sorted lists of their entries by group, access modes and label."""

    objects: dict[str, IndexedObject] = field(default_factory=dict)
    groups: dict[Group, dict[AccessModes, dict[Label | None, list[Entry]]]] = field(default_factory=dict)

    def put(self, indexed: IndexedObject) -> None:
        """Add an object, or replace the one with its key."""
        key = indexed.entry[1]
        self.remove(key)
        self.objects[key] = indexed
        lists = self.groups.setdefault(indexed.group, {}).setdefault(indexed.access_modes, {})
        for label in indexed.labels:
            insort(lists.setdefault(label, []), indexed.entry)

    def remove(self, key: str) -> None:
        indexed = self.objects.pop(key, None)
        if indexed is None:
            return
        by_modes = self.groups[indexed.group]
        lists = by_modes[indexed.access_modes]
        for label in indexed.labels:
            entries = lists[label]
            del entries[bisect_left(entries, indexed.entry)]
            if not entries:
                del lists[label]
        if not lists:
            del by_modes[indexed.access_modes]
            if not by_modes:
                del self.groups[indexed.group]


class FreeVolumes:
    """Volumes that can be bound to any claim that matches."""

    def __init__(self) -> None:
        self._index = SizeIndex()

    def put(self, volume: Object) -> None:
        entry, labels = (capacity_of(volume), key_of(volume)), (None, *labels_of(volume).items())
        self._index.put(IndexedObject(volume, group_of(volume), access_modes_of(volume), labels, entry))

    def remove(self, name: str) -> None:
        self._index.remove(name)

    def matches(self, claim: Object) -> Iterator[Object]:
        """Yield the volumes that match a claim: those with the fewest access modes first, then the smallest."""
        modes, selector = access_modes_of(claim), claim_selector(claim)
        by_modes = self._index.groups.get(group_of(claim), {})
        labels: Sequence[Label | None] = (selector.required_labels() if selector is not None else ()) or (None,)
        for each in sorted((each for each in by_modes if modes <= each), key=len):
            entries = min((by_modes[each].get(label, []) for label in labels), key=len)
            for position in range(bisect_left(entries, (requested_storage(claim), "")), len(entries)):
                volume = self._index.objects[entries[position][1]].object
                if selector is None or selector.matches(labels_of(volume)):
                    yield volume


class UnboundClaims:
    """Claims for which no free volume was found."""

    def __init__(self) -> None:
        self._index = SizeIndex()

    def put(self, claim: Object) -> None:
        selector = claim_selector(claim)
        label = next(iter(selector.required_labels()), None) if selector is not None else None
        entry = (requested_storage(claim), key_of(claim))
        self._index.put(IndexedObject(claim, group_of(claim), access_modes_of(claim), (label,), entry, selector))

    def remove(self, key: str) -> None:
        self._index.remove(key)

    def largest_match(self, volume: Object) -> str | None:
        """Return the key of the largest claim that matches a volume."""
        modes, labels, best = access_modes_of(volume), labels_of(volume), (-1, "")
        after = (capacity_of(volume) + 1, "")
        for claim_modes, lists in self._index.groups.get(group_of(volume), {}).items():
            if not claim_modes <= modes:
                continue
            for label in (None, *labels.items()):
                entries = lists.get(label, [])
                for position in range(bisect_left(entries, after) - 1, -1, -1):
                    if entries[position] < best:
                        break
                    selector = self._index.objects[entries[position][1]].selector
                    if selector is None or selector.matches(labels):
                        best = entries[position]
                        break
        return best[1] or None


def group_of(obj: Object) -> Group:
    return storage_class_of(obj), volume_mode_of(obj), attributes_class_of(obj)


def access_modes_of(obj: Object) -> AccessModes:
    return frozenset(obj["spec"].get("accessModes") or ())
