"""Views of an informer: caches of some of its objects, each with handlers of its own.

Many users of one informer each see only their part of its objects, and come and go while it runs.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Generic

from tapestry.controller.informer import ObjectCache
from tapestry.controller.store import Indexer, Store, T


class InformerView(ObjectCache[T]):
    """Part of the objects of an informer.  It is synced when the informer is."""

    def __init__(self, source: ObjectCache[T], store: Store[T]) -> None:
        super().__init__(source.resource, store, source.synced, source.name)

    def report_change(self, old: T | None, new: T | None) -> None:
        self._report_change(old, new)

    def report_deletion(self, old: T) -> None:
        self._report_deletion(old)

    def report_sync(self) -> None:
        self._report_sync()


class WholeViews(Generic[T]):
    """Views of all objects of an informer, which share its store."""

    def __init__(self, source: ObjectCache[T]) -> None:
        self.source = source
        self._views: list[InformerView[T]] = []
        source.on_change(self._on_change)
        source.on_deletion(self._on_deletion)
        source.after_sync(self._on_sync)

    def open(self) -> InformerView[T]:
        view = InformerView(self.source, self.source.store)
        self._views.append(view)
        return view

    def close(self, view: InformerView[T]) -> None:
        """Call the handlers of a view no more.  The second call does nothing."""
        view.forget_handlers()
        if view in self._views:
            self._views.remove(view)

    def _on_change(self, old: T | None, new: T | None) -> None:
        for view in tuple(self._views):
            view.report_change(old, new)

    def _on_deletion(self, old: T) -> None:
        for view in tuple(self._views):
            view.report_deletion(old)

    def _on_sync(self) -> None:
        for view in tuple(self._views):
            view.report_sync()


class PartViews(Generic[T]):
    """Views of the objects with the same part key, for example those of one owner.

    An object whose part key changes is deleted from one view and created in another one.
    """

    def __init__(self, source: ObjectCache[T], part_of: Callable[[T], str], object_key: Callable[[T], str]) -> None:
        """`part_of` returns the part key of an object; `object_key` returns its key in the store of the informer."""
        self.source, self._part_of, self._object_key = source, part_of, object_key
        self._views: dict[str, InformerView[T]] = {}
        self._objects: defaultdict[str, dict[str, T]] = defaultdict(dict)
        """Objects by part key and object key, also of parts without a view."""
        source.on_change(self._on_change)
        source.on_deletion(self._on_deletion)
        source.after_sync(self._on_sync)

    def open(self, part: str, indexers: dict[str, Indexer[T]] | None = None) -> InformerView[T]:
        """Return a new view of a part, which has no open view."""
        assert part not in self._views, f"part {part} has a view"
        view = self._views[part] = InformerView(self.source, Store(indexers))
        for key, obj in self._objects.get(part, {}).items():
            view.store.put(key, obj)
        return view

    def close(self, part: str) -> None:
        """Call the handlers of the view of a part no more.  The second call does nothing."""
        if (view := self._views.pop(part, None)) is not None:
            view.forget_handlers()

    def objects_of(self, part: str) -> list[T]:
        """Return the objects of a part, whether or not it has a view."""
        return list(self._objects.get(part, {}).values())

    def parts(self) -> list[str]:
        return list(self._objects)

    def _on_change(self, old: T | None, new: T | None) -> None:
        before = self._part_of(old) if old is not None else None
        after = self._part_of(new) if new is not None else None
        if before is not None and old is not None and before != after:
            self._apply(before, old, None)
        if after is not None:
            self._apply(after, old if before == after else None, new)

    def _apply(self, part: str, old: T | None, new: T | None) -> None:
        key = self._object_key(new if new is not None else old)  # type: ignore[arg-type]  # one of them exists
        objects, view = self._objects[part], self._views.get(part)
        if new is not None:
            objects[key] = new
        else:
            objects.pop(key, None)
            if not objects:
                del self._objects[part]
        if view is None:
            return
        if new is not None:
            view.store.put(key, new)
        else:
            view.store.remove(key)
        view.report_change(old, new)

    def _on_deletion(self, old: T) -> None:
        if (view := self._views.get(self._part_of(old))) is not None:
            view.report_deletion(old)

    def _on_sync(self) -> None:
        for view in tuple(self._views.values()):
            view.report_sync()
