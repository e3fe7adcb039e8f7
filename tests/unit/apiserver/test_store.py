"""The store: what readers, writers and watchers are promised."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.apiserver.storage.file import FileLog
from tapestry.apiserver.storage.log import Entry, Key, Log, LogError
from tapestry.apiserver.storage.memory import MemoryLog
from tapestry.apiserver.storage.store import Compacted, Event, Make, Stale, Store, Subscription, Version, change

PODS = "pods"


def key(name: str, namespace: str = "default") -> Key:
    return Key(PODS, namespace, name)


def text(content: str, **labels: str) -> Make:
    return lambda revision: (f"{content}@{revision}".encode(), labels)


@asynccontextmanager
async def at_work(log: Log) -> AsyncIterator[Store]:
    store = Store(log)
    store.load(lambda _: {})
    async with asyncio.TaskGroup() as group:
        running = group.create_task(store.run())
        try:
            yield store
        finally:
            running.cancel()
    store.close()


@asynccontextmanager
async def a_store() -> AsyncIterator[Store]:
    async with at_work(MemoryLog()) as store:
        yield store


class Held(MemoryLog):
    """A log that takes nothing until it is let go."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.go = asyncio.Event()

    def append(self, entries: Sequence[Entry]) -> None:
        asyncio.run_coroutine_threadsafe(self.go.wait(), self.loop).result(10)


class Failing(MemoryLog):
    """A log that is full until somebody makes room."""

    def __init__(self) -> None:
        self.is_full = True

    def append(self, entries: Sequence[Entry]) -> None:
        if self.is_full:
            raise LogError("the disk is full")


async def test_every_write_has_a_revision_of_its_own_and_readers_see_the_newest() -> None:
    async with a_store() as store:
        first = await store.put(key("a"), None, text("one"))
        second = await store.put(key("a"), first, text("two"))
        assert (first.revision, second.revision) == (1, 2)
        assert store.get(*key("a")) is second
        assert second.raw == b"two@2"
        assert store.revision == 2


async def test_a_write_that_expects_another_version_is_stale() -> None:
    async with a_store() as store:
        first = await store.put(key("a"), None, text("one"))
        await store.put(key("a"), first, text("two"))
        with pytest.raises(Stale):
            await store.put(key("a"), first, text("three"))
        with pytest.raises(Stale):
            await store.put(key("a"), None, text("again"))
        with pytest.raises(Stale):
            await store.delete(key("b"), first, text("gone"))


async def test_what_is_not_durable_yet_is_seen_by_the_next_writer_and_by_no_reader() -> None:
    log = Held()
    async with at_work(log) as store:
        writing = asyncio.create_task(store.put(key("a"), None, text("one")))
        await asyncio.sleep(0)
        head = store.head(*key("a"))
        assert head is not None
        assert store.get(*key("a")) is None
        following = asyncio.create_task(store.put(key("a"), head, text("two")))
        await asyncio.sleep(0)
        assert store.revision == 0
        log.go.set()
        assert (await writing).revision == 1
        assert (await following).revision == 2
        assert store.every(PODS) == [await following]


async def test_a_write_that_fails_never_happened_and_its_revision_is_not_given_out_again() -> None:
    log = Failing()
    async with at_work(log) as store:
        watching = store.watch(PODS)
        with pytest.raises(LogError, match="disk is full"):
            await store.put(key("a"), None, text("one"))
        assert store.head(*key("a")) is None
        log.is_full = False
        found = await store.put(key("a"), None, text("one"))
        assert found.revision == 2
        assert [event.revision for event in await watching.take()] == [2]


async def test_what_was_built_on_a_write_that_failed_fails_with_it() -> None:
    log = Failing()
    async with at_work(log) as store:
        first = asyncio.create_task(store.put(key("a"), None, text("one")))
        await asyncio.sleep(0)
        second = asyncio.create_task(store.put(key("a"), store.head(*key("a")), text("two")))
        for task in (first, second):
            with pytest.raises(LogError):
                await task
        assert store.every(PODS) == []


async def test_a_list_is_by_namespace_and_name_whatever_the_order_of_writing() -> None:
    async with a_store() as store:
        for namespace, name in (("b", "x"), ("a", "z"), ("a", "y"), ("a-b", "w")):
            await store.put(key(name, namespace), None, text(name))
        assert [(each.key.namespace, each.key.name) for each in store.every(PODS)] == [
            ("a", "y"),
            ("a", "z"),
            ("a-b", "w"),
            ("b", "x"),
        ]
        assert [each.key.name for each in store.every(PODS, "a")] == ["y", "z"]


async def test_a_watch_is_told_of_every_change_after_its_revision_once_and_in_order() -> None:
    async with a_store() as store:
        first = await store.put(key("a"), None, text("one"))
        second = await store.put(key("a"), first, text("two"))
        watching = store.watch(PODS, after=1)
        await store.delete(key("a"), second, text("gone"))
        await store.put(key("b"), None, text("new"))
        events = await watching.take()
        assert [(event.revision, event.raw) for event in events] == [(2, b"two@2"), (3, b"gone@3"), (4, b"new@4")]


async def test_a_watch_of_a_namespace_or_a_name_is_told_of_no_other() -> None:
    async with a_store() as store:
        here, this = store.watch(PODS, "here"), store.watch(PODS, "here", "a")
        await store.put(key("a", "there"), None, text("x"))
        await store.put(key("b", "here"), None, text("x"))
        await store.put(key("a", "here"), None, text("x"))
        assert [event.revision for event in await here.take()] == [2, 3]
        assert [event.revision for event in await this.take()] == [3]


