"""Snapshots of planes with all their objects, and their restore: completely or not at all."""

import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from tapestry.apis import keys
from tapestry.apiserver.assembly import ServerThreads
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.apiserver.core.store import Compacted, Key, StorageError
from tapestry.apiserver.storage.archive import read_entries
from tapestry.apiserver.storage.copies import write_database
from tapestry.apiserver.storage.log import Entry
from tapestry.apiserver.storage.sqlite_log import DATABASE_NAME
from tapestry.client.client import Client
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.objects import Object, object_named, uid_of
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES, SECRETS
from tapestry.planes import plane_restores
from tapestry.planes.copy_rules import IDENTITY_NAMESPACE
from tapestry.planes.open_plane import OpenPlane, open_plane
from tapestry.planes.plane_copies import copy_plane_folder, write_all_objects
from tapestry.planes.plane_data import CopySource
from tapestry.planes.plane_restores import NotEnoughSpace, SnapshotFile, restore_plane, snapshot_plane


@pytest.fixture
def threads() -> Iterator[ServerThreads]:
    with closing(ServerThreads()) as threads:
        yield threads


@asynccontextmanager
async def opened(
    folder: Path, threads: ServerThreads, backend: str = "file"
) -> AsyncIterator[tuple[OpenPlane, Client]]:
    config = ApiServerConfig(backend=backend, file_rootpath=str(folder), controllers=[])  # type: ignore[arg-type]
    async with open_plane(folder.name, config, threads) as plane:
        yield plane, Client(InProcessTransport(plane.opened.request_handler, APISERVER_USER))


async def no_check() -> None: ...


async def snapshot_of(plane: OpenPlane, file: Path) -> SnapshotFile:
    store = plane.opened.store
    return await snapshot_plane(CopySource(plane.opened.config, store, no_check), store.object_bytes, file)


def secret(name: str) -> Object:
    annotations = {"kubernetes.io/service-account.name": "default"}
    metadata = {"name": name, "namespace": "default", "annotations": annotations}
    return {"metadata": metadata, "type": "kubernetes.io/service-account-token"}


@pytest.mark.parametrize("backend", ["file", "memory"])
async def test_restored_plane_has_exactly_the_objects_of_the_snapshot(
    tmp_path: Path, threads: ServerThreads, backend: str
) -> None:
    folder, file = tmp_path / "a", tmp_path / "s" / "s.tar"
    async with opened(folder, threads, backend) as (plane, client):
        identity = uid_of(await client.get(NAMESPACES, "kube-system"))
        await client.create(CONFIGMAPS, {**object_named("old", "default"), "data": {"v": "1"}})
        await client.create(SECRETS, secret("token"))
        written = await snapshot_of(plane, file)
        assert written.objects == plane.opened.store.object_count
        assert written.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
        await client.patch(CONFIGMAPS, object_named("old", "default"), {"data": {"v": "2"}})
        await client.create(CONFIGMAPS, object_named("new", "default"))
        before = plane.opened.store.revision
    restored = restore_plane(
        *(folder, file), objects=written.objects, is_new=False, in_memory=backend == "memory", after=before
    )
    assert (restored.objects, restored.revision > before + 1000) == (written.objects, True)
    async with opened(folder, threads, backend) as (plane, client):
        assert (await client.get(CONFIGMAPS, "old", "default"))["data"] == {"v": "1"}
        assert await client.find(CONFIGMAPS, "new", "default") is None
        assert await client.find(SECRETS, "token", "default")
        assert uid_of(await client.get(NAMESPACES, "kube-system")) == identity
        with pytest.raises(Compacted):
            plane.opened.store.watch("configmaps", after=before)


async def test_new_plane_has_identity_of_its_own(tmp_path: Path, threads: ServerThreads) -> None:
    file = tmp_path / "s" / "s.tar"
    async with opened(tmp_path / "a", threads) as (plane, client):
        identity = uid_of(await client.get(NAMESPACES, "kube-system"))
        await client.create(CONFIGMAPS, object_named("c", "default"))
        await client.create(SECRETS, secret("token"))
        written = await snapshot_of(plane, file)
    for _ in range(2):
        restore_plane(tmp_path / "b", file, objects=written.objects, is_new=True, in_memory=False)
    async with opened(tmp_path / "b", threads) as (_, client):
        assert await client.find(CONFIGMAPS, "c", "default")
        assert await client.find(SECRETS, "token", "default") is None
        assert uid_of(await client.get(NAMESPACES, "kube-system")) != identity


