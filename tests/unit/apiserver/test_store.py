"""The store: the promises of every store, kept in memory and on a disk, and what is so of a log alone."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.apiserver.storage.local_store import LocalStore
from tapestry.apiserver.storage.log import Entry, Key, Log, StorageError
from tapestry.apiserver.storage.memory_log import MemoryLog
from tapestry.apiserver.storage.raw_objects import with_revision, without_revision
from tapestry.apiserver.storage.sqlite_log import FileLog
from tapestry.apiserver.storage.store import ObjectVersion, WatchEvent, event_type

from .earlier import write_version_1
from .promises import (
    PODS,
    PROMISES,
    STEPS,
    Promise,
    Step,
    check_that_watches_lead_from_the_past_to_the_present,
    key,
    said,
    text,
)


@asynccontextmanager
async def at_work(log: Log) -> AsyncIterator[LocalStore]:
    store = LocalStore(log)
    store.load(lambda _: {})
    async with asyncio.TaskGroup() as group:
        running = group.create_task(store.run())
        try:
            yield store
        finally:
            running.cancel()
    store.close()


@asynccontextmanager
async def a_store() -> AsyncIterator[LocalStore]:
    async with at_work(MemoryLog()) as store:
        yield store


@pytest.mark.parametrize("check", PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("backend", ["memory", "file"])
async def test_a_store_keeps_its_promise(backend: str, check: Promise, tmp_path: Path) -> None:
    async with at_work(FileLog(tmp_path) if backend == "file" else MemoryLog()) as store:
        await check(store)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(0, 25))
def test_the_past_is_what_was_there_and_watches_lead_from_it_to_the_present(steps: list[Step], since: int) -> None:
    async def story() -> None:
        async with a_store() as store:
            await check_that_watches_lead_from_the_past_to_the_present(store, steps, since)

    asyncio.run(story())


# -- a log


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
            raise StorageError("the disk is full")


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
        assert store.list_objects(PODS) == [await following]


async def test_a_writer_may_leave_and_the_write_is_made_and_waited_for_by_others() -> None:
    log = Held()
    async with at_work(log) as store:
        writing = asyncio.create_task(store.put(key("a"), None, text("one")))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(store.wait_for_pending_write(key("a")))
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait([writing])
        assert not waiting.done()
        log.go.set()
        await waiting
        assert [said(each.raw) for each in store.list_objects(PODS)] == [("one", 1)]


async def test_somebody_who_cannot_bear_the_news_ends_the_store_and_leaves_no_writer_waiting() -> None:
    def listener(_: WatchEvent) -> None:
        raise RuntimeError("too much")

    async def write() -> None:
        async with at_work(MemoryLog()) as store:
            store.on_change(PODS, listener)
            await store.put(key("a"), None, text("one"))

    with pytest.raises(ExceptionGroup) as caught:
        await write()
    assert caught.group_contains(RuntimeError, match="too much")


async def test_a_write_that_fails_never_happened_and_its_revision_is_not_given_out_again() -> None:
    log = Failing()
    async with at_work(log) as store:
        watching = store.watch(PODS)
        with pytest.raises(StorageError, match="disk is full"):
            await store.put(key("a"), None, text("one"))
        assert store.head(*key("a")) is None
        log.is_full = False
        found = await store.put(key("a"), None, text("one"))
        assert found.revision == 2
        assert [event.revision for event in await watching.next_events()] == [2]


async def test_what_was_built_on_a_write_that_failed_fails_with_it() -> None:
    log = Failing()
    async with at_work(log) as store:
        first = asyncio.create_task(store.put(key("a"), None, text("one")))
        await asyncio.sleep(0)
        second = asyncio.create_task(store.put(key("a"), store.head(*key("a")), text("two")))
        for task in (first, second):
            with pytest.raises(StorageError):
                await task
        assert store.list_objects(PODS) == []


async def test_a_watcher_that_is_too_far_behind_is_dropped_and_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tapestry.apiserver.storage.store.MAX_WATCH_BACKLOG", 3)
    async with a_store() as store:
        watching = store.watch(PODS)
        for number in range(5):
            await store.put(key(f"p{number}"), None, text("x"))
        assert await watching.next_events() == []
        assert watching.dropped
        assert store.count(PODS) == 5


def test_a_change_is_what_it_is_to_whoever_sees_only_some() -> None:
    old, new = (ObjectVersion(key("a"), number, b"", {"app": app}) for number, app in ((1, "x"), (2, "y")))
    event = WatchEvent(2, old, new, b"")
    assert event_type(event, lambda version: version.labels["app"] == "y") == "ADDED"
    assert event_type(event, lambda version: version.labels["app"] == "x") == "DELETED"
    assert event_type(event, lambda _: True) == "MODIFIED"
    assert event_type(event, lambda _: False) is None


async def test_events_that_nobody_has_repeated_for_long_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.apiserver.storage.local_store.EVENT_TTL_SECONDS", 0.05)
    async with a_store() as store:
        watching = store.watch("events")
        pod = await store.put(key("a"), None, text("one"))
        made = await store.put(Key("events", "default", "e"), None, text("scheduled"))
        [came] = await watching.next_events()
        [gone] = await watching.next_events()
        assert (came.new, gone.old, gone.new) == (made, made, None)
        assert said(gone.raw) == ("scheduled", gone.revision)
        assert store.list_objects(PODS) == [pod]


async def test_an_event_that_is_repeated_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.apiserver.storage.local_store.EVENT_TTL_SECONDS", 0.05)
    async with a_store() as store:
        watching = store.watch("events")
        first = await store.put(Key("events", "default", "a"), None, text("once"))
        kept = await store.put(Key("events", "default", "b"), None, text("again"))
        while store.get(*first.key) is not None:
            kept = await store.put(kept.key, kept, text("again"))
            await watching.next_events()
        assert store.list_objects("events") == [kept]


@given(st.dictionaries(st.text(), st.recursive(st.text() | st.integers(-(2**53), 2**53), st.lists)), st.integers(1))
def test_the_version_of_an_object_is_changed_and_nothing_else_is(fields: dict[str, object], revision: int) -> None:
    obj = {"kind": "Pod", **fields, "apiVersion": "v1", "metadata": {"uid": "1", "labels": {"a": "b"}}}
    raw, labels = with_revision(msgspec.json.encode(obj), revision)
    assert raw.startswith(b'{"apiVersion":')
    assert labels == {"a": "b"}
    metadata = {"uid": "1", "labels": {"a": "b"}, "resourceVersion": str(revision)}
    assert msgspec.json.decode(raw) == {**obj, "metadata": metadata}
    assert with_revision(raw, 7)[0] == with_revision(without_revision(raw), 7)[0]
    assert msgspec.json.decode(without_revision(raw)) == obj


# -- on a disk


async def test_what_was_acknowledged_is_there_after_the_process_is_gone(tmp_path: Path) -> None:
    async with at_work(FileLog(tmp_path)) as store:
        first = await store.put(key("a"), None, text("one"))
        await store.put(key("b"), None, text("two"))
        await store.delete(key("a"), first, text("gone"))
    async with at_work(FileLog(tmp_path)) as store:
        assert [(each.key.name, said(each.raw), each.revision) for each in store.list_objects(PODS)] == [
            ("b", ("two", 2), 2)
        ]
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
    with pytest.raises(StorageError, match="another process has it open"):
        FileLog(tmp_path)
    log.close()


def test_bytes_that_are_not_what_was_written_are_not_served(tmp_path: Path) -> None:
    log = FileLog(tmp_path)
    log.append([Entry(1, key("a"), b"the truth")])
    log.close()
    damaged = log.path.read_bytes().replace(b"the truth", b"the trutt")
    log.path.write_bytes(damaged)
    again = FileLog(tmp_path)
    with pytest.raises(StorageError, match=r"pods default/a at revision 1 is not what was written"):
        list(again.load()[1])
    again.close()


def test_a_file_of_the_first_version_goes_on_as_one_of_this_version(tmp_path: Path) -> None:
    write_version_1(tmp_path / "tapestry.db", [Entry(7, key("a"), b"{}"), Entry(3, key("b"), b"{}")], latest=9)
    for _ in range(2):
        log = FileLog(tmp_path)
        latest, entries = log.load()
        assert (latest, list(entries)) == (9, [Entry(3, key("b"), b"{}"), Entry(7, key("a"), b"{}")])
        log.close()


@given(batches=st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=8), max_size=6))
def test_a_log_holds_what_was_written_last_whatever_came_in_one_batch(batches: list[list[tuple[str, bool]]]) -> None:
    with TemporaryDirectory() as folder:
        log, revision, left = FileLog(Path(folder)), 0, {}
        for batch in batches:
            entries = []
            for name, is_put in batch:
                revision += 1
                entries.append(Entry(revision, key(name), b"%d" % revision if is_put else None))
                left[key(name)] = entries[-1]
            log.append(entries)
        latest, found = log.load()
        assert (latest, list(found)) == (
            revision,
            sorted((each for each in left.values() if each.raw is not None), key=lambda each: each.revision),
        )
        log.close()


def test_a_file_that_is_no_database_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "tapestry.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(StorageError, match="restore a backup"):
        FileLog(tmp_path)
