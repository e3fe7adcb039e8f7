"""An indexed cache of objects by key."""

import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic

from tapestry.kube.objects import Object, View

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", bound=Object | View, default=Object)
else:
    T = typing.TypeVar("T")

Indexer = Callable[[T], Iterable[str]]
"""Map an object to its values in an index."""


class Store(Generic[T]):
    """Objects by key and by index values; `T` is the type in which they are cached, by default a dict.

    Returned objects are shared and must not be changed.  Only the informer of a store writes to it.
    """

    def __init__(self, indexers: Mapping[str, Indexer[T]] | None = None) -> None:
        self._objects: dict[str, T] = {}
        self._indexers = dict(indexers or {})
        self._indexes: dict[str, dict[str, set[str]]] = {name: {} for name in self._indexers}

    def get(self, key: str) -> T | None:
        return self._objects.get(key)

    def list(self) -> Sequence[T]:
        return list(self._objects.values())

    def __iter__(self) -> Iterator[str]:
        """Iterate over a copy of the keys, so that the store may change meanwhile."""
        return iter(list(self._objects))

    def by(self, index: str, value: str) -> Sequence[T]:
        """Return the objects with `value` in the index."""
        return [self._objects[key] for key in self._indexes[index].get(value, ())]

    def iter_by(self, index: str, value: str) -> Iterator[T]:
        """Yield the objects with `value` in the index.  The caller must finish before the store changes."""
        return (self._objects[key] for key in self._indexes[index].get(value, ()))

    def index_values(self, index: str) -> Sequence[str]:
        return list(self._indexes[index])

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: Any) -> bool:
        return key in self._objects

    def put(self, key: str, obj: T) -> T | None:
        """Store `obj` under `key`.  Return the object that it replaces."""
        old = self._objects.get(key)
        self._objects[key] = obj
        for name, indexer in self._indexers.items():
            before: Iterable[str] = indexer(old) if old is not None else ()
            after = indexer(obj)
            if before != after:  # most changes affect no index, and sets are slow to build
                removed, added = set(before), set(after)
                self._reindex(self._indexes[name], key, removed - added, added - removed)
        return old

    def remove(self, key: str) -> T | None:
        old = self._objects.pop(key, None)
        if old is not None:
            for name, indexer in self._indexers.items():
                self._reindex(self._indexes[name], key, set(indexer(old)), set())
        return old

    @staticmethod
    def _reindex(index: dict[str, set[str]], key: str, removed: set[str], added: set[str]) -> None:
        for value in removed:
            members = index[value]
            members.discard(key)
            if not members:
                del index[value]
        for value in added:
            index.setdefault(value, set()).add(key)

    def add_index(self, name: str, indexer: Indexer[T]) -> None:
        """Add an index.  A second call with the same name must pass the same indexer."""
        existing = self._indexers.get(name)
        if existing is not None:
            if existing is not indexer:
                raise ValueError(f"index {name!r} already has another indexer; use another name")
            return
        self._indexers[name] = indexer
        index = self._indexes[name] = {}
        for key, obj in self._objects.items():
            self._reindex(index, key, set(), set(indexer(obj)))