async def test_failed_restore_changes_nothing(tmp_path: Path, threads: ServerThreads) -> None:
    folder, file = tmp_path / "a", tmp_path / "s" / "s.tar"
    async with opened(folder, threads) as (plane, client):
        written = await snapshot_of(plane, file)
        await client.create(CONFIGMAPS, object_named("new", "default"))
        with pytest.raises(StorageError, match="has it open"):
            restore_plane(folder, file, objects=written.objects, is_new=False, in_memory=False)
    with pytest.raises(StorageError, match="instead of 7"):
        restore_plane(folder, file, objects=7, is_new=False, in_memory=False)
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(StorageError):
        restore_plane(folder, file, objects=written.objects, is_new=False, in_memory=False)
    async with opened(folder, threads) as (_, client):
        assert await client.find(CONFIGMAPS, "new", "default")


async def test_snapshot_of_full_disk_is_not_begun(
    tmp_path: Path, threads: ServerThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plane_restores, "MIN_FREE_BYTES", 1 << 60)
    async with opened(tmp_path / "a", threads) as (plane, _):
        with pytest.raises(NotEnoughSpace):
            await snapshot_of(plane, tmp_path / "s" / "s.tar")
    assert list((tmp_path / "s").iterdir()) == []


def test_pods_of_host_cluster_start_again_and_volumes_stay(tmp_path: Path) -> None:
    virtual = {keys.NODE_TYPE: keys.NODE_TYPE_VIRTUAL, keys.CLUSTER_BINDING_UID: "u"}
    metadata = {"name": "p", "namespace": "default", "annotations": {keys.PREFIX + "x": "1", "own": "2"}}
    objects: dict[Key, Object] = {
        IDENTITY_NAMESPACE: {"metadata": {"name": "kube-system", "uid": "k"}},
        Key("nodes", "", "n"): {"metadata": {"name": "n", "labels": virtual}},
        Key("nodes", "", "own"): {"metadata": {"name": "own"}},
        Key("pods", "default", "p"): {
            "metadata": metadata,
            "spec": {"nodeName": "n"},
            "status": {"phase": "Running", "podIP": "10.0.0.1"},
        },
        Key("pods", "default", "q"): {
            "metadata": {"name": "q", "namespace": "default"},
            "spec": {"nodeName": "own"},
            "status": {"phase": "Running"},
        },
        Key("persistentvolumeclaims", "default", "c"): {
            "metadata": {"name": "c", "namespace": "default"},
            "spec": {"volumeName": "v"},
        },
    }
    entries = []
    for revision, (key, obj) in enumerate(objects.items(), 1):
        obj["metadata"]["resourceVersion"] = str(revision)
        entries.append(Entry(revision, key, json.dumps(obj).encode()))
    source = tmp_path / "source"
    source.mkdir()
    write_database(source / DATABASE_NAME, (6, entries))
    copy_plane_folder(source, tmp_path / "s.tar", write_all_objects)
    restored = restore_plane(tmp_path / "a", tmp_path / "s.tar", objects=6, is_new=False, in_memory=False)
    found = {each.key: json.loads(each.raw or b"") for each in read_entries(tmp_path / "a")}
    assert restored.objects == len(found) == 5
    assert Key("nodes", "", "n") not in found
    pod = found[Key("pods", "default", "p")]
    assert (pod["spec"], pod["status"], pod["metadata"]["annotations"]) == ({}, {"phase": "Pending"}, {"own": "2"})
    assert found[Key("pods", "default", "q")]["spec"] == {"nodeName": "own"}
    assert found[Key("persistentvolumeclaims", "default", "c")]["spec"] == {"volumeName": "v"}
    assert found[IDENTITY_NAMESPACE]["metadata"]["uid"] == "k"
