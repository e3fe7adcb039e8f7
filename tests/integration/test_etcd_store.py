"""The etcd store on a real etcd, alone and with other writers."""

import asyncio
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.core.store import (
    Compacted,
    Key,
    ObjectTooLarge,
    ObjectVersion,
    OutcomeUnknown,
    StorageError,
    StorageUnavailable,
    VersionConflict,
    WatchEvent,
)
from tapestry.apiserver.storage.etcd.client import Certificates, EtcdClient, HistoryCompacted
from tapestry.apiserver.storage.etcd.store import EtcdStore, compact_once

from ..unit.apiserver.store_contract import (
    PODS,
    STEPS,
    STORE_CHECKS,
    Step,
    StoreCheck,
    check_watch_replays_history,
    content_and_revision,
    drained,
    key,
    revisions_and_contents,
    text,
)
from .etcds import Etcd, following, new_layout, three_members


@pytest.fixture(scope="module")
def etcd(kube_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """An etcd for all tests that do not kill it."""
    with Etcd(kube_assets, tmp_path_factory.mktemp("etcd")) as shared:
        yield shared


@pytest.fixture
def prefix() -> str:
    """Key prefix of one test, which isolates it from others."""
    return f"/{secrets.token_hex(4)}"


@pytest.fixture
def mortal(kube_assets: Path, tmp_path: Path) -> Iterator[Etcd]:
    """An etcd that a test may kill."""
    with Etcd(kube_assets, tmp_path) as own:
        yield own


@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
async def test_etcd_store_passes_store_check(check: StoreCheck, etcd: Etcd, prefix: str) -> None:
    async with following(etcd.url, prefix) as store:
        await check(store)


async def test_only_one_server_wins_a_claim(etcd: Etcd, prefix: str) -> None:
    async with following(etcd.url, prefix) as one, following(etcd.url, prefix) as other:

        async def gets_it(store: EtcdStore, name: str) -> bool:
            try:
                await store.put(key(name), None, text("first"), lambda: store.count(PODS) == 0)
            except VersionConflict:
                return False
            return True

        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(gets_it(store, f"{name}{number}"))
                for number in range(4)
                for store, name in ((one, "a"), (other, "b"))
            ]
        assert [task.result() for task in tasks].count(True) == 1
        await one.wait_for_latest()
        assert one.count(PODS) == 1


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, st.integers(0, 25))
def test_past_revisions_and_watches_match_history(etcd: Etcd, steps: list[Step], since: int) -> None:
    async def story() -> None:
        async with following(etcd.url, f"/{secrets.token_hex(4)}") as store:
            await check_watch_replays_history(store, steps, since)

    asyncio.run(story())


# -- two servers


async def test_writes_of_one_server_reach_the_other(etcd: Etcd, prefix: str) -> None:
    async with following(etcd.url, prefix) as one, following(etcd.url, prefix) as other:
        watching = other.watch(PODS)
        first = await one.put(key("a"), None, text("one", app="x"))
        await other.wait_for_latest()
        assert other.get(*key("a")) == first
        second = await other.put(key("a"), other.head(*key("a")), text("two"))
        await one.wait_for_latest()
        assert one.get(*key("a")) == second
        gone = await one.delete(key("a"), second, text("two"))
        await other.wait_for_latest()
        events = revisions_and_contents(await watching.next_events())
        assert events == [(first.revision, "one"), (second.revision, "two"), (gone.revision, "two")]


async def test_concurrent_writers_at_two_servers_lose_no_increment(etcd: Etcd, prefix: str) -> None:
    async with following(etcd.url, prefix) as one, following(etcd.url, prefix) as other:
        await one.put(key("a"), None, text("0"))
        await other.wait_for_latest()

        async def increment(store: EtcdStore) -> None:
            while True:
                head = store.head(*key("a"))
                assert head is not None
                try:
                    await store.put(key("a"), head, text(str(int(content_and_revision(head.raw)[0]) + 1)))
                except VersionConflict:
                    continue
                return

        async with asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(increment(one))
                group.create_task(increment(other))
        for store in (one, other):
            await store.wait_for_latest()
            assert content_and_revision(store.list_objects(PODS)[0].raw)[0] == "20"


async def test_latest_revision_includes_writes_to_other_keys(etcd: Etcd, prefix: str) -> None:
    async with following(etcd.url, prefix) as store, following(etcd.url, f"{prefix}-else") as elsewhere:
        made = await elsewhere.put(key("a"), None, text("x"))
        await store.wait_for_latest()
        assert store.revision >= made.revision
        assert store.list_objects(PODS) == []


