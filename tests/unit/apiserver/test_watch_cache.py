"""Limits of the events that the store remembers, and of the events that a slow watcher leaves unread."""

import pytest

from tapestry.apiserver.core.store import Key, ObjectVersion, Subscription, WatchCache, WatchEvent


def event(revision: int, size: int) -> WatchEvent:
    version = ObjectVersion(Key("pods", "default", "a"), revision, b"x" * size, {})
    return WatchEvent(revision, None, version, version.raw)


def test_remembered_events_are_limited_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.apiserver.core.store.MAX_EVENT_BYTES_PER_RESOURCE", 100)
    cache = WatchCache()
    for revision in range(1, 6):
        cache.add_event(event(revision, 40))
    assert [each.revision for each in cache.events] == [4, 5]
    assert (cache.event_bytes, cache.compacted_revision) == (80, 3)


def test_replacing_the_objects_forgets_the_events() -> None:
    cache = WatchCache()
    cache.add_event(event(1, 40))
    cache.replace({}, 7)
    assert (len(cache.events), cache.event_bytes, cache.compacted_revision) == (0, 0, 7)


def test_a_watcher_with_too_many_unread_bytes_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.apiserver.core.store.MAX_WATCH_BACKLOG_BYTES", 100)
    subscription = Subscription("", "", 0, [])
    for revision in range(1, 4):
        subscription.push(event(revision, 40))
    assert not subscription.dropped
    subscription.push(event(4, 40))
    assert subscription.dropped


async def test_reading_events_frees_the_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.apiserver.core.store.MAX_WATCH_BACKLOG_BYTES", 100)
    subscription = Subscription("", "", 0, [])
    for revision in range(1, 20):
        subscription.push(event(revision, 80))
        assert [each.revision for each in await subscription.next_events()] == [revision]
    assert not subscription.dropped
