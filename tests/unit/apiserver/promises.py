"""What a store promises, wherever it keeps its objects: each promise is kept or broken by a store of its own."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from hypothesis import strategies as st

from tapestry.apiserver.storage.log import Key
from tapestry.apiserver.storage.store import (
    Compacted,
    ObjectVersion,
    RevisionEncoder,
    Store,
    Subscription,
    VersionConflict,
    WatchEvent,
)

PODS = "pods"

Promise = Callable[[Store], Awaitable[None]]
PROMISES: list[Promise] = []


def promise(function: Promise) -> Promise:
    PROMISES.append(function)
    return function


def key(name: str, namespace: str = "default") -> Key:
    return Key(PODS, namespace, name)


def text(content: str, **labels: str) -> RevisionEncoder:
    def make(revision: int) -> tuple[bytes, dict[str, str]]:
        metadata = {"labels": labels, "resourceVersion": str(revision)}
        return msgspec.json.encode({"apiVersion": "v1", "metadata": metadata, "content": content}), labels

    return make


def said(raw: bytes) -> tuple[str, int]:
    """What an object says, and the revision that it has in it."""
    obj = msgspec.json.decode(raw)
    return obj["content"], int(obj["metadata"]["resourceVersion"])


def stories(events: list[WatchEvent]) -> list[tuple[int, str]]:
    assert all(said(event.raw)[1] == event.revision for event in events)
    return [(event.revision, said(event.raw)[0]) for event in events]


@promise
async def every_write_has_a_revision_of_its_own_and_readers_see_the_newest(store: Store) -> None:
    first = await store.put(key("a"), None, text("one"))
    second = await store.put(key("a"), first, text("two", app="x"))
    assert second.revision > first.revision
    assert store.get(*key("a")) == store.head(*key("a")) == second
    assert said(second.raw) == ("two", second.revision)
    assert second.labels == {"app": "x"}
    assert store.revision == second.revision == store.changed_revision(PODS)


@promise
async def a_write_that_expects_another_version_is_stale(store: Store) -> None:
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


@promise
async def a_write_whose_claim_does_not_hold_is_stale(store: Store) -> None:
    with pytest.raises(VersionConflict):
        await store.put(key("a"), None, text("one"), lambda: False)
    assert store.list_objects(PODS) == []
    made = await store.put(key("a"), None, text("one"), lambda: True)
    with pytest.raises(VersionConflict):
        await store.put(key("a"), None, text("two"), lambda: True)
    assert store.list_objects(PODS) == [made]


@promise
async def of_many_writers_who_expect_the_same_one_wins(store: Store) -> None:
    first = await store.put(key("a"), None, text("one"))

    async def wins(number: int) -> bool:
        try:
            await store.put(key("a"), first, text(str(number)))
        except VersionConflict:
            return False
        return True

    async with asyncio.TaskGroup() as group:
        writers = [group.create_task(wins(number)) for number in range(8)]
    assert [writer.result() for writer in writers].count(True) == 1
    assert said(store.list_objects(PODS)[0].raw)[0] == str([writer.result() for writer in writers].index(True))


@promise
async def a_list_is_by_namespace_and_name_whatever_the_order_of_writing(store: Store) -> None:
    for namespace, name in (("b", "x"), ("a", "z"), ("a", "y"), ("a-b", "w")):
        await store.put(key(name, namespace), None, text(name))
    found = [(each.key.namespace, each.key.name) for each in store.list_objects(PODS)]
    assert found == [("a", "y"), ("a", "z"), ("a-b", "w"), ("b", "x")]
    assert [each.key.name for each in store.list_objects(PODS, "a")] == ["y", "z"]
    assert (store.count(PODS), list(store.resources())) == (4, [PODS])


@promise
async def a_watch_is_told_of_every_change_after_its_revision_once_and_in_order(store: Store) -> None:
    first = await store.put(key("a"), None, text("one"))
    second = await store.put(key("a"), first, text("two"))
    watching = store.watch(PODS, after=first.revision)
    gone = await store.delete(key("a"), second, text("two"))
    other = await store.put(key("b"), None, text("new"))
    events = await watching.next_events()
    assert stories(events) == [(second.revision, "two"), (gone.revision, "two"), (other.revision, "new")]
    assert [(event.old, event.new) for event in events] == [(first, second), (second, None), (None, other)]


@promise
async def a_watch_of_a_namespace_or_a_name_is_told_of_no_other(store: Store) -> None:
    here, this = store.watch(PODS, "here"), store.watch(PODS, "here", "a")
    await store.put(key("a", "there"), None, text("x"))
    first = await store.put(key("b", "here"), None, text("x"))
    second = await store.put(key("a", "here"), None, text("x"))
    assert [event.revision for event in await here.next_events()] == [first.revision, second.revision]
    assert [event.revision for event in await this.next_events()] == [second.revision]


@promise
async def a_watch_from_a_revision_that_is_yet_to_come_is_told_of_nothing_before_it(store: Store) -> None:
    first = await store.put(key("a"), None, text("one"))
    watching = store.watch(PODS, after=first.revision + 1)
    second = await store.put(key("a"), first, text("two"))
    third = await store.put(key("a"), second, text("three"))
    assert stories(await watching.next_events()) == [(third.revision, "three")]


@promise
async def listeners_are_told_before_whoever_made_the_change_is_answered(store: Store) -> None:
    heard: list[int] = []
    store.on_change(PODS, lambda event: heard.append(event.revision))
    first = await store.put(key("a"), None, text("one"))
    assert heard == [first.revision]
    gone = await store.delete(key("a"), first, text("one"))
    assert heard == [first.revision, gone.revision]


@promise
async def what_is_forgotten_cannot_be_watched_or_listed(store: Store) -> None:
    first = await store.put(key("a"), None, text("one"))
    second = await store.put(key("a"), first, text("two"))
    store.compact_events(first.revision)
    assert stories(await store.watch(PODS, after=first.revision).next_events()) == [(second.revision, "two")]
    with pytest.raises(Compacted):
        store.watch(PODS, after=first.revision - 1)
    with pytest.raises(Compacted):
        store.list_at_revision(PODS, "", first.revision - 1)
    with pytest.raises(Compacted):
        store.watch("services", after=first.revision - 1)


@promise
async def a_watch_of_what_never_was_goes_back_as_far_as_any_other(store: Store) -> None:
    before = store.revision
    await store.put(key("a"), None, text("one"))
    watching = store.watch("services", after=before)
    made = await store.put(Key("services", "default", "s"), None, text("s"))
    assert stories(await watching.next_events()) == [(made.revision, "s")]


@promise
async def a_revision_that_is_yet_to_come_is_waited_for(store: Store) -> None:
    waiting = asyncio.create_task(store.wait_for_revision(store.revision + 1, 10))
    await asyncio.sleep(0)
    await store.put(key("a"), None, text("one"))
    assert await waiting
    assert not await store.wait_for_revision(store.revision + 1, 0.01)


@promise
async def whoever_waits_for_the_latest_sees_what_was_acknowledged(store: Store) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(store.put(key(f"p{number}"), None, text("x")))
            group.create_task(store.wait_for_latest())
    await store.wait_for_latest()
    await store.wait_for_pending_write(key("p0"))
    assert store.count(PODS) == 20


Step = tuple[str, int]
STEPS = st.lists(st.tuples(st.sampled_from(["put", "delete"]), st.integers(0, 3)), max_size=25)


async def check_that_watches_lead_from_the_past_to_the_present(store: Store, steps: list[Step], since: int) -> None:
    """The past is what was there, and watches lead from it to the present."""
    start = store.revision
    past: dict[int, dict[str, bytes]] = {start: {each.key.name: each.raw for each in store.list_objects(PODS)}}
    for what, number in steps:
        await take(store, what, f"p{number}", past)
    at = sorted(past)[min(since, len(past) - 1)]
    assert {each.key.name: each.raw for each in store.list_at_revision(PODS, "", at)} == past[at]
    state = dict(past[at])
    for event in drained(store.watch(PODS, after=at)):
        name = event.object_version.key.name
        if event.new is None:
            del state[name]
        else:
            state[name] = event.new.raw
    assert state == past[max(past)]


async def take(store: Store, what: str, name: str, past: dict[int, dict[str, bytes]]) -> None:
    head, now = store.head(*key(name)), past[max(past)]
    if what == "put":
        made: ObjectVersion = await store.put(key(name), head, text(name))
        past[made.revision] = {**now, name: made.raw}
    elif head is not None:
        gone = await store.delete(key(name), head, text(name))
        past[gone.revision] = {each: raw for each, raw in now.items() if each != name}


def drained(subscription: Subscription) -> list[WatchEvent]:
    return list(subscription._events)
