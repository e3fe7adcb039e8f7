"""An indexed cache of objects by key."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tapestry.kube.objects import Object, key_of

Indexer = Callable[[Object], Iterable[str]]
"""The values under which an object is to be found."""


class Store:
    """Objects by key, and by the values that named indexers give them.

    What it returns is shared: nobody changes it.  Only the informer that fills a store writes to it.
    """

    def __init__(self, indexers: Mapping[str, Indexer] | None = None) -> None:
        self._objects: dict[str, Object] = {}
        self._indexers = dict(indexers or {})
        self._indexes: dict[str, dict[str, set[str]]] = {name: {} for name in self._indexers}

    def get(self, key: str) -> Object | None:
        return self._objects.get(key)

    def list(self) -> Sequence[Object]:
        return list(self._objects.values())

    def __iter__(self) -> Iterator[str]:
        """The keys, as they are now: the store may change under the loop."""
        return iter(list(self._objects))

    def by(self, index: str, value: str) -> Sequence[Object]:
        """The objects that the indexer named `index` put under `value`."""
        return [self._objects[key] for key in self._indexes[index].get(value, ())]

    def iter_by(self, index: str, value: str) -> Iterator[Object]:
        """As `by`, one after the other: for a reader who is done at the first, before the store can change."""
        return (self._objects[key] for key in self._indexes[index].get(value, ()))

    def index_values(self, index: str) -> Sequence[str]:
        """All that the indexer named `index` found in any object."""
        return list(self._indexes[index])

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: Any) -> bool:
        return key in self._objects

    def put(self, obj: Object) -> Object | None:
        """Keep `obj`; returns what it replaces."""
        key = key_of(obj)
        old = self._objects.get(key)
        self._objects[key] = obj
        for name, indexer in self._indexers.items():
            before: Iterable[str] = indexer(old) if old is not None else ()
            after = indexer(obj)
            if before != after:  # most changes leave every index as it is, and sets take time to make
                left, entered = set(before), set(after)
                self._reindex(self._indexes[name], key, left - entered, entered - left)
        return old

    def remove(self, key: str) -> Object | None:
        """Forget the object under `key`; returns it."""
        old = self._objects.pop(key, None)
        if old is not None:
            for name, indexer in self._indexers.items():
                self._reindex(self._indexes[name], key, set(indexer(old)), set())
        return old

    @staticmethod
    def _reindex(index: dict[str, set[str]], key: str, left: set[str], entered: set[str]) -> None:
        for value in left:
            members = index[value]
            members.discard(key)
            if not members:
                del index[value]
        for value in entered:
            index.setdefault(value, set()).add(key)

    def add_index(self, name: str, indexer: Indexer) -> None:
        """Index by one more rule; a second indexer of the same name must be the same one."""
        known = self._indexers.get(name)
        if known is not None:
            if known is not indexer:
                raise ValueError(f"index {name!r} exists already with another indexer; give this one a name of its own")
            return
        self._indexers[name] = indexer
        index = self._indexes[name] = {}
        for key, obj in self._objects.items():
            self._reindex(index, key, set(), set(indexer(obj)))
