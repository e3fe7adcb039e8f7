"""Copies of planes under load, and the planes created from them: the same objects, but another cluster."""

import asyncio
import json
import os
import tarfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tapestry.apiserver.access.ephemeral_tokens import create_token
from tapestry.apiserver.assembly import ServerThreads
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.apiserver.core.store import Key, StorageError, StorageUnavailable
from tapestry.apiserver.storage import archive
from tapestry.apiserver.storage.copies import write_database
from tapestry.apiserver.storage.local_store import LocalStore
from tapestry.apiserver.storage.log import Entry, MemoryLog
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.objects import Object, object_named, uid_of
from tapestry.kube.resources import CONFIGMAPS, LEASES, NAMESPACES, SECRETS, SERVICE_ACCOUNTS
from tapestry.planes.copy_rules import is_included
from tapestry.planes.open_plane import OpenPlane, open_plane
from tapestry.planes.plane_copies import (
    copy_open_plane,
    copy_plane_folder,
    create_plane_from_copy,
    fill_store,
)
from tapestry.planes.plane_folders import create_plane_folder

from ..apiserver.tls_servers import run_tls_server

HOUR = timedelta(hours=1)


@pytest.fixture
def threads() -> Iterator[ServerThreads]:
    with closing(ServerThreads()) as threads:
        yield threads


@asynccontextmanager
async def opened(folder: Path, threads: ServerThreads, *controllers: str) -> AsyncIterator[tuple[OpenPlane, Client]]:
    config = ApiServerConfig(file_rootpath=str(folder), controllers=list(controllers or ["*"]))
    async with open_plane(folder.name, config, threads) as plane:
        yield plane, Client(InProcessTransport(plane.opened.request_handler, APISERVER_USER))


def copied_objects(file: Path, folder: Path) -> dict[Key, Object]:
    archive.unpack_checked(file, folder)
    return {each.key: json.loads(each.raw or b"") for each in archive.read_entries(folder)}


async def write_continuously(client: Client, number: int, stop: asyncio.Event) -> None:
    """Create, change and delete objects in turn."""
    count = 0
    while not stop.is_set():
        obj = await client.create(CONFIGMAPS, object_named(f"w{number}-{count}", "default"))
        obj = await client.patch(CONFIGMAPS, obj, {"data": {"count": str(count)}})
        if count % 3 == 0:
            await client.delete(CONFIGMAPS, obj)
        count += 1


async def test_copy_under_writes_has_exactly_one_revision(tmp_path: Path, threads: ServerThreads) -> None:
    async with opened(tmp_path / "a", threads) as (plane, client), asyncio.TaskGroup() as group:
        stop, store = asyncio.Event(), plane.opened.store
        for each in range(8):
            group.create_task(write_continuously(client, each, stop))
        for number in range(5):
            assert await store.wait_for_revision(store.revision + 50, 10)
            file = tmp_path / f"{number}.tar"
            revision = await copy_open_plane(store, file)
            assert await store.wait_for_revision(revision + 10, 10)  # writes went on
            expected = {
                version.key: json.loads(version.raw)
                for resource in list(store.resources())
                for version in store.list_at_revision(resource, "", revision)
                if is_included(Entry(version.revision, version.key, version.raw))
            }
            assert copied_objects(file, tmp_path / f"copy-{number}") == expected
        stop.set()
    assert not [each for each in os.listdir(tmp_path) if each.startswith(".")]


async def test_copy_of_closed_and_open_plane_is_the_same(tmp_path: Path, threads: ServerThreads) -> None:
    async with opened(tmp_path / "a", threads, "none") as (plane, client):
        await client.create(CONFIGMAPS, object_named("x", "default"))
        revisions = [
            await copy_open_plane(plane.opened.store, tmp_path / "0.tar"),
            await asyncio.to_thread(copy_plane_folder, tmp_path / "a", tmp_path / "1.tar"),
        ]
    revisions.append(copy_plane_folder(tmp_path / "a", tmp_path / "2.tar"))
    assert len(set(revisions)) == 1
    first, *others = (copied_objects(tmp_path / f"{each}.tar", tmp_path / f"copy-{each}") for each in range(3))
    assert others == [first, first]
    assert Key("configmaps", "default", "x") in first


async def test_plane_that_has_closed_gives_no_empty_copy(tmp_path: Path, threads: ServerThreads) -> None:
    async with opened(tmp_path / "a", threads, "none") as (plane, _):
        store = plane.opened.store
    with pytest.raises(StorageUnavailable, match="is closing"):
        await copy_open_plane(store, tmp_path / "copy.tar")
    assert os.listdir(tmp_path) == ["a"]


async def test_copy_has_no_keys_and_tokens(tmp_path: Path, threads: ServerThreads) -> None:
    file = tmp_path / "copy.tar"
    async with opened(tmp_path / "a", threads) as (plane, client):
        secret: Object = {**object_named("token", "default"), "type": "kubernetes.io/service-account-token"}
        secret["metadata"]["annotations"] = {"kubernetes.io/service-account.name": "default"}
        await client.create(SECRETS, {**secret, "stringData": {"token": "s3cret-token"}})
        await client.create(SECRETS, {**object_named("kept", "default"), "stringData": {"a": "b"}})
        await client.create(LEASES, {**object_named("held", "default"), "spec": {"holderIdentity": "me"}})
        await copy_open_plane(plane.opened.store, file)
    with tarfile.open(file) as tar:
        assert tar.getnames() == ["tapestry.db"]
    assert file.stat().st_mode & 0o077 == 0
    for text in (b"s3cret-token", b"czNjcmV0LXRva2Vu", b"PRIVATE KEY", b"BEGIN CERTIFICATE"):
        assert text not in file.read_bytes()
    keys = copied_objects(file, tmp_path / "copy")
    assert Key("secrets", "default", "kept") in keys
    assert not {Key("secrets", "default", "token"), Key("leases.coordination.k8s.io", "default", "held")} & keys.keys()


