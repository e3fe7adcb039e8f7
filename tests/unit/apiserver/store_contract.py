"""The store contract: checks that every store implementation must pass."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from hypothesis import strategies as st

from tapestry.apiserver.core.store import (
    Compacted,
    Key,
    ObjectVersion,
    RevisionEncoder,
    StorageUnavailable,
    Store,
    Subscription,
    VersionConflict,
    WatchEvent,
)

PODS = "pods"

StoreCheck = Callable[[Store], Awaitable[None]]
STORE_CHECKS: list[StoreCheck] = []


def store_check(function: StoreCheck) -> StoreCheck:
    STORE_CHECKS.append(function)
    return function


def key(name: str, namespace: str = "default") -> Key:
    return Key(PODS, namespace, name)


def text(content: str, **labels: str) -> RevisionEncoder:
    def encode(revision: int) -> tuple[bytes, dict[str, str]]:
        metadata = {"labels": labels, "resourceVersion": str(revision)}
        return msgspec.json.encode({"apiVersion": "v1", "metadata": metadata, "content": content}), labels

    return encode


def content_and_revision(raw: bytes) -> tuple[str, int]:
    """The content of an encoded object and the revision in its metadata."""
    obj = msgspec.json.decode(raw)
    return obj["content"], int(obj["metadata"]["resourceVersion"])


def revisions_and_contents(events: list[WatchEvent]) -> list[tuple[int, str]]:
    assert all(content_and_revision(event.raw)[1] == event.revision for event in events)
    return [(event.revision, content_and_revision(event.raw)[0]) for event in events]


@store_check
async def write_gets_own_revision(store: Store) -> None:
    first = await store.put(key("a"), None, text("one"))
    second = await store.put(key("a"), first, text("two", app="x"))
    assert second.revision > first.revision
    assert store.get(*key("a")) == store.head(*key("a")) == second
    assert content_and_revision(second.raw) == ("two", second.revision)
    assert second.labels == {"app": "x"}
    assert store.revision == second.revision == store.changed_revision(PODS)


@store_check
async def precondition_sees_writes_in_flight(store: Store) -> None:
    def is_below_quota() -> bool:
        return len(store.heads(PODS, "default")) < 1

    async def create(name: str) -> bool:
        try:
            await store.put(key(name), None, text(name), is_below_quota)
        except VersionConflict:
            return False
        return True

    async with asyncio.TaskGroup() as group:
        creates = [group.create_task(create(f"p{number}")) for number in range(20)]
    assert sum(each.result() for each in creates) == len(store.list_objects(PODS)) == 1
    assert store.heads(PODS, "default") == store.heads(PODS) == store.list_objects(PODS)
    assert store.heads(PODS, "elsewhere") == store.heads("services") == []


@store_check
async def precondition_sees_updates_and_deletions_in_flight(store: Store) -> None:
    def contents() -> set[str]:
        return {content_and_revision(each.raw)[0] for each in store.heads(PODS)}

    first = await store.put(key("a"), None, text("small"))
    other = await store.put(key("b"), None, text("large"))
    async with asyncio.TaskGroup() as group:
        growing = group.create_task(store.put(key("a"), first, text("large"), lambda: "small" in contents()))
        deletion = group.create_task(store.delete(key("b"), other, text("deleted")))
        second = group.create_task(attempt(store.put(key("c"), None, text("large"), lambda: "small" in contents())))
    assert growing.result().revision > first.revision
    assert deletion.done()
    assert second.result() is None  # the first write came first
    assert store.heads(PODS) == store.list_objects(PODS)


async def attempt(write: Awaitable[ObjectVersion]) -> ObjectVersion | None:
    try:
        return await write
    except VersionConflict:
        return None


@store_check
async def write_conflicts_if_version_differs(store: Store) -> None:
    first = await store.put(key("a"), None, text("one"))
    second = await store.put(key("a"), first, text("two"))
    for expected in (first, None):
        with pytest.raises(VersionConflict):
            await store.put(key("a"), expected, text("three"))
    with pytest.raises(VersionConflict):
        await store.delete(key("a"), first, text("gone"))
    with pytest.raises(VersionConflict):
        await store.delete(key("b"), first, text("gone"))
    assert store.list_objects(PODS) == [second]


@store_check
async def write_conflicts_if_precondition_fails(store: Store) -> None:
    with pytest.raises(VersionConflict):
        await store.put(key("a"), None, text("one"), lambda: False)
    assert store.list_objects(PODS) == []
    created = await store.put(key("a"), None, text("one"), lambda: True)
    with pytest.raises(VersionConflict):
        await store.put(key("a"), None, text("two"), lambda: True)
    assert store.list_objects(PODS) == [created]


@store_check
async def one_concurrent_writer_succeeds(store: Store) -> None:
    first = await store.put(key("a"), None, text("one"))

    async def write_succeeds(number: int) -> bool:
        try:
            await store.put(key("a"), first, text(str(number)))
        except VersionConflict:
            return False
        return True

    async with asyncio.TaskGroup() as group:
        writers = [group.create_task(write_succeeds(number)) for number in range(8)]
    assert [writer.result() for writer in writers].count(True) == 1
    assert content_and_revision(store.list_objects(PODS)[0].raw)[0] == str(
        [writer.result() for writer in writers].index(True)
    )


@store_check
async def list_is_sorted_by_namespace_and_name(store: Store) -> None:
    for namespace, name in (("b", "x"), ("a", "z"), ("a", "y"), ("a-b", "w")):
        await store.put(key(name, namespace), None, text(name))
    listed = [(each.key.namespace, each.key.name) for each in store.list_objects(PODS)]
    assert listed == [("a", "y"), ("a", "z"), ("a-b", "w"), ("b", "x")]
    assert [each.key.name for each in store.list_objects(PODS, "a")] == ["y", "z"]
    assert [each.key.namespace for each in store.list_objects(PODS, name="z")] == ["a"]
    assert store.list_objects(PODS, "b", "z") == []
    assert {each.key.name for each in store.unsorted_objects(PODS)} == {"w", "x", "y", "z"}
    assert (store.count(PODS), list(store.resources())) == (4, [PODS])


@store_check
async def watch_gets_every_change_once_in_order(store: Store) -> None:
    first = await store.put(key("a"), None, text("one"))
    second = await store.put(key("a"), first, text("two"))
    subscription = store.watch(PODS, after=first.revision)
    deleted = await store.delete(key("a"), second, text("two"))
    other = await store.put(key("b"), None, text("new"))
    events = await subscription.next_events()
    assert revisions_and_contents(events) == [
        (second.revision, "two"),
        (deleted.revision, "two"),
        (other.revision, "new"),
    ]
    assert [(event.old, event.new) for event in events] == [(first, second), (second, None), (None, other)]


@store_check
async def watch_filters_by_namespace_and_name(store: Store) -> None:
    in_namespace, by_name = store.watch(PODS, "here"), store.watch(PODS, "here", "a")
    await store.put(key("a", "there"), None, text("x"))
    first = await store.put(key("b", "here"), None, text("x"))
    second = await store.put(key("a", "here"), None, text("x"))
    assert [event.revision for event in await in_namespace.next_events()] == [first.revision, second.revision]
    assert [event.revision for event in await by_name.next_events()] == [second.revision]


@store_check
async def watch_from_future_revision_skips_earlier_changes(store: Store) -> None:
    first = await store.put(key("a"), None, text("one"))
    subscription = store.watch(PODS, after=first.revision + 1)
    second = await store.put(key("a"), first, text("two"))
    third = await store.put(key("a"), second, text("three"))
    assert revisions_and_contents(await subscription.next_events()) == [(third.revision, "three")]


@store_check
async def listeners_run_before_writer_returns(store: Store) -> None:
    revisions: list[int] = []
    store.on_change(PODS, lambda event: revisions.append(event.revision))
    first = await store.put(key("a"), None, text("one"))
    assert revisions == [first.revision]
    deleted = await store.delete(key("a"), first, text("one"))
    assert revisions == [first.revision, deleted.revision]


@store_check
async def followers_get_changes_of_all_resources_after_listeners(store: Store) -> None:
    seen: list[str] = []
    store.on_change(PODS, lambda _: seen.append("listener"))
    with store.following(lambda event: seen.append(event.object_version.key.resource)):
        first = await store.put(key("a"), None, text("one"))
        await store.put(Key("services", "default", "s"), None, text("s"))
        await store.delete(key("a"), first, text("one"))
    await store.put(key("b"), None, text("two"))
    assert seen == ["listener", PODS, "services", "listener", PODS, "listener"]


@store_check
async def finish_ends_writes_then_watches(store: Store) -> None:
    subscription = store.watch(PODS)
    first = await store.put(key("a"), None, text("one"))
    async with asyncio.TaskGroup() as group:
        writer = group.create_task(store.put(key("a"), first, text("two")))
        await asyncio.sleep(0)  # the write starts
        await store.finish()
        last = await writer
    assert subscription.is_finished
    assert [event.revision for event in await subscription.next_events()] == [first.revision, last.revision]
    assert store.revision == last.revision
    with pytest.raises(StorageUnavailable):
        await store.put(key("b"), None, text("late"))
    with pytest.raises(StorageUnavailable):
        await store.delete(key("a"), last, text("late"))
    late = store.watch(PODS, after=first.revision)
    assert revisions_and_contents(await late.next_events()) == [(last.revision, "two")]
    assert late.is_finished


@store_check
async def cleared_store_is_unavailable_and_never_empty(store: Store) -> None:
    heard: list[WatchEvent] = []
    store.on_change(PODS, heard.append)
    await store.put(key("a"), None, text("one"))
    subscription = store.watch(PODS)
    await store.clear()
    for read in (store.get, store.list_objects):
        with pytest.raises(StorageUnavailable, match="pods cannot be read: the server is closing"):
            read(*key("a"))
    with pytest.raises(StorageUnavailable):
        store.watch(PODS)
    store.unwatch(PODS, subscription)
    assert len(heard) == 1


@store_check
async def compacted_revision_cannot_be_watched_or_listed(store: Store) -> None:
    first = await store.put(key("a"), None, text("one"))
    second = await store.put(key("a"), first, text("two"))
    store.compact_events(first.revision)
    assert revisions_and_contents(await store.watch(PODS, after=first.revision).next_events()) == [
        (second.revision, "two")
    ]
    with pytest.raises(Compacted):
        store.watch(PODS, after=first.revision - 1)
    with pytest.raises(Compacted):
        store.list_at_revision(PODS, "", first.revision - 1)
    with pytest.raises(Compacted):
        store.watch("services", after=first.revision - 1)


@store_check
async def watch_of_unknown_resource_has_full_history(store: Store) -> None:
    before = store.revision
    await store.put(key("a"), None, text("one"))
    subscription = store.watch("services", after=before)
    created = await store.put(Key("services", "default", "s"), None, text("s"))
    assert revisions_and_contents(await subscription.next_events()) == [(created.revision, "s")]


@store_check
async def wait_for_revision_waits_for_write(store: Store) -> None:
    waiting = asyncio.create_task(store.wait_for_revision(store.revision + 1, 10))
    await asyncio.sleep(0)
    await store.put(key("a"), None, text("one"))
    assert await waiting
    assert not await store.wait_for_revision(store.revision + 1, 0.01)


@store_check
async def wait_for_latest_sees_acknowledged_writes(store: Store) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(store.put(key(f"p{number}"), None, text("x")))
            group.create_task(store.wait_for_latest())
    await store.wait_for_latest()
    await store.wait_for_pending_write(key("p0"))
    assert store.count(PODS) == 20


Step = tuple[str, int]
STEPS = st.lists(st.tuples(st.sampled_from(["put", "delete"]), st.integers(0, 3)), max_size=25)


async def check_watch_replays_history(store: Store, steps: list[Step], since: int) -> None:
    """Check that lists at past revisions are correct, and that watches lead from them to the current state."""
    start = store.revision
    history: dict[int, dict[str, bytes]] = {start: {each.key.name: each.raw for each in store.list_objects(PODS)}}
    for operation, number in steps:
        await apply_step(store, operation, f"p{number}", history)
    revision = sorted(history)[min(since, len(history) - 1)]
    assert {each.key.name: each.raw for each in store.list_at_revision(PODS, "", revision)} == history[revision]
    state = dict(history[revision])
    for event in drained(store.watch(PODS, after=revision)):
        name = event.object_version.key.name
        if event.new is None:
            del state[name]
        else:
            state[name] = event.new.raw
    assert state == history[max(history)]


async def apply_step(store: Store, operation: str, name: str, history: dict[int, dict[str, bytes]]) -> None:
    head, latest = store.head(*key(name)), history[max(history)]
    if operation == "put":
        created: ObjectVersion = await store.put(key(name), head, text(name))
        history[created.revision] = {**latest, name: created.raw}
    elif head is not None:
        deleted = await store.delete(key(name), head, text(name))
        history[deleted.revision] = {each: raw for each, raw in latest.items() if each != name}


def drained(subscription: Subscription) -> list[WatchEvent]:
    return list(subscription._events)
