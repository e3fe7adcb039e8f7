"""Epochs of a store on a real etcd: only the process that took the latest one writes."""

import asyncio
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tapestry.apiserver.core.config import Etcd as EtcdConfig
from tapestry.apiserver.core.epochs import EpochFence, EpochLost
from tapestry.apiserver.core.store import Compacted, ObjectVersion, StorageError, StorageUnavailable
from tapestry.apiserver.storage.etcd.client import Certificates, EtcdClient
from tapestry.apiserver.storage.etcd.connection import delete_prefix, epoch_guard
from tapestry.apiserver.storage.etcd.store import EtcdStore, compact_once

from ..unit.apiserver.store_contract import PODS, STORE_CHECKS, StoreCheck, key, revisions_and_contents, text
from .etcds import Etcd, following, new_layout


@pytest.fixture(scope="module")
def etcd(kube_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(kube_assets, tmp_path_factory.mktemp("etcd")) as shared:
        yield shared


@pytest.fixture
def prefix() -> str:
    """Key prefix of one test, which isolates it from others."""
    return f"/{secrets.token_hex(4)}"


def fence(epoch: int) -> EpochFence:
    return EpochFence(epoch, lambda: True)


class Lease:
    """The Lease of a process, as its fences see it."""

    is_valid = True

    def fence(self, epoch: int) -> EpochFence:
        return EpochFence(epoch, lambda: self.is_valid)


@asynccontextmanager
async def losing_store(
    etcd: Etcd, prefix: str, fence: EpochFence
) -> AsyncIterator[tuple[EtcdStore, asyncio.Task[None]]]:
    """A store that is expected to lose its epoch, and the task that runs it."""
    async with EtcdClient([etcd.url], Certificates(), epoch_guard(prefix, fence)) as client:
        store = EtcdStore(client, new_layout(prefix), history_seconds=300)
        await store.load()
        running = asyncio.create_task(store.run())
        await store.wait_for_latest()
        yield store, running
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
async def test_only_writer_passes_store_check(check: StoreCheck, etcd: Etcd, prefix: str) -> None:
    async with following(etcd.url, prefix, fence=fence(1)) as store:
        await check(store)


WRITES: dict[str, Callable[[EtcdStore, ObjectVersion], Awaitable[ObjectVersion]]] = {
    "create": lambda store, _: store.put(key("b"), None, text("late")),
    "update": lambda store, made: store.put(made.key, made, text("late")),
    "create with a precondition": lambda store, _: store.put(key("b"), None, text("late"), lambda: True),
    "delete": lambda store, made: store.delete(made.key, made, text("late")),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_writer_of_an_old_epoch_writes_nothing(
    write: Callable[[EtcdStore, ObjectVersion], Awaitable[ObjectVersion]],
    etcd: Etcd,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(EtcdClient, "check_changes", lambda *_: None)  # as if the watch were late
    async with losing_store(etcd, prefix, fence(1)) as (old, running):
        made = await old.put(key("a"), None, text("one"))
        async with following(etcd.url, prefix, fence=fence(2)) as new:
            with pytest.raises(EpochLost, match="this process holds epoch 1, but epoch 2 is current"):
                await write(old, made)
            await new.put(key("c"), None, text("later"))
            assert [each.key.name for each in new.list_objects(PODS)] == ["a", "c"]
            assert new.get(*key("a")) == made
        with pytest.raises(ExceptionGroup) as stopped:
            await running
        assert stopped.group_contains(EpochLost)


async def test_store_stops_when_another_process_takes_it(etcd: Etcd, prefix: str) -> None:
    async with losing_store(etcd, prefix, fence(1)) as (_, running), following(etcd.url, prefix, fence=fence(2)):
        with pytest.raises(ExceptionGroup) as stopped:
            async with asyncio.timeout(10):
                await running
        assert stopped.group_contains(EpochLost)


async def test_older_epoch_cannot_be_taken(etcd: Etcd, prefix: str) -> None:
    async with following(etcd.url, prefix, fence=fence(3)) as store:
        await store.put(key("a"), None, text("one"))
    with pytest.raises(EpochLost, match="this process holds epoch 2, but epoch 3 is current"):
        async with following(etcd.url, prefix, fence=fence(2)):
            pass
    async with following(etcd.url, prefix, fence=fence(3)) as again:
        assert again.count(PODS) == 1


async def test_one_of_many_takes_an_epoch(etcd: Etcd, prefix: str) -> None:
    async def takes(epoch: int) -> bool:
        async with EtcdClient([etcd.url], Certificates(), epoch_guard(prefix, fence(epoch))) as client:
            try:
                await client.take_epoch()
                await client.put(f"{prefix}/x{epoch}".encode(), b"", 0, 0)
            except EpochLost:
                return False
            return True

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(takes(epoch)) for epoch in range(1, 9)]
    assert tasks[-1].result(), "the latest epoch can always be taken"
    async with EtcdClient([etcd.url], Certificates()) as client:
        assert (await client.get(f"{prefix}/epoch".encode()))[0].value == b"8"


async def test_nothing_is_written_without_a_valid_lease(etcd: Etcd, prefix: str) -> None:
    lease = Lease()
    async with following(etcd.url, prefix, fence=lease.fence(1)) as store:
        made = await store.put(key("a"), None, text("one"))
        lease.is_valid = False
        with pytest.raises(StorageUnavailable, match="could not renew its Lease"):
            await store.put(key("a"), made, text("two"))
        await store.wait_for_latest()
        assert store.list_objects(PODS) == [made]
        lease.is_valid = True
        assert (await store.put(key("a"), made, text("two"))).revision > made.revision


async def test_writer_of_deleted_data_writes_nothing(etcd: Etcd, prefix: str) -> None:
    async with losing_store(etcd, prefix, fence(1)) as (store, _):
        await store.put(key("a"), None, text("one"))
        async with EtcdClient([etcd.url], Certificates()) as client:
            await client.delete_range(f"{prefix}/".encode(), f"{prefix}0".encode())
        with pytest.raises(EpochLost, match="it was deleted"):
            await store.put(key("b"), None, text("late"))


async def test_deleted_prefix_has_no_keys(etcd: Etcd, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.apiserver.storage.etcd.client.PAGE_SIZE", 3)
    config = EtcdConfig(servers=[etcd.url], prefix=prefix)
    async with following(etcd.url, f"{prefix}-else", fence=fence(1)) as neighbour:
        await neighbour.put(key("kept"), None, text("x"))
        async with losing_store(etcd, prefix, fence(1)) as (store, _):
            for number in range(8):
                await store.put(key(f"p{number}"), None, text("x"))
            await delete_prefix(config, fence(2))
            with pytest.raises(StorageError):
                await store.put(key("late"), None, text("x"))
        await delete_prefix(config, fence(2))
        async with EtcdClient([etcd.url], Certificates()) as client:
            pages = client.list_pages(f"{prefix}/".encode(), f"{prefix}0".encode())
            assert [page async for _, page in pages] == [[]]
        await neighbour.wait_for_latest()
        assert neighbour.count(PODS) == 1


async def test_stopped_process_deletes_nothing(etcd: Etcd, prefix: str) -> None:
    async with following(etcd.url, prefix, fence=fence(2)) as store:
        await store.put(key("a"), None, text("x"))
        with pytest.raises(EpochLost):
            await delete_prefix(EtcdConfig(servers=[etcd.url], prefix=prefix), fence(1))
        assert store.count(PODS) == 1


WRITER = """
import asyncio, sys
from tapestry.apiserver.core.epochs import EpochFence, EpochLost
from tapestry.apiserver.storage.etcd.client import Certificates, EtcdClient
from tapestry.apiserver.storage.etcd.connection import epoch_guard

async def write():
    url, prefix = sys.argv[1:]
    async with EtcdClient([url], Certificates(), epoch_guard(prefix, EpochFence(1, lambda: True))) as client:
        await client.take_epoch()
        number = 0
        try:
            while True:
                await client.put(f"{prefix}/pods/default/p{number}".encode(), b"{}", 0, 0)
                number += 1
                print(number, flush=True)
        except EpochLost:
            print("lost", flush=True)

asyncio.run(write())
"""


async def test_stopped_process_writes_nothing_after_it_continues(etcd: Etcd, prefix: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, etcd.url, prefix, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        for _ in range(20):
            await process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        async with EtcdClient([etcd.url], Certificates(), epoch_guard(prefix, fence(2))) as client:
            await client.take_epoch()
            taken, _ = await client.get(f"{prefix}/epoch".encode())
            process.send_signal(signal.SIGCONT)
            assert (await process.stdout.read()).endswith(b"lost\n")
            pods = client.list_pages(f"{prefix}/pods/".encode(), f"{prefix}/pods0".encode())
            written = [each.revision async for _, page in pods for each in page]
            assert len(written) >= 20
            assert max(written) < taken.revision
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


# -- history


async def test_watch_continues_at_the_next_holder_without_a_list(etcd: Etcd, prefix: str) -> None:
    async with following(etcd.url, prefix, fence=fence(1)) as one:
        first = await one.put(key("a"), None, text("one"))
        second = await one.put(key("a"), first, text("two"))
        gone = await one.delete(key("a"), second, text("two"))
        other = await one.put(key("b"), None, text("new"))
    async with following(etcd.url, prefix, fence=fence(2)) as two:
        missed = await two.watch(PODS, after=first.revision).next_events()
        assert revisions_and_contents(missed) == [
            (second.revision, "two"),
            (gone.revision, "two"),
            (other.revision, "new"),
        ]
        assert [(event.old, event.new) for event in missed] == [(first, second), (second, None), (None, other)]
        assert two.list_objects(PODS) == [other]
        assert [each.key.name for each in two.list_at_revision(PODS, "", second.revision)] == ["a"]


async def test_history_starts_at_the_last_compaction(kube_assets: Path, tmp_path: Path) -> None:
    with Etcd(kube_assets, tmp_path) as own:
        async with following(own.url, "/plane", fence=fence(1)) as one, EtcdClient([own.url], Certificates()) as client:
            first = await one.put(key("a"), None, text("one"))
            second = await one.put(key("a"), first, text("two"))
            await compact_once(client, 0, second.revision)
            third = await one.put(key("a"), second, text("three"))
        async with following(own.url, "/plane", fence=fence(2)) as two, EtcdClient([own.url], Certificates()) as client:
            assert [event.new for event in await two.watch(PODS, after=second.revision).next_events()] == [third]
            with pytest.raises(Compacted):
                two.watch(PODS, after=first.revision)
            await client.compact(third.revision)  # by an operator, without the key of API servers
        async with following(own.url, "/plane", fence=fence(3)) as three:
            assert three.list_objects(PODS) == [third]


async def test_revision_of_an_idle_store_advances(etcd: Etcd, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.apiserver.storage.etcd.store.PROGRESS_REQUESTS_PER_RETENTION", 3000)  # each 0.1 s
    async with (
        following(etcd.url, prefix, fence=fence(1)) as idle,
        following(etcd.url, f"{prefix}-else", fence=fence(1)) as neighbour,
    ):
        made = await neighbour.put(key("a"), None, text("one"))
        assert await idle.wait_for_revision(made.revision, 10)


# -- consistent reads


async def test_only_writer_reads_consistently_without_etcd(
    kube_assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tapestry.apiserver.storage.etcd.store.READ_TIMEOUT", 0.2)
    lease = Lease()
    with Etcd(kube_assets, tmp_path) as own:
        async with following(own.url, "/plane", fence=lease.fence(1)) as store:
            await store.put(key("a"), None, text("one"))
            own.pause()
            await store.wait_for_latest()
            lease.is_valid = False
            with pytest.raises(StorageUnavailable):
                await store.wait_for_latest()
            own.resume()


async def test_server_without_an_epoch_refuses_keys_of_planes(etcd: Etcd, prefix: str) -> None:
    async with following(etcd.url, prefix, fence=fence(1)) as store:
        await store.put(key("a"), None, text("made"))
    with pytest.raises(StorageError, match="open it with `tapestry planes run`"):
        async with following(etcd.url, prefix):
            pass
    async with following(etcd.url, f"{prefix}/other") as store:
        await store.put(key("a"), None, text("made"))