async def test_what_is_forgotten_cannot_be_watched_or_listed() -> None:
    async with a_store() as store:
        first = await store.put(key("a"), None, text("one"))
        await store.put(key("a"), first, text("two"))
        store.forget_events(1)
        assert [event.revision for event in await store.watch(PODS, after=1).take()] == [2]
        with pytest.raises(Compacted):
            store.watch(PODS, after=0)
        with pytest.raises(Compacted):
            store.every_at(PODS, "", 0)


async def test_a_watcher_that_is_too_far_behind_is_dropped_and_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tapestry.apiserver.storage.store.LONGEST_BACKLOG", 3)
    async with a_store() as store:
        watching = store.watch(PODS)
        for number in range(5):
            await store.put(key(f"p{number}"), None, text("x"))
        assert await watching.take() == []
        assert watching.dropped
        assert store.count(PODS) == 5


async def test_a_revision_that_is_yet_to_come_is_waited_for() -> None:
    async with a_store() as store:
        waiting = asyncio.create_task(store.wait_for(1, 10))
        await asyncio.sleep(0)
        await store.put(key("a"), None, text("one"))
        assert await waiting
        assert not await store.wait_for(2, 0.01)


def test_a_change_is_what_it_is_to_whoever_sees_only_some() -> None:
    old, new = (Version(key("a"), number, b"", {"app": app}, 1) for number, app in ((1, "x"), (2, "y")))
    event = Event(2, old, new, b"")
    assert change(event, lambda version: version.labels["app"] == "y") == "ADDED"
    assert change(event, lambda version: version.labels["app"] == "x") == "DELETED"
    assert change(event, lambda _: True) == "MODIFIED"
    assert change(event, lambda _: False) is None


Step = tuple[str, int]
STEPS = st.lists(st.tuples(st.sampled_from(["put", "delete"]), st.integers(0, 3)), max_size=25)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(0, 25))
def test_the_past_is_what_was_there_and_watches_lead_from_it_to_the_present(steps: list[Step], since: int) -> None:
    async def story() -> None:
        async with a_store() as store:
            past: list[dict[str, bytes]] = [{}]
            for what, number in steps:
                await take(store, what, f"p{number}", past)
            at = min(since, store.revision)
            assert {each.key.name: each.raw for each in store.every_at(PODS, "", at)} == past[at]
            state = dict(past[at])
            for event in drained(store.watch(PODS, after=at)):
                name = event.shown.key.name
                if event.new is None:
                    del state[name]
                else:
                    state[name] = event.new.raw
            assert state == past[-1]

    asyncio.run(story())


async def take(store: Store, what: str, name: str, past: list[dict[str, bytes]]) -> None:
    head = store.head(*key(name))
    if what == "put":
        version = await store.put(key(name), head, text(name))
        past.append({**past[-1], name: version.raw})
    elif head is not None:
        await store.delete(key(name), head, text("gone"))
        past.append({each: raw for each, raw in past[-1].items() if each != name})


def drained(subscription: Subscription) -> Iterator[Event]:
    yield from subscription._events


# -- on a disk


async def test_what_was_acknowledged_is_there_after_the_process_is_gone(tmp_path: Path) -> None:
    async with at_work(FileLog(tmp_path)) as store:
        first = await store.put(key("a"), None, text("one"))
        await store.put(key("b"), None, text("two"))
        await store.delete(key("a"), first, text("gone"))
    async with at_work(FileLog(tmp_path)) as store:
        assert [(each.key.name, each.raw, each.revision) for each in store.every(PODS)] == [("b", b"two@2", 2)]
        assert (await store.put(key("c"), None, text("three"))).revision == 4, "3 was the deletion"


async def test_many_writers_share_what_a_commit_costs(tmp_path: Path) -> None:
    class Counting(FileLog):
        batches = 0

        def append(self, entries: Sequence[Entry]) -> None:
            self.batches += 1
            super().append(entries)

    log = Counting(tmp_path)
    async with at_work(log) as store, asyncio.TaskGroup() as group:
        for number in range(200):
            group.create_task(store.put(key(f"p{number}"), None, text("x")))
    assert log.batches < 20


def test_a_file_is_one_processs_alone(tmp_path: Path) -> None:
    log = FileLog(tmp_path)
    with pytest.raises(LogError, match="another process has it open"):
        FileLog(tmp_path)
    log.close()


def test_bytes_that_are_not_what_was_written_are_not_served(tmp_path: Path) -> None:
    log = FileLog(tmp_path)
    log.append([Entry(1, key("a"), b"the truth")])
    log.close()
    damaged = log.path.read_bytes().replace(b"the truth", b"the trutt")
    log.path.write_bytes(damaged)
    again = FileLog(tmp_path)
    with pytest.raises(LogError, match=r"pods default/a at revision 1 is not what was written"):
        list(again.load()[1])
    again.close()


def test_a_file_that_is_no_database_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "tapestry.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(LogError, match="restore a backup"):
        FileLog(tmp_path)


async def test_a_copy_of_a_log_in_use_is_whole(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "here")
    (tmp_path / "there").mkdir()
    async with at_work(log) as store:
        await store.put(key("a"), None, text("one"))
        log.copy_to(tmp_path / "there" / "tapestry.db")
    copy = FileLog(tmp_path / "there")
    assert [entry.raw for entry in copy.load()[1]] == [b"one@1"]
    copy.close()
