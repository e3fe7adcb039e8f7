"""Views of an informer: each shows a part of its objects and calls its own handlers."""

import asyncio

from tapestry.controller.informer import ObjectCache
from tapestry.controller.informer_views import PartViews, WholeViews
from tapestry.controller.store import Store
from tapestry.kube.objects import Object, key_of, labels_of
from tapestry.kube.resources import PODS


class Source(ObjectCache):
    """A cache that the test changes."""

    def __init__(self) -> None:
        super().__init__(PODS, Store(), asyncio.Event())

    def put(self, name: str, part: str) -> Object:
        pod = {"metadata": {"name": name, "namespace": "host", "labels": {"part": part}}}
        old = self.store.put(key_of(pod), pod)
        self._report_change(old, pod)
        return pod

    def delete(self, name: str) -> None:
        old = self.store.remove(f"host/{name}")
        assert old is not None
        self._report_change(old, None)
        self._report_deletion(old)

    def sync(self) -> None:
        self.synced.set()
        self._report_sync()


def names(old: Object | None, new: Object | None) -> tuple[str, ...]:
    return tuple(each["metadata"]["name"] if each else "" for each in (old, new))


def part_views(source: Source) -> PartViews[Object]:
    return PartViews(source, lambda pod: labels_of(pod)["part"], key_of)


def test_part_view_shows_only_its_objects() -> None:
    source = Source()
    views = part_views(source)
    source.put("early", "a")
    view = views.open("a", {"name": lambda pod: [pod["metadata"]["name"]]})
    source.put("late", "a")
    source.put("other", "b")
    assert sorted(view.store) == ["host/early", "host/late"]
    assert [key_of(each) for each in view.store.by("name", "late")] == ["host/late"]
    assert sorted(views.parts()) == ["a", "b"]


def test_part_view_reports_changes_and_deletions() -> None:
    source = Source()
    view = part_views(source).open("a")
    changes: list[tuple[str, ...]] = []
    deleted: list[str] = []
    view.on_change(lambda old, new: changes.append(names(old, new)))
    view.on_deletion(lambda old: deleted.append(key_of(old)))
    source.put("x", "a")
    source.put("x", "a")
    source.put("y", "b")
    source.delete("x")
    source.delete("y")
    assert changes == [("", "x"), ("x", "x"), ("x", "")]
    assert deleted == ["host/x"]


def test_object_moves_between_part_views() -> None:
    source = Source()
    views = part_views(source)
    first, second = views.open("a"), views.open("b")
    source.put("x", "a")
    changes: list[str] = []
    first.on_change(lambda old, new: changes.append(f"a{names(old, new)}"))
    second.on_change(lambda old, new: changes.append(f"b{names(old, new)}"))
    changes.clear()
    source.put("x", "b")
    assert changes == ["a('x', '')", "b('', 'x')"]
    assert (list(first.store), list(second.store)) == ([], ["host/x"])


def test_closed_part_view_calls_no_handlers() -> None:
    source = Source()
    views = part_views(source)
    view = views.open("a")
    changes: list[object] = []
    view.on_change(lambda old, new: changes.append((old, new)))
    views.close("a")
    views.close("a")
    source.put("x", "a")
    assert changes == []
    assert [key_of(each) for each in views.open("a").store.list()] == ["host/x"]


def test_views_sync_with_their_source() -> None:
    source = Source()
    whole, part = WholeViews(source).open(), part_views(source).open("a")
    synced: list[str] = []
    whole.after_sync(lambda: synced.append("whole"))
    part.after_sync(lambda: synced.append("part"))
    assert not whole.synced.is_set()
    source.sync()
    assert synced == ["whole", "part"]
    assert part.synced.is_set()


def test_whole_views_share_the_store() -> None:
    source = Source()
    views = WholeViews(source)
    first, second = views.open(), views.open()
    changes: list[str] = []
    first.on_change(lambda _old, _new: changes.append("first"))
    second.on_change(lambda _old, _new: changes.append("second"))
    views.close(first)
    views.close(first)
    source.put("x", "a")
    assert changes == ["second"]
    assert first.store is second.store is source.store
