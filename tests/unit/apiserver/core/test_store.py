"""The store contract with in-memory and SQLite logs, and the behaviour of local stores and logs."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.apiserver.core import slices
from tapestry.apiserver.core.store import Compacted, Key, ObjectVersion, StorageError, WatchEvent, event_type
from tapestry.apiserver.storage.local_store import MAX_BATCH_WRITES, LocalStore
from tapestry.apiserver.storage.log import Entry, Log, MemoryLog
from tapestry.apiserver.storage.raw_objects import with_revision, without_revision
from tapestry.apiserver.storage.sqlite_log import FileLog

from ..old_databases import write_version_1
from ..store_contract import (
    PODS,
    STEPS,
    STORE_CHECKS,
    Step,
    StoreCheck,
    check_watch_replays_history,
    content_and_revision,
    key,
    text,
)


@asynccontextmanager
async def running_store(log: Log) -> AsyncIterator[LocalStore]:
    store = LocalStore(log, ThreadPoolExecutor(1))
    await store.load()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(store.run())
        try:
            yield store
        finally:
            running.cancel()
    store.close()


@asynccontextmanager
async def memory_store() -> AsyncIterator[LocalStore]:
    async with running_store(MemoryLog()) as store:
        yield store


@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("backend", ["memory", "file"])
async def test_local_store_fulfills_contract(backend: str, check: StoreCheck, tmp_path: Path) -> None:
    async with running_store(FileLog(tmp_path) if backend == "file" else MemoryLog()) as store:
        await check(store)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(0, 25))
def test_watch_replays_history(steps: list[Step], since: int) -> None:
    async def replay() -> None:
        async with memory_store() as store:
            await check_watch_replays_history(store, steps, since)

    asyncio.run(replay())


# -- logs


class BlockedLog(MemoryLog):
    """A log that blocks until `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        self.go = asyncio.Event()

    def append(self, entries: Sequence[Entry]) -> None:
        asyncio.run_coroutine_threadsafe(self.go.wait(), self.loop).result(10)


class FullLog(MemoryLog):
    """A log that fails while `is_full` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = True

    def append(self, entries: Sequence[Entry]) -> None:
        if self.is_full:
            raise StorageError("the disk is full")


async def test_pending_write_is_visible_to_writers_only() -> None:
    log = BlockedLog()
    async with running_store(log) as store:
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


async def test_write_continues_after_writer_is_cancelled() -> None:
    log = BlockedLog()
    async with running_store(log) as store:
        writing = asyncio.create_task(store.put(key("a"), None, text("one")))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(store.wait_for_pending_write(key("a")))
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait([writing])
        assert not waiting.done()
        log.go.set()
        await waiting
        assert [content_and_revision(each.raw) for each in store.list_objects(PODS)] == [("one", 1)]


async def test_listener_error_stops_the_store() -> None:
    def listener(_: WatchEvent) -> None:
        raise RuntimeError("too much")

    async def write() -> None:
        async with running_store(MemoryLog()) as store:
            store.on_change(PODS, listener)
            await store.put(key("a"), None, text("one"))

    with pytest.raises(ExceptionGroup) as caught:
        await write()
    assert caught.group_contains(RuntimeError, match="too much")


async def test_failed_write_is_invisible_and_uses_up_revision() -> None:
    log = FullLog()
    async with running_store(log) as store:
        subscription = store.watch(PODS)
        with pytest.raises(StorageError, match="disk is full"):
            await store.put(key("a"), None, text("one"))
        assert store.head(*key("a")) is None
        log.is_full = False
        written = await store.put(key("a"), None, text("one"))
        assert written.revision == 2
        assert [event.revision for event in await subscription.next_events()] == [2]


async def test_write_based_on_failed_write_fails() -> None:
    log = FullLog()
    async with running_store(log) as store:
        first = asyncio.create_task(store.put(key("a"), None, text("one")))
        await asyncio.sleep(0)
        second = asyncio.create_task(store.put(key("a"), store.head(*key("a")), text("two")))
        for task in (first, second):
            with pytest.raises(StorageError):
                await task
        assert store.list_objects(PODS) == []


async def test_slow_watcher_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tapestry.apiserver.core.store.MAX_WATCH_BACKLOG", 3)
    async with memory_store() as store:
        subscription = store.watch(PODS)
        for number in range(5):
            await store.put(key(f"p{number}"), None, text("x"))
        assert await subscription.next_events() == []
        assert subscription.dropped
        assert store.count(PODS) == 5


def test_event_type_depends_on_selector() -> None:
    old, new = (ObjectVersion(key("a"), number, b"", {"app": app}) for number, app in ((1, "x"), (2, "y")))
    event = WatchEvent(2, old, new, b"")
    assert event_type(event, lambda version: version.labels["app"] == "y") == "ADDED"
    assert event_type(event, lambda version: version.labels["app"] == "x") == "DELETED"
    assert event_type(event, lambda _: True) == "MODIFIED"
    assert event_type(event, lambda _: False) is None


async def test_event_expires_after_ttl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.apiserver.storage.local_store.EVENT_TTL_SECONDS", 0.05)
    async with memory_store() as store:
        subscription = store.watch("events")
        pod = await store.put(key("a"), None, text("one"))
        event = await store.put(Key("events", "default", "e"), None, text("scheduled"))
        [created] = await subscription.next_events()
        [deleted] = await subscription.next_events()
        assert (created.new, deleted.old, deleted.new) == (event, event, None)
        assert content_and_revision(deleted.raw) == ("scheduled", deleted.revision)
        assert store.list_objects(PODS) == [pod]


async def test_updated_event_does_not_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.apiserver.storage.local_store.EVENT_TTL_SECONDS", 0.05)
    async with memory_store() as store:
        subscription = store.watch("events")
        first = await store.put(Key("events", "default", "a"), None, text("once"))
        repeated = await store.put(Key("events", "default", "b"), None, text("again"))
        while store.get(*first.key) is not None:
            repeated = await store.put(repeated.key, repeated, text("again"))
            await subscription.next_events()
        assert store.list_objects("events") == [repeated]


@given(st.dictionaries(st.text(), st.recursive(st.text() | st.integers(-(2**53), 2**53), st.lists)), st.integers(1))
def test_with_revision_changes_only_resource_version(fields: dict[str, object], revision: int) -> None:
    obj = {"kind": "Pod", **fields, "apiVersion": "v1", "metadata": {"uid": "1", "labels": {"a": "b"}}}
    raw, labels = with_revision(msgspec.json.encode(obj), revision)
    assert raw.startswith(b'{"apiVersion":')
    assert labels == {"a": "b"}
    metadata = {"uid": "1", "labels": {"a": "b"}, "resourceVersion": str(revision)}
    assert msgspec.json.decode(raw) == {**obj, "metadata": metadata}
    assert with_revision(raw, 7)[0] == with_revision(without_revision(raw), 7)[0]
    assert msgspec.json.decode(without_revision(raw)) == obj


# -- SQLite log


async def test_acknowledged_writes_survive_restart(tmp_path: Path) -> None:
    async with running_store(FileLog(tmp_path)) as store:
        first = await store.put(key("a"), None, text("one"))
        await store.put(key("b"), None, text("two"))
        await store.delete(key("a"), first, text("gone"))
    async with running_store(FileLog(tmp_path)) as store:
        assert [
            (each.key.name, content_and_revision(each.raw), each.revision) for each in store.list_objects(PODS)
        ] == [("b", ("two", 2), 2)]
        assert (await store.put(key("c"), None, text("three"))).revision == 4, "3 was the deletion"


async def test_listeners_list_what_is_loaded_so_far(tmp_path: Path) -> None:
    async with running_store(FileLog(tmp_path)) as store:
        for name in ("b", "a"):
            await store.put(key(name), None, text(name))
    listed: list[list[str]] = []
    with closing(LocalStore(FileLog(tmp_path), ThreadPoolExecutor(1))) as store:
        store.on_change(PODS, lambda _: listed.append([each.key.name for each in store.list_objects(PODS)]))
        assert store.list_objects(PODS) == []
        await store.load()
        assert [each.key.name for each in store.list_objects(PODS)] == ["a", "b"]
    assert [len(each) for each in listed] == [1, 2]


async def test_listeners_get_loaded_objects_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_store(FileLog(tmp_path)) as store:
        first = await store.put(key("a"), None, text("one"))
        for name in ("b", "c"):
            await store.put(key(name), None, text(name, app=name))
        await store.put(key("a"), first, text("two"))
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0.0)
    events: list[WatchEvent] = []
    counts: list[int] = []

    async def count_objects() -> None:
        while True:
            counts.append(store.count(PODS))
            await asyncio.sleep(0)

    with closing(LocalStore(FileLog(tmp_path), ThreadPoolExecutor(1))) as store:
        store.on_change(PODS, events.append)
        other = asyncio.create_task(count_objects())
        await store.load()
        other.cancel()
        assert {1, 2, 3} <= set(counts)
        assert [each.new for each in events] == [store.get(*key(name)) for name in ("a", "b", "c")], "as created"
        assert [each.labels for each in store.list_objects(PODS)] == [{}, {"app": "b"}, {"app": "c"}]
        assert store.revision == store.changed_revision(PODS) == 4
        with pytest.raises(Compacted):
            store.watch(PODS, after=3)


async def test_concurrent_writes_share_batches(tmp_path: Path) -> None:
    class CountingLog(FileLog):
        batches = 0

        def append(self, entries: Sequence[Entry]) -> None:
            self.batches += 1
            super().append(entries)

    log = CountingLog(tmp_path)
    async with running_store(log) as store, asyncio.TaskGroup() as group:
        for number in range(200):
            group.create_task(store.put(key(f"p{number}"), None, text("x")))
    assert log.batches < 20


def test_idle_log_holds_little_memory(tmp_path: Path) -> None:
    before = apsw.memory_used()
    log = FileLog(tmp_path)
    for size in range(1, MAX_BATCH_WRITES + 1):
        log.append([Entry(size, key(f"p{size}-{number}"), b"x" * 1000) for number in range(size)])
    assert apsw.memory_used() - before < 100 << 10
    log.close()


def test_database_has_only_one_writer_process(tmp_path: Path) -> None:
    log = FileLog(tmp_path)
    with pytest.raises(StorageError, match="another process has it open"):
        FileLog(tmp_path)
    log.close()


def test_corrupt_object_is_not_loaded(tmp_path: Path) -> None:
    log = FileLog(tmp_path)
    log.append([Entry(1, key("a"), b"the truth")])
    log.close()
    damaged = log.path.read_bytes().replace(b"the truth", b"the trutt")
    log.path.write_bytes(damaged)
    reopened = FileLog(tmp_path)
    with pytest.raises(StorageError, match=r"pods default/a at revision 1 is not what was written"):
        list(reopened.load()[1])
    reopened.close()


def test_database_of_version_1_is_migrated(tmp_path: Path) -> None:
    write_version_1(tmp_path / "tapestry.db", [Entry(7, key("a"), b"{}"), Entry(3, key("b"), b"{}")], latest=9)
    for _ in range(2):
        log = FileLog(tmp_path)
        latest, entries = log.load()
        assert (latest, set(entries)) == (9, {Entry(3, key("b"), b"{}"), Entry(7, key("a"), b"{}")})
        log.close()


@given(batches=st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=8), max_size=6))
def test_log_has_last_write_of_each_key(batches: list[list[tuple[str, bool]]]) -> None:
    with TemporaryDirectory() as folder:
        log, revision, expected = FileLog(Path(folder)), 0, {}
        for batch in batches:
            batch_entries = []
            for name, is_put in batch:
                revision += 1
                batch_entries.append(Entry(revision, key(name), b"%d" % revision if is_put else None))
                expected[key(name)] = batch_entries[-1]
            log.append(batch_entries)
        latest, entries = log.load()
        assert (latest, set(entries)) == (revision, {each for each in expected.values() if each.raw is not None})
        log.close()


def test_invalid_database_error_suggests_backup(tmp_path: Path) -> None:
    (tmp_path / "tapestry.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(StorageError, match="restore a backup"):
        FileLog(tmp_path)