async def test_plane_from_copy_is_another_cluster(tmp_path: Path, threads: ServerThreads) -> None:
    async with opened(tmp_path / "a", threads) as (plane, client):
        await client.create(CONFIGMAPS, {**object_named("x", "default"), "data": {"k": "v"}})
        await copy_open_plane(plane.opened.store, tmp_path / "copy.tar")
        before = await client.get(NAMESPACES, "kube-system")
        default = await client.get(NAMESPACES, "default")
    create_plane_from_copy(tmp_path, "b", tmp_path / "copy.tar")
    create_plane_from_copy(tmp_path, "c", tmp_path / "copy.tar")
    identities = {uid_of(before)}
    for each in ("b", "c"):
        async with opened(tmp_path / each, threads) as (plane, client):
            assert (await client.get(CONFIGMAPS, "x", "default"))["data"] == {"k": "v"}
            assert uid_of(await client.get(NAMESPACES, "default")) == uid_of(default)
            identities.add(uid_of(await client.get(NAMESPACES, "kube-system")))
            root = await wait_for(client, CONFIGMAPS, "kube-root-ca.crt", "default", until=bool, timeout=10)
            own_ca = (tmp_path / each / "pki" / "ca.crt").read_text()
            assert root is not None
            assert root["data"]["ca.crt"] == own_ca == plane.opened.ca_bundle.pem
            published = await client.get(CONFIGMAPS, "extension-apiserver-authentication", "kube-system")
            assert published["data"]["client-ca-file"] == own_ca
    assert len(identities) == 3


async def test_credentials_of_the_source_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "a"
    create_plane_folder(tmp_path, "a")
    async with run_tls_server(source, backend="file") as server:
        certificate = server.new_certificate("admin")
        client = Client(InProcessTransport(server.running.request_handler, APISERVER_USER))
        account = await client.create(SERVICE_ACCOUNTS, object_named("robot", "default"))
        tokens = [
            create_token(source, "admin", ("system:masters",), HOUR, datetime.now(UTC))[1],
            server.running.account_tokens.issue_token(account, {}, None)["token"],
        ]
        connection = await server.connect("", certificate)
        assert await connection.whoami() == "admin"
        users = [await (await server.connect()).whoami(each) for each in tokens]
        assert users == ["admin", "system:serviceaccount:default:robot"]
        await copy_open_plane(server.running.store, tmp_path / "copy.tar")
    create_plane_from_copy(tmp_path, "b", tmp_path / "copy.tar")
    async with run_tls_server(tmp_path / "b", backend="file") as server:
        assert server.running.store.get("serviceaccounts", "default", "robot") is not None
        assert await (await server.connect("", certificate)).whoami() == "Unauthorized"
        for each in tokens:
            assert await (await server.connect()).whoami(each) == "Unauthorized"


def test_backup_as_copy_brings_no_keys(tmp_path: Path) -> None:
    create_plane_folder(tmp_path, "a")
    raw = b'{"metadata":{"name":"x","namespace":"default","uid":"u","resourceVersion":"1"}}'
    write_database(tmp_path / "a" / "tapestry.db", (1, [Entry(1, Key("configmaps", "default", "x"), raw)]))
    archive.back_up(tmp_path / "a", tmp_path / "backup.tar")
    create_plane_from_copy(tmp_path, "b", tmp_path / "backup.tar")
    assert [each.key.name for each in archive.read_entries(tmp_path / "b")] == ["x"]
    for name in ("ca.key", "service-accounts.key"):
        assert (tmp_path / "a" / "pki" / name).read_bytes() != (tmp_path / "b" / "pki" / name).read_bytes()


def test_invalid_copy_creates_no_plane(tmp_path: Path) -> None:
    (tmp_path / "copy.tar").write_text("nonsense")
    with pytest.raises(StorageError, match="is not an archive"):
        create_plane_from_copy(tmp_path, "b", tmp_path / "copy.tar")
    assert os.listdir(tmp_path) == ["copy.tar"]


async def test_store_is_filled_with_identity_last(tmp_path: Path, threads: ServerThreads) -> None:
    async with opened(tmp_path / "a", threads) as (plane, client):
        old = await client.get(NAMESPACES, "kube-system")
        await copy_open_plane(plane.opened.store, tmp_path / "copy.tar")
    with ThreadPoolExecutor(1) as executor, closing(LocalStore(MemoryLog(), executor)) as store:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(store.run())
            await fill_store(store, tmp_path / "copy.tar")
            last = max(store.snapshot(), key=lambda each: each.revision)
            stored = json.loads(last.raw)
            assert last.key == Key("namespaces", "", "kube-system")
            assert (stored["metadata"]["resourceVersion"], uid_of(stored) == uid_of(old)) == (str(last.revision), False)
            assert {each.key for each in store.snapshot()} == copied_objects(
                tmp_path / "copy.tar", tmp_path / "c"
            ).keys()
            with pytest.raises(StorageError, match="empty it first"):
                await fill_store(store, tmp_path / "copy.tar")
            running.cancel()