async def test_new_server_loads_all_objects_in_pages(etcd: Etcd, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.apiserver.storage.etcd.client.PAGE_SIZE", 3)
    async with following(etcd.url, prefix) as one:
        made = [await one.put(key(f"p{number}"), None, text("x", n=str(number))) for number in range(7)]
        async with following(etcd.url, prefix) as other:
            assert other.list_objects(PODS) == made
            with pytest.raises(Compacted):
                other.watch(PODS, after=made[0].revision)


async def test_only_events_have_an_etcd_lease(etcd: Etcd, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.apiserver.storage.etcd.store.EVENT_TTL_SECONDS", 1.0)
    monkeypatch.setattr("tapestry.apiserver.storage.etcd.store.LEASE_REUSE_SECONDS", 0.0)
    async with following(etcd.url, prefix) as store:
        watching = store.watch("events")
        pod = await store.put(key("a"), None, text("stays"))
        made = await store.put(Key("events", "default", "e"), None, text("goes"))
        events: list[WatchEvent] = []
        while len(events) < 2:
            events += await watching.next_events()
        assert [(event.old, event.new) for event in events] == [(None, made), (made, None)]
        assert store.list_objects(PODS) == [pod]


async def test_foreign_keys_are_skipped_and_unreadable_objects_refused(
    etcd: Etcd, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with EtcdClient([etcd.url], Certificates()) as client:
        await client.put(f"{prefix}/masterleases/10.0.0.1".encode(), b"k8s\0", 0, 0)
        async with following(etcd.url, prefix) as store:
            monkeypatch.setattr("tapestry.apiserver.storage.etcd.store.READ_TIMEOUT", 0.5)
            await client.put(f"{prefix}/pods/default/p".encode(), b"k8s\0...", 0, 0)
            await wait_until_refused(store, r"pods/default/p at revision \d+ is not an object in JSON")
        with pytest.raises(StorageError, match="storage-media-type=application/json"):
            await EtcdStore(client, new_layout(prefix), history_seconds=300).load()


async def wait_until_refused(store: EtcdStore, why: str) -> None:
    """Wait until the store refuses reads for a reason that matches `why`.  Timeouts during retries are ignored."""
    async with asyncio.timeout(30):
        while True:
            try:
                await store.wait_for_latest()
            except StorageUnavailable as error:
                if re.search(why, str(error)):
                    return


async def wait_until_served(store: EtcdStore) -> None:
    """Wait for the latest revision and retry when the store refuses."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await store.wait_for_latest()
            except StorageUnavailable:
                continue


async def test_write_refused_by_etcd_is_not_stored(etcd: Etcd, prefix: str) -> None:
    async with following(etcd.url, prefix) as store:
        with pytest.raises(ObjectTooLarge):
            await store.put(key("a"), None, text("x" * 2_000_000))
        await store.wait_for_latest()
        assert store.list_objects(PODS) == []


# -- failures of etcd


async def test_etcd_kills_lose_no_acknowledged_write(mortal: Etcd) -> None:
    acknowledged: dict[str, int] = {}

    async def write(store: EtcdStore, writer: int, stop: asyncio.Event) -> None:
        number = 0
        while not stop.is_set():
            name = f"w{writer}-{number}"
            number += 1
            try:
                await store.wait_for_latest()
                acknowledged[name] = (await store.put(key(name), None, text("x"))).revision
            except (StorageUnavailable, OutcomeUnknown):
                await asyncio.sleep(0)

    async with following(mortal.url, "/registry") as store:
        watching, stop = store.watch(PODS), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for writer in range(8):
                group.create_task(write(store, writer, stop))
            for _ in range(3):
                before = len(acknowledged)
                async with asyncio.timeout(20):
                    while len(acknowledged) < before + 100:
                        await watching.next_events()
                mortal.kill()
                await asyncio.to_thread(mortal.start)
            before = len(acknowledged)
            async with asyncio.timeout(20):
                while len(acknowledged) < before + 100:
                    await watching.next_events()
            stop.set()
        await wait_until_served(store)
        assert not watching.dropped, "watches wait for etcd to come back"
        async with following(mortal.url, "/registry") as fresh:
            stored = {version.key.name: version.revision for version in fresh.list_objects(PODS)}
        assert acknowledged.items() <= stored.items()
        assert len(set(stored.values())) == len(stored)
        assert {version.key.name: version.revision for version in store.list_objects(PODS)} == stored


async def test_requests_are_refused_while_etcd_is_down(mortal: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(mortal.url, "/registry") as store:
        made = await store.put(key("a"), None, text("one"))
        mortal.kill()
        monkeypatch.setattr("tapestry.apiserver.storage.etcd.store.READ_TIMEOUT", 0.2)
        await wait_until_refused(store, f"etcd at {mortal.url}")
        with pytest.raises(StorageUnavailable, match=f"etcd at {mortal.url}"):
            await store.put(key("a"), made, text("two"))
        assert store.get(*key("a")) == made, "who does not ask for the latest is still served"


async def test_unanswered_write_is_made_at_most_once(mortal: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(mortal.url, "/registry") as store:
        first = await store.put(key("a"), None, text("one"))
        mortal.pause()
        with monkeypatch.context() as hurried:
            hurried.setattr("tapestry.apiserver.storage.etcd.client.CALL_TIMEOUT", 0.3)
            with pytest.raises(OutcomeUnknown, match="the result of this write is unknown"):
                await store.put(key("a"), first, text("two"))
        mortal.resume()
        await wait_until_served(store)
        events = drained(store.watch(PODS, after=first.revision))
        assert len(events) <= 1, "it was made once or not at all"


async def test_store_survives_the_loss_of_any_etcd_member(kube_assets: Path, tmp_path: Path) -> None:
    with three_members(kube_assets, tmp_path) as members:
        async with following([member.url for member in members], "/registry") as store:
            made = [await store.put(key("p"), None, text("0"))]
            for number, member in enumerate(members):
                member.kill()
                made.append(await replaced(store, made[-1], str(number + 1)))
                await asyncio.to_thread(member.start)
            assert store.list_objects(PODS) == made[-1:]
            events = revisions_and_contents(drained(store.watch(PODS, after=made[0].revision)))
            assert [(version.revision, content_and_revision(version.raw)[0]) for version in made[1:]] == events


async def test_silent_etcd_member_is_replaced_by_another(kube_assets: Path, tmp_path: Path) -> None:
    with three_members(kube_assets, tmp_path) as members:
        async with following([member.url for member in members], "/registry") as store:
            made = await store.put(key("p"), None, text("0"))
            members[0].pause()
            second = await replaced(store, made, "1")
            members[0].resume()
            assert revisions_and_contents(drained(store.watch(PODS, after=made.revision))) == [(second.revision, "1")]


async def replaced(store: EtcdStore, version: ObjectVersion, content: str) -> ObjectVersion:
    """Replace the content and retry after errors."""
    async with asyncio.timeout(30):
        while True:
            try:
                await store.wait_for_latest()
                found = store.head(*version.key)
                if found is not None and content_and_revision(found.raw)[0] == content:
                    return found
                return await store.put(version.key, found, text(content))
            except (StorageUnavailable, OutcomeUnknown, VersionConflict):
                continue


async def test_etcd_and_server_authenticate_with_certificates(kube_assets: Path, tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "pki")
    (certificate, its_key), (ours, our_key) = (
        authority.server_certificate(["127.0.0.1"]),
        authority.client_certificate("tapestry", []),
    )
    files = {"cert-file": certificate, "key-file": its_key, "trusted-ca-file": authority.certificate_file}
    flags = {name: str(file) for name, file in files.items()}
    with Etcd(kube_assets, tmp_path, {**flags, "client-cert-auth": "true"}, scheme="https") as etcd:
        trust = authority.certificate_file.read_bytes()
        good = Certificates(trust, ours.read_bytes(), our_key.read_bytes())
        async with following(etcd.url, "/registry", good) as store:
            made = await store.put(key("a"), None, text("one"))
            assert store.get(*key("a")) == made
        async with EtcdClient([etcd.url], Certificates(trust)) as untrusted:
            with pytest.raises(StorageUnavailable):
                await untrusted.current_revision(b"/registry/")


async def test_server_reloads_after_compaction_of_missed_revisions(etcd: Etcd, prefix: str) -> None:
    heard: list[tuple[str, bool]] = []
    async with following(etcd.url, prefix) as ahead, EtcdClient([etcd.url], Certificates()) as client:
        first = await ahead.put(key("stays"), None, text("one"))
        goes = await ahead.put(key("goes"), None, text("one"))
        behind = EtcdStore(client, new_layout(prefix), history_seconds=300)
        await behind.load()
        behind.on_change(PODS, lambda event: heard.append((event.object_version.key.name, event.new is not None)))
        watching = behind.watch(PODS)
        second = await ahead.put(key("stays"), first, text("two"))
        gone = await ahead.delete(key("goes"), goes, text("one"))
        new = await ahead.put(key("new"), None, text("one"))
        await client.compact(new.revision)
        running = asyncio.create_task(behind.run())
        await behind.wait_for_latest()
        assert await watching.next_events() == []
        assert watching.dropped
        assert behind.list_objects(PODS) == [new, second]
        assert sorted(heard) == [("goes", False), ("new", True), ("stays", True)]
        with pytest.raises(Compacted):
            behind.watch(PODS, after=gone.revision)
        running.cancel()


async def test_one_server_compacts_etcd_after_each_interval(mortal: Etcd) -> None:
    async with (
        following(mortal.url, "/registry") as store,
        EtcdClient([mortal.url], Certificates()) as one,
        EtcdClient([mortal.url], Certificates()) as other,
    ):
        first = await store.put(key("a"), None, text("one"))
        mine = await compact_once(one, 0, 0)
        theirs = await compact_once(other, 0, 0)
        assert mine[0] == theirs[0] == 1, "the second was too late, and knows of the first"
        second = await store.put(key("a"), first, text("two"))
        mine = await compact_once(one, *mine)
        assert (await compact_once(other, *theirs))[0] == mine[0] == 2
        assert await past(one, first.revision) is None
        assert await past(one, second.revision) == second.revision


async def past(client: EtcdClient, revision: int) -> int | None:
    """First revision that a watch from `revision` returns, or None if it was compacted."""
    async with client.watch(b"/registry/", b"/registry0", revision) as watch:
        try:
            return (await watch.next())[0][0].revision
        except HistoryCompacted:
            return None
